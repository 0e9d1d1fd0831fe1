"""What attention reads: the places of cached keys and values, and the tensors that hold them."""
