"""A recorded run, tensor by tensor against the reference -> rows. Nothing runs but the reference.

*In place*: the recorded tensor against the reference's. *Isolated*, for tensors that are wrong in
place: the recorded tensor against what the reference computes from the tensors that were recorded
before it. If the isolated values agree, the error was inherited; if not, the nodes between are
wrong, even if everything before them is wrong already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, product

import numpy as np

from subgraph.comparison import CLIPPED
from subgraph.comparison.criteria import Noise, OutputContext
from subgraph.comparison.evidence import explain_mute
from subgraph.comparison.judge import judge as judge_values
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.comparison.noise.perturb import has_even_steps
from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.properties import REARRANGES, REQUANTIZES
from subgraph.graph.region import Region
from subgraph.graph.walks import find_ancestors, find_descendants, find_operator
from subgraph.iterables import flatten, restrict
from subgraph.log import log
from subgraph.precision import Precision
from subgraph.recordings import msaccucmp
from subgraph.recordings.device_runs import RecordedRun
from subgraph.recordings.matching.align import (
    capture_tensors,
    displace,
    is_coarse,
    iter_tensor_sizes,
    measure_remoteness,
    read_reference_value,
)
from subgraph.recordings.matching.match import collect_confirmed_names, match_sample
from subgraph.recordings.matching.matched import MatchedSample, Reason, TensorMatch, run_recorded
from subgraph.recordings.matching.unnamed import follow_unnamed
from subgraph.recordings.run_comparison import (
    RunComparison,
    TensorRow,
    find_first_recorded,
    find_misread_input,
)
from subgraph.storage.tensors import Records
from subgraph.text import clean
from subgraph.trials.judge import Judge
from subgraph.trials.similar_outputs import feed_misread
from subgraph.types import Array, frozen
from subgraph.verdict import Judgement, Status, compute_gravity

# Bytes of tensors up to which rounding noise is sampled: a sample holds all of them in memory.
NOISE_BYTES = 1 << 30
# Share of the distance of a wrong recording from the reference: a recording that is nearer to
# the wrong one deviates like it.
MAX_DISTANCE_RATIO = 0.5
INT8_STEPS = 127.0  # of int8, between zero and the largest value
HIDDEN = 4 / INT8_STEPS  # of the largest value; earlier noise hid a larger error in place
MAX_CLIPPED = 0.25  # of the elements, that int8 may clip downstream of a wrong tensor
MAX_FORMS = 16  # combinations of recorded forms of a node's tensors, that are tried


@frozen
class Choice:
    """The options of a comparison of runs.

    Attributes:
        only: these tensors instead of all.
        fail_fast: stop after the first tensor that is wrong.
        accuracy: compute msaccucmp's numbers as well.
        earlier: runs of the same model, with the nearest of which each tensor is compared as well.
    """

    only: Collection[str] | None = None
    fail_fast: bool = False
    accuracy: bool = False
    earlier: Sequence[RunComparison] = ()


ALL = Choice()


def compare_run(judge: Judge, run: RecordedRun, choice: Choice = ALL) -> RunComparison:
    """Judge what one run recorded, at the precision that it claims.

    Memory: a few tensors at a time, whatever the recording's size; the reference's values lie on
    disk.

    Raises:
        InputError: it holds no tensor of this model. ModelError: the reference cannot give the
            values.
    """
    try:
        compared = _judge_matches(judge, run, choice)
    except InputError:
        if fed := _compare_misread_input(judge, run, None, choice):
            return fed
        raise
    if not _is_wrong_first(compared):
        return compared
    return _compare_misread_input(judge, run, compared, choice) or compared


def _judge_matches(judge: Judge, run: RecordedRun, choice: Choice) -> RunComparison:
    """Match the run, log that, and judge its tensors."""
    matched = match_run(judge, run)
    log.info("%s: %s", run.name, matched[0].summary() if matched else run.missing)
    graph = judge.model.graph
    judging = _Judging(judge, run, matched, choice)
    recorded = judging.recorded
    tensors = judge.model.tensors()
    only = choice.only or tensors
    above = find_ancestors(graph, graph.producers(only))
    every = {}
    for name in (n for n in recorded if graph.maker[n] in above):
        every[name] = judging.judge_row(name)
        if choice.fail_fast and name in only and every[name].is_error:
            break
    rows = restrict(every, only)
    unexplained = tuple(n for n, row in every.items() if row.is_error)
    fed = {n: judging.judge_fed(n) for n in graph.inputs if any(n in m.matches for m in matched)}
    inputs = {n: row for n, row in fed.items() if row.in_place}
    is_part = len(set(only)) < len(tensors)
    unseen = (n for n in tensors if n in graph.outputs and not _is_seen(judge, n, recorded))
    count = 0 if choice.fail_fast or is_part else len(tensors)
    return RunComparison(judge, run, matched, rows, inputs, tuple(unseen), count, unexplained)


def _is_seen(judge: Judge, name: str, recorded: Collection[str]) -> bool:
    """Return whether an output was recorded, or a tensor that it repeats in another shape.

    Runtimes leave out an Identity or a Reshape at the end of a model.
    """
    graph = judge.model.graph
    origin = name
    while origin not in recorded:
        if find_operator(graph, origin) not in REARRANGES:
            return False
        origin = graph.reads[graph.maker[origin]][0]
    capture_tensors(judge.model, (name, origin))
    output, held = (read_reference_value(judge.model, n, 0) for n in (name, origin))
    if output is None or held is None:
        return name == origin
    return np.array_equal(output.reshape(-1), held.reshape(-1), equal_nan=output.dtype.kind == "f")


def _is_wrong_first(compared: RunComparison) -> bool:
    """Return whether a tensor is wrong although no tensor recorded before it is wrong."""
    graph = compared.judge.model.graph
    first = (find_first_recorded(graph, name, compared.rows) for name in graph.inputs)
    return any(compared.rows[n].failing for n in flatten(first))


def _compare_misread_input(
    judge: Judge, run: RecordedRun, compared: RunComparison | None, choice: Choice
) -> RunComparison | None:
    """Compare the run with a misread input, if the first tensors agree with that.

    `compared`: with the user's input; None if nothing of it is of the model.
    """
    misread = find_misread_input(judge, run, compared) if run.recording else None
    if not misread:
        return None
    fed = _judge_matches(feed_misread(judge, misread), run, choice)
    if _is_wrong_first(fed):
        return None
    return replace(fed, wrong_input=misread.sentence(judge.model))


def match_run(judge: Judge, run: RecordedRun) -> tuple[MatchedSample, ...]:
    """Return per sample which tensors of the model a run holds; none for a run that is missing.

    Raises:
        InputError: it holds no tensor of this model. ModelError: the reference cannot give the
            values.
    """
    if run.recording is None:
        return ()
    capture_tensors(judge.model, judge.model.graph.inputs)
    matched = []
    for k in range(len(run.samples)):
        sample = match_sample(judge, run, k)
        own = collect_confirmed_names(sample, run.name)
        # Doubtful names match as values confirm them in other runs of the tool. Nothing is carried
        # over from a run in which a name that both confirm means another tensor, for example
        # because the board fuses more.
        others: dict[str, TensorMatch] = {}
        for sibling in run.siblings if sample.unsure else ():
            if len(sibling.samples) > k:
                found = collect_confirmed_names(match_sample(judge, sibling, k), sibling.name)
                if all(found[n].tensor == own[n].tensor for n in found.keys() & own.keys()):
                    others = found | others
        confirmed = {name: match for name, match in others.items() if name not in own}
        matched.append(match_sample(judge, run, k, confirmed) if confirmed else sample)
    if not any(m.matches for m in matched):
        unread = [*flatten(m.list_left_out(Reason.UNREADABLE) for m in matched)]
        if unread:
            why = f"{len(unread)} could not be read: {unread[0].why}"
            what = f"none of {run.name} can be compared; {why}"
            raise InputError(what, code="recording.unreadable")
        recorded = ", ".join([e.name for e in flatten(run.samples)][:3])
        held = f"it holds {recorded} …; the model {', '.join(judge.model.tensors()[:3])} …"
        what = f"nothing in {run.name} is of this model: {held}"
        raise InputError(what, "check that it is a dump of this model", code="recording.no-match")
    return tuple(map(follow_unnamed, matched))


@dataclass
class _Judging:
    """State shared while the tensors of one run are judged.

    Attributes:
        wrong: Tensors that are wrong in place; downstream of them int8 clips values beyond its
            scales.
        doubtful: Tensors whose value on the device is not certain.
    """

    judge: Judge
    run: RecordedRun
    matched: Sequence[MatchedSample]
    choice: Choice
    wrong: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)

    @cached_property
    def recorded(self) -> dict[str, None]:
        """The tensors that any sample holds, in the order of the model."""
        found = set(flatten(sample.matches for sample in self.matched))
        return dict.fromkeys(filter(found.__contains__, self.judge.model.tensors()))

    @property
    def precision(self) -> Precision:
        """The precision that the run claims."""
        return Precision(self.run.precision or self.judge.precision)

    def judge_fed(self, name: str) -> TensorRow:
        """Return the row of a tensor of which only `in_place` was judged; of several samples the
        worst."""
        rows = []
        for sample in self.matched:
            if match := sample.matches.get(name):
                try:
                    rows.append(self._judge_in_place(match, sample))
                except InputError as e:
                    rows.append(TensorRow(match, why=e.what))
        return max(
            rows,
            key=lambda r: (r.failing, not r.in_place, r.in_place and compute_gravity(r.in_place)),
        )

    def _judge_in_place(self, match: TensorMatch, sample: MatchedSample) -> TensorRow:
        name = match.tensor
        k = sample.k
        reference = sample.reference(match.tensor)
        if reference is None:
            return TensorRow(match, why="it is not a tensor")
        value, remark = match.to_reference_form(reference)
        cast = next((cast for cast, seen in self.judge.model.unrounded.items() if seen == name), "")
        if cast and not remark:
            fact = f"the model casts it to a narrower type ({clean(cast)})"
            remark = f"{fact}, the recording does not"
        match = replace(match, remark=remark)
        judgement = self._judge(name, reference, value, k, self._measure_noise_in_place(name, k))
        if judgement.fails and name in self._random:
            return TensorRow(match, why="random numbers enter it, and the device drew its own")
        if judgement.agrees and is_coarse(reference, match.entry.step):
            steps = f"printed in steps of {match.entry.step:g}"
            return TensorRow(match, why=f"{steps}: too few digits to show that it agrees")
        before, beside = self._judge_against_earlier(name, reference, value, k)
        may_be_mute = judgement.agrees and name not in self.judge.model.choice.may_be_empty
        mute = explain_mute(reference, value) if may_be_mute else ""
        row = TensorRow(match, judgement, before=before, beside=beside, mute=mute)
        if not self.choice.accuracy:
            return row
        overflow = msaccucmp.has_overflow(value, match.entry.dtype)
        return replace(row, accuracy=msaccucmp.measure(value, reference), overflow=overflow)

    def _judge_against_earlier(
        self, name: str, reference: Array, value: Array, k: int
    ) -> tuple[str, Judgement | None]:
        """Return the nearest earlier run that has this tensor, and the judgement against it."""
        earlier = [c for c in self.choice.earlier if c.judge is self.judge and k < len(c.matched)]
        for run in reversed(earlier):
            row = run.rows.get(name)
            if row is None or not row.compared or name not in run.matched[k].matches:
                continue
            try:
                other, _ = run.matched[k].matches[name].to_reference_form(reference)
            except InputError:
                continue
            if value.dtype.kind != "f":
                return run.run.name, self._judge(name, other, value, k, None)
            moved = displace(reference, other, value)
            judged = self._judge(name, reference, moved, k, self._measure_noise_in_place(name, k))
            if row.failing and measure_remoteness(reference, other, value) <= MAX_DISTANCE_RATIO:
                judged = _excuse(judged, "agrees", f"both deviate alike: {judged.why}")
            return run.run.name, judged
        return "", None

    @cached_property
    def _random(self) -> set[str]:
        """Tensors that depend on random numbers."""
        graph = self.judge.model.graph
        return set(graph.iter_outputs(find_descendants(graph, graph.random_nodes)))

    def _judge(
        self, name: str, reference: Array, value: Array, k: int, noise: Noise | None
    ) -> Judgement:
        label = self.judge.model.values.labels[k]
        is_output = name in self.judge.model.graph.outputs
        context = OutputContext(name, self.precision, noise, is_output, has_fixed_point=True)
        return judge_values(reference, value, self.judge.rule, context, label)

    def _measure_noise_in_place(self, name: str, k: int) -> Noise | None:
        """Return the noise of the full model; None for its inputs, and if it takes too much
        memory."""
        if name not in self.judge.model.graph.maker or self._noise_region is None:
            return None
        return self.judge.model.noise(self._noise_region, k).get_output(name)

    @cached_property
    def _noise_region(self) -> Region | None:
        model = self.judge.model
        region = model.whole(self.recorded)
        capture_tensors(model, region.outputs)
        sizes = iter_tensor_sizes(model, model.tensors())
        if sum(size for _, size in sizes) <= NOISE_BYTES:
            return region
        return None

    def judge_row(self, name: str) -> TensorRow:
        """Return the row of a tensor; if it is wrong, with the isolated judgement.

        The tensors that are upstream are judged before.
        """
        row = self.judge_fed(name)
        may_be_wrong = row.failing
        if row.agreeing:
            # Noise in place can hide an error that the recorded tensors before it show.
            graph = self.judge.model.graph
            region = regions.find_upstream_until(graph, [name], self.recorded.__contains__)
            may_be_wrong = region is not None and _has_exact_inputs(graph, region, self.precision)
        alone = self._judge_alone(name) if may_be_wrong else None
        is_failing = alone is not None and alone.label == "fail"
        if row.agreeing and alone and is_failing and alone.errors.get("max_rel", 0) > HIDDEN:
            why = f"computed from the tensors recorded before it, {alone.why}"
            row = replace(row, in_place=replace(alone, why=why))
        if not row.failing:
            return row
        self.wrong.add(name)
        is_right = alone is not None and alone.agrees
        row = replace(row, alone=alone, rounded=is_right and self.precision is Precision.INT8)
        if not row.is_certain:
            self.doubtful.add(name)
        return row

    def _judge_alone(self, name: str) -> Judgement | None:
        """Return the worst isolated judgement over all samples; None if it cannot be computed.

        If it is not certain which tensor was recorded, the tensor that fits best counts.
        """
        samples = [m for m in self.matched if name in m.matches]
        others = (m.matches[name].others.possible for m in samples)
        alike = dict.fromkeys((name, *flatten(others)))
        judgements = [self._judge_as_tensor(samples, name, other) for other in alike]
        return min((j for j in judgements if j), key=compute_gravity, default=None)

    def _judge_as_tensor(
        self, samples: Sequence[MatchedSample], name: str, meant: str
    ) -> Judgement | None:
        """Judge the values that were matched to one tensor as another tensor, in the best of all
        recorded forms.

        Returns:
            None if the order of a tensor's axes is not known.
        """

        def is_certain(name: str) -> bool:
            """Return whether it is certain which value the device had there, in all samples."""
            held = [sample.matches.get(name) for sample in samples]
            readable = (m for m in held if m and m.entry.dtype not in ("string", ""))
            is_sure = len(held) == sum(not match.others.possible for match in readable)
            return is_sure and name not in self.doubtful

        graph = self.judge.model.graph
        region = regions.find_upstream_until(graph, [meant], is_certain)
        matches = flatten(m.matches.values() for m in samples)
        unknown = {match.tensor for match in matches if match.is_order_unknown}
        if region is None or not unknown.isdisjoint((name, *region.inputs)):
            return None
        judgements = []
        judge = partial(self._judge_isolated, meant, region)
        for tried in _iter_forms(samples, (*region.inputs, name)):
            try:
                feeds, outputs = run_recorded(tried, region)
            except (InputError, ModelError, WorkerDied) as e:
                log.debug("%s isolated: %s", meant, e.what)
                break
            given = [m for m in tried if meant in outputs[m.k]]
            judged = (judge(m.matches[name], m.k, feeds[m.k], outputs[m.k]) for m in given)
            worst = max(judged, key=compute_gravity, default=None)
            if worst is None:
                break
            judgements.append(worst)
            if worst.agrees:
                break
        return min(judgements, key=compute_gravity, default=None)

    def _judge_isolated(
        self,
        meant: str,
        region: Region,
        match: TensorMatch,
        k: int,
        feeds: Records,
        outputs: Records,
    ) -> Judgement:
        model = self.judge.model
        graph = model.graph
        reference = outputs[meant].array()
        value, _ = match.to_reference_form(reference)
        # The noise is that around the device's own values.
        records = {**model.values.records[k], **feeds, **outputs}
        around = (model.reference, records, model.scratch)
        exact = set(model.unrounded)
        if _has_exact_inputs(graph, region, self.precision):
            exact.update(name for name, record in feeds.items() if has_even_steps(record.array()))
        measured = RegionNoise(graph, region, *around, unrounded=exact).get_output(meant)
        judged = self._judge(meant, reference, value, k, measured)
        is_failing = judged.fails and reference.dtype.kind == "f"
        if not is_failing or self.precision is not Precision.INT8:
            return judged
        step = np.abs(reference).max() / INT8_STEPS
        if find_operator(graph, meant) in REQUANTIZES and np.abs(value - reference).max() <= step:
            return _excuse(judged, "precision", "within one step of another scale")
        clipped = np.clip(reference, value.min(), value.max())
        share = np.mean(np.abs(clipped - reference) > step)
        without = self._judge(meant, clipped, value, k, measured)
        if share > MAX_CLIPPED or without.fails:
            return judged
        before = find_ancestors(graph, [graph.maker[meant]])
        if not (self.wrong - {meant}).isdisjoint(graph.iter_outputs(before)):
            return without
        why = f"{share:.2%} of its values are clipped, as a small scale does"
        return replace(judged, label=CLIPPED, why=why)


def _has_exact_inputs(graph: Graph, region: Region, precision: Precision) -> bool:
    """Return whether in int8 no matrix enters a region: that has one scale, or one per channel."""
    dims = [graph.weights[name].dims for name in region.weights]
    return precision is Precision.INT8 and all(len(shape) < 2 for shape in dims)


def _excuse(judged: Judgement, label: str, why: str) -> Judgement:
    return replace(judged, status=Status.AGREE, signature=None, label=label, why=why)


def _iter_forms(
    samples: Sequence[MatchedSample], names: Sequence[str]
) -> Iterator[Sequence[MatchedSample]]:
    """Yield the samples with each recorded form of these tensors, the matched ones first."""
    ways = []
    for sample in samples:
        matches = [sample.matches[n] for n in names if n in sample.matches]
        ways.append(product(*((match, *match.forms) for match in matches)))
    for combination in islice(zip(*ways, strict=False), MAX_FORMS):
        yield [
            replace(sample, matches={**sample.matches, **{m.tensor: m for m in forms}})
            for sample, forms in zip(samples, combination, strict=True)
        ]
