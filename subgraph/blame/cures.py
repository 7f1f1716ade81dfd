"""Possible cures of a fault, and the proof of those that work: the full model agrees on all samples
and on inputs drawn like them.

A cure is another candidate (a pass off, another option, another release) or another model
(`rewrites`). It is proven on the candidate, against the reference's values of the model as it is,
and its time is measured beside the original's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from subgraph.blame.draws import draw_samples, extend_samples, parameters
from subgraph.errors import SubcutError
from subgraph.graph.graph import load
from subgraph.log import log
from subgraph.results.blame import Cure
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.text import clean
from subgraph.trials.open_trials import Setup, open_trials, with_candidate
from subgraph.trials.trial import Trials
from subgraph.verdict import Status, Verdict

DRAWS = 3  # inputs beside the samples
TIMED = 7  # runs of which the median counts
WARM = 2  # before these
MIN = 1e-6  # seconds: less is not measured


@dataclass
class Prover:
    """The whole model on the candidate, fed with the samples and with draws.

    Attributes:
        draws: how many inputs were drawn. runs: models that were run.
    """

    trials: Trials
    setup: Setup
    draws: int
    runs: int = 0

    def of_candidate(self, kind: str, what: str, how: str, candidate: Candidate) -> Cure:
        """Return the result of another candidate on the full model."""
        log.info("cure? %s, on the whole model", clean(what))
        self.runs += 1
        try:
            with _sharing(self.trials, candidate, f"cure-{self.runs}") as other:
                verdict = other.verdict(self.trials.model.whole())
                return self._cure(kind, what, how, verdict, other, self.trials.graph.path)
        except SubcutError as e:
            return Cure(kind, what, how, False, "region", None, e.what)

    def of_model(self, what: str, path: Path, kind: str = "rewrite") -> Cure:
        """Return the candidate's result on another model: its outputs against the reference's of
        the model as it is.

        Raises:
            SubcutError: it cannot be run.
        """
        self.runs += 1
        return self._cure(kind, what, path.name, self.verdict(path), self.trials, path)

    def verdict(self, path: Path) -> Verdict:
        """The verdict on another model, as of `of_model`.

        Raises:
            SubcutError: it cannot be run.
        """
        with self.opened(path, self.setup.feeding) as other:
            result = other.run(other.model.whole())
            return self.trials.judge.verdict(self.trials.model.whole(), result)

    def opened(self, path: Path, feeding: Feeding) -> AbstractContextManager[Trials]:
        """Trials on another model, of a region or the whole, in the same processes."""
        setup = replace(self.setup, feeding=feeding, candidate_model=None)
        return open_trials(
            load(path), setup, self.trials.model.reference, self.trials.runtime.workers
        )

    def _cure(
        self, kind: str, what: str, how: str, verdict: Verdict, other: Trials, path: Path
    ) -> Cure:
        """A cure, by the verdict on the whole model; `other`, `path`: what is timed if that is
        right."""
        if verdict.status is not Status.AGREE:
            return Cure(kind, what, how, False, "region", None, verdict.why)
        why = "" if self.draws else "no further inputs were tried"
        return Cure(kind, what, how, self.draws > 0, "whole", self._slowdown(other, path), why)

    def _slowdown(self, other: Trials, path: Path) -> float | None:
        """Median times of the cure and the original, run in turn on the first sample."""
        sample = self.trials.model.values.records[0]
        feeds = [sample[name] for name in self.trials.graph.inputs]
        times: tuple[list[float], list[float]] = ([], [])
        pairs = (self.trials, self.trials.graph.path, "original"), (other, path, "cure")
        try:
            with (
                self.trials.model.temporary_folder() as folder,
                self.trials.runtime.workers.borrow(loads=1) as ours,
                other.runtime.workers.borrow(loads=1) as theirs,
            ):
                for (trials, file, key), worker in zip(pairs, (ours, theirs), strict=True):
                    worker.load(key, file, trials.runtime.candidate.options)
                for _ in range(WARM + TIMED):
                    for (_, _, key), worker, spent in zip(
                        pairs, (ours, theirs), times, strict=True
                    ):
                        spent.append(worker.run(key, folder, {}, feeds).seconds)
        except SubcutError as e:
            log.debug("no time: %s", e.what)
            return None
        original, cure = (statistics.median(spent[WARM:]) for spent in times)
        return round(cure / original, 3) if original > MIN else None


@contextmanager
def open_prover(trials: Trials, setup: Setup, notes: list[str]) -> Iterator[Prover]:
    """A prover until the block ends; `notes` gets what keeps it from drawing inputs.

    Raises:
        SubcutError: the reference cannot run the model.
    """
    names = list(trials.graph.inputs)
    trials.model.capture(trials.model.whole())
    trials.model.values.need(names)
    samples = [{name: record[name] for name in names} for record in trials.model.values.records]
    draws = list(draw_samples(samples, DRAWS, trials.model.new_folder(), parameters(trials.graph)))
    fed = replace(
        setup,
        feeding=extend_samples(setup.feeding, samples, draws),
        candidate_model=trials.runtime.own_model,
    )
    with ExitStack() as stack:
        try:
            more = stack.enter_context(
                open_trials(trials.graph, fed, trials.model.reference, trials.runtime.workers)
            )
            more.model.capture(more.model.whole())
            prover = Prover(more, fed, len(draws))
        except SubcutError as e:
            notes.append(
                f"cures are not proven: no inputs could be drawn like the samples: {e.what}"
            )
            prover = Prover(trials, setup, 0)
        yield prover


@contextmanager
def _sharing(trials: Trials, candidate: Candidate, name: str) -> Iterator[Trials]:
    """Trials of another candidate: of the same environment in the same processes, else in processes
    of its own."""
    own = trials.runtime.candidate
    if candidate.build() == own.build():
        yield trials.with_candidate(candidate)
        return
    with with_candidate(trials, candidate, name) as other:
        yield other
