"""A finding and its case -> the small input that fails in the same way, as a case inside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from subgraph.bisection.oracle import NodeOracle
from subgraph.cases import evidence
from subgraph.cases.case import CaseOutcome, ResultPlace
from subgraph.cases.layout import SMALL
from subgraph.cases.write_case import CaseRequest
from subgraph.graph.region import build_region
from subgraph.results.bisect import FindingDocument, SmallInput
from subgraph.runtime.inputs import Feeding
from subgraph.storage.tensors import shape_text
from subgraph.text import clean
from subgraph.trials.small_input import SmallInputProgress, open_small_input
from subgraph.types import Array
from subgraph.verdict import name_failure

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
        request = CaseRequest.of_nodes(model.graph, whole.nodes, Feeding(), freeze=model.freeze)
        place = ResultPlace(folder, SMALL)
        if not evidence.add_case(model.graph, whole, request, place, model.reference, model.values):
            return finding
        numbers = _list_numbers(small)
        verdict = small.verdict
        name = trials.runtime.candidate.name
        outcome = CaseOutcome(verdict.status, verdict.signature, verdict.why, name, numbers)
        evidence.add_candidate(place.path, [""], small.result.tensors, outcome)
        return replace(finding, small=SmallInput(numbers, small.runs))


def _list_numbers(small: SmallInputProgress) -> str:
    """Return the input and both outputs: `x = [1, 2] in, [0, 1.5] expected, [0, 2] got`."""
    records = small.trials.model.values.records[0]
    inputs = small.trials.model.whole().inputs
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
