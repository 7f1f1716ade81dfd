"""A search with many workers: the same steps and findings as with one, in less time."""

from __future__ import annotations

import itertools
from statistics import mean

import pytest

from fixtures.scenarios import FAMILIES, Candidate, Fault, Scenario, chain, scenario
from fixtures.scenarios.workers import Workers, lognormal, run_with
from subgraph.search import Answer, Purpose, Query, QueryKind, Settings, search
from subgraph.search.lookahead import plan
from subgraph.search.oracle import Ahead, ItemStatuses
from subgraph.verdict import Signature, Status

N = 256
ALONE = (
    14  # runs with one worker: the whole twice, the profile, 8 halvings, the item twice, the tail
)


def at(place: int) -> Scenario:
    """A chain with one guilty item, which no profile shows."""
    return Scenario("at", place, chain(N), (Fault(frozenset({place})),), "vanishes")


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "family",
    [f if k % 3 == 0 else pytest.param(f, marks=pytest.mark.rare) for k, f in enumerate(FAMILIES)],
)
def test_steps_and_findings_are_those_of_one_worker(family: str) -> None:
    """Whatever the times of the runs are, which differ."""
    s = next(s for seed in range(200) if (s := scenario(family, seed)).n <= 60)
    alone, found, _ = run_with(Workers(s, 1))
    workers = Workers(s, 3, lognormal(1.0, 3))
    steps, findings, _ = run_with(workers)
    assert (steps, findings) == (alone, found)
    assert workers.most <= 3


@pytest.mark.parametrize("pools", [True, False])
def test_culprits_of_a_kind_are_those_of_one_worker(pools: bool) -> None:
    faults = tuple(Fault(frozenset({k}), 1 / 6) for k in range(0, 24, 4))
    s = Scenario("of a kind", 1, chain(48), faults, "vanishes")
    labels = ["Conv", "Relu", "Add", "Pad"] * 12
    alone, found, _ = run_with(Workers(s, 1), Settings(pools=pools), labels)
    workers = Workers(s, 3, lognormal(1.0, 3))
    steps, findings, _ = run_with(workers, Settings(pools=pools), labels)
    assert (steps, findings) == (alone, found)
    assert [len(finding.regions) for finding in findings.findings] == [6]


@pytest.mark.parametrize(("sigma", "most"), [(0.0, 4.2), (0.5, 4.2)])
def test_four_workers_halve_in_half_the_time(sigma: float, most: float) -> None:
    """In mean run times; 8 with one worker. At most three times as many runs begin, and obsolete
    ones are ended."""
    halving = []
    total = []
    started = []
    for place in range(5, N, 100):
        workers = Workers(at(place), 4, lognormal(sigma, place))
        _, _, times = run_with(workers)
        halving.append(times[Purpose.HALVE])
        total.append(workers.now)
        started.append(workers.started)
        assert workers.ended > 0 and workers.most == 4
    assert mean(halving) <= most
    assert mean(total) <= 0.6 * ALONE
    assert mean(started) <= 3 * ALONE


def queries(*numbers: int) -> list[Query]:
    return [Query(QueryKind.ISOLATED, (k,)) for k in numbers]


def test_needed_query_begins_even_if_all_workers_are_busy() -> None:
    one, two, three = queries(1, 2, 3)
    assert plan(iter([one, two, three]), [two, three], [], 2) == ([one], {three})


def test_obsolete_query_is_ended() -> None:
    one, two, three, four = queries(1, 2, 3, 4)
    assert plan(iter([one, two, three]), [one, four], [], 2) == ([two], {four})
    assert plan(iter([one, two, three]), [two], [one], 2) == ([three], set())
    assert plan(itertools.chain([one], queries(*range(100))), [one, four], [], 2) == ([], set())


def test_known_answers_are_not_guessed() -> None:
    """Before the first answer: the search waits for the whole, and goes on with what is known."""
    named: list[list[Query]] = []

    def expect(ahead: Ahead) -> None:
        whole = Query(QueryKind.WHOLE)
        profile = Query(QueryKind.PROFILE, tuple(range(N)))
        fails, shows = (
            Answer(Status.FAIL, Signature.MISMATCH, detail=ItemStatuses(items))
            for items in ({}, {7: Status.FAIL})
        )
        named.append(list(itertools.islice(ahead({}, {whole: fails, profile: shows}), 4)))

    going = search(chain(N), Candidate(at(7)), Settings(expect=expect))
    next(going)
    assert [query.kind for query in named[0][:3]] == [
        QueryKind.WHOLE,
        QueryKind.WHOLE,
        QueryKind.PROFILE,
    ]
    assert named[0][3] == Query(QueryKind.ISOLATED, (7,))
