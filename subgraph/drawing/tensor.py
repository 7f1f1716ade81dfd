"""Values of a tensor, of the reference and of a candidate → the cells of a heat map, a histogram
and a scatter as SVG, the worst elements.

Reference and candidate have one scale, so that equal values look alike; the difference has its own.
Complexity: a few passes over the values.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from subgraph.types import Array

SHOWN = 112  # cells of `map_cells`, along each side
BINS = 48  # of the histogram, and of the scatter along each side
PLOT = 240.0  # pixels of a plot's side
LEFT = 8.0
TOP = 20.0
BOTTOM = 18.0
WORST = 10
SAMPLED = 1 << 20  # elements in a histogram or scatter; of larger tensors each k-th
ROW = 32  # elements of a vector in one row of its map

STYLE = """
.tensor { --paper: #fff; --ink: #1d2126; --soft: #59616b; --line: #78818c; --one: #1f5fbf; --two: #a15c00;
  --bad: #b3261e; max-width: 100%; height: auto; background: var(--paper);
  font: 11px ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { .tensor { --paper: #15181c; --ink: #e5e8eb; --soft: #a3acb6; --line: #8a939d;
  --one: #7fb3ea; --two: #f0b354; --bad: #ff8a80; } }
@media print { .tensor { --paper: #fff; --ink: #000; --soft: #333; --line: #555; --one: #123f85; --two: #7a4500;
  --bad: #8c1a13; print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
.tensor text { fill: var(--ink); } .tensor .soft { fill: var(--soft); }
.tensor .frame { fill: none; stroke: var(--line); }
.tensor .one { fill: var(--one); } .tensor .two { fill: var(--two); } .tensor .bad { fill: var(--bad); }
.tensor .step { fill: none; stroke: var(--one); stroke-width: 1.5; }
"""  # noqa: E501


@dataclass(frozen=True)
class DifferingElement:
    """An element, both values and their difference; numbers that are not finite as "nan", "inf",
    "-inf"."""

    index: tuple[int, ...]
    reference: float | str
    given: float | str
    error: float | str


@dataclass(frozen=True)
class Statistics:
    """Of the finite values: least, greatest and mean, None without any; of all: shares of zeros,
    counts of NaN, Inf."""

    least: float | None
    most: float | None
    mean: float | None
    zeros: float
    nans: int
    infs: int


def statistics(values: Array) -> Statistics:
    """Return statistics of a tensor; bool and integers count as numbers."""
    x = _numbers(values).ravel()
    fine = x[np.isfinite(x)]
    some = bool(fine.size)
    return Statistics(
        float(fine.min()) if some else None,
        float(fine.max()) if some else None,
        float(fine.mean()) if some else None,
        float((x == 0).mean()) if x.size else 0.0,
        int(np.isnan(x).sum()),
        int(np.isinf(x).sum()),
    )


def planes(shape: Sequence[int]) -> int:
    """Return the number of maps of a tensor: one for each index of all but its last two axes."""
    return math.prod(shape[:-2]) if len(shape) > 2 else 1


def worst_plane(reference: Array, given: Array) -> int:
    """The plane with the largest difference; NaN counts as the largest."""
    far = _difference(reference, given)
    return int(np.argmax(far.reshape(planes(reference.shape), -1).max(axis=1))) if far.size else 0


def plane_errors(reference: Array, given: Array) -> list[float | str]:
    """Per plane, its largest difference; "inf" where only one side is NaN or infinite."""
    far = _difference(reference, given)
    return (
        [_plain(e) for e in far.reshape(planes(reference.shape), -1).max(axis=1)]
        if far.size
        else []
    )


@dataclass(frozen=True)
class MapCells:
    """A plane as numbers, in rows: float32, little-endian, in base64; NaN where an element is not
    finite.

    Attributes:
        shape: of the plane; rows, columns: of the cells, of which each stands for the element of
            largest magnitude in its part of the plane; as many as elements, up to `SHOWN` each way.
        scale: the largest finite magnitude on both sides; far: the largest difference.
        difference: 0 only where all elements of the cell are equal, bit by bit but for the sign of
            0 and NaN.
        equal: elements of the plane that are.
    """

    shape: Sequence[int]
    rows: int
    columns: int
    scale: float
    reference: str
    given: str | None = None
    difference: str | None = None
    far: float = 0.0
    equal: int = 0


def map_cells(reference: Array, given: Array | None = None, plane: int = 0) -> MapCells:
    """One plane of both sides and their difference, for a page that paints it."""
    matrix = _plane(_numbers(reference), plane)
    if not matrix.size:
        return MapCells(matrix.shape, 0, 0, 0.0, "")
    cells = _cells(matrix)
    if given is None:
        return MapCells(matrix.shape, len(cells), len(cells[0]), _scale(matrix), _pack(cells))
    other = _plane(_numbers(given), plane)
    far = _plane(_difference(reference, given), plane)
    return MapCells(
        matrix.shape,
        len(cells),
        len(cells[0]),
        _scale(matrix, other),
        _pack(cells),
        _pack(_cells(other)),
        _pack(_cells(far)),
        _scale(far),
        int((far == 0).sum()),
    )


def histogram(reference: Array, given: Array | None = None) -> str:
    """Draw the counts of values: the reference's as a line, the candidate's as bars."""
    sets = [_finite(values) for values in (reference, given) if values is not None]
    low, high = _bounds(sets)
    counts = [np.histogram(values, BINS, (low, high))[0] for values in sets]
    most = max(1, *(int(c.max(initial=0)) for c in counts))
    step = PLOT / BINS
    base = TOP + PLOT / 2
    heights = [c / most * (PLOT / 2 - 4) for c in counts]
    parts = [
        f'<rect class="frame" x="{LEFT:g}" y="{TOP:g}" width="{PLOT:g}" height="{PLOT / 2:g}"/>'
    ]
    if given is not None:
        bars = "".join(
            f"M{LEFT + k * step + 1:.1f} {base:.1f}v{-h:.1f}h{step - 2:.1f}v{h:.1f}z"
            for k, h in enumerate(heights[1])
            if h
        )
        parts.append(f'<path class="two" d="{bars}"/>')
    line = "".join(f"V{base - h:.1f}h{step:.2f}" for h in heights[0])
    parts.append(f'<path class="step" d="M{LEFT:g} {base:.1f}{line}V{base:.1f}"/>')
    both = "line: reference, bars: candidate" if given is not None else "values"
    parts += [_text(LEFT, 14, both), _text(LEFT, base + 13, _short(low), "soft")]
    parts.append(_text(LEFT + PLOT, base + 13, _short(high), "soft", "end"))
    return _svg(LEFT + PLOT + 40, base + BOTTOM, "histogram", parts)


def scatter(reference: Array, given: Array) -> str:
    """The candidate's values over the reference's; equal ones lie on the diagonal."""
    every = -(-reference.size // SAMPLED) or 1
    x, y = (_numbers(values.ravel()[::every]) for values in (reference, given))
    fine = np.isfinite(x) & np.isfinite(y)
    low, high = _bounds([x[fine], y[fine]])
    table = np.histogram2d(x[fine], y[fine], BINS, ((low, high), (low, high)))[0]
    size = PLOT / BINS
    top = math.log1p(float(table.max(initial=0))) or 1.0
    marks = ""
    for i, j in np.argwhere(table):
        side = size * (0.35 + 0.65 * math.log1p(float(table[i, j])) / top)
        cx = LEFT + (i + 0.5) * size
        cy = TOP + PLOT - (j + 0.5) * size
        marks += f"M{cx - side / 2:.1f} {cy - side / 2:.1f}h{side:.1f}v{side:.1f}h{-side:.1f}z"
    out = int((~fine).sum())
    title = "candidate over reference" + f"; {out:,} NaN or Inf" * bool(out)
    parts = [
        f'<rect class="frame" x="{LEFT:g}" y="{TOP:g}" width="{PLOT:g}" height="{PLOT:g}"/>',
        f'<path class="frame" d="M{LEFT:g} {TOP + PLOT:g}L{LEFT + PLOT:g} {TOP:g}"/>',
        f'<path class="two" d="{marks}"/>',
        _text(LEFT, 14, title),
        _text(LEFT, TOP + PLOT + 13, _short(low), "soft"),
        _text(LEFT + PLOT, TOP + PLOT + 13, _short(high), "soft", "end"),
    ]
    return _svg(LEFT + PLOT + 40, TOP + PLOT + BOTTOM, "scatter", parts)


def worst_elements(reference: Array, given: Array, most: int = WORST) -> list[DifferingElement]:
    """The elements that differ most, worst first; equal ones are left out."""
    far = _difference(reference, given).ravel()
    number = min(most, far.size)
    order = np.argpartition(-far, number - 1)[:number] if number else np.zeros(0, int)
    order = order[np.argsort(-far[order], kind="stable")]
    a = _numbers(reference).ravel()
    b = _numbers(given).ravel()
    return [
        DifferingElement(
            tuple(int(k) for k in np.unravel_index(i, reference.shape)),
            _plain(a[i]),
            _plain(b[i]),
            _plain(a[i] - b[i]),
        )
        for i in order
        if far[i] > 0
    ]


# ------------------------------------------------------------ numbers


def _numbers(values: Array) -> Array:
    """As float64, which holds every element type of ONNX but complex ones and texts."""
    return np.asarray(values).astype(np.float64)


def _difference(reference: Array, given: Array) -> Array:
    """|a − b|; infinite where only one is NaN, or where Inf meets another value; 0 where both are
    alike."""
    a = _numbers(reference)
    b = _numbers(given)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    found: Array = np.where(alike, 0.0, np.where(np.isnan(far), np.inf, far))
    return found


def _finite(values: Array) -> Array:

    x = _numbers(values.ravel()[:: -(-values.size // SAMPLED) or 1])
    found: Array = x[np.isfinite(x)]
    return found


def _bounds(sets: Sequence[Array]) -> tuple[float, float]:
    some = [x for x in sets if x.size]
    low, high = (
        (min(float(x.min()) for x in some), max(float(x.max()) for x in some))
        if some
        else (0.0, 1.0)
    )
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _plane(values: Array, plane: int) -> Array:
    """A matrix: the last two axes at one index of the others; a vector in rows of `ROW`."""
    if values.ndim > 2:
        found: Array = values.reshape(-1, *values.shape[-2:])[plane]
        return found
    if values.ndim == 2:
        return values
    flat = values.ravel()
    rows = -(-flat.size // ROW)
    return (
        np.concatenate([flat, np.zeros(rows * ROW - flat.size)]).reshape(rows, ROW)
        if flat.size > ROW
        else flat[None]
    )


def _scale(*matrices: Array) -> float:
    """The largest finite magnitude; 0 without any."""
    return max(
        (float(abs(fine).max()) for m in matrices if (fine := m[np.isfinite(m)]).size), default=0.0
    )


def _cells(matrix: Array) -> Array:
    """`_reduce` to `SHOWN` each way, NaN where an element is not finite."""
    cells, odd = _reduce(matrix)
    found: Array = np.where(odd, np.nan, cells)
    return found


def _pack(cells: Array) -> str:
    """As float32, in which what is not 0 stays so."""
    with np.errstate(over="ignore"):
        small = cells.astype("<f4")
    small[(small == 0) & (cells != 0)] = np.finfo(np.float32).smallest_subnormal
    return base64.b64encode(small.tobytes()).decode()


def _reduce(matrix: Array) -> tuple[Array, Array]:
    """(values, marks) in at most `SHOWN` × `SHOWN` cells: the value of largest magnitude;
    is one not finite?"""
    odd = ~np.isfinite(matrix)
    fine = np.where(odd, 0.0, matrix)
    rows, columns = (np.linspace(0, n, min(n, SHOWN) + 1).astype(int)[:-1] for n in matrix.shape)

    def over(x: Array, how: Any) -> Array:
        found: Array = how.reduceat(how.reduceat(x, rows, axis=0), columns, axis=1)
        return found

    high = over(fine, np.maximum)
    low = over(fine, np.minimum)
    return np.where(high >= -low, high, low), over(odd, np.logical_or)


def _plain(value: Any) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _short(number: float) -> str:
    return f"{number:.4g}"


# ------------------------------------------------------------ SVG


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    words = f' class="{kind}"' * bool(kind) + f' text-anchor="{anchor}"' * bool(anchor)
    return f'<text x="{x:g}" y="{y:g}"{words}>{escape(text)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="tensor" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}"'
        f' viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}">{"".join(parts)}</svg>\n'
    )
