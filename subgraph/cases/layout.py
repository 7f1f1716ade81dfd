"""Names of files and folders in results, and the schema names that tell one kind of result from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from subgraph.storage.folders import safe_names

# A case: one region with its inputs and outputs.
MODEL, INPUTS, REPRO, LOG = "model.onnx", "inputs", "repro.py", "log.txt"
CANDIDATE = "candidate"  # the candidate's outputs, laid out as `outputs/`
REPRO_SCRIPT = Path(__file__).with_name(REPRO)  # copied into every case as it stands
# A folder around cases, left by bisect, sweep or recordings.
EVIDENCE_SCHEMA = "subcut.evidence/"
FINDING_FOLDERS = ("culprit", "flaky", "in-doubt", "interval")  # of a bisection, the most telling first
RUN_JSON, SWEEP_JSON = "run.json", "sweep.json"
REPORT_FILES = {"html": "report.html", "md": "report.md"}
# A task of the manual loop.
TODO_TXT, FROM_DEVICE = "TODO.txt", "from_device"
# An unpacked bundle: its list of files, and the candidate's scripts with the folder that its commands run in.
BUNDLE_LIST, BUNDLE_SCHEMA = "bundle.json", "subcut.bundle/1"
CANDIDATE_FILES = "candidate_files"

# What manifests must hold, as `documents.problem` reads it.
_FILE = {"file": str, "format": str, "dtype": str, "shape?": [int], "layout?": str}
_STORED = {"form": str, "dtype": str, "shapes": [[int]], "files": [_FILE]}
_TENSOR = {"name": str, "producer?": (str, type(None)), "dtype": str, "samples?": [_STORED]}
_NODE = {"name": str, "op": str}
_IDENTITY = {"backend": str, "options": {str: (str, int, float, bool, type(None))}, "files?": {str: str}}
MANIFEST_SHAPE = {
    "schema": str,
    "source": {"file?": str, "structure_sha256?": (str, type(None))},
    "command": (str, type(None)),
    "request": Any,
    "files": [str],
    "inputs?": [_TENSOR],
    "outputs?": [_TENSOR],
    "samples?": [{"label": str}],
    "region?": {"nodes": [_NODE]},
    "versions?": {str: str},
    "reference?": {str: Any},
    "found?": {"status": str, "why": str},
    "expected?": {"test": str, "rtol": float, "atol": float},
    "by_hand?": {"key": str, "number": int, "of": int},
}  # of a manifest of any kind, as far as it is read
EVIDENCE_REQUEST = {"candidate": str, "identity": _IDENTITY}  # of a request that names a candidate


def sample_names(labels: Sequence[str]) -> list[str]:
    """The folder of each sample's tensors below that of their role: "." for a lone sample.

    >>> sample_names(["cat.jpg"]), sample_names(["cat.jpg", "dog.jpg"])
    (['.'], ['cat.jpg', 'dog.jpg'])
    """
    if len(labels) == 1:
        return ["."]
    return list(safe_names(label or str(k) for k, label in enumerate(labels)).values())


def is_evidence(manifest: Mapping[str, Any] | None) -> bool:
    """Is this the manifest of a folder around cases?"""
    return manifest is not None and str(manifest["schema"]).startswith(EVIDENCE_SCHEMA)
