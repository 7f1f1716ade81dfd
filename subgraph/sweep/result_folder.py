"""Test with a bad result -> a case folder, as a cut makes one; and back: such a case, run again.

sweep-CANDIDATE/
    manifest.json  sweep.json     the request; the whole document
    report.html                   operators × candidates
    test_…/                       model.onnx, inputs/, outputs/ (expected), candidate/, repro.py,
                                  log.txt
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from subgraph.cases import case, evidence
from subgraph.cases.case import (
    CaseManifest,
    CheckResult,
    ExpectedTest,
    ModelSource,
    NodeEntry,
    ReferenceEntry,
    RegionEntry,
    ResultPlace,
    SampleEntry,
    TensorEntry,
)
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.find_case import FoundCase
from subgraph.cases.layout import CANDIDATE, LOG, REPORT_FILES, REPRO, REPRO_SCRIPT, SWEEP_JSON
from subgraph.documents import to_json
from subgraph.graph import protobuf
from subgraph.results.sweep import SweepDocument, SweepOutcome
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.reference import threads
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.storage.digest import digest, file_digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, copied
from subgraph.sweep.document import case_name, result_entry
from subgraph.sweep.expected import ExpectedOutputs, Runtime, plain_onnxruntime
from subgraph.sweep.operator_tests import MODEL, Example, OperatorTest
from subgraph.sweep.sweep import RUN_TIMEOUT, Sweep, SweepResult, SweepRow
from subgraph.text import clean
from subgraph.verdict import Verdict

log = logging.getLogger("subcut")

MAX_NAME = 60  # characters of a candidate's name, and of the choice of tests, in a folder's
FORMATS = ("npy", "bin")


@dataclass(frozen=True)
class SweepRequest:
    """What the cases of a candidate depend on."""

    candidate: str
    identity: Mapping[str, object]
    precision: str | None
    criterion: str
    only: Sequence[str]


@dataclass(frozen=True)
class TestRequest:
    """The test that a case was made from, and the version of onnx that it belongs to."""

    test: str
    onnx: str


@dataclass(frozen=True)
class ExpectedEntry:
    """The test's name, operator and tolerance in a case's manifest."""

    test: str
    operator: str
    rtol: float
    atol: float


def place_of(
    candidate: Candidate, only: Sequence[str], output: Path, *, force: bool = False
) -> ResultPlace:
    """Where the cases of one candidate go: a folder of its own for each choice of tests."""
    name = folders.safe_name(candidate.name)[:MAX_NAME]
    choice = f"-{folders.safe_name('+'.join(only))[:MAX_NAME]}" if only else ""
    return ResultPlace(output, f"sweep-{name}{choice}", force)


def request_of(sweep: Sweep, runtime: Runtime) -> object:
    """The `SweepRequest` of a candidate, as JSON."""
    candidate = runtime.candidate
    criterion = sweep.expected.criterion
    return to_json(
        SweepRequest(
            candidate.name, candidate.identity(""), candidate.precision, criterion, sweep.only
        )
    )


def free_places(places: Iterable[ResultPlace]) -> list[ResultPlace]:
    """Where the cases go, as `case.free_place`. Asked before the sweep, and again before they are
    written.

    Raises:
        ResultExists: something else stands in the way.
    """
    return [case.free_place(place, _source()) for place in places]


def _source() -> ModelSource:
    return ModelSource(f"onnx {metadata.version('onnx')}, backend/test")


def save(
    sweep: Sweep, rows: Sequence[SweepRow], places: Sequence[ResultPlace], document: SweepDocument
) -> None:
    """Write a folder per candidate.

    Raises:
        OutputError: it cannot be written. ResultExists: something else stands there meanwhile.
    """
    places = free_places(places)
    for k, (runtime, place) in enumerate(zip(sweep.candidates, places, strict=True)):
        with folders.aside(place.path) as work:
            for row in rows:
                if name := case_name(row.test, row.results[k]):
                    _save_case(sweep, row.test, row.results[k], runtime, work / name)
            evidence.write_document(document, work, SWEEP_JSON)
            request = request_of(sweep, runtime)
            case.write_manifest(
                EvidenceManifest(source=_source(), command=document.command, request=request), work
            )
        log.info("report: %s", clean(str(place.path / REPORT_FILES["html"])))


def _save_case(
    sweep: Sweep, test: OperatorTest, result: SweepResult, runtime: Runtime, work: Path
) -> None:
    work.mkdir()
    with sweep.example(test) as example:
        shutil.copyfile(example.model, work / MODEL)
        skeleton = protobuf.read(work / MODEL)
        names = folders.safe_names(
            dict.fromkeys(r.name for r in (*example.inputs, *example.outputs))
        )
        inputs, outputs = (
            [
                _save_tensor(record, names[record.name], role, work, skeleton.model.graph)
                for record in records
            ]
            for role, records in (("inputs", example.inputs), ("outputs", example.outputs))
        )
        fresh = bool(result.before) or result.outcome is not SweepOutcome.TIMEOUT
        for tensors in runtime.run(example, fresh=fresh).tensors:
            evidence.copy_tensors(tensors, names, work / CANDIDATE)
        reference = sweep.expected.reference_result(example)
    shutil.copyfile(REPRO_SCRIPT, work / REPRO)
    nodes = [
        NodeEntry(n.name or f"#{i}", n.op_type, i) for i, n in enumerate(skeleton.model.graph.node)
    ]
    parameters = sum(map(protobuf.element_count, skeleton.model.graph.initializer))
    onnx = metadata.version("onnx")
    name = runtime.candidate.name
    check = (
        f"the outputs are those that onnx's test expects; plain onnxruntime {reference.outcome}:"
        f" {reference.why}"
    )
    manifest = CaseManifest(
        source=ModelSource(
            f"{test.name}.onnx", bytes=skeleton.size, structure_sha256=skeleton.structure
        ),
        command=f"subcut sweep --only {test.name}",
        request=TestRequest(test.name, onnx),
        region=RegionEntry(
            [n.name for n in nodes[:1]], [n.name for n in nodes[-1:]], nodes, parameters=parameters
        ),
        inputs=inputs,
        outputs=outputs,
        samples=[SampleEntry("")],
        seed=0,
        reference=ReferenceEntry(f"what the test of onnx {onnx} expects", threads=threads()),
        above=0,
        losses=(),
        check=CheckResult("expected", check.removesuffix(": "), 0.0),
        expected=ExpectedEntry(test.name, test.op, test.rtol, test.atol),
        found={"candidate": name, "version": runtime.about.version} | to_json(result_entry(result)),
    )
    lines = [
        f"Command: {manifest.command}",
        f"Candidate: {name} {runtime.about.version}",
        f"Found: {result.outcome}   {result.verdict.why}",
        f"Check: {manifest.check.what}",
    ]
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    (work / LOG).write_text(
        "".join(f"{now} {' '.join(line.split())}\n" for line in lines), encoding="utf-8"
    )
    case.write_manifest(manifest, work)


def _save_tensor(
    record: Record, stem: str, role: str, work: Path, graph: protobuf.GraphProto
) -> TensorEntry:
    """Write one tensor's files to `work/role`; its entry in the manifest."""
    with folders.scratch(work, "files") as aside:
        moved = copied(record, aside, stem).within(str(aside))
        stored, _ = case.store(moved, role, work, FORMATS, TensorFormat(), keep=False)
    maker = next((i for i, n in enumerate(graph.node) if record.name in n.output), None)
    producer = None if maker is None else graph.node[maker].name or f"#{maker}"
    return TensorEntry(record.name, producer, stored.dtype, stored.form, stored.shapes, [stored])


# ------------------------------------------------------------ and back


def replay_test(
    found: FoundCase, test: ExpectedTest, candidate: Candidate, criterion: str
) -> Verdict:
    """Run a test's case in a fresh process; judged as in the sweep.

    Raises:
        BackendError: the candidate cannot be used at all.
    """
    model = found.place.resolve() / MODEL
    name = test.test
    inputs, outputs = (
        tuple(records[0] for records in role.values()) for role in (found.inputs, found.outputs)
    )
    key = digest(name, file_digest(model))  # the store lives no longer than this run
    example = Example(name, model, inputs, outputs, test.rtol, test.atol, key)
    with (
        folders.temporary() as temporary,
        Store(temporary / "store") as store,
        open_workers(candidate) as workers,
        Workers(plain_onnxruntime(RUN_TIMEOUT)) as plain_workers,
    ):
        runtime, plain = (Runtime(w.candidate, w, store) for w in (workers, plain_workers))
        with ExpectedOutputs(criterion, plain, temporary) as expected:
            return expected.verdict(example, runtime.run(example, fresh=True), runtime.precision)[0]
