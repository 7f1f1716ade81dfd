"""onnxconverter-common: `node_block_list` of `float16.convert_float_to_float16`, as JSON."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

from subgraph.graph.graph import Graph
from subgraph.questions.planning.lists import Kept
from subgraph.questions.planning.lower import run_lowering
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.run_result import Feeds

FILE = "onnxconverter_common.json"


def render(kept: Kept) -> str:
    """Return an argument of the function."""
    return json.dumps({"node_block_list": [*kept.nodes]}, indent=1) + "\n"


def is_usable(to: str) -> bool:
    """Return whether the tool is installed and makes this precision."""
    return to == "fp16" and util.find_spec("onnxconverter_common") is not None


def apply(
    graph: Graph, samples: Feeds, to: str, listed: Path, folder: Path, deadline: Deadline
) -> Path:
    """Return the model that the tool makes with a list.

    Raises:
        ModelError: It fails. OutOfTime: The time is used up.
    """
    made = folder / "float16.onnx"
    return run_lowering(
        "onnxconverter-common",
        "subgraph.questions.planning.float16_main",
        graph,
        made,
        [listed],
        deadline,
    )
