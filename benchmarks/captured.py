"""A check for `polygraphy debug reduce --check`, as its users write one: does this piece agree on captured values?

    python -m benchmarks.captured PIECE.onnx VALUES.npz OPTION=VALUE …

Feeds the piece with the reference's tensors of the whole model (`tensor@sample` in VALUES.npz), runs it on
`benchmarks.faulty` with these options, compares its outputs with the reference's. Exit 0: agrees, 1: does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

from benchmarks import faulty

RTOL, ATOL = 1e-3, 1e-5


def main(piece: Path, values: Path, options: dict[str, str]) -> int:
    known = np.load(values)
    graph = onnx.load(piece).graph
    samples = sorted({name.rpartition("@")[2] for name in known.files})
    run = faulty.load(piece, options)
    for sample in samples:
        given = run({i.name: known[f"{i.name}@{sample}"] for i in graph.input})
        for name, value in given.items():
            if not np.allclose(value, known[f"{name}@{sample}"], RTOL, ATOL):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), dict(word.split("=", 1) for word in sys.argv[3:])))
