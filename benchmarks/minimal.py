"""Prepared ancestors.onnx and cut.onnx -> edge tensors as .npy: the least that a cut with capture
must do.

    python -m benchmarks.minimal ANCESTORS CUT FOLDER

The yardstick for `subcut cut` with its capture. It starts where subcut's work ends: both models are
ready, so it only loads the ancestors (optimizations off, as many threads as CPUs, all else as
onnxruntime has it), runs them once on seeded values, saves the tensors of the edge, loads the cut
and runs it once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

SEED = 0

Tensors = dict[str, npt.NDArray[Any]]


def load(model: Path) -> Any:
    """An onnxruntime session as the reference is run."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = os.cpu_count() or 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def random_feeds(session: Any) -> Tensors:
    """Seeded standard normal values; all models here take float32 of fixed shapes."""
    random = np.random.default_rng(SEED)
    return {
        each.name: random.standard_normal(each.shape, dtype=np.float32)
        for each in session.get_inputs()
    }


def run(session: Any, feeds: Tensors) -> Tensors:
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def main(ancestors: Path, cut: Path, folder: Path) -> None:
    above = load(ancestors)
    edge = run(above, random_feeds(above))
    for number, value in enumerate(edge.values()):
        np.save(folder / f"{number}.npy", value)
    alone = load(cut)
    run(alone, {each.name: edge[each.name] for each in alone.get_inputs()})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
