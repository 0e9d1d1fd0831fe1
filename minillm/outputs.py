"""What generation gives back, named and shaped as vLLM names and shapes it (``vllm/outputs.py``)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from minillm.engine import Output
from minillm.request import Request
from minillm.sequence import FinishReason


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the n samples of a prompt or, in a stream, what is new of it.

    ``logprobs`` holds a mapping for each token, from the token's id and those of the likeliest tokens to their
    log-probabilities; ``cumulative_logprob`` is the sum over the sampled tokens. Both are None unless the sampling
    parameters ask for them. ``finish_reason`` is None while tokens follow. ``stop_reason`` is the stop string or stop
    token id that ended the sample. ``error`` says what went wrong where ``finish_reason`` is "error".
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: tuple[dict[int, float], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its samples. ``prompt`` is None where the prompt came as token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool


def request_output(request: Request, prompt: str | None, outputs: Iterable[Output], finished: bool) -> RequestOutput:
    """What one step of the engine brought a request."""
    completions = tuple(_completion(output) for output in outputs)
    return RequestOutput(request.id, prompt, request.prompt_token_ids, completions, finished)


def joined(parts: Sequence[RequestOutput]) -> RequestOutput:
    """The whole of a request's output from its parts, the samples in the order of their index."""
    samples: dict[int, list[CompletionOutput]] = {}
    for part in parts:
        for completion in part.outputs:
            samples.setdefault(completion.index, []).append(completion)
    return replace(parts[-1], outputs=tuple(_joined_completion(samples[index]) for index in sorted(samples)))


def _completion(output: Output) -> CompletionOutput:
    return CompletionOutput(
        index=output.branch,
        text=output.text,
        token_ids=output.token_ids,
        cumulative_logprob=sum(each.logprob for each in output.logprobs) if output.logprobs else None,
        logprobs=_logprobs(output) if output.logprobs else None,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        error=output.error,
    )


def _logprobs(output: Output) -> tuple[dict[int, float], ...]:
    tokens = zip(output.token_ids, output.logprobs, strict=True)
    return tuple({token_id: each.logprob, **dict(each.top)} for token_id, each in tokens)


def _joined_completion(parts: Sequence[CompletionOutput]) -> CompletionOutput:
    logprobs = tuple(each for part in parts for each in part.logprobs or ())
    return replace(
        parts[-1],
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        cumulative_logprob=sum(part.cumulative_logprob or 0.0 for part in parts) if logprobs else None,
        logprobs=logprobs or None,
    )
