"""What is in a model: Graph -> plain documents about all of it, about a node, or about what lies between two nodes.

Each document starts with what is wrong (`problems`) and says of every tensor what the reference gave (`ranges`) beside
what the model declares. Where the model cannot be run, or shall not be, the declared and inferred types remain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf, summary
from subgraph.graph.graph import Graph
from subgraph.graph.operators import shown, type_text
from subgraph.graph.region import between
from subgraph.graph.shape_inference import InferredTypes, infer_types
from subgraph.graph.types import declared_type
from subgraph.graph.validate import Problem, find_problems, node_title
from subgraph.inspection.ranges import MeasuredTensors, measure, of_weight, size_of_elements
from subgraph.runtime.inputs import Feeding
from subgraph.storage import dtypes

SCHEMA = "subcut.inspect/1"
INVALID = 3  # exit code
UNMEASURABLE = frozenset(("cycle", "twice", "opset"))  # with such a problem nothing can be run
SHORT = 60  # characters of an attribute's value
LISTED = 8  # elements of a list in an attribute

Document = dict[str, Any]


def model_document(graph: Graph, fed: Feeding | None) -> Document:
    """The model: what it consists of, and each node with the tensors that it makes. Nothing is run without `fed`.

    Raises:
        InputError, UnknownName: what the user wants to feed does not fit.
    """
    facts = _facts(graph, [name for names in graph.makes for name in names], fed)
    return facts.head("model") | {
        "ops": summary.ops(graph),
        "functions": summary.functions(graph),
        "weights": summary.weights(graph),
        "inputs": [facts.tensor(name) | {"values": facts.run.origins.get(name)} for name in graph.inputs],
        "outputs": [facts.tensor(name) for name in graph.outputs],
        "nodes": [
            facts.node(i) | {"inputs": list(graph.nodes[i].input), "outputs": [facts.tensor(n) for n in graph.makes[i]]}
            for i in range(len(graph.nodes))
        ],
    }


def nodes_document(graph: Graph, selector: str, fed: Feeding | None) -> Document:
    """The node that a selector means (those that read it, if it is a model input), with attributes and neighbours.

    Raises:
        UnknownName, UsageError: as `Graph.select`. InputError: what the user wants to feed does not fit.
    """
    chosen = graph.select(selector).nodes
    near = [name for i in chosen for name in (*graph.reads[i], *graph.makes[i])]
    facts = _facts(graph, near, fed)
    return facts.head("node") | {
        "selector": selector,
        "nodes": [
            facts.node(i)
            | {
                "attributes": {str(a.name): summary.attribute_text(a) for a in graph.nodes[i].attribute},
                "inputs": [facts.entering(name) for name in graph.reads[i]],
                "outputs": [facts.leaving(name) for name in graph.makes[i]],
            }
            for i in chosen
        ],
    }


def region_document(graph: Graph, start: Sequence[str], end: Sequence[str], fed: Feeding | None) -> Document:
    """What a cut from `start` to `end` would hold, without cutting.

    Raises:
        UnknownName, UsageError, NoRegion: start and end enclose nothing. InputError: as above.
        ModelError: the graph has a cycle or the like; `whole` says more.
    """
    region = between(graph, start, end)
    facts = _facts(graph, [*region.inputs, *region.shapes, *region.outputs], fed)
    weights = [summary.weight(graph, name) for name in region.weights]
    return facts.head("region") | {
        "start": list(region.start),
        "end": list(region.end),
        "nodes": [facts.node(i) for i in region.nodes],
        "inputs": [facts.entering(name) for name in region.inputs],
        "shapes": [facts.entering(name) for name in region.shapes],
        "outputs": [facts.leaving(name) for name in region.outputs],
        "pulled": [facts.node(i) for i in region.pulled],
        "random": [facts.node(i) for i in region.random],
        "weights": weights,
        "parameters": sum(w["parameters"] for w in weights),
    }


def invalid_document(graph: Graph, error: ModelError) -> Document:
    """What can be said of a model in which a region cannot even be found.

    Raises:
        ModelError: `error`, where no problem of the model explains it.
    """
    facts = _facts(graph, [], None)
    if not any(p.fatal for p in facts.problems):
        raise error
    return replace(facts, notes=(_sentence(error.what, error.hint),)).head("region") | {"nodes": []}


# ---------------------------------------------------------------------------------------------------- facts


@dataclass(frozen=True)
class _Facts:
    """All that is known of a model's tensors, and the plain data made of it."""

    graph: Graph
    known: InferredTypes
    problems: tuple[Problem, ...]
    run: MeasuredTensors
    notes: tuple[str, ...]
    fed: Feeding | None

    def head(self, view: str) -> Document:
        return {
            "schema": SCHEMA,
            "exit_code": INVALID if any(p.fatal for p in self.problems) else 0,
            "view": view,
            "problems": [self._problem(p) for p in self.problems],
            "notes": list(self.notes),
            "model": summary.model(self.graph),
            "run": self._run(),
        }

    def _run(self) -> Document | None:
        if self.fed is None or not self.run.samples:
            return None
        return {
            "tensors": len(self.run.measured),
            "samples": self.run.samples,
            "seed": self.fed.seed,
            "fed": [{"name": name, "from": origin} for name, origin in self.run.origins.items()],
        }

    def _problem(self, p: Problem) -> Document:
        node = None if p.node is None else self.node(p.node)
        return {"kind": p.kind, "fatal": p.fatal, "node": node, "tensor": p.tensor, "what": p.what, "hint": p.hint}

    def node(self, i: int) -> Document:
        node = self.graph.nodes[i]
        return {
            "index": i, "label": self.graph.label(i), "name": str(node.name),
            "op": str(node.op_type), "domain": str(node.domain),
        }  # fmt: skip

    def tensor(self, name: str) -> Document:
        """Type and shape as the run gave them, else as the model has them; the declared ones beside; the range."""
        graph, found = self.graph, self.run.measured.get(name)
        entry: Document = {"name": name, "source": None, "type": None, "shape": None, "range": None, "value": None}
        if found is None and name in graph.weights and (weight := of_weight(graph, name)):
            found = weight
        if found:
            entry["source"] = "weight" if name in graph.weights else "run"
            entry["type"] = found.dtype if found.form == "tensor" else f"{found.form} of {found.dtype}"
            entry["shape"] = None if found.shape is None else list(found.shape)
            entry["range"], entry["value"] = found.range and found.range.to_json(), found.value
        elif proto := self.known.type_of(name):
            entry["source"] = "declared" if name in self.known.declared else "inferred"
            entry["type"], entry["shape"] = _type(proto)
        entry["declared"] = None
        if proto := self.known.declared.get(name):
            entry["declared"] = dict(zip(("type", "shape"), _type(proto), strict=True))
        return entry

    def entering(self, name: str) -> Document:
        """A tensor with who makes it."""
        graph = self.graph
        maker = graph.maker.get(name)
        if maker is not None:
            return self.tensor(name) | {"made_by": self.node(maker)}
        kind = "input" if name in graph.inputs else "weight" if graph.is_weight(name) else None
        return self.tensor(name) | {"made_by": kind}

    def leaving(self, name: str) -> Document:
        """A tensor with who reads it."""
        readers = [self.node(i) for i in self.graph.readers.get(name, ())]
        return self.tensor(name) | {"read_by": readers, "is_output": name in self.graph.outputs}


def _facts(graph: Graph, names: Iterable[str], fed: Feeding | None) -> _Facts:
    types = infer_types(graph)
    found = tuple(find_problems(graph, types))
    if fed is None:
        return _Facts(graph, types, found, MeasuredTensors(), (), None)
    run, notes = _measured(graph, types, found, list(dict.fromkeys(names)), fed)
    return _Facts(graph, types, found, run, notes, fed)


def _measured(
    graph: Graph, types: InferredTypes, found: Sequence[Problem], names: Sequence[str], fed: Feeding
) -> tuple[MeasuredTensors, tuple[str, ...]]:
    """What the reference gives of these tensors, and what is to be said about that."""
    stopper = next((p for p in found if p.fatal and p.kind in UNMEASURABLE), None)
    if stopper:
        return MeasuredTensors(), (f"not run: {stopper.what}",)
    spoiled = _spoiled(graph, found)
    made = [n for n in names if n in graph.maker]
    wanted = [n for n in made if graph.maker[n] not in spoiled and _storable(types, n)]
    wanted.sort(key=lambda n: graph.rank[graph.maker[n]])
    try:
        run = measure(graph, wanted, fed, lambda name: _size(types, name))
    except InputError as e:
        if not fed.is_default:
            raise
        return MeasuredTensors(), (f"not run: {_sentence(e.what, e.hint)}",)
    notes = [f"the reference fails at {node_title(graph, graph.maker[f.tensor])}: {f.what}" for f in run.failures]
    if missing := sum(name not in run.measured for name in made):
        notes.append(f"{missing} of {len(made)} tensors could not be run: their types are as declared or inferred")
    if any(origin.startswith("random ") for origin in run.origins.values()):
        notes.append("ranges are of random inputs: real ones (-i) show more")
    return run, tuple(notes)


def _spoiled(graph: Graph, found: Sequence[Problem]) -> set[int]:
    """Nodes that cannot be run because of a problem at them or above."""
    fatal = [p for p in found if p.fatal]
    bad = {p.node for p in fatal if p.node is not None}
    names = {p.tensor for p in fatal if p.node is None and p.tensor and p.kind != "output"}
    return graph.descendants(bad.union(*graph.readers_of(names).values()))


def _sentence(what: str, hint: str) -> str:
    return f"{what} ({hint})" if hint else what


def _storable(types: InferredTypes, name: str) -> bool:
    """Is it, as far as is known, a tensor or a sequence of tensors? Maps cannot be stored."""
    proto = types.type_of(name)
    return proto is None or "map(" not in type_text(proto)


def _size(types: InferredTypes, name: str) -> int | None:
    """Bytes of the tensor, if its type says that."""
    proto = types.type_of(name)
    text, shape = _type(proto) if proto else ("", None)
    if shape is None or text not in dtypes.TYPE_NUMBERS or not all(isinstance(d, int) for d in shape):
        return None
    return size_of_elements(math.prod(shape), text)


def _type(proto: protobuf.TypeProto) -> tuple[str | None, list[Any] | None]:
    """(float32, [1, 3, "H", None]) of a type; without the names that shape inference makes up."""
    try:
        dims = declared_type(proto)[2]
    except InputError:
        dims = None
    if dims is not None:
        dims = [None if isinstance(d, str) and d.startswith("unk__") else d for d in dims]
    text = type_text(proto)
    return (shown(text) if text else None), dims
