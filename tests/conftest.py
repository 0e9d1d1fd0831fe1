"""Set-up that all tests share."""

import torch

torch.set_num_threads(1)  # the tiny models' products are too small to share between threads
