"""A cut and the whole model's values -> its node count, and what is wrong with it. Not timed.

    python -m benchmarks.verify CUT START_TENSORS END_TENSORS VALUES.npz

Prints one JSON document: {"nodes": 17, "problem": ""}. Right means bit-identical, at the same
thread count.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx

from benchmarks import minimal


def difference(found: minimal.Tensors, expected: minimal.Tensors) -> str:
    """How `found` differs from `expected` in any bit; empty if it does not."""
    if sorted(found) != sorted(expected):
        return f"has the tensors {sorted(found)}, not {sorted(expected)}"
    for name, right in expected.items():
        value = found[name]
        if (value.dtype, value.shape) != (right.dtype, right.shape):
            return f"{name} is {value.dtype} {value.shape}, not {right.dtype} {right.shape}"
        if value.tobytes() != right.tobytes():
            return f"{name} differs by up to {np.abs(value - right).max():.1e}"
    return ""


def problem(cut: Path, starts: list[str], ends: list[str], values: minimal.Tensors) -> str:
    """What is wrong with a cut: its inputs, its outputs or their values; empty if nothing is."""
    session = minimal.load(cut)
    inputs = sorted(each.name for each in session.get_inputs())
    if inputs != sorted(starts):
        return f"has the inputs {inputs}, not {sorted(starts)}"
    found = minimal.run(session, {name: values[name] for name in starts})
    return difference(found, {name: values[name] for name in ends})


def main(cut: Path, starts: list[str], ends: list[str], values: Path) -> None:
    nodes = len(onnx.load(cut, load_external_data=False).graph.node)
    with np.load(values) as archive:
        tensors = {name: archive[name] for name in archive.files}
    print(json.dumps({"nodes": nodes, "problem": problem(cut, starts, ends, tensors)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","), Path(sys.argv[4]))
