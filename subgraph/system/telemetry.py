"""The environment of child processes, whose runtimes report nothing to their makers."""

from __future__ import annotations

import os

from subgraph.types import StringMap

OFF = {
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}  # onnxruntime also leaves a file `.ses` in $TMPDIR


def without_telemetry(env: StringMap | None = None) -> dict[str, str]:
    """Return an environment, this process's own by default, with telemetry off unless the user
    decided on it."""
    return {**OFF, **(os.environ if env is None else env)}
