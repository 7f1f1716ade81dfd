"""What is left, and how long it takes, after each step of a search."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from fixtures.scenarios import Candidate
from fixtures.scenarios.families import scenario
from subgraph.questions.bisection.items import Remaining
from subgraph.search import Answer, FindingKind, Findings, Query, Settings, Step, search
from subgraph.verdict import Status, Verdict
from tests.helpers.facts import has_line


def watched(family: str, seed: int) -> tuple[Findings, list[tuple[Step, Remaining]]]:
    """A simulated search, with the remaining after each step."""
    s = scenario(family, seed)
    steps = search(s.parents, Candidate(s), Settings())
    remaining = Remaining(s.n)
    seen: list[tuple[Step, Remaining]] = []
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return end.value, seen
        remaining.add(step, step.items)
        seen.append((step, copy.copy(remaining)))


@pytest.mark.parametrize("family", ["single", "interaction", "far"])
def test_last_remaining_region_is_the_culprit(family: str) -> None:
    for seed in range(4):
        findings, seen = watched(family, seed)
        culprits = {k for f in findings.findings if f.kind is FindingKind.CULPRIT for k in f.items}
        left = [remaining.left for _, remaining in seen]
        assert left[0] == seen[0][1].size and left[-1] == len(culprits), (family, seed)
        assert seen[0][1].describe_progress(seen[0][0]) == "whole model"
        if len(seen) > 3:
            found = seen[-1][1].describe_progress(seen[-1][0])
            assert found == f"{len(culprits)} of {seen[0][1].size} nodes left"


def test_a_search_for_one_culprit_ends_within_the_first_estimate() -> None:
    searches = [watched("single", seed)[1] for seed in range(4)]
    within = [len(seen) - 1 <= seen[0][1].runs_left for seen in searches]
    assert sum(within) >= 0.7 * len(within)


def test_the_estimate_is_one_number_of_runs_and_one_time() -> None:
    remaining = Remaining(27, runs_left=18, seconds=2.0, runs=4)
    assert has_line(remaining.estimate, "18 more", "9 s")
    assert Remaining(27).estimate == ""


def test_while_the_whole_agrees_its_repeats_are_estimated_and_stored_runs_cost_what_they_cost() -> (
    None
):
    def ask(queries: Sequence[Query]) -> list[Answer]:
        verdict = Verdict(Status.AGREE, stored=True)
        return [Answer(Status.AGREE, seconds=0.2, verdict=verdict) for _ in queries]

    remaining = Remaining(27)
    estimates = []
    for step in search(
        [[k - 1] if k else [] for k in range(27)], SimpleNamespace(ask=ask), Settings()
    ):
        remaining.add(step, step.items)
        estimates.append(remaining.estimate)
    wanted = [
        f"at most {n} of the full model, {0.2 * k:g} s"
        for n, k in (("4 more runs", 4), ("3 more runs", 3))
    ]
    assert estimates[:2] == wanted and estimates[-1] == ""
