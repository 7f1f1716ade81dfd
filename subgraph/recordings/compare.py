"""Runs recorded on a device, tensor by tensor beside the reference -> rows; nothing is run but the reference.

*In place*: the recorded tensor beside the reference's. *Alone*: where that is wrong, what the reference makes of the
tensors that the device recorded before it, beside what the device recorded then. Where the two agree, the error came in
from above; where they do not, what lies between is to blame, though all before it is wrong already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.comparison.criteria import Noise
from subgraph.comparison.judge import judge
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.errors import InputError, ModelError, NoRegion, WorkerDied
from subgraph.graph import region as regions
from subgraph.graph.graph import VALUE
from subgraph.graph.region import Region
from subgraph.recordings import match, msaccucmp
from subgraph.recordings.align import cast, fitted, misfit, printed
from subgraph.recordings.match import MatchedRun, TensorMatch, reference_of
from subgraph.recordings.runs import RecordedRun
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import PROTO_NAMES, Record, load, save
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement, Status, gravity

if TYPE_CHECKING:
    from subgraph.types import Array

log = logging.getLogger("subcut")

DRAWN = 1 << 30  # bytes of tensors up to which rounding noise is drawn: a draw holds all of them at once
STRANGE = 0.5  # share of a recording's entries that must be tensors of the model
METRICS = ("max_abs", "max_rel", "cosine", "mismatch")


@dataclass(frozen=True)
class TensorRow:
    """One tensor of one run: over all samples the worst.

    Attributes:
        held: which entry. in_place: None where it cannot be read or compared; `why` says so.
        alone: None where it was not asked, or cannot be told.
        columns: msaccucmp's, where its criterion is asked for; of the first sample.
    """

    held: TensorMatch
    in_place: Judgement | None = None
    alone: Judgement | None = None
    why: str = ""
    columns: Mapping[str, float | str] = field(default_factory=dict)
    overflow: bool | None = None

    @property
    def failing(self) -> bool:
        """Is it wrong in place?"""
        return self.in_place is not None and self.in_place.status is Status.FAIL

    @property
    def good(self) -> bool:
        """Is it right in place?"""
        return self.in_place is not None and self.in_place.status is Status.AGREE


@dataclass(frozen=True)
class RunComparison:
    """One run beside the reference.

    Attributes:
        matched: per sample. cells: by tensor, in the order of the model; what is not there was not seen.
        inputs: what the device was fed, beside what the reference was. unseen: outputs of the model not recorded.
    """

    run: RecordedRun
    matched: tuple[MatchedRun, ...]
    cells: Mapping[str, TensorRow]
    inputs: Mapping[str, TensorRow] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What makes the recording doubtful as a whole."""
        notes = []
        other = [n for n, c in self.inputs.items() if c.failing]
        if other:
            notes.append(f"the recording was made with another input: {', '.join(other)} differs")
        read = sum(len(m.held) + len(m.lost) for m in self.matched)
        if read and sum(len(m.held) for m in self.matched) < STRANGE * read:
            held = sum(len(m.held) for m in self.matched)
            notes.append(f"only {held} of {read} recorded tensors are of this model: is it a dump of another one?")
        unlike = sum(why == match.UNLIKE for m in self.matched for _, why in m.lost)
        if unlike:
            notes.append(
                f"{unlike} recorded under names that the model has not, with values that it has not: wrong ones?"
            )
        if self.unseen and any(h.how == "value" for m in self.matched for h in m.held.values()):
            notes.append(f"not found by value, so not compared: the model's output {', '.join(self.unseen)}")
        compared = [c for c in self.cells.values() if c.in_place and c.in_place.status is not Status.UNRESOLVED]
        if len(compared) > 1 and not other and all(c.failing for c in compared):
            last = ", channels last in files without a header (--dump-layout NHWC)" if self.run.shapeless else ""
            notes.append(
                f"even the first recorded tensor is wrong: other weights, another input or preprocessing{last}, or a "
                "lower precision (--precision fp16, bf16 or int8)?"
            )
        return notes


def observe(
    trials: Trials,
    run: RecordedRun,
    *,
    only: Iterable[str] | None = None,
    fail_fast: bool = False,
    columns: bool = False,
) -> RunComparison:
    """Judge what one run recorded. `only`: these tensors; `fail_fast`: up to the first that is wrong; `columns`: with
    msaccucmp's.

    Memory: a few tensors at a time, whatever the recording's size; the reference's values lie on disk.

    Raises:
        InputError: nothing in it is of this model. ModelError: the reference cannot give the values.
    """
    graph, found = trials.graph, matched(trials, run)
    held = [n for n in trials.tensors() if any(n in m.held for m in found)]
    log.info("%s: %s", run.name, found[0].summary() if found else run.missing)
    wanted = set(held if only is None else only)
    judging = _Judging(trials, found, columns)
    cells: dict[str, TensorRow] = {}
    for name in held:
        if name in wanted:
            cells[name] = judging.cell(name)
            if fail_fast and cells[name].failing:
                break
    for name, cell in cells.items():
        if cell.failing:
            cells[name] = replace(cell, alone=judging.alone(name))
    inputs = {n: judging.cell(n) for n in graph.inputs if any(n in m.held for m in found)}
    unseen = tuple(n for n in trials.tensors() if n in graph.outputs and not any(n in m.held for m in found))
    return RunComparison(run, found, cells, {n: c for n, c in inputs.items() if c.in_place}, unseen)


def matched(trials: Trials, run: RecordedRun) -> tuple[MatchedRun, ...]:
    """Per sample, which tensors of the model a run holds; nothing of one that is missing.

    Raises:
        InputError: nothing in it is of this model. ModelError: the reference cannot give the values.
    """
    if run.recording is None:
        return ()
    match.need(trials, trials.graph.inputs)
    samples = enumerate(run.samples)
    found = tuple(match.match(trials, run.recording, entries, run.shapeless, k) for k, entries in samples)
    if not any(m.held for m in found):
        raise InputError(*_strange(run, trials))
    return found


def _strange(run: RecordedRun, trials: Trials) -> tuple[str, str]:
    own = [e.name for sample in run.samples for e in sample][:3]
    theirs = trials.tensors()[:3]
    what = f"nothing in {run.name} is of this model: it holds {', '.join(own)} …; the model {', '.join(theirs)} …"
    return what, "is it a dump of another model?"


@dataclass
class _Judging:
    """What judging the tensors of one run shares."""

    trials: Trials
    matched: Sequence[MatchedRun]
    columns: bool = False
    _records: dict[tuple[str, int], Record] = field(default_factory=dict)
    _region: Region | None = None
    _drawn: bool = False

    def cell(self, name: str) -> TensorRow:
        """One tensor in place."""
        found = []
        for k, m in enumerate(self.matched):
            if name not in m.held:
                continue
            try:
                found.append(self._judged(m.held[name], name, k))
            except InputError as e:
                found.append(TensorRow(m.held[name], why=e.what))
        return max(found, key=lambda c: gravity(c.in_place) if c.in_place else (-1, False, 0.0))

    def _judged(self, held: TensorMatch, name: str, k: int) -> TensorRow:
        right = reference_of(self.trials, name, k)
        if right is None:
            return TensorRow(held, why="it is no tensor")
        array = held.entry.read()
        if why := misfit(array, right, held.fit):
            return TensorRow(held, why=why)
        given = printed(right, cast(fitted(array, right, held.fit), right), held.entry.step)
        judged = self._asked(name, right, given, k, self._noise(name, k))
        if judged.status is Status.FAIL and name in self._random:
            return TensorRow(held, why="random numbers enter it, and the device drew its own")
        if not self.columns:
            return TensorRow(held, judged)
        overflow = msaccucmp.overflows(array, held.entry.dtype)
        return TensorRow(held, judged, columns=msaccucmp.measure(given, right), overflow=overflow)

    @cached_property
    def _random(self) -> set[str]:
        """Tensors that random numbers reach."""
        graph = self.trials.graph
        return {n for i in graph.descendants(graph.random_nodes) for n in graph.makes[i]}

    def _asked(self, name: str, right: Array, given: Array, k: int, noise: Noise | None) -> Judgement:
        label = self.trials.values.labels[k]
        return judge(name, right, given, self.trials.rule, self.trials.precision, noise, METRICS, label)

    def _noise(self, name: str, k: int) -> Noise | None:
        """In the flow of the whole model; None where that would take too much memory, or for the model's inputs."""
        if name not in self.trials.graph.maker:
            return None
        if self._region is None:
            held = [n for n in self.trials.tensors() if any(n in m.held for m in self.matched)]
            self._region = self.trials.whole(held)
            self._drawn = sum(size for _, size in match.sizes(self.trials, self.trials.tensors())) <= DRAWN
            match.need(self.trials, self._region.outputs)
        if not self._drawn:
            return None
        with self.trials.noise(self._region, k) as noise:
            return noise.of(name)

    def alone(self, name: str) -> Judgement | None:
        """A tensor that is wrong in place, beside what the reference makes of what was recorded before it: over all
        samples the worst; None where it cannot be told."""
        trials, there = self.trials, [k for k, m in enumerate(self.matched) if name in m.held]
        region = piece(trials, [name], lambda n: all(self._usable(n, k) for k in there))
        if region is None:
            return None
        feeds: list[dict[str, Record]] = [{} for _ in trials.values.records]
        try:
            match.need(trials, region.inputs)
            for k in there:
                feeds[k] = {n: self._saved(n, k) for n in region.inputs if n in self.matched[k].held}
            given = trials.run_on_reference(region, feeds)
        except (InputError, ModelError, WorkerDied) as e:
            log.debug("%s alone: %s", name, e.what)
            return None
        found = [self._beside(name, k, region, feeds[k], given[k]) for k in there if name in given[k]]
        return max(found, key=gravity, default=None)

    def _beside(
        self, name: str, k: int, region: Region, feeds: Mapping[str, Record], given: Mapping[str, Record]
    ) -> Judgement:
        trials, held = self.trials, self.matched[k].held[name]
        right: Any = load(given[name], Path("/"))
        own = printed(right, cast(fitted(held.entry.read(), right, held.fit), right), held.entry.step)
        known = {**trials.values.records[k], **feeds, **given}  # what rounding does to what the device had
        noise = RegionNoise(trials.graph, region, trials.reference, known, Path("/"), trials.scratch)
        return self._asked(name, right, own, k, noise.of(name))

    def _usable(self, name: str, k: int) -> bool:
        """Is it known what the device had there?"""
        held = self.matched[k].held.get(name)
        return held is not None and not held.may and held.entry.dtype not in ("string", "")

    def _saved(self, name: str, k: int) -> Record:
        if (name, k) not in self._records:
            own, right = self.matched[k].held[name], reference_of(self.trials, name, k)
            if right is None:
                raise InputError(f"{name} is no tensor")
            text = f"tensor({PROTO_NAMES.get(right.dtype.name, right.dtype.name)})"
            value, stem = cast(fitted(own.entry.read(), right, own.fit), right), f"x{len(self._records)}"
            self._records[name, k] = save(name, value, text, self._folder, stem).within(str(self._folder))
        return self._records[name, k]

    @cached_property
    def _folder(self) -> Path:
        return numbered_folder(self.trials.scratch, "recorded").resolve()


def piece(trials: Trials, names: Sequence[str], stops: Callable[[str], bool]) -> Region | None:
    """All that makes some tensors, up to those that `stops` names: none of the first, whatever it says of them."""
    graph = trials.graph
    nodes: set[int] = set()
    stack = [graph.maker[n] for n in names if n in graph.maker]
    while stack:
        i = stack.pop()
        if i in nodes:
            continue
        nodes.add(i)
        stack += [graph.maker[n] for n in graph.reads[i] if n in graph.maker and not stops(n)]
    kinds = graph.kinds([n for i in nodes for n in graph.makes[i]])
    kept = [i for i in nodes if any(kinds[n] == VALUE for n in graph.makes[i])]
    try:
        return regions.of_nodes(graph, kept, [(n,) for n in names]) if kept else None
    except NoRegion:
        return None
