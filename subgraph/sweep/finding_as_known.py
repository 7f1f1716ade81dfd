"""A finding of a bisection, and its blame -> an entry of `known` with a case of its own, as small as still shows it.

The case is the finding's cut in onnx's text form, without the names of the user's model. Weights and inputs are drawn
between the least and the largest of their values; where that shows nothing, the user's own are tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subgraph import results
from subgraph.cases.find_case import FoundCase
from subgraph.cases.layout import BLAME, BLAME_JSON, RUN_JSON
from subgraph.documents import from_json, read_document
from subgraph.errors import Inconclusive, InputError, UsageError
from subgraph.graph.graph import load
from subgraph.inspection.lint import LintContext
from subgraph.inspection.lint.known import facts
from subgraph.known import Entry, KnownCase, release
from subgraph.results.bisect import BisectDocument, FindingDocument
from subgraph.results.blame import BlameDocument
from subgraph.results.sweep import SweepOutcome
from subgraph.search.findings import FindingKind
from subgraph.storage.tensors import Record
from subgraph.sweep import known_case
from subgraph.sweep.as_known import TriedNode, described, how_far
from subgraph.sweep.conditions import Facts, open_conditions
from subgraph.sweep.operator_tests import Example
from subgraph.sweep.sweep import BAD, Sweep, SweepResult
from subgraph.text import clean
from subgraph.types import Array
from subgraph.verdict import Signature

SMALL = 32  # elements of a weight that stay as they are: a shape, axes, a scale
MAX_STORED = 20_000  # elements that an entry's file holds
ODD = ("string", "complex64", "complex128")
MAX_SAMPLES = 4  # of the finding, the smallest first
MAX_CURES = 2
DEAD = (SweepOutcome.CRASHED, SweepOutcome.TIMEOUT)


@dataclass(frozen=True)
class KnownFinding:
    """An entry, how its case ended, and what was found not to matter."""

    entry: Entry
    result: SweepResult
    idle: tuple[str, ...]


def finding_of(case: FoundCase) -> tuple[FindingDocument, BlameDocument | None]:
    """What the bisection around a case says of it, and its blame, where there is one.

    Raises:
        UsageError: it is of no bisection, or nothing is computed wrongly there.
    """
    place = case.place.resolve()
    document = bisection_of(place.parent)
    found = next((f for f in document.findings if f.case and Path(f.case).name == place.name), None)
    where = clean(str(place))
    if found is None:
        raise UsageError(f"{where} is no finding of that bisection", "name the bisection's folder")
    if found.rounding or found.kind == FindingKind.ACCUMULATED or found.signature is Signature.PRECISION:
        raise UsageError(f"{where} is a fault by rounding: nothing is computed wrongly there", _HONEST)
    if found.signature is Signature.REFUSED:
        raise UsageError(f"{where} is refused, and not computed wrongly", _HONEST)
    blame = place / BLAME / BLAME_JSON
    hint = "ask `subcut blame` again"
    return found, read_document(blame, BlameDocument, hint) if blame.is_file() else None


_HONEST = "an entry is about wrong values, or a crash"


def bisection_of(folder: Path) -> BisectDocument:
    """The document in the folder of a bisection that has found something.

    Raises:
        UsageError: it is something else, or nothing was found.
    """
    where, hint = clean(str(folder)), "name the folder that `subcut bisect` wrote"
    if not folder.is_dir():
        raise UsageError(f"no folder {where}: a bisection that agrees leaves none, and has no finding", hint)
    if not (folder / RUN_JSON).is_file():
        raise UsageError(f"{where} is not the folder of a bisection", hint)
    document = results.read(folder / RUN_JSON, hint)
    if document["schema"] != "subcut.bisect/1":
        what = f"{where} is of a recording, which has no candidate to try"
        raise UsageError(what, "bisect the model with -c SPEC, where the runtime can run here")
    found = from_json(BisectDocument, document, where, hint)
    if not found.findings:
        raise UsageError(f"the run in {where} has no finding: {'it agrees' if found.agree else found.outcome}")
    return found


def entry_of(
    sweep: Sweep, case: FoundCase, finding: FindingDocument, blame: BlameDocument | None, name: str, date: str
) -> KnownFinding:
    """The entry, whose case the sweep's candidate was seen to get wrong.

    Raises:
        InputError: the cut cannot be written as text, or onnx's evaluator does not run it.
        Inconclusive: no case shows what is wrong.
    """
    runtime = sweep.candidates[0]
    shown = Entry("", "", [release(runtime.about.version)], date, name=name, runtime="case")
    known, example, result = _shown(sweep, case, finding, shown)
    node = _last(example)
    own = facts(node)
    with open_conditions(sweep, 0) as conditions:
        tested = TriedNode(own, conditions.told(example, [*node.scope.nodes].index(node), own))
    when = {**_condition(tested), **_makers(node)}
    wrong, right = [release(runtime.about.version)], list[str]()
    says, cure = described(when, result.verdict), ""
    if blame:
        tried = blame.versions
        wrong = list(dict.fromkeys([*(tried.wrong if tried else ()), *wrong]))
        right = [version for version in (tried.right if tried else ()) if version not in wrong]
        says += f": right without {' and '.join(blame.passes[0])}" if blame.passes else ""
        proven = [f"{c.what} ({c.how})" for c in blame.cures if c.proven]
        cure = clean("; or ".join(proven[:MAX_CURES]))
    entry = Entry(node.op, says, wrong, date, (), right, how_far(result), cure, "", when, known, name)
    return KnownFinding(entry, result, tested.idle)


def _shown(
    sweep: Sweep, case: FoundCase, finding: FindingDocument, entry: Entry
) -> tuple[KnownCase, Example, SweepResult]:
    """The first case that the candidate gets wrong like the finding, and how it ended.

    Raises:
        InputError: none runs on onnx's evaluator. Inconclusive: the candidate gets none wrong.
    """
    why: InputError | None = None
    ends = list[str]()
    numbers = itertools.count()
    with known_case.open_evaluator() as evaluator:
        for known in cases_of(case):
            try:
                example = known_case.example_of(evaluator, entry, known, sweep.scratch / f"case{next(numbers)}")
            except InputError as e:
                why = e
                continue
            result = sweep.result(sweep.candidates[0], example)
            reference = sweep.expected.reference_result(example)
            is_dead = finding.signature in (Signature.CRASH, Signature.TIMEOUT)
            if result.outcome in BAD and reference.outcome != "differs" and (result.outcome in DEAD) == is_dead:
                return known, example, result
            differs = reference.outcome == "differs"
            ends.append("onnxruntime and onnx's evaluator differ" if differs else str(result.outcome))
    if why and not ends:
        raise InputError(why.what, "onnx's own evaluator must run the case of an entry") from why
    what = (
        f"no case of the finding shows it: {', '.join(dict.fromkeys(ends)) or 'its values are too many for an entry'}"
    )
    raise Inconclusive(what, "bisect a smaller input, or write the entry by hand: docs/known.md has the form")


def cases_of(case: FoundCase) -> Iterator[KnownCase]:
    """Forms of the cut, those that hold the fewest of the user's values first.

    Raises:
        InputError: a tensor has no plain form, or the model no text.
    """
    for k in sorted(range(len(case.labels)), key=lambda k: _size(case, k))[:MAX_SAMPLES]:
        inputs = {name: records[k] for name, records in case.inputs.items()}
        outputs = {name: records[k] for name, records in case.outputs.items()}
        if odd := next(
            (r for r in (*inputs.values(), *outputs.values()) if r.form != "tensor" or r.dtype in ODD), None
        ):
            what = f"'{clean(odd.name)}' is {odd.type_text}"
            raise InputError(what, "an entry's case has tensors of numbers alone: write the entry by hand")
        fed = {name: record.array() for name, record in inputs.items()}
        seen = set[str]()
        for stores_inputs, stores_weights in itertools.product((False, True), repeat=2):
            known = _case(case, fed, outputs, (stores_weights, stores_inputs))
            if known and repr(known) not in seen:
                seen.add(repr(known))
                yield known


def _size(case: FoundCase, k: int) -> int:
    return sum(math.prod(shape) for records in case.inputs.values() for shape in records[k].shapes)


def _case(
    case: FoundCase, fed: Mapping[str, Array], outputs: Mapping[str, Record], stores: tuple[bool, bool]
) -> KnownCase | None:
    """The cut with drawn values, or its own; None where those are too many or not finite.

    `stores`: its own weights, its own inputs?
    """
    import onnx
    from onnx import numpy_helper, printer

    stores_weights, stores_inputs = stores
    model = onnx.load(case.place / "model.onnx")
    graph, ranges, values = model.graph, dict[str, list[float]](), dict[str, list[float]]()
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    drawn = {name: array for name, array in weights.items() if not stores_weights and _is_drawn(array)}
    for name, array in {**drawn, **fed}.items():
        if name in drawn or (not stores_inputs and _is_drawn(array, 0)):
            ranges[name] = _range(array)
        else:
            values[name] = _elements(array)
    stored = [*(array.size for name, array in weights.items() if name not in drawn), *map(len, values.values())]
    if sum(stored) > MAX_STORED or not all(map(math.isfinite, itertools.chain(*ranges.values(), *values.values()))):
        return None
    _prepare(graph, drawn, fed, outputs)
    names = renamed(model)
    ranges, values = ({names[name]: of for name, of in table.items()} for table in (ranges, values))
    return KnownCase(f"{printer.to_text(model).strip()}\n", ranges=ranges, values=values)


def _is_drawn(array: Array, small: int = SMALL) -> bool:
    """May it be drawn? Few elements set how an operator works; booleans and texts are no numbers."""
    return (
        array.dtype.kind not in "bOUS" and array.size > small and (array.dtype.kind not in "iu" or array.size > SMALL)
    )


def _elements(array: Array) -> list[float]:
    """The elements, in as few digits as tell them apart."""
    flat = array.reshape(-1)
    return [int(x) for x in flat] if array.dtype.kind in "biu" else [float(str(x)) for x in flat]


def _range(array: Array) -> list[float]:
    """The least and the largest; above the latter for whole numbers, which are cut off."""
    wide = array.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    return [low, high + 1.0 if array.dtype.kind in "iu" else high]


def _prepare(graph: Any, drawn: Mapping[str, Array], fed: Mapping[str, Array], outputs: Mapping[str, Record]) -> None:
    """Declare inputs, outputs and drawn weights with the shapes that they have; take all else out that is declared."""
    from onnx import helper

    kept = [tensor for tensor in graph.initializer if tensor.name not in drawn]
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    graph.value_info.extend(helper.make_tensor_value_info(n, kinds[n], array.shape) for n, array in drawn.items())
    inputs = [value for value in graph.input if value.name in fed]
    del graph.input[:]
    graph.input.extend(inputs)
    shapes = {**{n: array.shape for n, array in fed.items()}, **{n: r.shapes[0] for n, r in outputs.items()}}
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.SetInParent()
        del value.type.tensor_type.shape.dim[:]
        for size in shapes[value.name]:
            value.type.tensor_type.shape.dim.add().dim_value = size


def renamed(model: Any) -> dict[str, str]:
    """Give all tensors names that the text form takes and that tell nothing: x0, w0, y0, t0 …; by their old ones."""
    graph, names = model.graph, dict[str, str]()
    weights = (*graph.initializer, *graph.value_info)
    for letter, of in (("x", graph.input), ("w", weights), ("y", graph.output)):
        for k, value in enumerate(of):
            names.setdefault(value.name, f"{letter}{k}")
    numbers = itertools.count()
    _rename(graph, names, numbers)
    for field in ("doc_string", "producer_name", "producer_version", "domain"):
        model.ClearField(field)
    del model.metadata_props[:]
    return names


def _rename(graph: Any, names: dict[str, str], numbers: Iterator[int]) -> None:
    def new(name: str) -> str:
        if name and name not in names:
            names[name] = f"t{next(numbers)}"
        return names[name] if name else ""

    graph.name, graph.doc_string = "g", ""
    del graph.metadata_props[:]
    for value in (*graph.input, *graph.initializer, *graph.value_info, *graph.output):
        value.name = new(value.name)
        value.doc_string = ""
    for node in graph.node:
        node.ClearField("name")
        node.ClearField("doc_string")
        del node.metadata_props[:]
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        for attribute in node.attribute:
            attribute.doc_string = ""
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner, names, numbers)


# ---------------------------------------------------------------------------------------------------- its condition


def _last(example: Example) -> Any:
    """The node that the entry is about: the last of the cut, behind which nothing is wrong."""
    return LintContext(load(example.model)).scopes[0].nodes[-1]


def _condition(tested: TriedNode) -> dict[str, str]:
    """What must hold of the node: attributes that matter, and inputs that must be computed.

    A word that no run could tell about stays; a number does not: it is bound to the shapes.
    """
    needed = dict(tested.needed)
    words = {
        key: value
        for key, value in tested.own.items()
        if tested.own.get(f"set {key}") == "yes" and key not in tested.told and value[0].isalpha()
    }
    inputs = {key: "variable" for key, matters in tested.told.items() if matters and key.startswith("input ")}
    types = {key: value for key, value in tested.own.items() if key == "type 0" and value != "float32"}
    known = {key: value for key, value in words.items() if f"set {key}" not in needed}
    return {**needed, **known, **inputs, **types}


def _makers(node: Any) -> Facts:
    """The nodes of the cut that the last one reads."""
    makers = [(k, node.scope.makers.get(name)) for k, name in enumerate(node.proto.input)]
    return {f"maker {k}": maker.op for k, maker in makers if maker and not maker.is_op("Constant")}
