"""Tests of a bug that onnxruntime has mended: they run where requirements.lock pins a version that
has it."""

from __future__ import annotations

from importlib.metadata import version

import pytest

PADFUSION_MENDED = (1, 32)
RUNTIME = tuple(int(part) for part in version("onnxruntime").split(".")[:2])
with_padfusion_bug = pytest.mark.skipif(
    RUNTIME >= PADFUSION_MENDED, reason="onnxruntime 1.32 mended the fusion of Pad and MaxPool"
)
