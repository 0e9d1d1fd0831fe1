"""The commands, one a file. Whatever needs torch or numba is imported when the command runs: help is instant."""
