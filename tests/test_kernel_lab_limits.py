"""What no GPU takes is refused by the kernel lab in one sentence: the value, the rule, its source, the remedy."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from numba import cuda, float32, int8

from kernels import lab

GUIDE = 'CUDA C\\+\\+ Programming Guide, "Technical Specifications per Compute Capability"'
X = np.arange(64, dtype=np.float32)


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i]


@pytest.fixture(params=[lab.check, lab.run], ids=["check", "run"])
def refused(request):
    """Launches a kernel, and wants an error of one sentence."""

    def launch(message, kernel, grid, block, *arguments, shared_bytes=0):
        with request.param(), pytest.raises(lab.LabError, match=message):
            kernel[grid, block, 0, shared_bytes](*arguments)

    return launch


@pytest.mark.parametrize("size", [1.5, "a", None, (1, 2.0), ()], ids=str)
def test_a_size_that_is_no_integer_is_refused_and_not_cut_off(refused, size):
    refused("is no size of a grid or block; give one to three whole numbers of at least 1", copy, size, 32, X, X)
    refused("is no size of a grid or block; give one to three whole numbers of at least 1", copy, 1, size, X, X)


@pytest.mark.parametrize("bytes_", [1.5, -4, "a"], ids=str)
def test_a_size_of_dynamic_shared_memory_that_is_no_number_of_bytes_is_refused(refused, bytes_):
    refused("is no size of dynamic shared memory; give whole bytes", copy, 1, 32, X, X, shared_bytes=bytes_)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1, 70_000), 1, f"70000 blocks in y: a grid takes at most 65535 .{GUIDE}"),
        ((1, 1, 65_536), 1, f"65536 blocks in z: a grid takes at most 65535 .{GUIDE}"),
        (2**31, 1, f"2147483648 blocks in x: a grid takes at most 2147483647 .{GUIDE}"),
        (1, (1, 1, 65), f"65 threads in z: a block takes at most 64 .{GUIDE}"),
        (1, (33, 32), f"a block of 33 x 32 x 1 threads: a GPU takes from 1 to 1024 in one block .{GUIDE}"),
    ],
)
def test_more_blocks_or_threads_than_a_gpu_takes_are_refused(refused, grid, block, message):
    refused(message, copy, grid, block, X, X)


def test_the_most_that_a_gpu_takes_is_no_error():
    with lab.run():
        copy[np.int64(1), (np.int32(1), 16, 64)](X, X.copy())


@cuda.jit
def large_tiles(out):
    s = cuda.shared.array((96, 64), float32)
    t = cuda.shared.array((96, 65), float32)
    s[0, 0] = t[0, 0] = 1
    out[0] = s[0, 0] + t[0, 0]


@cuda.jit
def full(out):
    s = cuda.shared.array(48 * 1024, int8)
    s[0] = 1
    out[0] = s[0]


def test_shared_arrays_beyond_what_a_block_has_are_refused(refused):
    refused(
        f"49536 bytes of shared memory in a block, 0 of them dynamic: .* at most 49152 .{GUIDE}; up to 232448 ",
        *(large_tiles, 1, 1, np.zeros(1, np.float32)),
    )


def test_dynamic_shared_memory_counts_with_the_static(refused):
    out = np.zeros(1, np.float32)
    with lab.check():
        full[1, 1](out)
    refused("49156 bytes of shared memory in a block, 4 of them dynamic", full, 1, 1, out, shared_bytes=4)
    refused("49153 bytes of shared memory in a block, 49153 of them dynamic", copy, 1, 1, X, X, shared_bytes=49153)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X.astype(">f4"), "numbers of type >f4 .* give arrays and numbers"),
        (np.array([None]), "numbers of type object .* give arrays and numbers"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "numbers of type .*'a', '<f4'.* give arrays and numbers"),
        (np.str_("a"), "numbers of type <U1 .* give arrays and numbers"),
        (2**64, "18446744073709551616 is no argument for a kernel, whose integers have 64 bits"),
        (np.zeros(2, [("a", "f8"), ("b", "f4")])["a"], r"float64 with strides .12,. are not aligned"),
        (np.ndarray(2, np.float32, bytearray(9), offset=1), "float32 .* are not aligned; give the kernel a copy"),
        (torch.zeros(2, dtype=torch.bfloat16), r"a Tensor that numpy refuses .*BFloat16"),
        (torch.zeros(2, requires_grad=True), r"a Tensor that numpy refuses .*detach"),
    ],
    ids=["big-endian", "object", "record", "text", "65 bits", "strides", "odd address", "bfloat16", "with gradient"],
)
def test_an_argument_of_a_type_that_no_kernel_takes_is_refused(refused, value, message):
    refused(message, copy, 1, 2, value, np.zeros(2, np.float32))


@cuda.jit
def misspelt(out):
    out[0] = cuda.blockidx.x


def test_a_name_that_cuda_does_not_have_is_named(refused):
    refused(r"the lab has no cuda\.blockidx; kernels/README\.md lists what it has", misspelt, 1, 1, X.copy())


@cuda.jit
def long_loop(out):
    for i in range(10**12):
        out[0] = i


def test_a_loop_that_comes_to_no_end_is_an_error_and_no_hang(monkeypatch):
    monkeypatch.setattr("kernels.lab.checked.MOST_TESTS", 1000)
    with lab.check(), pytest.raises(lab.Deadlock, match="1000 trips"):
        long_loop[1, 1](np.zeros(1, np.float32))


def test_without_greenlet_the_lab_names_the_extra_that_brings_it():
    code = (
        "import sys; sys.modules['greenlet'] = None\ntry: import kernels.lab\nexcept Exception as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "the kernel lab needs greenlet; install it: pip install 'minillm[lab]'\n"


@pytest.mark.parametrize("source", ["kernel = lambda out: None", "def kernel(out): out[0] = 8 // (out[0] + 1)"])
def test_without_a_readable_source_a_kernel_runs_and_is_not_checked(source):
    names = {}
    exec(source, names)
    out = np.zeros(1, np.int64)
    with lab.run():
        cuda.jit(names["kernel"])[1, 1](out)
    with lab.check(), pytest.raises(lab.LabError, match="the lab reads a kernel's source; define it by def"):
        cuda.jit(names["kernel"])[1, 1](out)
