"""Laws of the search, with simulated candidates whose culprits are known: no finding is wrong,
every culprit is found, each region is 1-minimal.

The scenarios are the same on every run; SUBCUT_SEED=7 gives others.
"""

from __future__ import annotations

import os
from math import sqrt

import pytest

from fixtures.scenarios import FAMILIES, Scenario, run, scenario, tally
from subgraph.search import FindingKind, QueryKind, Settings
from subgraph.search.oracle import RegionOutcome
from tests.helpers.examples import examples

SEED = int(os.environ.get("SUBCUT_SEED", "0")) * 100_000
QUICK, MANY, FLAKY = examples(60), 80, 800  # scenarios per family
UNRESOLVED = 0.02
WRONG_FLAKY = 0.0005
STEADY = [name for name in FAMILIES if name != "flaky"]
# a culprit's readers may be refused without it, and stay unexamined
REFUSING = ("refusals", "silent", "mixed")


def check(family: str, count: int, wrong: float = 0.0) -> None:
    """Few enough wrong, unresolved and unseen ones; with a small `count`, as many as chance
    allows."""
    found = tally(family, range(SEED, SEED + count))
    assert len(found.wrong) <= wrong * count + 3 * sqrt(wrong * count), (family, found.wrong)
    assert found.ended["unresolved"] <= UNRESOLVED * count + 3 * sqrt(UNRESOLVED * count) * (
        count < MANY
    ), found
    assert found.ended["unseen"] <= found.luck + 3 * sqrt(found.luck), found
    assert not found.ended["incomplete"] or family in REFUSING, found


@pytest.mark.turns(3)
@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", STEADY)
def test_no_finding_is_wrong(family: str, count: int) -> None:
    check(family, count)


@pytest.mark.parametrize(
    "count", [2 * QUICK, pytest.param(FLAKY, marks=[pytest.mark.rare, pytest.mark.slow])]
)
def test_flaky_candidates_are_hardly_ever_misread(count: int) -> None:
    """A whole that agrees each time is as rare as its runs make it; of the others hardly one is
    misread."""
    check("flaky", count, wrong=WRONG_FLAKY)


@pytest.mark.parametrize("family", STEADY)
def test_certified_region_was_run(family: str) -> None:
    """The region failed alone, again in a fresh process; without any one of its items it was not
    seen to fail."""
    for seed in range(SEED, SEED + QUICK // 4):
        s = scenario(family, seed)
        done = run(s)
        steps = [
            (s.query, s.answer.signature, s.outcome)
            for s in done.steps
            if s.query.kind is QueryKind.ISOLATED
        ]
        for finding in done.findings.findings:
            if finding.kind is FindingKind.CULPRIT and finding.certified:
                own = [
                    (query.fresh, signature)
                    for query, signature, _ in steps
                    if query.items == finding.items
                ]
                assert {signature for _, signature in own} == {finding.signature}
                assert {fresh for fresh, _ in own} == {True, False}
                for item in finding.items if len(finding.items) > 1 else ():
                    rest = tuple(i for i in finding.items if i != item)
                    seen = {status for query, _, status in steps if query.items == rest}
                    assert not seen & {RegionOutcome.FAIL, RegionOutcome.MINOR}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_answers_give_the_same_path(family: str) -> None:
    s: Scenario = scenario(family, SEED + 1)
    first = run(s)
    second = run(s)
    assert first.candidate.queries == second.candidate.queries
    assert first.findings == second.findings


@pytest.mark.parametrize("family", FAMILIES)
def test_search_that_was_killed_goes_on_where_it_was(family: str) -> None:
    """Its queries are the first ones of the whole search: with stored answers they cost nothing."""
    s = scenario(family, SEED + 2)
    whole = run(s)
    if whole.findings.counts.total() > 4:
        half = run(s, Settings(max_trials=whole.findings.counts.total() // 2))
        assert half.findings.stopped
        assert half.candidate.queries == whole.candidate.queries[: len(half.candidate.queries)]


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_tell_what_was_asked(family: str) -> None:
    """One step per query, numbered; runs and compiled items are those that the candidate saw."""
    done = run(scenario(family, SEED + 3))
    assert [step.query for step in done.steps] == done.candidate.queries
    assert [step.number for step in done.steps] == list(range(1, len(done.steps) + 1))
    runs = {
        (QueryKind.ISOLATED if a.kind is QueryKind.REST else a.kind, a.items, a.repetition)
        for a in done.candidate.queries
        if a.kind is not QueryKind.CLAIMED
    }
    n = done.candidate.scenario.n
    assert done.findings.counts.total() == len(runs)
    assert done.findings.counts.items() == sum(len(items) or n for _, items, _ in runs)
