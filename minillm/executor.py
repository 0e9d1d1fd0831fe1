"""Computing a batch with the real model: lower it, run the model once, sample."""

from itertools import takewhile
from typing import Protocol

import torch

from minillm.batch import Batch, BlockMoves, Result, Span
from minillm.cache.flat import Pass
from minillm.model.sampling import Draw, Sampled, sample
from minillm.model.transformer import Transformer


class Cache(Protocol):
    """The tensors behind a policy's memory."""

    def apply(self, moves: BlockMoves) -> None:
        """Carry out block moves before a pass."""
        ...

    def lower(self, batch: Batch) -> Pass:
        """Flatten a batch; the pass's ``attend`` stores into and reads from this cache."""
        ...


class TorchExecutor:
    """Runs batches on a transformer: one flattened forward each, with logits only for the rows that sample."""

    def __init__(self, model: Transformer, cache: Cache, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.model = model
        self.cache = cache
        self.eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> list[Result]:
        """One result per span. A span whose logits are not finite gets an error; the others keep their tokens."""
        self.cache.apply(batch.moves)
        if not batch.spans and not batch.held:
            return []
        inputs = self.cache.lower(batch)
        hidden = self.model(inputs.token_ids, inputs.positions, inputs.attend)
        draws = [self._draws(span) for span in batch.spans]
        logits = self.model.logits(hidden[inputs.sample_rows])
        sampled = iter(sample(logits, [draw for of_span in draws for draw in of_span]))
        return [
            _result(span, [next(sampled) for _ in of_span]) for span, of_span in zip(batch.spans, draws, strict=True)
        ]

    def _draws(self, span: Span) -> list[Draw]:
        """One draw per branch at a prompt's end; else one per draft, as if those before it were right, and one more."""
        if not span.samples:
            return []
        if span.samples > 1:
            return [self._draw(span, branch, ()) for branch in range(span.samples)]
        drafts = span.draft_token_ids
        return [self._draw(span, span.sequence.branch, drafts[:accepted]) for accepted in range(len(drafts) + 1)]

    def _draw(self, span: Span, branch: int, accepted: tuple[int, ...]) -> Draw:
        sequence = span.sequence
        return Draw(
            params=sequence.request.params,
            branch=branch,
            output_index=sequence.output_length + len(accepted),
            token_ids=[*sequence.token_ids, *accepted] if accepted else sequence.token_ids,
            eos_token_ids=self.eos_token_ids,
        )


def _result(span: Span, sampled: list[Sampled]) -> Result:
    kept = sampled[: _accepted(span, sampled) + 1] if span.draft_token_ids else sampled
    error = next((draw.error for draw in kept if draw.error), None)
    if error:
        return Result(error=error)
    return Result(
        tuple(draw.token_id for draw in kept if draw.token_id is not None),
        tuple(draw.logprob for draw in kept if draw.logprob is not None),
    )


def _accepted(span: Span, sampled: list[Sampled]) -> int:
    """Drafts are accepted while the model, on the same random numbers, would have drawn them itself."""
    matches = zip(span.draft_token_ids, sampled, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1].token_id, matches))
