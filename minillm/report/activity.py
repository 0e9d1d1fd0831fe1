"""What every pass did with every sequence, and with its tokens: what timelines and pages draw."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from minillm.metrics import CACHE_LOSSES, PREEMPTIONS, branch_names
from minillm.records import Recording, SpanRecord, StepRecord


class Activity(Enum):
    """What a pass did with a sequence, in the words of the legends. Padding is nobody's, and tokens are spent on it.

    A prompt counts where it ends; what comes before its last pass is a chunk. Recompute is a span with tokens that a
    preemption or a reset had dropped. A held row is finished and computed all the same; an answer held back is
    finished, and its client does not have it. Where passes overlap, a sequence is in flight while others enter the
    pipeline behind its own pass.
    """

    PREFILL = "prefill"
    CHUNK = "chunk"
    DECODE = "decode"
    RECOMPUTE = "recompute"
    HELD = "held row"
    PADDING = "padding"
    HELD_BACK = "held back"
    SWAPPED = "swapped"
    WAITING = "waiting"
    IN_FLIGHT = "in flight"


MOMENTS = (*sorted(PREEMPTIONS), "swapped in")
"""Events that pictures mark: the ways to lose a place, and the way back."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Successive passes that did the same with a sequence.

    row      the sequence, as an index into ``Activities.sequences``
    first    the first pass, as an index into the recording's steps
    passes   how many
    start    the first token computed
    tokens   tokens of each pass, each beginning where the last one ended; 0 where nothing was computed
    padding  tokens that each pass computed beside them to fill the sequence's row
    """

    row: int
    first: int
    passes: int
    activity: Activity
    start: int = 0
    tokens: int = 0
    padding: int = 0

    @property
    def last(self) -> int:
        """The pass after the last one."""
        return self.first + self.passes

    @property
    def end(self) -> int:
        """The token after the last one computed."""
        return self.start + self.passes * self.tokens

    def absorbs(self, other: "Stretch") -> bool:
        """Whether the other does the same and begins, in passes and in tokens, where this one ends."""
        return (
            other.first == self.last
            and other.start == self.end
            and (self.activity, self.tokens, self.padding) == (other.activity, other.tokens, other.padding)
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of ``MOMENTS``: in which pass, to which sequence (an index), and what."""

    place: int
    row: int
    kind: str


@dataclass(frozen=True, slots=True)
class Activities:
    """All that a run did. A sequence has no stretch before it arrives and after it ends."""

    sequences: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    moments: tuple[Moment, ...]


def activities(recording: Recording) -> Activities:
    """Stretches by sequence and in order, and moments in order, of all requests that were not refused."""
    arrivals = {
        name: request.arrival for request in recording.requests if not request.refused for name in branch_names(request)
    }
    rows = {name: row for row, name in enumerate(arrivals)}
    computed = _computed(recording.steps, rows)
    moments = _moments(recording.steps, rows)
    starts, ready = [step.start for step in recording.steps], [step.end for step in recording.steps]
    ends = {name: place + 1 for place, step in enumerate(recording.steps) for name, _ in step.finished}
    stretches: list[Stretch] = []
    for name, row in rows.items():
        away = _Away(row, [moment for moment in moments if moment.row == row], starts, ready)
        life = range(bisect_left(starts, arrivals[name]), ends.get(name, len(starts)))
        stretches += _merged(_without_gaps(computed[name], life, away, name in ends))
    return Activities(tuple(rows), tuple(stretches), moments)


def pass_tokens(step: StepRecord, stretches: Iterable[Stretch]) -> Mapping[Activity, int]:
    """Tokens that a pass computed, by what they were for. ``stretches`` are those that the pass is in."""
    tokens: dict[Activity, int] = defaultdict(int)
    for stretch in stretches:
        tokens[stretch.activity] += stretch.tokens
    tokens[Activity.HELD] = len(step.held) * _width(step)
    tokens[Activity.PADDING] = step.computed_tokens - step.useful_tokens - tokens[Activity.HELD]
    return tokens


def by_pass(found: Activities, passes: int) -> list[list[Stretch]]:
    """The stretches that each pass is in."""
    places: list[list[Stretch]] = [[] for _ in range(passes)]
    for stretch in found.stretches:
        for place in range(stretch.first, stretch.last):
            places[place].append(stretch)
    return places


def spread(count: int, most: int) -> list[int]:
    """At most so many of ``count`` places, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / max(1, most - 1)) for place in range(most)]


def _computed(steps: Iterable[StepRecord], rows: Mapping[str, int]) -> Mapping[str, list[Stretch]]:
    """Each sequence's passes through the model, one stretch per pass."""
    found: dict[str, list[Stretch]] = defaultdict(list)
    losses = _Losses()
    for place, step in enumerate(steps):
        losses.note(step)
        width = _width(step)
        for span in step.spans:
            padding = max(0, width - span.length)
            kind = losses.activity(span)
            found[span.sequence].append(Stretch(rows[span.sequence], place, 1, kind, span.start, span.length, padding))
        for name in step.held:
            found[name].append(Stretch(rows[name], place, 1, Activity.HELD, padding=width))
    return found


def _width(step: StepRecord) -> int:
    """Tokens of a row of a padded pass; 0 where rows are not padded."""
    rows = len(step.spans) + len(step.held)
    return step.computed_tokens // rows if rows and step.layout == "padded" else 0


@dataclass(slots=True)
class _Losses:
    """Up to where each sequence had been computed, and up to where that was when its cache was dropped."""

    reached: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lost: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def note(self, step: StepRecord) -> None:
        for event in step.events:
            if event.kind in CACHE_LOSSES:
                self.lost[event.sequence] = self.reached[event.sequence]

    def activity(self, span: SpanRecord) -> Activity:
        """What the span is; it counts as computed from here on."""
        again = span.start < self.lost[span.sequence]
        self.reached[span.sequence] = max(self.reached[span.sequence], span.start + span.length)
        if again:
            return Activity.RECOMPUTE
        if not span.samples:
            return Activity.CHUNK
        return Activity.PREFILL if span.prompt else Activity.DECODE


def _moments(steps: Iterable[StepRecord], rows: Mapping[str, int]) -> tuple[Moment, ...]:
    return tuple(
        Moment(place, rows[event.sequence], event.kind)
        for place, step in enumerate(steps)
        for event in step.events
        if event.kind in MOMENTS
    )


@dataclass(frozen=True, slots=True)
class _Away:
    """Passes in which a sequence was not computed, as stretches."""

    row: int
    moments: list[Moment]
    starts: list[float]
    ends: list[float]

    def after(self, place: int, last: int) -> Iterator[Stretch]:
        """Behind a pass that computed the sequence: in flight until this has ended, and then as ``between``."""
        back = min(last, max(place + 1, bisect_left(self.starts, self.ends[place])))
        if back > place + 1:
            yield Stretch(self.row, place + 1, back - place - 1, Activity.IN_FLIGHT)
        yield from self.between(back, last)

    def between(self, first: int, last: int) -> Iterator[Stretch]:
        """Swapped from the pass that swapped it out, and waiting otherwise."""
        cuts = sorted({first, *(moment.place for moment in self.moments if first < moment.place < last), last})
        for start, stop in pairwise(cuts):
            yield Stretch(self.row, start, stop - start, self._kind(start))

    def _kind(self, place: int) -> Activity:
        before = [moment.kind for moment in self.moments if moment.place <= place]
        return Activity.SWAPPED if before and before[-1] == "swapped out" else Activity.WAITING

    def held_back(self, first: int, last: int) -> Stretch:
        return Stretch(self.row, first, last - first, Activity.HELD_BACK)


def _without_gaps(computed: list[Stretch], life: range, away: _Away, finished: bool) -> Iterator[Stretch]:
    """The computed passes, and what the sequence did meanwhile. What is not computed at its end is held back."""
    if not computed:
        yield from away.between(life.start, life.stop)
        return
    yield from away.between(life.start, computed[0].first)
    for stretch, following in pairwise(computed):
        yield stretch
        yield from away.after(stretch.first, following.first)
    *_, final = computed
    yield final
    if finished and final.last < life.stop:
        yield away.held_back(final.last, life.stop)
    else:
        yield from away.after(final.first, life.stop)


def _merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    merged: list[Stretch] = []
    for stretch in stretches:
        if merged and merged[-1].absorbs(stretch):
            merged[-1] = replace(merged[-1], passes=merged[-1].passes + stretch.passes)
        else:
            merged.append(stretch)
    return merged
