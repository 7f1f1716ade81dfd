"""Possible cures of a fault, and the proof of those that work: the full model agrees on all samples
and on inputs drawn like them.

A cure is another candidate (a pass off, another option, another release) or another model
(`rewrites`). It is proven on the candidate, against the reference's values of the model as it is,
and its time is measured next to that of the original. A cure that is right on the samples alone may
be luck, so inputs are drawn like them.

Inputs that only set how operators work (a shape, axes, scales) keep their values: another value of
one is another model, not another sample. Exporters make them initializers; onnx's operator tests
and some models take them as inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import SubcutError
from subgraph.graph.graph import Graph, load
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import SETTINGS
from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.reports import format_list
from subgraph.results.bisect import Healing
from subgraph.results.blame import Cure
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.storage.tensors import Records, Value, save
from subgraph.text import clean
from subgraph.trials.open_trials import Setup, open_trials, with_candidate
from subgraph.trials.trial import Trials
from subgraph.types import Strings
from subgraph.verdict import Verdict

EXTRA_INPUTS = 3  # inputs in addition to the samples
TIMED_RUNS = 7  # runs of which the median counts
WARM_RUNS = 2  # before these
MIN_SECONDS = 1e-6  # seconds: less is not measured
NOISE_SHARE = 0.1  # of the standard deviation of a tensor


@dataclass
class Prover:
    """The full model on the candidate, fed with the samples and with draws.

    Attributes:
        trials: The trials.
        setup: Their setup.
        draws: Number of drawn inputs.
        runs: Number of models that were run.
    """

    trials: Trials
    setup: Setup
    draws: int
    runs: int = 0

    def try_candidate(self, kind: str, what: str, how: str, candidate: Candidate) -> Cure:
        """Return the result of another candidate on the full model."""
        log.info("cure? %s, on the full model", clean(what))
        self.runs += 1
        opened: AbstractContextManager[Trials]
        try:
            opened = with_candidate(self.trials, candidate, f"cure-{self.runs}")
            if candidate.build() == self.trials.runtime.candidate.build():  # in the same processes
                opened = nullcontext(self.trials.with_candidate(candidate))
            with opened as other:
                verdict = other.verdict(self.trials.model.whole())
                return self._make_cure(kind, what, how, verdict, other, self.trials.graph.path)
        except SubcutError as e:
            return Cure(kind, what, how, False, "region", None, e.what)

    def try_healing(self, healing: Healing) -> Cure:
        """Return the result of the cure of a search by rewriting, which heals the samples.

        Raises:
            SubcutError: it cannot be run.
        """
        cure = self.try_model(format_list(healing.changes), Path(healing.model))
        return replace(cure, how=healing.model, heals="whole", model=healing.model)

    def try_model(self, what: str, path: Path, kind: str = "rewrite") -> Cure:
        """Return the candidate's result on another model: its outputs against the reference's of
        the model as it is.

        Raises:
            SubcutError: it cannot be run.
        """
        self.runs += 1
        return self._make_cure(kind, what, path.name, self.verdict(path), self.trials, path)

    def verdict(self, path: Path) -> Verdict:
        """Return the verdict on the outputs of another model, as `try_model` judges them.

        Raises:
            SubcutError: it cannot be run.
        """
        with self.open_model(path, self.setup.feeding) as other:
            result = other.run(other.model.whole())
            return self.trials.judge.verdict(self.trials.model.whole(), result)

    def open_model(self, path: Path, feeding: Feeding) -> AbstractContextManager[Trials]:
        """Open trials on another model, a region or a full model, in the same processes."""
        setup = replace(self.setup, feeding=feeding, candidate_model=None)
        return open_trials(
            load(path), setup, self.trials.model.reference, self.trials.runtime.workers
        )

    def _make_cure(
        self, kind: str, what: str, how: str, verdict: Verdict, cured: Trials, path: Path
    ) -> Cure:
        """Return a cure, by the verdict on the full model. If that agrees, the model at `path` is
        timed in the trials `cured`."""
        if not verdict.agrees:
            return Cure(kind, what, how, False, "region", None, verdict.why)
        return Cure(
            kind,
            what,
            how,
            self.draws > 0,
            "whole",
            self._measure_slowdown(cured, path),
            "" if self.draws else "no further inputs were tried",
        )

    def _measure_slowdown(self, cured: Trials, path: Path) -> float | None:
        """Measure median times of the cure and the original, run in turn on the first sample."""
        trials = self.trials
        sample = trials.model.values.records[0]
        feeds = [sample[name] for name in trials.graph.inputs]
        original_times = []
        cure_times = []
        try:
            with (
                trials.model.make_temporary_folder() as folder,
                trials.runtime.workers.borrow(loads=1) as ours,
                cured.runtime.workers.borrow(loads=1) as theirs,
            ):
                ours.load("original", trials.graph.path, trials.runtime.candidate.options)
                theirs.load("cure", path, cured.runtime.candidate.options)
                for _ in range(WARM_RUNS + TIMED_RUNS):
                    original_times.append(ours.run("original", folder, {}, feeds).seconds)
                    cure_times.append(theirs.run("cure", folder, {}, feeds).seconds)
        except SubcutError as e:
            log.debug("no time: %s", e.what)
            return None
        original = statistics.median(original_times[WARM_RUNS:])
        cure = statistics.median(cure_times[WARM_RUNS:])
        if original > MIN_SECONDS:
            return round(cure / original, 3)
        return None


@contextmanager
def open_prover(trials: Trials, setup: Setup, notes: list[str]) -> Iterator[Prover]:
    """Provide a prover until the block ends; `notes` gets what keeps it from drawing inputs.

    Raises:
        SubcutError: the reference cannot run the model.
    """
    names = list(trials.graph.inputs)
    model = trials.model
    model.capture(model.whole())
    model.values.need(names)
    samples = [{name: record[name] for name in names} for record in model.values.records]
    draws = list(
        draw_samples(samples, EXTRA_INPUTS, model.new_folder(), list_parameters(trials.graph))
    )
    origins = [*[""] * len(samples), *(f"drawn like the samples, {k}" for k in range(len(draws)))]
    feeding = replace(
        setup.feeding,
        records=(*samples, *draws),
        origins=tuple(origins),
        labels=(),
        setting="",
    )
    fed = replace(setup, feeding=feeding, candidate_model=trials.runtime.own_model)
    with ExitStack() as stack:
        try:
            more = stack.enter_context(
                open_trials(trials.graph, fed, model.reference, trials.runtime.workers)
            )
            more.model.capture(more.model.whole())
            prover = Prover(more, fed, len(draws))
        except SubcutError as e:
            notes.append(
                f"cures are not proven: no inputs could be drawn like the samples: {e.what}"
            )
            prover = Prover(trials, setup, 0)
        yield prover


def draw_samples(
    samples: Sequence[Records], count: int, folder: Path, fixed: Collection[str] = ()
) -> Iterator[Records]:
    """Yield `count` more samples: the elements in another order, backwards and with noise, in turn.

    Whole numbers keep their values and so their meaning (indices, tokens); sequences, texts and
    the inputs `fixed` keep theirs.
    """
    rng = np.random.default_rng(0)
    for k in range(count):
        sample = samples[k % len(samples)]
        changed = {}
        for i, (name, record) in enumerate(sample.items()):
            changed[name] = record
            is_drawn = record.form == "tensor" and name not in fixed
            value = _draw(record.value(), k, rng) if is_drawn else None
            if value is not None:
                saved = save(name, value, record.type_text, folder, f"draw{k}-{i}")
                changed[name] = saved.rebase(str(folder.resolve()))
        yield changed


def _draw(value: Value, number: int, rng: np.random.Generator) -> Any:
    """Return the elements in another order, backwards or with noise; None without such a draw."""
    array: Any = np.asarray(value)
    if array.dtype.kind in "OUS" or not array.size:
        return None
    if number % 3 == 1:
        return np.ascontiguousarray(np.flip(array))
    if number % 3 == 2 and array.dtype.kind == "f":
        wide = array.astype(np.float64)
        noise = NOISE_SHARE * float(np.nan_to_num(wide).std()) * rng.standard_normal(array.shape)
        return (wide + noise).astype(array.dtype)
    return rng.permutation(array.reshape(-1)).reshape(array.shape)


def list_parameters(graph: Graph) -> Strings:
    """Return the model's inputs that only set how operators work."""
    return tuple(
        name for name in graph.inputs if name not in graph.outputs and _is_setting(graph, name)
    )


def _is_setting(graph: Graph, name: str) -> bool:
    for i in (readers := graph.readers.get(name, ())):
        node = graph.nodes[i]
        settings = SETTINGS.get(node.op_type, ()) if node.domain in STANDARD else ()
        places = {k for k, read in enumerate(node.input) if read == name}
        if not places or not places.issubset(settings):
            return False
    return bool(readers)


def fix_parameters(graph: Graph, region: Region) -> Region:
    """Return the region with the inputs of `list_parameters` as constants of its cut, as if they
    depended on shapes only."""
    constant = list_parameters(graph)
    inputs = tuple(name for name in region.inputs if name not in constant)
    fixed = tuple(name for name in region.inputs if name in constant)
    return replace(region, inputs=inputs, shapes=region.shapes + fixed)
