"""The bisection over releases: on histories of all kinds, against the whole truth. Covers
`questions.blame.versions`."""

from __future__ import annotations

from hypothesis import given, strategies as st

from subgraph.questions.blame.versions import MAX_RELEASES_TRIED_EACH, search
from subgraph.results.blame import ReleaseOutcomes, ReleaseState, TriedRelease
from tests.helpers.facts import has_line

LETTERS = {"r": ReleaseState.RIGHT, "w": ReleaseState.WRONG, "u": ReleaseState.UNKNOWN}


def run(truth: str, used: int) -> tuple[ReleaseOutcomes, list[str], list[str]]:
    """The search on a history, a letter per release; what it asked, in order; its notes."""
    releases = [f"1.{k}" for k in range(len(truth))]
    asked = []

    def ask(version: str) -> TriedRelease:
        asked.append(version)
        return TriedRelease(version, LETTERS[truth[releases.index(version)]])

    found, notes = search(releases, used, ask)
    return found, asked, notes


def number(version: str | None) -> int | None:
    return None if version is None else int(version.partition(".")[2])


@given(st.text("rwu", min_size=1, max_size=60), st.data())
def test_statement_of_the_answer_is_true(truth: str, data: st.DataObject) -> None:
    known = [k for k, letter in enumerate(truth) if letter != "u"]
    if not known:
        return
    used = data.draw(st.sampled_from(known))
    history, asked, _ = run(truth, used)
    assert len(set(asked)) == len(asked)
    for tried in history.tried:
        assert tried.state is LETTERS[truth[number(tried.version) or 0]]
    wrong = number(history.first_wrong)
    right = number(history.first_right)
    for found, letter, other in ((wrong, "w", "r"), (right, "r", "w")):
        if found is None:
            continue
        assert truth[found] == letter
        states = [t.state for t in history.tried]
        place = [t.version for t in history.tried].index(f"1.{found}")
        before = [s for s in states[:place] if s is not ReleaseState.UNKNOWN]
        assert not before or before[-1] is LETTERS[other]  # of those that were tried, a change
    if truth[used] == "w":
        assert wrong is not None
        assert wrong <= used
        assert right is None or right > used


@given(st.integers(0, 12), st.integers(0, 14), st.integers(1, 14), st.integers(0, 12), st.data())
def test_history_with_one_fault_is_told_exactly(
    refusing: int, before: int, wrong: int, after: int, data: st.DataObject
) -> None:
    """Releases that refuse, right ones, wrong ones, right ones again: the first wrong and the first
    right again."""
    truth = "u" * refusing + "r" * before + "w" * wrong + "r" * after
    used = data.draw(st.integers(refusing + before, refusing + before + wrong - 1))
    history, *_ = run(truth, used)
    assert number(history.first_wrong) == refusing + before
    assert number(history.first_right) == (refusing + before + wrong if after else None)


@given(st.integers(8, 36), st.integers(1, 35))
def test_seven_tries_are_enough_where_one_end_is_right(releases: int, wrong: int) -> None:
    wrong = min(wrong, releases)
    for used in (0, wrong - 1):
        history, asked, _ = run("w" * wrong + "r" * (releases - wrong), used)
        # the one that is used costs nothing; one more where a gap is looked into
        assert len(asked) - 1 <= 7 + 1
        assert number(history.first_right) == (wrong if wrong < releases else None)


def test_of_a_few_each_is_tried() -> None:
    truth = "wrwrwrw"
    history, asked, notes = run(truth, 2)
    assert len(asked) == MAX_RELEASES_TRIED_EACH == len(truth)
    assert (history.first_wrong, history.first_right) == ("1.2", "1.3")
    assert has_line(notes[0], "6 times")


def test_releases_between_two_wrong_ends_are_run() -> None:
    history, asked, _ = run("w" * 10 + "r" * 12 + "w" * 14, 35)
    assert history.right
    assert number(history.first_wrong) == 22
    assert len(asked) <= 12


def test_release_that_is_right_has_the_nearest_wrong_ones() -> None:
    assert outcome("wwwwrrrr" + "wwww", 5) == (8, 4)
    assert outcome("rrrrrrrrr", 4) == (None, None)


def outcome(truth: str, used: int) -> tuple[int | None, int | None]:
    history, *_ = run(truth, used)
    return number(history.first_wrong), number(history.first_right)


def test_one_that_cannot_be_tried_lies_between() -> None:
    history, *_ = run("rrrr" + "uuu" + "wwwww" + "rrrr", 9)
    assert (number(history.first_wrong), number(history.first_right)) == (7, 12)


def test_all_states_are_listed() -> None:
    history, *_ = run("uwr", 1)
    assert (history.right, history.wrong, [*history.unknown]) == (["1.2"], ["1.1"], ["1.0"])
