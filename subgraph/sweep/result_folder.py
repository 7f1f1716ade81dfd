"""A test that went wrong -> a case folder, as a cut makes one; and back: an exhibit that is run again.

sweep-CANDIDATE/
    manifest.json  sweep.json     the request; the whole document
    test_…/                       model.onnx, inputs/, outputs/ (expected), candidate/ (what came), repro.py, log.txt
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from subgraph.cases import case, evidence
from subgraph.cases.case import (
    CaseManifest,
    CheckResult,
    ModelSource,
    NodeEntry,
    ReferenceEntry,
    RegionEntry,
    ResultPlace,
    SampleEntry,
    TensorEntry,
)
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.find_case import ExpectedTest, FoundCase
from subgraph.cases.layout import CANDIDATE, LOG, REPRO, REPRO_SCRIPT, SWEEP_JSON
from subgraph.documents import to_json
from subgraph.graph import protobuf
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.reference import threads
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.storage.digest import digest, file_digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, copied
from subgraph.sweep import sweep
from subgraph.sweep.expected import ExpectedOutputs, Runtime, plain_onnxruntime
from subgraph.sweep.operator_tests import MODEL, Example, OperatorTest
from subgraph.sweep.sweep import BAD, PATIENCE, Sweep, SweepOutcome, SweepResult, SweepRow
from subgraph.verdict import Verdict

LONG = 60  # characters of a candidate's name in a folder's
FORMATS = ("npy", "bin")


def place_of(candidate: Candidate, only: Sequence[str], output: Path, *, force: bool = False) -> ResultPlace:
    """Where the exhibits of one candidate go: a folder of its own for each choice of tests."""
    words = folders.safe_name(candidate.name)[:LONG]
    chosen = f"-{folders.safe_name('+'.join(only))[:LONG]}" if only else ""
    return ResultPlace(output, f"sweep-{words}{chosen}", force)


def request_of(asked: Sweep, k: int) -> dict[str, Any]:
    """What the exhibits of a candidate depend on, as plain data."""
    runtime = asked.candidates[k]
    found: dict[str, Any] = case.plain(
        {
            "candidate": runtime.candidate.name,
            "identity": runtime.candidate.identity(""),
            "precision": runtime.candidate.precision,
            "criterion": asked.truth.words,
            "only": list(asked.only),
        }
    )
    return found


def require_free(asked: Sweep, places: Iterable[ResultPlace]) -> None:
    """May the exhibits go there? Asked before the sweep, not after.

    Raises:
        ResultExists: something else stands in the way.
    """
    for k, place in enumerate(places):
        case.require_free(place, request_of(asked, k), source())


def source() -> ModelSource:
    """Where the tests come from."""
    return ModelSource(f"onnx {metadata.version('onnx')}, backend/test")


def save(asked: Sweep, rows: Sequence[SweepRow], places: Sequence[ResultPlace], document: dict[str, Any]) -> None:
    """Write a folder per candidate. The document's results get the paths of their cases.

    Raises:
        OutputError: it cannot be written. ResultExists: something else stands there meanwhile.
    """
    require_free(asked, places)
    for k, place in enumerate(places):
        document["candidates"][k]["folder"] = str(place.path)
        for row, entry in zip(rows, document["rows"], strict=True):
            if row.results[k].word in BAD:
                entry["results"][k]["case"] = str(place.path / folders.safe_name(row.test.name))
    for k, place in enumerate(places):
        with folders.aside(place.path) as work:
            for row in rows:
                if row.results[k].word in BAD:
                    _save(asked, row.test, row.results[k], k, work / folders.safe_name(row.test.name))
            evidence.write_document(document, SWEEP_JSON, work)
            manifest = EvidenceManifest(source=source(), command=document["command"], request=request_of(asked, k))
            case.write_manifest(manifest, work)


def _save(asked: Sweep, test: OperatorTest, result: SweepResult, k: int, work: Path) -> None:
    """One case."""
    runtime = asked.candidates[k]
    work.mkdir()
    with asked.example(test) as example:
        shutil.copyfile(example.model, work / MODEL)
        skeleton = protobuf.read(work / MODEL)
        names = _names(example)
        tensors = {
            role: [_stored(record, names, role, work, skeleton.model.graph) for record in records]
            for role, records in (("inputs", example.inputs), ("outputs", example.outputs))
        }
        answer = runtime.answer(example, fresh=bool(result.before) or result.word is not SweepOutcome.TIMEOUT)
        _add_candidate(answer, names, work)
        plain = asked.truth.plain(example)
    shutil.copyfile(REPRO_SCRIPT, work / REPRO)
    nodes = [NodeEntry(n.name or f"#{i}", n.op_type, i) for i, n in enumerate(skeleton.model.graph.node)]
    said = f"the outputs are those that onnx's test expects; plain onnxruntime {plain.word}"
    parameters = sum(map(protobuf.element_count, skeleton.model.graph.initializer))
    manifest = CaseManifest(
        source=ModelSource(f"{test.name}.onnx", skeleton.size, skeleton.structure),
        command=f"subcut sweep --only {test.name}",
        request={"test": test.name, "onnx": metadata.version("onnx")},
        region=RegionEntry([n.name for n in nodes[:1]], [n.name for n in nodes[-1:]], nodes, parameters=parameters),
        inputs=tensors["inputs"],
        outputs=tensors["outputs"],
        samples=[SampleEntry("")],
        seed=0,
        reference=ReferenceEntry(f"what the test of onnx {metadata.version('onnx')} expects", threads=threads()),
        above=0,
        losses=(),
        check=CheckResult("expected", f"{said}: {plain.why}".removesuffix(": "), 0.0),
        expected={"test": test.name, "operator": test.op, "rtol": test.rtol, "atol": test.atol},
        found={
            "candidate": runtime.candidate.name,
            "version": runtime.about.version,
            **sweep.result_json(result),
        },
    )
    (work / LOG).write_text(_log(to_json(manifest)), encoding="utf-8")
    case.write_manifest(manifest, work)


def _names(example: Example) -> dict[str, str]:
    return folders.safe_names(dict.fromkeys(r.name for r in (*example.inputs, *example.outputs)))


def _stored(record: Record, names: Mapping[str, str], role: str, work: Path, graph: Any) -> TensorEntry:
    """One tensor's files in `work/role`, and its entry in the manifest."""
    with folders.scratch(work, "files") as aside:
        moved = copied(record, aside, names[record.name]).within(str(aside))
        stored, _ = case.store(moved, role, work, FORMATS, TensorFormat(), keep=False)
    maker = next((i for i, n in enumerate(graph.node) if record.name in n.output), None)
    producer = None if maker is None else graph.node[maker].name or f"#{maker}"
    return TensorEntry(record.name, producer, stored.dtype, stored.form, stored.shapes, [stored])


def _add_candidate(answer: RunResult, names: Mapping[str, str], work: Path) -> None:
    """What the candidate gave, beside what was expected."""
    for tensors in answer.tensors:
        evidence.copy_tensors(tensors, names, work / CANDIDATE)


def _log(manifest: Mapping[str, Any]) -> str:
    found, now = manifest["found"], time.strftime("%Y-%m-%d %H:%M:%S")
    lines = [
        f"Command: {manifest['command']}",
        f"Candidate: {found['candidate']} {found['version']}",
        f"Found: {found['status']}   {found['why']}",
        f"Check: {manifest['check']['what']}",
    ]
    return "".join(f"{now} {' '.join(line.split())}\n" for line in lines)


# ---------------------------------------------------------------------------------------------------- and back


def replay_test(found: FoundCase, test: ExpectedTest, candidate: Candidate, criterion: str) -> Verdict:
    """Run a test's case in a fresh process; judged as in the sweep.

    Raises:
        BackendError: the candidate cannot be used at all.
    """
    model, name = found.place.resolve() / MODEL, test.name
    inputs, outputs = (tuple(records[0] for records in role.values()) for role in (found.inputs, found.outputs))
    key = digest(name, file_digest(model))  # the store lives no longer than this run
    example = Example(name, model, inputs, outputs, test.rtol, test.atol, key)
    with (
        tempfile.TemporaryDirectory(prefix="subcut-") as temporary,
        Store(Path(temporary) / "store") as store,
        Workers(candidate) as workers,
        Workers(plain_onnxruntime(PATIENCE)) as plain_workers,
    ):
        runtime, plain = (Runtime(w.candidate, w, store) for w in (workers, plain_workers))
        with ExpectedOutputs(criterion, plain, Path(temporary)) as expected:
            return expected.verdict(example, runtime.answer(example, fresh=True), runtime.precision)[0]
