"""How many planted faults a green answer would show: of models, inputs, limits and precisions.

python -m benchmarks.power       prints a Markdown table
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

import subgraph
from fixtures import networks, resnet50
from subgraph.demo.files import make_files
from subgraph.precision import Precision
from subgraph.runtime.candidate import parse
from subgraph.runtime.inputs import Feeding
from subgraph.trials.open_trials import Setup, open_with_processes
from subgraph.trials.power import measure_power

FAULTS = 60
CRITERIA = ("noise", "numpy:rtol=1e-3,atol=1e-5", "numpy:rtol=1e-2,atol=1e-2", "cosine>0.999")
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8)


def count_faults(model: Path, words: tuple[str, ...], criterion: str, precision: Precision) -> str:
    """Return the share of the planted faults that would show."""
    candidate = replace(parse("ort"), precision=precision)
    setup = Setup(candidate, Feeding(words), model.parent / "out", criterion)
    with open_with_processes(subgraph.load(model), setup, parse("ort")) as trials:
        found = measure_power(trials.judge, FAULTS)
    return f"{found.shown}/{found.planted}"


def main() -> None:
    """Print the table."""
    print(f"| model | input | precision | {' | '.join(CRITERIA)} |")
    print(f"|---|---|---|{'--:|' * len(CRITERIA)}")
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        np.save(folder / "zeros.npy", np.zeros((1, 3, 64, 64), np.float32))
        models = {
            "demo": onnx.load_from_string(make_files()["model.onnx"]),
            "resnet50": resnet50.build(width=8, size=64, classes=10),
            "vision": networks.vision(),
            "transformer": networks.transformer(),
            "speech": networks.speech(),
            "detector": networks.detector(),
        }
        for name, model in models.items():
            onnx.save(model, folder / f"{name}.onnx")
            inputs: dict[str, tuple[str, ...]] = {"drawn": ()}
            if name == "resnet50":
                inputs["zeros"] = (str(folder / "zeros.npy"),)
            for kind, words in inputs.items():
                for precision in PRECISIONS:
                    shown = [
                        count_faults(folder / f"{name}.onnx", words, criterion, precision)
                        for criterion in CRITERIA
                    ]
                    print(f"| {name} | {kind} | {precision} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
