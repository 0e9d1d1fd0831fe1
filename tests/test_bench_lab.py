"""The kernels of the lab's benchmark are right, and both sides are timed."""

import numpy as np
import pytest

from kernels import lab
from minillm.bench import lab as bench


def test_the_paged_decode_is_attention():
    generator = np.random.default_rng(1)
    q = generator.random((2, 4, bench.HEAD_DIM), np.float32)
    keys, values = generator.random((2, 6, 4, bench.BLOCK_SIZE, bench.HEAD_DIM), np.float32)
    tables, lengths, out = np.array([[5, 0, 3], [1, 4, 2]]), np.array([9, 12]), np.zeros_like(q)
    with lab.check() as reports:
        bench.paged_decode[(2, 4), bench.HEAD_DIM](q, keys, values, tables, lengths, out)
    reports[0].check(bank_conflict=1)
    for sequence, head in np.ndindex(2, 4):
        k, v = (
            cache[tables[sequence], head].reshape(-1, bench.HEAD_DIM)[: lengths[sequence]] for cache in (keys, values)
        )
        weights = np.exp(k.astype(np.float64) @ q[sequence, head])
        np.testing.assert_allclose(out[sequence, head], weights @ v / weights.sum(), rtol=1e-5)


def test_the_tiled_product_is_one():
    a, b = np.random.default_rng(2).random((2, 16, 16), np.float32)
    product = np.zeros_like(a)
    with lab.check() as reports:
        bench.tiled_matmul[(2, 2), (bench.TILE, bench.TILE)](a, b, product)
    reports[0].check()
    np.testing.assert_allclose(product, a @ b, rtol=1e-5)


def test_both_sides_of_each_kernel_are_timed(monkeypatch):
    monkeypatch.setattr(bench, "simulator_seconds", lambda: {"paged decode": 9.0, "tiled matmul": 2.0})
    decode, matmul = bench.measure(repeats=1)
    assert (decode.kernel, matmul.kernel) == ("paged decode", "tiled matmul")
    assert decode.simulator == 9
    assert min(decode.bare, decode.checked, matmul.bare, matmul.checked) > 0


@pytest.mark.parametrize("name", ["paged decode", "tiled matmul"])
def test_a_launch_fills_its_grid(name):
    with lab.check() as reports:
        bench.launches()[name]()
    assert np.prod(reports[0].grid) == 16
