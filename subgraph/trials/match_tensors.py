"""Which tensor of another model is which of ours: by name, as the user says, or by value on one captured sample.

Converters keep most names. Where they do not (a fused node, another layout, a quantized tensor), the value tells: the
same numbers, perhaps transposed, cast or in steps of a scale. A match by value must be unique both ways and keep the
order of the graphs, since Identity, or a ReLU of positive values, makes tensors that are equal; what is in doubt is not
matched, and the pieces on its two sides are asked about as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.quantization import Scale, scales_of
from subgraph.storage.layouts import axis_orders
from subgraph.text import clean, nearest

if TYPE_CHECKING:
    from subgraph.types import Array

Known = Callable[[str], "Array | None"]  # a tensor's value on the sample; None where there is none

NEAR = 0.1  # relative l2 distance up to which values may be the same tensor: int8 nets drift by less
CLEARER = 4.0  # times nearer than any other one
DOUBTFUL = 1.5  # times further off than the tensor itself: as likely meant
SURELY = 1e-6  # a distance that says nothing against being the same
TELLING = 16  # different numbers in a tensor, at least: fewer tell nothing
# What changes no number: its output is the same tensor once more.
SAME = frozenset("Identity Transpose Dropout Cast".split())
SUFFIXES = ("_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output")  # onnxruntime's quantizer


@dataclass(frozen=True)
class MatchedTensor:
    """Where a tensor of ours is in the other model.

    Attributes:
        other: its name there. how: "name", "map" or "value".
        perm: theirs = ours.transpose(perm); () as it is.
        dtype: its element type there; "" where nobody knows.
        scale: of quantized values.
    """

    other: str
    how: str
    perm: tuple[int, ...] = ()
    dtype: str = ""
    scale: Scale | None = None

    def theirs(self, ours: Array) -> Array:
        """A value of ours in the form that the other model wants."""
        import numpy as np

        from subgraph.storage.tensors import np_dtype

        value = ours.transpose(self.perm) if self.perm else ours
        if self.scale and self.dtype:
            return self.scale.stored(value, self.dtype)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(value.astype(np_dtype(self.dtype)) if self.dtype else value)

    def ours(self, theirs: Array) -> Array:
        """The inverse, as real numbers; a rank that does not fit is left as it came."""
        import numpy as np

        value = self.scale.real(theirs) if self.scale else theirs
        if not self.perm or len(self.perm) != value.ndim:
            return value
        return np.ascontiguousarray(value.transpose(np.argsort(self.perm)))

    @property
    def plain(self) -> bool:
        """Is it the same tensor under another name, at most?"""
        return not self.perm and self.scale is None


def match(
    ours: Graph, other: Graph, mine: Known, theirs: Known, said: Mapping[str, str] | None = None
) -> dict[str, MatchedTensor]:
    """Tensors of ours that depend on the inputs' values → where they are in the other model.

    `said`: what the user maps, ours → theirs. Complexity: linear in the values for names; values are compared only with
    those of the same sizes and about the same mean and spread.

    Raises:
        UnknownName: `said` names a tensor that is not there.
    """
    said = dict(said or {})
    _check(ours, other, said)
    names = list(_valued(ours))
    scales = scales_of(other)
    there = {*other.inputs, *_valued(other)}
    found: dict[str, MatchedTensor] = {}
    for name in names:
        for candidate, how in _by_name(name, said, there):
            made = _fitted(MatchedTensor(candidate, how, scale=scales.get(candidate)), mine(name), theirs(candidate))
            if made and not (how == "name" and _displaced(ours, other, name, made, mine, theirs)):
                found[name] = made
                break
    taken = {m.other for m in found.values()}
    left = [n for n in names if n not in found]
    free = [n for n in there if n not in taken and n not in other.inputs]
    return found | _by_value(ours, other, left, free, mine, theirs, scales, found)


def read_map(path: Path) -> dict[str, str]:
    """A file of lines `OURS THEIRS`, separated by blanks, a tab, a comma or `=`; `#` begins a remark.

    Raises:
        UsageError: it cannot be read, or a line has another form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise UsageError(
            f"cannot read --map {clean(str(path))}: {e}", "a text file with a line OURS THEIRS for each"
        ) from e
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        text = line.partition("#")[0].strip()
        words = text.split("\t") if "\t" in text else re.split(r"\s*[,=]\s*|\s+", text)
        if words == [""]:
            continue
        if len(words) != 2:
            raise UsageError(f"--map {clean(str(path))}, line {number}: expected OURS THEIRS", "two names of tensors")
        found[words[0]] = words[1]
    return found


def _check(ours: Graph, other: Graph, said: Mapping[str, str]) -> None:
    for name, theirs in said.items():
        for graph, wanted in ((ours, name), (other, theirs)):
            if wanted not in graph.maker and wanted not in graph.inputs:
                close = nearest(wanted, [*graph.inputs, *graph.maker])
                raise UnknownName(f"--map: no tensor '{clean(wanted)}' in {clean(graph.path.name)}", nearest=close)


def _valued(graph: Graph) -> list[str]:
    """Inputs, and what depends on their values, in topological order."""
    kinds = graph.kinds(graph.maker)
    made = [n for i in graph.in_order(range(len(graph.nodes))) for n in graph.makes[i]]
    return [*graph.inputs, *(n for n in made if kinds[n] == VALUE)]


def _by_name(name: str, said: Mapping[str, str], there: Collection[str]) -> Iterator[tuple[str, str]]:
    if name in said:
        yield said[name], "map"
        return
    for candidate in (name, *(name + suffix for suffix in SUFFIXES)):
        if candidate in there:
            yield candidate, "name"


# ---------------------------------------------------------------------------------------------------- values


def _fitted(found: MatchedTensor, mine: Array | None, theirs: Array | None) -> MatchedTensor | None:
    """The match with its type and order of axes; None where the two cannot be the same tensor."""
    if theirs is None or mine is None:
        return found
    found = replace(found, dtype=theirs.dtype.name)
    if mine.shape == theirs.shape and (len(mine.shape) < 2 or distance(mine, found.ours(theirs)) <= NEAR):
        return found
    plain = tuple(range(mine.ndim))
    orders = [() if order == plain else order for order in axis_orders(mine.shape, theirs.shape)]
    if not orders:
        return None
    if len(orders) == 1:
        return replace(found, perm=orders[0])
    apart = sorted((distance(mine, replace(found, perm=p).ours(theirs)), p) for p in orders)
    best, perm = apart[0]
    same = mine.shape == theirs.shape
    if best * CLEARER < apart[1][0] and best <= NEAR:
        return replace(found, perm=perm)
    return found if same else None  # a value that is far off in every order says nothing about the order


def distance(a: Array, b: Array) -> float:
    """|a − b| / |a|, Euclidean; infinite where shapes or what is finite differ, or a is nothing but zeros."""
    import numpy as np

    if a.shape != b.shape or a.dtype.kind not in "fiubV" or b.dtype.kind not in "fiubV":
        return math.inf
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
        finite = np.isfinite(x)
        if not np.array_equal(finite, np.isfinite(y)):
            return math.inf
        x, y = x[finite], y[finite]
        size = float(np.sqrt(x @ x))
        return float(np.sqrt((x - y) @ (x - y))) / size if size else math.inf


def _displaced(ours: Graph, other: Graph, name: str, found: MatchedTensor, mine: Known, theirs: Known) -> bool:
    """Does a tensor of the same name hold what stands before it or behind it? A converter that drops a Relu, because
    the quantization behind it clips anyway, hands its name to what the Relu read. Where that cannot be told, as behind
    a piece that goes wrong, it does."""
    maker, there = ours.maker.get(name), other.maker.get(found.other)
    if maker is None or there is None or other.ops[there] == ours.ops[maker] or other.ops[there].startswith("Fused"):
        return False  # a FusedConv holds its Relu
    value = theirs(found.other)
    if value is None:
        return False
    beside = {*ours.reads[maker], *(n for i in ours.successors(maker) for n in ours.makes[i])}
    own = _apart(mine(name), found, value)
    others = [_apart(mine(n), found, value) for n in beside if n in ours.maker and n != name]
    return own > NEAR and any(apart < own * DOUBTFUL for apart in others)


def _apart(value: Array | None, found: MatchedTensor, theirs: Array) -> float:
    return math.inf if value is None else distance(value, found.ours(theirs))


def _by_value(
    ours: Graph, other: Graph, left: Iterable[str], free: Iterable[str], mine: Known, theirs: Known,
    scales: Mapping[str, Scale], found: Mapping[str, MatchedTensor],
) -> dict[str, MatchedTensor]:  # fmt: skip
    """The pairs that fit each other, and nobody else half as well."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in free:
        value = theirs(name)
        if value is not None and value.dtype.kind in "fiuV":
            groups.setdefault(tuple(sorted(value.shape)), []).append(name)
    near: dict[str, list[tuple[float, str, MatchedTensor]]] = {}
    for name in left:
        value = mine(name)
        if value is None or value.dtype.kind != "f" or not telling(value):
            continue
        for candidate in groups.get(tuple(sorted(value.shape)), ()):
            given = theirs(candidate)
            if given is None or not _alike(
                value, MatchedTensor(candidate, "value", scale=scales.get(candidate)).ours(given)
            ):
                continue
            fit = _fitted(MatchedTensor(candidate, "value", scale=scales.get(candidate)), value, given)
            apart = distance(value, fit.ours(given)) if fit else math.inf
            if fit and apart <= NEAR:
                near.setdefault(name, []).append((apart, candidate, fit))
    return _mutual(ours, other, near, found)


def telling(value: Array) -> bool:
    """Does it hold enough different numbers to be known by them?"""
    import numpy as np

    return value.size >= TELLING and np.unique(value.reshape(-1)[: 1 << 16]).size >= TELLING


def _alike(a: Array, b: Array) -> bool:
    """Of about the same mean and spread, whatever the order of the axes?"""
    import numpy as np

    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = float(np.abs(x).max(initial=0.0)) or 1.0
        return bool(abs(x.mean() - y.mean()) <= NEAR * scale and abs(x.std() - y.std()) <= NEAR * scale)


def _mutual(
    ours: Graph,
    other: Graph,
    near: Mapping[str, list[tuple[float, str, MatchedTensor]]],
    found: Mapping[str, MatchedTensor],
) -> dict[str, MatchedTensor]:
    back: dict[str, list[tuple[float, str]]] = {}
    for name, fits in near.items():
        for apart, candidate, _ in fits:
            back.setdefault(candidate, []).append((apart, name))
    chosen: dict[str, MatchedTensor] = {}
    for name, fits in near.items():
        apart, candidate, fit = min(fits, key=lambda f: (f[0], other.rank[other.maker[f[1]]]))
        root = _root(other, candidate)
        apart, candidate, fit = next((f for f in fits if f[1] == root), (apart, candidate, fit))
        rivals = [a for a, c, _ in fits if _root(other, c) != root]
        rivals += [a for a, n in back[candidate] if _root(ours, n) != _root(ours, name)]
        unique = all(a > max(apart * CLEARER, SURELY) for a in rivals) and _foremost(ours, name, back[candidate])
        if unique and _in_order(ours, other, name, fit, {**found, **chosen}):
            chosen[name] = fit
    return chosen


def _root(graph: Graph, name: str) -> str:
    """The tensor that this one is a copy of, itself where it is none."""
    while (maker := graph.maker.get(name)) is not None and graph.ops[maker] in SAME and graph.nodes[maker].input:
        name = graph.nodes[maker].input[0]
    return name


def _foremost(ours: Graph, name: str, rivals: Iterable[tuple[float, str]]) -> bool:
    """Of several copies of one tensor of ours, is it the first?"""
    copies = [n for _, n in rivals if _root(ours, n) == _root(ours, name)]
    return min(copies, key=lambda n: ours.rank[ours.maker[n]] if n in ours.maker else -1) == name


def _in_order(ours: Graph, other: Graph, name: str, fit: MatchedTensor, known: Mapping[str, MatchedTensor]) -> bool:
    """Is nothing that lies above ours matched with what lies below theirs, or the other way round?"""
    above = _made(ours, ours.ancestors([ours.maker[name]])) if name in ours.maker else set()
    below = _made(ours, ours.descendants([ours.maker[name]])) if name in ours.maker else set()
    there = other.maker[fit.other]
    higher, lower = _made(other, other.ancestors([there])), _made(other, other.descendants([there]))
    return not any(
        (n in above and m.other in lower - higher) or (n in below and m.other in higher - lower)
        for n, m in known.items()
    )


def _made(graph: Graph, nodes: Iterable[int]) -> set[str]:
    return {name for i in nodes for name in graph.makes[i]}
