"""A picture of one warp's access: its threads against the addresses they touch. It needs matplotlib.

Straight and narrow is good: 32 neighbouring threads that read 32 neighbouring floats fill four sectors. A fan of lines
moves a sector for each thread. For shared memory the lines go to the 32 banks, and a bank's turns stand beside it.
"""

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from kernels.lab.accesses import Accesses
from kernels.lab.block import WARP_SIZE
from kernels.lab.memory import Space
from kernels.lab.report import KINDS, Report
from kernels.lab.source import LabError
from kernels.lab.traffic import BANK_BYTES, BANKS, SECTOR_BYTES

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ModuleNotFoundError:
    raise LabError("pictures need matplotlib; install it: pip install matplotlib") from None

WIDTH, HEIGHT, DPI = 8.0, 3.2, 110
INK, FAINT, GOOD, BAD, MOVED = "#1f2933", "#e3e8ed", "#0f766e", "#b45309", "#f0c48a"
MOST_SECTORS = 64
"""Sectors from the first to the last up to which those between are drawn too."""


class Picture(Figure):
    """A figure that a notebook shows when it is a cell's last expression, and that ``savefig`` writes to a file."""

    def __init__(self) -> None:
        super().__init__(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white", layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        with BytesIO() as file:
            self.savefig(file, format="png")
            return file.getvalue()


def picture(report: Report, line: int, array: str | None = None, visit: int = 0) -> Picture:
    """The access that one warp makes in a line, to ``array`` or to the first one there.

    ``visit`` counts the accesses of whole warps in this line: the warp of block 0 that comes first, then the others.
    Raises LabError for a line that touches no such array, and for a visit that no warp makes.
    """
    access = warp_access(report, line, array, visit)
    figure = Picture()
    axes = figure.add_subplot()
    draw = _draw_banks if access.space[0] == Space.SHARED else _draw_sectors
    draw(axes, access)
    name = report.segment_names[access.segment[0]]
    warp, block = int(access.warp[0]), int(access.block[0])
    verb = f"{KINDS[access.kind[0]]} of {name}, line {line}, warp {warp} of block {block}"
    axes.set_title(f"{verb}: {_verdict(access)}", loc="left", fontsize=10, color=INK)
    return figure


def warp_access(report: Report, line: int, array: str | None = None, visit: int = 0) -> Accesses:
    """The rows of the log that one warp's access in a line left, as ``picture`` chooses them."""
    log = report.accesses
    names = np.array(report.segment_names)
    here = (log.line == line) & (log.space <= Space.SHARED)
    if array is not None:
        here &= names[log.segment] == array if len(log) else here
    rows = log.take(np.flatnonzero(here))
    if not len(rows):
        raise LabError(f"line {line} of {report.kernel} touches no {array or 'array in global or shared memory'}")
    rows = rows.take((rows.segment == rows.segment[0]) & (rows.place == rows.place[0]) & (rows.kind == rows.kind[0]))
    numbers = rows.warp_accesses(np.arange(len(rows)))
    visits = list(dict.fromkeys(numbers.tolist()))
    if not 0 <= visit < len(visits):
        raise LabError(f"warps come {len(visits)} times to line {line}; choose a visit from 0 to {len(visits) - 1}")
    return rows.take(numbers == visits[visit])


def _verdict(access: Accesses) -> str:
    if access.space[0] == Space.SHARED:
        turns = max(_turns(access))
        return "one turn" if turns == 1 else f"{turns} turns"
    moved = len(np.unique(access.address // SECTOR_BYTES))
    ideal = -(-len(np.unique(access.cell)) * int(access.itemsize[0]) // SECTOR_BYTES)
    return f"{moved} sectors moved, {ideal} would do"


def _draw_sectors(axes: Axes, access: Accesses) -> None:
    """Threads above, sectors below: dark what they ask for, light what moves with it."""
    touched = np.unique(access.address // SECTOR_BYTES)
    shown = np.arange(touched[0], touched[-1] + 1) if touched[-1] - touched[0] < MOST_SECTORS else touched
    width = WARP_SIZE / len(shown)
    for number, sector in enumerate(shown):
        axes.add_patch(_box(number * width, width, MOVED if sector in touched else FAINT))
    sector, offset = np.divmod(access.address, SECTOR_BYTES)
    starts = (np.searchsorted(shown, sector) + offset / SECTOR_BYTES) * width
    element = int(access.itemsize[0]) / SECTOR_BYTES * width
    for start in np.unique(starts):
        axes.add_patch(_box(start, element, GOOD))
    _threads(axes, access, (starts + element / 2).tolist())
    gaps = "" if len(shown) == touched[-1] - touched[0] + 1 else ", with the gaps between them left out"
    _labels(axes, f"{len(touched)} sectors of {SECTOR_BYTES} bytes: dark is asked for, light moves with it{gaps}")


def _draw_banks(axes: Axes, access: Accesses) -> None:
    """Threads above, banks below with the number of different words that each is asked for."""
    turns = _turns(access)
    for bank, asked in enumerate(turns):
        axes.add_patch(_box(bank, 1, (GOOD if asked == 1 else BAD) if asked else FAINT))
        if asked > 1:
            axes.text(bank + 0.5, -0.09, f"{asked}x", ha="center", va="top", fontsize=8, color=BAD)
    _threads(axes, access, (access.address // BANK_BYTES % BANKS + 0.5).tolist())
    _labels(axes, f"{BANKS} banks, {BANK_BYTES} bytes wide")


def _turns(access: Accesses) -> list[int]:
    """Different words that each bank is asked for."""
    words = np.unique(access.address // BANK_BYTES)
    return [int(turns) for turns in np.bincount(words % BANKS, minlength=BANKS)]


def _box(left: float, width: float, colour: str) -> Rectangle:
    return Rectangle((left, -0.06), width, 0.12, facecolor=colour, edgecolor="white", linewidth=0.8)


def _threads(axes: Axes, access: Accesses, ends: Sequence[float]) -> None:
    """The warp's threads as dots, each with a line to where it goes."""
    for thread, end in zip((access.thread % WARP_SIZE + 0.5).tolist(), ends, strict=True):
        axes.plot([thread, end], [1, 0.06], color=INK, linewidth=0.8, alpha=0.7)
    axes.scatter(access.thread % WARP_SIZE + 0.5, np.ones(len(access)), s=26, color=INK, zorder=3)


def _labels(axes: Axes, below: str) -> None:
    axes.set_xlim(-0.3, WARP_SIZE + 0.3)
    axes.set_ylim(-0.22, 1.14)
    axes.set_xticks([lane + 0.5 for lane in range(0, WARP_SIZE, 4)], map(str, range(0, WARP_SIZE, 4)))
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8, colors=INK)
    axes.set_yticks([])
    axes.set_xlabel(below, fontsize=9, color=INK)
    for side in axes.spines.values():
        side.set_visible(False)
