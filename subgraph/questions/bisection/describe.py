"""A search and its trials -> the document of the bisection."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.comparison.pair import pair_if_comparable
from subgraph.errors import SubcutError
from subgraph.graph.region import Region, find_surroundings
from subgraph.iterables import flatten
from subgraph.origins.source import find_sources
from subgraph.precision import Precision
from subgraph.questions.bisection.error_shares import measure_disturbance
from subgraph.questions.bisection.items import Remaining, describe_kind
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.results.bisect import (
    AgreementEvidence,
    BisectDocument,
    BoundaryTensor,
    Contributor,
    DeviatingElements,
    EdgeTensors,
    ErrorGrowth,
    EvidenceLine,
    FindingCause,
    FindingDocument,
    FindingEffect,
    FindingPlace,
    FindingRun,
    Histogram,
    HistogramBin,
    KindDocument,
    MinorRegion,
    ModelDifference,
    NearestAgreement,
    ProfileRow,
    RegionNodes,
    RunCounts,
    RunEnvironment,
    SearchCost,
    SearchResult,
    SearchSetup,
    StepDocument,
    StepQuery,
    StepRegion,
    WholeResult,
    WorstElement,
)
from subgraph.results.common import RuntimeDocument
from subgraph.runtime.backends import capabilities
from subgraph.runtime.deadline import if_time
from subgraph.search import Finding, FindingKind, Findings, Outcome, Purpose, Step
from subgraph.search.oracle import QueryKind
from subgraph.text import count, list_some
from subgraph.trials.candidate_runtime import Form
from subgraph.trials.compare_tensors import (
    add_ranking,
    compute_ranking,
    describe_model,
    iter_flaky_notes,
)
from subgraph.trials.diagnosis.conclusions import Evidence, Fact
from subgraph.trials.diagnosis.diagnosis import diagnose
from subgraph.trials.diagnosis.two_models import (
    find_differences,
    iter_far_constants,
    iter_hidden_errors,
)
from subgraph.trials.judge import Judge, iter_conversions
from subgraph.trials.small_input import find_needed_makers
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement, Status, Verdict, iter_mute_notes
from subgraph.version import list_versions

FILES = ("custom_ops", "file", "model")  # options that are paths: reports have only the file name
MAX_UNRESOLVED = 5  # regions and items that notes list
MAX_DIFFERENCES = 12  # between two models that a finding lists
MAX_DIAGNOSED = 3  # findings for which the candidate runs again
OF_REGION = (QueryKind.ISOLATED, QueryKind.REWRITTEN)
KIND_WORDS = {
    QueryKind.WHOLE: "whole model",
    QueryKind.CLAIMED: "at the claimed precision",
    QueryKind.PROFILE: "intermediate tensors in place",
    QueryKind.ISOLATED: "alone",
    QueryKind.REWRITTEN: "all other nodes rewritten",
    QueryKind.REST: "all other nodes",
    QueryKind.PREFIX: "first nodes",
}


def exit_code(findings: Findings) -> int:
    """Return 0 if they agree, 1 for any disagreement, 5 if nothing could be established."""
    if findings.agrees:
        return 0
    if findings.outcome in (Outcome.DISAGREE, Outcome.ELSEWHERE):
        return 1
    return 5


def describe(
    oracle: NodeOracle,
    findings: Findings,
    steps: Sequence[Step],
    *,
    command: str,
    criterion: str,
    seconds: float,
    notes: Iterable[str] = (),
    within: str = "",
) -> BisectDocument:
    """Return the document, without case folders and report.

    `within` is the argument of the user.
    """
    trials = oracle.trials
    graph = oracle.graph
    forms = oracle.trials.runner.forms
    code = max(exit_code(findings), int(forms.only_pinned))
    first = next((s.answer.verdict for s in steps if s.query.kind is QueryKind.WHOLE), None)
    is_first = findings.outcome in (Outcome.AGREE, Outcome.UNRESOLVED)
    whole = first if is_first else _find_whole_verdict(steps)
    profile = _profile(oracle, steps)
    assert whole
    whole_runs = sum(s.query.kind is QueryKind.WHOLE for s in steps)
    agreeing = [row.tensor for row in profile or () if row.status is not Status.FAIL]
    inner = len(set(agreeing) - set(graph.outputs)) if profile else None
    disturbance = measure_disturbance(oracle, oracle.seen, [step.query for step in steps]) or None
    looked_at = AgreementEvidence(
        len(trials.full_model.outputs), whole_runs, inner, within, disturbance
    )
    result = oracle.run_result(trials.full_model)
    # The model, or the region of the user, agrees without the findings.
    is_complete = (
        findings.outcome is Outcome.DISAGREE
        and not findings.budget_spent
        and findings.complete
        and bool(within or findings.signature)
    )
    return BisectDocument(
        exit_code=code,
        agree=code == 0,
        command=command,
        notes=[
            *forms.iter_sentences(),
            *trials.model.choice.sentences,
            *iter_mute_notes(whole),
            *iter_conversions(trials.judge, result),
            *_iter_scope_notes(findings, looked_at, whole),
            *notes,
            *_iter_notes(oracle, findings),
            *(iter_far_constants(trials) if whole.agrees else ()),
            *(iter_hidden_errors(trials) if whole.agrees else ()),
        ],
        report=None,
        model=describe_model(graph),
        setup=SearchSetup(
            candidate=_describe_candidate(trials.judge),
            reference=_describe_reference(oracle),
            criterion=criterion,
            samples=trials.values.labels,
            outputs=trials.model.choice.document(),
        ),
        whole=WholeResult(
            verdict=add_ranking(whole, compute_ranking(trials.model, result)),
            looked_at=looked_at,
            forms=forms.document(),
            profile=profile,
            flaky_tensors=sorted(set().union(*oracle.seen.nondeterministic.values())) or None,
        ),
        search=SearchResult(
            outcome="pinned" if forms.only_pinned and not exit_code(findings) else findings.outcome,
            steps=list(_steps(oracle, steps)),
            alone=[
                MinorRegion(o.signature, *_list_nodes(oracle, o.items), o.share_of_model, None)
                for o in findings.irrelevant
            ],
            complete=is_complete or None,
            stopped=findings.stopped if findings.budget_spent else None,
        ),
        findings=(
            []
            if findings.outcome is Outcome.UNRESOLVED and whole.is_mute
            else [
                _describe_finding(oracle, findings, k, steps) for k in range(len(findings.findings))
            ]
        ),
        cost=_describe_cost(trials, findings, seconds),
        environment=_describe_environment(oracle),
    )


def _describe_cost(trials: Trials, findings: Findings, seconds: float) -> SearchCost:
    # Extra runs only measure how much of the error is gone without a piece.
    extra = {"explain": trials.log.extra_runs} if trials.log.extra_runs else {}
    return SearchCost(
        trials=findings.counts.total() + trials.log.extra_runs,
        compiled_nodes=findings.counts.items() + trials.log.extra_nodes,
        runs={str(purpose): n for purpose, n in findings.counts.runs.items()} | extra,
        seconds=round(seconds, 3),
    )


def _list_nodes(oracle: NodeOracle, items: Iterable[int]) -> tuple[list[str], list[int], list[str]]:
    """List the labels, indices and operators of the nodes of some items."""
    graph = oracle.graph
    nodes = oracle.list_indices(items)
    return [graph.label(i) for i in nodes], nodes, [graph.ops[i] for i in nodes]


def _shorten_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a backend with the names of files instead of their paths."""
    return {key: Path(value).name if key in FILES else value for key, value in options.items()}


def _describe_candidate(judge: Judge) -> RuntimeDocument:
    candidate = judge.runtime.candidate
    info = judge.runtime.about
    options = _shorten_files(candidate.options)
    options.pop("folder", None)
    return RuntimeDocument(
        candidate.name, Path(candidate.backend).name, options, info.version, judge.precision
    )


def _describe_reference(oracle: NodeOracle) -> RuntimeDocument:
    identity = oracle.trials.model.reference.identity()
    backend = Path(identity["backend"]).name
    given = identity["options"]
    options = _shorten_files(given)
    script = capabilities(backend).script
    name = backend
    if script:
        file = given[script]
        if Path(file).is_relative_to(Path.cwd()):
            file = Path(file).relative_to(Path.cwd())
        name = f"{backend}:{file}:{given['build']}"
    return RuntimeDocument(name, backend, options, identity["version"], Precision.FP32)


def _describe_environment(oracle: NodeOracle) -> RunEnvironment:
    packages = list_versions()
    subcut = packages.pop("subcut")
    python = packages.pop("python")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return RunEnvironment(
        subcut, python, machine, oracle.trials.model.reference.options.get("threads", 1), packages
    )


def _iter_scope_notes(
    findings: Findings, looked_at: AgreementEvidence, whole: Verdict | None
) -> Iterator[str]:
    """Yield what follows if the outputs and the searched nodes are not alike."""
    if findings.outcome is Outcome.ELSEWHERE:
        yield f"the whole model is wrong, {looked_at.within} alone is right: look outside of it"
    elif whole and whole.is_unresolved:
        return
    elif findings.signature is None and findings.findings and findings.outcome is Outcome.DISAGREE:
        outputs = f"{count(looked_at.outputs, 'output')} in {count(looked_at.runs, 'run')}"
        yield (
            f"the outputs agree ({outputs}): with these inputs, the error inside stays within their"
            " limits"
        )


def _iter_notes(oracle: NodeOracle, findings: Findings) -> Iterator[str]:
    if oracle.trials.runtime.about.caveat:
        yield oracle.trials.runtime.about.caveat
    for text, items in findings.notes:
        yield text + ", ".join(oracle.label(k) for k in items)
    if findings.probe_sensitive:
        yield (
            "the fault vanishes when intermediate tensors are read: fusion changes when they are"
            " outputs"
        )
    if not any(f.kind is FindingKind.FLAKY for f in findings.findings):
        # Verdicts are the same from run to run, and values are not.
        varying = oracle.seen.nondeterministic
        whole = oracle.trials.full_model
        yield from iter_flaky_notes(varying.get(whole.nodes, ()), whole)
        for finding in findings.findings if oracle.cuts else ():
            if finding.items and varying.get(oracle.region(finding.items).nodes):
                labels = ", ".join(oracle.label(k) for k in finding.items[:MAX_UNRESOLVED])
                yield f"not deterministic: the values of {labels} alone differ from run to run"
    if findings.budget_spent:
        yield f"ended early: {findings.stopped}; the same command with a larger limit continues"
    for observation in findings.unresolved[:MAX_UNRESOLVED]:
        place = list_some([oracle.label(k) for k in observation.items], MAX_UNRESOLVED)
        yield f"{place}, {observation.signature or 'unknown'}: {observation.why}"


# ------------------------------------------------------------ steps


def _profile(oracle: NodeOracle, steps: Sequence[Step]) -> list[ProfileRow] | None:
    verdict = next(
        (s.answer.verdict for s in steps if s.purpose is Purpose.PROFILE and s.answer.verdict), None
    )
    if verdict is None or not verdict.outputs:
        return None
    graph = oracle.graph
    rows: dict[str, ProfileRow] = {}
    for j in verdict.outputs:
        i = graph.maker[j.name]
        error = _find_error(j)
        if j.name not in rows or (error or 0) > (rows[j.name].error or 0):
            rows[j.name] = ProfileRow(i, graph.label(i), graph.ops[i], j.name, error, j.status)
    return sorted(rows.values(), key=lambda row: graph.rank[row.index])


def _find_error(judgement: Judgement | None) -> float | None:
    error = judgement.errors.get("max_rel") if judgement else None
    if error is None or math.isnan(error):
        return None
    return error


def _find_worst_error(verdict: Verdict | None) -> float | None:
    return _find_error(verdict.worst if verdict else None)


def _steps(oracle: NodeOracle, steps: Sequence[Step]) -> Iterator[StepDocument]:
    remaining = Remaining(oracle.size)
    for step in steps:
        remaining.add(step, oracle.list_indices(step.items))
        labels, nodes, _ = _list_nodes(oracle, step.items)
        answer = step.answer
        form = _find_form(oracle, step)
        words = [KIND_WORDS[step.query.kind], *(["again"] if step.query.repetition else [])]
        if step.query.pool:
            words.append("in one model with others")
        yield StepDocument(
            number=step.number,
            status=step.outcome,
            signature=answer.signature,
            error=_find_worst_error(answer.verdict),
            explains=answer.share.of_target,
            seconds=round(answer.seconds, 6),
            changed=remaining.describe_progress(step),
            asked=StepQuery(
                kind=", ".join([*words, *([form] if step.query.kind is QueryKind.WHOLE else [])]),
                query=step.query.kind,
                purpose=step.purpose,
                form=form,
            ),
            region=StepRegion(
                first=labels[0] if labels else "",
                last=labels[-1] if labels else "",
                count=len(nodes) or oracle.size,
                indices=nodes,
            ),
        )


def _find_form(oracle: NodeOracle, step: Step) -> Form:
    """Return the form of the model in a step."""
    trials = oracle.trials
    if step.query.is_whole:
        return trials.runner.form_of(trials.full_model)
    if len(step.items) == len(oracle.groups):
        return Form.PINNED
    return Form.CUT


def _find_whole_verdict(steps: Sequence[Step]) -> Verdict | None:
    """Return the first failing verdict on the full model, or the first one if none fails."""
    verdicts = [
        s.answer.verdict for s in steps if s.query.kind is QueryKind.WHOLE and s.answer.verdict
    ]
    return next((v for v in verdicts if v.fails), verdicts[0] if verdicts else None)


def _find_isolated_verdict(finding: Finding, steps: Sequence[Step]) -> Verdict | None:
    """Return the last verdict on exactly this region; a failing one before others, then one from a
    fresh process."""
    own = [
        s
        for s in steps
        if s.query.kind in OF_REGION and s.items == finding.items and s.answer.verdict
    ]
    best = max(own, key=lambda s: (s.answer.fails, s.query.fresh, s.number), default=None)
    return best.answer.verdict if best else None


# ------------------------------------------------------------ findings


def _describe_finding(
    oracle: NodeOracle, findings: Findings, rank: int, steps: Sequence[Step]
) -> FindingDocument:
    finding = findings.findings[rank]
    kind = finding.kind
    nodes = oracle.list_indices(finding.items)
    region = oracle.region(finding.items) if finding.items and oracle.cuts else None
    verdict = _find_isolated_verdict(finding, steps)
    makers = []
    graph = oracle.graph
    if region and verdict and finding.certified and not findings.stopped:
        makers = find_needed_makers(oracle.trials, region, verdict)
        nodes = graph.in_order([*nodes, *makers])
    differences = find_differences(oracle.trials, region) if region else []
    evidence = _collect_evidence(oracle, findings, rank, steps, differences)
    return FindingDocument(
        kind=kind,
        signature=finding.signature,
        nodes=[graph.label(i) for i in nodes],
        indices=nodes,
        ops=[graph.ops[i] for i in nodes],
        certified=finding.certified,
        case=None,
        evidence=[EvidenceLine(e.kind, e.says) for e in evidence],
        place=FindingPlace(
            sources=find_sources(graph, nodes),
            constants=[graph.label(i) for i in makers] or None,
            edge=_describe_boundary(oracle, region) if region else None,
            neighbours=find_surroundings(graph, nodes) if region else None,
            alike=_list_nodes(oracle, finding.alike)[0] if finding.alike else None,
            repeats=[RegionNodes(*_list_nodes(oracle, r)[:2]) for r in finding.repeats] or None,
            of_kind=_find_kind(oracle, finding, findings.complete),
        ),
        run=_describe_run(oracle, finding, steps, region, verdict),
        effect=_describe_effect(oracle, finding),
        cause=FindingCause(
            why=_explain(oracle, finding),
            reason=finding.why if kind is FindingKind.UNRESOLVED else None,
            rounding=any(e.fact is Fact.ROUNDS for e in evidence) or None,
            differences=differences[:MAX_DIFFERENCES] or None,
            more_differences=len(differences[MAX_DIFFERENCES:]) or None,
        ),
    )


def _describe_run(
    oracle: NodeOracle,
    finding: Finding,
    steps: Sequence[Step],
    region: Region | None,
    verdict: Verdict | None,
) -> FindingRun:
    judgement = verdict.worst if verdict else None
    off, histogram = _count_differences(oracle, region, judgement)
    is_flaky = finding.kind is FindingKind.FLAKY
    worst = None
    if judgement and judgement.worst:
        element = judgement.worst
        worst = WorstElement(
            element.index,
            element.reference,
            element.candidate,
            judgement.name,
            _find_error(judgement),
        )
    return FindingRun(
        verdict=verdict.to_document() if verdict else None,
        worst=worst,
        off=off,
        histogram=histogram,
        nearest=_find_nearest(oracle, finding, steps),
        reproduces=finding.reproduces,
        rate=finding.reproduces if is_flaky else None,
        runs=RunCounts(*finding.runs) if is_flaky else None,
    )


def _describe_effect(oracle: NodeOracle, finding: Finding) -> FindingEffect:
    if finding.kind is not FindingKind.ACCUMULATED:
        return FindingEffect(explains=finding.share_of_model)
    contributors = []
    for items, share in finding.accumulation.contributors:
        labels, nodes, ops = _list_nodes(oracle, items)
        label = labels[0] if len(nodes) == 1 else f"{labels[0]} … {labels[-1]}"
        operators = ", ".join(dict.fromkeys(ops[:3]))
        contributors.append(Contributor(label, operators, nodes[0], share))
    return FindingEffect(
        explains=finding.share_of_model,
        growth=[ErrorGrowth(n, error) for n, error in finding.accumulation.growth],
        contributors=contributors,
    )


def _find_kind(oracle: NodeOracle, finding: Finding, is_complete: bool) -> KindDocument | None:
    """Return the operator of several regions that are one node each."""
    wrong = oracle.list_indices(flatten(finding.regions))
    if not finding.repeats or len(wrong) > len(finding.regions):
        return None
    return describe_kind(oracle.graph, wrong, is_complete=is_complete)


def _collect_evidence(
    oracle: NodeOracle,
    findings: Findings,
    rank: int,
    steps: Sequence[Step],
    differences: Sequence[ModelDifference],
) -> list[Evidence]:
    """Return the evidence for rounding and for a bug; empty if the region may not fail at all."""
    trials = oracle.trials
    finding = findings.findings[rank]
    whole = finding.kind is FindingKind.ACCUMULATED
    verdict = _find_isolated_verdict(finding, steps) if finding.items else None
    if whole:
        verdict = _find_whole_verdict(steps)
    fails = verdict is not None and (verdict.fails or finding.is_culprit)
    if verdict is None or not fails or finding.kind is FindingKind.FLAKY or not oracle.cuts:
        return []
    withheld = f"the search ended early: {findings.stopped}" if findings.stopped else ""
    if rank >= MAX_DIAGNOSED:
        withheld = f"only the first {MAX_DIAGNOSED} findings are examined"
    region = trials.full_model if whole else oracle.region(finding.items)
    try:
        others = [oracle.region([k]) for k in finding.alike]
        parts = [
            oracle.region(items) for items, _ in finding.accumulation.contributors[:MAX_DIAGNOSED]
        ]
        return diagnose(trials, region, verdict, withheld, others, differences, parts)
    except SubcutError as e:
        return [Evidence("conclusion", f"not known: {e.what}")]


def _explain(oracle: NodeOracle, finding: Finding) -> str:
    def labels(items: Sequence[int]) -> str:
        return ", ".join(oracle.label(k) for k in items[:MAX_UNRESOLVED])

    if finding.undecided.refused:
        return (
            "perhaps not the smallest: the candidate does not run it without"
            f" {labels(finding.undecided.refused)}"
        )
    if finding.undecided.minor and not finding.certified:
        without = labels(finding.undecided.minor)
        return (
            f"perhaps not the smallest: without {without} it still fails, though that accounts for"
            " little"
        )
    return finding.why


def _describe_boundary(oracle: NodeOracle, region: Region) -> EdgeTensors:
    records = oracle.trials.values.records[0]

    def tensors(names: Iterable[str]) -> list[BoundaryTensor]:
        known = [records[n] for n in names if n in records]
        return [BoundaryTensor(r.name, r.dtype, r.shapes[0] if r.shapes else ()) for r in known]

    return EdgeTensors(tensors(region.inputs), tensors(region.outputs))


def _count_differences(
    oracle: NodeOracle, region: Region | None, worst: Judgement | None
) -> tuple[DeviatingElements | None, Histogram | None]:
    """Return the number of elements of the decisive output that differ, and by how much."""
    if region is None or worst is None:
        return None, None
    values = oracle.trials.values
    k = values.labels.index(worst.sample) if worst.sample else 0
    result = if_time(partial(oracle.run_result, region), None)
    if result is None or result.failure or worst.name not in result.tensors[k]:
        return None, None
    records = values.records[k][worst.name], result.tensors[k][worst.name]
    pair = pair_if_comparable(*(record.value() for record in records))
    if pair is None:
        return None, None
    d = pair.difference[pair.difference > 0] / (pair.scale or 1.0)
    decades, counts = np.unique(np.floor(np.log10(d)).astype(int), return_counts=True)
    bins = [HistogramBin(int(x), int(n)) for x, n in zip(decades, counts, strict=True)]
    histogram = Histogram(pair.compared - int(d.size), bins, pair.size - pair.compared)
    return DeviatingElements(pair.changed, pair.size), histogram


def _find_nearest(
    oracle: NodeOracle, finding: Finding, steps: Sequence[Step]
) -> NearestAgreement | None:
    if finding.neighbor is None:
        return None
    without, *_ = _list_nodes(oracle, [k for k in finding.items if k not in finding.neighbor])
    labels, nodes, _ = _list_nodes(oracle, finding.neighbor)
    step = next((s for s in steps if s.items == finding.neighbor and s.answer.verdict), None)
    return NearestAgreement(
        without, labels, nodes, _find_worst_error(step.answer.verdict if step else None)
    )
