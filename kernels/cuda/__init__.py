"""Kernels for NVIDIA GPUs, in numba.cuda, from the simplest to those that serve a model; a step to a file.

Practice, in this order: ``map``, ``reduction``, ``matmul``, ``softmax``, ``flash_attention``. What the engine uses, and
is exported here: the paged cache's kernels, with the names and arguments of ``kernels.cpu`` as far as both have them.
Device functions that several steps call: ``warp``, then ``online``, a warp for a key, and ``tiles``, a lane for a key.

The same kernels run without a GPU in ``kernels.lab``. Arrays may be numpy's in the lab, numba's on a device, or torch
tensors, whose memory is used where it lies. Launches go to CUDA's default stream: torch must work on it too.
"""

from kernels.cuda.copy_blocks import copy_blocks, swap_blocks
from kernels.cuda.paged_decode_attention import paged_decode_attention
from kernels.cuda.paged_flash_decoding import paged_flash_decoding
from kernels.cuda.paged_prefill_attention import paged_prefill_attention
from kernels.cuda.reshape_and_cache import reshape_and_cache
from kernels.cuda.token_attention import token_attention

__all__ = [
    "copy_blocks",
    "paged_decode_attention",
    "paged_flash_decoding",
    "paged_prefill_attention",
    "reshape_and_cache",
    "swap_blocks",
    "token_attention",
]
