"""Laws of searching, over simulated candidates whose truth is known: nothing wrong is said, all culprits are found,
each region is the smallest.

The scenarios are the same on every run; SUBCUT_SEED=7 gives others.
"""

from __future__ import annotations

import os
from collections import Counter
from math import sqrt

import pytest

from fixtures.scenarios import FAMILIES, Scenario, mark, run, scenario
from subgraph.search import FindingKind, QueryKind, Settings
from subgraph.verdict import Status

SEED = int(os.environ.get("SUBCUT_SEED", "0")) * 100_000
QUICK, MANY, FLAKY = 60, 250, 1500  # scenarios per family
UNRESOLVED = 0.02
WRONG_FLAKY = 0.01
STEADY = [name for name in FAMILIES if name != "flaky"]
REFUSING = ("refusals", "silent", "mixed")  # what reads a culprit may be refused without it, and stays unasked


def marks(family: str, count: int, settings: Settings | None = None) -> Counter[str]:
    """How many ended how; those that were wrong by their seed."""
    found: Counter[str] = Counter()
    for seed in range(SEED, SEED + count):
        s = scenario(family, seed)
        how = mark(s, run(s, settings).findings)
        found[f"wrong: {family} {seed}" if how == "wrong" else how] += 1
        assert how != "incomplete" or family in REFUSING, seed
    return found


def check(found: Counter[str], count: int, wrong: float = 0.0) -> None:
    """Few enough wrong, few enough unresolved; `count` small: what chance allows."""
    bad = [name for name in found if name.startswith("wrong")]
    assert len(bad) <= wrong * count + 3 * sqrt(wrong * count), bad
    assert found["unresolved"] <= UNRESOLVED * count + 3 * sqrt(UNRESOLVED * count) * (count < MANY), found


@pytest.mark.parametrize("family", STEADY)
def test_a_few_scenarios_of_each_family(family: str) -> None:
    check(marks(family, QUICK), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("family", STEADY)
def test_no_wrong_answer(family: str) -> None:
    check(marks(family, MANY), MANY)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("family", STEADY)
def test_no_wrong_answer_where_several_are_asked_at_once(family: str, workers: int) -> None:
    check(marks(family, QUICK, Settings(workers=workers)), QUICK)


def test_a_few_flaky_candidates() -> None:
    check(marks("flaky", 2 * QUICK), 2 * QUICK, WRONG_FLAKY)


@pytest.mark.slow
def test_flaky_candidates_are_hardly_ever_misread() -> None:
    found = marks("flaky", FLAKY)
    bad = [name for name in found if name.startswith("wrong")]
    assert len(bad) <= WRONG_FLAKY * FLAKY, bad
    assert found["unresolved"] <= UNRESOLVED * FLAKY, found


@pytest.mark.parametrize("family", STEADY)
def test_what_is_certified_was_asked(family: str) -> None:
    """The region failed alone, again in a fresh process; without any one of its items it was not seen to fail."""
    for seed in range(SEED, SEED + QUICK // 4):
        s = scenario(family, seed)
        done = run(s)
        asked = [(t.query, t.answer.signature, t.outcome) for t in done.steps if t.query.kind is QueryKind.ISOLATED]
        for finding in done.findings.findings:
            if finding.kind is FindingKind.CULPRIT and finding.certified:
                own = [(a.fresh, signature) for a, signature, _ in asked if a.items == finding.items]
                assert {signature for _, signature in own} == {finding.signature}
                assert {fresh for fresh, _ in own} == {True, False}
                for item in finding.items if len(finding.items) > 1 else ():
                    rest = tuple(i for i in finding.items if i != item)
                    assert all(how is not Status.FAIL for a, _, how in asked if a.items == rest)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_answers_give_the_same_path(family: str) -> None:
    s: Scenario = scenario(family, SEED + 1)
    first, second = run(s), run(s)
    assert first.candidate.asked == second.candidate.asked
    assert first.findings == second.findings


@pytest.mark.parametrize("family", FAMILIES)
def test_a_search_that_was_killed_goes_on_where_it_was(family: str) -> None:
    """Its asks are the first of those of a search that was not: over the answers kept they cost nothing."""
    s = scenario(family, SEED + 2)
    whole = run(s)
    if whole.findings.counts.total() > 4:
        half = run(s, Settings(max_trials=whole.findings.counts.total() // 2))
        assert half.findings.stopped
        assert half.candidate.asked == whole.candidate.asked[: len(half.candidate.asked)]


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_tell_what_was_asked(family: str) -> None:
    """One step per ask, numbered; runs and compiled items are those that the candidate saw."""
    done = run(scenario(family, SEED + 3))
    assert [step.query for step in done.steps] == done.candidate.asked
    assert [step.number for step in done.steps] == list(range(1, len(done.steps) + 1))
    runs = {
        (a.kind, a.pieces or (a.items,), a.repetition) for a in done.candidate.asked if a.kind is not QueryKind.CLAIMED
    }
    n = done.candidate.scenario.n
    assert done.findings.counts.total() == len(runs)
    assert done.findings.counts.items() == sum(sum(map(len, pieces)) or n for _, pieces, _ in runs)
