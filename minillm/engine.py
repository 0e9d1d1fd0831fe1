"""The loop: decide who runs, compute, settle. Synchronous, without threads, and the same for every policy."""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from math import isfinite

from minillm.batch import Batch, Outcome, Result, Span, TokenLogprob
from minillm.clock import Clock
from minillm.model.tokenizer import Tokenizer
from minillm.records import EventRecord, Recording, RequestRecord, SpanRecord, StepRecord
from minillm.request import Request, SamplingParams
from minillm.runner import Runner
from minillm.scheduler import Load, Refused, Scheduler
from minillm.sequence import FinishReason, Sequence
from minillm.stopping import OutputText


class Stuck(RuntimeError):
    """Requests wait, nothing is in flight, and no moment is known at which that could change."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model can take. ``max_context`` bounds prompt plus output, in tokens."""

    vocab_size: int
    max_context: int
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one branch of a request, and the text that is final by now; the last one has a finish reason.

    ``stop_reason`` is the stop string or stop token id that ended it, ``error`` what went wrong.
    """

    request_id: str
    sequence: str
    branch: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(slots=True)
class _Stream:
    """What a client has of a sequence, and what is kept for it until its policy delivers."""

    text: OutputText
    logprobs: list[TokenLogprob] = field(default_factory=list)
    delivered: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Flight:
    """A batch on its way, and what its launch delivered: the record of its step waits for its end."""

    batch: Batch
    start: float
    load: Load
    delivered: tuple[Output, ...]


class Engine:
    """Drives one scheduler and one runner on one clock, and keeps a record of every request and step."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Clock, limits: Limits, tokenizer: Tokenizer | None = None
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.limits = limits
        self.requests: list[RequestRecord] = []
        self.steps: list[StepRecord] = []
        self._tokenizer = tokenizer
        self._added = count()
        self._arrivals: list[tuple[float, int, Request]] = []
        self._in_flight: deque[_Flight] = deque()
        self._branches: dict[str, int] = {}
        self._streams: dict[Sequence, _Stream] = {}
        self._idle_ticks = 0
        self._asked = 0.0

    @property
    def has_work(self) -> bool:
        """Whether some request has not ended."""
        return bool(self._branches)

    def is_open(self, request_id: str) -> bool:
        """Whether a request was added and has not ended."""
        return request_id in self._branches

    def recording(self, policy: str) -> Recording:
        """The records so far, under the policy's name."""
        return Recording(policy, self.scheduler.memory.capacity, tuple(self.requests), tuple(self.steps))

    def add(self, request: Request) -> None:
        """Take a request; one whose arrival lies in the future is handed to the scheduler then.

        Raises ValueError for a request that the model cannot take, and ``Refused`` for one that has arrived and that
        the policy will never run. A later arrival that is refused ends with an output that says so.
        """
        self._check(request)
        if request.arrival > self.clock.now():
            heapq.heappush(self._arrivals, (request.arrival, next(self._added), request))
        else:
            self._hand_over(request)
        self._branches[request.id] = request.params.n

    def abort(self, request_id: str) -> list[Output]:
        """End a request in whatever state it is. Tokens still being computed for it are dropped."""
        if request_id not in self._branches:
            return []
        self._arrivals = [entry for entry in self._arrivals if entry[2].id != request_id]
        heapq.heapify(self._arrivals)
        computing = [span.sequence for flight in self._in_flight for span in flight.batch.spans]
        for sequence in (*computing, *self._streams):
            if sequence.request.id == request_id and not sequence.finished:
                sequence.finish_reason = "abort"
        self.scheduler.abort(request_id, self.clock.now())
        self._streams = {s: stream for s, stream in self._streams.items() if s.request.id != request_id}
        del self._branches[request_id]
        return [Output(request_id, request_id, finish_reason="abort")]

    def step(self) -> list[Output]:
        """One turn: take arrivals, fill the runner, then go to the next moment and settle what is done by then.

        Raises ``Stuck`` when requests wait and no such moment is known.
        """
        outputs = self._take_arrivals()
        outputs += self._fill_runner()
        if not self.has_work and not self._in_flight:
            return outputs
        self.clock.advance_to(self._next_moment())
        if self._in_flight and self.runner.ready_at() <= self.clock.now():
            outputs += self._settle()
        return outputs

    def run(self) -> list[Output]:
        """Step until every request has ended."""
        outputs = []
        while self.has_work or self._in_flight:
            outputs += self.step()
        return outputs

    def _check(self, request: Request) -> None:
        prompt, limit = request.prompt_token_ids, self.limits
        if request.id in self._branches:
            raise ValueError(f"request id {request.id!r} is in use; give each running request an id of its own")
        if not isfinite(request.arrival):
            raise ValueError(f"request {request.id!r} arrives at {request.arrival}; give a finite time in seconds")
        if not prompt:
            raise ValueError(f"the prompt of request {request.id!r} is empty; give at least one token")
        mentioned = (*prompt, *request.params.stop_token_ids)
        bad = next((token for token in mentioned if not 0 <= token < limit.vocab_size), None)
        if bad is not None:
            raise ValueError(f"token id {bad} is not in the vocabulary; ids run from 0 to {limit.vocab_size - 1}")
        if len(prompt) + request.params.max_tokens > limit.max_context:
            raise ValueError(
                f"{len(prompt)} prompt tokens and max_tokens {request.params.max_tokens} exceed the context of "
                f"{limit.max_context} tokens; shorten the prompt or lower max_tokens"
            )
        self._text(request.params)  # raises ValueError for stop strings, if there is no tokenizer to find them

    def _hand_over(self, request: Request) -> None:
        refused = None
        try:
            self.scheduler.add(request, self.clock.now())
        except Refused as refusal:
            refused = refusal.reason
            raise
        finally:
            params, prompt_tokens = request.params, len(request.prompt_token_ids)
            self.requests.append(
                RequestRecord(request.id, request.arrival, prompt_tokens, params.max_tokens, params.n, refused)
            )

    def _take_arrivals(self) -> list[Output]:
        refused = []
        while self._arrivals and self._arrivals[0][0] <= self.clock.now():
            request = heapq.heappop(self._arrivals)[2]
            try:
                self._hand_over(request)
            except Refused as refusal:
                del self._branches[request.id]
                refused.append(Output(request.id, request.id, finish_reason="refused", error=refusal.reason))
        return refused

    def _fill_runner(self) -> list[Output]:
        outputs: list[Output] = []
        while len(self._in_flight) < self.runner.depth:
            now = self._asked = self.clock.now()
            batch = self.scheduler.schedule(now)
            if batch is None:
                break
            flight = _Flight(batch, now, self.scheduler.load(), tuple(self._deliver(self._ended(batch))))
            outputs += flight.delivered
            if batch.runs:
                self._launch(flight)
            else:
                self._tick(flight)
        return outputs

    def _launch(self, flight: _Flight) -> None:
        for span in flight.batch.spans:
            span.sequence.in_flight = True
        self.runner.submit(flight.batch, flight.start)
        self._in_flight.append(flight)
        self._idle_ticks = 0

    def _tick(self, flight: _Flight) -> None:
        """Record a step that runs nothing. Raises ``Stuck`` after too many in a row that end nobody either.

        Such a step may reset one sequence. Once all have been reset somebody must run; twice as many is no progress.
        """
        self._idle_ticks = 0 if flight.delivered else self._idle_ticks + 1
        if self._idle_ticks > 2 * flight.load.queued:
            raise Stuck(f"{self._idle_ticks} steps in a row ran nothing while {len(self._branches)} requests wait")
        self._record(flight, flight.start, (), ())

    def _ended(self, batch: Batch) -> list[Sequence]:
        """Sequences that the scheduler itself ended, with its reason kept for their client."""
        ended = [event for event in batch.events if event.sequence.finished]
        for event in ended:
            stream = self._stream(event.sequence)
            stream.error = event.reason or stream.error
        return [event.sequence for event in ended]

    def _next_moment(self) -> float:
        """The earliest known moment of change; a wake-up not later than the last question brought nothing then."""
        moments = []
        if self._in_flight:
            moments.append(self.runner.ready_at())
        if self._arrivals:
            moments.append(self._arrivals[0][0])
        wake = self.scheduler.wake_at(self._asked) if len(self._in_flight) < self.runner.depth else None
        if wake is not None and wake > self._asked:
            moments.append(wake)
        if not moments:
            raise Stuck(f"{len(self._branches)} requests wait, and nothing will ever run: {sorted(self._branches)[:5]}")
        return min(moments)

    def _settle(self) -> list[Output]:
        flight = self._in_flight.popleft()
        outcomes: list[Outcome] = []
        for span, result in zip(flight.batch.spans, self.runner.collect(), strict=True):
            span.sequence.in_flight = False
            outcomes += self._outcomes(span, result)
        now = self.clock.now()
        outputs = self._deliver(self.scheduler.settle(flight.batch, outcomes, now))
        self._record(flight, now, outcomes, outputs)
        return outputs

    def _record(self, flight: _Flight, end: float, outcomes: Iterable[Outcome], outputs: Iterable[Output]) -> None:
        self.steps.append(_step_record(len(self.steps), flight, end, outcomes, (*flight.delivered, *outputs)))

    def _outcomes(self, span: Span, result: Result) -> list[Outcome]:
        """Append what the results bring: the new branches' first, the span's own sequence last."""
        parent = span.sequence
        if parent.finished:
            return [Outcome(parent, span, (), parent.finish_reason)]
        if result.error is not None:
            self._stream(parent).error = result.error
            parent.finish_reason = "error"
            return [Outcome(parent, span, (), "error")]
        if span.samples <= 1:
            return [self._extend(parent, span, result.token_ids, result.logprobs)]
        family = [parent, *parent.fork()]
        logprobs = result.logprobs or [None] * span.samples
        first = zip(family, result.token_ids, logprobs, strict=True)
        return [self._extend(s, span, (token,), (logprob,) if logprob else ()) for s, token, logprob in first][::-1]

    def _extend(
        self, sequence: Sequence, span: Span, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> Outcome:
        stream = self._stream(sequence)
        kept = 0
        while kept < len(token_ids) and sequence.finish_reason is None:
            sequence.finish_reason = stream.text.push(token_ids[kept])
            kept += 1
        sequence.token_ids += token_ids[:kept]
        stream.logprobs += logprobs[:kept]
        return Outcome(sequence, span, token_ids[:kept], sequence.finish_reason)

    def _stream(self, sequence: Sequence) -> _Stream:
        if sequence not in self._streams:
            self._streams[sequence] = _Stream(self._text(sequence.request.params))
        return self._streams[sequence]

    def _text(self, params: SamplingParams) -> OutputText:
        return OutputText(params, self.limits.eos_token_ids, self._tokenizer)

    def _deliver(self, sequences: Iterable[Sequence]) -> list[Output]:
        outputs = []
        for sequence in sequences:
            if sequence.finish_reason == "abort":
                continue
            output = _output(sequence, self._stream(sequence))
            if output.token_ids or output.finish_reason:
                outputs.append(output)
            if sequence.finished:
                self._close(sequence)
        return outputs

    def _close(self, sequence: Sequence) -> None:
        del self._streams[sequence]
        request_id = sequence.request.id
        self._branches[request_id] -= sequence.branches
        if not self._branches[request_id]:
            del self._branches[request_id]


def _output(sequence: Sequence, stream: _Stream) -> Output:
    first = sequence.prompt_length + stream.delivered
    fresh = sequence.token_ids[first:]
    logprobs = tuple(stream.logprobs[stream.delivered : stream.delivered + len(fresh)])
    stream.delivered += len(fresh)
    return Output(
        request_id=sequence.request.id,
        sequence=sequence.name,
        branch=sequence.branch,
        token_ids=tuple(fresh),
        text=stream.text.take(),
        logprobs=logprobs,
        finish_reason=sequence.finish_reason,
        stop_reason=stream.text.stop_reason,
        error=stream.error,
    )


def _step_record(
    index: int, flight: _Flight, end: float, outcomes: Iterable[Outcome], outputs: Iterable[Output]
) -> StepRecord:
    batch, load = flight.batch, flight.load
    return StepRecord(
        index=index,
        start=flight.start,
        end=end,
        layout="padded" if batch.rectangle else "ragged",
        spans=tuple(_span_record(span) for span in batch.spans),
        held=tuple(sequence.name for sequence in batch.held),
        events=tuple(EventRecord(event.kind, event.sequence.name, event.reason) for event in batch.events),
        computed_tokens=batch.computed_tokens,
        useful_tokens=batch.useful_tokens,
        context_tokens=batch.context_tokens,
        swapped_out=len(batch.moves.swap_out),
        swapped_in=len(batch.moves.swap_in),
        copied=len(batch.moves.copies),
        waiting=load.waiting,
        running=load.running,
        swapped=load.swapped,
        reserved_tokens=load.reserved,
        filled_tokens=load.filled,
        sampled=tuple((outcome.sequence.name, len(outcome.token_ids)) for outcome in outcomes if outcome.token_ids),
        delivered=tuple((output.sequence, len(output.token_ids)) for output in outputs if output.token_ids),
        finished=tuple((output.sequence, output.finish_reason) for output in outputs if output.finish_reason),
    )


def _span_record(span: Span) -> SpanRecord:
    prompt = max(0, min(span.end, span.sequence.prompt_length) - span.start)
    return SpanRecord(span.sequence.name, span.start, span.length, span.samples, prompt)
