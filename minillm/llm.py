"""Offline generation: prompts in, texts out. Named as vLLM names it (``vllm/entrypoints/llm.py``)."""

import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from numbers import Integral
from pathlib import Path
from typing import cast

from minillm.engine import Output
from minillm.model.chat_template import Message
from minillm.outputs import RequestOutput, joined, request_output
from minillm.policies import Capacity, policy_named
from minillm.request import Request, SamplingParams
from minillm.serving import LanguageModel, load, ready, wall_engine

Prompt = str | Sequence[int]
"""A text, or the token ids of one."""


@dataclass(frozen=True, slots=True)
class _Call:
    """The requests of one call by id, the texts they were made from, and their outputs that nobody has read yet."""

    requests: dict[str, Request]
    prompts: dict[str, str | None]
    outputs: deque[RequestOutput] = field(default_factory=deque)


class LLM:
    """A language model, and an engine that batches what is asked of it.

    model          a GGUF file, a Hugging Face folder, a ``LanguageModel``, or None for SmolLM2-135M-Instruct
    policy         who runs next: a name in ``minillm.policies.POLICIES``
    dtype          what the model computes in, see ``minillm.serving.dtype_named``
    device         where, see ``minillm.serving.device_named``
    max_model_len  longest prompt plus output, in tokens; by default the model's context, at most 8192
    kv_tokens      cached tokens of all running requests together; by default those of one longest request
    max_num_seqs   most sequences in one pass

    Raises ValueError for a model that cannot be loaded or served like this.
    """

    def __init__(
        self,
        model: str | Path | LanguageModel | None = None,
        *,
        policy: str = "vllm",
        dtype: str = "auto",
        device: str = "cpu",
        max_model_len: int | None = None,
        kv_tokens: int | None = None,
        max_num_seqs: int = 64,
    ) -> None:
        self.model = ready(model, dtype, device) if isinstance(model, LanguageModel) else load(model, dtype, device)
        self.tokenizer = self.model.tokenizer
        limits = self.model.limits(max_model_len)
        context = limits.max_context
        capacity = Capacity(
            kv_tokens=context if kv_tokens is None else kv_tokens,
            max_length=context,
            max_output=context,
            max_num_seqs=max_num_seqs,
        )
        self.engine = wall_engine(self.model, policy_named(policy).build(capacity), limits)
        self._ids = map(str, count())
        self._calls: dict[str, _Call] = {}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts together; the outputs stand in their order.

        One set of sampling parameters serves all prompts, or each has its own. Nothing runs before every prompt is
        accepted: raises ValueError for one that the model cannot take, and ``Refused`` for one that the policy could
        never run. What fails later ends with ``finish_reason`` "error" while the others go on.
        """
        call = self._call(prompts, sampling_params)
        parts: dict[str, list[RequestOutput]] = {request_id: [] for request_id in call.requests}
        for part in self._run(call):
            parts[part.request_id].append(part)
        return [joined(of_request) for of_request in parts.values()]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[RequestOutput]:
        """The same, as it comes: each output holds what is new of its request (vLLM's ``RequestOutputKind.DELTA``).

        Several streams may be read in turn. What a closed stream leaves unfinished is aborted.
        """
        return self._run(self._call(prompts, sampling_params))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """The assistant's answer to a conversation, or to each of several. Raises as ``generate`` does."""
        single = not messages or isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], [messages] if single else messages)
        return self.generate([self.tokenizer.apply_chat_template(each) for each in conversations], sampling_params)

    def _call(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> _Call:
        each_prompt = _each_prompt(prompts)
        call = _Call({}, {})
        now = self.engine.clock.now()
        for prompt, params in zip(each_prompt, _each_params(sampling_params, len(each_prompt)), strict=True):
            request = Request(next(self._ids), self._token_ids(prompt), params, arrival=now)
            call.requests[request.id] = request
            call.prompts[request.id] = prompt if isinstance(prompt, str) else None
        return call

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt))
        try:
            return tuple(map(operator.index, prompt))
        except TypeError:
            raise ValueError(f"{prompt!r} is no prompt; give a text, or a list of token ids") from None

    def _run(self, call: _Call) -> Iterator[RequestOutput]:
        """Hand a call's requests to the engine, and step it until they have ended or nobody reads on."""
        try:
            for request in call.requests.values():
                self.engine.add(request)
                self._calls[request.id] = call
            while call.outputs or any(map(self.engine.is_open, call.requests)):
                if not call.outputs:
                    self._step()
                while call.outputs:
                    yield call.outputs.popleft()
        finally:
            for request_id in call.requests:
                self.engine.abort(request_id)
                self._calls.pop(request_id, None)

    def _step(self) -> None:
        """One turn of the engine: what it brings goes to the calls that wait for it."""
        news: dict[str, list[Output]] = {}
        for output in self.engine.step():
            news.setdefault(output.request_id, []).append(output)
        for request_id, outputs in news.items():
            call, finished = self._calls[request_id], not self.engine.is_open(request_id)
            part = request_output(call.requests[request_id], call.prompts[request_id], outputs, finished)
            call.outputs.append(part)


def _each_prompt(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))
    return cast(list[Prompt], [prompts] if single else list(prompts))


def _each_params(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * num_prompts
    if len(sampling_params) != num_prompts:
        raise ValueError(
            f"{len(sampling_params)} sampling parameters cannot serve {num_prompts} prompts; give one, or one for each"
        )
    return sampling_params
