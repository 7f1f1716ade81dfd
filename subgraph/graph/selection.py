"""Selectors: the nodes and the tensor that a text names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.nested import find_function_key, list_bodies
from subgraph.text import find_nearest, list_some


@dataclass(frozen=True, slots=True)
class Selection:
    """The nodes of a selector, and its tensor if it names one."""

    text: str
    nodes: tuple[int, ...]
    tensor: str | None = None


def select(graph: Graph, text: str) -> Selection:
    """Resolve a selector.

    Tried in this order: exact node name; tensor name (its producer, or, for a model input, its
    consumers); `node:NAME`, `tensor:NAME`; `#17`, the node's index;
    `Conv@3`, the third Conv; a glob that matches one node name; a name without its middle, as
    tables show it.

    Raises:
        UnknownName: no node or tensor matches; carries the three nearest names.
        UsageError: several match; lists them. Or the selector names a weight.
    """
    kind, _, name = text.partition(":")
    return (
        _select_by_node_name(graph, text, text)
        or _select_by_tensor_name(graph, text, text)
        or (_select_by_node_name(graph, text, name) if kind == "node" else None)
        or (_select_by_tensor_name(graph, text, name) if kind == "tensor" else None)
        or _select_by_number(graph, text)
        or _select_by_glob(graph, text)
        or _raise_unknown(graph, text)
    )


def select_all(graph: Graph, text: str) -> tuple[int, ...]:
    """Return the nodes of a selector; of a glob all that it matches. Errors as of `select`, but
    for several matches."""
    nodes = _find_fitting_nodes(graph, text) if _is_glob(graph, text) else []
    return tuple(nodes) or select(graph, text).nodes


def is_name(graph: Graph, text: str) -> bool:
    """Return whether a text is the name of a node, of a computed tensor or of a model input."""
    return text in graph.names or is_tensor(graph, text)


def is_tensor(graph: Graph, text: str) -> bool:
    """Return whether a text is the name of a node's output or of a model input."""
    return text in graph.maker or text in graph.inputs


def find_fitting_tensors(graph: Graph, tensors: Iterable[str], glob: str) -> list[str]:
    """Find the tensors that a glob fits, by their own name or by that of their producer.

    A text without wildcards, or that is itself a name, fits none.
    """
    if not _is_glob(graph, glob):
        return []
    produced = set(graph.iter_outputs(_find_fitting_nodes(graph, glob)))
    return [name for name in tensors if name in produced or fnmatchcase(name, glob)]


def _is_glob(graph: Graph, text: str) -> bool:
    """Return whether a text has wildcards, and is not itself a name."""
    return any(c in text for c in "*?[") and not is_name(graph, text)


def _find_fitting_nodes(graph: Graph, glob: str) -> list[int]:
    return [i for i, name in enumerate(graph.node_names) if fnmatchcase(name, glob)]


def select_tensor(graph: Graph, text: str) -> str:
    """Return the tensor of a selector: named itself, or the only output of its node.

    Raises:
        UnknownName: As `select`.
        UsageError: As `select`; or the node has several outputs.
    """
    if is_tensor(graph, text):
        return text
    selection = select(graph, text)
    if selection.tensor:
        return selection.tensor
    produced = graph.makes[selection.nodes[0]]
    if len(produced) != 1:
        raise UsageError(
            f"'{text}' makes {len(produced)} tensors",
            f"say which: {', '.join(produced)}",
            code="tensor.ambiguous",
        )
    return produced[0]


def _raise_unknown(graph: Graph, text: str) -> Selection:
    ends = [m.start() for m in re.finditer("/", text)]
    for name in (text[:end] for end in ends if text[:end] in graph.names):
        node = graph.nodes[graph.names[name]]
        if any(list_bodies(node)) or find_function_key(node) in graph.functions:
            raise UnknownName(
                f"'{text}' is inside node '{name}', where this command does not look",
                f"name '{name}' itself; cut, inspect, dump, compare --at and bisect --within"
                " look inside",
                code="node.inside-body",
            )
    raise UnknownName(
        f"no node or tensor '{text}' in {graph.path.name}",
        nearest=find_nearest(
            text.removeprefix("node:").removeprefix("tensor:"), (*graph.names, *graph.maker)
        ),
        code="node.unknown",
    )


def _select_by_glob(graph: Graph, text: str) -> Selection | None:
    if not any(c in text for c in "*?[…"):
        return None
    pattern = text if "…" not in text else "*".join(map(glob.escape, text.split("…")))
    hits = [name for name in graph.names if fnmatchcase(name, pattern)]
    if len(hits) > 1:
        hint = f"say which: {list_some(hits, 8)}"
        raise UsageError(f"'{text}' matches {len(hits)} nodes", hint, code="node.ambiguous")
    if hits:
        return _select_by_node_name(graph, text, hits[0])
    return None


def _select_by_number(graph: Graph, text: str) -> Selection | None:
    if m := re.fullmatch(r"#(\d{1,9})", text):
        i = int(m[1])
        if i >= len(graph.nodes):
            raise UnknownName(
                f"no node '{text}'",
                f"the last node is #{len(graph.nodes) - 1}",
                code="node.unknown",
            )
        return Selection(text, (i,))
    if m := re.fullmatch(r"(\w+)@(\d{1,9})", text):
        same = [i for i, node in enumerate(graph.nodes) if node.op_type == m[1]]
        if 0 < int(m[2]) <= len(same):
            return Selection(text, (same[int(m[2]) - 1],))
        if same:
            raise UnknownName(
                f"no node '{text}': the model has {len(same)} {m[1]}",
                "counting starts at 1",
                code="node.unknown",
            )
    return None


def _select_by_tensor_name(graph: Graph, text: str, name: str) -> Selection | None:
    if name in graph.maker:
        return Selection(text, (graph.maker[name],), name)
    if name in graph.inputs:
        return Selection(text, tuple(graph.readers_of((name,)).get(name, ())), name)
    if graph.is_weight(name):
        raise UsageError(
            f"'{text}' is a weight: no node makes it",
            "name a node that reads or makes a tensor",
            code="node.is-weight",
        )
    return None


def _select_by_node_name(graph: Graph, text: str, name: str) -> Selection | None:
    if same := graph.shared_names.get(name):
        indices = ", ".join(f"#{i}" for i in same[:8])
        raise UsageError(
            f"'{text}' is the name of {len(same)} nodes",
            f"say which: {indices}",
            code="node.ambiguous",
        )
    if name in graph.names:
        return Selection(text, (graph.names[name],))
    return None
