"""Healthy other models of trained models: how often is `bisect --candidate-model` not right?

    python -m benchmarks.healthy_pairs [--models text-direction,file-type] [--forms qdq,fp16]

Each trained model (`benchmarks.trained`) is quantized (QDQ per tensor and per channel, QOperator,
dynamic), converted to float16, optimized by onnxruntime offline, and, where they are installed,
by onnxsim, onnxslim and onnxscript. A tool that fails makes no pair. Exit code 1 if an answer is
wrong: look whether the tool is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime import quantization

from benchmarks import trained
from benchmarks.other_models import Samples
from benchmarks.report import table

LIMIT = 300  # seconds of one bisection
MODELS = "text-direction,captcha-digits,file-type,pitch,text-detector"
SAYS = {0: "right", 1: "wrong", 5: "inconclusive"}


def optimize(model: Path, made: Path, level: str) -> None:
    """Write what onnxruntime makes of the model at a level of its optimizer."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(made)
    ort.InferenceSession(str(model), options)


def quantize(model: Path, made: Path, form: str, per_channel: bool = False) -> None:
    """Quantize statically, as onnxruntime recommends: preprocessed, calibrated with the input."""
    quantization.quant_pre_process(str(model), str(made) + ".pre", skip_symbolic_shape=True)
    feeds = dict(np.load(model.with_suffix(".npz")))
    quantization.quantize_static(
        made.with_name(made.name + ".pre"),
        made,
        Samples([feeds]),
        quant_format=getattr(quantization.QuantFormat, form),
        per_channel=per_channel,
    )


def quantize_dynamically(model: Path, made: Path) -> None:
    """Quantize the weights; activations are quantized as the model runs."""
    quantization.quantize_dynamic(model, made, weight_type=quantization.QuantType.QInt8)


def lower(model: Path, made: Path) -> None:
    """Convert to float16."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), made)


def simplify(model: Path, made: Path) -> None:
    """Simplify with onnxsim."""
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(model))[0], made)


def slim(model: Path, made: Path) -> None:
    """Simplify with onnxslim."""
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(model)), made)


def rewrite(model: Path, made: Path) -> None:
    """Optimize with onnxscript."""
    import onnx_ir
    from onnxscript import optimizer

    read = onnx_ir.serde.deserialize_model(onnx.load(model))
    optimizer.optimize(read)
    onnx.save(onnx_ir.serde.serialize_model(read), made)


FORMS: Mapping[str, Callable[[Path, Path], None]] = {
    "basic": lambda model, made: optimize(model, made, "BASIC"),
    "extended": lambda model, made: optimize(model, made, "EXTENDED"),
    "qdq": lambda model, made: quantize(model, made, "QDQ"),
    "qdq-channel": lambda model, made: quantize(model, made, "QDQ", per_channel=True),
    "qoperator": lambda model, made: quantize(model, made, "QOperator"),
    "dynamic": quantize_dynamically,
    "fp16": lower,
    "onnxsim": simplify,
    "onnxslim": slim,
    "onnxscript": rewrite,
}


def ask(model: Path, made: Path, folder: Path) -> str:
    """What bisect answers in one word."""
    command = [sys.executable, "-m", "subgraph", "bisect", str(model), "-q"]
    command += ["--candidate-model", str(made), "-i", str(model.with_suffix(".npz"))]
    command += ["-o", str(folder / "out"), "--max-time", f"{LIMIT}s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"  {done.stdout.partition(chr(10))[0]}", flush=True)
    return SAYS.get(done.returncode, "other")


def main(arguments: list[str]) -> int:
    """Make the pairs, ask about each, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healthy_pairs")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--forms", default=",".join(FORMS))
    asked = parser.parse_args(arguments)
    counts: dict[str, Counter[str]] = {}
    chosen = asked.models.split(",")
    for one in (model for model in trained.MODELS if model.name in chosen):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            model = folder / "model.onnx"
            onnx.save(onnx.load(one.path), model)
            np.savez(model.with_suffix(".npz"), **dict(one.inputs()))  # type: ignore[arg-type]
            for form in asked.forms.split(","):
                made = folder / f"{form}.onnx"
                try:
                    FORMS[form](model, made)
                    ort.InferenceSession(str(made))
                except Exception as e:  # noqa: BLE001  # a tool that cannot make a model that runs
                    print(f"{one.name} {form}: not made, {type(e).__name__}", flush=True)
                    continue
                print(f"{one.name} {form}", flush=True)
                counts.setdefault(form, Counter())[ask(model, made, folder)] += 1
    kinds = (*SAYS.values(), "other")
    rows = [[form, *(str(of[kind]) for kind in kinds)] for form, of in counts.items()]
    print(table(["form", *kinds], rows))
    return int(any(of["wrong"] for of in counts.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
