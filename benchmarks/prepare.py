"""A model and an edge -> what is right for it, and the files that benchmarks.minimal runs. Not
timed.

    python -m benchmarks.prepare MODEL START_TENSORS END_TENSORS PREFIX

PREFIX.npz            the edge's tensors in one run of the *whole* model, read through added outputs
PREFIX.ancestors.onnx from the model's inputs to the edge, the cut's own nodes among them
PREFIX.cut.onnx       the cut alone

The whole model's values owe nothing to any extraction, so they judge every tool, and the two files
as well. PREFIX must lie beside the model: files made of a model with external data go on using its
data file.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx

from benchmarks import minimal, verify


def is_current(prefix: str, model: Path) -> bool:
    """Whether all is there and newer than the model and than this file."""
    made = [Path(prefix + suffix) for suffix in (".npz", ".ancestors.onnx", ".cut.onnx")]
    if not all(path.exists() for path in made):
        return False
    sources = (model, Path(__file__), Path(minimal.__file__))
    newest = max(path.stat().st_mtime for path in sources)
    return min(path.stat().st_mtime for path in made) > newest


def needed(graph: onnx.GraphProto, stops: list[str], targets: list[str]) -> list[onnx.NodeProto]:
    """The nodes that make `targets` from `stops`, in the graph's order (bodies are not looked
    into)."""
    maker = {output: node for node in graph.node for output in node.output}
    seen = set(stops)
    kept: set[str] = set()
    todo = list(targets)
    while todo:
        tensor = todo.pop()
        if tensor in seen or tensor not in maker:
            continue
        seen.add(tensor)
        kept.add(maker[tensor].output[0])
        todo.extend(maker[tensor].input)
    return [node for node in graph.node if node.output[0] in kept]


def extract(model: onnx.ModelProto, stops: list[str], targets: list[str]) -> onnx.ModelProto:
    """The model between tensors; weights keep their place, inline or external."""
    graph = model.graph
    nodes = needed(graph, stops, targets)
    read = {name for node in nodes for name in node.input}
    types = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    made = {name for node in nodes for name in node.output} - set(targets)
    return onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        graph=onnx.GraphProto(
            name=graph.name,
            node=nodes,
            initializer=[tensor for tensor in graph.initializer if tensor.name in read],
            input=[types[name] for name in stops],
            output=[types[name] for name in targets],
            value_info=[info for info in graph.value_info if info.name in made],
        ),
    )


def tap(model: Path, graph: onnx.GraphProto, tensors: list[str], to: Path) -> None:
    """The whole model with more outputs: protobuf messages merge by concatenation."""
    types = {info.name: info for info in graph.value_info}
    more = onnx.ModelProto(graph=onnx.GraphProto(output=[types[name] for name in tensors]))
    shutil.copyfile(model, to)
    with to.open("ab") as file:
        file.write(more.SerializeToString())


def whole_values(
    model: Path, graph: onnx.GraphProto, tensors: list[str], prefix: str
) -> minimal.Tensors:
    tapped = Path(prefix + ".tapped.onnx")
    try:
        tap(model, graph, tensors, tapped)
        session = minimal.load(tapped)
        values = session.run(tensors, minimal.random_feeds(session))
    finally:
        tapped.unlink(missing_ok=True)
    return dict(zip(tensors, values, strict=True))


def main(model: Path, starts: list[str], ends: list[str], prefix: str) -> None:
    if is_current(prefix, model):
        return
    proto = onnx.load(model, load_external_data=False)
    ancestors = Path(prefix + ".ancestors.onnx")
    cut = Path(prefix + ".cut.onnx")
    inputs = [each.name for each in proto.graph.input]
    onnx.save(extract(proto, inputs, [*starts, *ends]), ancestors)
    onnx.save(extract(proto, starts, ends), cut)
    values = whole_values(model, proto.graph, [*starts, *ends], prefix)
    if not all(np.isfinite(value).all() for value in values.values()):
        raise ValueError(f"{model}: its values at {', '.join(values)} are not all finite")
    above = minimal.load(ancestors)
    problem = verify.difference(minimal.run(above, minimal.random_feeds(above)), values)
    problem = problem or verify.problem(cut, starts, ends, values)
    if problem:
        raise ValueError(f"{prefix}: the reference extraction is not right: {problem}")
    np.savez(prefix + ".npz", **values)  # type: ignore[arg-type]  # every keyword is an array's name


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","), sys.argv[4])
