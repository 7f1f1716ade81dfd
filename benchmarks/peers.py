"""A peer's name, a model and tensor names -> the cut as that peer makes it, in one process.

    python -m benchmarks.peers NAME MODEL START_TENSORS END_TENSORS OUT        (tensors joined by
    commas)

Each peer is used as its documentation recommends, and imported inside its function, so that a
process pays only for its own. A peer that fails, fails: its traceback is what the benchmark
records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def onnx_utils(model: str, starts: list[str], ends: list[str], out: str) -> None:
    """`onnx.utils.extract_model` with its defaults: check, infer shapes, extract, check."""
    import onnx.utils

    onnx.utils.extract_model(model, out, starts, ends)


def onnx_utils_bare(model: str, starts: list[str], ends: list[str], out: str) -> None:
    """The same without the check and the inference: the least work that it can be asked for."""
    import onnx.utils

    onnx.utils.extract_model(model, out, starts, ends, check_model=False, infer_shapes=False)


def onnx_ir(model: str, starts: list[str], ends: list[str], out: str) -> None:
    """`onnx_ir.convenience.extract`; weights that were in a data file go into one beside the
    cut."""
    import onnx_ir as ir
    from onnx_ir.convenience import extract

    whole = ir.load(model)
    cut = ir.Model(extract(whole.graph, starts, ends), ir_version=whole.ir_version)
    values = (value.const_value for value in cut.graph.initializers.values())
    if any(isinstance(value, ir.ExternalTensor) for value in values):
        ir.save(cut, out, external_data=f"{Path(out).name}.data")
    else:
        ir.save(cut, out)


def onnx_graphsurgeon(model: str, starts: list[str], ends: list[str], out: str) -> None:
    """As its example "Isolating a subgraph": set inputs and outputs, cleanup, export."""
    import onnx
    import onnx_graphsurgeon as gs

    graph = gs.import_onnx(onnx.load(model))
    tensors = graph.tensors()
    graph.inputs = [tensors[name] for name in starts]
    graph.outputs = [tensors[name] for name in ends]
    graph.cleanup()
    onnx.save(gs.export_onnx(graph), out)


def polygraphy(model: str, starts: list[str], ends: list[str], out: str) -> None:
    """`polygraphy surgeon extract`: the command's own entry point, types and shapes left to it."""
    from polygraphy.tools import main as command

    inputs = [f"{name}:auto:auto" for name in starts]
    outputs = [f"{name}:auto" for name in ends]
    sys.argv = ["polygraphy", "surgeon", "extract", model]
    sys.argv += ["--inputs", *inputs, "--outputs", *outputs, "-o", out]
    sys.exit(command())


PEERS: dict[str, Callable[[str, list[str], list[str], str], None]] = {
    "onnx.utils": onnx_utils,
    "onnx.utils-bare": onnx_utils_bare,
    "onnx_ir": onnx_ir,
    "onnx-graphsurgeon": onnx_graphsurgeon,
    "polygraphy": polygraphy,
}


def main(arguments: list[str]) -> None:
    if len(arguments) != 5 or arguments[0] not in PEERS:
        sys.exit(
            f"usage: python -m benchmarks.peers {'|'.join(PEERS)} MODEL START_TENSORS"
            " END_TENSORS OUT"
        )
    name, model, starts, ends, out = arguments
    PEERS[name](model, starts.split(","), ends.split(","), out)


if __name__ == "__main__":
    main(sys.argv[1:])
