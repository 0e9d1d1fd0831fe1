"""Run in a process of its own with NUMBA_ENABLE_CUDASIM=1: the kernels without shuffles, in numba's simulator."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from kernels.cuda import copy_blocks, reshape_and_cache
from kernels.cuda.map import axpy, axpy_grid_stride
from kernels.cuda.matmul import matmul_naive, matmul_tiled
from kernels.cuda.paged_flash_decoding import combine
from kernels.cuda.reduction import sum_rows_shared

rng = np.random.default_rng(0)


def numbers(*shape):
    return rng.standard_normal(shape).astype(np.float32)


x, y, out = numbers(3, 150)
for kernel in (axpy, axpy_grid_stride):
    kernel(1.5, x, y, out)
    assert_allclose(out, 1.5 * x + y, rtol=1e-6)

rows, sums = numbers(2, 150), numbers(2)
sum_rows_shared(rows, sums)
assert_allclose(sums, rows.sum(1), rtol=1e-4)

a, b, product = numbers(17, 5), numbers(5, 3), numbers(17, 3)
for kernel in (matmul_naive, matmul_tiled):
    kernel(a, b, product)
    assert_allclose(product, a @ b, rtol=1e-4, atol=1e-5)

k_cache, v_cache = numbers(2, 4, 2, 3, 8)
k, v = numbers(2, 2, 2, 8)
reshape_and_cache(k, v, k_cache, v_cache, np.array([7, 0]))
assert_array_equal((k_cache[2, :, 1], v_cache[0, :, 0]), (k[0], v[1]))
copy_blocks(k_cache, v_cache, np.array([[2, 3]]))
assert_array_equal(k_cache[3], k_cache[2])

partial, log_sums, combined = numbers(2, 1, 1, 8), np.zeros((2, 1, 1), np.float32), numbers(1, 1, 8)
combine(partial, log_sums, combined)
assert_allclose(combined, partial.mean(0), rtol=1e-5)
print("as in numpy")
