"""Folders that another hand wrote from the tools' own sources, or the tools themselves:
`fixtures.other_hand`.

Covers `fixtures.other_hand` and its writers.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from fixtures import ROOT
from fixtures.other_hand import (
    example,
    network,
    values,
    write_mindspore,
    write_openvino,
    write_tidl,
)
from subgraph.recordings import recording
from subgraph.recordings.dumps import openvino
from tests.helpers.facts import has_line
from tests.helpers.run_command import subcut

REAL = ROOT / "fixtures" / "other_hand" / "real_mindspore.tar.xz"
Writer = Callable[..., None]
# format, its folder, writer, how far values may be from the network's
WRITERS: dict[str, tuple[str, str, Writer, float]] = {
    **{
        f"openvino {age}": ("openvino", "cpu_dump", partial(write_openvino.write, age=age), 0.0)
        for age in write_openvino.PRECISIONS
    },
    **{
        f"openvino {age} text": (
            "openvino",
            "cpu_dump",
            partial(write_openvino.write, age=age, as_text=True),
            1e-5,
        )
        for age in write_openvino.PRECISIONS
    },
    "openvino 2021 windows": (
        "openvino",
        "cpu_dump",
        partial(write_openvino.write, age="2021", number="I"),
        0.0,
    ),
    **{
        f"tidl {form}": ("tidl", "traces", partial(write_tidl.write, form=form), 0.02)
        for form in write_tidl.BASES
    },
    "tidl 16bit": ("tidl", "traces", partial(write_tidl.write, bits=16), 1e-4),
    "tidl 32bit": ("tidl", "traces", partial(write_tidl.write, form="8", bits=32), 0.0),
    **{
        f"mindspore {form}": (
            "ascend-converted",
            "dump",
            partial(write_mindspore.write, form=form),
            0.0,
        )
        for form in write_mindspore.FORMS[:3]
    },
    "mindspore bf16": (
        "ascend-converted",
        "dump",
        partial(write_mindspore.write, form="bf16"),
        0.02,
    ),
    "msprobe": ("msprobe", "dump", partial(write_mindspore.write, form="msprobe"), 0.0),
}
# Tensors that names tell: of a GPU's dump, which has no scopes, the input alone.
FOUND = {
    "openvino": 5,
    "tidl": 6,
    "msprobe": 7,
    "ascend-converted": 7,
    "mindspore cpu": 8,
    "mindspore gpu": 1,
}
OF_CELLS = {cell: left for cell, _, _, left in write_mindspore.CELLS}
OF_NODES = {openvino.plain(node): output for _, _, node, _, output in write_openvino.NODES}


@pytest.mark.parametrize("name", WRITERS)
def test_each_tensor_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    format, folder, write, far = WRITERS[name]
    write(tmp_path)
    read = recording.open(tmp_path / folder)
    assert read.format == format
    known = values(network(), example())
    found = set()
    for entry in read:
        tensor = {**OF_CELLS, **OF_NODES}.get(entry.label, entry.label)
        if entry.role == "output" and tensor in known:
            value = entry.read()
            right = known[tensor]
            assert value.size == right.size and value.dtype == right.dtype
            assert np.abs(value.ravel() - right.ravel()).max() <= far, (entry.file, tensor)
            found.add(tensor)
    assert len(found - {each.name for each in network().graph.initializer}) == FOUND.get(
        name, FOUND[format]
    )


@pytest.mark.parametrize(
    "name", ["openvino 2021", "tidl 16bit", "tidl 8", "mindspore cpu", "msprobe"]
)
def test_healthy_folder_agrees(name: str, tmp_path: Path) -> None:
    """The fixed-point traces tell that the device computed in 8 bits."""
    _, folder, write, _ = WRITERS[name]
    write(tmp_path)
    ended = subcut("compare", "model.onnx", "--recorded", folder, "-i", "x.npy", cwd=tmp_path)
    assert ended.code == 0, ended.out + ended.err


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("openvino 2021", "r2", "p1"),
        ("openvino 2026 text", "r2", "p1"),
        ("tidl 16bit", "r2", "p1"),
        ("mindspore cpu", "c2", "p1"),
        ("mindspore bf16", "c2", "p1"),
        ("msprobe", "c2", "p1"),
    ],
)
def test_one_wrong_layer_is_named(name: str, first: str, last: str, tmp_path: Path) -> None:
    """OpenVINO and TIDL take the Relu into the wrong Conv."""
    _, folder, write, _ = WRITERS[name]
    write(tmp_path, wrong="conv2")
    ended = subcut("compare", "model.onnx", "--recorded", folder, "-i", "x.npy", cwd=tmp_path)
    assert ended.code == 1 and has_line(ended.out, "bad", first, "good", last), ended.out


def test_rows_of_one_core_are_not_the_tensor(tmp_path: Path) -> None:
    write_tidl.write(tmp_path, "cores")
    for file in (tmp_path / "traces").glob("C7x_1_*_0002_*"):
        file.with_name(file.name.replace("C7x_1_", "C7x_2_")).write_bytes(file.read_bytes())
    kept = {entry.tensor: entry.missing for entry in recording.open(tmp_path / "traces")}
    assert "stitch_multicore_traces" in kept["p1"] and not kept["r1"]


def test_fixed_point_alone_says_what_to_do(tmp_path: Path) -> None:
    write_tidl.write(tmp_path, floats=False)
    (missing,) = {entry.missing for entry in recording.open(tmp_path / "traces")}
    assert has_line(missing, "fixed point", "debug_level")


def test_cell_that_runs_twice_gives_no_name(tmp_path: Path) -> None:
    for number in range(2):
        name = f"ReLU.Default_act-ReLU_ReLU-op{number}.0.0.179587300415171{number}.output.0.DefaultFormat.Float32.npy"  # noqa: E501
        np.save(tmp_path / name, example())
    assert {entry.node for entry in recording.open(tmp_path)} == {
        f"Default_act-ReLU_ReLU-op{n}" for n in range(2)
    }


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("real")
    with tarfile.open(REAL) as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.mark.parametrize(("tool", "count"), [("dump", 6), ("msprobe", 7)])
def test_folder_of_mindspore_is_read(tool: str, count: int, real: Path, tmp_path: Path) -> None:
    """Its exporter numbers nodes and tensors; the weights' names, conv2.weight, lead from a cell to
    its node."""
    conv2 = onnx.load(real / "model.onnx").graph.node[3]
    assert "conv2.weight" in conv2.input
    for name, code, found in (
        ("right", 0, (f"right: {count}", "agree")),
        ("wrong", 1, ("first bad", f" {conv2.output[0]};")),
    ):
        words = ("compare", str(real / "model.onnx"), "--recorded", str(real / f"{tool}_{name}"))
        ended = subcut(*words, "-i", str(real / "x.npy"), cwd=tmp_path)
        assert ended.code == code and has_line(ended.out, *found), ended.out
        assert not has_line(ended.out, "neither", "value")
