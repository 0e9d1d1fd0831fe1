"""Kernels for NVIDIA GPUs, in numba.cuda, from the simplest to those that serve a model; a step to a file.

The same kernels run without a GPU in ``kernels.lab``. Arrays may be numpy's in the lab, numba's on a device, or torch
tensors, whose memory is used where it lies.
"""
