"""A cut -> the same nodes as the body of a Loop that runs once: for faults that a candidate has in bodies only."""

from __future__ import annotations

from pathlib import Path

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut
from subgraph.graph.opsets import opset_of
from subgraph.graph.types import set_tensor
from subgraph.graph.walk import rename

INT64, BOOL = 7, 9
AXES_ARE_INPUTS = 13  # opset of Squeeze
TRIPS, GO, AXES = "subcut:once", "subcut:go", "subcut:axes"  # ':' keeps them apart from users' names


def save_as_loop(cut: Cut, path: Path) -> None:
    """Write `as_loop` of a cut in one file, as `Cut.save` writes the cut.

    Raises:
        ModelError: as `as_loop`.
    """
    protobuf.write(as_loop(cut), cut.graph.path, path, external=False)


def as_loop(cut: Cut) -> protobuf.ModelProto:
    """The model of a cut with its nodes in a Loop of one iteration, whose outputs are what the Loop collects.

    Raises:
        ModelError: an output is no tensor, so that no Loop can collect it.
    """
    if odd := [n for n in cut.outputs if cut.declared(n).form != "tensor"]:
        raise ModelError(f"'{odd[0]}' is no tensor: a Loop cannot collect it")
    protos = protobuf.protos()
    model, inner = protos.ModelProto(), protos.GraphProto(name="once")
    model.CopyFrom(cut.model)
    graph = model.graph
    outer = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    outer |= {s.values.name for s in graph.sparse_initializer}
    inner.node.extend(graph.node)
    rename(inner, lambda name: name if name in outer else f"{name}:inside", str)
    set_tensor(inner.input.add(name="subcut:iteration").type, INT64, ())
    set_tensor(inner.input.add(name="subcut:begun").type, BOOL, ())
    inner.node.add(op_type="Identity", input=["subcut:begun"], output=["subcut:on"])
    set_tensor(inner.output.add(name="subcut:on").type, BOOL, ())
    for info in graph.output:
        collected = inner.output.add(name=f"{info.name}:inside")
        collected.type.CopyFrom(info.type)
    del graph.node[:]
    graph.ClearField("value_info")
    graph.ClearField("quantization_annotation")
    graph.initializer.add(name=TRIPS, data_type=INT64, int64_data=[1])
    graph.initializer.add(name=GO, data_type=BOOL, int32_data=[1])
    names = [info.name for info in graph.output]
    loop = graph.node.add(op_type="Loop", input=[TRIPS, GO], output=[f"{name}:collected" for name in names])
    loop.attribute.add(name="body", type=5).g.CopyFrom(inner)
    opset = opset_of(model)
    if opset >= AXES_ARE_INPUTS:
        graph.initializer.add(name=AXES, data_type=INT64, dims=[1], int64_data=[0])
    for name in names:
        squeeze = graph.node.add(op_type="Squeeze", input=[f"{name}:collected"], output=[name])
        if opset >= AXES_ARE_INPUTS:
            squeeze.input.append(AXES)
        else:
            squeeze.attribute.add(name="axes", type=7, ints=[0])
    return model
