"""Two graphs → one: end to end, side by side, or as the halves of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from subgraph.editing.draft import Draft, describe
from subgraph.errors import ModelError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.opsets import opset_of
from subgraph.graph.types import declared_type
from subgraph.graph.walk import assign, rename
from subgraph.text import clean, nearest

OUTPUTS = "subcut.outputs"  # metadata of a tail: the outputs of the model that it was taken from, in order
SPLIT_INPUT = 13  # opset from which Split takes its sizes as an input


def merge(one: Graph, other: Graph, names: Mapping[str, str] | None = None, *, batch: bool = False) -> Draft:
    """`one` with `other` behind it or beside it.

    An input of `other` is fed by the output of `one` that `names` gives it (output → input), or that has its name;
    inputs of the same name and type are one. Outputs that feed `other` are no outputs of the whole, others are, those
    of `one` first; of a tail that `remove_tail` made, the outputs are those of the model that it was taken from.
    `batch`: nothing is joined; inputs of the same name become one, whose first half along the first axis goes to `one`,
    and outputs of the same name are joined along it.

    Raises:
        UnknownName, UsageError: a name that is no output or input; with `batch`, first dimensions that are not fixed.
        ModelError: types of joined tensors differ, or the opsets cannot be reconciled.
    """
    if batch and names:
        raise UsageError("--batch joins nothing, so there is nothing to map", "leave out --map or --batch")
    joined = {} if batch else _joined(one, other, names or {})
    draft = Draft(one)
    graph = draft.model.graph
    first = {v.name: v for v in graph.input if v.name in one.inputs}
    shared = (
        {} if batch else {n: n for n, v in other.inputs.items() if n not in joined and _is_shared(n, v, first, one)}
    )
    called = draft.insert(other, joined | shared)
    kept_outputs = [v for v in graph.output if v.name not in joined.values()]
    theirs = [_named(v, called[v.name]) for v in other.model.graph.output]
    order = _order(other)
    if order and not batch:
        known = {v.name: v for v in (*graph.output, *theirs)}
        kept_outputs, theirs = [known[n] for n in order if n in known], []
    assign(graph.output, [*kept_outputs, *theirs])
    graph.input.extend(_named(v, called[n]) for n, v in other.inputs.items() if n not in joined | shared)
    _add_metadata(draft.model, other.model)
    if batch:
        _make_batch(draft, one, other, called)
    elif joined:
        draft.remarks.append("joined: " + ", ".join(f"{clean(o)} → {clean(i)}" for i, o in joined.items()))
    if shared:
        draft.remarks.append(f"{describe(list(shared), 'input')} of both")
    if moved := [n for n in other.outputs if called[n] != n and n in one.outputs and not batch]:
        draft.remarks.append(f"output {', '.join(f'{clean(n)} of the second is {clean(called[n])}' for n in moved)}")
    return draft


def _joined(one: Graph, other: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """Input of `other` → output of `one`."""
    joined = {n: n for n in other.inputs if n in one.outputs and n not in names and n not in names.values()}
    for output, taker in names.items():
        for name, known, word, graph in ((output, one.outputs, "output", one), (taker, other.inputs, "input", other)):
            if name not in known:
                what = f"'{clean(name)}' is no {word} of {clean(graph.path.name)}"
                raise UnknownName(what, nearest=nearest(name, list(known)))
        joined[taker] = output
    makers = {v.name: v for v in one.model.graph.output}
    for taker, output in joined.items():
        a, b = declared_type(makers[output].type), declared_type(other.inputs[taker].type)
        if a[:2] != b[:2] or not (a.shape_fits(b) or not a.dims or not b.dims):
            raise ModelError(
                f"output '{clean(output)}' is {a.dtype} {a.dims}, input '{clean(taker)}' is {b.dtype} {b.dims}",
                "--map joins others, or put a Cast or Reshape between them",
            )
    return joined


def _is_shared(name: str, info: Any, first: Mapping[str, Any], one: Graph) -> bool:
    return name in one.inputs and declared_type(first[name].type) == declared_type(info.type)


def _named(info: Any, name: str) -> Any:
    made = protobuf.protos().ValueInfoProto.FromString(info.SerializeToString())
    made.name = name
    return made


def _order(other: Graph) -> list[str]:
    """The outputs that a tail's metadata name; empty for any other model."""
    text = next((e.value for e in other.model.metadata_props if e.key == OUTPUTS), "")
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return [n for n in found if isinstance(n, str)] if isinstance(found, list) else []


def _add_metadata(model: Any, other: Any) -> None:
    known = {e.key for e in model.metadata_props} | {OUTPUTS}
    for entry in other.metadata_props:
        if entry.key not in known:
            model.metadata_props.add(key=entry.key, value=entry.value)


# ---------------------------------------------------------------------------------------------------- a batch


def _make_batch(draft: Draft, one: Graph, other: Graph, called: Mapping[str, str]) -> None:
    """Join inputs and outputs of the same name along the first axis."""
    graph = draft.model.graph
    inputs = [n for n in one.inputs if n in other.inputs]
    outputs = [n for n in one.outputs if n in other.outputs]
    if not inputs or not outputs:
        raise UsageError("--batch: the models have no input and output of the same name", "rename them, or use --map")
    inner = {n: f"{n}/first" for n in (*inputs, *outputs)}
    rename(graph, lambda name: inner.get(name, name), str)
    opset = opset_of(draft.model)
    for name in inputs:
        halves = [inner[name], called[name]]
        sizes = [_first_size(g, g.inputs[name]) for g in (one, other)]
        _merge_declared(graph.input, name, halves, sum(sizes))
        node = graph.node.add(op_type="Split", name=f"{name}/split", input=[name], output=halves)
        if opset >= SPLIT_INPUT:
            node.input.append(f"{name}/sizes")
            graph.initializer.add(name=f"{name}/sizes", data_type=7, dims=[2], int64_data=sizes)
        else:
            node.attribute.add(name="split", type=7, ints=sizes)
    for name in outputs:
        halves = [inner[name], called[name]]
        sizes = [_first_size(g, v) for g, v in ((g, _output(g, name)) for g in (one, other))]
        _merge_declared(graph.output, name, halves, sum(sizes))
        node = graph.node.add(op_type="Concat", name=f"{name}/concat", input=halves, output=[name])
        node.attribute.add(name="axis", type=2, i=0)
    draft.sort(lambda i, node: -1.0 if node.op_type == "Split" and node.input[0] in inputs else float(i))


def _output(graph: Graph, name: str) -> Any:
    return next(v for v in graph.model.graph.output if v.name == name)


def _first_size(graph: Graph, info: Any) -> int:
    dims = declared_type(info.type).dims
    if not dims or not isinstance(dims[0], int):
        raise UsageError(
            f"--batch: the first dimension of '{clean(info.name)}' of {clean(graph.path.name)} is open",
            "give both models a fixed batch size",
        )
    return dims[0]


def _merge_declared(declared: Any, name: str, halves: Sequence[str], size: int) -> None:
    """Replace the declarations of two halves by that of the whole, at the first one's place."""
    first = next(v for v in declared if v.name == halves[0])
    whole = _named(first, name)
    whole.type.tensor_type.shape.dim[0].dim_value = size
    assign(declared, [whole if v is first else v for v in declared if v.name != halves[1]])
