"""Limits above which a file of a model is walked and a weight stays on disk, lowered for small
models."""

from __future__ import annotations

import pytest

from subgraph.graph import protobuf


def walk_files(patch: pytest.MonkeyPatch, above: int = 0, stub_above: int | None = 100) -> None:
    """Walk files of more than `above` bytes, with a stub for each weight of more than `stub_above`
    bytes.

    Args:
        patch: Where the limits are set back.
        above: Size of a file.
        stub_above: Size of a weight. None for the limit of large models.
    """
    patch.setattr(protobuf, "MIN_WALKED_BYTES", above)
    if stub_above is not None:
        patch.setattr(protobuf, "MIN_STUB_BYTES", stub_above)
