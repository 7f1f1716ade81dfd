"""A tensor's values as the page shows them: each shape and type, NaN, large ones in part; from runs
and from cases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from subgraph.cases.case import CaseOutcome, Manifest, ModelSource, StoredTensor, TensorEntry
from subgraph.errors import InputError, UsageError
from subgraph.storage.convert import StoredFile
from subgraph.storage.value_pairs import ValuePair, save_values
from subgraph.types import Array
from subgraph.view.values import describe_tensor, list_run_values, list_shown_case_values
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises


def shown(
    pairs: list[ValuePair], folder: Path, number: int = 0, plane: int | None = None
) -> dict[str, Any]:
    save_values(pairs, folder)
    return describe_tensor(list_run_values(folder, [pair.tensor for pair in pairs]), number, plane)


def test_recording_is_called_the_record_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ran that piece alone: the record is that of the whole model."""
    for side in ("outputs", "candidate"):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "t0.npy", np.full((2, 2), side == "outputs", np.float32))
    file = StoredFile("outputs/t0.npy", "npy", "float32", (2, 2))
    stored = StoredTensor("tensor", "float32", ((2, 2),), (file,))
    manifest = Manifest(
        schema="subcut.case/1",
        source=ModelSource(),
        command="",
        request=None,
        files=(),
        outputs=[TensorEntry("t0", None, "float32", "tensor", None, (stored,))],
    )
    found = CaseOutcome("fail", candidate="wrong.py")
    for outcome, source in ((None, "the device's record"), (found, "wrong.py")):
        read = replace(manifest, found=outcome)
        monkeypatch.setattr("subgraph.cases.case.read_manifest", lambda folder, read=read: read)
        shown = describe_tensor(list_shown_case_values(tmp_path, ["t0"], "x"), 0, None)
        (note,) = shown["notes"]
        assert shown["source"] == source and has_line(note, "stored in x", source)


def test_tensor_is_drawn_from_its_files(tmp_path: Path) -> None:
    reference = np.zeros((1, 2, 4, 4), np.float32)
    given = reference.copy()
    given[0, 1, 2, 3] = 1
    pairs = [
        ValuePair("t0", "", "ort", reference, given),
        ValuePair("t0", "s1", "ort", reference, given[..., :2]),
    ]
    found = shown(pairs, tmp_path / "x")
    assert (found["planes"], found["plane"], found["shape"]) == (2, 1, [1, 2, 4, 4])
    assert (
        found["worst"][0]["index"] == [0, 1, 2, 3] and found["statistics"]["given"]["most"] == 1.0
    )
    other = shown(pairs, tmp_path / "x", 1)
    assert (
        other["statistics"]["given"] is None
        and not other["stored"]
        and has_line(other["notes"], "ort", "1×2×4×2")
    )
    with raises(UsageError, "view.unknown-values"):
        shown(pairs, tmp_path / "x", 0, 2)
    with raises(UsageError, "view.unknown-values"):
        shown(pairs, tmp_path / "x", 2)


@pytest.mark.parametrize("shape", [(), (7,), (0, 3, 4), (2, 3, 50, 60)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
def test_any_tensor_is_drawn_in_a_bounded_reply(
    tmp_path: Path, shape: tuple[int, ...], dtype: type
) -> None:
    rng = np.random.default_rng(0)
    reference: Array = np.asarray(9 * rng.standard_normal(shape)).astype(dtype)
    given: Array = np.asarray(9 * rng.standard_normal(shape)).astype(dtype)
    if dtype != np.int8 and given.size:
        given.flat[-1] = np.nan
    found = shown([ValuePair("t0", "", "ort", reference, given[()])], tmp_path / "x")
    assert found["shape"] == list(shape) and len(json.dumps(found)) < 600_000
    assert found["statistics"]["given"]["nans"] == int(dtype != np.int8 and given.size > 0)


@pytest.mark.parametrize(
    ("shape", "seen"), [((3, 5, 6), range(60, 78)), ((50,), range(20)), ((4, 30), range(20))]
)
def test_large_tensor_is_read_by_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], seen: range
) -> None:
    monkeypatch.setattr("subgraph.view.values.MAX_DRAWN", 20)
    monkeypatch.setattr("subgraph.storage.tensors.MIN_MAPPED", 0)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    plane = 2 if len(shape) == 3 else None
    found = shown([ValuePair("t0", "", "ort", values, values)], tmp_path / "x", 0, plane)
    assert "alone" in found["notes"][0] and found["shape"] == list(shape)
    assert (found["statistics"]["given"]["least"], found["statistics"]["given"]["most"]) == (
        seen[0],
        seen[-1],
    )


def test_missing_value_of_the_candidate_is_marked(tmp_path: Path) -> None:
    found = shown([ValuePair("t0", "", "ort", np.zeros(3, np.float32), None)], tmp_path / "x")
    assert found["statistics"]["given"] is None and has_line(found["notes"], "ort")


def a_case(
    folder: Path, reference: Array, given: Array | None = None, file: str = "outputs/t.npy"
) -> Path:
    """A case with one output of two samples, as far as its values go."""
    stored = {
        "form": "tensor",
        "dtype": "bfloat16",
        "shapes": [[2]],
        "files": [{"file": file, "format": "npy", "dtype": "bfloat16", "shape": [2]}],
    }
    manifest = {
        "schema": "subcut.case/1",
        "source": {},
        "command": "",
        "request": {},
        "files": [],
        "outputs": [
            {
                "name": "t",
                "producer": None,
                "form": "tensor",
                "shape": [[2]],
                "dtype": "bfloat16",
                "samples": [stored, stored],
            }
        ],
        "samples": [{"label": "cat"}, {"label": "dog"}],
        "found": {"candidate": "dev", "status": "fail", "why": ""},
    }
    for side, value in (("outputs", reference), ("candidate", given)):
        (folder / side).mkdir(parents=True, exist_ok=True)
        if value is not None:
            np.save(folder / side / "t.npy", value)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def bits(*values: float) -> Array:
    return np.array(values, ml_dtypes.bfloat16).view(np.uint16)


def test_case_shows_both_sides_of_each_sample(tmp_path: Path) -> None:
    values = list_shown_case_values(
        a_case(tmp_path, bits(1, 2), bits(1, 4)), ["other", "t"], "out/case"
    )
    assert [(v.tensor, v.sample) for v in values] == [("t", "cat"), ("t", "dog")]
    found = describe_tensor(values, 1, None)
    assert (found["dtype"], found["worst"][0]["given"]) == ("bfloat16", 4.0)
    assert len(found["notes"]) == 1 and has_line(found["notes"], "out/case", "dev")
    alone = describe_tensor(
        list_shown_case_values(a_case(tmp_path, bits(1, 2), np.zeros(2)), ["t"], "out/case"),
        0,
        None,
    )
    # its file is of another type
    assert alone["statistics"]["given"] is None and has_line(alone["notes"][1], "dev")


def test_nothing_outside_a_case_and_no_pickle_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", bits(7, 7))
    folder = a_case(tmp_path / "case", bits(1, 2), file="../secret.npy")
    assert list_shown_case_values(folder, ["t"], "x") == []
    a_case(folder, bits(1, 2), file=str(tmp_path / "secret.npy"))
    assert list_shown_case_values(folder, ["t"], "x") == []
    a_case(folder, bits(1, 2))
    (folder / "candidate/t.npy").symlink_to(tmp_path / "secret.npy")
    assert list_shown_case_values(folder, ["t"], "x")[0].alone
    np.save(folder / "outputs/t.npy", np.array([print], object), allow_pickle=True)
    with raises(InputError, "tensor.unreadable"):
        describe_tensor(list_shown_case_values(folder, ["t"], "x"), 0, None)
    (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text("utf-8").replace("[[2]]", '"x"'), "utf-8"
    )
    assert list_shown_case_values(folder, ["t"], "x") == []
