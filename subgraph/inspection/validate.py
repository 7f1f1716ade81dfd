"""Graph → `Problem`s: what makes a model invalid, with node and tensor, as onnx's checker and shape
inference find it.

The checker finds the first problem only. Cycles, tensors without a producer and missing files are
found in addition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.opsets import (
    canonicalize_domain,
    find_misfit,
    find_next_version,
    format_element_type,
    format_schema_type,
    list_newest_opsets,
    read_imports,
)
from subgraph.graph.shape_inference import Complaint, InferredTypes, infer_types
from subgraph.graph.walks import find_descendants
from subgraph.text import find_nearest
from subgraph.types import frozen


@frozen
class Problem:
    """One problem.

    Attributes:
        kind: cycle, dangling, checker, type, shape, opset or weight.
        node: index of the node where it is; None if it concerns no single node.
        tensor: the tensor that it concerns, if any.
        what: The fault of the node, or of the model.
        hint: The action.
        fatal: it makes the model invalid. Otherwise it is a note: subcut and most runtimes accept
            the model.
    """

    kind: str
    node: int | None
    tensor: str | None
    what: str
    hint: str = ""
    fatal: bool = True


def find_problems(graph: Graph, types: InferredTypes | None = None) -> list[Problem]:
    """Return the problems: fatal ones first, then in the order of the nodes.

    `types`: the result of `infer_types`, if the caller has it already. Complexity: linear in nodes
    and edges.
    """
    types = types or infer_types(graph)
    problems = list(_find_disconnected(graph))
    for domain, version in read_imports(graph.model).items():
        newest = list_newest_opsets().get(domain, version)
        if version > newest:
            name = domain or "ai.onnx"
            fact = f"opset {version} of '{name}' is newer than this onnx knows ({newest})"
            hint = "its nodes are not checked: pip install -U onnx"
            problems.append(Problem("opset", None, None, fact, hint, fatal=False))
    problems += _iter_unreadable_weights(graph)
    explained = any(p.fatal for p in problems)
    complaints = [c for c in types.complaints if not (explained and c.from_checker)]
    refused = {c.node for c in complaints if c.from_checker}
    refused |= {None} if refused else set()
    # Inference would only repeat the complaint of the checker.
    complaints = [c for c in complaints if c.from_checker or c.node not in refused]
    problems += [problem for c in complaints if (problem := _convert_complaint(graph, types, c))]
    return sorted(problems, key=lambda p: (not p.fatal, -1 if p.node is None else p.node))


def explain_refusal(graph: Graph, nodes: Collection[int] | None = None) -> str:
    """Return the first problem of an invalid model.

    Args:
        graph: The model.
        nodes: The nodes that the problem may be at; None for any problem.

    Returns:
        The node and the problem; "" for none.
    """
    for problem in find_problems(graph):
        if problem.fatal and (nodes is None or problem.node in nodes):
            where = "" if problem.node is None else f"{format_node_title(graph, problem.node)} "
            return where + problem.what
    return ""


def format_node_title(graph: Graph, i: int) -> str:
    """Return `Clip 'clip1' (#17)`."""
    node = graph.nodes[i]
    return f"{node.op_type} '{node.name}' (#{i})" if node.name else f"{node.op_type} (#{i})"


def find_affected_nodes(graph: Graph, problems: Iterable[Problem]) -> set[int]:
    """Return nodes that cannot be run because of a problem at them or above them."""
    fatal = [p for p in problems if p.fatal]
    nodes = {p.node for p in fatal if p.node is not None}
    names = {p.tensor for p in fatal if p.node is None and p.tensor}
    return find_descendants(graph, nodes.union(*graph.readers_of(names).values()))


def _find_disconnected(graph: Graph) -> Iterator[Problem]:
    """Yield a cycle, or the first tensor that nothing produces."""
    try:
        _ = graph.rank
    except ModelError as e:
        yield Problem("cycle", None, None, e.what, e.hint)
        return
    existing = {*graph.maker, *graph.inputs, *graph.weights, *graph.sparse}
    for i, names in enumerate(graph.reads):
        for name in names:
            if name not in existing:
                similar = ", ".join(find_nearest(name, list(existing)))
                hint = f"connect it; similar names: {similar}" if similar else "connect it"
                fact = f"reads '{name}', which no node makes and which is not an input"
                yield Problem("dangling", i, name, fact, hint)
                return


def _iter_unreadable_weights(graph: Graph) -> Iterator[Problem]:
    for name, tensor in graph.weights.items():
        try:
            if protobuf.is_on_disk(tensor):
                protobuf.locate(tensor, graph.path)
        except ModelError as e:
            yield Problem("weight", None, name, e.what, e.hint)


def _convert_complaint(graph: Graph, types: InferredTypes, complaint: Complaint) -> Problem | None:
    """Return an error that onnx reports as a problem; None if it only results from missing
    types."""
    i = complaint.node
    message = re.sub(r"^\[\w+\] *", "", complaint.text).rstrip(".")
    own, hint = _check_schema(graph, types, i)
    if complaint.from_checker:
        return Problem("checker", i, None, own or f"onnx.checker: {message}", hint)
    if "instead is null" in message or (i is not None and graph.ops[i] == "Constant"):
        # Before opset 9 the schema of Constant allows floats only, but runtimes accept others.
        return None
    if "elem type differs from existing" in message:
        return Problem("type", i, None, message, "correct the declared type", complaint.certain)
    if "existing" in message:
        return Problem(
            "shape",
            i,
            None,
            message,
            "runtimes take the real one and may warn; correct or remove the declared shape of its"
            " output",
            fatal=False,
        )
    if re.search("unsupported type|inconsistent type", message):
        return Problem(
            "type",
            i,
            None,
            own or message,
            ", or ".join(filter(None, (hint, "put a Cast before it"))),
            complaint.certain,
        )
    return Problem(
        "shape", i, None, message, hint or "compare the shapes of its inputs", complaint.certain
    )


def _check_schema(graph: Graph, types: InferredTypes, i: int | None) -> tuple[str, str]:
    """Return why a node does not fit its opset, and as a hint the first later opset that it fits.

    Each can be empty.
    """
    domain = "" if i is None else canonicalize_domain(graph.nodes[i].domain)
    version = read_imports(graph.model).get(domain)
    if i is None or version is None:
        return "", ""
    known = {}
    for name in graph.reads[i]:
        proto = types.type_of(name)
        if name in graph.weights:
            known[name] = format_element_type(graph.weights[name].data_type)
        elif proto is not None:
            known[name] = format_schema_type(proto)
    reason = find_misfit(graph.nodes[i], version, known, domain)
    later = find_next_version(graph.nodes[i], version, known, domain) if reason else None
    hint = f"that is right from opset {later} on: convert the model (onnx.version_converter)"
    return reason, hint if later else ""
