"""Attention and cache kernels: the same names and arguments for each kind of machine. They know nothing of minillm."""
