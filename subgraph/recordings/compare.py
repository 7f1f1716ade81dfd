"""A recorded run, tensor by tensor against the reference -> rows. Nothing runs but the reference.

*In place*: the recorded tensor against the reference's. *Isolated*, for tensors that are wrong in place: the recorded
tensor against what the reference computes from the tensors that were recorded before it. If the isolated values agree,
the error was inherited; if not, the nodes between are wrong, even where everything before them is wrong already.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from subgraph.comparison.criteria import Noise, OutputContext
from subgraph.comparison.judge import judge
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph import region as regions
from subgraph.graph.region import Region
from subgraph.precision import Precision
from subgraph.recordings import msaccucmp
from subgraph.recordings.matching.align import NHWC, is_coarse, misfit
from subgraph.recordings.matching.match import confirmed_names, match_entries
from subgraph.recordings.matching.matched import MatchedRun, TensorMatch
from subgraph.recordings.reference_tensors import (
    capture_tensors,
    displaced,
    reference_value,
    remoteness,
    tensor_sizes,
)
from subgraph.recordings.run_comparison import RunComparison, TensorRow
from subgraph.recordings.runs import RecordedRun
from subgraph.recordings.wrong_input import find_misread_input, first_recorded
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record, load
from subgraph.trials.similar_outputs import fed_with
from subgraph.trials.trial import Trials
from subgraph.types import Array
from subgraph.verdict import Judgement, Status, gravity

log = logging.getLogger("subcut")

NOISE_BYTES = 1 << 30  # of tensors, up to which rounding noise is sampled: a sample holds all of them in memory
AS_WRONG = 0.5  # of how far a wrong recording is from the reference; what is nearer to it is wrong as it is
METRICS = ("max_abs", "max_rel", "cosine", "mismatch")


def compare_run(
    trials: Trials,
    run: RecordedRun,
    *,
    only: Collection[str] | None = None,
    fail_fast: bool = False,
    accuracy: bool = False,
    earlier: Sequence[RunComparison] = (),
) -> RunComparison:
    """Judge what one run recorded, at the precision that it claims.

    Args:
        only: these tensors instead of all.
        fail_fast: stop behind the first tensor that is wrong.
        accuracy: compute msaccucmp's numbers as well.
        earlier: runs of the same model, with the nearest of which each tensor is compared as well.

    Memory: a few tensors at a time, whatever the recording's size; the reference's values lie on disk.

    Raises:
        InputError: it holds no tensor of this model. ModelError: the reference cannot give the values.
    """
    choice = _Choice(trials.tensors() if only is None else only, fail_fast, accuracy, earlier)
    try:
        compared = _compared(trials, run, choice)
    except InputError:
        if fed := _fed_otherwise(trials, run, None, choice):
            return fed
        raise
    if not _wrong_first(compared):
        return compared
    if run.unlaid and not _wrong_first(as_found := _compared(trials, run.unlaid, choice)):
        return replace(as_found, wrong_layout=_own_layout(as_found))
    return _fed_otherwise(trials, run, compared, choice) or compared


@dataclass(frozen=True)
class _Choice:
    """As the arguments of `compare_run`."""

    only: Collection[str]
    fail_fast: bool
    accuracy: bool
    earlier: Sequence[RunComparison]


def _compared(trials: Trials, run: RecordedRun, choice: _Choice) -> RunComparison:
    graph, matched = trials.graph, match_run(trials, run)
    recorded = [n for n in trials.tensors() if any(n in m.matches for m in matched)]
    log.info("%s: %s", run.name, matched[0].summary() if matched else run.missing)
    judging = _Judging(trials, matched, recorded, Precision(run.precision or trials.precision), choice)
    rows: dict[str, TensorRow] = {}
    for name in recorded:
        if name in choice.only:
            rows[name] = judging.in_place(name)
            if choice.fail_fast and rows[name].failing:
                break
    rows = {n: replace(row, isolated=judging.isolated(n)) if row.failing else row for n, row in rows.items()}
    inputs = {n: judging.in_place(n) for n in graph.inputs if any(n in m.matches for m in matched)}
    whole = len(set(choice.only)) == len(trials.tensors()) and not choice.fail_fast
    unseen = tuple(n for n in trials.tensors() if n in graph.outputs and n not in recorded)
    inputs = {n: row for n, row in inputs.items() if row.in_place}
    return RunComparison(trials, run, matched, rows, inputs, unseen, len(trials.tensors()) if whole else 0)


def _wrong_first(compared: RunComparison) -> bool:
    """Is a tensor wrong though none of those recorded before it is?"""
    graph = compared.trials.graph
    first = {n for name in graph.inputs for n in first_recorded(graph, name, compared.rows)}
    return any(compared.rows[n].failing for n in first)


def _own_layout(compared: RunComparison) -> str:
    last = any(t.alignment == NHWC for m in compared.matched for t in m.matches.values())
    return f"the files are laid out {'NHWC' if last else 'as the model is'}, not as --dump-layout says: read so"


def _fed_otherwise(
    trials: Trials, run: RecordedRun, compared: RunComparison | None, choice: _Choice
) -> RunComparison | None:
    """The run compared with what the reference gives for a misread input, if the first tensors agree with that.

    `compared`: with the user's input; None where nothing of it is of the model.
    """
    if run.recording is None:
        return None
    held = compared.matched[0].matches if compared else {}
    rows = compared.rows if compared else {}
    matches = {n: match for n, match in held.items() if n in rows}
    failing = compared.failing if compared else ()
    misread = find_misread_input(trials, run.recording, run.samples[0], matches, failing)
    if misread is None:
        return None
    fed = _compared(fed_with(trials, misread), run, choice)
    return None if _wrong_first(fed) else replace(fed, wrong_input=misread.sentence(trials))


def match_run(trials: Trials, run: RecordedRun) -> tuple[MatchedRun, ...]:
    """Per sample, which tensors of the model a run holds; none for a run that is missing.

    Raises:
        InputError: it holds no tensor of this model. ModelError: the reference cannot give the values.
    """
    if run.recording is None:
        return ()
    capture_tensors(trials, trials.graph.inputs)
    samples = enumerate(run.samples)
    matched = tuple(match_entries(trials, run.recording, entries, k) for k, entries in samples)
    matched = tuple(_carried(trials, run, k, m) if m.unsure else m for k, m in enumerate(matched))
    if not any(m.matches for m in matched):
        if unread := [why for m in matched for _, why in m.unread]:
            raise InputError(f"none of {run.name} can be compared; {len(unread)} could not be read: {unread[0]}")
        recorded = ", ".join([e.name for sample in run.samples for e in sample][:3])
        tensors = ", ".join(trials.tensors()[:3])
        what = f"nothing in {run.name} is of this model: it holds {recorded} …; the model {tensors} …"
        raise InputError(what, "is it a dump of another model?")
    return matched


def _carried(trials: Trials, run: RecordedRun, k: int, matched: MatchedRun) -> MatchedRun:
    """One sample matched with what values confirm in other runs of the tool, whose entries have the same names.

    Where a name that both confirm means another tensor there (the board fuses more, say), nothing is carried over.
    """
    own = confirmed_names(matched, run.name)
    others: dict[str, TensorMatch] = {}
    for sibling in run.siblings:
        if sibling.recording and len(sibling.samples) > k:
            found = confirmed_names(match_entries(trials, sibling.recording, sibling.samples[k], k), sibling.name)
            if all(found[name].tensor == own[name].tensor for name in found.keys() & own.keys()):
                others = found | others
    open_names = {name: match for name, match in others.items() if name not in own}
    if not open_names or run.recording is None:
        return matched
    return match_entries(trials, run.recording, run.samples[k], k, open_names)


@dataclass
class _Judging:
    """State shared while the tensors of one run are judged. `recorded`: the tensors that any sample holds."""

    trials: Trials
    matched: Sequence[MatchedRun]
    recorded: Sequence[str]
    precision: Precision
    choice: _Choice
    _saved: dict[tuple[str, int], Record] = field(default_factory=dict)

    def in_place(self, name: str) -> TensorRow:
        """The row of a tensor of which only `in_place` was judged."""
        rows = []
        for k, m in enumerate(self.matched):
            if name not in m.matches:
                continue
            try:
                rows.append(self._judge_in_place(m.matches[name], k))
            except InputError as e:
                rows.append(TensorRow(m.matches[name], why=e.what))
        return max(rows, key=lambda row: (row.failing, not row.in_place, gravity(row.in_place) if row.in_place else ()))

    def _judge_in_place(self, match: TensorMatch, k: int) -> TensorRow:
        name, reference = match.tensor, reference_value(self.trials, match.tensor, k)
        if reference is None:
            return TensorRow(match, why="it is no tensor")
        array = match.entry.read()
        if why := misfit(array, reference, match.alignment, match.scale):
            return TensorRow(match, why=why)
        value, remark = match.compared(reference, array)
        match = replace(match, remark=remark)
        judgement = self._judge(name, reference, value, k, self._noise_in_place(name, k))
        if judgement.status is Status.FAIL and name in self._random:
            return TensorRow(match, why="random numbers enter it, and the device drew its own")
        if judgement.status is Status.AGREE and is_coarse(reference, match.entry.step):
            return TensorRow(
                match, why=f"printed in steps of {match.entry.step:g}: too few digits to say that it agrees"
            )
        before, beside = self._beside(name, reference, value, k)
        row = TensorRow(match, judgement, before=before, beside=beside)
        if not self.choice.accuracy:
            return row
        overflow = msaccucmp.overflows(array, match.entry.dtype)
        return replace(row, accuracy=msaccucmp.measure(value, reference), overflow=overflow)

    def _beside(self, name: str, reference: Array, value: Array, k: int) -> tuple[str, Judgement | None]:
        """The nearest earlier run, fed alike, that tells this tensor, and the judgement against what it recorded."""
        for run in reversed([c for c in self.choice.earlier if c.trials is self.trials and k < len(c.matched)]):
            row = run.rows.get(name)
            if row is None or not row.compared or name not in run.matched[k].matches:
                continue
            try:
                other, _ = run.matched[k].matches[name].compared(reference)
            except InputError:
                continue
            if value.dtype.kind != "f":
                return run.run.name, self._judge(name, other, value, k, None)
            moved = displaced(reference, other, value)
            judged = self._judge(name, reference, moved, k, self._noise_in_place(name, k))
            if row.failing and remoteness(reference, other, value) <= AS_WRONG:
                why = f"both are off alike: {judged.why}"
                judged = replace(judged, status=Status.AGREE, signature=None, label="agrees", why=why)
            return run.run.name, judged
        return "", None

    @cached_property
    def _random(self) -> set[str]:
        """Tensors that depend on random numbers."""
        graph = self.trials.graph
        return {n for i in graph.descendants(graph.random_nodes) for n in graph.makes[i]}

    def _judge(self, name: str, reference: Array, value: Array, k: int, noise: Noise | None) -> Judgement:
        label = self.trials.values.labels[k]
        is_output = name in self.trials.graph.outputs
        context = OutputContext(name, self.precision, noise, is_output)
        return judge(reference, value, self.trials.rule, context, label, METRICS)

    def _noise_in_place(self, name: str, k: int) -> Noise | None:
        """The noise of the whole model; None for inputs of the model, and where sampling takes too much memory."""
        if name not in self.trials.graph.maker or self._noise_region is None:
            return None
        return self.trials.noise(self._noise_region, k).of(name)

    @cached_property
    def _noise_region(self) -> Region | None:
        region = self.trials.whole(self.recorded)
        capture_tensors(self.trials, region.outputs)
        size = sum(size for _, size in tensor_sizes(self.trials, self.trials.tensors()))
        return region if size <= NOISE_BYTES else None

    def isolated(self, name: str) -> Judgement | None:
        """The worst judgement over all samples of a tensor, isolated; None where the reference cannot compute it.

        Where it is not certain which tensor was recorded, the best of those that it may be.
        """
        matches = [m.matches[name] for m in self.matched if name in m.matches]
        alike = dict.fromkeys((name, *(n for m in matches for n in m.alternatives)))
        judgements = [self._isolated_as(name, other) for other in alike]
        return min((j for j in judgements if j), key=gravity, default=None)

    def _isolated_as(self, name: str, meant: str) -> Judgement | None:
        """What was matched to one tensor, judged as another one."""
        trials, samples = self.trials, [k for k, m in enumerate(self.matched) if name in m.matches]
        region = regions.above_until(trials.graph, [meant], lambda n: all(self._is_certain(n, k) for k in samples))
        if region is None:
            return None
        feeds: list[dict[str, Record]] = [{} for _ in trials.values.records]
        try:
            capture_tensors(trials, region.inputs)
            for k in samples:
                feeds[k] = {n: self._save(n, k) for n in region.inputs if n in self.matched[k].matches}
            outputs = trials.run_on_reference(region, feeds)
        except (InputError, ModelError, WorkerDied) as e:
            log.debug("%s isolated: %s", meant, e.what)
            return None
        judgements = [
            self._judge_isolated(name, meant, k, region, feeds[k], outputs[k]) for k in samples if meant in outputs[k]
        ]
        return max(judgements, key=gravity, default=None)

    def _judge_isolated(
        self, name: str, meant: str, k: int, region: Region, feeds: Mapping[str, Record], outputs: Mapping[str, Record]
    ) -> Judgement:
        trials = self.trials
        reference = np.asarray(load(outputs[meant], Path("/")))
        value, _ = self.matched[k].matches[name].compared(reference)
        records = {**trials.values.records[k], **feeds, **outputs}  # noise around the device's own values
        noise = RegionNoise(trials.graph, region, trials.reference, records, trials.scratch)
        return self._judge(meant, reference, value, k, noise.of(meant))

    def _is_certain(self, name: str, k: int) -> bool:
        """Is it certain which value the device had there?"""
        match = self.matched[k].matches.get(name)
        return match is not None and not match.alternatives and match.entry.dtype not in ("string", "")

    def _save(self, name: str, k: int) -> Record:
        if (name, k) not in self._saved:
            reference = reference_value(self.trials, name, k)
            if reference is None:
                raise InputError(f"{name} is no tensor")
            match, stem = self.matched[k].matches[name], f"x{len(self._saved)}"
            self._saved[name, k] = match.save(reference, self._folder, stem)
        return self._saved[name, k]

    @cached_property
    def _folder(self) -> Path:
        return numbered_folder(self.trials.scratch, "recorded")
