"""The same schedulers on a simulated device: a cost model instead of tensors, a jumping clock instead of time."""
