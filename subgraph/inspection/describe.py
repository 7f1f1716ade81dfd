"""Model → documents about the whole model, about a node, or about the region between two nodes
(`subcut inspect`).

Each document lists the problems of the model (`inspection.validate`). For each tensor it has type,
shape and range as the reference computed them (`inspection.ranges`), and the declaration in the
model. If the model is not run, declared and inferred types remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from subgraph.documents import absent, json_key
from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.opsets import format_schema_type, format_type
from subgraph.graph.region import find_region
from subgraph.graph.selection import select_all
from subgraph.graph.shape_inference import InferredTypes, infer_types
from subgraph.graph.value_types import holds_maps, read_type
from subgraph.inspection import summary
from subgraph.inspection.ranges import MeasuredTensors, RangeSummary, measure, measure_weight
from subgraph.inspection.validate import (
    Problem,
    find_affected_nodes,
    find_problems,
    format_node_title,
)
from subgraph.iterables import drop_repeats, flatten
from subgraph.origins.source import Source, find_source, read_node_metadata
from subgraph.runtime.inputs import Feeding, OriginKind
from subgraph.types import Strings, frozen, frozen_keywords

SCHEMA = "subcut.inspect/1"
INVALID = 3  # exit code


@frozen
class NodeInfo:
    """A node by index, label (`Graph.label`), name, operator, domain, and the user's code that it
    comes from."""

    index: int
    label: str
    name: str
    op: str
    domain: str
    source: Source | None = absent()


@frozen
class TypeEntry:
    """A declared type. A dimension is a size, a symbol or None; `shape` is None if no shape is
    declared."""

    type: str | None
    shape: list[Any] | None


@frozen
class TensorInfo:
    """The properties of a tensor, as far as they are known.

    Attributes:
        source: of type and shape: run, weight, inferred or declared; None if unknown.
        range: None if the tensor was not measured.
        value: of a small integer tensor, nested lists.
        declared: its declaration in the model; None without one.
    """

    name: str
    source: str | None
    type: str | None
    shape: list[Any] | None
    range: RangeSummary | None
    value: Any
    declared: TypeEntry | None


@frozen
class InputEntry(TensorInfo):
    """A model input; `values`: where its values came from, None if it was not fed."""

    values: str | None


@frozen
class EnteringTensor(TensorInfo):
    """A tensor that is read; `made_by`: its node, "input", "weight", or None if nothing produces
    it."""

    made_by: NodeInfo | str | None


@frozen
class LeavingTensor(TensorInfo):
    """A tensor that a node outputs, with the nodes that read it."""

    read_by: list[NodeInfo]
    is_output: bool


@frozen_keywords
class NodeWithTensors(NodeInfo):
    """A node of the whole model, with the names of its inputs."""

    inputs: list[str]
    outputs: list[TensorInfo]


@frozen_keywords
class NodeDetails(NodeInfo):
    """A node with attributes (as short texts), documentation and metadata as they are in the file,
    and neighbors.

    `known`: what the candidate's runtime is known to compute wrongly in nodes like it; None if
    none is named.
    """

    attributes: dict[str, str]
    doc_string: str
    metadata: dict[str, str]
    inputs: list[EnteringTensor]
    outputs: list[LeavingTensor]
    known: list[str] | None = absent()


@frozen
class ProblemEntry:
    """A problem, as `inspection.validate.Problem`."""

    kind: str
    fatal: bool
    node: NodeInfo | None
    tensor: str | None
    what: str
    hint: str


@frozen
class FedValue:
    """A model input, and where its values came from."""

    name: str
    origin: str = json_key("from")


@frozen
class RunEntry:
    """The run of the reference: number of measured tensors and of samples, seed, inputs."""

    tensors: int
    samples: int
    seed: int
    fed: list[FedValue]


@frozen
class InspectDocument:
    """The fields of all views; `run` is None if nothing was run."""

    schema: str
    exit_code: int
    view: str
    problems: list[ProblemEntry]
    notes: list[str]
    model: summary.FileSummary
    run: RunEntry | None


@frozen
class ModelDocument(InspectDocument):
    """The whole model."""

    ops: list[summary.OpCount]
    functions: list[summary.FunctionSummary]
    weights: summary.WeightTotals
    inputs: list[InputEntry]
    outputs: list[TensorInfo]
    nodes: list[NodeWithTensors]


@frozen
class NodesDocument(InspectDocument):
    """The nodes of a selector."""

    selector: str
    nodes: list[NodeDetails]


@frozen
class RegionDocument(InspectDocument):
    """A region, as `graph.region.Region`; `parameters`: number of elements of its weights."""

    start: list[str]
    end: list[str]
    nodes: list[NodeInfo]
    inputs: list[EnteringTensor]
    shapes: list[EnteringTensor]
    outputs: list[LeavingTensor]
    pulled: list[NodeInfo]
    random: list[NodeInfo]
    weights: list[summary.WeightSummary]
    parameters: int


@frozen
class InvalidDocument(InspectDocument):
    """A model in which no region can be derived."""

    nodes: list[NodeInfo]


def describe_model(graph: Graph, feeding: Feeding | None) -> ModelDocument:
    """Describe the model: file, operators, weights, and each node with its output tensors.

    It is not run without `feeding`.

    Raises:
        InputError, UnknownName: the inputs do not fit the model.
    """
    facts = _collect_facts(graph, list(flatten(graph.makes)), feeding)
    origins = {name: str(origin) for name, origin in facts.measured.origins.items()}
    return ModelDocument(
        **vars(facts.head("model")),
        ops=summary.count_operators(graph),
        functions=summary.list_functions(graph),
        weights=summary.sum_weights(graph),
        inputs=[InputEntry(**vars(facts.tensor(n)), values=origins.get(n)) for n in graph.inputs],
        outputs=[facts.tensor(name) for name in graph.outputs],
        nodes=[
            NodeWithTensors(
                **vars(facts.node(i)),
                inputs=list(graph.nodes[i].input),
                outputs=[facts.tensor(name) for name in graph.makes[i]],
            )
            for i in range(len(graph.nodes))
        ],
    )


def describe_nodes(graph: Graph, selector: str, feeding: Feeding | None) -> NodesDocument:
    """Describe the nodes of a selector (of a model input, those that read it; of a glob, all).

    Raises:
        UnknownName, UsageError: as `graph.selection.select`.
        InputError: the inputs do not fit the model.
    """
    selected = select_all(graph, selector)
    facts = _collect_facts(
        graph,
        list(flatten((*graph.reads[i], *graph.makes[i]) for i in selected)),
        feeding,
    )
    return NodesDocument(
        **vars(facts.head("node")), selector=selector, nodes=[facts.details(i) for i in selected]
    )


def make_node_describer(graph: Graph) -> Callable[[int], NodeDetails]:
    """Return the function that describes a node by its index, without a run; infer types once.

    Complexity: linear in the model; then, per node, in its neighbors and the weights that it
    reads.

    Raises:
        ModelError: as `infer_types`.
    """
    _ = graph.readers
    return _Facts(graph, infer_types(graph), [], MeasuredTensors(), (), None).details


def describe_region(
    graph: Graph, start: Sequence[str], end: Sequence[str], feeding: Feeding | None
) -> RegionDocument:
    """Describe the content of a cut from `start` to `end`.

    Raises:
        UnknownName, UsageError, NoRegion, ModelError: as `region.find_region`.
        InputError: the inputs do not fit the model.
    """
    region = find_region(graph, start, end)
    facts = _collect_facts(graph, region.boundary, feeding)
    weights = [summary.summarize_weight(graph, name) for name in region.weights]
    return RegionDocument(
        **vars(facts.head("region")),
        start=list(region.start),
        end=list(region.end),
        nodes=[facts.node(i) for i in region.nodes],
        inputs=[facts.entering(name) for name in region.inputs],
        shapes=[facts.entering(name) for name in region.shapes],
        outputs=[facts.leaving(name) for name in region.outputs],
        pulled=[facts.node(i) for i in region.pulled],
        random=[facts.node(i) for i in region.random],
        weights=weights,
        parameters=sum(w.parameters for w in weights),
    )


def describe_invalid_model(graph: Graph, error: ModelError) -> InvalidDocument:
    """Return a model whose region could not be derived because of `error`.

    Raises:
        ModelError: `error`, if no problem of the model explains it.
    """
    facts = _collect_facts(graph, [], None)
    if not any(p.fatal for p in facts.problems):
        raise error
    return InvalidDocument(
        **vars(replace(facts, notes=(_format_sentence(error),)).head("region")), nodes=[]
    )


# ------------------------------------------------------------ facts


@frozen
class _Facts:
    """The facts of a model: types, problems and measured tensors."""

    graph: Graph
    types: InferredTypes
    problems: list[Problem]
    measured: MeasuredTensors
    notes: Strings
    feeding: Feeding | None

    def head(self, view: str) -> InspectDocument:
        run = None
        measured = self.measured
        if self.feeding and measured.samples:
            fed = [FedValue(name, str(origin)) for name, origin in measured.origins.items()]
            run = RunEntry(len(measured.tensors), measured.samples, self.feeding.seed, fed)
        return InspectDocument(
            schema=SCHEMA,
            exit_code=INVALID if any(p.fatal for p in self.problems) else 0,
            view=view,
            problems=[self._describe_problem(p) for p in self.problems],
            notes=list(self.notes),
            model=summary.summarize_file(self.graph),
            run=run,
        )

    def _describe_problem(self, problem: Problem) -> ProblemEntry:
        node = None if problem.node is None else self.node(problem.node)
        where = "" if problem.node is None else f"{format_node_title(self.graph, problem.node)}: "
        return ProblemEntry(
            problem.kind, problem.fatal, node, problem.tensor, where + problem.what, problem.hint
        )

    def node(self, i: int) -> NodeInfo:
        node = self.graph.nodes[i]
        label = self.graph.label(i)
        source = find_source(self.graph, i)
        return NodeInfo(i, label, node.name, node.op_type, node.domain, source)

    def details(self, i: int) -> NodeDetails:
        node = self.graph.nodes[i]
        return NodeDetails(
            **vars(self.node(i)),
            attributes={str(a.name): summary.format_attribute(a) for a in node.attribute},
            doc_string=protobuf.read_doc_text(node.doc_string),
            metadata=read_node_metadata(self.graph, i),
            inputs=[self.entering(name) for name in self.graph.reads[i]],
            outputs=[self.leaving(name) for name in self.graph.makes[i]],
        )

    def tensor(self, name: str) -> TensorInfo:
        """Return type and shape as measured, else as inferred or declared."""
        proto = self.types.declared.get(name)
        entry = TensorInfo(
            name, None, None, None, None, None, _describe_type(proto) if proto else None
        )
        is_weight = name in self.graph.weights
        measured = self.measured.tensors.get(name) or (
            measure_weight(self.graph, name) if is_weight else None
        )
        if measured:
            is_tensor = measured.form == "tensor"
            return replace(
                entry,
                source="weight" if is_weight else "run",
                type=measured.dtype if is_tensor else f"{measured.form} of {measured.dtype}",
                shape=None if measured.shape is None else list(measured.shape),
                range=None if measured.range is None else measured.range.summary(),
                value=measured.value,
            )
        if declared := self.types.type_of(name):
            source = "declared" if proto else "inferred"
            return replace(entry, source=source, **vars(_describe_type(declared)))
        return entry

    def entering(self, name: str) -> EnteringTensor:
        made_by: NodeInfo | str | None = None
        if name in self.graph.maker:
            made_by = self.node(self.graph.maker[name])
        elif name in self.graph.inputs:
            made_by = "input"
        elif self.graph.is_weight(name):
            made_by = "weight"
        return EnteringTensor(**vars(self.tensor(name)), made_by=made_by)

    def leaving(self, name: str) -> LeavingTensor:
        readers = [self.node(i) for i in self.graph.readers.get(name, ())]
        is_output = name in self.graph.outputs
        return LeavingTensor(**vars(self.tensor(name)), read_by=readers, is_output=is_output)


def _collect_facts(graph: Graph, names: Iterable[str], feeding: Feeding | None) -> _Facts:
    types = infer_types(graph)
    facts = _Facts(graph, types, find_problems(graph, types), MeasuredTensors(), (), feeding)
    if feeding is None:
        return facts
    return _measure(facts, drop_repeats(names), feeding)


def _measure(facts: _Facts, names: Sequence[str], feeding: Feeding) -> _Facts:
    """Return the facts with these tensors measured, as far as the reference computes them, and
    notes on the others."""
    graph = facts.graph
    types = facts.types
    obstacle = next(
        (p for p in facts.problems if p.fatal and p.node is None and p.tensor is None), None
    )
    if obstacle:
        return replace(facts, notes=(f"not run: {obstacle.what}",))
    affected = find_affected_nodes(graph, facts.problems)
    computed = [n for n in names if n in graph.maker]
    known = {n: types.type_of(n) for n in computed if graph.maker[n] not in affected}
    # Maps cannot be stored.
    runnable = [n for n, proto in known.items() if not (proto and holds_maps(proto))]
    runnable.sort(key=lambda n: graph.rank[graph.maker[n]])
    try:
        measured = measure(graph, runnable, feeding, types)
    except InputError as e:
        if not feeding.is_default:
            raise
        return replace(facts, notes=(f"not run: {_format_sentence(e)}",))
    notes = [
        f"the reference fails at {format_node_title(graph, graph.maker[f.tensor])}: {f.what}"
        for f in measured.failures
    ]
    if missing := sum(name not in measured.tensors for name in computed):
        notes.append(
            f"{missing} of {len(computed)} tensors could not be run: their types are as declared or"
            " inferred"
        )
    if any(origin.kind is OriginKind.RANDOM for origin in measured.origins.values()):
        notes.append("ranges are of random inputs: real ones (-i) show more")
    return replace(facts, measured=measured, notes=tuple(notes))


def _format_sentence(error: ModelError | InputError) -> str:
    if error.hint:
        return f"{error.what} ({error.hint})"
    return error.what


def _describe_type(proto: protobuf.TypeProto) -> TypeEntry:
    """Return (float32, [1, 3, "H", None]) of a type, without symbols that shape inference
    invents."""
    try:
        dims = read_type(proto).known_dims
    except InputError:
        dims = None
    text = format_schema_type(proto)
    return TypeEntry(format_type(text) if text else None, dims)
