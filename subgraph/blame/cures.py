"""What might cure a fault -> what does: the whole model agrees on all samples and on inputs drawn like them.

A cure is another candidate (a pass off, another option, another release) or another model (`rewrites`). It is proven on
the candidate, against the reference's values of the model as it is, and its time is measured beside the original's.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from subgraph.blame.draws import drawn, extended
from subgraph.blame.parameters import parameters
from subgraph.errors import SubcutError
from subgraph.graph.graph import load
from subgraph.graph.region import Region
from subgraph.results.blame import Cure
from subgraph.runtime.candidate import Candidate
from subgraph.trials.session import Setup, open_trials, with_candidate
from subgraph.trials.trial import Trials
from subgraph.verdict import Status, Verdict

log = logging.getLogger("subcut")

DRAWS = 3  # inputs beside the samples
TIMED = 7  # runs of which the median counts
WARM = 2  # before these
LEAST = 1e-6  # seconds: less is not measured


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

    @property
    def whole(self) -> Region:
        return self.trials.whole()

    def of_candidate(self, candidate: Candidate, name: str) -> tuple[Verdict, float | None]:
        """The verdict on another candidate, and its time over that of the candidate; None where it is wrong.

        Raises:
            SubcutError: it cannot be used.
        """
        self.runs += 1
        with ExitStack() as stack:
            other = stack.enter_context(_sharing(self.trials, candidate, name))
            verdict = other.verdict(self.whole)
            right = verdict.status is Status.AGREE
            return verdict, self._slowdown(other, self.trials.graph.path) if right else None

    def of_model(self, path: Path) -> tuple[Verdict, float | None]:
        """The same for another model on the candidate: its outputs beside the reference's of the model as it is.

        Raises:
            SubcutError: it cannot be run.
        """
        self.runs += 1
        graph = load(path)
        with open_trials(graph, self.setup, self.trials.reference, self.trials.workers) as other:
            verdict = self.trials.verdict_of(self.whole, other.run(other.whole()))
            right = verdict.status is Status.AGREE
            return verdict, self._slowdown(self.trials, path) if right else None

    def cure(self, kind: str, what: str, how: str, verdict: Verdict, slowdown: float | None) -> Cure:
        """A cure, by the verdict on the whole model with it."""
        right = verdict.status is Status.AGREE
        why = verdict.why if not right else "" if self.draws else "no further inputs were tried"
        return Cure(kind, what, how, right and self.draws > 0, "whole" if right else "region", slowdown, why)

    def _slowdown(self, other: Trials, path: Path) -> float | None:
        """Median times of the cure and the original, run in turn on the first sample."""
        sample = self.trials.values.records[0]
        feeds = [sample[name] for name in self.trials.graph.inputs]
        times: tuple[list[float], list[float]] = ([], [])
        pairs = (self.trials, self.trials.graph.path, "original"), (other, path, "cure")
        try:
            with (
                self.trials.temporary_folder() as folder,
                self.trials.workers.borrow(loads=1) as ours,
                other.workers.borrow(loads=1) as theirs,
            ):
                for (trials, file, key), worker in zip(pairs, (ours, theirs), strict=True):
                    worker.load(key, file, trials.candidate.options)
                for _ in range(WARM + TIMED):
                    for (_, _, key), worker, spent in zip(pairs, (ours, theirs), times, strict=True):
                        spent.append(worker.run(key, folder, {}, feeds).seconds)
        except SubcutError as e:
            log.debug("no time: %s", e.what)
            return None
        original, cure = (statistics.median(spent[WARM:]) for spent in times)
        return round(cure / original, 3) if original > LEAST else None


@contextmanager
def open_prover(trials: Trials, setup: Setup, notes: list[str]) -> Iterator[Prover]:
    """A prover until the block ends; `notes` gets what keeps it from drawing inputs.

    Raises:
        SubcutError: the reference cannot run the model.
    """
    names = list(trials.graph.inputs)
    trials.capture(trials.whole())
    trials.values.need(names)
    samples = [{name: record[name] for name in names} for record in trials.values.records]
    draws = list(drawn(samples, DRAWS, trials.new_folder(), parameters(trials.graph)))
    fed = replace(setup, feeding=extended(setup.feeding, samples, draws))
    with ExitStack() as stack:
        try:
            more = stack.enter_context(open_trials(trials.graph, fed, trials.reference, trials.workers))
            more.capture(more.whole())
            prover = Prover(more, fed, len(draws))
        except SubcutError as e:
            notes.append(f"cures are not proven: no inputs could be drawn like the samples: {e.what}")
            prover = Prover(trials, setup, 0)
        yield prover


@contextmanager
def _sharing(trials: Trials, candidate: Candidate, name: str) -> Iterator[Trials]:
    """Trials of another candidate: of the same release in the same processes, else in processes of its own."""
    if candidate.release == trials.candidate.release:
        yield replace(trials, candidate=candidate)
        return
    with with_candidate(trials, candidate, name) as other:
        yield other
