"""Dynamic shared arrays of several types are one memory in the kernel lab, as on a GPU."""

import numpy as np
import pytest
from numba import cuda, float32, int16, int32

from kernels import lab

X = np.arange(1, 33, dtype=np.float32)
MODES = [(order, late) for order in ("ascending", "descending", 3) for late in (True, False)]


def report_of(kernel, grid, block, *arguments, order="ascending", late_stores=True):
    with lab.check(order=order, late_stores=late_stores) as reports:
        kernel[grid, block, 0, 256](*arguments)
    return reports[0]


@cuda.jit
def bits(x, out):
    t = cuda.threadIdx.x
    floats = cuda.shared.array(0, float32)
    floats[t] = x[t]
    integers = cuda.shared.array(0, int32)  # after the store
    own = integers[t]
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = own + integers[31 - t]


@pytest.mark.parametrize(("order", "late_stores"), MODES, ids=str)
def test_what_is_stored_in_one_type_is_read_in_the_other(order, late_stores):
    checked, ran = np.zeros((2, 2, 32), np.int64)
    report_of(bits, 2, 32, X, checked, order=order, late_stores=late_stores).check()
    with lab.run(order=order):
        bits[2, 32, 0, 256](X, ran)
    seen = X.view(np.int32).astype(np.int64)
    assert (checked == ran).all()
    assert (checked == seen + seen[::-1]).all()


@cuda.jit
def both_from_the_first_byte(x, out):
    t = cuda.threadIdx.x
    floats, integers = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    floats[t] = x[t]
    integers[31 - t] = t
    cuda.syncthreads()
    out[t] = floats[t]


def test_two_arrays_that_both_begin_at_the_first_byte_race():
    (race,) = report_of(both_from_the_first_byte, 1, 32, X, np.zeros(32, np.float32)).races
    assert race.cells == 32
    assert "dynamic shared memory[" in race.cell


@cuda.jit
def side_by_side(x, out):
    t = cuda.threadIdx.x
    floats, integers = cuda.shared.array(0, float32), cuda.shared.array(0, int32)[32:]
    floats[t] = x[t]
    integers[t] = t
    cuda.syncthreads()
    out[t] = floats[31 - t] + float32(integers[31 - t])


@pytest.mark.parametrize(("order", "late_stores"), MODES, ids=str)
def test_two_arrays_side_by_side_do_not_race(order, late_stores):
    out = np.zeros(32, np.float32)
    report_of(side_by_side, 1, 32, X, out, order=order, late_stores=late_stores).check()
    assert (out == (X + np.arange(32))[::-1]).all()


@cuda.jit
def halves(out):
    t = cuda.threadIdx.x
    shorts, integers = cuda.shared.array(0, int16), cuda.shared.array(0, int32)
    shorts[t] = t
    if t < 16:
        out[t] = integers[t]  # two threads' halves, and no barrier


@cuda.jit
def low_halves(out):
    t = cuda.threadIdx.x
    shorts, integers = cuda.shared.array(0, int16), cuda.shared.array(0, int32)
    shorts[2 * t] = t
    out[t] = integers[t]


def test_an_element_races_with_those_of_a_smaller_type_within_it():
    (race,) = report_of(halves, 1, 32, np.zeros(16, np.int64)).races
    assert {race.first.kind, race.second.kind} == {"read", "write"}
    assert race.first.thread != race.second.thread


def test_an_element_of_which_a_part_was_not_written_is_named():
    (found,) = report_of(low_halves, 1, 8, np.zeros(8, np.int64)).unwritten
    assert (found.access.kind, found.times) == ("read", 8)
