"""Numbers of a document -> pixels of a chart, most often with a logarithmic axis of errors.

Errors of exactly 0 are on the lower edge, a decade below the other errors. Errors that are not
finite are in a band above them. The names of nodes are upright below the axis, as many as fit. The
nodes of findings are named first, then the first failing node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from subgraph.iterables import flatten
from subgraph.text import omit_middle
from subgraph.types import StringMap, frozen

# Sizes in pixels.
WIDTH = 720.0
HEIGHT = 250.0
LEFT = 58.0
RIGHT = 14.0
BOTTOM = 34.0
TOP = 12.0
TOP_WITH_MARKS = 40.0  # the room above the curve for the numbers of findings
NAMES_HEIGHT = 112.0  # the room for the names below the axis
MIN_NAME_GAP = 24.0  # between two names; letters are larger on a phone
MIN_MARK_GAP = 16.0  # between two numbers of findings in one row

MAX_NAME_LENGTH = 17  # characters
MAX_DECADES = 16  # below the largest error; smaller errors are on the lower edge
MAX_LABELS = 8  # labels of an axis
MAX_TITLES = 400  # failing points with a name
MARK_ROWS = 3  # rows for the numbers of findings


class Point(NamedTuple):
    """One value of a curve. A point without an error is omitted; `name` is its title."""

    x: float
    error: float | None
    status: str
    name: str


class Label(NamedTuple):
    """A label on an axis, at `at` pixels along it; `title`: the full name of a short label."""

    at: float
    label: str
    title: str = ""


class DrawnPoint(NamedTuple):
    """A point in pixels; one that fails shows its name and error."""

    x: float
    y: float
    name: str
    error: float
    fails: bool


class Mark(NamedTuple):
    """A finding's band, with its number above in one of `MARK_ROWS` rows.

    `hidden`: the band has points, and none of them fails.
    """

    number: int
    x: float
    width: float
    middle: float
    row: int
    hidden: bool


@frozen
class Paths:
    """SVG paths of a chart.

    Attributes:
        line: The curve.
        dots: The points that do not fail.
        failing: The points that fail, beyond the first `MAX_TITLES`.
    """

    line: str
    dots: str
    failing: str


@frozen
class Chart:
    """Pixels and SVG paths.

    Attributes:
        strange: The y of the band for errors that are not finite; None without such errors.
        names: The names of nodes, below the axis.
        note: The lines of text in the chart.
        words: The label of the chart (`label`) and that of the x axis (`x`).
    """

    levels: list[Label]
    ends: list[Label]
    names: list[Label]
    paths: Paths
    titled: list[DrawnPoint]
    marks: list[Mark]
    words: StringMap
    top: float
    strange: float | None
    height: float = HEIGHT
    note: Sequence[str] = ()
    width: ClassVar[float] = WIDTH
    left: ClassVar[float] = LEFT
    right: ClassVar[float] = WIDTH - RIGHT
    bottom: ClassVar[float] = HEIGHT - BOTTOM

    @property
    def hidden(self) -> list[int]:
        """Numbers of the findings in whose bands this run has no failing point."""
        return [mark.number for mark in self.marks if mark.hidden]


class _Axis(NamedTuple):
    """An axis in pixels: the value `low` is at `begin`, and `high` is `room` pixels from there."""

    low: float
    high: float
    begin: float
    room: float

    def locate(self, value: float) -> float:
        """Return the pixel of a value; the middle of an axis with one value."""
        span = self.high - self.low
        return round(self.begin + self.room * ((value - self.low) / span if span > 0 else 0.5), 1)


def _draw_points(
    points: Sequence[Point], x_axis: _Axis, locate_error: Callable[[float], float]
) -> list[DrawnPoint]:
    return [
        DrawnPoint(x_axis.locate(p.x), locate_error(p.error), p.name, p.error, p.status == "fail")
        for p in points
        if p.error is not None
    ]


def _make_x_axis(xs: Sequence[float]) -> _Axis:
    return _Axis(min(xs, default=0.0), max(xs, default=0.0), LEFT, WIDTH - LEFT - RIGHT)


def _label_ends(x_axis: _Axis) -> list[Label]:
    return [Label(x_axis.locate(x), f"{x:g}") for x in dict.fromkeys((x_axis.low, x_axis.high))]


def _format_path(places: Iterable[tuple[float, float]]) -> str:
    steps = [f"{x:g} {y:g}" for x, y in places]
    return f"M{' L'.join(steps)}" if steps else ""


def _format_dots(drawn: Iterable[DrawnPoint]) -> str:
    return " ".join(f"M{d.x:g} {d.y:g}h0" for d in drawn)


def make_log_chart(
    points: Sequence[Point], marks: Sequence[Sequence[float]], words: StringMap
) -> Chart:
    """Return a chart of errors over x on a logarithmic axis, with the bands of findings.

    Args:
        points: The errors; those that fail are drawn apart.
        marks: The x values of each finding; empty for a finding that has no band.
        words: The labels of the chart (`label`) and of its x axis (`x`).
    """
    numbers = [p.error for p in points if p.error is not None]
    low, high = find_decades([n for n in numbers if math.isfinite(n) and n > 0])
    floor = ""
    if any(0 < n < 10.0**low for n in numbers):
        floor = f"≤1e{low}"
    elif 0.0 in numbers:
        floor = "0"
    bottom = low - bool(floor)
    strange = any(not math.isfinite(n) for n in numbers)
    marks_bottom = TOP_WITH_MARKS if any(marks) else TOP
    top = marks_bottom + (22 if strange else 0)
    x_axis = _make_x_axis([*(p.x for p in points), *flatten(marks)])
    axis = _Axis(bottom, high, HEIGHT - BOTTOM, top + BOTTOM - HEIGHT)

    def locate_error(value: float) -> float:
        if not math.isfinite(value):
            return marks_bottom + 6
        level = math.log10(value) if value > 0 else bottom
        return axis.locate(min(max(level, bottom), high))

    drawn = _draw_points(points, x_axis, locate_error)
    failing = [d for d in drawn if d.fails]
    spans = [[x_axis.locate(x) for x in mark] for mark in marks]
    names = _label_points(drawn, spans)
    step = math.ceil((high - bottom) / MAX_LABELS)
    levels = [Label(axis.locate(d), f"1e{d}") for d in range(high, low - 1, -step)]
    return Chart(
        levels=[*levels, *([Label(axis.locate(bottom), floor)] if floor else ())],
        ends=_label_ends(x_axis),
        names=names,
        paths=Paths(
            line=_format_path(d[:2] for d in drawn),
            dots=_format_dots(d for d in drawn if not d.fails),
            failing=_format_dots(failing[MAX_TITLES:]),
        ),
        titled=failing[:MAX_TITLES],
        marks=_make_marks(spans, drawn),
        words=words,
        top=marks_bottom,
        strange=marks_bottom + 6 if strange else None,
        height=HEIGHT + (NAMES_HEIGHT if names else 0),
    )


def make_linear_chart(points: Sequence[Point], marked: Sequence[float], words: StringMap) -> Chart:
    """Return a chart on a linear axis, whose curve has the largest number at each x.

    Args:
        points: The finite numbers; those that fail are drawn apart.
        marked: The x values of bands.
        words: The labels, as in `make_log_chart`.
    """
    values = [p.error for p in points if p.error is not None] or [0.0]
    x_axis = _make_x_axis([p.x for p in points])
    axis = _Axis(min(values), max(values), HEIGHT - BOTTOM, TOP_WITH_MARKS + BOTTOM - HEIGHT)
    drawn = _draw_points(points, x_axis, axis.locate)
    highest: dict[float, float] = {}
    for point in drawn:
        highest[point.x] = min(point.y, highest.get(point.x, point.y))
    levels = dict.fromkeys((axis.high, (axis.low + axis.high) / 2, axis.low))
    return Chart(
        levels=[Label(axis.locate(value), f"{value:.4g}") for value in levels],
        ends=_label_ends(x_axis),
        names=[],
        paths=Paths(
            _format_path(sorted(highest.items())), _format_dots(d for d in drawn if not d.fails), ""
        ),
        titled=[d for d in drawn if d.fails],
        marks=[
            Mark(round(x), x_axis.locate(x) - 3, 6, x_axis.locate(x), 0, hidden=False)
            for x in marked
        ],
        words=words,
        top=TOP_WITH_MARKS,
        strange=None,
    )


def _label_points(drawn: Sequence[DrawnPoint], spans: Sequence[Sequence[float]]) -> list[Label]:
    """Return labels of points, `MIN_NAME_GAP` apart.

    The ends of findings come first, then the first failing point, the ends of the curve, and as
    many others as fit.
    """
    # The last of several tensors of a node.
    last_by_x = {d.x: d for d in drawn if d.name}
    ends = set(flatten((min(span), max(span)) for span in spans if span))
    wanted = [x for x in last_by_x if x in ends]
    wanted += [x for x, d in last_by_x.items() if d.fails][:1]
    wanted += [*list(last_by_x)[:1], *list(last_by_x)[-1:], *last_by_x]
    labeled_xs: list[float] = []
    for x in wanted:
        if all(abs(x - label_x) >= MIN_NAME_GAP for label_x in labeled_xs):
            labeled_xs.append(x)
    return [
        Label(x, omit_middle(last_by_x[x].name, MAX_NAME_LENGTH), last_by_x[x].name)
        for x in sorted(labeled_xs)
    ]


def find_decades(values: Sequence[float]) -> tuple[int, int]:
    """Find the powers of ten that enclose positive values, at least one apart.

    >>> find_decades([3e-7, 0.02])
    (-7, -1)
    """
    if not values:
        return -7, 0
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return max(low, high - MAX_DECADES), high


def _make_marks(spans: Sequence[Sequence[float]], drawn: Sequence[DrawnPoint]) -> list[Mark]:
    """Return each finding's band, at least 4 pixels wide.

    Numbers that would touch are in different rows. `spans`: the x values of each finding, in
    pixels.
    """
    bands = [(number, min(span) - 2, max(span) + 2) for number, span in enumerate(spans, 1) if span]
    ends = [-math.inf] * MARK_ROWS
    marks = []
    for number, left, right in sorted(bands, key=lambda band: (band[1] + band[2]) / 2):
        middle = (left + right) / 2
        row = next((k for k, end in enumerate(ends) if middle - end >= MIN_MARK_GAP), MARK_ROWS - 1)
        ends[row] = middle
        inside = [d.fails for d in drawn if left <= d.x <= right]
        hidden = bool(inside) and not any(inside)
        marks.append(Mark(number, left, round(right - left, 1), middle, row, hidden))
    return sorted(marks)
