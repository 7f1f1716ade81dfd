"""A float model, samples and a limit -> what one other tool keeps in float so that the model holds
it, as JSON.

    PYTHON -m benchmarks.plan_peers NAME MODEL SAMPLES LIMIT FOLDER        (LIMIT in dB, as subcut's
    score `sqnr`)

Each tool is used as its documentation says, accepts by the same score on the same samples, and runs
in an environment that `benchmarks.plans` makes; nothing of subcut is imported but that score, which
needs numpy alone.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader

Sample = Mapping[str, Any]
SQNR = Path(__file__).parent.parent / "subgraph/comparison/scores/sqnr.py"


class Question:
    """The model, its samples, and how far a lowered model is: `score`, in dB, of a path or a loaded
    model."""

    def __init__(self, model: str, samples: str, limit: float, folder: str) -> None:
        self.model, self.samples_folder, self.limit, self.folder = (
            model,
            samples,
            limit,
            Path(folder),
        )
        self.samples: list[Sample] = [
            dict(np.load(file)) for file in sorted(Path(samples).glob("*.npz"))
        ]
        self.truth = self.run(model)
        self.sqnr: Callable[..., float] = runpy.run_path(str(SQNR))["score"]

    def run(self, model: str | bytes) -> list[Sample]:
        """The outputs by name, per sample."""
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return [
            dict(zip(names, session.run(names, dict(sample)), strict=True))
            for sample in self.samples
        ]

    def score(self, model: str | bytes) -> float:
        return self.sqnr(self.run(model), self.truth)

    def to_json(self, model: str | bytes, kept: int, places: int) -> str:
        return json.dumps({"kept": kept, "places": places, "score": self.score(model)})


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """onnxruntime's calibration data reader."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples: Iterator[Sample] = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self.samples, None)


def nncf(asked: Question) -> str:
    """`nncf.quantize_with_accuracy_control`, with the drop that leaves the limit."""
    import nncf  # type: ignore[import-not-found]

    def validate(model: onnx.ModelProto, data: Any) -> tuple[float, None]:
        return asked.score(model.SerializeToString()), None

    model = onnx.load(asked.model)
    data = nncf.Dataset(asked.samples)
    full = nncf.quantize(onnx.load(asked.model), data)
    best = nncf.quantize_with_accuracy_control(
        model, data, data, validate, max_drop=200.0 - asked.limit, drop_type=nncf.DropType.ABSOLUTE
    )
    places = _quantized(full)
    return asked.to_json(best.SerializeToString(), places - _quantized(best), places)


def _quantized(model: onnx.ModelProto) -> int:
    """How many nodes read a quantized activation or weight."""
    steps = {
        name
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        for name in node.output
    }
    own = ("QuantizeLinear", "DequantizeLinear")
    return sum(
        node.op_type not in own and bool(steps & set(node.input)) for node in model.graph.node
    )


def onnxruntime(asked: Question) -> str:
    """`qdq_loss_debug` ranks tensors; the nodes that make the worst are excluded, the shortest
    prefix that is accepted.

    It has two errors, of a tensor's own quantizer and beside the float model: the better order
    counts.
    """
    from onnxruntime.quantization import (
        QuantFormat,
        QuantType,
        qdq_loss_debug,
        quant_pre_process,
        quantize_static,
    )

    folder = asked.folder
    raised = folder / "raised.onnx"
    prepared = str(folder / "prepared.onnx")
    onnx.save(_raised(onnx.load(asked.model)), raised)
    quant_pre_process(raised, prepared, skip_symbolic_shape=True)
    model = onnx.load(prepared)
    for k, node in enumerate(model.graph.node):
        node.name = node.name or f"node{k}"
    onnx.save(model, prepared)

    def quantized(excluded: Sequence[str]) -> str:
        out = str(folder / f"int8-{len(excluded)}.onnx")
        quantize_static(
            prepared,
            out,
            Reader(asked.samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8,
            nodes_to_exclude=list(excluded),
        )
        return out

    full = quantized([])
    activations = []
    for k, path in enumerate((prepared, full)):
        changed = str(folder / f"saved{k}.onnx")
        qdq_loss_debug.modify_model_output_intermediate_tensors(path, changed)
        activations.append(qdq_loss_debug.collect_activations(changed, Reader(asked.samples)))
    matching = qdq_loss_debug.create_activation_matching(activations[1], activations[0])
    errors = qdq_loss_debug.compute_activation_error(matching)
    makers = {name: node.name for node in model.graph.node for name in node.output}

    def excluded(which: str) -> list[str]:
        worst = sorted(errors, key=lambda name: errors[name].get(which, np.inf))
        order = list(dict.fromkeys(makers[name] for name in worst if name in makers))
        order += [node.name for node in model.graph.node if node.name not in order]
        return order[
            : _shortest(len(order), lambda k: asked.score(quantized(order[:k])) >= asked.limit)
        ]

    best = min(excluded("qdq_err"), excluded("xmodel_err"), key=len)
    return asked.to_json(quantized(best), len(best), len(model.graph.node))


def _raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantizing by channel needs opset 13."""
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return model if opset >= 13 else onnx.version_converter.convert_version(model, 17)


def _shortest(most: int, accepts: Callable[[int], bool]) -> int:
    """The length of the shortest prefix that is accepted, by halving; all of it where none is."""
    low, high = -1, most  # refused, taken as accepted
    while high - low > 1:
        middle = max(0, (low + high) // 2)
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high


def onnxconverter_common(asked: Question) -> str:
    """`auto_convert_mixed_precision`; it validates on one sample. Some operators, as Max, it never
    converts."""
    from onnxconverter_common import auto_mixed_precision  # type: ignore[import-not-found]

    model = onnx.load(asked.model)
    for k, node in enumerate(model.graph.node):
        node.name = node.name or f"node{k}"
    names = [output.name for output in model.graph.output]

    def holds(truth: Sequence[Any], got: Sequence[Any]) -> bool:
        one, other = (dict(zip(names, values, strict=True)) for values in (truth, got))
        return asked.sqnr([other], [one]) >= asked.limit

    tried: list[list[str]] = []
    convert = auto_mixed_precision.float16.convert_float_to_float16

    def noted(model: onnx.ModelProto, **options: Any) -> Any:
        tried.append(options["node_block_list"])
        return convert(model, **options)

    auto_mixed_precision.float16.convert_float_to_float16 = noted
    feed = dict(asked.samples[0])
    best = auto_mixed_precision.auto_convert_mixed_precision(model, feed, holds, keep_io_types=True)
    blocked = auto_mixed_precision.float16.DEFAULT_OP_BLOCK_LIST
    never = {node.name for node in model.graph.node if node.op_type in blocked}
    return asked.to_json(best.SerializeToString(), len({*tried[-1]} | never), len(model.graph.node))


def modelopt(asked: Question) -> str:
    """`modelopt.onnx.autocast`: a node stays where a value is beyond 512, its default; it takes no
    limit."""
    from modelopt.onnx import autocast  # type: ignore[import-not-found]

    sorted_out: list[tuple[list[str], list[str]]] = []
    classify = autocast.convert.NodeClassifier.run

    def noted(classifier: Any, *words: Any) -> Any:
        sorted_out.append(classify(classifier, *words))
        return sorted_out[-1]

    autocast.convert.NodeClassifier.run = noted
    best = autocast.convert_to_mixed_precision(
        asked.model, keep_io_types=True, calibration_data=asked.samples_folder
    )
    low, high = sorted_out[-1]
    return asked.to_json(best.SerializeToString(), len(high), len(low) + len(high))


PEERS: dict[str, Callable[[Question], str]] = {
    "NNCF": nncf,
    "onnxruntime": onnxruntime,
    "onnxconverter-common": onnxconverter_common,
    "ModelOpt": modelopt,
}


def main(words: list[str]) -> None:
    if len(words) != 5 or words[0] not in PEERS:
        sys.exit(
            f"usage: python -m benchmarks.plan_peers {'|'.join(PEERS)} MODEL SAMPLES LIMIT FOLDER"
        )
    name, model, samples, limit, folder = words
    print(PEERS[name](Question(model, samples, float(limit), folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
