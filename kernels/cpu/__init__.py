"""Kernels for the CPU, with the names and arguments that a GPU's have."""

from kernels.cpu.attention import paged_attention
from kernels.cpu.blocks import copy_blocks, reshape_and_cache, swap_blocks

__all__ = ["copy_blocks", "paged_attention", "reshape_and_cache", "swap_blocks"]
