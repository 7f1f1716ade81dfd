"""Numbers of the document -> pixels of a chart. Errors stand on a logarithmic axis, one line per
decade.

Errors of exactly 0 stand on the lower edge, a decade below the others, errors that are not finite
in a band above them. Names stand below the axis, upright, those of findings and of the first
failing points before others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from subgraph.text import short

WIDTH = 720.0
HEIGHT = 250.0
LEFT = 58.0
RIGHT = 14.0
BOTTOM = 34.0
NAMED = 112.0  # more room below for names
NAME_GAP = 24.0  # pixels between two of them; letters are larger on a phone
NAME_LENGTH = 17  # characters of a name
TOP, MARKED = 12.0, 40.0  # room above: without and with numbers of findings
DEEPEST = 16  # decades shown below the highest; what is smaller stands on the floor
MAX_LABELS = 8  # on an axis
MAX_TITLES = 400  # failing points with a name
STAGGER = 16.0  # pixels between numbers of findings; nearer ones stand in rows
MARK_ROWS = 3


class Point(NamedTuple):
    """One value: a number, or "nan", "inf", "-inf"; None is left out. `name` is shown as its
    title."""

    x: float
    error: float | None
    status: str
    name: str


class Label(NamedTuple):
    """A label on an axis, at `at` pixels along it; `title`: the whole of a name that is cut."""

    at: float
    label: str
    title: str = ""


class TitledPoint(NamedTuple):
    """A failing point that shows its name and error."""

    x: float
    y: float
    name: str
    error: float


class Mark(NamedTuple):
    """A finding's band, with its number above in one of `MARK_ROWS` rows; `hidden`: no point in it
    fails."""

    number: int
    x: float
    width: float
    middle: float
    row: int
    hidden: bool


@dataclass(frozen=True)
class Chart:
    """Pixels and SVG paths.

    Attributes:
        strange: height of the band for errors that are not finite; None without such errors.
        names: of nodes, below the axis. said: lines written into the chart.
        line: the curve. dots: points that do not fail. failing: those that fail, beyond the first
            `MAX_TITLES`.
        words: the chart's own label (`label`) and that of the x axis (`x`).
    """

    levels: list[Label]
    ends: list[Label]
    names: list[Label]
    line: str
    dots: str
    failing: str
    titled: list[TitledPoint]
    marks: list[Mark]
    words: Mapping[str, str]
    top: float
    strange: float | None
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT - BOTTOM
    said: Sequence[str] = ()

    @property
    def hidden(self) -> list[int]:
        """Numbers of findings in whose place this run shows no wrong tensor."""
        return [mark.number for mark in self.marks if mark.hidden]


def chart(
    points: Sequence[Point], marks: Sequence[Sequence[float]], words: Mapping[str, str]
) -> Chart:
    """A curve of errors over x, the failing points apart, and the spans of findings marked by
    number.

    `marks`: the x values of each finding; empty for a finding without a place.
    """
    numbers = [p.error for p in points if p.error is not None]
    low, high = decades([n for n in numbers if math.isfinite(n) and n > 0])
    zeros = 0.0 in numbers
    below = any(0 < n < 10.0**low for n in numbers)
    if below:
        floor = f"≤1e{low}"
    elif zeros:
        floor = "0"
    else:
        floor = ""
    low -= bool(floor)
    strange = any(not math.isfinite(n) for n in numbers)
    edge = [p.x for p in points] + list(chain.from_iterable(marks)) or [0.0]
    first = min(edge)
    last = max(edge)
    roof = MARKED if any(marks) else TOP
    top = roof + (22 if strange else 0)

    def across(x: float) -> float:
        return round(
            LEFT + (WIDTH - LEFT - RIGHT) * ((x - first) / (last - first) if last > first else 0.5),
            1,
        )

    def down(value: float) -> float:
        if not math.isfinite(value):
            return roof + 6
        return at(math.log10(value) if value > 0 else low)

    def at(level: float) -> float:
        share = (min(max(level, low), high) - low) / (high - low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - top), 1)

    drawn = [
        (p, TitledPoint(across(p.x), down(p.error), p.name, p.error))
        for p in points
        if p.error is not None
    ]
    failing = [t for p, t in drawn if p.status == "fail"]
    step = math.ceil((high - low) / MAX_LABELS)
    return Chart(
        levels=[
            *(Label(at(d), f"1e{d}") for d in range(high, low + bool(floor) - 1, -step)),
            *([Label(at(low), floor)] if floor else ()),
        ],
        ends=[Label(across(x), f"{x:g}") for x in dict.fromkeys((first, last))],
        names=(names := _names([(t.x, p) for p, t in drawn], marks)),
        line=" ".join(f"{'L' if k else 'M'}{t.x:g} {t.y:g}" for k, (_, t) in enumerate(drawn)),
        dots=" ".join(f"M{t.x:g} {t.y:g}h0" for p, t in drawn if p.status != "fail"),
        failing=" ".join(f"M{t.x:g} {t.y:g}h0" for t in failing[MAX_TITLES:]),
        titled=failing[:MAX_TITLES],
        marks=_marks(
            [[across(x) for x in mark] for mark in marks],
            [t.x for t in failing],
            [t.x for _, t in drawn],
        ),
        words=words,
        top=roof,
        strange=roof + 6 if strange else None,
        height=HEIGHT + (NAMED if names else 0),
    )


def linear(points: Sequence[Point], marked: Sequence[float], words: Mapping[str, str]) -> Chart:
    """The highest of finite numbers at each x on a plain axis, the failing points apart; with bands
    at some x."""
    drawn = [(p, p.error) for p in points if p.error is not None]
    values = [value for _, value in drawn] or [0.0]
    (low, high), (first, last) = (
        (min(values), max(values)),
        (min(p.x for p in points), max(p.x for p in points)),
    )

    def at(value: float, begin: float, end: float, start: float, room: float) -> float:
        return round(start + room * ((value - begin) / (end - begin) if end > begin else 0.5), 1)

    def down(value: float) -> float:
        return at(value, low, high, HEIGHT - BOTTOM, MARKED + BOTTOM - HEIGHT)

    def across(x: float) -> float:
        return at(x, first, last, LEFT, WIDTH - LEFT - RIGHT)

    places = [(p, TitledPoint(across(p.x), down(value), p.name, value)) for p, value in drawn]
    highest: dict[float, float] = {}
    for _, t in places:
        highest[t.x] = min(t.y, highest.get(t.x, t.y))
    return Chart(
        levels=[
            Label(down(value), f"{value:.4g}")
            for value in dict.fromkeys((high, (low + high) / 2, low))
        ],
        ends=[Label(across(x), f"{x:g}") for x in dict.fromkeys((first, last))],
        names=[],
        line=" ".join(
            f"{'L' if k else 'M'}{x:g} {y:g}" for k, (x, y) in enumerate(sorted(highest.items()))
        ),
        dots=" ".join(f"M{t.x:g} {t.y:g}h0" for p, t in places if p.status != "fail"),
        failing="",
        titled=[t for p, t in places if p.status == "fail"],
        marks=[Mark(round(x), across(x) - 3, 6, across(x), 0, hidden=False) for x in marked],
        words=words,
        top=MARKED,
        strange=None,
    )


def _names(points: Sequence[tuple[float, Point]], marks: Sequence[Sequence[float]]) -> list[Label]:
    """Names of points, `NAME_GAP` apart: of findings, of the first that fails, of the ends, then as
    many as fit."""
    known = {x: p for x, p in points if p.name}  # of several tensors of a node the last
    ends = {x for mark in marks if mark for x in (min(mark), max(mark))}
    wanted = [x for x, p in known.items() if p.x in ends]
    wanted += [x for x, p in known.items() if p.status == "fail"][:1]
    wanted += [*list(known)[:1], *list(known)[-1:], *known]
    taken: list[float] = []
    for x in wanted:
        if all(abs(x - other) >= NAME_GAP for other in taken):
            taken.append(x)
    return [Label(x, short(known[x].name, NAME_LENGTH), known[x].name) for x in sorted(taken)]


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that enclose positive values, at least one apart.

    >>> decades([3e-7, 0.02])
    (-7, -1)
    """
    if not values:
        return -7, 0
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return max(low, high - DEEPEST), high


def _marks(
    spans: Sequence[Sequence[float]], failing: Sequence[float], seen: Sequence[float]
) -> list[Mark]:
    """Each finding's band, at least 4 pixels wide; numbers that would touch stand in rows.

    `failing`, `seen`: points, in pixels.
    """
    bands = [(number, min(span) - 2, max(span) + 2) for number, span in enumerate(spans, 1) if span]
    ends = [-math.inf] * MARK_ROWS
    marks = []
    for number, left, right in sorted(bands, key=lambda band: (band[1] + band[2]) / 2):
        middle = (left + right) / 2
        row = next((k for k, end in enumerate(ends) if middle - end >= STAGGER), MARK_ROWS - 1)
        ends[row] = middle
        hidden = any(left <= x <= right for x in seen) and not any(
            left <= x <= right for x in failing
        )
        marks.append(Mark(number, left, round(right - left, 1), middle, row, hidden))
    return sorted(marks)
