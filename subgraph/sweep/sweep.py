"""onnx's operator tests through candidates -> a row per test: right, refused, wrong, crashed, and why.

Each answer is kept as it comes, so that a sweep that was killed goes on. What a process that had run other models gets
wrong, or does not survive, is asked again of a fresh one: wrong is what is wrong there.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from subgraph.errors import BackendError, WorkerDied
from subgraph.graph import protobuf
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import folders
from subgraph.storage.store import Store
from subgraph.sweep.expected import ExpectedOutputs, ReferenceResult, Runtime, is_dead, plain_onnxruntime
from subgraph.sweep.operator_tests import NODE, Example, OperatorTest, OperatorTests, collect
from subgraph.trials.session import STORE
from subgraph.verdict import Signature, Status, Verdict

log = logging.getLogger("subcut")

SCHEMA = "subcut.sweep/1"
PATIENCE = 60.0  # seconds for one build or run where no --timeout is given: these models are tiny


class SweepOutcome(StrEnum):
    """How a test ended, the most interesting first."""

    WRONG = "wrong"
    CRASHED = "crashed"  # the process ended
    TIMEOUT = "timeout"
    UNRESOLVED = "unresolved"
    REFUSED = "refused"  # an error while building or running; the process lives
    RIGHT = "right"


BAD = (SweepOutcome.WRONG, SweepOutcome.CRASHED, SweepOutcome.TIMEOUT)


@dataclass(frozen=True)
class SweepResult:
    """How one test ended on one candidate.

    Attributes:
        way: what judged it: the criterion, or the test's own tolerance; "" where nothing was.
        before: how it ended in a process that had run other models, where a fresh one ended otherwise; "" elsewhere.
    """

    word: SweepOutcome
    verdict: Verdict
    way: str = ""
    before: str = ""


@dataclass(frozen=True)
class SweepRow:
    """One test: what plain onnxruntime makes of it, and a result per candidate."""

    test: OperatorTest
    plain: ReferenceResult
    results: tuple[SweepResult, ...]


@dataclass
class Sweep:
    """All that is needed to ask candidates about tests. Safe to use from several threads."""

    tests: OperatorTests
    candidates: Sequence[Runtime]
    truth: ExpectedOutputs
    scratch: Path
    only: tuple[str, ...] = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def example(self, test: OperatorTest) -> Iterator[Example]:
        """The files of a test, as long as the block runs."""
        folder = self.scratch / f"test{next(self._numbers)}"
        try:
            yield self.tests.unpacked(test, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def rows(self, jobs: int = 1) -> list[SweepRow]:
        """Ask each candidate about each test, `jobs` at once. A line of progress now and then.

        Raises:
            BackendError: a candidate cannot be used at all. OutputError: nothing can be written.
        """
        tests, told = self.tests.tests, _ProgressLines(len(self.tests.tests) * len(self.candidates))
        columns = []
        for runtime in self.candidates:
            executor = ThreadPoolExecutor(max_workers=jobs)
            try:
                column = []
                for found in executor.map(lambda test, r=runtime: self._asked(r, test), tests):
                    column.append(found)
                    told.one(runtime.candidate.name, found[1].word)
                columns.append(column)
            except BaseException:
                runtime.workers.close()  # whoever waits for an answer need not
                raise
            finally:
                executor.shutdown(cancel_futures=True)
        return [
            SweepRow(test, found[0][0], tuple(result for _, result in found))
            for test, *found in zip(tests, *columns, strict=True)
        ]

    def _asked(self, runtime: Runtime, test: OperatorTest) -> tuple[ReferenceResult, SweepResult]:
        with self.example(test) as example:
            plain = self.truth.plain(example)
            try:
                found = self._result(runtime, example, fresh=False)
                if found.word in (SweepOutcome.WRONG, SweepOutcome.CRASHED):
                    found = _settled(found, self._result(runtime, example, fresh=True))
            except WorkerDied:
                raise
            except BackendError as e:
                if not runtime.used:
                    raise
                found = SweepResult(SweepOutcome.UNRESOLVED, Verdict(Status.UNRESOLVED, why=e.what))
        log.debug("%s on %s: %s   %s", test.name, runtime.candidate.name, found.word, found.verdict.why)
        return plain, found

    def _result(self, runtime: Runtime, example: Example, *, fresh: bool) -> SweepResult:
        verdict, way = self.truth.verdict(example, runtime.answer(example, fresh=fresh), runtime.precision)
        return SweepResult(word(verdict), verdict, way)


def _settled(used: SweepResult, fresh: SweepResult) -> SweepResult:
    """What a process that had run other models gave, and a fresh one. Wrong only there is neither right nor proved."""
    if used.word is fresh.word:
        return fresh
    if fresh.word is not SweepOutcome.RIGHT:
        return replace(fresh, before=used.word.value)
    why = f"{used.word} after other models, right in a fresh process: {used.verdict.why}"
    verdict = replace(fresh.verdict, status=Status.UNRESOLVED, why=why)
    return SweepResult(SweepOutcome.UNRESOLVED, verdict, fresh.way, used.word.value)


class _ProgressLines:
    """Progress as lines."""

    def __init__(self, of: int) -> None:
        self.step, self.of = 0, of
        self.words: Counter[SweepOutcome] = Counter()

    def one(self, name: str, word: SweepOutcome) -> None:
        self.step += 1
        self.words[word] += 1
        so_far = ", ".join(f"{self.words[w]} {w}" for w in SweepOutcome if self.words[w])
        extra = {"step": self.step, "of": self.of, "sparse": True}
        log.info("%d of %d on %s: %s", self.step, self.of, name, so_far, extra=extra)


def word(verdict: Verdict) -> SweepOutcome:
    """A verdict as one word. An error that a candidate raises and survives is a refusal, in whatever words."""
    if verdict.signature is Signature.TIMEOUT:
        return SweepOutcome.TIMEOUT
    if verdict.signature is Signature.REFUSED:
        return SweepOutcome.REFUSED
    if verdict.signature is Signature.CRASH:
        return SweepOutcome.CRASHED if is_dead(verdict) else SweepOutcome.REFUSED
    return {
        Status.AGREE: SweepOutcome.RIGHT,
        Status.FAIL: SweepOutcome.WRONG,
        Status.UNRESOLVED: SweepOutcome.UNRESOLVED,
    }[verdict.status]


@contextmanager
def opened(
    candidates: Sequence[Candidate],
    output: Path,
    *,
    only: Sequence[str] = (),
    criterion: str = "noise",
    stored: bool = True,
) -> Iterator[Sweep]:
    """Everything that a sweep needs, until the block ends: processes, tests, store, scratch.

    `only`: names or globs of operators and tests; none: all. `stored`: may answers of earlier runs be used?

    Raises:
        UnknownName: `only` names nothing, or the criterion means none. BackendError: a candidate cannot be used.
        OutputError: nothing can be written.
    """
    output = output.absolute()
    protobuf.reading_class()  # here, before threads ask for it at once: it is set up in steps
    with ExitStack() as stack:
        scratch = stack.enter_context(folders.scratch(output))
        store = stack.enter_context(Store(output / STORE if stored else scratch / STORE))
        tests = collect(store).chosen(only)
        runtimes = [
            Runtime(c, stack.enter_context(Workers(c)), store) for c in (plain_onnxruntime(PATIENCE), *candidates)
        ]
        for runtime in runtimes:
            log.debug("%s %s", runtime.candidate.name, runtime.about.version)
        truth = stack.enter_context(ExpectedOutputs(criterion, runtimes[0], scratch))
        yield Sweep(tests, runtimes[1:], truth, scratch, tuple(only))


# ---------------------------------------------------------------------------------------------------- document


def document(asked: Sweep, rows: Sequence[SweepRow], command: str = "") -> dict[str, Any]:
    """All of it as plain data, as `reports/sweep.schema.json` says."""
    code = exit_code(rows)
    return {
        "schema": SCHEMA,
        "exit_code": code,
        "command": command,
        "criterion": asked.truth.words,
        "only": list(asked.only),
        "tests": _tests_json(asked, rows),
        "candidates": [_candidate_json(r, k, rows) for k, r in enumerate(asked.candidates)],
        "operators": _operators_json(rows),
        "networks": [
            totals([row.results[k] for row in rows if row.test.kind != NODE]) for k in range(len(asked.candidates))
        ],
        "differ": [row.test.name for row in rows if len({r.word for r in row.results}) > 1],
        "onnxruntime": _plain_json(asked, rows),
        "left_out": [{"test": t.name, "operator": t.op, "why": t.why} for t in asked.tests.left_out],
        "rows": [_row_json(row) for row in rows],
    }


def exit_code(rows: Sequence[SweepRow]) -> int:
    """1 where anything is wrong, crashes or hangs, if only now and then; 5 where nothing was right either; else 0."""
    results = [result for row in rows for result in row.results]
    if any(r.word in BAD or r.before for r in results):
        return 1
    return 0 if any(r.word is SweepOutcome.RIGHT for r in results) else 5


def _tests_json(asked: Sweep, rows: Sequence[SweepRow]) -> dict[str, Any]:
    from importlib.metadata import version

    nodes = [row.test for row in rows if row.test.kind == NODE]
    return {
        "onnx": version("onnx"),
        "count": len(rows),
        "operators": len({(t.domain, t.op) for t in nodes}),
        "networks": len(rows) - len(nodes),
        "left_out": len(asked.tests.left_out),
    }


def totals(results: Sequence[SweepResult]) -> dict[str, int]:
    """How many ended with each word; all words."""
    found = Counter(r.word for r in results)
    return {w.value: found[w] for w in SweepOutcome}


def _candidate_json(runtime: Runtime, k: int, rows: Sequence[SweepRow]) -> dict[str, Any]:
    mine = [row.results[k] for row in rows]
    return {
        "name": runtime.candidate.name,
        "backend": runtime.candidate.backend,
        "options": dict(runtime.candidate.options),
        "version": runtime.about.version,
        "precision": runtime.precision,
        "totals": totals(mine),
        "seconds": sum(r.verdict.build + r.verdict.run for r in mine),
        "folder": None,
    }


def _operators_json(rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """By operator, the most interesting first: wrong anywhere, then crashed, and so on; then by name."""
    groups: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        if row.test.kind == NODE:
            groups.setdefault((row.test.op, row.test.domain), []).append(row)
    found = []
    for (op, domain), some in groups.items():
        each = [totals([row.results[k] for row in some]) for k in range(len(some[0].results))]
        found.append({"operator": op, "domain": domain, "tests": len(some), "totals": each})

    def rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return *(-sum(t[w.value] for t in entry["totals"]) for w in SweepOutcome if w is not SweepOutcome.RIGHT), entry[
            "operator"
        ]

    return sorted(found, key=rank)


def _plain_json(asked: Sweep, rows: Sequence[SweepRow]) -> dict[str, Any]:
    """What plain onnxruntime makes of the tests, and where it gives something else than they expect."""
    words = Counter(row.plain.word for row in rows)
    return {
        "version": asked.truth.version,
        "agrees": words["agrees"] + words["near"],
        "refuses": words["refuses"],
        "crashes": words["crashes"],
        "differs": [
            {"test": row.test.name, "operator": row.test.op, "why": row.plain.why}
            for row in rows
            if row.plain.word == "differs"
        ],
    }


def _row_json(row: SweepRow) -> dict[str, Any]:
    test = row.test
    return {
        "test": test.name,
        "operator": test.op,
        "domain": test.domain,
        "kind": test.kind,
        "onnxruntime": row.plain.word,
        "results": [result_json(r) for r in row.results],
    }


def result_json(result: SweepResult) -> dict[str, Any]:
    """One result as plain data; `case` is filled in where a folder is written."""
    verdict, worst = result.verdict, result.verdict.worst
    return {
        "status": result.word.value,
        "signature": verdict.signature and verdict.signature.value,
        "why": verdict.why,
        "judged_by": result.way or None,
        "while": verdict.process.get("while"),
        "before": result.before or None,
        "output": worst.name if worst else None,
        "errors": worst.to_json()["errors"] if worst else {},
        "build_seconds": verdict.build,
        "run_seconds": verdict.run,
        "case": None,
    }
