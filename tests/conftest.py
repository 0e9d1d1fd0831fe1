"""Set-up that all tests share."""

import sys


def pytest_collection_finish() -> None:
    """Give the tiny models one thread: their products are too small to share. Tests of kernels need no torch."""
    if "torch" in sys.modules:
        import torch

        from minillm.serving import share_threads

        torch.set_num_threads(1)
        share_threads()
