"""The search as a whole: what other tools get wrong, budgets, priors, workers, odd graphs and odd
candidates.

Covers `search.strategy`, `search.culprits`, `search.findings`, `search.passes.accumulated`,
`search.passes.alike`, `search.passes.baseline`, `search.passes.confirm`,
`search.passes.everywhere` and `search.passes.intermediate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from fixtures.scenarios import Candidate, Fault, Parents, Run, Scenario, chain, mark, run, scenario
from subgraph.search import (
    Answer,
    FindingKind,
    Findings,
    Outcome,
    Purpose,
    Query,
    QueryKind,
    Settings,
    search,
)
from subgraph.search.driver import SearchStopped
from subgraph.search.oracle import ClaimedAgreement, ErrorShare
from subgraph.search.passes.alike import MAX_COMPARED_ITEMS
from subgraph.verdict import Signature, Status
from tests.helpers.facts import has_line


def faulty(
    parents: Parents, *faults: set[int], share: float = 1.0, profile: str = "vanishes"
) -> Scenario:
    """A scenario with these faults, all with the same share."""
    return Scenario(
        "by hand", 0, parents, tuple(Fault(frozenset(f), share) for f in faults), profile
    )


def found(done: Run) -> list[tuple[int, ...]]:
    return sorted(
        f.items for f in done.findings.findings if f.kind is FindingKind.CULPRIT and f.certified
    )


def ended(
    parents: Parents,
    question: Candidate | Tweaked | Samples,
    settings: Settings | None = None,
    labels: Sequence[str] | None = None,
) -> Findings:
    going = search(parents, question, settings, labels=labels)
    while True:
        try:
            next(going)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@dataclass
class Tweaked:
    """A candidate some of whose answers are changed."""

    scenario: Scenario
    tweak: Callable[[Query, Answer], Answer]

    def ask(self, queries: Sequence[Query]) -> list[Answer]:
        """One answer per query."""
        return [
            self.tweak(a, b)
            for a, b in zip(queries, Candidate(self.scenario).ask(queries), strict=True)
        ]


@dataclass
class Samples:
    """Two inputs: a region fails if it does on one of them."""

    samples: tuple[Scenario, ...]

    def ask(self, queries: Sequence[Query]) -> list[Answer]:
        """The worse of both."""
        both = [Candidate(s).ask(queries) for s in self.samples]
        return [
            max(answers, key=lambda a: a.status is Status.FAIL)
            for answers in zip(*both, strict=True)
        ]


# ------------------------------------------------------------ what other tools get wrong


def test_model_that_does_not_fail_agrees() -> None:
    done = run(faulty(chain(100)))
    assert done.findings.outcome is Outcome.AGREE and not done.findings.findings
    assert {a.kind for a in done.candidate.queries} == {QueryKind.WHOLE}


def test_two_branches_that_join_the_true_minimum_is_three_items() -> None:
    r"""37 items, of which the last ones of both branches and the join are guilty together.

    0 ─┬─ 1 … 17 ──┬─ 35 ─ 36
       └─ 18 … 34 ─┘
    """
    parents = (*chain(18), (0,), *(((i - 1),) for i in range(19, 35)), (17, 34), (35,))
    for profile in ("shows", "vanishes", "refused"):
        assert found(run(faulty(parents, {17, 34, 35}, profile=profile))) == [(17, 34, 35)]


@pytest.mark.parametrize(("count", "item"), [(1, 0), (37, 0), (37, 1), (37, 36)])
@pytest.mark.parametrize("profile", ["shows", "vanishes", "everywhere"])
def test_item_at_either_end_is_the_culprit(count: int, item: int, profile: str) -> None:
    assert found(run(faulty(chain(count), {item}, profile=profile))) == [(item,)]


@pytest.mark.parametrize("profile", ["shows", "vanishes"])
def test_both_of_two_culprits(profile: str) -> None:
    done = run(faulty(chain(64), {5}, {40, 41}, share=0.6, profile=profile))
    assert found(done) == [(5,), (40, 41)] and done.findings.complete


def test_culprits_of_the_first_half_are_not_lost() -> None:
    assert found(run(faulty(chain(32), {1}, {3, 4}, {9}, {30}, share=0.4))) == [
        (1,),
        (3, 4),
        (9,),
        (30,),
    ]


def test_culprits_of_several_samples() -> None:
    samples = (
        faulty(chain(32), {7}, profile="shows"),
        faulty(chain(32), {20, 21}, profile="shows"),
    )
    findings = ended(chain(32), Samples(samples))
    assert sorted(f.items for f in findings.findings) == [(7,), (20, 21)]


def test_it_fails_only_as_a_whole() -> None:
    """The finding is the whole, after far fewer queries than items."""
    done = run(faulty(chain(200), set(range(200))))
    (finding,) = done.findings.findings
    assert finding.items == tuple(range(200)) and finding.certified
    assert "as a whole" in finding.why
    assert done.findings.counts.total() < 120


# ------------------------------------------------------------ odd answers


def test_agreement_within_the_claimed_precision() -> None:
    def claims(ask: Query, answer: Answer) -> Answer:
        return replace(answer, detail=ClaimedAgreement()) if ask.kind is QueryKind.WHOLE else answer

    findings = ended(chain(9), Tweaked(faulty(chain(9)), claims))
    assert findings.outcome is Outcome.CLAIMED

    def everywhere(ask: Query, answer: Answer) -> Answer:
        return Answer(Status.AGREE) if ask.kind is QueryKind.CLAIMED else answer

    slope = tuple(1 / 64 for _ in range(64))
    low = Scenario("low precision", 0, chain(64), profile="everywhere", slope=slope, limit=0.9)
    assert ended(chain(64), Tweaked(low, everywhere)).outcome is Outcome.CLAIMED


def test_failing_item_that_explains_nothing_is_irrelevant() -> None:
    s = replace(faulty(chain(40), {20}, profile="shows"), false=frozenset({19, 21}), alone=3)
    done = run(replace(s, faults=(Fault(frozenset({20, 21})),)))
    (finding,) = done.findings.findings
    # 21 alone is a part of the finding
    assert finding.items == (20, 21) and not done.findings.irrelevant
    # without 20 it fails still: no certificate says it agrees
    assert finding.undecided.minor == (20,) and not finding.certified
    lone = run(replace(s, profile="vanishes", faults=(Fault(frozenset({20, 22})),)))
    assert found(lone) == [(20, 22)]
    assert all(observation.share_of_model == 0.01 for observation in lone.findings.irrelevant)


def test_unexplained_failure_is_never_a_pass() -> None:
    """If it is unknown whether a region explains the whole, what is left without it tells."""

    def unknown(ask: Query, answer: Answer) -> Answer:
        small = (
            ask.kind is QueryKind.ISOLATED and len(ask.items) < 30 and answer.status is Status.FAIL
        )
        return replace(answer, detail=replace(answer.share, is_culprit=None)) if small else answer

    findings = ended(chain(64), Tweaked(faulty(chain(64), {11}), unknown))
    (finding,) = findings.findings
    assert 11 in finding.items and (finding.items == (11,) or not finding.certified)


def test_nothing_compared_is_unresolved() -> None:
    def nothing(ask: Query, answer: Answer) -> Answer:
        return (
            Answer(Status.UNRESOLVED, why="nothing was compared")
            if ask.kind is QueryKind.ISOLATED
            else answer
        )

    findings = ended(chain(30), Tweaked(faulty(chain(30), {11}), nothing))
    assert [f.kind for f in findings.findings] == [FindingKind.UNRESOLVED]


def test_whole_of_which_nothing_can_be_compared_does_not_agree() -> None:
    def nothing(ask: Query, answer: Answer) -> Answer:
        return Answer(Status.UNRESOLVED, why="every output is empty")

    findings = ended(chain(3), Tweaked(faulty(chain(3)), nothing))
    assert findings.outcome is Outcome.UNRESOLVED
    assert has_line(findings.findings[0].why, "empty")


def test_worker_that_went_wrong_is_found_out() -> None:
    """Item 3 fails in used processes only: it is not named."""

    def used(ask: Query, answer: Answer) -> Answer:
        bad = ask.kind is QueryKind.ISOLATED and not ask.fresh and 3 in ask.items
        return (
            Answer(
                Status.FAIL, Signature.MISMATCH, detail=ErrorShare(of_target=1.0, is_culprit=True)
            )
            if bad
            else answer
        )

    findings = ended(chain(50), Tweaked(faulty(chain(50), {33}), used))
    assert [(f.items, f.kind) for f in findings.findings] == [((33,), FindingKind.CULPRIT)]
    assert findings.notes


def test_flaky_culprit_has_its_rate() -> None:
    done = run(replace(faulty(chain(40), {12}), rate=0.6, seed=4))
    (finding,) = done.findings.findings
    assert finding.kind is FindingKind.FLAKY and finding.items == (12,)
    assert 0.2 <= finding.reproduces < 1


def test_candidate_that_wavers_in_one_process_is_repeated_there() -> None:
    s = replace(faulty(chain(40), {12}), rate=0.6, seed=4)
    candidate = Candidate(s)
    ended(s.parents, candidate)
    repeated = [q for q in candidate.queries if q.kind is QueryKind.ISOLATED and q.repetition]
    assert repeated
    assert not any(query.fresh for query in repeated)


def test_steady_failure_of_two_items_takes_one_fresh_process() -> None:
    s = faulty(chain(40), {12, 13})
    candidate = Candidate(s)
    findings = ended(s.parents, candidate)
    assert [f.items for f in findings.findings] == [(12, 13)]
    fresh = [q for q in candidate.queries if q.kind is QueryKind.ISOLATED and q.fresh]
    assert [q.items for q in fresh] == [(12, 13)]


@pytest.mark.parametrize(
    "seed", [100_175, 100_218, 101_110], ids=["four fail", "a pass by chance", "everywhere"]
)
def test_region_of_a_flaky_candidate_is_not_too_large(seed: int) -> None:
    """Its neighbor is guilty, and passed by chance: it is asked often enough to show that."""
    s = scenario("flaky", seed)
    assert mark(s, run(s).findings) == "right"


def test_flaky_whole_that_never_failed_is_unseen() -> None:
    s = replace(faulty(chain(4), {2}), rate=0.01)
    assert mark(s, run(s).findings) == "unseen"
    assert mark(replace(s, rate=1.0), run(s).findings) == "wrong"


def test_error_that_grows_item_by_item_has_no_culprit_though_its_pieces_do_not_sum() -> None:
    s = Scenario("by hand", 0, chain(40), slope=(1 / 40,) * 40, limit=0.55, bend=2.0)
    (finding,) = run(s).findings.findings
    assert finding.kind is FindingKind.ACCUMULATED and 20 <= len(finding.items) < 40


def test_profile_that_heals_is_said() -> None:
    assert run(faulty(chain(40), {12})).findings.probe_sensitive
    assert not run(faulty(chain(40), {12}, profile="shows")).findings.probe_sensitive


def test_accumulation_names_the_largest_contributors_and_the_growth() -> None:
    slope = [1.0] * 100
    slope[30] = 12.0
    s = Scenario(
        "sum",
        0,
        chain(100),
        profile="everywhere",
        slope=tuple(x / sum(slope) for x in slope),
        limit=0.8,
    )
    (finding,) = run(s).findings.findings
    assert finding.kind is FindingKind.ACCUMULATED
    assert (
        30 in finding.accumulation.contributors[0][0]
        and len(finding.accumulation.contributors[0][0]) < 4
    )
    sizes, errors = zip(*finding.accumulation.growth, strict=True)
    assert sizes[-1] == 100 and list(errors) == sorted(errors)


def test_neighbor_that_is_refused_alone_is_asked_in_company() -> None:
    s = replace(faulty(chain(30), {14, 15}), lone=frozenset({14}))
    done = run(s)
    assert found(done) == [(14, 15)]


def test_pieces_by_share() -> None:
    s = Scenario(
        "two", 0, chain(50), (Fault(frozenset({4}), 0.4), Fault(frozenset({30}), 0.9)), "vanishes"
    )
    findings = run(s).findings.findings
    assert [f.items for f in findings] == [(30,), (4,)]
    assert [f.share_of_model for f in findings] == [0.9, 0.4]


# ------------------------------------------------------------ settings


def test_budget_ends_it_with_the_smallest_region_in_doubt() -> None:
    done = run(faulty(chain(500), {123}), Settings(max_trials=8))
    (finding,) = done.findings.findings
    assert (
        finding.kind is FindingKind.UNRESOLVED and 123 in finding.items and len(finding.items) < 200
    )
    assert done.findings.counts.total() == 8 and has_line(done.findings.stopped, "trials")
    assert done.findings.budget_spent


def test_time_ends_it() -> None:
    ticks = iter(range(1000))
    done = run(faulty(chain(500), {123}), Settings(max_time=6.0, clock=lambda: float(next(ticks))))
    assert done.findings.stopped and done.findings.findings[0].kind is FindingKind.UNRESOLVED


@pytest.mark.parametrize("runs", [0, 1, 5])
def test_oracle_that_gives_up_ends_it(runs: int) -> None:
    """A run was ended in its middle; what was answered before counts."""
    candidate = Candidate(faulty(chain(500), {123}))
    answered: list[Query] = []

    class Oracle:
        def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
            if len(answered) >= runs:
                raise SearchStopped("the time is used up")
            answered.extend(queries)
            return candidate.ask(queries)

    steps = search(chain(500), Oracle())
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
    done = end.value.value
    assert has_line(done.stopped, "time") and done.findings[0].kind is FindingKind.UNRESOLVED
    assert done.outcome is (Outcome.DISAGREE if runs else Outcome.UNRESOLVED)


def test_budget_of_0_is_unresolved() -> None:
    done = run(faulty(chain(5), {1}), Settings(max_trials=0))
    assert done.findings.outcome is Outcome.UNRESOLVED and not done.candidate.queries


def test_within_searches_only_its_items() -> None:
    s = faulty(chain(60), {5}, {40}, share=0.5)
    done = run(s, Settings(within=range(30, 60)))
    assert found(done) == [(40,)]
    assert all(
        set(a.items) <= set(range(30, 60))
        for a in done.candidate.queries
        if a.kind is QueryKind.ISOLATED
    )
    elsewhere = run(s, Settings(within=range(41, 60))).findings
    assert elsewhere.outcome is Outcome.ELSEWHERE and not elsewhere.findings and elsewhere.signature


def masked(scenario: Scenario) -> Tweaked:
    """A candidate whose outputs agree, whatever its items do."""
    return Tweaked(
        scenario,
        lambda query, answer: Answer(Status.AGREE) if query.kind is QueryKind.WHOLE else answer,
    )


def test_within_is_asked_though_the_whole_agrees() -> None:
    candidate = masked(faulty(chain(60), {5}, {40}))
    plain = ended(chain(60), candidate)
    assert plain.outcome is Outcome.AGREE and not plain.findings
    findings = ended(chain(60), candidate, Settings(within=range(30, 60)))
    assert findings.outcome is Outcome.DISAGREE and findings.signature is None and findings.complete
    assert [(f.items, f.kind, f.certified) for f in findings.findings] == [
        ((40,), FindingKind.CULPRIT, True)
    ]
    right = ended(chain(60), candidate, Settings(within=range(10, 30)))
    assert (
        right.outcome is Outcome.AGREE
        and not right.findings
        and right.counts.runs[Purpose.TAIL] == 1
    )


def test_region_that_cannot_be_asked_does_not_agree() -> None:
    s = replace(faulty(chain(9)), lone=frozenset({3, 4}))
    findings = ended(chain(9), masked(s), Settings(within=[3, 4]))
    assert findings.outcome is Outcome.UNRESOLVED and findings.findings[0].items == (3, 4)


def test_inside_finds_what_fails_alone_though_the_outputs_agree() -> None:
    candidate = masked(faulty(chain(30), {7}, {9}, {20, 21}, profile="shows"))
    findings = ended(chain(30), candidate, Settings(inside=True))
    assert findings.outcome is Outcome.DISAGREE and findings.signature is None
    # what is behind them is wrong in place as well
    assert sorted(f.items for f in findings.findings) == [(7,), (9,)]
    together = ended(
        chain(30), masked(faulty(chain(30), {20, 21}, profile="shows")), Settings(inside=True)
    )
    assert [f.items for f in together.findings] == [(20, 21)]


def test_inside_says_once_that_each_item_is_off() -> None:
    """Each of 64 nodes was listed, and run in four fresh processes."""
    every = faulty(chain(64), *({k} for k in range(64)), share=0.5, profile="shows")
    findings = ended(chain(64), masked(every), Settings(inside=True))
    (finding,) = findings.findings
    assert (
        findings.outcome is Outcome.DISAGREE
        and finding.everywhere
        and finding.certified
        and not findings.complete
    )
    assert len(finding.alike) + 1 == MAX_COMPARED_ITEMS and findings.counts.total() < 20


def test_inside_that_is_right_agrees_and_one_that_is_not_seen_is_unresolved() -> None:
    right = ended(chain(30), masked(faulty(chain(30))), Settings(inside=True))
    assert right.outcome is Outcome.AGREE and right.counts.runs[Purpose.PROFILE] == 1
    refused = ended(chain(30), masked(faulty(chain(30), profile="refused")), Settings(inside=True))
    assert refused.outcome is Outcome.UNRESOLVED and has_line(refused.notes[0][0], "too many")


@pytest.mark.parametrize(
    ("seconds", "repeat", "runs"),
    [
        (0.1, None, 7),
        (0.3, None, 4),
        (0.4, None, 3),
        (0.5, None, 2),
        (600.0, None, 2),
        (600.0, 5, 5),
        (0.1, 1, 1),
    ],
)
def test_whole_that_agrees_is_repeated_while_that_costs_little(
    seconds: float, repeat: int | None, runs: int
) -> None:
    findings = ended(
        chain(30),
        Tweaked(faulty(chain(30)), lambda q, a: replace(a, seconds=seconds)),
        Settings(repeat=repeat),
    )
    assert findings.outcome is Outcome.AGREE and findings.counts.total() == runs


def test_prior_that_is_right_saves_runs_one_that_is_wrong_misleads_nobody() -> None:
    s = faulty(chain(256), {77})
    plain = run(s).findings.counts.total()
    right = run(s, weights=lambda: [1000.0 if i == 77 else 1.0 for i in range(256)])
    wrong = run(s, weights=lambda: [0.0 if i == 77 else 1.0 for i in range(256)])
    assert found(right) == found(wrong) == [(77,)]
    assert right.findings.counts.total() < plain


def test_guilty_kind_is_suspected_again() -> None:
    guilty = [i for i in range(256) if i % 37 == 5]
    s = faulty(chain(256), *({i} for i in guilty), share=0.3)
    totals = []
    for labels in (None, ["Tanh" if i in guilty else "Add" for i in range(256)]):
        candidate = Candidate(s)
        going = search(s.parents, candidate, labels=labels)
        steps = list(going)
        totals.append(len(steps))
    assert totals[1] < totals[0]


def test_steady_candidate_is_confirmed_once() -> None:
    s = faulty(chain(40), {12, 13}, profile="shows")
    counts = {
        steady: run(s, Settings(steady=steady)).findings.counts.runs for steady in (False, True)
    }
    # 2 with a stranger, 2 tails
    assert (counts[False][Purpose.CONFIRM], counts[True][Purpose.CONFIRM]) == (11, 1)
    assert run(faulty(chain(40)), Settings(steady=True)).findings.counts.total() == 2


def test_steps_say_how_many_runs_are_to_come() -> None:
    done = run(faulty(chain(256), {100}))
    halving = [step for step in done.steps if step.purpose is Purpose.HALVE]
    assert [step.estimated_runs for step in halving] == [8, 7, 6, 5, 4, 3, 2, 1]


# ------------------------------------------------------------ graphs


def test_empty_model_agrees() -> None:
    assert run(faulty(())).findings.outcome is Outcome.AGREE


@pytest.mark.parametrize(
    "parents", [((1,), ()), ((1,), (0,)), ((0,),)], ids=["order", "cycle", "itself"]
)
def test_items_come_in_topological_order(parents: Parents) -> None:
    with pytest.raises(ValueError, match="topological order"):
        next(search(parents, Candidate(faulty(chain(2)))))


def test_marks_are_not_blind() -> None:
    """`mark`, on which the laws rest, tells wrong findings from right ones."""
    done = run(faulty(chain(9), {3}))
    assert mark(faulty(chain(9), {3}), done.findings) == "right"
    assert mark(faulty(chain(9), {4}), done.findings) == "wrong"
    assert mark(faulty(chain(9), {3}, {5}), done.findings) == "wrong"


# ------------------------------------------------------------ peeling


@pytest.mark.parametrize("profile", ["shows", "vanishes", "refused"])
@pytest.mark.parametrize("seed", [0, 1], ids=["local errors", "without"])
def test_errors_that_cancel_are_both_found(profile: str, seed: int) -> None:
    faults = (Fault(frozenset({11}), 1.0), Fault(frozenset({30}), -0.1))
    done = run(Scenario("by hand", seed, chain(48), faults, profile))
    assert found(done) == [(11,), (30,)] and done.findings.complete


def test_rounding_that_is_left_without_the_culprit_is_no_second_one() -> None:
    s = faulty(chain(48), {11}, {30}, share=0.5)

    def round_rest(query: Query, answer: Answer) -> Answer:
        fails = query.kind is QueryKind.REST and answer.status is Status.FAIL
        return replace(answer, signature=Signature.PRECISION, why="limit 8 %") if fails else answer

    findings = ended(s.parents, Tweaked(s, round_rest))
    assert [f.items for f in findings.findings] == [(11,)]
    assert findings.complete
    assert has_line(" ".join(text for text, _ in findings.notes), "only rounding", "limit 8 %")


def test_refusal_does_not_hide_wrong_numbers() -> None:
    refused = Fault(frozenset({20}), signature=Signature.REFUSED)
    done = run(Scenario("by hand", 0, chain(48), (refused, Fault(frozenset({7}))), "shows"))
    kinds = {f.items: f.signature for f in done.findings.findings}
    assert kinds == {(20,): Signature.REFUSED, (7,): Signature.MISMATCH} and done.findings.complete


def test_kind_that_is_refused_is_asked_twice_and_listed() -> None:
    kind = range(5, 60, 5)
    s = Scenario(
        "by hand",
        0,
        chain(64),
        tuple(Fault(frozenset({i}), signature=Signature.REFUSED) for i in kind),
    )
    candidate = Candidate(s)
    labels = ["LSTM" if i in kind else "Relu" for i in range(64)]
    findings = ended(s.parents, candidate, labels=labels)
    (finding,) = findings.findings
    assert sorted(finding.regions) == [(k,) for k in kind] and findings.complete
    alone = {q.items for q in candidate.queries if len(q.items) == 1 and q.items[0] in kind}
    assert len(alone) == 2


def labeled(
    s: Scenario, kinds: Sequence[str], settings: Settings | None = None
) -> tuple[Findings, Candidate]:
    """The findings of a search among items of these kinds, one after the other."""
    candidate = Candidate(s)
    labels = [kinds[k % len(kinds)] for k in range(s.n)]
    return ended(s.parents, candidate, settings, labels), candidate


KINDS = ("Conv", "Relu", "Add", "Pad")


def test_pairs_that_are_refused_are_each_asked() -> None:
    pairs = [(8, 9), (60, 61)]
    faults = tuple(Fault(frozenset(pair), signature=Signature.REFUSED) for pair in pairs)
    findings, _ = labeled(Scenario("by hand", 0, chain(64), faults), KINDS)
    regions = [region for finding in findings.findings for region in finding.regions]
    assert sorted(regions) == pairs and findings.complete


# where it vanishes, the error counts as accumulated
@pytest.mark.parametrize("profile", ["shows", "everywhere"])
def test_where_each_item_is_off_whatever_it_computes_one_finding_stands_for_all(
    profile: str,
) -> None:
    """A candidate that multiplies all that it gives by 1.0015 had as many culprits as nodes."""
    every = faulty(chain(64), *({k} for k in range(64)), share=0.5, profile=profile)
    findings, candidate = labeled(every, KINDS)
    (finding,) = findings.findings
    kinds = {k % len(KINDS) for k in (*finding.items, *finding.alike)}
    assert (
        finding.everywhere
        and finding.certified
        and len(kinds) == len(KINDS)
        and not findings.complete
    )
    assert len(candidate.queries) < 40


def of_kind(length: int, signature: Signature = Signature.MISMATCH) -> list[Fault]:
    """Six faults of so many items, each of which begins with a Conv."""
    places = range(0, 24, len(KINDS))
    return [Fault(frozenset(range(k, k + length)), 1 / 6, signature=signature) for k in places]


@pytest.mark.parametrize("profile", ["shows", "vanishes"])
@pytest.mark.parametrize("length", [1, 2])
def test_culprits_of_one_kind_are_one_finding(profile: str, length: int) -> None:
    s = Scenario("by hand", 0, chain(32), tuple(of_kind(length)), profile)
    findings, _ = labeled(s, KINDS)
    (finding,) = findings.findings
    regions = [tuple(range(k, k + length)) for k in range(0, 24, len(KINDS))]
    assert sorted(finding.regions) == regions and findings.complete
    assert finding.certified and not finding.everywhere


@pytest.mark.parametrize(("length", "pools"), [(1, 1), (2, 3)])
def test_others_of_a_kind_run_in_one_pool(length: int, pools: int) -> None:
    """Of a fusion, the same without its first and without its last item as well."""
    s = Scenario("by hand", 0, chain(32), tuple(of_kind(length)), "shows")
    findings, candidate = labeled(s, KINDS, Settings(pools=True))
    assert findings.counts.runs[Purpose.ALIKE] == pools
    pooled = [q for q in candidate.queries if q.pool]
    assert len({q.pool for q in pooled}) == pools
    assert findings.counts.compiled[Purpose.ALIKE] == sum(len(q.items) for q in pooled)


def test_others_of_a_kind_that_crashes_run_one_by_one() -> None:
    s = Scenario("by hand", 0, chain(32), tuple(of_kind(2, Signature.CRASH)))
    findings, candidate = labeled(s, KINDS, Settings(pools=True))
    (finding,) = findings.findings
    assert len(finding.regions) == 6 and not any(q.pool for q in candidate.queries)


def test_a_kind_that_is_mostly_right_is_not_run_whole_one_by_one() -> None:
    """64 items have the kind of the two culprits."""
    s = faulty(chain(64 * len(KINDS)), {8}, {8 + 20 * len(KINDS)}, share=0.5, profile="vanishes")
    findings, _ = labeled(s, KINDS, Settings(pools=False))
    (finding,) = findings.findings
    assert len(finding.regions) == 2 and findings.complete
    assert findings.counts.runs[Purpose.ALIKE] < 10


def test_other_failures_of_a_kind_are_another_finding() -> None:
    faults = [*of_kind(1)[:3], *of_kind(1, Signature.CRASH)[3:]]
    findings, _ = labeled(Scenario("by hand", 0, chain(32), tuple(faults)), KINDS)
    kinds = {f.signature: len(f.regions) for f in findings.findings}
    assert kinds == {Signature.MISMATCH: 3, Signature.CRASH: 3} and findings.complete


def test_fusion_of_a_kind_that_holds_a_smaller_culprit_is_not_alike() -> None:
    """Add, Pad at 30 is not wrong: Pad is."""
    faults = (*({k, k + 1} for k in (2, 14, 22)), {31})
    findings, _ = labeled(faulty(chain(32), *faults, share=0.25, profile="shows"), KINDS)
    regions = sorted(r for f in findings.findings for r in f.regions)
    assert regions == [(2, 3), (14, 15), (22, 23), (31,)] and findings.complete


@pytest.mark.parametrize("seed", [896, 1591, 101_559, 200_186, 200_717, 200_986])
def test_item_that_is_only_refused_alone_is_not_a_culprit(seed: int) -> None:
    """Found before the culprit, with no run yet that held it and agreed: they were certified, as
    both were refused."""
    s = scenario("silent", seed)
    done = run(s)
    assert {
        frozenset(f.items) for f in done.findings.findings
    } == s.truth and done.findings.complete


def test_item_that_no_run_held_is_not_reported_as_agreeing() -> None:
    """All but the first culprit is refused. What runs lacks its readers, and with them a part of
    another culprit."""
    findings = run(scenario("mixed", 101_950)).findings
    assert [f.items for f in findings.findings] == [(0,), (10, 11)] and not findings.complete
    assert any(has_line(text, "not known") and items == (1, 2) for text, items in findings.notes)
