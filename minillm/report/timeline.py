"""A run drawn in the terminal: a line per request, a column per pass."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from minillm.metrics import PREEMPTIONS, branch_names
from minillm.records import Recording, RequestRecord, SpanRecord, StepRecord
from minillm.report.activity import spread


class Mark(Enum):
    """What a pass did with a sequence: glyph, style and meaning. The first wins where a column holds several.

    A prompt counts where it ends, and what comes before its last pass is a chunk. A held row is finished and computed
    all the same; an answer held back is finished, and its client does not have it.
    """

    PREEMPTED = "!", "bold red", "preempted"
    PREFILL = "P", "bold green", "prompt"
    CHUNK = "p", "green", "chunk"
    DECODE = "-", "cyan", "decode"
    HELD = "x", "magenta", "held row"
    HELD_BACK = ":", "yellow", "held back"
    WAITING = ".", "bright_black", "waiting"
    ABSENT = " ", "", ""

    @property
    def glyph(self) -> str:
        """The character that draws it."""
        return self.value[0]

    @property
    def style(self) -> str:
        """The colour that repeats what the character says."""
        return self.value[1]

    @property
    def meaning(self) -> str:
        """Its words in the legend."""
        return self.value[2]


PRECEDENCE = {mark: place for place, mark in enumerate(Mark)}


@dataclass(frozen=True, slots=True)
class Timeline:
    """Draws a recording as wide as the console allows: several passes share a column where there are too many.

    At most ``max_rows`` sequences are drawn, evenly spread over all.
    """

    recording: Recording
    max_rows: int = 16

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = sequence_marks(self.recording)
        names = list(rows)
        shown = [names[place] for place in spread(len(names), self.max_rows)]
        margin = max(map(len, shown), default=0) + 1
        passes = len(self.recording.steps)
        per_column = max(1, -(-passes // max(1, options.max_width - margin)))
        yield Text(_heading(self.recording.policy, passes, per_column, len(shown), len(rows)), style="bold")
        for name in shown:
            yield _line(name.ljust(margin), compressed(rows[name], per_column))


def legend() -> Text:
    """What the glyphs mean."""
    marks = [mark for mark in Mark if mark.meaning]
    return Text("  ").join(Text.assemble((mark.glyph, mark.style), f" {mark.meaning}") for mark in marks)


def sequence_marks(recording: Recording) -> Mapping[str, Sequence[Mark]]:
    """For each sequence that was not refused, what each step did with it."""
    requests = {name: each for each in recording.requests if not each.refused for name in branch_names(each)}
    rows = {name: [_before(request, step) for step in recording.steps] for name, request in requests.items()}
    for place, step in enumerate(recording.steps):
        for name, mark in _actions(step):
            rows[name][place] = mark
        for name, _ in step.finished:
            _end(rows[name], place + 1)
    return rows


def compressed(marks: Sequence[Mark], per_column: int) -> list[Mark]:
    """One mark for each ``per_column`` steps: the most telling one."""
    columns = range(0, len(marks), per_column)
    return [min(marks[first : first + per_column], key=PRECEDENCE.__getitem__) for first in columns]


def _actions(step: StepRecord) -> Iterator[tuple[str, Mark]]:
    for name in step.held:
        yield name, Mark.HELD
    for span in step.spans:
        yield span.sequence, _span_mark(span)
    for event in step.events:
        if event.kind in PREEMPTIONS:
            yield event.sequence, Mark.PREEMPTED


def _span_mark(span: SpanRecord) -> Mark:
    if not span.samples:
        return Mark.CHUNK
    return Mark.PREFILL if span.prompt else Mark.DECODE


def _before(request: RequestRecord, step: StepRecord) -> Mark:
    return Mark.WAITING if request.arrival <= step.start else Mark.ABSENT


def _end(row: list[Mark], place: int) -> None:
    """Nothing from ``place`` on; what seemed to wait since the last action was held back."""
    row[place:] = [Mark.ABSENT] * (len(row) - place)
    while place and row[place - 1] is Mark.WAITING:
        place -= 1
        row[place] = Mark.HELD_BACK


def _heading(policy: str, passes: int, per_column: int, shown: int, sequences: int) -> str:
    columns = "a column is a pass" if per_column == 1 else f"a column is {per_column} passes"
    rows = f"{sequences} requests" if shown == sequences else f"{shown} of {sequences} requests"
    return f"{policy}: {passes} passes, {columns}; {rows}"


def _line(margin: str, marks: Iterable[Mark]) -> Text:
    return Text.assemble(margin, *((mark.glyph, mark.style) for mark in marks), no_wrap=True, overflow="crop")
