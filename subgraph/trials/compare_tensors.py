"""Every tensor of a model, compared in place and alone -> rows, and the first bad one.

*In place*: all tensors of one run of the full model, read by making them outputs; that disturbs
fusion, so it is a hint. *Alone*: each node as a standalone model, fed with reference values. The
full model's own outputs come from an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from subgraph import text
from subgraph.comparison import MIN_REL_TOL, ROUNDING_ALONE, STEPS
from subgraph.comparison.pair import (
    are_probabilities,
    compute_agreement,
    compute_relative_error,
    pair_if_comparable,
)
from subgraph.documents import CommandLine, to_json
from subgraph.errors import NoRegion, NotInstalled, UsageError
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph, as_graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.region import Region
from subgraph.graph.selection import find_fitting_tensors, select
from subgraph.graph.walks import find_ancestors_until, find_descendants
from subgraph.inspection.drawn_network import make_labeled_network
from subgraph.inspection.validate import explain_refusal
from subgraph.iterables import drop_repeats, group_values
from subgraph.log import log
from subgraph.origins.source import Source, find_source
from subgraph.reports import PINNED_ALONE, AnswerKind, ReportedAnswer, make_precise_answer
from subgraph.results.answer import NextCommand
from subgraph.results.common import (
    Agreement,
    ComparedModel,
    PowerDocument,
    PreciseSetting,
    RuntimeDocument,
    ScoreDocument,
    WholeDocument,
)
from subgraph.results.compare import (
    ComparedTensors,
    ComparisonDocument,
    ComparisonSetup,
    FirstBadDocument,
    MissingJudgement,
    RowDocument,
    TensorComparison,
    WholeComparison,
)
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.python_values import (
    CandidateValue,
    Inputs,
    make_candidate,
    make_input_arguments,
)
from subgraph.runtime.run_result import RunResult
from subgraph.storage.value_pairs import ValuePair
from subgraph.text import clean, count, describe_run, list_some
from subgraph.trials import computed_by, pooled_runs
from subgraph.trials.candidate_runtime import FormsTried
from subgraph.trials.doubt import (
    DOUBTS,
    MIN_EXACT,
    UNDOUBTED,
    Decision,
    Deviation,
    Doubt,
    NodeEvidence,
    Settlement,
    explain_steps,
    find_doubt,
    find_relative_error,
    is_beyond_rounding,
    is_beyond_steps,
    settle_quantization,
    settle_rounding,
)
from subgraph.trials.judge import find_score, iter_conversions
from subgraph.trials.open_trials import Setup, open_with_processes
from subgraph.trials.pooled_runs import ParallelRuns
from subgraph.trials.power import measure_power
from subgraph.trials.preflight import require_usable
from subgraph.trials.questions import (
    PreparedTrials,
    describe_age,
    explain_full_model,
    find_flaky_outputs,
    prepare,
)
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.score import make_score_goal
from subgraph.trials.similar_outputs import WrongOutput
from subgraph.trials.trial import Trials
from subgraph.types import JsonObject, Shapes, Strings, frozen, frozen_keywords
from subgraph.verdict import (
    NUMBERS,
    Judgement,
    RunOutcome,
    Signature,
    Status,
    Verdict,
    compute_gravity,
    find_mute,
    is_mute,
    iter_mute_notes,
    join_judgements,
    name_failure,
)

MIN_PROBES = 2  # nodes that run alone first at least, to measure what one takes
NODES_NEEDED = (
    "the outputs deviate by more than rounding, and by no more than approximate kernels may; "
    "only the nodes alone show which of the two is the reason: compare all of them"
)
NOT_ALONE = "only in place: no node was run alone (without --in-place each is)"
MAX_NAMED = 4  # nodes in a headline
MIN_POOLED_SECONDS = 30.0  # seconds that all nodes may take one by one before they are pooled

Ranking = Mapping[str, Mapping[str, float]]  # top-1 and top-5 agreement by output


@frozen
class ComparisonRow:
    """One tensor.

    Attributes:
        index: The index of its producer.
        node: The label of its producer.
        op: The operator of its producer.
        tensor: Its name.
        in_place: Its worst judgement over all samples in place; None if it was not judged there.
        alone: Its worst judgement over all samples alone; None if it was not judged there.
        verdict: The verdict on its producer alone, with the reason why there is no judgement; None
            if the node was not run.
        source: Module and line of the user's code; None if the model does not name them.
        computed_by: The runtime's provider that computes the node in the full model; "" if the
            runtime has only one.
        steps: Whether nothing but the steps of quantizers moves it beyond its limit.
    """

    index: int
    node: str
    op: str
    tensor: str
    in_place: Judgement | None
    alone: Judgement | None
    verdict: Verdict | None
    source: Source | None = None
    computed_by: str = ""
    steps: bool = False

    @property
    def failing(self) -> bool:
        """Whether it disagrees in place or alone."""
        return any(v and v.fails for v in (self.in_place, self.alone, self.verdict))

    def excuse(self) -> ComparisonRow:
        """Return the row with steps of quantizers as the reason why it fails, which decides
        nothing."""
        why = "steps of quantizers add up, or a scale clips"
        undecided = partial(replace, status=Status.UNRESOLVED, signature=None, why=why)
        in_place, alone = (
            undecided(j, label=STEPS) if j and j.fails else j for j in (self.in_place, self.alone)
        )
        verdict = undecided(self.verdict) if self.verdict and self.verdict.fails else self.verdict
        return replace(self, in_place=in_place, alone=alone, verdict=verdict, steps=True)


@frozen_keywords
class FullModelFacts:
    """Facts from the runs of the full model, in addition to the verdicts.

    Attributes:
        ranking: Top-1 and top-5 agreement by output that looks like class scores, the worst over
            all samples.
        forms: The forms of the full model that were tried.
        disturbance: How far reading the intermediate tensors moved the outputs, relative to their
            largest value.
        score: The score of the task, if it judges the full model; else None.
        flaky_outputs: Outputs that differ in a second run of the full model.
        precise: The runtime's setting for full precision, if the outputs agree with it alone; else
            None.
        power: The planted faults that would show; None without planted faults.
    """

    ranking: Ranking
    forms: FormsTried
    disturbance: float
    score: ScoreDocument | None
    flaky_outputs: Strings
    precise: PreciseSetting | None
    power: PowerDocument | None = None


@frozen
class Comparison:
    """The tensors of a candidate, compared with those of the reference.

    Attributes:
        whole: The verdict on the full model, undisturbed.
        in_place: The verdict on one run with all tensors as outputs.
        full: Further facts about the full model.
        rows: The tensors in topological order; with `stopped`, up to the first bad one.
        stopped: Whether the comparison stopped at the first bad tensor.
        looks_like: Changes that would make the first bad tensor equal, a line each.
        wrong_input: How an input of the model was misread, if that alone explains the first bad
            tensor; else "".
        notes: Notes on stored answers: their age, and whether they were dropped.
        settlement: The evidence that decides if the full model does not.
        deviating_pieces: The last node of each region between two quantizers that deviates by more
            than a step.
        own_graph: The candidate's model; None if it runs that of the reference.
        written: The document of the comparison; None before it is complete.

    >>> from subgraph import compare, load
    >>> comparison = compare(load("resnet50.onnx"), at=["pool1", "prob"])
    >>> [(row.tensor, row.in_place.status.value) for row in comparison.rows], comparison.first_bad
    ([('pool1', 'agree'), ('prob', 'agree')], None)
    """

    whole: Verdict
    in_place: Verdict
    full: FullModelFacts
    rows: tuple[ComparisonRow, ...]
    stopped: bool = False
    looks_like: Strings = ()
    wrong_input: str = ""
    notes: Strings = ()
    settlement: Settlement = UNDOUBTED
    deviating_pieces: Strings = ()
    own_graph: Graph | None = field(default=None, repr=False)
    written: ComparisonDocument | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Comparison({self.result.says!r})"

    @property
    def result(self) -> ComparisonDocument:
        """All of this with names and versions; what `compare` returns has it."""
        assert self.written
        return self.written

    @property
    def document(self) -> JsonObject:
        """`result` as JSON, as `subcut compare --json` prints it."""
        document: JsonObject = to_json(self.result)
        return document

    @property
    def agree(self) -> bool:
        """Whether nothing disagrees."""
        return self.result.agree

    @property
    def next(self) -> Sequence[NextCommand | CommandLine]:
        """The commands that follow from the answer."""
        return self.result.next

    def to_dataframe(self) -> Any:
        """Return the tensors as a pandas DataFrame, with a column for each field and metric.

        Raises:
            NotInstalled: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise NotInstalled(
                "pandas is not installed", "pip install pandas", code="package.not-installed"
            ) from error
        return pandas.json_normalize(self.document["rows"])

    @property
    def first_bad(self) -> ComparisonRow | None:
        """The first tensor that is wrong in place; if none is, the first that is wrong alone."""
        bad = (r for r in self.rows if r.in_place is not None and r.in_place.fails)
        return next(bad, None) or next((r for r in self.rows if r.failing), None)

    @property
    def looked_at(self) -> ComparedTensors:
        """The compared tensors; a tensor that could not be judged does not count."""
        outputs = {j.name for j in self.whole.outputs}
        inner = {r.tensor for r in self.rows if (r.in_place or r.alone) and not r.steps} - outputs
        return ComparedTensors(len(outputs), len(inner))

    @property
    def says(self) -> str:
        """The outcome in a line."""
        return self.answer.says

    @property
    def answer(self) -> ReportedAnswer:
        """The headline, as that of a search."""
        if self.settlement.decision is Decision.REFERENCE_MOVES:
            return _report_settlement(self)
        found = _report_outcome(self)
        if not self.full.flaky_outputs:
            return found
        return replace(found, kind=AnswerKind.FLAKY, how=f"{AnswerKind.FLAKY}, {found.name}")

    @property
    def exit_code(self) -> int:
        """1: something disagrees, or a file of the candidate's does not run; 5: not every output
        could be judged; else 0."""
        if self.full.score and not self.full.forms.only_pinned:
            return {Status.AGREE: 0, Status.FAIL: 1}.get(self.whole.status, 5)
        if self.settlement.decision is Decision.REFERENCE_MOVES:
            return 0
        fails = any(v.fails for v in (self.whole, self.in_place))
        deviates = self.first_bad or self.deviating_pieces or _is_model_refused(self)
        if fails or deviates or self.full.forms.only_pinned:
            return 1
        if self.whole.agrees or self.settlement.explanation:
            return 0
        return 5


def _report_outcome(comparison: Comparison) -> ReportedAnswer:
    """Return the outcome: `wrong: the model's outputs; 3 of 27 tensors in place or alone`."""
    whole = comparison.whole
    full = comparison.full
    if full.score and not full.forms.only_pinned:
        kinds = {Status.AGREE: AnswerKind.RIGHT, Status.FAIL: AnswerKind.WRONG}
        kind = kinds.get(whole.status, AnswerKind.INCONCLUSIVE)
        word = "unresolved" if kind is AnswerKind.INCONCLUSIVE else kind
        return ReportedAnswer(kind, "", how=f"{word} by {full.score.says}")
    if _is_model_refused(comparison):
        refused = [r.node for r in comparison.rows if r.verdict and not r.verdict.agrees]
        nodes = list_some(list(map(clean, refused)), MAX_NAMED) or "no node"
        model = "the full model"
        if comparison.own_graph:
            model = "the candidate's model does not load"
            if reason := explain_refusal(comparison.own_graph):
                model += f": {clean(reason)}"
        return ReportedAnswer(AnswerKind.REFUSED, f"{model}; not right alone: {nodes}")
    bad = sum(row.failing for row in comparison.rows)
    tensors = f"{bad} of {count(comparison.rows, 'tensor')}"
    if full.forms.only_pinned and not bad:
        return ReportedAnswer(AnswerKind.REFUSED, PINNED_ALONE)
    if comparison.wrong_input:
        return ReportedAnswer(AnswerKind.WRONG, f"{comparison.wrong_input}; {tensors} wrong")
    if whole.fails:
        named = tensors if bad else "no tensor"
        what = f"{named} in place or alone"
        if full.precise:
            found = make_precise_answer("the candidate", full.precise)
            return replace(found, what=f"{found.what}; {what}")
        since = f" {describe_run(whole.from_run)}" if whole.from_run else ""
        how = f"{name_failure(whole.signature, whole.process)}{since}"
        return ReportedAnswer(AnswerKind.WRONG, f"the model's outputs; {what}", how=how)
    if bad:
        how = "outputs agree, the inside does not" if whole.agrees else ""
        return ReportedAnswer(AnswerKind.WRONG, f"{tensors} wrong", how=how)
    return _report_agreement(comparison)


def _report_agreement(comparison: Comparison) -> ReportedAnswer:
    """Return the outcome if no tensor fails."""
    if comparison.deviating_pieces:
        pieces = ", ".join(map(clean, comparison.deviating_pieces))
        return ReportedAnswer(AnswerKind.WRONG, f"not the nearest codes, alone: {pieces}")
    if comparison.settlement.explanation:
        return _report_settlement(comparison)
    if comparison.settlement.decision in (Decision.NODES_NEEDED, Decision.STEPS_ADD_UP):
        return ReportedAnswer(AnswerKind.INCONCLUSIVE, comparison.whole.why)
    whole = comparison.whole
    if whole.is_unresolved and whole.is_mute:
        return ReportedAnswer(AnswerKind.INCONCLUSIVE, clean(whole.why))
    if whole.is_unresolved:
        rows = (j for j in whole.outputs if j.status is whole.status and not is_mute(j))
        unknown = drop_repeats(j.name for j in rows)
        if not unknown:
            return ReportedAnswer(
                AnswerKind.INCONCLUSIVE, "the full model returned nothing to compare"
            )
        more = f" and {count(len(unknown) - 1, 'other output')}" if len(unknown) > 1 else ""
        rule = "(--criterion names a rule that needs no noise)"
        what = f"{clean(unknown[0])}{more} could not be judged {rule}"
        return ReportedAnswer(AnswerKind.INCONCLUSIVE, what)
    mute = map(clean, find_mute(whole.outputs))
    inner = comparison.looked_at.inner or None
    return ReportedAnswer(
        AnswerKind.RIGHT, text.describe_agreement(inner, comparison.full.disturbance, mute)
    )


def _is_model_refused(comparison: Comparison) -> bool:
    """Return whether the candidate refuses the full model, also with pinned shapes."""
    is_pinned = comparison.full.forms.only_pinned and comparison.own_graph is None
    return comparison.whole.signature is Signature.REFUSED and not is_pinned


def _report_settlement(comparison: Comparison) -> ReportedAnswer:
    return ReportedAnswer(AnswerKind.RIGHT, "", how=f"right {comparison.settlement.explanation}")


def measure_disturbance(plain: RunResult, tapped: RunResult) -> float:
    """Return how far the outputs differ between two runs of the full model, relative to their
    largest value.

    In the second run the intermediate tensors are outputs as well, which may switch fusions off. 0
    if a run failed, or if the difference is within the rounding of float32.
    """
    errors = [0.0]
    for one, other in zip(plain.tensors, tapped.tensors, strict=False):
        for name in one.keys() & other.keys():
            pair = pair_if_comparable(one[name].value(), other[name].value())
            if pair and pair.measurable:
                errors.append(compute_relative_error(pair))
    worst = max(errors)
    return worst if worst > MIN_REL_TOL else 0.0


def compare(
    graph: Graph | str | Path,
    candidate: CandidateValue = "ort",
    inputs: Inputs = None,
    *,
    at: Sequence[str] = (),
    seed: int = 0,
    shapes: Shapes | None = None,
    criterion: str = "noise",
    reference: str | Candidate = "ort",
    jobs: int = 1,
    fail_fast: bool = False,
    freeze: bool = True,
    output: str | Path = "subcut_out",
    power: int = 0,
    score: str | None = None,
    drop: str | None = None,
    at_least: float | None = None,
    labels: str | Path | None = None,
) -> Comparison:
    """Compare the tensors of a model on a candidate with the reference's, in place and alone.

    Run results are stored in `output`.

    - `candidate`: A SPEC as after `-c`, a `Candidate` with its limits, a function `load(path)` that
      returns `run(feeds)`, or an object that runs the full model: a session, a module,
      `run(feeds)`.
    - `reference`: A SPEC or a `Candidate`.
    - `inputs`: Files, arrays, name → array, or a list of these.
    - `at`: Tensors, nodes, or globs of both; empty for all.
    - `power`: Number of planted faults; the result counts those that the outputs would show.
    - `score`: A score of the task that judges the full model, as after `--score`: `top1`,
      `FILE.py:FUNCTION`; with `drop`, such as `"0.5%"`, or `at_least`, and `labels`, a file.

    >>> from subgraph import load
    >>> inputs = ["demo/input.npy"]
    >>> comparison = compare(load("demo/model.onnx"), "demo/wrong.py", inputs, at=["stem/*"])
    >>> comparison.first_bad.tensor, round(comparison.first_bad.in_place.errors["max_rel"], 2)
    ('stem/pool:0', 0.35)
    >>> comparison.result.tensors.first_bad.op, comparison.document["exit_code"]
    ('AveragePool', 1)

    Raises: as `compare_tensors`; UnknownName, UsageError: a SPEC means nothing.
    """
    graph = as_graph(graph, "compare")
    if power < 0:
        raise UsageError(f"power {power}: expected 0 or more", code="option.out-of-range")
    setup = Setup(
        make_candidate(candidate, graph),
        Feeding(make_input_arguments(inputs, graph.inputs), shapes or {}, seed),
        Path(output),
        criterion,
        freeze,
        score=make_score_goal(score, drop, at_least, labels),
    )
    with open_with_processes(graph, setup, make_candidate(reference, graph)) as trials:
        prepared = prepare(trials, select_tensors(trials.model, at))
        found = compare_tensors(prepared, at, jobs=jobs, fail_fast=fail_fast, power=power)
        return replace(found, written=make_document(prepared.trials, found, criterion, command=""))


def compare_tensors(
    prepared: PreparedTrials,
    at: Sequence[str] = (),
    *,
    jobs: int = 1,
    fail_fast: bool = False,
    in_place: bool = False,
    power: int = 0,
) -> Comparison:
    """Compare all tensors that carry values, or those that `at` names (tensors, nodes, or globs of
    both).

    If the full model does not decide whether the candidate is right, `trials.doubt` does.

    `fail_fast`: stop at the first wrong tensor in topological order. `jobs`: nodes that run alone
    at the same time. `in_place`: none does. `power`: planted faults to count.

    Raises:
        UnknownName, UsageError: `at` names nothing, or nothing that can be compared.
        BackendError: the candidate cannot be used, or its outputs are in another form than the
            model declares.
        ModelError: the reference cannot compute the values.
    """
    trials = prepared.trials
    found = _compare(trials, at, jobs, fail_fast, in_place)
    found = replace(found, notes=(*prepared.notes, *found.notes))
    if power:
        measured = measure_power(trials.judge, power)
        full = replace(found.full, power=measured)
        found = replace(found, full=full, notes=(measured.says, *found.notes))
    if found.full.score or not found.settlement.is_open:
        return found
    settlement = _settle(trials, found, is_partial=bool(at or in_place))
    if settlement.decision is Decision.ROUNDING_ALONE:
        # Regions that have run are stored.
        exact = _compare(trials.with_criterion(ROUNDING_ALONE), at, jobs, fail_fast, in_place)
        note = f"judged by {ROUNDING_ALONE}: no approximate kernel explains the error"
        return replace(exact, notes=(*prepared.notes, *exact.notes, note))
    if settlement.decision is Decision.NODES_NEEDED:
        found = replace(
            found, whole=replace(found.whole, status=Status.UNRESOLVED, why=NODES_NEEDED)
        )
    deviating = tuple(settlement.labels(trials.graph))
    return replace(found, settlement=settlement, deviating_pieces=deviating)


def _settle(trials: Trials, found: Comparison, *, is_partial: bool) -> Settlement:
    """Settle what the full model does not decide; `is_partial`: only some tensors were compared
    alone."""
    if found.stopped:
        return UNDOUBTED
    settlement = settle_quantization(trials)
    can_be_kernels = found.whole.agrees and DOUBTS[Doubt.KERNELS].is_possible(trials.judge)
    if not (settlement.is_open and can_be_kernels):
        return settlement
    unseen = {row.index for row in found.rows if not row.alone or row.alone.is_unresolved}
    deviations = []  # nodes that agree alone, but not by rounding alone
    for i, node in group_values((row.index, row) for row in found.rows).items():
        error = max(find_relative_error(row.alone) for row in node)
        if error <= MIN_REL_TOL:
            continue
        region = _make_node_region(trials.model, i, [row.tensor for row in node])
        if region and is_beyond_rounding(trials, region):
            deviations.append(Deviation.make([node[0].op], error, agrees_usually=True))
    return settle_rounding(
        NodeEvidence(deviations, len(unseen)),
        is_beyond_rounding=bool(find_doubt(trials, [Doubt.KERNELS])),
        is_another_tensor_wrong=found.first_bad is not None,
        is_partial=is_partial,
    )


def _compare(
    trials: Trials, at: Sequence[str], jobs: int, fail_fast: bool, only_in_place: bool
) -> Comparison:
    """Compare the tensors by the present criterion.

    If the steps of quantizers can explain what fails, all nodes run alone, also those that are not
    to be compared.
    """
    model = trials.model
    names = select_tensors(model, at)
    every = model.tensors()
    steps = _OwnSteps.find(trials, every)
    found = _compare_nodes(trials, names, steps, jobs, fail_fast, only_in_place)
    fails = found.whole.fails or found.first_bad
    can_clip = found.own_graph is not None and not found.whole.fails
    if (steps.decides or can_clip) and fails and found.settlement.is_open:
        if at or only_in_place:
            found = _compare_nodes(trials, every, steps, jobs, False, False)
        found = steps.apply(found, names)
    # who computes each node, and what a user must know of the candidate
    providers = computed_by.find_providers(trials.judge)
    rows = tuple(replace(row, computed_by=providers.get(row.index, "")) for row in found.rows)
    notes = filter(
        None, (trials.judge.runtime.about.caveat, computed_by.share(trials.judge, providers))
    )
    found = replace(found, rows=rows, notes=(*found.notes, *notes))
    bad = found.first_bad
    if bad is None:
        return found
    # changes that would make the first bad tensor equal
    of_node = [row.tensor for row in rows if row.index == bad.index]
    node = _make_node_region(trials.model, bad.index, of_node)
    if node and bad.alone and bad.alone.fails:
        output = WrongOutput(trials, node, bad.alone)
    elif bad.in_place:
        output = WrongOutput(trials, trials.model.whole(names), bad.in_place)
    else:
        return found
    return replace(found, looks_like=tuple(output.looks_like), wrong_input=output.wrong_input)


def _compare_nodes(
    trials: Trials,
    names: Sequence[str],
    steps: _OwnSteps,
    jobs: int,
    fail_fast: bool,
    only_in_place: bool,
) -> Comparison:
    """Compare these tensors, each judged as it is."""
    model = trials.model
    model.values.need([*model.graph.outputs, *names])
    tensors = group_values((model.graph.maker[name], name) for name in names)
    nodes = {i: _make_node_region(model, i, of_node) for i, of_node in tensors.items()}
    probes = [] if only_in_place else list(nodes)
    if probes and trials.processes.merges_cuts:  # the other nodes can run as merged cuts
        probes = probes[: max(MIN_PROBES, jobs)]
    rows = []
    with ParallelRuns(trials, jobs) as runs:
        runs.begin(
            model.whole(), model.whole(names), *(region for i in probes if (region := nodes[i]))
        )
        whole_result = runs.result(model.whole())
        require_usable(trials, whole_result)
        whole = trials.judge.verdict(model.whole(), whole_result)
        tapped_result = runs.result(model.whole(names))
        in_place = trials.judge.verdict(model.whole(names), tapped_result)
        flaky = find_flaky_outputs(trials, whole_result)
        explanation = None if flaky else explain_full_model(trials)
        precise = explanation if isinstance(explanation, PreciseSetting) else None
        settlement = UNDOUBTED
        if isinstance(explanation, Settlement):  # no node is compared: each one moves
            settlement = explanation
            nodes = {}
            probes = []
            names = []
        alone: Iterable[tuple[int, Verdict | None]] = ((i, None) for i in nodes)
        if not only_in_place:
            alone = _judge_alone(runs, nodes, probes)
        for step, (i, verdict) in enumerate(alone, 1):
            if not only_in_place:
                status = verdict.status.value if verdict else "not run"
                log.debug("%s alone: %s", model.graph.label(i), status)
                extra = {"step": step, "of": len(nodes), "sparse": True}
                log.info("%d of %d nodes alone", step, len(nodes), extra=extra)
            rows += [_make_row(model, i, name, in_place, verdict) for name in tensors[i]]
            if fail_fast and any(row.failing and not steps.excuse(row) for row in rows):
                break
    full = FullModelFacts(
        ranking=compute_ranking(model, whole_result),
        forms=trials.runner.forms,
        disturbance=0.0 if flaky else measure_disturbance(whole_result, tapped_result),
        score=find_score(trials.judge, whole_result, whole),
        flaky_outputs=flaky,
        precise=precise,
    )
    notes = (
        *iter_conversions(trials.judge, whole_result),
        *iter_flaky_notes(flaky, model.whole()),
        describe_age(trials),
        NOT_ALONE if only_in_place else "",
    )
    own_model = trials.runtime.own_model
    return Comparison(
        whole,
        in_place,
        full,
        tuple(rows),
        stopped=len(rows) < len(names),
        notes=tuple(filter(None, notes)),
        settlement=settlement,
        own_graph=own_model.graph if own_model else None,
    )


@frozen
class _OwnSteps:
    """The steps of the quantizers of the candidate's own model, which excuse errors without a
    culprit.

    Attributes:
        graph: The reference's model.
        exact: Number of nodes that, alone, only the step of their quantizer excuses.
        of: Number of nodes.
        clips: Whether a scale that clips is an excuse, too: not if it alone explains that
            outputs of the full model fail.
    """

    graph: Graph
    exact: int
    of: int
    clips: bool = True

    @classmethod
    def find(cls, trials: Trials, names: Sequence[str]) -> _OwnSteps:
        """Find the nodes that are judged so, among those that compute these tensors."""
        maker = trials.graph.maker
        tensors = group_values((maker[name], name) for name in names)
        nodes = [_make_node_region(trials.model, i, of_node) for i, of_node in tensors.items()]
        regions = [*filter(None, nodes)]
        exact = sum(trials.judge.output_scales(region) is not None for region in regions)
        return cls(trials.graph, exact, len(regions))

    @property
    def decides(self) -> bool:
        """Whether enough nodes are judged so."""
        return self.exact >= MIN_EXACT * self.of > 0

    def excuse(self, row: ComparisonRow) -> bool:
        """Return whether they explain why a row fails."""
        if not row.verdict:
            return False
        is_clipped = self.clips and row.verdict.outputs and not is_beyond_steps(row.verdict)
        is_number = not row.in_place or not row.in_place.fails or row.in_place.signature in NUMBERS
        return is_number and bool(is_clipped or (self.decides and not row.verdict.fails))

    def apply(self, found: Comparison, names: Collection[str]) -> Comparison:
        """Return the comparison of these tensors without the failures that they explain: those that
        are not downstream of a wrong node.

        Args:
            found: The comparison of all tensors.
            names: The tensors that are to be compared.
        """
        bad = [row for row in found.rows if row.failing]
        wrong = [row.index for row in bad if not self.excuse(row)]
        if self.clips and found.whole.fails and not wrong:
            return replace(self, clips=False).apply(found, names)
        below = find_descendants(self.graph, wrong)
        excused = {row.tensor for row in bad if self.excuse(row) and row.index not in below}
        shown = [row for row in found.rows if row.tensor in names]
        rows = tuple(row.excuse() if row.tensor in excused else row for row in shown)
        told = {row.tensor: row.in_place for row in rows if row.in_place}
        in_place = found.in_place
        if outputs := tuple(told[j.name] for j in in_place.outputs if j.name in told):
            status, signature, why = join_judgements(outputs, every=False)
            in_place = replace(
                in_place, status=status, signature=signature, why=why, outputs=outputs
            )
        notes = found.notes
        if moved := [row.tensor for row in rows if row.steps]:
            note = f"no node adds to the steps of quantizers: {list_some(moved, MAX_NAMED)}"
            notes = (*notes, note)
        found = replace(found, rows=rows, in_place=in_place, notes=notes)
        is_open = not (found.stopped or found.full.score or found.full.precise or wrong)
        if not is_open or found.whole.signature not in NUMBERS:
            return found
        why = explain_steps(self.exact, self.of)
        whole = replace(found.whole, status=Status.UNRESOLVED, signature=None, why=why)
        return replace(found, whole=whole, settlement=Settlement(Decision.STEPS_ADD_UP))


def iter_flaky_notes(names: Collection[str], whole: Region) -> Iterator[str]:
    """Yield a sentence if these outputs of the full model differ from run to run."""
    if names:
        of = count(whole.outputs, "output")
        yield (
            "the candidate is not deterministic: its values differ from run to run"
            f" ({len(names)} of {of})"
        )


def iter_value_pairs(trials: Trials, names: Sequence[str]) -> Iterator[ValuePair]:
    """Yield tensors as reference and candidate compute them in the full model, a pair per sample.

    If the candidate returns no value, the pair has only that of the reference. After
    `compare_tensors`, nothing is run again.
    """
    found = trials.run(trials.model.whole(names)).tensors
    for k, expected in enumerate(trials.values.records):
        given = found[k] if k < len(found) else {}
        for name in names:
            theirs = given[name].value() if name in given else None
            yield ValuePair(
                name,
                trials.values.labels[k],
                trials.runtime.candidate.name,
                expected[name].value(),
                theirs,
            )


def select_tensors(model: ReferenceModel, at: Sequence[str]) -> list[str]:
    """Return the tensors to compare, in topological order."""
    names = model.tensors()
    if not at:
        return names
    graph = model.graph
    selected: set[str] = set()
    for word in at:
        tensors = find_fitting_tensors(graph, names, word)
        if not tensors:
            selection = select(graph, word)
            outputs = list(graph.iter_outputs(selection.nodes))
            tensors = [selection.tensor] if selection.tensor else outputs
        if set(names).isdisjoint(tensors):
            raise UsageError(
                f"'{word}' cannot be compared",
                "it is an input, a constant, a shape, or nobody needs it",
                code="compare.not-comparable",
            )
        selected.update(tensors)
    return [n for n in names if n in selected]


def _judge_alone(
    runs: ParallelRuns, nodes: Mapping[int, Region | None], probes: Sequence[int]
) -> Iterator[tuple[int, Verdict | None]]:
    """Yield each node's own verdict, in order; None for random nodes. The probes are its first
    ones.

    If they take so long that all would take minutes, the rest runs as pools.
    """
    first = [nodes[i] for i in probes]
    rest = list(nodes)[len(probes) :]
    yield from zip(probes, runs.verdicts(first), strict=True)
    seconds = runs.seconds(first) * len(rest) / runs.jobs
    if seconds <= MIN_POOLED_SECONDS:
        yield from zip(rest, runs.verdicts([nodes[i] for i in rest]), strict=True)
        return
    log.info(
        "%.0f s for the other %d nodes: they run together, as pieces of one model",
        seconds,
        len(rest),
    )
    regions = [region for i in rest if (region := nodes[i])]
    found = dict(zip(regions, pooled_runs.judge_pool(runs.trials, regions), strict=True))
    yield from ((i, found[region] if (region := nodes[i]) else None) for i in rest)


def _make_node_region(model: ReferenceModel, i: int, names: Sequence[str]) -> Region | None:
    """Make a region of one node, and of those upstream whose outputs one side lacks.

    None for a random node.
    """
    graph = model.graph
    shared = model.comparable
    nodes = {i}
    if shared is not None:
        nodes = find_ancestors_until(
            graph, nodes, lambda name: name in shared or find_kinds(graph, [name])[name] != VALUE
        )
    try:
        return regions.build_region(graph, nodes, [tuple(names)])
    except NoRegion:
        return None


def _make_row(
    model: ReferenceModel, i: int, name: str, in_place: Verdict, verdict: Verdict | None
) -> ComparisonRow:
    graph = model.graph
    alone = _find_worst(verdict, name) if verdict else None
    judged = _find_worst(in_place, name)
    return ComparisonRow(
        i, graph.label(i), graph.ops[i], name, judged, alone, verdict, find_source(graph, i)
    )


def _find_worst(verdict: Verdict, name: str) -> Judgement | None:
    """Return the worst judgement of one output over all samples."""
    return max((j for j in verdict.outputs if j.name == name), key=compute_gravity, default=None)


def compute_ranking(model: ReferenceModel, whole: RunResult) -> Ranking:
    """Return top-1 and top-5 agreement of each output that is a distribution over classes.

    It is the worst over all samples.
    """
    worst: dict[str, dict[str, float]] = {}
    for expected, sample in zip(model.values.records, whole.tensors, strict=False):
        for name in model.outputs:
            if name in sample and name in expected and are_probabilities(expected[name].value()):
                shares = compute_agreement(expected[name].value(), sample[name].value())
                if shares:
                    before = worst.get(name, shares)
                    worst[name] = {k: min(v, before[k]) for k, v in shares.items()}
    return worst


# ------------------------------------------------------------ document


def describe_model(graph: Graph) -> ComparedModel:
    """Return the model of a graph, without the path of its file."""
    structure = graph.skeleton.structure
    name = str(graph.model.graph.name)
    return ComparedModel(
        graph.path.name, name, len(graph.nodes), structure, network=make_labeled_network(graph)
    )


def make_document(
    trials: Trials, comparison: Comparison, criterion: str, command: str
) -> ComparisonDocument:
    """Return the whole comparison as a document; `command`: the command line."""
    candidate = trials.runtime.candidate
    bad = comparison.first_bad
    full = comparison.full
    looks_like = comparison.looks_like
    in_place = vars(comparison.in_place.to_document())
    del in_place["outputs"]
    return ComparisonDocument(
        exit_code=comparison.exit_code,
        agree=comparison.exit_code == 0,
        says=comparison.says,
        command=command,
        model=describe_model(trials.graph),
        notes=[
            *full.forms.iter_sentences(),
            *trials.model.choice.sentences,
            *iter_mute_notes(comparison.whole),
            *comparison.notes,
        ],
        whole=WholeComparison(
            verdict=add_ranking(comparison.whole, full.ranking),
            in_place=RunOutcome(**in_place),
            looked_at=replace(
                comparison.looked_at,
                others=len(trials.model.tensors()) - len(comparison.rows),
                disturbance=full.disturbance or None,
            ),
            forms=full.forms.document(),
            score=full.score,
            flaky_tensors=full.flaky_outputs or None,
            precise=full.precise,
            power=full.power,
        ),
        setup=ComparisonSetup(
            candidate=RuntimeDocument(
                candidate.name,
                candidate.backend,
                candidate.options,
                trials.runtime.about.version,
                trials.judge.precision,
            ),
            criterion=criterion,
            samples=trials.values.labels,
            outputs=trials.model.choice.document(),
        ),
        tensors=TensorComparison(
            first_bad=FirstBadDocument(bad.index, bad.node, bad.op, bad.tensor, looks_like)
            if bad
            else None,
            stopped=comparison.stopped,
            rows=[_describe_row(row) for row in comparison.rows],
        ),
    )


def add_ranking(whole: Verdict, ranking: Ranking) -> WholeDocument:
    """Return the verdict on the full model, with the agreement of its classes."""
    shares = {name: Agreement(**found) for name, found in ranking.items()}
    mute = find_mute(whole.outputs) or None
    return WholeDocument(**vars(whole.to_document()), ranking=shares, mute=mute)


def _describe_row(row: ComparisonRow) -> RowDocument:
    verdict = row.verdict
    if verdict:
        why = MissingJudgement(verdict.status, verdict.signature, verdict.why, verdict.process)
    else:
        why = None
    return RowDocument(
        row.index,
        row.node,
        row.op,
        row.tensor,
        row.in_place,
        row.alone or why,
        row.source,
        row.computed_by or None,
    )
