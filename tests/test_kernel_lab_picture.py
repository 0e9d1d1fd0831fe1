"""Pictures of a warp's access: what they choose, and what they are."""

import subprocess
import sys

import numpy as np
import pytest
from numba import cuda, float32

from kernels import lab

pytest.importorskip("matplotlib")

from kernels.lab.picture import picture, warp_access


@cuda.jit
def transpose(x, out):
    s = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for k in range(32):
        s[k, t] = x[k, t]
    cuda.syncthreads()
    for k in range(32):
        out[k, t] = s[t, k]


FIRST = transpose.py_func.__code__.co_firstlineno
LOAD, STORE = FIRST + 5, FIRST + 8


@pytest.fixture(scope="module")
def report():
    square = np.arange(1024, dtype=np.float32).reshape(32, 32)
    with lab.check() as reports:
        transpose[1, 32](square, np.zeros_like(square))
    return reports[0]


def test_an_access_is_chosen_by_line_array_and_visit(report):
    access = warp_access(report, STORE, "s", visit=3)
    assert len(access) == 32
    assert list(access.cell - access.cell.min()) == [32 * lane for lane in range(32)]
    assert len(warp_access(report, STORE, "out")) == 32


def test_a_picture_says_what_the_access_costs_and_is_a_png(report):
    drawn = picture(report, STORE, "s")
    assert drawn.axes[0].get_title(loc="left") == f"read of s, line {STORE}, warp 0 of block 0: 32 turns"
    straight = picture(report, LOAD, "x")
    assert straight.axes[0].get_title(loc="left").endswith("4 sectors moved, 4 would do")
    assert straight._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "how", "message"),
    [
        (FIRST, {}, f"line {FIRST} of transpose touches no array in global or shared memory"),
        (STORE, {"array": "x"}, f"line {STORE} of transpose touches no x"),
        (STORE, {"visit": 99}, "warps come 32 times to line .*; choose a visit from 0 to 31"),
    ],
)
def test_what_is_not_there_is_said(report, line, how, message):
    with pytest.raises(lab.LabError, match=message):
        picture(report, line, **how)


def test_without_matplotlib_the_lab_works_and_only_pictures_are_refused():
    code = "import sys; sys.modules['matplotlib'] = None; from kernels import lab\n"
    code += "try: import kernels.lab.picture\nexcept lab.LabError as error: print(error)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "pictures need matplotlib; install it: pip install matplotlib\n"
