"""Candidates with a planted fault: onnxruntime, with statements that change the model or its
outputs."""

from __future__ import annotations

from textwrap import dedent, indent

CODE = """
import os
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def load(path, options):
    model = onnx.load(str(path))
    nodes = list(model.graph.node)
    node_names = [node.name for node in nodes]
{change}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    names = [output.name for output in session.get_outputs()]

    def run(feeds):
        found = dict(zip(names, session.run(names, dict(feeds)), strict=True))
{answer}
        return found

    return run
"""  # noqa: E501


def planted(change: str = "", answer: str = "") -> str:
    """Return the code of a candidate.

    Args:
        change: Statements of `load` before it opens the session. They have `path`, `options`,
            `model`, `nodes` and `node_names`.
        answer: Statements of each run. They also have `feeds`, `found` (outputs by name), `inputs`
            of the session and `names` of its outputs.
    """
    return CODE.format(
        change=indent(dedent(change), " " * 4), answer=indent(dedent(answer), " " * 8)
    )
