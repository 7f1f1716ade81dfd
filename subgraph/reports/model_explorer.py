"""Model Explorer node data: the in-place error by node, to color Google's graph viewer with.

Load it with the model: `model-explorer --extensions=model_explorer_onnx`, then "Upload node
data". Its keys are node names, or tensor names if a node has none; the graph's key is the ONNX
graph's own name.
"""

from __future__ import annotations

import json
import math

from subgraph.reports._compared import ComparedDocument, list_judged_tensors
from subgraph.results.bisect import BisectDocument

FILE = "model_explorer.json"
NOT_FINITE = 1e38  # the viewer takes numbers only; larger than any finite error of a float32 tensor
# Value up to which a node has the color: a ramp by decades that also reads in gray.
THRESHOLDS = (
    (1e-6, "#e8f3ee"),
    (1e-4, "#f6efcf"),
    (1e-2, "#f4c98a"),
    (1.0, "#e58b66"),
    (NOT_FINITE, "#c2463f"),
)
NAMELESS = "<main>"  # what the viewer's ONNX adapter calls a graph without a name


def render(document: BisectDocument | ComparedDocument) -> str:
    """Return the profile as node data; without a profile no node is colored.

    Names are keys, so they are not cleaned.
    """
    results: dict[str, dict[str, float]] = {}
    for row in list_judged_tensors(document):
        if row.error is None:
            continue
        key = row.tensor if row.node == f"#{row.index}" else row.node
        value = min(row.error, NOT_FINITE) if math.isfinite(row.error) else NOT_FINITE
        if key not in results or value > results[key]["value"]:  # of several tensors the worst
            results[key] = {"value": value}
    colors = [{"value": value, "bgColor": color} for value, color in THRESHOLDS]
    graph = document.model.graph or NAMELESS
    return json.dumps({graph: {"results": results, "thresholds": colors}}, indent=1) + "\n"


# The worst error of each tensor in place; of several recordings that of the worst.
render_compared = render
