"""A small device: fed other values than the reference, files laid out otherwise than the user says,
names that the user or another run of the tool explains.

Covers `recordings.run_comparison`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fixtures.oracle import tapped
from subgraph.errors import UnknownName
from subgraph.recordings.result_folder import choose_exit_code
from subgraph.recordings.run_comparison import RunComparison, iter_value_pairs
from subgraph.runtime.reference import Reference
from subgraph.types import Array
from tests.helpers import text_models
from tests.helpers.compared_dumps import compare_dump
from tests.helpers.facts import has_line
from tests.helpers.run_command import subcut
from tests.helpers.runs import evaluate

SHAPE = (1, 3, 12, 10)
NAMES = ("stem", "act", "mid", "out")
MISREAD = {
    "RGB for BGR: channels 0 and 2 of axis 1 exchanged": lambda x: x[:, ::-1],
    "laid out NHWC, but read as NCHW": lambda x: x.transpose(0, 2, 3, 1).reshape(SHAPE),
    "0–255 for 0–1: not divided by 255": lambda x: x * 255,
    "128 too high: no mean was subtracted": lambda x: x + 128,
}


TEXT = """g (float[1, 3, 12, 10] data) => (float[1, 6, 12, 10] out) {
    [stem] stem = Conv <pads = [1, 1, 1, 1]> (data, w_stem)
    [act] act = Relu (stem)
    [mid] mid = Conv <pads = [1, 1, 1, 1]> (act, w_mid)
    [out] out = Relu (mid)
}"""


def net(wrong: str = "") -> onnx.ModelProto:
    """Conv, Relu, Conv, Relu; `wrong`: the Conv whose filters are in another order."""
    dice = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    for name, channels in (("stem", 3), ("mid", 6)):
        kernel = dice.normal(size=(6, channels, 3, 3)).astype(np.float32)
        weights[f"w_{name}"] = np.roll(kernel, name == wrong, 0)
    return text_models.model(TEXT, **weights)


def image() -> Array:
    """Smooth, and of three unlike colors."""
    y, x = np.mgrid[0:12, 0:10] / 12
    colors = [0.5 + 0.3 * np.sin(5 * x + 2 * y), 0.4 + 0.3 * np.cos(4 * y - x), 0.3 + 0.4 * x * y]
    return np.asarray(colors, np.float32)[None]


def recorded(
    folder: Path, fed: Array, wrong: str = "", keep: Callable[[Path, Array], object] = np.save
) -> None:
    """What a device leaves in `folder`/dump that computes all tensors from `fed`."""
    model = tapped(net(wrong), NAMES)
    (folder / "dump").mkdir(exist_ok=True)
    for name, value in evaluate(model, {"data": np.ascontiguousarray(fed)}, NAMES).items():
        keep(folder / "dump" / name, value)


def seen(
    reference: Reference, folder: Path, layout: str = "", **options: Any
) -> tuple[RunComparison, list[list[str]]]:
    """(the last run beside the reference, which is fed the image; the nodes of its intervals)."""
    onnx.save(net(), folder / "net.onnx")
    np.save(folder / "x.npy", image())
    found = compare_dump(
        reference, folder / "net.onnx", folder / "dump", folder / "x.npy", layout=layout, **options
    )
    return found.run, found.places


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.slow if k else ()) for k, how in enumerate(MISREAD)]
)
def test_misread_input_is_named_and_no_node_blamed(
    how: str, tmp_path: Path, reference: Reference
) -> None:
    recorded(tmp_path, MISREAD[how](image()))
    found, places = seen(reference, tmp_path)
    assert has_line(found.wrong_input, "input", how) and places == [] and not found.failing
    assert choose_exit_code([found]) == 1


def test_saved_values_are_those_compared(tmp_path: Path, reference: Reference) -> None:
    """Not the reference's values of the user's input."""
    recorded(tmp_path, MISREAD["laid out NHWC, but read as NCHW"](image()))
    found, _ = seen(
        reference,
        tmp_path,
        then=lambda found: [
            np.testing.assert_allclose(pair.given, pair.reference, atol=1e-4)
            for pair in iter_value_pairs(found, NAMES)
        ],
    )
    assert found.wrong_input


@pytest.mark.slow
def test_fault_besides_is_found(tmp_path: Path, reference: Reference) -> None:
    recorded(tmp_path, MISREAD["128 too high: no mean was subtracted"](image()), "mid")
    found, places = seen(reference, tmp_path)
    assert found.wrong_input and places == [["mid"]]


@pytest.mark.parametrize("wrong", ["", pytest.param("stem", marks=pytest.mark.slow), "mid"])
def test_fault_is_no_misread_input(wrong: str, tmp_path: Path, reference: Reference) -> None:
    recorded(tmp_path, image(), wrong)
    found, places = seen(reference, tmp_path)
    assert found.wrong_input == "" and places == ([[wrong]] if wrong else [])


@pytest.mark.slow
def test_names_that_say_nothing(tmp_path: Path, reference: Reference) -> None:
    """With the user's input, nothing would be of this model."""
    recorded(tmp_path, MISREAD["laid out NHWC, but read as NCHW"](image()), keep=renamed)
    found, _ = seen(reference, tmp_path)
    assert found.wrong_input.endswith("read as NCHW") and list(found.rows) == list(NAMES)


def test_layout_that_the_files_have_not(tmp_path: Path, reference: Reference) -> None:
    recorded(tmp_path, image(), "mid", lambda path, value: value.tofile(path.with_suffix(".bin")))
    found, places = seen(reference, tmp_path, "NHWC")
    assert has_line(found.notes[0], "--dump-layout")
    assert places == [["mid"]] and not found.wrong_input


def test_without_the_model_s_output_nothing_agrees(tmp_path: Path, reference: Reference) -> None:
    recorded(tmp_path, image())
    (tmp_path / "dump/out.npy").unlink()
    (tmp_path / "dump/other.dat").write_bytes(b"?")
    found, _ = seen(reference, tmp_path)
    assert choose_exit_code([found]) == 5 and not found.failing
    assert len(found.notes) == 2
    assert has_line(found.notes, "3 of 4", "output out", "not")
    assert has_line(found.notes, "1 .dat")


def test_where_most_files_are_of_no_known_kind_nothing_agrees(
    tmp_path: Path, reference: Reference
) -> None:
    recorded(tmp_path, image())
    for name in ("stem", "act", "mid"):
        (tmp_path / f"dump/{name}.npy").unlink()
    for k in range(5):
        (tmp_path / f"dump/{k}.dat").write_bytes(b"?")
    found, _ = seen(reference, tmp_path)
    assert choose_exit_code([found]) == 5 and has_line(found.notes[0], "1 of 6")


# ------------------------------------------------------------ given names


def renamed(path: Path, value: Array) -> None:
    np.save(path.with_name(f"layer_{NAMES.index(path.name)}"), value)


def test_map_of_the_user_precedes_every_guess(tmp_path: Path, reference: Reference) -> None:
    """The values behind the fault are like nothing: only the map says what they are."""
    recorded(tmp_path, image(), "mid", renamed)
    found, places = seen(reference, tmp_path, tensor_map={"mid": "layer_2", "out": "layer_3.npy"})
    assert places == [["mid"]] and len(found.rows) == 4
    assert found.rows["mid"].match.how == "map" and "--map" in found.rows["mid"].match.note


def test_map_of_the_user_names_all_tensors_by_a_form(tmp_path: Path, reference: Reference) -> None:
    def rename(path: Path, value: Array) -> None:
        np.save(path.with_name(f"blob.{path.name}"), value)

    recorded(tmp_path, image(), "mid", rename)
    found, places = seen(reference, tmp_path, tensor_map={"{tensor}": "blob.{tensor}"})
    assert places == [["mid"]] and {row.match.how for row in found.rows.values()} == {"map"}


@pytest.mark.slow
def test_the_map_holds_where_values_say_otherwise(tmp_path: Path, reference: Reference) -> None:
    recorded(tmp_path, image(), keep=renamed)
    wrong, _ = seen(reference, tmp_path, tensor_map={"act": "layer_0", "stem": "layer_1"})
    assert wrong.failing[:2] == ["stem", "act"]


@pytest.mark.parametrize(
    ("tensor_map", "says"),
    [
        ({"mit": "layer_2"}, ("--map", "'mit'", "net.onnx")),
        ({"mid": "layer_22"}, ("--map", "'layer_22'")),
    ],
)
def test_name_in_the_map_that_is_nowhere(
    tensor_map: dict[str, str], says: tuple[str, ...], tmp_path: Path, reference: Reference
) -> None:
    recorded(tmp_path, image(), keep=renamed)
    with pytest.raises(UnknownName) as caught:
        seen(reference, tmp_path, tensor_map=tensor_map)
    assert has_line(caught.value.what, *says) and caught.value.nearest


def test_match_by_values_on_one_side_is_used_on_the_other(
    tmp_path: Path, reference: Reference
) -> None:
    """The names say nothing, and behind the fault the values do not: those of the golden side
    do."""
    for side, wrong in (("golden", ""), ("simulator", "mid")):
        (tmp_path / "dump" / side).mkdir(parents=True)
        recorded(
            tmp_path,
            image(),
            wrong,
            lambda path, value, s=side: renamed(path.parent / s / path.name, value),  # type: ignore[misc]
        )
    found, places = seen(reference, tmp_path)
    assert (
        found.run.name == "dump:simulator"
        and list(found.rows) == list(NAMES)
        and places == [["mid"]]
    )
    assert "as in dump:golden" in found.rows["mid"].match.note


@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_file_of_the_tensors_own_shape_is_not_turned(command: str, tmp_path: Path) -> None:
    """A Transpose that the device leaves out shows in its values alone, and axes that differ in a
    file of another shape are a layout."""
    text = (
        "g (float[1,5,5] x) => (float[1,5,5] y)"
        " { [abs] a = Abs(x) [turn] y = Transpose<perm=[0,2,1]>(a) }"
    )
    text_models.save(tmp_path / "m.onnx", text)
    x = np.random.default_rng(0).standard_normal((1, 5, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "dump").mkdir()
    for name, value in {"a": np.abs(x), "y": np.abs(x)}.items():
        np.save(tmp_path / "dump" / f"{name}.npy", value)
    words = (command, "m.onnx", "--recorded", "dump", "-i", "x.npy", "--json")
    done = subcut(*words, cwd=tmp_path)
    assert done.code == 1 and has_line(done.document["says"], "y"), done
