"""onnxsim, with its passes, constant folding and shape inference."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from subgraph.iterables import flatten
from subgraph.questions.blame.makers import Making

PACKAGE = "onnxsim"
FOLDING = "constant_folding"
INFERENCE = "shape_inference"
# The names of passes are texts in its library, among others of this form.
PASS = re.compile(rb"\0((?:adjust|eliminate|extract|fuse|replace|rewrite|split)_[a-z_]+)(?=\0)")


def steps(making: Making) -> list[str]:
    """Return what may be the names of its passes."""
    import onnxsim

    files = Path(onnxsim.__file__).parent.rglob("*export*.*")
    found = {name.decode() for name in flatten(PASS.findall(file.read_bytes()) for file in files)}
    return [FOLDING, INFERENCE, *sorted(found)]


def make(making: Making) -> None:
    """Write the simplified model."""
    import onnxsim

    simplified, _ = onnxsim.simplify(
        onnx.load(making.model),
        skipped_optimizers=sorted(making.skip),
        skip_constant_folding=FOLDING in making.skip,
        skip_shape_inference=INFERENCE in making.skip,
    )
    onnx.save(simplified, making.made)
