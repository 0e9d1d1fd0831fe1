"""What a pass costs on a simulated device: weights once, arithmetic per token, and the cache that attention reads."""

from dataclasses import dataclass

from minillm.batch import Batch


@dataclass(frozen=True, slots=True)
class ThreeTermCost:
    """``overhead + max(weights read once, arithmetic) + cache read``, in seconds; a roofline with a floor.

    overhead            seconds per pass, whatever it holds
    weight_bytes        bytes of weights, read once per pass
    flops_per_token     floating-point operations per computed token, 2 per parameter
    kv_bytes_per_token  cache bytes per context token
    bandwidth           bytes per second
    flops               floating-point operations per second

    A padded batch is charged for its padding: its whole rectangle is computed and read.
    """

    overhead: float
    weight_bytes: float
    flops_per_token: float
    kv_bytes_per_token: float
    bandwidth: float
    flops: float

    def __call__(self, batch: Batch) -> float:
        """Seconds that the batch takes. One that only moves blocks reads no weights."""
        weights = self.weight_bytes / self.bandwidth if batch.computed_tokens else 0.0
        arithmetic = batch.computed_tokens * self.flops_per_token / self.flops
        cache = batch.context_tokens * self.kv_bytes_per_token / self.bandwidth
        return self.overhead + max(weights, arithmetic) + cache
