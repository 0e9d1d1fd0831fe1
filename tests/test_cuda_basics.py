"""The first steps of the CUDA ladder: each equals float64 arithmetic, in any order of threads and without a fault."""

import numpy as np
import pytest
from gpu_lab import TOLERANCE, few, in_every_way
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kernels import lab
from kernels.cuda.map import axpy, axpy_grid_stride
from kernels.cuda.matmul import matmul_naive, matmul_tiled
from kernels.cuda.reduction import THREADS, sum_rows_shared, sum_rows_shuffle
from kernels.cuda.softmax import softmax_online, softmax_two_pass

DTYPES = st.sampled_from([np.float16, np.float32])


def numbers(dtype, *shape):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("step", [axpy, axpy_grid_stride])
@in_every_way
@few
@given(elements=st.integers(0, 300), dtype=DTYPES)
def test_map(step, launch, elements, dtype):
    x, y = numbers(dtype, 2, elements)
    out = np.empty_like(x)
    launch(step, 1.5, x, y, out, global_reads_per_thread=2)
    assert_allclose(out, 1.5 * x.astype(float) + y, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("step", [sum_rows_shared, sum_rows_shuffle])
@in_every_way
@few
@given(rows=st.integers(0, 2), columns=st.integers(0, 300), dtype=DTYPES)
def test_sums_of_rows(step, launch, rows, columns, dtype):
    x = numbers(dtype, rows, columns)
    out = np.empty(rows, np.float32)
    launch(step, x, out, global_reads_per_thread=-(-columns // THREADS))
    assert_allclose(out, x.astype(float).sum(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("step", [matmul_naive, matmul_tiled])
@in_every_way
@few
@given(m=st.integers(1, 19), k=st.integers(0, 33), n=st.integers(1, 19), dtype=DTYPES)
def test_products(step, launch, m, k, n, dtype):
    a, b = numbers(dtype, m, k), numbers(dtype, k, n)
    out = np.empty((m, n), np.float32)
    launch(step, a, b, out)
    assert_allclose(out, a.astype(float) @ b, rtol=0, atol=1e-4)


@pytest.mark.parametrize("step", [softmax_two_pass, softmax_online])
@in_every_way
@few
@given(rows=st.integers(0, 2), columns=st.integers(0, 300), masked=st.booleans(), dtype=DTYPES)
def test_softmax(step, launch, rows, columns, masked, dtype):
    x = numbers(dtype, rows, columns)
    x[:, : columns // 2] = -np.inf
    x[-1:] = -np.inf if masked else 60
    out = np.empty_like(x)
    launch(step, x, out)
    assert_allclose(out, softmax(x), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("step", [softmax_two_pass, softmax_online])
@pytest.mark.parametrize(("columns", "place"), [(200, 0), (200, 129), (200, 199), (3, 0), (1, 0)])
def test_softmax_hides_no_nan(step, columns, place):
    x = numbers(np.float32, 1, columns)
    x[0, place] = np.nan
    out = np.empty_like(x)
    with lab.run():
        step(x, out)
    assert np.isnan(out).all()


def softmax(x):
    """Along rows, in float64; zeros where all is masked."""
    x = x.astype(float)
    maximum = np.maximum(x.max(1, keepdims=True, initial=-1e300), -1e300)
    weights = np.exp(x - maximum)
    return weights / np.maximum(weights.sum(1, keepdims=True), 1e-300)
