"""Graph → `Problem`s: everything that makes a model invalid, or may trouble a runtime, each with its node and tensor.

A runtime stops at the first problem and seldom says where it is; here every rule checks the whole model. A rule that
does not know enough (a custom operator, a tensor of unknown type) is silent: a false alarm costs more than a gap.
Rules about the graph as a whole are here; `graph.operators` checks a node against the schema of its operator.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.operators import Schemas, did_you_mean, element_text, shown, type_text
from subgraph.graph.opsets import canonical_domain, imported, newest_opsets
from subgraph.graph.shape_inference import Complaint, InferredTypes, first_users, infer_types
from subgraph.graph.walk import bodies

MAX_GUESSES = 5  # problems for which similar names are looked up, which is slow in large graphs
SHOWN_NODES = 8  # of a cycle, or of nodes that share a name


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        kind: type, op, arity, attribute, shape, dangling, twice, cycle, order, name, output, untyped, opset or weight.
        node: index of the node where it is; None if it concerns no single node.
        tensor: the tensor that it concerns, if any.
        what, hint: what is wrong, and what to do.
        fatal: it makes the model invalid. Otherwise it is a note: subcut and most runtimes accept the model.
    """

    kind: str
    node: int | None
    tensor: str | None
    what: str
    hint: str = ""
    fatal: bool = True


def find_problems(graph: Graph, types: InferredTypes | None = None) -> list[Problem]:
    """All problems: fatal ones first, then in the order of the nodes.

    `types`: the result of `infer_types`, if the caller has it already. Complexity: linear in nodes and edges.
    """
    types = types or infer_types(graph)
    problems = [problem for rule in RULES for problem in rule(graph)]
    problems += _check_schemas(graph, types)
    invalid = {p.node for p in problems if p.fatal}
    problems += [p for c in types.complaints if c.node not in invalid and (p := _from_inference(graph, c))]
    return sorted(problems, key=lambda p: (not p.fatal, -1 if p.node is None else p.node))


def node_title(graph: Graph, i: int) -> str:
    """`Clip 'clip1' (#17)`."""
    node = graph.nodes[i]
    return f"{node.op_type} '{node.name}' (#{i})" if node.name else f"{node.op_type} (#{i})"


# ---------------------------------------------------------------------------------------------------- tensors


def _dangling(graph: Graph) -> Iterator[Problem]:
    """Tensors that nodes read, or the model outputs, but that nothing makes."""
    existing = {*graph.maker, *graph.inputs, *graph.weights, *graph.sparse}
    missing = [(i, n) for i, names in enumerate(graph.reads) for n in names if n not in existing]
    for number, (i, name) in enumerate(missing):
        what = f"{node_title(graph, i)} reads '{name}', which no node makes and which is no input or weight"
        hint = (
            did_you_mean(name, existing) if number < MAX_GUESSES else ""
        ) or "connect it, or add the node that makes it"
        yield Problem("dangling", i, name, what, hint)
    for number, name in enumerate(n for n in graph.outputs if n not in existing):
        hint = (
            did_you_mean(name, existing) if number < MAX_GUESSES else ""
        ) or "remove it, or name a tensor that exists"
        yield Problem("output", None, name, f"output '{name}' of the model is made by nobody", hint)


def _twice(graph: Graph) -> Iterator[Problem]:
    """A tensor must be made once (static single assignment)."""
    hint = "give one of the two another name, also where it is read"
    for name, first, second in graph.made_twice:
        what = f"tensor '{name}' is made twice, by {node_title(graph, first)} and by {node_title(graph, second)}"
        yield Problem("twice", second, name, what, hint)
    for role, names in (("an input", graph.inputs), ("a weight", graph.weights | graph.sparse)):
        for name in names:
            if name in graph.maker:
                what = f"{node_title(graph, graph.maker[name])} makes '{name}', which is {role} of the model as well"
                yield Problem("twice", graph.maker[name], name, what, hint)
    for name, number in Counter(v.name for v in graph.model.graph.input).items():
        if number > 1:
            yield Problem("twice", None, name, f"input '{name}' is listed {number} times", "keep one of them")


def _names(graph: Graph) -> Iterator[Problem]:
    for name, nodes in graph.shared_names.items():
        which = ", ".join(f"#{i}" for i in nodes[:SHOWN_NODES]) + (", …" if len(nodes) > SHOWN_NODES else "")
        hint = "onnxruntime refuses a model with such names; subcut renames them in its cuts: call them by their number"
        yield Problem("name", nodes[0], None, f"{len(nodes)} nodes are called '{name}': {which}", hint, fatal=False)


# ---------------------------------------------------------------------------------------------------- order


def _order(graph: Graph) -> Iterator[Problem]:
    """Cycles, and nodes that come before the maker of a tensor that they read."""
    maker = graph.maker
    late = [(i, name) for i, names in enumerate(graph.reads) for name in names if maker.get(name, -1) >= i]
    if not late:
        return
    import networkx

    edges = networkx.DiGraph((maker[n], i) for i, names in enumerate(graph.reads) for n in names if n in maker)
    loops = set(networkx.nodes_with_selfloops(edges))
    cyclic = [nodes for nodes in networkx.strongly_connected_components(edges) if len(nodes) > 1 or nodes & loops]
    for nodes in cyclic:
        yield _cycle(graph, [a for a, *_ in networkx.find_cycle(edges.subgraph(nodes), min(nodes))])
    component = {i: number for number, nodes in enumerate(cyclic) for i in nodes}
    for i, name in late:
        if i not in component or component[i] != component.get(maker[name]):
            what = f"{node_title(graph, i)} comes before {node_title(graph, maker[name])}, whose '{name}' it reads"
            hint = "nodes must be in topological order; subcut and onnxruntime sort them, other tools do not"
            yield Problem("order", i, name, what, hint, fatal=False)


def _cycle(graph: Graph, nodes: list[int]) -> Problem:
    """The problem of a cycle; `nodes` in the order of the data flow."""
    back = next(name for name in graph.reads[nodes[0]] if graph.maker.get(name) == nodes[-1])
    titles = [node_title(graph, i) for i in nodes[:SHOWN_NODES]]
    titles += [f"… ({len(nodes) - SHOWN_NODES} more)"] if len(nodes) > SHOWN_NODES else []
    what = f"cycle: {' → '.join([*titles, node_title(graph, nodes[0])])}"
    hint = f"a graph must have none: '{back}' comes back from {node_title(graph, nodes[-1])}"
    return Problem("cycle", nodes[0], back, what, hint)


# ---------------------------------------------------------------------------------------------------- declarations


def _untyped(graph: Graph) -> Iterator[Problem]:
    for info in graph.model.graph.input:
        if not type_text(info.type):
            hint = "declare its element type and shape"
            yield Problem("untyped", None, info.name, f"input '{info.name}' of the model has no type", hint)


def _opsets(graph: Graph) -> Iterator[Problem]:
    """Domains that are used but not imported, which is fatal for the standard domain and for local functions."""
    known = imported(graph.model)
    functions = {f.domain for f in graph.model.functions}
    for domain, i in first_users(graph).items():
        if domain in known:
            continue
        full_name = domain or "ai.onnx"
        what = f"{node_title(graph, i)} is of domain '{full_name}', of which the model imports no opset"
        hint = f"add an opset_import of '{full_name}' with the version that the model was made for"
        yield Problem("opset", i, None, what, hint, fatal=not domain or domain in functions)
    for opset in graph.model.opset_import:
        newest = newest_opsets().get(canonical_domain(opset.domain), opset.version)
        if opset.version > newest:
            what = f"opset {opset.version} of '{opset.domain or 'ai.onnx'}' is newer than this onnx knows ({newest})"
            yield Problem("opset", None, None, what, "its nodes are not checked: pip install -U onnx", fatal=False)


def _weights(graph: Graph) -> Iterator[Problem]:
    declared = graph.declared_types(graph.weights)
    for name, tensor in graph.weights.items():
        own = element_text(tensor.data_type)
        if not own:
            what = f"weight '{name}' has element type {tensor.data_type}, which is none that subcut knows"
            fatal = tensor.data_type not in protobuf.protos().TensorProto.DataType.values()[1:]
            yield Problem("untyped", None, name, what, "store it again with a type", fatal)
            continue
        if problem := _data_problem(graph, tensor):
            yield problem
        if name in declared and type_text(declared[name]) not in ("", own):
            what = f"weight '{name}' is {shown(own)}, but declared as {shown(type_text(declared[name]))}"
            yield Problem("type", None, name, what, "correct the declaration")
    for name, number in Counter(t.name for t in graph.model.graph.initializer).items():
        if number > 1:
            what = f"{number} weights are called '{name}'; runtimes differ in which one they take"
            yield Problem("weight", None, name, what, "keep one of them", fatal=False)


def _data_problem(graph: Graph, tensor: protobuf.TensorProto) -> Problem | None:
    """The bytes of a weight are missing, or not as many as its type and shape need."""
    try:
        if protobuf.on_disk(tensor):
            protobuf.locate(tensor, graph.path)
        elif protobuf.element_count(tensor) and tensor.raw_data and len(tensor.raw_data) != protobuf.nbytes(tensor):
            what = f"weight '{tensor.name}' has {len(tensor.raw_data)} bytes, its type and shape need"
            return Problem("weight", None, tensor.name, f"{what} {protobuf.nbytes(tensor)}", "store it again")
    except ModelError as e:
        return Problem("weight", None, tensor.name, e.what, e.hint)
    return None


RULES: tuple[Callable[[Graph], Iterator[Problem]], ...] = (
    _dangling, _twice, _names, _order, _untyped, _opsets, _weights,
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------- nodes


def _check_schemas(graph: Graph, types: InferredTypes) -> Iterator[Problem]:
    """Check each node, also in bodies, against the schema of its operator."""
    schemas = Schemas(imported(graph.model), frozenset(graph.functions))
    outer = {name: type_text(t) for name, t in (types.inferred | types.declared).items()}
    outer.update(_weight_types(graph.model.graph))
    for node in types.graph.node:
        i = int(node.name[1:])
        for inner, visible in _with_bodies(node, outer):
            title = node_title(graph, i) if inner is node else f"{node_title(graph, i)}: {inner.op_type} in its body"
            for issue in schemas.check(inner, visible):
                yield Problem(issue.kind, i, issue.tensor, f"{title} {issue.what}", issue.hint, issue.fatal)


def affected_nodes(graph: Graph, problems: Iterable[Problem]) -> set[int]:
    """Nodes that cannot be run because of a problem at them or above them."""
    fatal = [p for p in problems if p.fatal]
    nodes = {p.node for p in fatal if p.node is not None}
    names = {p.tensor for p in fatal if p.node is None and p.tensor and p.kind != "output"}
    return graph.descendants(nodes.union(*graph.readers_of(names).values()))


def _with_bodies(
    node: protobuf.NodeProto, types: Mapping[str, str]
) -> Iterator[tuple[protobuf.NodeProto, Mapping[str, str]]]:
    """The node and the nodes in its bodies, each with the types of the tensors that it sees; "" is unknown."""
    yield node, types
    for body in bodies(node):
        own = {name: "" for inner in body.node for name in inner.output}
        own.update((v.name, type_text(v.type)) for v in (*body.value_info, *body.output, *body.input))
        own.update(_weight_types(body))
        for inner in body.node:
            yield from _with_bodies(inner, ChainMap(own, types))  # type: ignore[arg-type]


def _weight_types(graph: protobuf.GraphProto) -> dict[str, str]:
    weights = (*graph.initializer, *(s.values for s in graph.sparse_initializer))
    return {t.name: element_text(t.data_type) for t in weights}


def _from_inference(graph: Graph, complaint: Complaint) -> Problem | None:
    """An error of shape inference as a problem; None if it only results from missing types or weights."""
    i, message = complaint.node, re.sub(r"^\[\w+\] *", "", complaint.text)
    if re.search("instead is null|external tensors", message):
        return None
    text = f"{node_title(graph, i)}: {message}"
    if "elem type differs from existing" in message:
        return Problem("type", i, None, text, "correct the declared type of its output", complaint.certain)
    if "existing" in message:
        hint = "runtimes take the real one and may warn; correct or remove the declared shape of its output"
        return Problem("shape", i, None, text, hint, fatal=False)
    return Problem("shape", i, None, text, "compare the shapes of its inputs", complaint.certain)
