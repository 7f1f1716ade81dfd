"""Numbers of the document -> pixels of a chart. Errors stand on a logarithmic axis, one line per decade.

What is exactly 0 stands on the floor, what is not finite in a band of its own above; neither is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT = 720.0, 250.0
LEFT, RIGHT, BOTTOM = 58.0, 14.0, 34.0
TOP, MARKED = 12.0, 40.0  # room above: without and with numbers of findings
DEEPEST = 16  # decades shown below the highest; what is smaller stands on the floor
MOST_LABELS = 8  # on an axis
MOST_TITLES = 400  # failing points that say their name
STAGGER = 16.0  # pixels: marks that are nearer stand one above the other
MARK_ROWS = 3


class Point(NamedTuple):
    """One value: `name` and `text` for its title."""

    x: float
    error: Any
    status: str
    name: str


def chart(points: Sequence[Point], marks: Sequence[Sequence[float]], words: Mapping[str, str]) -> dict[str, Any]:
    """A curve of errors over x, the failing points apart, and the spans of findings marked by number.

    `marks`: the x values of each finding; empty for one without a place. `words`: `x` and `label`.
    """
    numbers = [float(p.error) for p in points if p.error is not None]
    low, high = decades([n for n in numbers if math.isfinite(n) and n > 0])
    strange = any(not math.isfinite(n) for n in numbers)
    edge = [p.x for p in points] + [x for mark in marks for x in mark] or [0.0]
    first, last = min(edge), max(edge)
    roof = MARKED if any(marks) else TOP
    top = roof + (22 if strange else 0)

    def across(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * ((x - first) / (last - first) if last > first else 0.5), 1)

    def down(error: Any) -> float:
        value = float(error)
        if not math.isfinite(value):
            return roof + 6
        return at(math.log10(value) if value > 0 else low)

    def at(level: float) -> float:
        share = (min(max(level, low), high) - low) / (high - low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - top), 1)

    drawn = [(p, across(p.x), down(p.error)) for p in points if p.error is not None]
    failing = [(p, x, y) for p, x, y in drawn if p.status == "fail"]
    step = math.ceil((high - low) / MOST_LABELS)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": roof,
        "bottom": HEIGHT - BOTTOM,
        "strange": roof + 6 if strange else None,
        "levels": [{"y": at(d), "label": f"1e{d}"} for d in range(high, low - 1, -step)],
        "ends": [{"x": across(x), "label": f"{x:g}"} for x in dict.fromkeys((first, last))],
        "line": " ".join(f"{'L' if k else 'M'}{x:g} {y:g}" for k, (_, x, y) in enumerate(drawn)),
        "dots": " ".join(f"M{x:g} {y:g}h0" for p, x, y in drawn if p.status != "fail"),
        "failing": " ".join(f"M{x:g} {y:g}h0" for _, x, y in failing[MOST_TITLES:]),
        "titled": [{"x": x, "y": y, "name": p.name, "error": p.error} for p, x, y in failing[:MOST_TITLES]],
        "marks": _marks([[across(x) for x in mark] for mark in marks]),
        "words": words,
    }


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that enclose positive values, at least one apart.

    >>> decades([3e-7, 0.02])
    (-7, -1)
    """
    if not values:
        return -7, 0
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return max(low, high - DEEPEST), high


def _marks(spans: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Each finding's band, at least 4 pixels wide; numbers that would touch stand in rows."""
    bands = []
    for number, span in enumerate(spans, 1):
        if span:
            left, right = min(span) - 2, max(span) + 2
            bands.append({"number": number, "x": left, "width": round(right - left, 1), "middle": (left + right) / 2})
    rows: list[float] = [-math.inf] * MARK_ROWS
    for band in sorted(bands, key=lambda b: b["middle"]):
        row = next((k for k, end in enumerate(rows) if band["middle"] - end >= STAGGER), MARK_ROWS - 1)
        rows[row] = band["middle"]
        band["row"] = row
    return bands


def bars(histogram: Mapping[str, Any]) -> dict[str, Any]:
    """Horizontal bars, largest differences first; their lengths are logarithmic, since most elements are equal."""
    rows = [("not finite", histogram["not_finite"])] if histogram["not_finite"] else []
    rows += [(f"1e{b['decade']} …", b["count"]) for b in sorted(histogram["bins"], key=lambda b: -b["decade"])]
    rows.append(("equal", histogram["equal"]))
    most = max(math.log10(1 + max(n, 0)) for _, n in rows) or 1.0
    room, height = 190.0, 20.0  # the page may be 400 pixels wide
    return {
        "width": 350.0,
        "height": height * len(rows) + 4,
        "rows": [
            {"label": label, "count": n, "y": k * height, "length": round(room * math.log10(1 + max(n, 0)) / most, 1)}
            for k, (label, n) in enumerate(rows)
        ],
    }
