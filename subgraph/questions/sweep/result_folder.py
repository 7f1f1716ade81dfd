"""Rows of a sweep -> its document, and a case folder per bad result, as a cut makes one; and back.

sweep-CANDIDATE/
    manifest.json  sweep.json     the request; the whole document
    report.html                   operators × candidates
    test_…/                       model.onnx, inputs/, outputs/ (expected), candidate/, repro.py,
                                  log.txt
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
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
from subgraph.iterables import flatten, group_values
from subgraph.log import log
from subgraph.questions.sweep.expected import (
    ExpectedOutputs,
    Runtime,
    make_plain_candidate,
    open_runtime,
)
from subgraph.questions.sweep.operator_tests import MODEL, NODE, Example, OperatorTest
from subgraph.questions.sweep.sweep import BAD, RUN_TIMEOUT, Sweep, SweepResult, SweepRow
from subgraph.results.sweep import (
    CandidateEntry,
    NamedTest,
    OnnxruntimeEntry,
    OperatorEntry,
    ResultEntry,
    RowEntry,
    SweepDocument,
    SweepOutcome,
    TestsEntry,
    Totals,
)
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.reference import count_threads
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.storage.digest import digest, digest_file
from subgraph.storage.folders import make_safe_name
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, copy_record
from subgraph.text import clean
from subgraph.types import Fields, frozen
from subgraph.verdict import Verdict


def make_document(
    sweep: Sweep, rows: Sequence[SweepRow], places: Sequence[ResultPlace], command: str
) -> SweepDocument:
    """Return the document of a sweep whose cases go to `places`, one per candidate."""
    numbers = range(len(sweep.candidates))
    columns = [[row.results[k] for row in rows] for k in numbers]
    left_out = sweep.tests.left_out
    nodes = [row.test for row in rows if row.test.kind == NODE]
    operators = len({(t.domain, t.op) for t in nodes})
    version = metadata.version("onnx")
    plain = Counter(row.reference.outcome for row in rows)
    differing = [row for row in rows if row.reference.outcome == "differs"]
    return SweepDocument(
        exit_code=choose_exit_code(rows),
        command=command,
        criterion=sweep.expected.criterion,
        only=sweep.only,
        tests=TestsEntry(version, len(rows), operators, len(rows) - len(nodes), len(left_out)),
        candidates=[
            CandidateEntry(
                runtime.candidate.name,
                runtime.candidate.backend,
                runtime.candidate.options,
                runtime.about.version,
                runtime.precision,
                count_outcomes(results),
                sum(r.verdict.build + r.verdict.run for r in results),
                str(place.path),
            )
            for runtime, results, place in zip(sweep.candidates, columns, places, strict=True)
        ],
        operators=_list_operators(rows),
        networks=[
            count_outcomes([row.results[k] for row in rows if row.test.kind != NODE])
            for k in numbers
        ],
        differ=[row.test.name for row in rows if len({r.outcome for r in row.results}) > 1],
        onnxruntime=OnnxruntimeEntry(
            sweep.expected.version,
            plain["agrees"] + plain["near"],
            plain["refuses"],
            plain["crashes"],
            [NamedTest(row.test.name, row.test.op, row.reference.why) for row in differing],
        ),
        left_out=left_out,
        rows=[_make_row(row, places) for row in rows],
    )


def choose_exit_code(rows: Sequence[SweepRow]) -> int:
    """Return 1 if anything is wrong, crashes or hangs, even once; 5 if nothing
    was right; else 0."""
    results = list(flatten(row.results for row in rows))
    if any(r.outcome in BAD or r.before for r in results):
        return 1
    if any(r.outcome is SweepOutcome.RIGHT for r in results):
        return 0
    return 5


def count_outcomes(results: Sequence[SweepResult]) -> Totals:
    """Return the number of results by outcome, all outcomes."""
    counts = Counter(r.outcome for r in results)
    return {outcome: counts[outcome] for outcome in SweepOutcome}


def choose_case_name(test: OperatorTest, result: SweepResult) -> str | None:
    """Return the folder of a bad result's case, within its candidate's; None for other results."""
    if result.outcome in BAD:
        return make_safe_name(test.name)
    return None


def make_result_entry(result: SweepResult, case: str | None = None) -> ResultEntry:
    """Make the entry of one result; `case`: the path of its folder."""
    verdict = result.verdict
    worst = result.verdict.worst
    return ResultEntry(
        status=result.outcome,
        signature=verdict.signature,
        why=verdict.why,
        judged_by=result.judged_by or None,
        phase=verdict.process.get("while"),
        before=result.before or None,
        output=worst.name if worst else None,
        errors=worst.errors if worst else {},
        build_seconds=verdict.build,
        run_seconds=verdict.run,
        case=case,
    )


def _list_operators(rows: Sequence[SweepRow]) -> list[OperatorEntry]:
    """List the operators, the most interesting first: wrong, then crashed …; then by name."""
    groups = group_values(
        ((row.test.op, row.test.domain), row) for row in rows if row.test.kind == NODE
    )
    entries = []
    for (op, domain), some in groups.items():
        each = [
            count_outcomes(results) for results in zip(*(row.results for row in some), strict=True)
        ]
        entries.append(OperatorEntry(op, domain, len(some), each))

    def rank(entry: OperatorEntry) -> tuple[list[int], str]:
        bad = [outcome for outcome in SweepOutcome if outcome is not SweepOutcome.RIGHT]
        return [-sum(t[outcome] for t in entry.totals) for outcome in bad], entry.operator

    return sorted(entries, key=rank)


def _make_row(row: SweepRow, places: Sequence[ResultPlace]) -> RowEntry:
    test = row.test
    results = []
    for result, place in zip(row.results, places, strict=True):
        name = choose_case_name(test, result)
        results.append(make_result_entry(result, str(place.path / name) if name else None))
    return RowEntry(test.name, test.op, test.domain, test.kind, row.reference.outcome, results)


MAX_NAME = 60  # characters of a candidate's name, and of the choice of tests, in a folder's
FORMATS = ("npy", "bin")


@frozen
class SweepRequest:
    """The settings that the cases of a candidate depend on."""

    candidate: str
    identity: Fields
    precision: str | None
    criterion: str
    only: Sequence[str]


@frozen
class TestRequest:
    """The test that a case was made from, and the version of onnx that it belongs to."""

    test: str
    onnx: str


@frozen
class ExpectedEntry:
    """The test's name, operator and tolerance in a case's manifest."""

    test: str
    operator: str
    rtol: float
    atol: float


def choose_place(
    candidate: Candidate, only: Sequence[str], output: Path, *, force: bool
) -> ResultPlace:
    """Return the place of a candidate's cases: a separate folder for each choice of tests."""
    name = folders.make_safe_name(candidate.name)[:MAX_NAME]
    choice = f"-{folders.make_safe_name('+'.join(only))[:MAX_NAME]}" if only else ""
    return ResultPlace(output, f"sweep-{name}{choice}", force)


def find_free_places(places: Iterable[ResultPlace]) -> list[ResultPlace]:
    """Return the places of the cases; checked before the sweep, and again before they are written.

    Raises:
        ResultExists: Something else is in the way.
    """
    return [case.find_free_place(place, _make_source()) for place in places]


def _make_source() -> ModelSource:
    return ModelSource(f"onnx {metadata.version('onnx')}, backend/test")


def save(
    sweep: Sweep, rows: Sequence[SweepRow], places: Sequence[ResultPlace], document: SweepDocument
) -> None:
    """Write a folder per candidate.

    Raises:
        OutputError: It cannot be written.
        ResultExists: Something else is there meanwhile.
    """
    places = find_free_places(places)
    for k, (runtime, place) in enumerate(zip(sweep.candidates, places, strict=True)):
        with folders.write_aside(place.path) as work:
            for row in rows:
                if name := choose_case_name(row.test, row.results[k]):
                    _save_case(sweep, row.test, row.results[k], runtime, work / name)
            evidence.write_document(document, work, SWEEP_JSON)
            candidate = runtime.candidate
            request = SweepRequest(
                candidate=candidate.name,
                identity=candidate.identity(""),
                precision=candidate.precision,
                criterion=sweep.expected.criterion,
                only=sweep.only,
            )
            case.write_manifest(
                EvidenceManifest(
                    source=_make_source(), command=document.command, request=to_json(request)
                ),
                work,
            )
        log.info("report: %s", clean(str(place.path / REPORT_FILES["html"])))


def _save_case(
    sweep: Sweep, test: OperatorTest, result: SweepResult, runtime: Runtime, work: Path
) -> None:
    work.mkdir()
    with sweep.open_example(test) as example:
        shutil.copyfile(example.model, work / MODEL)
        skeleton = protobuf.read(work / MODEL)
        names = folders.make_safe_names(
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
        reference = sweep.expected.run_reference(example)
    shutil.copyfile(REPRO_SCRIPT, work / REPRO)
    nodes = [
        NodeEntry(n.name or f"#{i}", n.op_type, i) for i, n in enumerate(skeleton.model.graph.node)
    ]
    parameters = sum(map(protobuf.count_elements, skeleton.model.graph.initializer))
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
        reference=ReferenceEntry(f"what the test of onnx {onnx} expects", threads=count_threads()),
        above=0,
        losses=(),
        check=CheckResult("expected", check.removesuffix(": "), 0.0),
        expected=ExpectedEntry(test.name, test.op, test.rtol, test.atol),
        found={"candidate": name, "version": runtime.about.version}
        | to_json(make_result_entry(result)),
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
    with folders.make_scratch(work, "files") as aside:
        moved = copy_record(record, aside, stem).rebase(aside)
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
    key = digest(name, digest_file(model))  # the store lives no longer than this run
    example = Example(name, model, inputs, outputs, test.rtol, test.atol, key)
    with (
        folders.make_temporary() as temporary,
        Store(temporary / "store") as store,
        open_workers(candidate) as workers,
        Workers(make_plain_candidate(RUN_TIMEOUT)) as plain_workers,
    ):
        runtime, plain = (open_runtime(w, store) for w in (workers, plain_workers))
        with ExpectedOutputs(criterion, plain, temporary) as expected:
            return expected.verdict(example, runtime.run(example, fresh=True), runtime.precision)[0]
