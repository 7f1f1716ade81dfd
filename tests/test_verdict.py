"""`verdict`: judgements of several outputs joined into one verdict."""

from __future__ import annotations

from hypothesis import given, strategies as st

from subgraph.verdict import (
    NOTHING,
    NUMBERS,
    Judgement,
    Signature,
    Status,
    Verdict,
    iter_mute_notes,
    join_judgements,
)

FAILURES = st.builds(
    Judgement,
    st.just("y"),
    st.just(Status.FAIL),
    st.sampled_from(Signature),
    st.just("fail"),
    st.text(min_size=1),
    st.fixed_dictionaries({"max_rel": st.floats(0, 10)}),
)
AGREEMENTS = st.builds(
    Judgement, st.just("y"), st.just(Status.AGREE), st.none(), st.just("agrees"), st.just("close")
)
EMPTY = st.builds(
    Judgement,
    st.just("y"),
    st.just(Status.UNRESOLVED),
    st.none(),
    st.just(NOTHING),
    st.just("all NaN"),
)
UNKNOWN = st.builds(
    Judgement, st.just("y"), st.just(Status.UNRESOLVED), st.none(), st.just(""), st.just("no noise")
)
UNRESOLVED = EMPTY | UNKNOWN


@given(st.lists(FAILURES, min_size=1), st.lists(AGREEMENTS | UNRESOLVED), st.booleans())
def test_one_failing_output_fails_the_whole(
    failing: list[Judgement], others: list[Judgement], every: bool
) -> None:
    status, signature, why = join_judgements([*others, *failing], every=every)
    assert status is Status.FAIL
    assert (signature, why) in {(j.signature, j.why) for j in failing}
    telling = [j.signature for j in failing if j.signature not in NUMBERS]
    # NaN, a wrong shape or a missing output tells more than a mismatch
    assert not telling or signature is telling[0]
    mismatches = any(j.signature is Signature.MISMATCH for j in failing)
    # a mismatch tells more than lost precision
    assert not mismatches or signature is not Signature.PRECISION


@given(st.lists(AGREEMENTS, min_size=1), st.lists(EMPTY), st.booleans())
def test_tensor_without_values_does_not_decide(
    agreeing: list[Judgement], others: list[Judgement], every: bool
) -> None:
    assert join_judgements([*others, *agreeing], every=every)[:2] == (Status.AGREE, None)


@given(st.lists(AGREEMENTS, min_size=1), st.lists(UNKNOWN, min_size=1), st.lists(EMPTY))
def test_output_that_was_not_judged_leaves_the_whole_unresolved(
    agreeing: list[Judgement], unknown: list[Judgement], empty: list[Judgement]
) -> None:
    assert join_judgements([*empty, *agreeing, *unknown], every=True) == (
        Status.UNRESOLVED,
        None,
        "y: no noise",
    )
    assert join_judgements([*empty, *agreeing, *unknown], every=False)[0] is Status.AGREE, (
        "of a piece"
    )


@given(st.lists(UNRESOLVED), st.booleans())
def test_where_nothing_was_compared_nothing_is_known(others: list[Judgement], every: bool) -> None:
    status, signature, why = join_judgements(others, every=every)
    assert (status, signature) == (Status.UNRESOLVED, None) and why


def test_the_worst_output_is_the_failing_one_with_the_largest_error() -> None:
    outputs = (
        Judgement("a", Status.AGREE, errors={"max_rel": 9.0}),
        Judgement("b", Status.FAIL, Signature.MISMATCH, errors={"max_rel": 0.1}),
        Judgement("c", Status.FAIL, Signature.MISMATCH, errors={"max_rel": 0.2}),
    )
    worst = Verdict(Status.FAIL, Signature.MISMATCH, outputs=outputs).worst
    assert worst is outputs[2]


def test_outputs_that_tell_nothing_for_one_reason_have_one_note() -> None:
    agreeing = Judgement("y", Status.AGREE, None, "agrees", "close")
    mute = [Judgement(name, Status.UNRESOLVED, None, NOTHING, "all NaN") for name in "abcd"]
    verdict = Verdict(Status.AGREE, None, "close", (agreeing, *mute))
    note = "this input tells nothing about 'a', 'b', 'c' and 1 more: all NaN"
    assert list(iter_mute_notes(verdict)) == [note]
