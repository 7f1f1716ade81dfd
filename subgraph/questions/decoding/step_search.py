"""The search of the step that fails: one walk over all steps, then halving over its first step.

The candidate first walks from the first step to the last with its own states. The first step
whose results it gets wrong, by the criterion and rounding, is where the fault shows; it may have
entered a state before. So walks from the reference's state before step s to that step are
compared: they fail for each s up to the step that is at fault. If that step alone, fed with the
reference's state, is right, then errors accumulate, or several steps are wrong together.

Complexity: log₂ of the steps in walks, and two trials of one step.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subgraph.comparison.criteria import OutputContext
from subgraph.comparison.evidence import explain_mute
from subgraph.comparison.judge import judge
from subgraph.documents import Number, from_json, to_json
from subgraph.errors import (
    BackendError,
    ModelError,
    OutOfTime,
    OutputError,
    SubcutError,
    WorkerDied,
)
from subgraph.graph.model_file import digest_model
from subgraph.iterables import index_by_name
from subgraph.log import log
from subgraph.questions.decoding.run_steps import (
    KEY,
    CandidateStep,
    Records,
    Trace,
    follow,
    measure_relative_error,
    measure_rounding,
    measure_size,
)
from subgraph.results.loop import (
    EXIT_CODES,
    LoopDocument,
    LoopFinding,
    LoopOutcome,
    LoopSetup,
    StepSeen,
)
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record, copy_record
from subgraph.text import clean, count
from subgraph.trials.doubt import ROUNDING_DOUBTS, find_doubt
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.trial import Trials
from subgraph.types import StringMap, frozen
from subgraph.verdict import Status, explain_silence
from subgraph.version import __version__

MAX_DOUBTED = 6  # steps that look wrong, each judged next to rounding, before it is left unresolved
MAX_EVIDENCE = 16  # steps whose outputs are compared with each other
MAX_STATES = 32  # steps at which large states are compared
MAX_COMPARED_STATE_BYTES = 16 << 20  # bytes; they are compared at each step
MAX_TOLD = 20  # steps that are shown though nothing happens there
MAX_ROUNDING_RATIO = 10.0  # times what rounding does to the reference: more is the candidate's own
MIN_STEP_ERROR = 1e-5  # relative error of a step beyond which it is looked into
# Times that the error falls when a walk begins one step later: then it is not drift.
MIN_SUDDEN_RATIO = 10.0


@frozen
class StoredWalk:
    """A stored walk over all steps.

    Attributes:
        seen: The steps.
        wrong: The first wrong step; None if no step is wrong.
        why: The reason why the steps are unresolved, or empty.
        first: A hash of all results of the first step.
    """

    seen: list[StepSeen]
    wrong: int | None
    why: str
    first: str


@frozen
class WalkEnd:
    """The last step of a walk.

    Attributes:
        fails: Whether it is wrong.
        error: Its largest relative error.
    """

    fails: bool
    error: Number | None


@dataclass
class LoopSearch:
    """A search on one candidate.

    Attributes:
        first: Trials on step 0, whose processes and store all others share.
        walks: The number of walks.
    """

    walked: Trace
    setup: Setup
    workers: Workers
    first: Trials
    walks: int = 0
    why: str = ""

    def run(self) -> LoopDocument:
        """Run the search, and return its document.

        Raises:
            BackendError: the candidate cannot be used at all. OutputError: nothing can be written.
            ModelError: the reference cannot run a step.
            OutOfTime: it is used up before the candidate had run all steps.
        """
        begin = time.monotonic()
        seen, wrong = self._walk_all_steps()
        walked = self.walked
        identity = self.first.model.reference.identity()
        prompt = 0 if walked.given.prompt is None else int(walked.given.prompt.shape[1])
        document = LoopDocument(
            exit_code=0,
            found=LoopFinding(
                outcome=LoopOutcome.AGREE,
                seen=seen,
            ),
            setup=LoopSetup(
                model=walked.decoder.graph.path.name,
                candidate=self.setup.candidate.name,
                reference=f"{identity['backend']} {identity['version']}",
                steps=walked.steps,
                prompt=prompt,
                states=walked.decoder.states,
            ),
        )
        if wrong is None:
            why = self.why or _explain_mute_steps(self)
            outcome = LoopOutcome.UNRESOLVED if why else LoopOutcome.AGREE
            document = document.settle(outcome=outcome, why=why)
        else:
            try:
                document = self._narrow(document, wrong)
            except OutOfTime as e:
                why = (
                    f"step {wrong} is the first whose results are wrong; {e} before it was known"
                    " where that comes from"
                )
                document = document.settle(
                    outcome=LoopOutcome.UNRESOLVED, first_wrong=wrong, why=why
                )
        seconds = round(time.monotonic() - begin, 3)
        code = 1 if wrong is not None else EXIT_CODES.get(document.found.outcome, 1)
        return replace(
            document, exit_code=document.exit_code or code, walks=self.walks, seconds=seconds
        )

    def step_beyond_rounding(self, seen: Sequence[StepSeen]) -> int | None:
        """Return a step that agrees alone, but not by rounding alone: the first, or the worst."""
        off = [s for s in seen if s.error and s.error > MIN_STEP_ERROR]
        worst = max(off, key=lambda s: s.error or 0.0, default=None)
        for k in dict.fromkeys(s.step for s in (*off[:1], *([worst] if worst else []))):
            with self.open_step(k) as (trials, _):
                if find_doubt(trials, ROUNDING_DOUBTS):
                    return k
        return None

    def _narrow(self, document: LoopDocument, wrong: int) -> LoopDocument:
        """Find the steps that a wrong step depends on."""
        shows = document.settle(first_wrong=wrong, since=wrong, outcome=LoopOutcome.STEP)
        if self._is_wrong_alone(wrong):
            return shows
        if not self._find_end(0, wrong).fails:
            why = (
                f"step {wrong} was wrong, and is right when the candidate walks there again from"
                " the beginning"
            )
            return document.settle(outcome=LoopOutcome.FLAKY, first_wrong=wrong, why=why)
        if wrong == 0:
            why = "the first step fails in a walk, and is right when it is run alone"
            return document.settle(outcome=LoopOutcome.UNRESOLVED, first_wrong=0, why=why)
        right = wrong
        since = 0
        while right - since > 1:
            middle = (right + since) // 2
            if self._find_end(middle, wrong).fails:
                since = middle
            else:
                right = middle
        shows = shows.settle(since=since)
        if self._is_wrong_alone(since):
            return shows.settle(
                first_wrong=since, why=f"step {wrong} is the first whose results show it"
            )
        return self._judge_gradual_growth(shows, since, wrong)

    def _judge_gradual_growth(self, document: LoopDocument, since: int, wrong: int) -> LoopDocument:
        """Judge steps each of which is right on the reference's state: errors grow, or one is
        sudden."""
        before = self._find_end(since, wrong).error or 0.0
        after = (self._find_end(since + 1, wrong).error or 0.0) if since < wrong else 0.0
        errors = [s.error for s in document.found.seen[: wrong + 1] if s.error]
        if before > MIN_SUDDEN_RATIO * after or not errors:
            why = (
                f"steps {since} to {wrong} are wrong together: each of them, fed with the"
                " reference's state, is right"
            )
            return document.settle(outcome=LoopOutcome.TOGETHER, why=why)
        rounding = measure_rounding(
            self.walked, wrong, self.first.judge.precision, self.first.model.new_folder()
        )
        why = (
            "each step is right when it is fed with the reference's state: errors add up from step"
            " to step"
        )
        if errors[-1] > MAX_ROUNDING_RATIO * rounding:
            return document.settle(outcome=LoopOutcome.ACCUMULATES, why=why)
        why += ", and so does rounding in the reference: the loop itself makes them grow"
        outcome = LoopOutcome.UNRESOLVED
        return replace(document.settle(outcome=outcome, why=why), exit_code=EXIT_CODES[outcome])

    # ------------------------------------------------------------ walks

    def _walk_all_steps(self) -> tuple[list[StepSeen], int | None]:
        """Return each step of a walk over all, and the first that is wrong, also in comparison with
        rounding."""

        def make(_folder: Path) -> Any:
            steps = self.walked.steps
            every = math.ceil(steps / MAX_TOLD)
            seen: list[StepSeen] = []
            doubted: dict[int, Records] = {}
            first: list[str] = []
            for step in self._walk(0, steps - 1):
                first = first or [_digest_step(self, step)]
                shown = self._compare(step)
                before = seen[-1].status if seen else Status.AGREE
                seen.append(shown)
                if shown.status == Status.FAIL and len(doubted) < MAX_DOUBTED and step.made:
                    kept = self.first.model.new_folder()
                    doubted[step.k] = {
                        n: copy_record(r, kept, f"o{i}").rebase(kept)
                        for i, (n, r) in enumerate(step.raw.items())
                    }
                at = {"step": step.k + 1, "of": steps}
                is_told = shown.status != before or step.k % every == 0
                level = logging.INFO if is_told else logging.DEBUG
                log.log(
                    level,
                    "step %d of %d: %s",
                    step.k,
                    steps,
                    _describe_step(shown, step.error),
                    extra=at,
                )
            wrong = _find_first_wrong(self, seen, doubted)
            return to_json(StoredWalk(seen, wrong, self.why, first[0]))

        self._drop_if_changed()
        document, _ = self.first.model.store.memo(self._make_key_of_all(), make)
        stored = from_json(StoredWalk, document)
        self.why = stored.why
        return stored.seen, stored.wrong

    def _drop_if_changed(self) -> None:
        """Repeat the first step of a stored walk; use no stored answer if two new ones differ.

        `questions.drop_if_changed` does this for a search: a key does not show that a library or a
        board has changed.
        """
        entry = self.first.model.store.get(self._make_key_of_all())
        if entry is None:
            return
        walks = self.walks
        now = _digest_step(self, next(self._walk(0, 0)))
        first = from_json(StoredWalk, entry.document).first
        if now != first and now == _digest_step(self, next(self._walk(0, 0))):
            name = clean(self.setup.candidate.name)
            log.info(
                "%s returns other results than before: its stored results are no longer used", name
            )
            self.first.processes.runs.candidate_key.discard_results()
        self.walks = walks

    def _make_key_of_all(self) -> str:
        return self._make_key(0, self.walked.steps - 1, "all")

    def _find_end(self, begin: int, end: int) -> WalkEnd:
        """Return whether the last step of a walk is wrong, and its error."""

        def make(_folder: Path) -> Any:
            last = deque(self._walk(begin, end), maxlen=1)[0]
            if not last.made or last.k < end:
                return to_json(WalkEnd(True, math.inf))
            failed = self._judge_step(end, last.raw) is not Status.AGREE
            log.info(
                "steps %d to %d from the reference's state: %s",
                begin,
                end,
                "FAIL" if failed else "agree",
            )
            return to_json(WalkEnd(failed, self._compare(last).error))

        document, _ = self.first.model.store.memo(self._make_key(begin, end, "last"), make)
        return from_json(WalkEnd, document)

    def _walk(self, begin: int, end: int) -> Iterator[CandidateStep]:
        """Yield what the candidate computed in each step from `begin` to `end`.

        Raises:
            BackendError: the candidate cannot be used at all. OutputError: its outputs cannot be
                written.
            OutOfTime: the time is used up.
        """
        self.walks += 1
        folder = self.first.model.new_folder()
        with self.workers.borrow(loads=1, fresh=True) as worker:

            def run(into: Path, outputs: StringMap, feeds: Sequence[Record]) -> Records:
                return worker.run(KEY, into, outputs, feeds).by_name

            try:
                worker.load(KEY, self.walked.model, self.first.runtime.candidate.options)
            except (ModelError, WorkerDied) as e:
                yield CandidateStep(begin, {}, e)
                return
            for step in follow(self.walked, run, begin, end, folder):
                is_fatal = isinstance(step.error, (OutputError, OutOfTime, BackendError))
                if step.error and is_fatal and not isinstance(step.error, WorkerDied):
                    raise step.error
                yield step

    def _make_key(self, begin: int, end: int, kind: str) -> str:
        walked = self.walked
        trials = self.first
        tokens = [t.tobytes() for t in walked.tokens[: end + 1]]
        feeds = walked.feeds(begin, walked.find_state_before(begin))
        fed = [trials.model.values.digest([r]) for r in feeds]
        return digest(
            "walk/3",
            __version__,
            kind,
            digest_model(walked.decoder.graph),
            trials.processes.runs.candidate_key.text,
            self.setup.criterion,
            [begin, end],
            tokens,
            fed,
            walked.given.digest(),
            self.first.model.reference.identity(),
        )

    def _compare(self, step: CandidateStep) -> StepSeen:
        """Compare a step with the reference's; states only if few are compared."""
        k = step.k
        walked = self.walked
        if not step.made:
            return StepSeen(k, None, Status.FAIL)
        expected = dict(walked.results[k])
        # Small states are compared at each step.
        size = measure_size(walked.states[walked.steps])
        is_small = size <= MAX_COMPARED_STATE_BYTES
        interval = 1 if is_small else math.ceil(walked.steps / MAX_STATES)
        if k + 1 in walked.states and (k + 1) % interval == 0:
            before = walked.states[k + 1]
            expected |= {output: before[name] for name, output in walked.decoder.states.items()}
        worst = 0.0
        status = Status.AGREE
        for name, record in expected.items():
            value = record.value()
            made = step.made[name].value()
            ruling = judge(
                value,
                made,
                self.first.judge.rule,
                OutputContext(name, self.first.judge.precision, is_model_output=True),
            )
            if ruling.fails:
                status = Status.FAIL
            worst = max(worst, measure_relative_error(value, made))
        return StepSeen(k, worst, status)

    # ------------------------------------------------------------ steps

    @contextmanager
    def open_step(self, k: int) -> Iterator[tuple[Trials, Setup]]:
        """Open trials on step k, fed with the reference's state, for this block; yield them and the
        setup."""
        setup = replace(self.setup, feeding=self.make_feeding(k), needs_evidence=False)
        with open_trials(
            self.walked.decoder.graph, setup, self.first.model.reference, self.workers
        ) as trials:
            yield trials, setup

    def make_feeding(self, k: int) -> Feeding:
        """Return the inputs of step k."""
        fed = index_by_name(self.walked.feeds(k, self.walked.find_state_before(k)))
        inputs = self.setup.feeding.inputs
        return Feeding(inputs, records=(fed,), origins=(f"what the reference is fed in step {k}",))

    def _is_wrong_alone(self, k: int) -> bool:
        with self.open_step(k) as (trials, _):
            verdict = trials.verdict(trials.model.whole())
        log.info("step %d alone, from the reference's state: %s", k, verdict.status.value)
        return not verdict.agrees

    def _judge_step(self, k: int, made: Records) -> Status:
        """Return the verdict on outputs of step k, next to the rounding in that step."""
        with self.open_step(k) as (trials, _):
            trials.model.capture(trials.model.whole())
            return trials.judge.verdict(trials.model.whole(), RunResult((made,), ((),))).status


def _find_first_wrong(
    search: LoopSearch, seen: Sequence[StepSeen], doubted: dict[int, Records]
) -> int | None:
    """Return the first step that does not agree, with the rounding of that step measured."""
    failing = [s.step for s in seen if s.status == Status.FAIL]
    for k in failing:
        if k not in doubted and seen[k].error is not None:
            search.why = (
                f"{count(failing, 'step')} look wrong, and the first of them are within rounding"
            )
            return None
        if k not in doubted or search._judge_step(k, doubted[k]) is not Status.AGREE:
            return k
    if len(seen) < search.walked.steps:
        search.why = "the candidate ended early"
    return None


def _explain_mute_steps(search: LoopSearch) -> str:
    """Explain why the steps show nothing about the candidate: no output changes; "" if one does."""
    results = search.walked.results[:MAX_EVIDENCE]
    mute = dict[str, str]()
    for name in results[0] if results else ():
        values = [step[name].value() for step in results]
        for k, value in enumerate(values):
            if not (why := explain_mute(value, value, values[:k] + values[k + 1 :])):
                return ""
            mute[name] = why
    return explain_silence(mute) if mute else ""


def _digest_step(search: LoopSearch, step: CandidateStep) -> str:
    """Return a hash of all bits that a step returned."""
    return digest(search.first.model.values.digest([step.made[n] for n in sorted(step.made)]))


def _describe_step(seen: StepSeen, error: SubcutError | None) -> str:
    """Return `1.2e-06  agree`; or why there is no output."""
    if seen.error is None:
        why = error.what if error else "none was given"
        size = f"no output: {why}"
    else:
        size = f"{seen.error:.1e}"
    word = "FAIL" if seen.status == Status.FAIL else "agree"
    return f"{size}  {word}"
