"""onnx's operator tests through candidates -> a row per test: right, refused, wrong, crashed, and
why.

Each run result is stored at once, so a sweep that was killed goes on. A test that is wrong, or
crashes, in a process that had run other models is run again in a fresh process, whose result
counts.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from subgraph.errors import BackendError, WorkerDied
from subgraph.graph import protobuf
from subgraph.log import log
from subgraph.questions.sweep.expected import (
    ExpectedOutputs,
    ReferenceResult,
    Runtime,
    is_dead,
    make_plain_candidate,
    open_runtime,
)
from subgraph.questions.sweep.operator_tests import Example, OperatorTest, OperatorTests, collect
from subgraph.results.sweep import SweepOutcome
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.storage import folders
from subgraph.storage.store import Store
from subgraph.trials.open_trials import STORE
from subgraph.types import Strings, frozen
from subgraph.verdict import ENDED, Signature, Status, Verdict

RUN_TIMEOUT = 60.0  # seconds for one build or run if no --timeout is given: these models are tiny


BAD = (SweepOutcome.WRONG, SweepOutcome.CRASHED, SweepOutcome.TIMEOUT)
OF_STATUS = {
    Status.AGREE: SweepOutcome.RIGHT,
    Status.FAIL: SweepOutcome.WRONG,
    Status.UNRESOLVED: SweepOutcome.UNRESOLVED,
}


@frozen
class SweepResult:
    """The result of one test on one candidate.

    Attributes:
        outcome: The outcome.
        verdict: The verdict.
        judged_by: The criterion, or the test's own tolerance; "" if nothing was judged.
        before: The outcome in a process that had run other models, if a fresh one ended otherwise.
    """

    outcome: SweepOutcome
    verdict: Verdict
    judged_by: str = ""
    before: str = ""


@frozen
class SweepRow:
    """One test: how plain onnxruntime ended on it, and a result per candidate."""

    test: OperatorTest
    reference: ReferenceResult
    results: tuple[SweepResult, ...]


@dataclass
class Sweep:
    """Tests, and the candidates that run them. Several threads may share it."""

    tests: OperatorTests
    candidates: Sequence[Runtime]
    expected: ExpectedOutputs
    scratch: Path
    only: Strings = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def open_example(self, test: OperatorTest) -> Iterator[Example]:
        """Provide a test's files, which live as long as the block."""
        folder = self.scratch / f"test{next(self._numbers)}"
        try:
            yield self.tests.unpack(test, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def rows(self, jobs: int = 1) -> list[SweepRow]:
        """Run each test on each candidate, `jobs` at the same time. Logs a line of progress now and
        then.

        Raises:
            BackendError: a candidate cannot be used at all. OutputError: nothing can be written.
        """
        tests = self.tests.tests
        total = len(tests) * len(self.candidates)
        outcomes = Counter[SweepOutcome]()
        columns = []
        for runtime in self.candidates:
            # There are twice as many threads as runs: some unpack and judge while the candidate
            # runs the tests of others.
            executor = ThreadPoolExecutor(max_workers=jobs if jobs == 1 else 2 * jobs)
            limited = runtime.limit_runs(jobs)
            try:
                column = []
                for cell in executor.map(lambda test, r=limited: self._run(r, test), tests):
                    column.append(cell)
                    outcomes[cell[1].outcome] += 1
                    step = outcomes.total()
                    counts = ", ".join(f"{n} {o}" for o in SweepOutcome if (n := outcomes[o]))
                    extra = {"step": step, "of": total, "sparse": True}
                    name = runtime.candidate.name
                    log.info("%d of %d on %s: %s", step, total, name, counts, extra=extra)
                columns.append(column)
            except BaseException:
                runtime.workers.close()  # threads that wait for a result stop at once
                raise
            finally:
                executor.shutdown(cancel_futures=True)
        return [
            SweepRow(test, cells[0][0], tuple(result for _, result in cells))
            for test, *cells in zip(tests, *columns, strict=True)
        ]

    def _run(self, runtime: Runtime, test: OperatorTest) -> tuple[ReferenceResult, SweepResult]:
        with self.open_example(test) as example:
            reference = self.expected.run_reference(example)
            result = self.result(runtime, example)
        log.debug(
            "%s on %s: %s   %s",
            test.name,
            runtime.candidate.name,
            result.outcome,
            result.verdict.why,
        )
        return reference, result

    def result(self, runtime: Runtime, example: Example) -> SweepResult:
        """Return how a runtime ends on an example.

        A wrong result or a crash is run again in a fresh process.

        Raises:
            BackendError: the runtime cannot be used at all. WorkerDied: no process of it starts any
                more.
        """
        try:
            result = self._make_result(runtime, example, fresh=False)
            if result.outcome in (SweepOutcome.WRONG, SweepOutcome.CRASHED):
                result = _settle(result, self._make_result(runtime, example, fresh=True))
        except WorkerDied:
            raise
        except BackendError as e:
            if not runtime.used:
                raise
            return SweepResult(SweepOutcome.UNRESOLVED, Verdict(Status.UNRESOLVED, why=e.what))
        return result

    def _make_result(self, runtime: Runtime, example: Example, *, fresh: bool) -> SweepResult:
        verdict, judged_by = self.expected.verdict(
            example, runtime.run(example, fresh=fresh), runtime.precision
        )
        return SweepResult(choose_outcome(verdict), verdict, judged_by)


def _settle(used: SweepResult, fresh: SweepResult) -> SweepResult:
    """Return the result of two runs, in a used process and in a fresh one. Wrong in the used one
    alone is unresolved."""
    if used.outcome is fresh.outcome:
        return fresh
    if fresh.outcome is not SweepOutcome.RIGHT:
        return replace(fresh, before=used.outcome.value)
    why = f"{used.outcome} after other models, right in a fresh process: {used.verdict.why}"
    verdict = replace(fresh.verdict, status=Status.UNRESOLVED, why=why)
    return SweepResult(SweepOutcome.UNRESOLVED, verdict, fresh.judged_by, used.outcome.value)


def choose_outcome(verdict: Verdict) -> SweepOutcome:
    """Return a verdict as an outcome. An error that a candidate raises and survives is a refusal,
    in whatever words."""
    if verdict.signature is Signature.TIMEOUT:
        return SweepOutcome.TIMEOUT
    if verdict.signature is Signature.REFUSED:
        return SweepOutcome.REFUSED
    if verdict.signature in ENDED:
        if is_dead(verdict):
            return SweepOutcome.CRASHED
        return SweepOutcome.REFUSED
    return OF_STATUS[verdict.status]


@contextmanager
def open_sweep(
    candidates: Sequence[Candidate],
    output: Path,
    *,
    only: Sequence[str] | None,
    criterion: str = "noise",
    stored: bool = True,
) -> Iterator[Sweep]:
    """Provide a sweep with its processes, tests, store and scratch folder, until the block ends.

    Args:
        candidates: The candidates.
        output: The folder of the results.
        only: Names or globs of operators and tests; empty for all, None for no tests.
        criterion: The criterion.
        stored: Whether results of earlier sweeps are used.

    Raises:
        UnknownName: `only` names nothing, or the criterion is unknown. BackendError: a candidate
            cannot be used.
        OutputError: nothing can be written.
    """
    output = output.absolute()
    protobuf.find_reading_class()  # here, before threads need it at once: it is set up in steps
    with ExitStack() as stack:
        scratch = stack.enter_context(folders.make_scratch(output))
        store = stack.enter_context(Store(output / STORE if stored else scratch / STORE))
        pools = [
            stack.enter_context(open_workers(c))
            for c in (make_plain_candidate(RUN_TIMEOUT), *candidates)
        ]
        plain, *runtimes = [open_runtime(workers, store) for workers in pools]
        for runtime in (plain, *runtimes):
            log.debug("%s %s", runtime.candidate.name, runtime.about.version)
        if only is None:
            tests = OperatorTests((), ())
        else:
            tests = collect(store, plain.about.version).select(only)
        expected = stack.enter_context(ExpectedOutputs(criterion, plain, scratch))
        yield Sweep(tests, runtimes, expected, scratch, tuple(only or ()))
