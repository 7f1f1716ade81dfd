"""The region in other opsets, as far as onnx's converter reaches."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto

from subgraph.graph.opsets import list_changed
from subgraph.graph.rewrites._region_model import RegionModel

# The converter reaches no older opset; runtimes support a new opset late.
MIN_OPSET = 7
MAX_OPSET = 25


def rewrite(source: RegionModel) -> Iterator[tuple[str, ModelProto]]:
    """Yield the model at the nearest opsets first; of those that define all of its operators alike,
    at one."""
    versions = sorted(range(MIN_OPSET, MAX_OPSET + 1), key=lambda v: (abs(v - source.opset), -v))
    tried = [source.opset]
    for version in versions:
        if any(not list_changed(source.model, "", version, later) for later in tried):
            continue
        tried.append(version)
        if (model := source.convert(version)) is not None:
            yield f"opset {version} instead of {source.opset}", model
