"""Set-up that all tests share."""

import torch

from minillm.serving import share_threads

torch.set_num_threads(1)  # the tiny models' products are too small to share between threads
share_threads()
