"""A finished search -> a folder that a vendor can run: findings as cases with the candidate's
tensors, and the report.

manifest.json  run.json  report.html  report.md
culprit/          the region: model.onnx, inputs/, outputs/ (reference), candidate/, repro.py;
                  the full model if no cut shows the fault
cure.onnx         the full model, rewritten so that it agrees, if no cut shows the fault
culprit-agrees/   its nearest neighbor that agrees, in the same form
culprit-2/ …      further findings
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from subgraph.cases import case, evidence
from subgraph.cases.case import CaseOutcome, ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import CANDIDATE, MODEL, REPORT_FILES, SMALL
from subgraph.cases.short_values import MAX_NUMBERS, are_short, list_values, show_array
from subgraph.documents import to_json
from subgraph.errors import ModelError, SubcutError
from subgraph.graph.region import Region, build_region
from subgraph.iterables import index_by_name
from subgraph.log import log
from subgraph.origins import load
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.questions.bisection.rewriting import run_file
from subgraph.reports import add_answer, format_list, format_region as describe_region
from subgraph.results.bisect import BisectDocument, FindingDocument, SmallInput
from subgraph.runtime.deadline import if_time
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.run_result import RunResult
from subgraph.storage import folders
from subgraph.text import clean
from subgraph.trials.candidate_model import BOUNDARY_MATCHES, find_boundary_matches
from subgraph.trials.small_input import open_small_input
from subgraph.trials.trial import Trials
from subgraph.verdict import Verdict, name_failure

MAX_CASES = 8  # more findings than that have one reason, and each case holds its weights
CURE = "cure.onnx"
FOLDER_NAMES = {"culprit": "culprit", "flaky": "flaky", "unresolved": "in-doubt"}


def save(
    oracle: NodeOracle,
    document: BisectDocument,
    place: ResultPlace,
    request: object,
    feeding: Feeding,
    small_runs: int,
) -> BisectDocument:
    """Write the folder; return the document with the paths of the cases and of the report.

    `small_runs` is the largest number of runs of the search for a finding's small input.

    Raises:
        OutputError: It cannot be written.
        ResultExists: Another result was written there meanwhile.
    """
    trials = oracle.trials
    source = case.describe_source(trials.graph)
    place = case.find_free_place(place, source, [trials.graph.path])
    with folders.write_aside(place.path) as work:
        findings = list(document.findings)
        fault = None
        if healing := document.search.healing:
            nodes = "; ".join(map(describe_region, findings))
            fault = f"only in the full model: {nodes}; right with {format_list(healing.changes)}"
        for k, name in _iter_case_names(findings if oracle.cuts else findings[:1]):
            finding = findings[k]
            region = _add_case_of(oracle, finding, ResultPlace(work, name), feeding)
            if region is None:
                continue
            small = None
            try:
                if finding.certified:
                    small = add_small_case(oracle, region, work / name, small_runs)
            except (SubcutError, KeyboardInterrupt) as e:
                if isinstance(e, KeyboardInterrupt) and oracle.stop:
                    oracle.stop()
                log.info("no smaller input is kept: %s", clean(str(e)) or "interrupted")
                shutil.rmtree(work / name / SMALL, ignore_errors=True)
                small_runs = 0
            if_time(partial(_add_candidate, oracle, region, work / name, fault), None)
            if finding.run.nearest and oracle.cuts:
                neighbor = build_region(trials.graph, finding.run.nearest.indices)
                _add_case(trials, neighbor, ResultPlace(work, f"{name}-agrees"), feeding)
            run = replace(finding.run, small=small)
            findings[k] = replace(finding, case=str(place.path / name), run=run)
        if healing:
            shutil.copyfile(healing.model, work / CURE)
            healing = replace(healing, model=str(place.path / CURE))
            search = replace(document.search, healing=healing)
            document = replace(document, search=search)
        report = (place.path / REPORT_FILES["html"]).as_posix()
        document = add_answer(replace(document, findings=findings, report=report))
        evidence.write_document(document, work)
        case.write_manifest(
            EvidenceManifest(source=source, command=document.command, request=request), work
        )
    return document


def _iter_case_names(findings: Sequence[FindingDocument]) -> Iterator[tuple[int, str]]:
    """Yield position and folder name of each finding that becomes a case.

    Accumulated findings do not, because they are the full model.
    """
    numbers: Counter[str] = Counter()
    for k, finding in enumerate(findings[:MAX_CASES]):
        if name := FOLDER_NAMES.get(finding.kind):
            numbers[name] += 1
            yield k, name if numbers[name] == 1 else f"{name}-{numbers[name]}"


def _add_case_of(
    oracle: NodeOracle, finding: FindingDocument, place: ResultPlace, feeding: Feeding
) -> Region | None:
    """Write the case of a finding: the full model if no cut shows the fault.

    Returns:
        The region of the case; None if there is no case that fails.
    """
    trials = oracle.trials
    if not finding.indices:
        return None
    is_cut = oracle.cuts
    region = build_region(trials.graph, finding.indices) if is_cut else trials.full_model
    if not _add_case(trials, region, place, feeding):
        return None
    if is_cut or trials.runtime.is_manual:
        return region
    result = if_time(partial(run_file, trials, place.path / MODEL), None)
    if result is None or trials.judge.verdict(region, result).fails:
        return region
    shutil.rmtree(place.path)
    log.warning("no folder for %s: the full model agrees if subcut writes it", place.name)
    return None


def _add_case(trials: Trials, region: Region, place: ResultPlace, feeding: Feeding) -> bool:
    """Write a region as a case; False if it cannot be cut."""
    model = trials.model
    return evidence.add_case(
        model.graph, region, feeding, place, model.reference, model.values, freeze=model.freeze
    )


def _add_candidate(oracle: NodeOracle, region: Region, folder: Path, fault: str | None) -> None:
    """Add the candidate's outputs to a case, next to those of the reference, and the outcome."""
    trials = oracle.trials
    result = oracle.run_result(region)
    if trials.runtime.own_model:
        with contextlib.suppress(ModelError):  # The model has no such piece, so it did not run.
            own = folder / CANDIDATE
            room = trials.model.new_folder()
            cut, feeds = trials.writer.write_cut(region, trials.values.records, room)
            own.mkdir(exist_ok=True)  # Without outputs the folder does not exist yet.
            for file in room.glob("model.onnx*"):
                shutil.copyfile(file, own / file.name)
            load.write_own_format(own / "model.onnx", own)
            places = evidence.list_sample_folders(own / "inputs", trials.values.labels)
            for place, records in zip(places, feeds, strict=True):
                stems = folders.make_safe_names(cut.inputs)
                evidence.copy_tensors(index_by_name(records), stems, place)
            matches = find_boundary_matches(trials.runtime.own_model, region)
            (own / BOUNDARY_MATCHES).write_bytes(case.as_json(to_json(matches)))
    verdict = trials.judge.verdict(region, result)
    numbers = None
    if are_short(map(trials.values.records[0].__getitem__, region.inputs)):
        numbers = _list_numbers(trials, region, result, verdict)
    _add_outcome(trials, result, verdict, folder, numbers, fault)


def _add_outcome(
    trials: Trials,
    result: RunResult,
    verdict: Verdict,
    folder: Path,
    numbers: str | None,
    fault: str | None = None,
) -> None:
    """Add outputs of the candidate and the outcome to a case."""
    why = f"{verdict.worst.name}: {verdict.why}" if verdict.worst else verdict.why
    name = trials.runtime.candidate.name
    outcome = CaseOutcome(verdict.status, verdict.signature, why, name, fault)
    evidence.add_candidate(folder, trials.values.labels, result.tensors, outcome, numbers)


# ------------------------------------------------------------ small inputs
# This adds a case with the small input that fails in the same way to the case of a finding.

MIN_RUNS = 3  # of the candidate: the given input, another one, and that one again


def add_small_case(
    oracle: NodeOracle, region: Region, folder: Path, max_runs: int
) -> SmallInput | None:
    """Search the small input of a region that fails, and write it into the folder of its case.

    Args:
        oracle: The oracle of the search.
        region: The region.
        folder: The folder of its case.
        max_runs: The most runs of the candidate; few for no search.

    Returns:
        The small input, if there is one.

    Raises:
        SubcutError: The region has no standalone model, or the case cannot be written.
    """
    if max_runs < MIN_RUNS:
        return None
    verdict = oracle.trials.judge.verdict(region, oracle.run_result(region))
    with open_small_input(oracle.trials, region, verdict, max_runs) as small:
        if small is None:
            return None
        trials = small.trials
        if not _add_case(trials, trials.full_model, ResultPlace(folder, SMALL), Feeding()):
            return None
        numbers = _list_numbers(trials, trials.full_model, small.result, small.verdict)
        _add_outcome(trials, small.result, small.verdict, folder / SMALL, numbers)
        return SmallInput(numbers, small.runs)


def _list_numbers(trials: Trials, region: Region, result: RunResult, verdict: Verdict) -> str:
    """Return the inputs and both outputs: `x = [1, 2] in, [0, 1.5] expected, [0, 2] got`."""
    worst = verdict.worst
    sample = trials.values.labels.index(worst.sample) if worst and worst.sample else 0
    records = trials.values.records[sample]
    inputs = list_values(records, region.inputs)
    if worst is None or worst.worst is None:
        return f"{inputs} in: {name_failure(verdict.signature, verdict.process)}"
    expected = records[worst.name].array()
    actual = result.tensors[sample][worst.name].array()
    position = ""
    if expected.size > MAX_NUMBERS:
        place = tuple(worst.worst.index)
        expected = expected[place].reshape(1)
        actual = actual[place].reshape(1)
        position = f"at {place} "
    return f"{inputs} in, {position}{show_array(expected)} expected, {show_array(actual)} got"
