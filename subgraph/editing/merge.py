"""Two graphs → one: end to end, or side by side."""

from __future__ import annotations

import json
from typing import Any

from subgraph.editing.draft import Draft, describe
from subgraph.errors import ModelError, UnknownName
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import assign
from subgraph.graph.value_types import read_type
from subgraph.text import clean, nearest
from subgraph.types import Fields, StringMap

# metadata of a tail: the outputs of the model that it was taken from, in order
OUTPUTS = "subcut.outputs"


def merge(one: Graph, other: Graph, names: StringMap | None = None) -> Draft:
    """`one` with `other` behind it or beside it.

    An input of `other` is fed by the output of `one` that `names` gives it (output → input), or
    that has its name; inputs of the same name and type are one. Outputs that feed `other` are not
    outputs of the whole, others are, those of `one` first; of a tail that `remove_tail` made, the
    outputs are those of the model that it was taken from.

    Raises:
        UnknownName: a name that is not an output or input.
        ModelError: types of joined tensors differ, or the opsets cannot be reconciled.
    """
    joined = _join(one, other, names or {})
    draft = Draft(one)
    graph = draft.model.graph
    first = {v.name: v for v in graph.input if v.name in one.inputs}
    shared = {
        n: n for n, v in other.inputs.items() if n not in joined and _is_shared(n, v, first, one)
    }
    called = draft.insert(other, joined | shared)
    kept_outputs = [v for v in graph.output if v.name not in joined.values()]
    theirs = [_name_all(v, called[v.name]) for v in other.model.graph.output]
    if order := _order(other):
        known = {v.name: v for v in (*graph.output, *theirs)}
        kept_outputs = [known[n] for n in order if n in known]
        theirs = []
    assign(graph.output, [*kept_outputs, *theirs])
    graph.input.extend(
        _name_all(v, called[n]) for n, v in other.inputs.items() if n not in joined | shared
    )
    _add_metadata(draft.model, other.model)
    if joined:
        draft.remarks.append(
            "joined: " + ", ".join(f"{clean(o)} → {clean(i)}" for i, o in joined.items())
        )
    if shared:
        draft.remarks.append(f"{describe(list(shared), 'input')} of both")
    if moved := [n for n in other.outputs if called[n] != n and n in one.outputs]:
        draft.remarks.append(
            f"output {', '.join(f'{clean(n)} of the second is {clean(called[n])}' for n in moved)}"
        )
    return draft


def _join(one: Graph, other: Graph, names: StringMap) -> dict[str, str]:
    """Input of `other` → output of `one`."""
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
                what = f"'{name}' is not an {word} of {graph.path.name}"
                raise UnknownName(
                    what, nearest=nearest(name, list(known)), code="edit.unknown-tensor"
                )
        joined[taker] = output
    makers = {v.name: v for v in one.model.graph.output}
    for taker, output in joined.items():
        a = read_type(makers[output].type)
        b = read_type(other.inputs[taker].type)
        if a[:2] != b[:2] or not (a.shape_fits(b) or not a.dims or not b.dims):
            raise ModelError(
                f"output '{output}' is {a.dtype} {a.dims}, input '{taker}' is {b.dtype} {b.dims}",
                "--map joins others, or put a Cast or Reshape between them",
                code="edit.types-differ",
            )
    return joined


def _is_shared(name: str, info: Any, first: Fields, one: Graph) -> bool:
    return name in one.inputs and read_type(first[name].type) == read_type(info.type)


def _name_all(info: Any, name: str) -> Any:
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
