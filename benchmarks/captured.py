"""A check for `polygraphy debug reduce --check`, as its users write one: does this piece agree on
captured values?

    python -m benchmarks.captured PIECE.onnx VALUES.npz RUNTIME OPTION=VALUE …

Feeds the piece with the reference's tensors of the whole model (`tensor@sample` in VALUES.npz),
runs it on a runtime (a module with `load(model, options)`), compares its outputs with the
reference's. Exit 0: agrees, 1: does not, 2: does not run at all.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

import numpy as np
import onnx

RTOL = 1e-3
ATOL = 1e-5


def main(piece: Path, values: Path, runtime: str, options: dict[str, str]) -> int:
    known = np.load(values)
    graph = onnx.load(piece).graph
    samples = sorted({name.rpartition("@")[2] for name in known.files})
    try:
        run = importlib.import_module(runtime).load(piece, options)
        results = [
            run({i.name: known[f"{i.name}@{sample}"] for i in graph.input}) for sample in samples
        ]
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        return 2
    for sample, given in zip(samples, results, strict=True):
        for name, value in given.items():
            if not np.allclose(value, known[f"{name}@{sample}"], RTOL, ATOL):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(
        main(
            Path(sys.argv[1]),
            Path(sys.argv[2]),
            sys.argv[3],
            dict(word.split("=", 1) for word in sys.argv[4:]),
        )
    )
