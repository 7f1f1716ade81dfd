"""A finished search -> a folder that a vendor can run: findings as cases with the candidate's
tensors, and the report.

manifest.json  run.json  report.html  report.md
culprit/          the region: model.onnx, inputs/, outputs/ (reference), candidate/, repro.py
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

import numpy as np

from subgraph.bisection.oracle import NodeOracle
from subgraph.cases import case, evidence
from subgraph.cases.case import CaseOutcome, ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import CANDIDATE, REPORT_FILES, SMALL
from subgraph.cases.write_case import CaseRequest
from subgraph.documents import to_json
from subgraph.errors import ModelError, SubcutError
from subgraph.graph import region as regions
from subgraph.graph.region import Region, build_region
from subgraph.log import log
from subgraph.origins import load
from subgraph.reports import add_answer
from subgraph.results.bisect import BisectDocument, FindingDocument, SmallInput
from subgraph.runtime.deadline import if_time
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.storage.tensors import shape_text
from subgraph.text import clean
from subgraph.trials.candidate_model import BOUNDARY_MATCHES, CandidateModel, find_boundary_matches
from subgraph.trials.small_input import SmallInputProgress, open_small_input
from subgraph.types import Array
from subgraph.verdict import name_failure

MAX_CASES = 8  # more findings than that have one reason, and each case holds its weights
CURE = "cure.onnx"
FOLDER_NAMES = {"culprit": "culprit", "flaky": "flaky", "unresolved": "in-doubt"}


def free_place(place: ResultPlace, oracle: NodeOracle) -> ResultPlace:
    """Return the place of the result, as `case.free_place`; called before the search.

    Raises:
        ResultExists: something stands in the way that is not a result.
    """
    graph = oracle.graph
    return case.free_place(place, case.source_of(graph), [graph.path])


def save(
    oracle: NodeOracle,
    document: BisectDocument,
    place: ResultPlace,
    request: object,
    feeding: Feeding,
    small_runs: int,
) -> BisectDocument:
    """Write the folder; return the document with the paths of the findings' cases and of the
    report.

    `small_runs`: the most runs of the search for a finding's small input.

    Raises:
        OutputError: it cannot be written. ResultExists: something else has come to stand there.
    """
    place = free_place(place, oracle)
    with folders.aside(place.path) as work:
        findings = list(document.findings)
        for k, name in _case_names(findings):
            nearest = findings[k].run.nearest
            indices = findings[k].indices if oracle.cuts else ()
            if not indices or not _add_case(oracle, indices, ResultPlace(work, name), feeding):
                continue
            findings[k] = replace(findings[k], case=str(place.path / name))
            try:
                findings[k] = add_small_case(oracle, findings[k], work / name, small_runs)
            except (SubcutError, KeyboardInterrupt) as e:
                if isinstance(e, KeyboardInterrupt) and oracle.stop:
                    oracle.stop()
                log.info("no smaller input is kept: %s", clean(str(e)) or "interrupted")
                shutil.rmtree(work / name / SMALL, ignore_errors=True)
                small_runs = 0
            if_time(partial(_add_candidate, oracle, findings[k], work / name), None)
            if nearest:
                _add_case(oracle, nearest.indices, ResultPlace(work, f"{name}-agrees"), feeding)
        if healing := document.search.healing:
            shutil.copyfile(healing.model, work / CURE)
            healing = replace(healing, model=str(place.path / CURE))
            search = replace(document.search, healing=healing)
            document = replace(document, search=search)
        report = (place.path / REPORT_FILES["html"]).as_posix()
        document = add_answer(replace(document, findings=findings, report=report))
        evidence.write_document(document, work)
        source = case.source_of(oracle.graph)
        case.write_manifest(
            EvidenceManifest(source=source, command=document.command, request=request), work
        )
    return document


def _case_names(findings: Sequence[FindingDocument]) -> Iterator[tuple[int, str]]:
    """Position and folder name of each finding that becomes a case: not the accumulated ones, which
    are the whole."""
    numbers: Counter[str] = Counter()
    for k, finding in enumerate(findings[:MAX_CASES]):
        if name := FOLDER_NAMES.get(finding.kind):
            numbers[name] += 1
            yield k, name if numbers[name] == 1 else f"{name}-{numbers[name]}"


def _add_case(
    oracle: NodeOracle, nodes: Sequence[int], place: ResultPlace, feeding: Feeding
) -> bool:
    """Write a region as a case; False if it cannot be cut."""
    trials = oracle.trials
    region = regions.build_region(trials.graph, nodes)
    request = CaseRequest.make_for_nodes(trials.graph, nodes, feeding, freeze=trials.model.freeze)
    return evidence.add_case(
        trials.graph, region, request, place, trials.model.reference, trials.values
    )


def _add_candidate(oracle: NodeOracle, finding: FindingDocument, folder: Path) -> None:
    """Add the candidate's outputs to a case, beside the reference's, and what was found."""
    trials = oracle.trials
    region = regions.build_region(trials.graph, finding.indices)
    result = oracle.run_result(region)
    if trials.runtime.own_model:
        with contextlib.suppress(ModelError):  # it has no such piece: then it did not run either
            _add_model(oracle, trials.runtime.own_model, region, folder / CANDIDATE)
    verdict = trials.judge.verdict(region, result)
    why = f"{verdict.worst.name}: {verdict.why}" if verdict.worst else verdict.why
    name = trials.runtime.candidate.name
    outcome = CaseOutcome(verdict.status, verdict.signature, why, name)
    evidence.add_candidate(folder, trials.values.labels, result.tensors, outcome)


def _add_model(oracle: NodeOracle, model: CandidateModel, region: Region, into: Path) -> None:
    """Add the cut of the candidate's own model, its inputs, and which tensors of the two models
    match."""
    trials = oracle.trials
    room = trials.model.new_folder()
    cut, feeds = trials.writer.write_cut(region, trials.values.records, room)
    into.mkdir(exist_ok=True)  # without outputs there is none yet
    for file in room.glob("model.onnx*"):
        shutil.copyfile(file, into / file.name)
    load.write_own_format(into / "model.onnx", into)
    for folder, records in zip(
        evidence.sample_folders(into / "inputs", trials.values.labels), feeds, strict=True
    ):
        evidence.copy_tensors({r.name: r for r in records}, folders.safe_names(cut.inputs), folder)
    (into / BOUNDARY_MATCHES).write_bytes(
        case.as_json(to_json(find_boundary_matches(model, region)))
    )


# ------------------------------------------------------------ small inputs
# A finding and its case -> the small input that fails in the same way, as a case inside it.

MAX_NUMBERS = 10  # of a tensor that are shown
MAX_COLUMNS = 1000  # of a line of numbers: it is not broken
MIN_RUNS = 3  # of the candidate: the given input, another one, and that one again


def add_small_case(
    oracle: NodeOracle, finding: FindingDocument, folder: Path, max_runs: int
) -> FindingDocument:
    """Search the small input of a certified finding, and write it into the folder of its case.

    Args:
        oracle: The oracle of the search.
        finding: The finding.
        folder: The folder of its case.
        max_runs: The most runs of the candidate; few for no search.

    Returns:
        The finding, with the small input if there is one.

    Raises:
        SubcutError: The region has no model of its own, or the case cannot be written.
    """
    if not finding.certified or max_runs < MIN_RUNS:
        return finding
    trials = oracle.trials
    region = build_region(trials.graph, finding.indices)
    verdict = trials.judge.verdict(region, oracle.run_result(region))
    with open_small_input(trials, region, verdict, max_runs) as small:
        if small is None:
            return finding
        model = small.trials.model
        whole = model.whole()
        request = CaseRequest.make_for_nodes(
            model.graph, whole.nodes, Feeding(), freeze=model.freeze
        )
        place = ResultPlace(folder, SMALL)
        if not evidence.add_case(model.graph, whole, request, place, model.reference, model.values):
            return finding
        numbers = _list_numbers(small)
        verdict = small.verdict
        name = trials.runtime.candidate.name
        outcome = CaseOutcome(verdict.status, verdict.signature, verdict.why, name, numbers)
        evidence.add_candidate(place.path, [""], small.result.tensors, outcome)
        run = replace(finding.run, small=SmallInput(numbers, small.runs))
        return replace(finding, run=run)


def _list_numbers(small: SmallInputProgress) -> str:
    """Return the input and both outputs: `x = [1, 2] in, [0, 1.5] expected, [0, 2] got`."""
    records = small.trials.values.records[0]
    inputs = small.trials.full_model.inputs
    told = ", ".join(f"{clean(name)} = {_show(records[name].array())}" for name in inputs)
    worst = small.verdict.worst
    if worst is None or worst.worst is None:
        return f"{told} in: {name_failure(small.verdict.signature, small.verdict.process)}"
    expected, given = (of[worst.name].array() for of in (records, small.result.tensors[0]))
    at = ""
    if expected.size > MAX_NUMBERS:
        place = tuple(worst.worst.index)
        expected, given = (value[place].reshape(1) for value in (expected, given))
        at = f"at {place} "
    return f"{told} in, {at}{_show(expected)} expected, {_show(given)} got"


def _show(array: Array) -> str:
    """Return `[1, 2, 3]`; with the shape if it has several axes with more than one element."""
    text = np.array2string(
        np.reshape(array, -1).astype(np.float64) + 0,
        threshold=MAX_NUMBERS,
        max_line_width=MAX_COLUMNS,
        separator=", ",
        formatter={"float_kind": "{:.6g}".format},
    )
    is_vector = array.size == max(array.shape, default=1)
    return text if is_vector else f"{text} ({shape_text(array.shape)})"
