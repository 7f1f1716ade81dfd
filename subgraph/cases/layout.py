"""Names of files and folders in results, and the schema names of the kinds of results."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from subgraph.graph.region import Region
from subgraph.storage.folders import make_safe_name, make_safe_names

MAX_PLACE = 100  # characters of a result folder's name

# A case: one region with its inputs and outputs.
MODEL = "model.onnx"
INPUTS = "inputs"
REPRO = "repro.py"
LOG = "log.txt"
CANDIDATE = "candidate"  # the candidate's outputs, laid out as `outputs/`
SMALL = "small"  # in a case: a case with the smallest input that fails in the same way
REPRO_SCRIPT = Path(__file__).with_name(REPRO)  # copied into every case without changes
# A folder around cases, left by bisect, sweep or recordings.
EVIDENCE_SCHEMA = "subcut.evidence/"
# Of a bisection, the most important first.
FINDING_FOLDERS = (
    "culprit",
    "flaky",
    "in-doubt",
    "interval",
)
RUN_JSON = "run.json"
SWEEP_JSON = "sweep.json"
PLAN_JSON = "plan.json"
LOOP_JSON = "loop.json"
REPORT_FILES = {"html": "report.html", "md": "report.md"}
# Files of `subcut blame` in the folder of a case, in addition to models that it rewrote.
BLAME = "blame"
BLAME_JSON = "blame.json"
BLAME_ANSWER = "blame.md"
# A task of the manual loop.
TODO_TXT = "TODO.txt"
FROM_DEVICE = "from_device"
# An unpacked bundle: its list of files, and the candidate's scripts with the folder that its
# commands run in.
BUNDLE_LIST = "bundle.json"
BUNDLE_SCHEMA = "subcut.bundle/1"
CANDIDATE_FILES = "candidate_files"


def list_sample_names(labels: Sequence[str]) -> list[str]:
    """Return the folder of each sample's tensors below that of their role: "." for a lone sample.

    >>> list_sample_names(["cat.jpg"]), list_sample_names(["cat.jpg", "dog.jpg"])
    (['.'], ['cat.jpg', 'dog.jpg'])
    """
    if len(labels) == 1:
        return ["."]
    return list(make_safe_names(label or str(k) for k, label in enumerate(labels)).values())


def is_evidence(schema: str) -> bool:
    """Return whether a schema is that of the manifest of a folder around cases."""
    return schema.startswith(EVIDENCE_SCHEMA)


def place_name(region: Region) -> str:
    """Return `pool1__res2a_relu`; `+` joins several starts or ends; long names are cut, with a
    hash."""
    start, end = ("+".join(map(make_safe_name, labels)) for labels in (region.start, region.end))
    name = f"{start}__{end}"
    if len(name) <= MAX_PLACE:
        return name
    return f"{name[: MAX_PLACE - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def stamp_name() -> str:
    """Return MindStudio's name for a dump folder."""
    return time.strftime("dump_result_%Y_%m_%d_%H_%M_%S")
