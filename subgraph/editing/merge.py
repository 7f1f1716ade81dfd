"""Two graphs → one graph, end to end or side by side; a model → a model without some nodes.

Nodes are bypassed one by one, or a tail is kept as a separate model, which `merge` joins again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from subgraph.editing.draft import Draft, describe
from subgraph.editing.replace import find_owned_nodes
from subgraph.errors import ModelError, NoRegion, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut, cut_region
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import CONSTANT, find_kinds
from subgraph.graph.nested import assign, rename
from subgraph.graph.region import build_region
from subgraph.graph.selection import select
from subgraph.graph.value_types import read_type
from subgraph.graph.walks import find_descendants
from subgraph.iterables import flatten, index_by_name
from subgraph.storage.tensors import Records
from subgraph.text import clean, count, find_nearest
from subgraph.types import JsonObject, StringMap

# Metadata of a tail: the outputs of the model that it was taken from, in order.
OUTPUTS = "subcut.outputs"


def merge(one: Graph, other: Graph, names: StringMap | None = None) -> Draft:
    """Join two models, and return the joined model.

    Outputs of `one` feed inputs of `other`. Inputs with the same name and type become one input.
    The other outputs are the outputs of the joined model, those of `one` first. If `other` is a
    tail from `remove_tail`, the outputs are those of the original model.

    Args:
        one: The first model.
        other: The second model.
        names: Inputs of `other` by the output of `one` that feeds each; others go by their names.

    Raises:
        UnknownName: A name is not that of an output of `one` or an input of `other`.
        ModelError: The types of joined tensors differ, or the opsets cannot be reconciled.
    """
    joined = _join(one, other, names or {})
    draft = Draft(one)
    graph = draft.model.graph
    first = {v.name: v for v in graph.input if v.name in one.inputs}
    shared = {
        n: n
        for n, v in other.inputs.items()
        if n not in joined and n in first and read_type(first[n].type) == read_type(v.type)
    }
    called = draft.insert(other, joined | shared)
    kept_outputs = [v for v in graph.output if v.name not in joined.values()]
    theirs = [_name_all(v, called[v.name]) for v in other.model.graph.output]
    if order := _order(other):
        known = index_by_name((*graph.output, *theirs))
        kept_outputs = [known[n] for n in order if n in known]
        theirs = []
    assign(graph.output, [*kept_outputs, *theirs])
    graph.input.extend(
        _name_all(v, called[n]) for n, v in other.inputs.items() if n not in joined | shared
    )
    kept_keys = {e.key for e in draft.model.metadata_props} | {OUTPUTS}
    for entry in other.model.metadata_props:
        if entry.key not in kept_keys:
            draft.model.metadata_props.add(key=entry.key, value=entry.value)
    if joined:
        pairs = (f"{clean(output)} → {clean(taker)}" for taker, output in joined.items())
        draft.remarks.append(f"joined: {', '.join(pairs)}")
    if shared:
        draft.remarks.append(f"{describe(list(shared), 'input')} of both")
    if moved := [n for n in other.outputs if called[n] != n and n in one.outputs]:
        names_now = (f"{clean(n)} of the second is {clean(called[n])}" for n in moved)
        draft.remarks.append(f"output {', '.join(names_now)}")
    return draft


def _join(one: Graph, other: Graph, names: StringMap) -> dict[str, str]:
    """Return the output of `one` for each input of `other`."""
    joined = {
        n: n
        for n in other.inputs
        if n in one.outputs and n not in names and n not in names.values()
    }
    for output, taker in names.items():
        for name, known, word, graph in (
            (output, one.outputs, "output", one),
            (taker, other.inputs, "input", other),
        ):
            if name not in known:
                raise UnknownName(
                    f"'{name}' is not an {word} of {graph.path.name}",
                    nearest=find_nearest(name, list(known)),
                    code="edit.unknown-tensor",
                )
        joined[taker] = output
    makers = index_by_name(one.model.graph.output)
    for taker, output in joined.items():
        source = read_type(makers[output].type)
        target = read_type(other.inputs[taker].type)
        is_open = not source.dims or not target.dims
        if source[:2] != target[:2] or not (is_open or source.does_shape_fit(target)):
            raise ModelError(
                f"output '{output}' is {source.dtype} {source.dims},"
                f" input '{taker}' is {target.dtype} {target.dims}",
                "--map joins others, or put a Cast or Reshape between them",
                code="edit.types-differ",
            )
    return joined


def _name_all(info: Any, name: str) -> Any:
    info_copy = protobuf.load_protos().ValueInfoProto.FromString(info.SerializeToString())
    info_copy.name = name
    return info_copy


def _order(other: Graph) -> list[str]:
    """Return the outputs that a tail's metadata name; empty for any other model."""
    text = next((e.value for e in other.model.metadata_props if e.key == OUTPUTS), "")
    try:
        names = json.loads(text) if text else []
    except ValueError:
        return []
    if isinstance(names, list):
        return [n for n in names if isinstance(n, str)]
    return []


def bypass(graph: Graph, nodes: Sequence[int]) -> Draft:
    """Return the model without some nodes of one input and one output.

    The consumers of a node's output then read the node's input instead. Inputs that are constants
    (scale and zero point, axes) do not count. If the output of a node is one of the model and its
    input cannot take over that name, an Identity stays in its place.

    Raises:
        UsageError: A node has several inputs or outputs that are in use.
    """
    entry = {i: _require_only_input(graph, i) for i in nodes}
    source = {_require_only_output(graph, i): name for i, name in entry.items()}

    def origin(name: str) -> str:
        while name in source:
            name = source[name]
        return name

    draft = Draft(graph)
    model = draft.model.graph
    draft.drop_nodes(set(entry), needed=entry.values())
    outputs = [name for name in graph.outputs if name in source]
    takes_over: dict[str, str] = {}  # tensor → the output of the model that it becomes
    for name in outputs:
        first = origin(name)
        if first in graph.maker and first not in graph.outputs and first not in takes_over:
            takes_over[first] = name
        else:
            model.node.add(op_type="Identity", name=f"{name}/kept", input=[first], output=[name])
            draft.remarks.append(f"an Identity makes the output {clean(name)} of {clean(first)}")
    new = {name: origin(name) for name in source if name not in outputs}
    new = {name: takes_over.get(first, first) for name, first in new.items()} | takes_over
    declared = {v.name for v in (*model.input, *model.output)}
    rename(model, lambda n: new.get(n, n), str)
    infos: JsonObject = index_by_name(model.value_info)
    assign(model.value_info, [v for n, v in infos.items() if n not in declared and n not in new])
    draft.sort()
    draft.drop_unused_functions()
    return draft


def _require_only_input(graph: Graph, i: int) -> str:
    reads = graph.reads[i]
    kinds = find_kinds(graph, (n for n in reads if n in graph.maker))
    names = [n for n in dict.fromkeys(reads) if not graph.is_weight(n) and kinds.get(n) != CONSTANT]
    if not names and len(set(reads)) == 1:  # as an Identity of a weight
        return reads[0]
    if len(names) != 1:
        raise UsageError(
            f"'{graph.label(i)}' ({graph.ops[i]}) has {count(names, 'input')} that are"
            " not constants",
            "only a node of one input and one output can be bypassed; `subcut replace` puts"
            " something else there",
            code="edit.not-bypassable",
        )
    return names[0]


def _require_only_output(graph: Graph, i: int) -> str:
    used = [n for n in graph.makes[i] if graph.readers.get(n) or n in graph.outputs]
    if len(used) > 1:
        raise UsageError(
            f"'{graph.label(i)}' ({graph.ops[i]}) has {count(used, 'output')} in use",
            "only a node of one input and one output can be bypassed",
            code="edit.not-bypassable",
        )
    return used[0] if used else graph.makes[i][0]


def remove_tail(
    graph: Graph, selectors: Sequence[str], captured: Sequence[Records] = ()
) -> tuple[Draft, Cut]:
    """Return a model without some nodes and all nodes downstream (the head), and these (the tail).

    The inputs of the tail are outputs of the head; `merge` joins both again.

    Args:
        graph: The model.
        selectors: The first nodes of the tail.
        captured: Values at the boundary, for types that the model does not declare.

    Raises:
        UnknownName: The model has no such node.
        NoRegion: The head would have no nodes.
        ModelError: A type at the boundary is unknown.
    """
    tail_nodes = find_descendants(graph, flatten(select(graph, word).nodes for word in selectors))
    if len(tail_nodes) == len(graph.nodes):
        raise NoRegion(
            "nothing is left: all nodes are below",
            "name a node further down with --from",
            code="edit.nothing-left",
        )
    region = build_region(graph, tail_nodes, [tuple(graph.outputs)], keep_random=True)
    tail = cut_region(graph, region, captured, dynamic=True)
    tail.model.metadata_props.add(key=OUTPUTS, value=json.dumps(list(graph.outputs)))
    draft = Draft(graph)
    model = draft.model.graph
    gone = find_owned_nodes(graph, region)
    draft.drop_nodes(gone)
    produced = set(graph.iter_outputs(gone))
    assign(model.output, [v for v in model.output if v.name not in produced])
    available = {v.name for v in model.output} | set(graph.inputs)
    for name in region.entering:
        if name not in available:
            model.output.add(name=name).type.CopyFrom(tail.types[name])
    outputs = {v.name for v in model.output}
    assign(model.value_info, [v for v in model.value_info if v.name not in outputs])
    draft.drop_unused_functions()
    return draft, tail
