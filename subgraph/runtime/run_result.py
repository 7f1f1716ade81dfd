"""What a candidate gave for a model, run once per sample: tensors, or how it failed. Kept as a document and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subgraph.errors import BackendError, OutputError, Refused, SubcutError, WorkerDied
from subgraph.runtime.worker import Worker
from subgraph.storage.store import StoreEntry
from subgraph.storage.tensors import Record
from subgraph.verdict import Signature, Status, Verdict

Feeds = Sequence[Mapping[str, Record]]  # per sample: records with absolute paths


@dataclass(frozen=True)
class RunResult:
    """What a backend gave for a region.

    Attributes:
        tensors: per sample, records with absolute paths; an output that did not come is not there.
        others: per sample, names that it gave and nobody asked for.
        failure: why there is nothing: a verdict without outputs.
    """

    tensors: tuple[Mapping[str, Record], ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    failure: Verdict | None = None
    build: float = 0.0
    run: float = 0.0
    stored: bool = False


def run_model(
    worker: Worker, options: Mapping[str, Any], model: Path, fed: Sequence[Sequence[Record]], outputs: Sequence[str],
    room: Path,
) -> dict[str, Any]:  # fmt: skip
    """Load a model and run it once per sample. A candidate that fails is a document as well.

    Raises:
        BackendError: it cannot be used at all. OutputError: its outputs cannot be written.
    """
    document: dict[str, Any] = {"build": 0.0, "run": 0.0, "samples": [], "failure": None}
    try:
        document["build"] = worker.load("cut", model, options)
        for k, sample in enumerate(fed):
            stems = {name: f"s{k}-o{i}" for i, name in enumerate(outputs)}
            run = worker.run("cut", room, stems, sample)
            document["run"] += run.seconds
            document["samples"].append({"tensors": [r.to_json() for r in run.tensors], "others": list(run.others)})
    except OutputError:
        raise
    except SubcutError as e:
        document["failure"] = failure(e, worker)
        document["samples"] = []
    return document


def failure(e: SubcutError, worker: Worker) -> dict[str, Any]:
    """What a candidate that did not give values said: status, signature, why, process.

    Refused is no failure of its own (a lone Shape is refused by many); a crash or a timeout is.

    Raises:
        BackendError: it cannot be used at all.
    """
    if isinstance(e, WorkerDied):
        return {"status": "fail", "signature": e.signature, "why": e.what, "process": e.process}
    if isinstance(e, BackendError):
        raise e
    said = {"signal": None, "exit_code": None, "stderr": worker.last_words()}
    if isinstance(e, Refused):
        return {"status": "unresolved", "signature": "refused", "why": e.what, "process": said}
    return {"status": "fail", "signature": "crash", "why": e.what, "process": said}


def from_entry(entry: StoreEntry) -> RunResult:
    """What the store kept of one, or of one that just ran."""
    d = entry.document
    if d["failure"]:
        f = d["failure"]
        verdict = Verdict(
            Status(f["status"]), Signature(f["signature"]), f["why"], (), f["process"], d["build"], d["run"]
        )
        return RunResult(failure=verdict, build=d["build"], run=d["run"], stored=True)
    tensors = tuple(
        {r["name"]: Record.from_json(r).within(str(entry.folder)) for r in sample["tensors"]} for sample in d["samples"]
    )
    others = tuple(tuple(sample["others"]) for sample in d["samples"])
    return RunResult(tensors, others, None, d["build"], d["run"], stored=True)


def merged(parts: Sequence[tuple[Sequence[int], RunResult]], count: int) -> RunResult:
    """The answers of groups of samples as one, in the order of the samples."""
    tensors: list[Mapping[str, Record]] = [{}] * count
    others: list[tuple[str, ...]] = [()] * count
    for group, part in parts:
        for place, k in enumerate(group):
            tensors[k], others[k] = part.tensors[place], part.others[place]
    build, run = (sum(getattr(p, name) for _, p in parts) for name in ("build", "run"))
    return RunResult(tuple(tensors), tuple(others), None, build, run, all(p.stored for _, p in parts))
