"""Right kernels run right in the kernel lab and raise no alarm, in every order of threads and with both stores."""

import math
import runpy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
import torch
from numba import cuda, float32, int32, types
from numba.cuda import libdevice

from kernels import lab
from minillm.bench.lab import TILE, tiled_matmul

RANDOM = np.random.default_rng(5)
MODES = [(order, late) for order in ("ascending", "descending", 3) for late in (True, False)]
TABLE = np.array([3, 1, 4, 1, 5], np.int64)
FULL = 0xFFFFFFFF


@pytest.fixture(params=MODES, ids=str)
def launched(request):
    """Launches a kernel in every order and store mode, and wants no fault."""
    order, late_stores = request.param

    def launch(kernel, grid, block, *arguments, shared_bytes=0):
        with lab.check(order=order, late_stores=late_stores) as reports:
            kernel[grid, block, 0, shared_bytes](*arguments)
        reports[0].check()
        return reports[0]

    return launch


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = x[i] + y[i]


def test_map(launched):
    x, y = RANDOM.random((2, 100), np.float32)
    out = np.zeros_like(x)
    report = launched(add, 4, 32, x, y, out)
    assert (out == x + y).all()
    assert (report.global_reads_per_thread, report.global_writes_per_thread) == (2, 1)


@cuda.jit(device=True)
def block_sum(shared, value):
    t = cuda.threadIdx.x
    shared[t] = value
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    return shared[0]


@cuda.jit
def reduce_shared(x, out):
    shared = cuda.shared.array(0, float32)
    total = block_sum(shared, x[cuda.grid(1)])
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


def test_reduction_in_dynamic_shared_memory_by_a_device_function_with_barriers(launched):
    x, out = np.arange(128, dtype=np.float32), np.zeros(1, np.float32)
    launched(reduce_shared, 2, 64, x, out, shared_bytes=64 * 4)
    assert out[0] == x.sum()


@cuda.jit(device=True)
def warp_sum(value):
    for shift in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, shift)
    return value


@cuda.jit
def reduce_shuffles(x, out):
    sums = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    total = warp_sum(x[cuda.grid(1)])
    if t % 32 == 0:
        sums[t // 32] = total
    cuda.syncthreads()
    if t < 32:
        total = warp_sum(sums[t] if t < cuda.blockDim.x // 32 else float32(0))
        if t == 0:
            out[cuda.blockIdx.x] = total


def test_reduction_with_shuffles(launched):
    x, out = np.arange(256, dtype=np.float32), np.zeros(2, np.float32)
    launched(reduce_shuffles, 2, 128, x, out)
    assert list(out) == [x[:128].sum(), x[128:].sum()]


def test_tiled_matmul(launched):
    a, b = RANDOM.random((2, 16, 16), np.float32)
    c = np.zeros_like(a)
    report = launched(tiled_matmul, (2, 2), (TILE, TILE), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    assert report.excess_sectors == 0
    assert report.float_operations == 2 * 16**3


@cuda.jit
def histogram(values, counts):
    local = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        local[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(local, values[cuda.grid(1)], 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, local[t])


def test_histogram_with_atomics_in_shared_and_global_memory(launched):
    values, counts = RANDOM.integers(0, 8, 64), np.zeros(8, np.int64)
    launched(histogram, 2, 32, values, counts)
    assert (counts == np.bincount(values, minlength=8)).all()


@cuda.jit
def warp_reverse(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    lane = cuda.laneid
    s[t] = x[t]
    cuda.syncwarp()
    mirrored = s[t - lane + 31 - lane]
    cuda.syncwarp()
    s[t] = mirrored
    cuda.syncwarp()
    out[t] = s[t - lane + (lane + 1) % 32]


def test_syncwarp_orders_a_warp(launched):
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    launched(warp_reverse, 1, 64, x, out)
    assert (out.reshape(2, 32) == np.roll(x.reshape(2, 32)[:, ::-1], -1, axis=1)).all()


@cuda.jit
def handed_on(x, out):
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = x[0]
    if t < 2:
        cuda.syncwarp(0b011)
    if t == 1 or t == 2:
        cuda.syncwarp(0b110)
    if t == 2:
        out[0] = s[0]


def test_a_store_that_one_lane_hands_on_to_the_next_is_ordered(launched):
    out = np.zeros(1, np.float32)
    launched(handed_on, 1, 32, np.ones(1, np.float32), out)
    assert out[0] == 1


@cuda.jit
def shuffles(out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.shfl_sync(FULL, t, 5)
    out[1, t] = cuda.shfl_up_sync(FULL, t, 3)
    out[2, t] = cuda.shfl_down_sync(FULL, t, 3)
    out[3, t] = cuda.shfl_xor_sync(FULL, t, 1)
    if t < 16:
        out[4, t] = cuda.shfl_xor_sync(0x0000FFFF, t, 8)


def test_every_shuffle_and_a_partial_mask(launched):
    out, lanes = np.zeros((5, 32), np.int64), np.arange(32)
    launched(shuffles, 1, 32, out)
    assert (out[0] == 5).all()
    assert (out[1] == np.where(lanes < 3, lanes, lanes - 3)).all()
    assert (out[2] == np.where(lanes > 28, lanes, lanes + 3)).all()
    assert (out[3] == lanes ^ 1).all()
    assert (out[4, :16] == lanes[:16] ^ 8).all()


@cuda.jit
def votes(out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.all_sync(FULL, t < 32)
    out[1, t] = cuda.any_sync(FULL, t == 7)
    out[2, t] = cuda.eq_sync(FULL, t < 9)
    out[3, t] = cuda.ballot_sync(FULL, t < 3)
    out[4, t] = cuda.match_any_sync(FULL, t // 30)
    out[5, t] = cuda.syncthreads_count(t % 2)
    out[6, t] = cuda.syncthreads_and(int32(t < 31))
    out[7, t] = cuda.syncthreads_or(int32(t == 31))
    out[8, t] = cuda.popc(0xFF) + cuda.ffs(8) + cuda.clz(1)


def test_every_vote_of_a_warp_and_of_a_block(launched):
    out = np.zeros((9, 32), np.int64)
    launched(votes, 1, 32, out)
    assert list(out[:, 0]) == [1, 1, 0, 7, (1 << 30) - 1, 16, 0, 1, 8 + 4 + 63]
    assert out[4, 31] == -(1 << 30), "an int32, as numba compiles it"
    assert (out[[0, 1, 2, 3, 5, 6, 7, 8]] == out[[0, 1, 2, 3, 5, 6, 7, 8], :1]).all()


@cuda.jit
def all_atomics(x):
    old = cuda.atomic.add(x, 0, 5)
    cuda.atomic.sub(x, 1, 5)
    cuda.atomic.max(x, 2, 5)
    cuda.atomic.min(x, 3, 5)
    cuda.atomic.and_(x, 4, 5)
    cuda.atomic.or_(x, 5, 8)
    cuda.atomic.xor(x, 6, 5)
    cuda.atomic.exch(x, 7, old)
    cuda.atomic.cas(x, 8, 7, 1)
    cuda.atomic.inc(x, 9, 7)
    cuda.atomic.dec(x, 10, 7)


def test_atomics(launched):
    x = np.full(11, 7, np.uint64)
    launched(all_atomics, 1, 1, x)
    assert list(x) == [12, 2, 7, 5, 5, 15, 2, 7, 1, 0, 6]


@cuda.jit
def coordinates(out):
    x, y, z = cuda.grid(3)
    _, dy, _ = cuda.gridsize(3)
    out[z, y, x] = cuda.threadIdx.z * 10000 + cuda.blockIdx.y * 1000 + dy * 100 + cuda.gridDim.x * 10 + cuda.blockDim.y


def test_grids_and_blocks_of_three_dimensions(launched):
    out = np.zeros((2, 6, 4), np.int64)
    launched(coordinates, (2, 3, 1), (2, 2, 2), out)
    assert out[1, 5, 3] == 10000 + 2000 + 600 + 20 + 2


def made_scale(factor, offset):
    @cuda.jit
    def scale(x, out):
        i = cuda.grid(1)
        out[i] = x[i] * float32(factor) + float32(offset)

    return scale


def test_a_closure_keeps_its_values(launched):
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    launched(made_scale(3, 1), 1, 32, x, out)
    launched(made_scale(5, 2), 1, 32, out.copy(), out)
    assert (out == (x * 3 + 1) * 5 + 2).all()


@cuda.jit
def constants(out):
    table = cuda.const.array_like(TABLE)
    mine = cuda.local.array(5, dtype=types.int32)
    for k in range(5):
        mine[k] = table[k] + TABLE[k]
    out[cuda.grid(1)] = mine[cuda.threadIdx.x]


def test_local_and_constant_arrays(launched):
    out = np.zeros(5, np.int64)
    launched(constants, 1, 5, out)
    assert (out == 2 * TABLE).all()


@cuda.jit
def rows_and_slices(x, out):
    i = cuda.threadIdx.x
    row = x[i]
    part = row[1:-1]
    rest = row[2:99]
    block = x[i, ::2]
    out[i, 0] = part.shape[0] * 100 + rest.size * 10 + len(block)
    out[i, 1] = part[0] + rest[0] + block[1]
    out[i, 2:3] = row[1]
    out[i, -1:99] = 9
    out[i, 4:5] = 7


def test_rows_slices_and_assignment_to_slices(launched):
    x, out = np.arange(16, dtype=np.int64).reshape(2, 8), np.zeros((2, 4), np.int64)
    launched(rows_and_slices, 1, 2, x, out)
    assert out.tolist() == [[664, 1 + 2 + 2, 1, 9], [664, 9 + 10 + 10, 9, 9]]


@pytest.mark.parametrize(
    "strided",
    [
        lambda a: a[:, ::2],
        lambda a: a[::-1, 4:],
        lambda a: a.T,
        np.asfortranarray,
        lambda a: np.broadcast_to(a[0], (8, 8)),
    ],
    ids=["columns", "reversed", "transposed", "fortran", "broadcast"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_inputs_with_strides(strided, dtype):
    whole = np.arange(64, dtype=dtype).reshape(8, 8)
    view, out = strided(whole), np.zeros((8, 8), dtype)
    with lab.check() as reports:
        copy_2d[1, (8, 8)](view, out)
    reports[0].check()
    assert (out[: view.shape[0], : view.shape[1]] == view).all()


@cuda.jit
def copy_2d(x, out):
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j]


@cuda.jit
def half_dot(x, y, out):
    total = float32(0)
    for k in range(x.shape[0]):
        total += float32(x[k]) * float32(y[k])
    out[0] = types.float16(total)


def test_float16_arrays_with_a_float32_sum(launched):
    x, y = RANDOM.random((2, 16)).astype(np.float16)
    out = np.zeros(1, np.float16)
    launched(half_dot, 1, 1, x, y, out)
    np.testing.assert_allclose(out[0], x.astype(np.float32) @ y.astype(np.float32), rtol=1e-3)


@cuda.jit
def masked(keep, x, flag, out):
    i = cuda.grid(1)
    out[i] = keep[i] and flag and x[i] > float32(2)


@pytest.mark.parametrize("flag", [True, np.True_])
def test_booleans(launched, flag):
    x, out = np.arange(6, dtype=np.float32), np.zeros(6, np.bool_)
    launched(masked, 1, 6, np.array([1, 1, 0, 1, 1, 1], np.bool_), x, flag, out)
    assert list(out) == [False, False, False, True, True, True]


@cuda.jit
def powers(x, n, shift, out):
    i = cuda.grid(1)
    out[i] = x * float32(n) + float32(shift) + float32(cuda.blockDim.x)


@pytest.mark.parametrize("n", [3, np.int32(3), np.int64(3), np.uint8(3)])
def test_numbers_as_arguments_may_be_numpys(launched, n):
    out = np.zeros(2, np.float32)
    launched(powers, 1, 2, np.float32(2), n, np.float32(1), out)
    assert list(out) == [9, 9]


@cuda.jit
def special(x, out):
    i = cuda.threadIdx.x
    out[0, i] = math.exp(x[i])
    out[1, i] = math.log(x[i])
    out[2, i] = math.sqrt(x[i])
    out[3, i] = float32(1) / x[i]


def test_mathematics_give_infinities_and_no_errors():
    x, out = np.array([0, -1, 200, 2], np.float32), np.zeros((4, 4), np.float32)
    for context in (lab.check, lab.run):
        with context():
            special[1, 4](x, out)
        assert out[0, 2] == np.inf
        assert out[1, 0] == -np.inf
        assert np.isnan(out[1, 1])
        assert np.isnan(out[2, 1])
        assert out[3, 0] == np.inf
        np.testing.assert_allclose(out[:, 3], [np.e**2, np.log(2), np.sqrt(2), 0.5], rtol=1e-6)


@cuda.jit
def divided_by_zero(out):
    i = cuda.threadIdx.x
    out[0] = 1.0 / i
    out[1] = -1 / i
    out[2] = i % 0.0
    out[3] = 4 // i
    out[4] = 4 % i
    total = 2.0
    total /= i * 0.0
    out[5] = total
    out[6] = 7 // 2 % (i + 4)


@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_dividing_by_zero_gives_infinity_nan_or_an_integer_zero_and_no_error(context):
    out = np.ones(7, np.float64)
    with context():
        divided_by_zero[1, 1](out)
    assert np.array_equal(out, [np.inf, -np.inf, np.nan, 0, 0, np.inf, 3], equal_nan=True)


@cuda.jit
def wrapping(x, out):
    out[0] = x[0] + 200
    out[1] = int32(2_147_483_647 + x[0])
    out[2] = int32(float32(2.9))


def test_integers_wrap_where_they_are_kept():
    out = np.zeros(3, np.int8)
    with lab.check() as reports:
        wrapping[1, 1](np.array([1], np.int32), out)
    reports[0].check()
    assert list(out) == [np.int64(201).astype(np.int8), 0, 2]


def test_a_tensor_on_the_cpu_is_written_in_place():
    x, out = torch.arange(32, dtype=torch.float32), torch.zeros(32)
    for context in (lab.check, lab.run):
        out.zero_()
        with context():
            add[1, 32](x, x, out)
        assert torch.equal(out, 2 * x)


def test_a_check_within_a_check_takes_the_launches_and_gives_them_back():
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with lab.check() as outer:
        add[1, 4](x, x, out)
        with lab.check(order="descending") as inner:
            add[1, 4](x, x, out)
        add[1, 4](x, x, out)
    assert (len(outer), len(inner)) == (2, 1)
    assert [report.order for report in (*outer, *inner)] == ["ascending", "ascending", "descending"]


def test_labs_of_two_threads_that_overlap_take_their_own_launches_and_leave_nothing_behind():
    x, before, both_open = np.ones(4, np.float32), cuda.dispatcher.CUDADispatcher.configure, threading.Barrier(2)

    def launches(order):
        with lab.check(order=order) as reports:
            both_open.wait()
            add[1, 4](x, x, np.zeros(4, np.float32))
        both_open.wait()
        return [report.order for report in reports]

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(launches, ["ascending", "descending"])) == [["ascending"], ["descending"]]
    assert cuda.dispatcher.CUDADispatcher.configure is before


def test_a_thread_without_a_lab_of_its_own_launches_in_the_open_one():
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with lab.check() as reports, ThreadPoolExecutor() as threads:
        threads.submit(add[1, 4], x, x, out).result()
        threads.submit(lambda: add[1, 4](x, x, out)).result()
    assert len(reports) == 2


def test_a_launch_warns_of_nothing(recwarn):
    x = np.ones(4, np.float32)
    with lab.check():
        add[1, 4](x, x, np.zeros_like(x))
    assert not recwarn.list


def test_forall_covers_every_element():
    x, out = np.ones(300, np.float32), np.zeros(300, np.float32)
    with lab.check() as reports:
        add.forall(300)(x, x, out)
    assert (out == 2).all()
    assert reports[0].grid == (3, 1, 1)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 32, "0 is no size of a grid or block"),
        (1, (2, 2, 2, 2), "no size of a grid or block"),
        (1, 2048, "a block of 2048 x 1 x 1 threads: a GPU takes from 1 to 1024"),
    ],
)
def test_sizes_that_no_gpu_takes_are_refused(grid, block, message):
    x = np.ones(4, np.float32)
    with lab.run(), pytest.raises(lab.LabError, match=message):
        add[grid, block](x, x, x)


def test_an_argument_that_is_no_array_and_no_number_is_refused():
    x = np.ones(4, np.float32)
    with lab.check(), pytest.raises(lab.LabError, match="a list is no argument for a kernel"):
        add[1, 4](x, [1, 2], x)


def test_overlapping_arrays_of_two_types_are_refused():
    x = np.ones(4, np.float32)
    with lab.check(), pytest.raises(lab.LabError, match="x, y overlap in memory and differ in type"):
        add[1, 4](x, x.view(np.int32), np.ones(4, np.float32))


def test_an_unknown_order_is_refused():
    with pytest.raises(lab.LabError, match="the order 'sideways' is unknown"), lab.run(order="sideways"):
        pass


@cuda.jit
def fails_in_the_middle(x):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    if t == 3:
        x[t + 100] = 1
    cuda.syncthreads()


def test_when_one_thread_fails_the_others_are_ended_and_the_next_launch_is_right(launched):
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(lab.OutOfBounds):
        launched(fails_in_the_middle, 1, 8, x)
    launched(add, 1, 8, x, x, out)
    assert (out == 2).all()


@cuda.jit
def no_such_intrinsic(x):
    x[0] = cuda.fp16.hfma(x[0], x[0], x[0])


def test_what_the_lab_does_not_have_is_named():
    with lab.run(), pytest.raises(lab.LabError, match=r"the lab has no cuda\.fp16"):
        no_such_intrinsic[1, 1](np.ones(1, np.float16))


def test_a_kernel_that_got_its_grid_outside_runs_in_the_lab_within():
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with pytest.warns(Warning, match="occupancy"):
        launch = add[1, 4]
    with lab.check() as reports:
        launch(x, x, out)
    reports[0].check()
    assert (out == 2).all()


@cuda.jit
def gather(table, rows, out):
    i = cuda.grid(1)
    row = table[rows[i]]
    out[i] = row[1] + table[rows[i], 0] * row.shape[0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_integers_without_checks_may_be_rows_and_have_strides(dtype):
    table = np.arange(24, dtype=dtype).reshape(4, 6)[::-1, ::3]
    rows, out = np.array([2, 0, 3], np.int64)[::-1], np.zeros(3, np.int32)
    with lab.run():
        gather[1, 3](table, rows, out)
    assert out.tolist() == [(table[row, 1] + 2 * table[row, 0]).item() for row in rows]


def test_a_launch_with_an_argument_too_few_is_refused():
    with lab.check(), pytest.raises(lab.LabError, match="add takes 3 arguments and is given 2"):
        add[1, 4](np.ones(4, np.float32), np.ones(4, np.float32))


@cuda.jit
def scaled(x, factor, out):
    i = cuda.grid(1)
    out[i] = x[i] * factor


@pytest.mark.parametrize(("factor", "is_double"), [(np.int16(2), False), (np.uint8(2), False), (np.int32(2), True)])
def test_numpys_numbers_have_their_own_types(factor, is_double):
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with lab.check() as reports:
        scaled[1, 4](x, factor, out)
    assert bool(reports[0].float64) == is_double
    assert (out == 2).all()


@cuda.jit
def add_one(x, out):
    i = cuda.grid(1)
    out[i] = x[i] + float32(1)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_read_only_view_of_an_array_that_is_written_is_an_argument(launched, size):
    whole = np.zeros(5, np.float32)
    view = whole[:4]
    view.flags.writeable = False
    launched(add_one, 1, 1, view[:size] if size else view, whole[size:])
    assert whole[size] == 1


@cuda.jit
def with_inner_functions(x, out):
    def double(value):
        return value + x[0] * value

    i = cuda.grid(1)
    out[i] = double(x[i])


def test_a_function_within_a_kernel_is_part_of_it(launched):
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    launched(with_inner_functions, 1, 4, x, out)
    assert (out == 2).all()


INDENTED = '''from numba import cuda
if True:
    @cuda.jit
    def kernel(out):
        """A string may begin
further left."""
        out[0] = 1
# And so may a comment.
        out[1] = 2
'''


def test_the_source_of_a_kernel_may_hold_lines_further_left_than_itself(launched, tmp_path):
    (tmp_path / "indented.py").write_text(INDENTED)
    out = np.zeros(2, np.int64)
    report = launched(runpy.run_path(str(tmp_path / "indented.py"))["kernel"], 1, 1, out)
    assert out.tolist() == [1, 2]
    assert [moved.line for moved in report.traffic] == [7, 9]


helpers = ModuleType("helpers")
helpers.block_sum, helpers.cuda = block_sum, cuda


@cuda.jit
def sum_by_a_modules_function(x, out):
    shared = helpers.cuda.shared.array(64, float32)
    total = helpers.block_sum(shared, x[cuda.grid(1)])
    if cuda.threadIdx.x == 0:
        out[0] = total


def test_a_device_function_may_be_reached_through_its_module(launched):
    x, out = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    launched(sum_by_a_modules_function, 1, 64, x, out)
    assert out[0] == x.sum()


@cuda.jit
def gives_something_back(out):
    out[0] = 1
    return out[0]


def test_what_a_kernel_returns_is_refused_by_the_compiler_and_goes_nowhere_without_checks():
    out = np.zeros(1, np.float32)
    with lab.run():
        gives_something_back[1, 1](out)
    assert out[0] == 1
    with lab.check(), pytest.raises(lab.LabError, match="gives_something_back: the CUDA compiler refuses it"):
        gives_something_back[1, 1](out)


@cuda.jit
def by_libdevice(x, out):
    out[0] = libdevice.fast_expf(x[0])


def test_libdevice_is_refused_and_gives_no_numbers():
    with lab.run(), pytest.raises(lab.LabError, match=r"the lab has no libdevice\.fast_expf"):
        by_libdevice[1, 1](np.ones(1, np.float32), np.ones(1, np.float32))


@cuda.jit
def bits_of_types(x, y, out):
    out[0] = cuda.popc(x[0])
    out[1] = cuda.popc(y[0])
    out[2] = cuda.clz(x[1])
    out[3] = cuda.clz(x[1] + 1)
    out[4] = cuda.brev(np.uint32(x[1]))
    out[5] = cuda.popc(cuda.ballot_sync(FULL, True))
    out[6] = cuda.ballot_sync(FULL, True) == FULL


@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_bits_are_those_of_the_operands_type(context):
    out = np.zeros(7, np.int64)
    with context():
        bits_of_types[1, 32](np.array([-1, 1], np.int32), np.array([-1], np.int64), out)
    assert out.tolist() == [32, 64, 31, 62, 1 << 31, 32, 0]


@cuda.jit
def two_sizes(x, out):
    out[0] = cuda.clz(x[0]) + cuda.clz(x[0] + 1)


def test_bits_of_two_sizes_in_one_line_are_told_to_be_written_apart():
    with lab.check(), pytest.raises(lab.LabError, match=r"cuda.clz in line \d+ takes integers of 32 and 64 bits"):
        two_sizes[1, 1](np.ones(1, np.int32), np.zeros(1, np.int64))


@cuda.jit
def atomics_of_other_types(x, y):
    cuda.atomic.max(x, 0, 3)
    cuda.atomic.cas(x, 1, -1, 5)
    cuda.atomic.min(x, 2, -1)
    cuda.atomic.add(x, 3, 2.7)
    cuda.atomic.max(y, 0, float32(2))
    cuda.atomic.min(y, 1, float32(math.nan))


@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_an_atomics_operands_have_the_arrays_type(context):
    x, y = np.array([2**63 + 1, 2**64 - 1, 7, 1], np.uint64), np.array([math.nan, 1], np.float32)
    with context():
        atomics_of_other_types[1, 1](x, y)
    assert x.tolist() == [2**63 + 1, 5, 7, 3]
    assert y.tolist() == [2, 1]


@cuda.jit
def conversions(x, out):
    i = cuda.grid(1)
    out[0, i] = int(x[i])
    out[1, i] = math.trunc(x[i])
    out[2, i] = round(x[i])


@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_integers_from_floats_are_cut_off_and_saturate_and_raise_no_errors(context):
    x, out = np.array([2.5, -3.5, math.nan, math.inf, -math.inf], np.float32), np.zeros((3, 5), np.int64)
    with context():
        conversions[1, 5](x, out)
    large = np.iinfo(np.int64)
    assert out.tolist() == [[whole, other, 0, large.max, large.min] for whole, other in ((2, -3), (2, -3), (2, -4))]


@cuda.jit
def signs(x, out):
    i = cuda.grid(1)
    above = x[i] > float32(0)
    out[i] = 10 * (above + (x[i] > float32(1))) + (x[i] > float32(0)) - (x[i] < float32(0))


@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_comparisons_are_numbers_that_add_up(context):
    out = np.zeros(4, np.int64)
    with context():
        signs[1, 4](np.array([-1, 0, 1, 2], np.float32), out)
    assert out.tolist() == [-1, 0, 11, 21]


@cuda.jit
def all_powers(i, x, out):
    out[0] = 2.0 ** (i * 5000)
    out[1] = (i - 2.0) ** 0.5
    out[2] = (i - 1) ** -1.0
    out[3] = 2**-i
    out[4] = (-i) ** -i
    out[5] = (-x) ** float32(0.5)
    out[6] = x**2 + pow(x, float32(2))
    whole, rest = divmod(7, i - 1)
    out[7] = whole + rest


@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_powers_and_divmod_give_what_numba_compiles_and_raise_no_errors(context):
    out = np.zeros(8, np.float64)
    with context():
        all_powers[1, 1](1, np.float32(3), out)
    assert np.array_equal(out, [np.inf, np.nan, np.inf, 0, -1, np.nan, 18, 0], equal_nan=True)


@cuda.jit
def other_shapes(x, out):
    out[...] = 0
    out[0] = x.reshape(8)[5] + x.reshape((4, 2))[1, 1]
    out[1] = x.transpose()[3, 1] + x[..., 2][1]
    out[2] = x.nbytes // x.itemsize


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
@pytest.mark.parametrize("context", [lab.check, lab.run], ids=["check", "run"])
def test_arrays_may_be_reshaped_and_take_an_ellipsis(context, dtype):
    out = np.ones(4, np.int64)
    with context():
        other_shapes[1, 1](np.arange(8, dtype=dtype).reshape(2, 4), out)
    assert out.tolist() == [5 + 3, 7 + 6, 8, 0]


@cuda.jit
def seen_as_integers(x, out):
    out[0] = x.view(np.int32)[0]


def test_what_the_labs_arrays_do_not_have_is_named():
    with lab.check(), pytest.raises(lab.LabError, match="the lab has no view of an array"):
        seen_as_integers[1, 1](np.ones(1, np.float32), np.ones(1, np.int32))
