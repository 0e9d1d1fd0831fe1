"""The kernel lab finds each kind of bug that a kernel can have, and names the place, the threads and the cells."""

import importlib.util
import inspect
import math
import re
from io import StringIO

import numpy as np
import pytest
from numba import cuda, float32, int32
from rich.console import Console

from kernels import lab

X = np.arange(1, 65, dtype=np.float32)


def line_with(kernel, text):
    """The line of the kernel's file in which a text stands."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    return first + next(number for number, line in enumerate(lines) if text in line)


def report_of(kernel, grid, block, *arguments, **how):
    with lab.check(**how) as reports:
        kernel[grid, block](*arguments)
    return reports[0]


# Races


@cuda.jit
def shift_left(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[t + 1 if t < 63 else 0]  # the neighbour to the right, and no barrier


@cuda.jit
def shift_right(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[t - 1 if t > 0 else 63]  # the neighbour to the left, and no barrier


@pytest.mark.parametrize("late_stores", [True, False])
@pytest.mark.parametrize("order", ["ascending", "descending", 7])
@pytest.mark.parametrize("kernel", [shift_left, shift_right])
def test_a_missing_barrier_before_the_neighbours_cell_is_read_is_a_race_in_every_order(kernel, order, late_stores):
    report = report_of(kernel, 1, 64, X, np.zeros_like(X), order=order, late_stores=late_stores)
    (race,) = report.races
    assert {race.first.line, race.second.line} == {line_with(kernel, "s[t] ="), line_with(kernel, "out[t] =")}
    assert {race.first.kind, race.second.kind} == {"read", "write"}
    assert race.cells == 64
    assert not report.unwritten, "it is a race, and not a cell that nobody writes"
    with pytest.raises(lab.Fault, match=r"race on s\[\d+\] \(and 63 more cells\).*no barrier between them"):
        report.check()


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_with_late_stores_a_missing_barrier_gives_a_wrong_result_in_every_order(order):
    out = np.zeros_like(X)
    report_of(shift_left, 1, 64, X, out, order=order)
    assert np.isnan(out).all()


@cuda.jit
def tile_without_first_barrier(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for tile in range(2):
        s[t] = x[tile * 32 + t]
        for k in range(32):
            total += s[k]
        cuda.syncthreads()
    out[t] = total


@cuda.jit
def tile_without_last_barrier(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for tile in range(2):
        s[t] = x[tile * 32 + t]
        cuda.syncthreads()
        for k in range(32):
            total += s[k]
    out[t] = total


@pytest.mark.parametrize("kernel", [tile_without_first_barrier, tile_without_last_barrier])
def test_a_missing_barrier_before_or_after_a_tile_is_a_race_of_its_load_and_its_use(kernel):
    (race,) = report_of(kernel, 1, 32, X, np.zeros(32, np.float32)).races
    assert {race.first.line, race.second.line} == {line_with(kernel, "s[t] ="), line_with(kernel, "total += s[k]")}
    assert race.cell.startswith("s[")
    assert race.cells == 32, "the array has so many cells, however often each is raced for"


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_a_race_is_told_in_the_order_in_which_a_thread_comes_to_its_places(order):
    (race,) = report_of(tile_without_first_barrier, 1, 32, X, np.zeros(32, np.float32), order=order).races
    assert (race.first.kind, race.second.kind, race.next_turn) == ("write", "read", False)
    assert "turn" not in str(race)
    (race,) = report_of(tile_without_last_barrier, 1, 32, X, np.zeros(32, np.float32), order=order).races
    assert (race.first.kind, race.second.kind, race.next_turn) == ("read", "write", True)
    assert "in the loop's next turn, and no barrier between them" in str(race)


@cuda.jit
def add_up_plainly(x, out):
    out[0] += x[cuda.grid(1)]


def test_adding_to_one_cell_is_a_lost_update():
    out = np.zeros(1, np.float32)
    report = report_of(add_up_plainly, 1, 64, X, out)
    assert out[0] == 64, "with late stores every thread adds to the first value, and the last one stays"
    assert {race.cell for race in report.races} == {"out[0]"}
    assert any(race.lost_update for race in report.races)
    assert re.search(r"lost update of out\[0\].*cuda\.atomic", str(report))


@cuda.jit
def last_block_wins(out):
    if cuda.threadIdx.x == 0:
        out[0] = cuda.blockIdx.x


def test_blocks_that_write_one_cell_race():
    (race,) = report_of(last_block_wins, 3, 32, np.zeros(1, np.int64)).races
    assert race.first.block != race.second.block
    assert race.first.thread == race.second.thread == (0, 0, 0)
    assert "nothing orders two blocks" in str(race)


@cuda.jit
def read_beside_an_atomic(count, out):
    cuda.atomic.add(count, 0, 1)
    out[cuda.grid(1)] = count[0]


def test_an_atomic_races_with_a_plain_read():
    (race,) = report_of(read_beside_an_atomic, 1, 2, np.zeros(1, np.int64), np.zeros(2, np.int64)).races
    assert {race.first.kind, race.second.kind} == {"atomic", "read"}


@cuda.jit
def lanes_without_syncwarp(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp(0x0000FFFF if t < 16 else 0xFFFF0000)
    out[t] = s[31 - t]  # a lane of the other half


def test_a_syncwarp_orders_only_the_lanes_of_its_mask():
    (race,) = report_of(lanes_without_syncwarp, 1, 32, X[:32], np.zeros(32, np.float32)).races
    assert race.first.thread[0] // 16 != race.second.thread[0] // 16


@cuda.jit
def other_warp_reads_after_syncwarp(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    out[t] = s[t ^ 33]  # in the other warp, and another lane


def test_a_syncwarp_orders_no_threads_of_another_warp():
    (race,) = report_of(other_warp_reads_after_syncwarp, 1, 64, X, np.zeros_like(X)).races
    assert {race.first.kind, race.second.kind} == {"read", "write"}


@cuda.jit
def many_ordered_writes_first(out):
    s = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        for k in range(100):
            s[0] = k
    cuda.syncwarp()
    s[0] = t  # all lanes
    if t == 0:
        out[0] = s[0]


def test_a_race_after_many_ordered_writes_to_its_cell_is_found():
    races = report_of(many_ordered_writes_first, 1, 32, np.zeros(1, np.int64)).races
    written = line_with(many_ordered_writes_first, "# all lanes")
    assert (written, written) in [(race.first.line, race.second.line) for race in races]


@cuda.jit
def handed_on_too_late(x, out):
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 1 or t == 2:
        cuda.syncwarp(0b110)
    if t == 0:
        s[0] = x[0]
    if t < 2:
        cuda.syncwarp(0b011)
    if t == 2:
        out[0] = s[0]


def test_a_lane_that_synced_before_the_other_heard_of_a_store_races_with_it():
    (race,) = report_of(handed_on_too_late, 1, 32, X, np.zeros(1, np.float32)).races
    assert {race.first.thread, race.second.thread} == {(0, 0, 0), (2, 0, 0)}


@cuda.jit
def in_place(x, out):
    i = cuda.grid(1)
    if i + 1 < x.shape[0]:
        out[i] = x[i + 1]


def test_arrays_that_overlap_race_with_each_other():
    values = X.copy()
    assert not report_of(in_place, 1, 64, values, np.zeros_like(X)).races
    (race,) = report_of(in_place, 1, 64, values, values).races
    assert (race.first.kind, race.second.kind, race.next_turn) == ("read", "write", False)
    assert (race.first.line, race.second.line) == (line_with(in_place, "out[i] ="),) * 2


# Barriers, shuffles and votes


@cuda.jit
def barrier_in_a_branch(out):
    t = cuda.threadIdx.x
    if t < 10:
        cuda.syncthreads()  # the first
    out[t] = t


def test_a_barrier_in_a_divergent_branch_is_named_with_who_came_and_who_did_not():
    (found,) = report_of(barrier_in_a_branch, 1, 32, np.zeros(32, np.int64)).divergences
    assert (found.line, found.waiting, found.examples) == (line_with(barrier_in_a_branch, "the first"), 10, (0, 1, 2))
    assert found.elsewhere == ((0, 22, (10, 11, 12)),)


@cuda.jit
def barrier_guarded_in_a_loop(out):
    t = cuda.threadIdx.x
    distance = 16
    while distance > 0:
        if t < distance:
            out[t] += out[t + distance]
            cuda.syncthreads()
        distance //= 2


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_a_barrier_that_ever_fewer_reach_is_one_fault_and_its_rule(order):
    report = report_of(barrier_guarded_in_a_loop, 1, 32, np.zeros(32, np.float32), order=order)
    (fault,) = (fault for fault in report.faults if "syncthreads" in fault)
    assert "was reached by 16 threads, but 16 were absent or had ended (threads 16, 17, 18); " in fault
    assert fault.endswith("; other times by 1, 2, 4, 8; all must come to one barrier: guard the work, not the barrier")


@cuda.jit
def two_barriers(out):
    t = cuda.threadIdx.x
    if t % 2:
        cuda.syncthreads()  # odd
    else:
        cuda.syncthreads()  # even
    out[t] = t


def test_threads_at_different_barriers_are_a_divergence():
    (found,) = report_of(two_barriers, 1, 8, np.zeros(8, np.int64)).divergences
    assert (found.line, found.elsewhere) == (
        line_with(two_barriers, "# odd"),
        ((line_with(two_barriers, "# even"), 4, (0, 2, 4)),),
    )


@cuda.jit(device=True)
def barrier_within():
    cuda.syncthreads()


@cuda.jit
def one_barrier_from_two_branches(out):
    t = cuda.threadIdx.x
    if t % 2:
        barrier_within()  # odd
    else:
        barrier_within()  # even
    out[t] = t


def test_threads_that_come_to_a_device_functions_barrier_from_two_branches_are_a_divergence():
    (found,) = report_of(one_barrier_from_two_branches, 1, 8, np.zeros(8, np.int64)).divergences
    assert found.line == line_with(one_barrier_from_two_branches, "# odd")
    assert found.elsewhere == ((line_with(one_barrier_from_two_branches, "# even"), 4, (0, 2, 4)),)


@cuda.jit(device=True)
def from_the_next(value):
    return cuda.shfl_down_sync(0xFFFFFFFF, value, 1)


@cuda.jit
def one_shuffle_from_two_branches(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = from_the_next(x[t])  # low
    else:
        out[t] = from_the_next(-x[t])  # high


def test_lanes_that_come_to_a_device_functions_shuffle_from_two_branches_do_not_meet():
    low, high = (line_with(one_shuffle_from_two_branches, text) for text in ("# low", "# high"))
    with pytest.raises(lab.Deadlock, match=f"at shfl_down_sync in line {low}; .* at shfl_down_sync in line {high}"):
        report_of(one_shuffle_from_two_branches, 1, 32, X[:32], np.zeros(32, np.float32))


@cuda.jit
def shuffle_of_half(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_down_sync(0xFFFFFFFF, x[t], 16)


def test_a_shuffle_with_absent_lanes_is_named_and_gives_no_number():
    out = np.zeros(32, np.float32)
    report = report_of(shuffle_of_half, 1, 32, X[:32], out)
    (found,) = report.divergences
    assert (found.line, found.waiting) == (line_with(shuffle_of_half, "shfl_down_sync"), 16)
    assert "shfl_down_sync with mask 0xffffffff" in str(report)
    assert "16 were absent or had ended (threads 16, 17, 18" in str(report)
    assert np.isnan(out[:16]).all()


@cuda.jit
def shuffle_against_barrier(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_down_sync(0xFFFFFFFF, x[t], 8)
    else:
        cuda.syncthreads()


def test_lanes_that_wait_for_lanes_at_a_barrier_wait_for_ever():
    with pytest.raises(lab.Deadlock, match=r"at shfl_down_sync in line \d+; .*16, 17, 18.* at syncthreads in line \d+"):
        report_of(shuffle_against_barrier, 1, 32, X[:32], np.zeros(32, np.float32))


@cuda.jit
def wrong_mask(out):
    t = cuda.threadIdx.x
    out[t] = cuda.ballot_sync(0x0000FFFF, t % 2 == 0)


def test_a_lane_that_the_mask_does_not_name_is_a_divergence():
    (found,) = report_of(wrong_mask, 1, 32, np.zeros(32, np.int64)).divergences
    assert found.line == line_with(wrong_mask, "ballot_sync")


@cuda.jit
def wait_for_the_next_block(flags):
    b = cuda.blockIdx.x
    cuda.atomic.add(flags, b, 1)
    while b == 0 and cuda.atomic.add(flags, 1, 0) == 0:
        pass


@cuda.jit
def spin_on_a_plain_read(flags):
    b = cuda.blockIdx.x
    while b == 0 and flags[1] == 0:
        pass
    flags[b] = 1


def test_a_spin_on_another_block_is_an_error_and_no_hang():
    with pytest.raises(lab.Deadlock, match=r"thread 0 went on with atomic alone .* in line \d+") as raised:
        report_of(wait_for_the_next_block, 2, 1, np.zeros(2, np.int64))
    assert str(line_with(wait_for_the_next_block, "while")) in str(raised.value)


def test_a_spin_on_a_plain_read_is_an_error_and_no_hang(monkeypatch):
    monkeypatch.setattr("kernels.lab.checked.MOST_TESTS", 1000)
    with pytest.raises(lab.Deadlock, match="came 1000 times to one test"):
        report_of(spin_on_a_plain_read, 2, 1, np.zeros(2, np.int64))


# Bounds and values


@cuda.jit
def difference(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1] - x[i]


@cuda.jit
def difference_to_the_left(x, out):
    i = cuda.grid(1)
    out[i] = x[i] - x[i - 1]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (difference, r"x\[64\] of shape \(64,\): it has no such element"),
        (difference_to_the_left, r"x\[-1\] of shape \(64,\): a negative index counts from the end"),
    ],
)
def test_one_step_beyond_either_end_is_an_error_at_the_students_line_with_thread_and_values(kernel, message):
    with pytest.raises(lab.OutOfBounds, match=message) as raised:
        report_of(kernel, 2, 32, X, np.zeros_like(X))
    at = 31 if kernel is difference else 0
    (note,) = raised.value.__notes__
    line = line_with(kernel, "out[i] =")
    assert note.startswith(f"in {kernel.py_func.__name__}, block {at // 31}, thread {at}, line {line}: i = ")
    frames = [entry for entry in raised.traceback if entry.path.name == "test_kernel_lab.py"]
    assert frames[-1].lineno + 1 == line
    assert raised.traceback[-1] is not None
    assert raised.traceback[-1].path.name == "test_kernel_lab.py", "the lab's own frames are left out"


@cuda.jit
def local_beyond(out):
    mine = cuda.local.array(4, int32)
    for k in range(5):
        mine[k] = k
    out[0] = mine[0]


def test_a_local_array_has_bounds_too():
    with pytest.raises(lab.OutOfBounds, match=r"mine\[4\] of shape \(4,\)"):
        report_of(local_beyond, 1, 1, np.zeros(1, np.int64))


@cuda.jit
def half_a_tile(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < 32:
        s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[t]


@cuda.jit
def local_unwritten(out):
    mine = cuda.local.array(4, float32)
    mine[0] = float32(1)
    out[cuda.grid(1)] = mine[0] + mine[3]


def test_a_shared_cell_that_nobody_wrote_is_named_once_for_its_place():
    for _ in range(3):  # CPython rewrites instructions that run often
        (found,) = report_of(half_a_tile, 2, 64, X, np.zeros_like(X)).unwritten
        assert (found.cell, found.times) == ("s[32]", 64)
        assert (found.access.line, found.access.thread) == (line_with(half_a_tile, "out[t] ="), (32, 0, 0))


@cuda.jit
def written_too_late(out):
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        out[0] = s[0]
    cuda.syncwarp()
    if t == 1:
        s[0] = out[1]


@pytest.mark.parametrize("order", ["ascending", "descending", 3])
def test_a_shared_cell_that_is_written_by_another_lane_after_a_syncwarp_is_named(order):
    report = report_of(written_too_late, 1, 32, np.zeros(2, np.float32), order=order)
    assert [found.cell for found in report.unwritten] == ["s[0]"]
    assert not report.races


def test_a_local_cell_that_nobody_wrote_is_named():
    (found,) = report_of(local_unwritten, 1, 2, np.zeros(2, np.float32)).unwritten
    assert (found.cell, found.times) == ("mine[3]", 2)


# Types


@cuda.jit
def halve(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * 0.5


@cuda.jit
def mean(x, out):
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k]
    out[0] = total / float32(2)


@cuda.jit
def per_count(x, out):
    i = cuda.grid(1)
    out[i] = x[i] / x.shape[0]


@pytest.mark.parametrize(
    ("kernel", "text", "expression"),
    [
        (halve, "* 0.5", "float32 * float64"),
        (mean, "total = 0.0", "total = a Python float"),
        (per_count, "/ x.shape", "float32 / int64"),
    ],
)
def test_a_float64_born_in_a_float32_kernel_is_named_where_it_is_born(kernel, text, expression):
    (born,) = report_of(kernel, 1, 1, X, np.zeros_like(X)).float64
    assert (born.line, born.expression) == (line_with(kernel, text), expression)


MINUS_INFINITY = np.float32(-np.inf)


@cuda.jit(device=True)
def larger(one, other):
    return one if one > other else other


@cuda.jit
def spoilt_by_another(x, out):
    maximum = MINUS_INFINITY
    total = float32(0)
    for i in range(2):
        score = 0.0  # born
        for j in range(3):
            score += x[j] * x[i]
        new = larger(maximum, score)
        total = total * math.exp(maximum - new) + math.exp(score - new)
        maximum = new
    out[0] = total


@cuda.jit
def counted_from_zero(x, out):
    total = 0
    for k in range(3):
        total = total + x[k]
        total *= 0.5  # born
    out[0] = total


@cuda.jit
def divided_in_turns(x, out):
    share = x[0]
    for _ in range(3):
        share = share / x.shape[0]  # born
        double = np.float64(share)
        share += double
    out[0] = share


@cuda.jit
def one_or_zero(x, out):
    value = x[0] if x[1] > 0 else 0.0  # born
    out[0] = value + x[1]


@cuda.jit
def kept_in_float64(x, out):
    kept = cuda.local.array(1, np.float64)  # born
    kept[0] = x[0]
    out[0] = kept[0] * x[1]


@cuda.jit
def converted(x, out):
    scale = 0.5
    out[0] = x[0] * float32(scale)


@pytest.mark.parametrize(
    "kernel", [spoilt_by_another, counted_from_zero, divided_in_turns, one_or_zero, kept_in_float64]
)
def test_only_the_line_that_makes_a_float64_of_none_is_named_and_none_that_it_spoils(kernel):
    births = report_of(kernel, 1, 1, X, np.zeros_like(X)).float64
    assert [birth.line for birth in births] == [line_with(kernel, "# born")]


def test_a_constant_that_is_converted_makes_no_float64():
    assert not report_of(converted, 1, 1, X, np.zeros_like(X)).float64


def test_a_kernel_that_is_given_float64_may_have_it():
    assert not report_of(halve, 1, 64, X.astype(np.float64), np.zeros(64)).float64


@cuda.jit(device=True)
def scaled(value):
    return value * 1.5


@cuda.jit(device=True)
def times(value, factor):
    return value * factor


@cuda.jit
def calls_scaled(x, out):
    out[cuda.grid(1)] = scaled(x[cuda.grid(1)])


@cuda.jit
def calls_times(x, out):
    out[cuda.grid(1)] = times(x[cuda.grid(1)], 0.5)


def test_a_float64_is_found_in_a_device_function_and_in_its_arguments():
    (born,) = report_of(calls_scaled, 1, 64, X, np.zeros_like(X)).float64
    assert (born.function, born.line) == ("scaled", line_with(scaled, "* 1.5"))
    (passed,) = report_of(calls_times, 1, 64, X, np.zeros_like(X)).float64
    assert (passed.function, passed.line) == ("", line_with(calls_times, "0.5"))


def test_each_variables_type_is_shown():
    variables = report_of(halve, 1, 64, X, np.zeros_like(X)).variables
    assert variables == {"x": "array(float32, 1d, C)", "out": "array(float32, 1d, C)", "i": "int64"}


@cuda.jit
def large_product(blocks, out):
    i = cuda.grid(1)
    out[i] = blocks[i] * int32(100_000) + np.int32(5) * blocks[i]


def test_a_product_of_int32_overflows_in_the_lab_as_little_as_on_a_gpu():
    blocks, out = np.array([70_000, 2], np.int32), np.zeros(2, np.int64)
    report = report_of(large_product, 1, 2, blocks, out)
    report.check()
    assert list(out) == [7_000_350_000, 200_010]
    with lab.run():
        large_product[1, 2](blocks, out)
    assert list(out) == [7_000_350_000, 200_010]


@cuda.jit
def pythonic(x, out):
    parts = [x[0], x[1]]
    out[0] = sum(parts)
    x[0] = f"{out[0]}"


def test_a_list_a_sum_and_an_f_string_are_refused_by_name():
    report = report_of(pythonic, 1, 1, X, np.zeros_like(X))
    assert [(each.line, each.what) for each in report.refused] == [
        (line_with(pythonic, "parts ="), "a list"),
        (line_with(pythonic, "sum(parts)"), "sum()"),
        (line_with(pythonic, "x[0] = f"), "an f-string"),
    ]


@cuda.jit(device=True)
def total_of(x):
    return sum(x)


@cuda.jit
def calls_total(x, out):
    out[0] = total_of(x)


def test_a_sum_in_a_device_function_is_refused():
    (found,) = report_of(calls_total, 1, 1, X, np.zeros_like(X)).refused
    assert (found.line, found.what) == (line_with(total_of, "sum(x)"), "sum()")


@cuda.jit
def undefined_attribute(x):
    x.sort_of_thing = 3


def test_what_the_compiler_refuses_is_an_error_of_one_sentence():
    with pytest.raises(lab.LabError, match="undefined_attribute: the CUDA compiler refuses it"):
        report_of(undefined_attribute, 1, 1, X)


SIDE = 16


@cuda.jit
def smaller(x, out):
    out[0] = min(x[0], x[1])  # refused


@cuda.jit
def padded_tile(x, out):
    tile = cuda.shared.array((SIDE, SIDE + 1), float32)  # refused
    tile[0, 0] = x[0]


@cuda.jit
def flat_tile(x, out):
    tile = cuda.local.array(SIDE * SIDE, float32)  # refused
    tile[0] = x[0]


@cuda.jit
def tile_of_nothing(x, out):
    tile = cuda.shared.array(SIDE, "of nothing")  # refused
    tile[0] = x[0]


@cuda.jit
def misspelt(x, out):
    out[0] = no_such_function(x[0])  # refused # noqa: F821


@cuda.jit
def keeps_a_text(x, out):
    out[0] = "one"  # refused


@cuda.jit(device=True)
def smallest(values):
    return min(values[0], values[1])


@cuda.jit
def calls_smallest(x, out):
    out[0] = smallest(x)


HAS_MINIMUM = importlib.util.find_spec("numba_cuda") is not None
REMEDIES = {
    padded_tile: "the shape of a shared array must be numbers .* write PADDED = SIDE \\+ 1 outside the kernel",
    flat_tile: "the shape of a local array must be numbers .* outside the kernel",
    tile_of_nothing: "a shared array takes a shape and a type such as float32",
    misspelt: "name 'no_such_function' is not defined",
    keeps_a_text: "No implementation of function setitem found for signature: setitem",
}


@pytest.mark.parametrize("kernel", REMEDIES, ids=lambda kernel: kernel.__name__)
def test_what_the_compiler_refuses_is_told_with_its_line_and_in_words_of_the_source(kernel):
    with pytest.raises(lab.LabError, match=REMEDIES[kernel]) as error:
        report_of(kernel, 1, 1, X, np.zeros_like(X))
    assert f"{kernel.__name__}: the CUDA compiler refuses it in line {line_with(kernel, '# refused')}: " in str(
        error.value
    )
    assert not re.search(r"0x|Literal\[|<", str(error.value))


@pytest.mark.skipif(HAS_MINIMUM, reason="numba-cuda has min and max")
def test_a_minimum_is_refused_with_its_line_and_another_way_to_write_it():
    line = line_with(smaller, "# refused")
    with pytest.raises(lab.LabError, match=f"smaller: .* in line {line}: .*write a if a > b else b"):
        report_of(smaller, 1, 1, X, np.zeros_like(X))
    line = line_with(smallest, "min(values")
    with pytest.raises(
        lab.LabError, match=f"refuses it in line {line} of smallest: numba without numba-cuda knows no min"
    ):
        report_of(calls_smallest, 1, 1, X, np.zeros_like(X))


# Traffic


@cuda.jit
def by_columns(x, out):
    i = cuda.grid(1)
    for k in range(x.shape[1]):
        out[i] += x[i, k]


@cuda.jit
def by_rows(x, out):
    i = cuda.grid(1)
    for k in range(x.shape[0]):
        out[i] += x[k, i]


def test_an_uncoalesced_access_moves_a_sector_for_each_lane():
    square, out = np.ones((32, 32), np.float32), np.zeros(32, np.float32)
    bad, good = report_of(by_columns, 1, 32, square, out), report_of(by_rows, 1, 32, square, out)
    (access,) = [each for each in bad.traffic if each.array == "x"]
    assert (access.line, access.accesses, access.sectors, access.ideal) == (
        line_with(by_columns, "x[i, k]"),
        32,
        32 * 32,
        32 * 4,
    )
    assert [cost for cost in bad.costs if "x moved 1024 sectors, and 128 hold" in cost]
    assert not good.costs
    assert (good.excess_sectors, bad.excess_sectors) == (0, 32 * 28)


@cuda.jit
def transpose(x, out):
    s = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for k in range(32):
        s[k, t] = x[k, t]
    cuda.syncthreads()
    for k in range(32):
        out[k, t] = s[t, k]


def test_a_column_of_a_shared_tile_is_a_bank_conflict_of_32_turns():
    square = np.arange(1024, dtype=np.float32).reshape(32, 32)
    out = np.zeros_like(square)
    report = report_of(transpose, 1, 32, square, out)
    assert (out == square.T).all()
    turns = {each.line: each.turns for each in report.traffic if each.shared}
    assert turns == {line_with(transpose, "s[k, t] ="): 1, line_with(transpose, "= s[t, k]"): 32}
    with pytest.raises(lab.Fault, match="memory takes up to 32 turns at its banks; 1 is allowed"):
        report.check(bank_conflict=1)


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


def test_budgets_count_the_accesses_of_one_thread():
    report = report_of(copy, 2, 32, X, np.zeros_like(X))
    report.check(global_reads_per_thread=1, global_writes_per_thread=1, sectors=16)
    with pytest.raises(lab.Fault, match="a thread reads global memory up to 1 time; none is allowed"):
        report.check(global_reads_per_thread=0)
    assert report.over(sectors=3) == ["the launch moves 16 sectors of global memory; 3 are allowed"]
    with pytest.raises(lab.LabError, match="no number speed to set a budget for"):
        report.check(speed=1)


def test_an_argument_that_starts_amid_a_sector_moves_one_more():
    values = np.zeros(65, np.float32)
    assert report_of(copy, 1, 32, values[:32], np.zeros_like(X)).sectors == 4 + 4
    assert report_of(copy, 1, 32, values[1:33], np.zeros_like(X)).sectors == 5 + 4


@cuda.jit
def odd_lanes_differ(x, out):
    i = cuda.grid(1)
    if i % 2:
        out[i] = x[i]
    for k in range(i % 3):
        out[i] += float32(k)
    if i >= 32:
        out[i] = x[i]


def test_branches_and_loops_at_which_lanes_of_a_warp_disagree_are_counted():
    split = report_of(odd_lanes_differ, 1, 64, X, np.zeros_like(X)).split_branches
    assert [(each.line, each.what, each.times) for each in split] == [
        (line_with(odd_lanes_differ, "i % 2"), "if", 2),
        (line_with(odd_lanes_differ, "i % 3"), "for", 2),
    ]


@cuda.jit(device=True)
def sum_of_squares(a, b):
    return a * a + b * b


@cuda.jit
def squares_of_floats_and_integers(x, out):
    out[0] = sum_of_squares(x[0], x[0])
    out[1] = sum_of_squares(cuda.threadIdx.x, x[0])


def test_a_device_function_called_with_several_types_counts_by_those_that_do_most():
    report = report_of(squares_of_floats_and_integers, 1, 1, X, np.zeros_like(X))
    assert report.float_operations == 2 * 3


@cuda.jit
def two_warps_count_in_shared_memory(x, out):
    cells = cuda.shared.array(64, float32)
    cells[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    cuda.atomic.add(out, 0, cells[63 - cuda.threadIdx.x])


def test_warps_that_come_to_shared_memory_and_to_atomic_operations_are_counted():
    report = report_of(two_warps_count_in_shared_memory, 1, 64, np.ones(64, np.float32), np.zeros_like(X))
    assert (report.shared_accesses, report.atomics) == (4, 2)
    assert report.over(shared_accesses=3, atomics=2) == ["warps come to shared memory 4 times; 3 are allowed"]


def positive(value):
    return value if value > float32(0) else float32(0)


positive_part = cuda.jit(device=True)(positive)
positive.__name__ = "positive_part"


@cuda.jit
def rectified(x, out):
    out[cuda.threadIdx.x] = positive_part(x[cuda.threadIdx.x])


def test_a_branch_of_a_device_function_that_has_been_renamed_is_found():
    values = np.linspace(-1, 1, 32, dtype=np.float32)
    [split] = report_of(rectified, 1, 32, values, np.zeros_like(values)).split_branches
    assert (split.function, split.what, split.times) == ("positive", "if", 1)


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = a * x[i] + y[i]


def test_arithmetic_intensity_is_operations_over_bytes_moved():
    report = report_of(axpy, 2, 64, np.float32(2), X, X.copy())
    assert report.float_operations == 2 * 64
    assert report.arithmetic_intensity == 128 / (3 * 64 * 4)


@cuda.jit
def add_neighbours(x, out):
    t = cuda.threadIdx.x
    out[t] = x[t] + cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 1)


def test_a_shuffle_is_no_operation_on_floats():
    assert report_of(add_neighbours, 1, 32, X, np.zeros_like(X)).float_operations == 32


@cuda.jit(device=True)
def keep(shared, value):
    shared[cuda.threadIdx.x] = value


@cuda.jit
def keeps_without_barrier(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    keep(s, x[t])
    out[t] = s[63 - t]


def test_what_a_device_function_does_is_named_with_the_function():
    (race,) = report_of(keeps_without_barrier, 1, 64, X, np.zeros_like(X)).races
    (written,) = [access for access in (race.first, race.second) if access.kind == "write"]
    assert (written.function, written.line) == ("keep", line_with(keep, "] = value"))
    assert f"in line {written.line} of keep" in str(race)


def test_a_report_prints_types_traffic_costs_and_intensity():
    console = Console(width=140, record=True, file=StringIO())
    console.print(report_of(by_columns, 1, 32, np.ones((32, 32), np.float32), np.zeros(32, np.float32)))
    shown = console.export_text()
    assert "by_columns[1, 32]\nno fault on this input" in shown
    for text in ("array(float32, 2d, C)", "bank turns", "moved 1024 sectors", "1024 float operations"):
        assert text in shown


# Words


@cuda.jit
def rows_write_one_cell(x, out):
    s = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        s[0] = float32(cuda.threadIdx.y)
    out[0] = s[0]


@pytest.mark.parametrize(
    ("grid", "block", "of_block", "of_thread"),
    [
        (1, (2, 2), 1, 2),
        (1, (1, 2), 1, 2),
        ((1, 2), (2, 1), 2, 1),
        ((1, 1, 2), (1, 2, 2), 3, 3),
    ],
)
def test_threads_and_blocks_are_named_in_as_many_dimensions_as_there_are(grid, block, of_block, of_thread):
    report = report_of(rows_write_one_cell, grid, block, X, np.zeros_like(X))
    assert report.races
    for race in report.races:
        pair = re.findall(r"by thread (\S.*?) of block (\S.*?) in line", str(race))
        assert [(len(name.split(",")), len(at.split(","))) for name, at in pair] == [(of_thread, of_block)] * 2
        assert pair[0] != pair[1], "two accesses that race are by two threads"


@cuda.jit
def barrier_of_a_row(out):
    if cuda.threadIdx.y == 1:
        cuda.syncthreads()
    out[0] = 1


@cuda.jit
def shuffle_of_a_row(out):
    if cuda.threadIdx.y == 1:
        cuda.syncthreads()
    else:
        out[0] = cuda.shfl_sync(0xFFFFFFFF, cuda.threadIdx.x, 0)


@cuda.jit
def out_of_a_row(out):
    if cuda.threadIdx.y == 1:
        out[cuda.threadIdx.x + 1] = 1


def test_threads_that_part_deadlock_or_fail_are_named_in_two_dimensions():
    out = np.zeros(1, np.int64)
    assert "(threads (0, 0), (1, 0))" in str(report_of(barrier_of_a_row, 1, (2, 2), out))
    with pytest.raises(lab.Deadlock, match=re.escape("threads (0, 0), (1, 0) at shfl_sync")):
        report_of(shuffle_of_a_row, 1, (2, 2), out)
    with pytest.raises(lab.OutOfBounds) as error:
        report_of(out_of_a_row, (1, 2), (2, 2), out)
    assert "block (0, 0), thread (0, 1), line" in error.value.__notes__[0]


DEVICE_FUNCTIONS = """
import numpy as np
from numba import cuda, float32

@cuda.jit(device=True)
def races(out):
    out[0] = cuda.threadIdx.x

@cuda.jit(device=True)
def splits(out):
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = out[cuda.threadIdx.x * 8] * 0.5

@cuda.jit(device=True)
def reads_nothing(out):
    cells = cuda.shared.array(1, float32)
    out[cuda.threadIdx.x] = cells[0]

@cuda.jit(device=True)
def waits(out):
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    else:
        out[0] = cuda.shfl_sync(0xFFFFFFFF, out[0], 0)

@cuda.jit(device=True)
def waits_here_and_there(out):
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()

@cuda.jit(device=True)
def adds_up(out):
    out[0] = sum(out)

@cuda.jit(device=True)
def goes_too_far(out):
    near, far = 0, 99
    out[far] = 0
"""


@pytest.fixture
def elsewhere(tmp_path):
    """Calls a device function of another file from a kernel in this one: the report, and the file's lines."""
    file = tmp_path / "elsewhere.py"
    file.write_text(DEVICE_FUNCTIONS)
    spec = importlib.util.spec_from_file_location("elsewhere", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def launched(name):
        function = getattr(module, name)

        @cuda.jit
        def calls_it(out):
            function(out)

        return report_of(calls_it, 1, 2, np.zeros(16, np.float32))

    return launched


@pytest.mark.parametrize("name", ["races", "splits", "waits_here_and_there", "reads_nothing", "adds_up"])
def test_a_line_of_a_device_function_in_another_file_is_named_with_both(elsewhere, name):
    report = elsewhere(name)
    for sentence in (*report.faults, *report.costs):
        lines = re.findall(r"line \d+", sentence)
        assert sentence.count(f" of {name} in elsewhere.py") == len(lines) > 0, sentence


def test_lines_where_threads_wait_for_ever_are_named_with_function_and_file(elsewhere):
    pattern = "syncthreads in line 23 of waits in elsewhere.py; .*in line 25 of waits in elsewhere.py"
    with pytest.raises(lab.Deadlock, match=pattern) as error:
        elsewhere("waits")
    assert "calls_it" not in str(error.value)


def test_the_line_of_an_error_in_a_device_function_is_named_with_function_and_file(elsewhere):
    with pytest.raises(lab.OutOfBounds) as error:
        elsewhere("goes_too_far")
    assert error.value.__notes__ == [
        "in calls_it, block 0, thread 0, line 41 of goes_too_far in elsewhere.py: far = 99"
    ]


@cuda.jit
def races_in_several_lines(out):
    t = cuda.threadIdx.x
    if t > 0:
        out[2] = t
    out[1] = t
    out[0] = t


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_faults_of_a_kind_are_told_from_top_to_bottom(order):
    races = report_of(races_in_several_lines, 1, 32, np.zeros(3, np.int64), order=order).races
    assert [race.cell for race in races] == ["out[2]", "out[1]", "out[0]"]


@cuda.jit
def many_variables(x, out):
    one, two, three = 1, 2, 3.0
    row = cuda.threadIdx.x
    column = row + one
    out[row] = x[
        column,
        two,
    ]
    out[row] = three


def test_an_error_shows_the_variables_of_its_line_alone():
    with pytest.raises(lab.OutOfBounds) as error:
        report_of(many_variables, 1, 2, np.zeros((2, 3), np.float32), np.zeros_like(X))
    (note,) = error.value.__notes__
    line = line_with(many_variables, "out[row] = x[")
    assert note == f"in many_variables, block 0, thread 1, line {line}: column = 2, two = 2, row = 1"
