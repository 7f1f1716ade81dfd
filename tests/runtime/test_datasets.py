"""Data sets of Hugging Face on disk as samples. The files have the form that `save_to_disk` of
datasets 4 writes; pyarrow makes them here."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from subgraph.errors import InputError
from subgraph.graph.graph import Graph
from subgraph.runtime.inputs import Feeding
from tests.helpers import text_models
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def save(folder: Path, rows: dict[str, Any], **state: Any) -> Path:
    folder.mkdir(parents=True)
    table = pyarrow.table(rows)
    with (
        pyarrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as stream,
    ):
        stream.write_table(table)
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, **state}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def picture(value: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 0, 0)).save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def numbers(rows: int) -> list[list[float]]:
    return [[float(k), 1.0, 2.0, 3.0] for k in range(rows)]


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return text_models.load(tmp_path, "g (float[1,4] x) => (float[1,4] y) { y = Neg(x) }")


def labels(graph: Graph, folder: Path) -> list[str]:
    return [sample.label for sample in Feeding((str(folder),)).plan(graph, graph.inputs)]


def test_each_row_is_a_sample_with_the_axis_of_the_batch(graph: Graph, tmp_path: Path) -> None:
    save(tmp_path / "data", {"x": numbers(3), "label": [0, 1, 2]})
    assert labels(graph, tmp_path / "data") == ["row_0", "row_1", "row_2"]
    words = ("compare", graph.path.name, "-c", "ort", "-i", "data", "--json")
    done = subcut(*words, cwd=tmp_path)
    assert done.code == 0 and done.document["samples"] == ["row_0", "row_1", "row_2"]


def test_only_column_of_numbers_needs_no_name(graph: Graph, tmp_path: Path) -> None:
    save(tmp_path / "data", {"values": numbers(2), "text": ["a", "b"]})
    assert labels(graph, tmp_path / "data") == ["row_0", "row_1"]


def test_first_rows_of_many_are_fed(graph: Graph, tmp_path: Path) -> None:
    save(tmp_path / "data", {"x": numbers(40)})
    assert len(labels(graph, tmp_path / "data")) == 32


def test_pictures_are_fed_as_files_are(tmp_path: Path) -> None:
    text = "g (float[1,3,4,4] image) => (float[1,3,4,4] y) { y = Neg(image) }"
    text_models.save(tmp_path / "m.onnx", text)
    save(tmp_path / "data", {"img": [picture(10), picture(200)], "label": [0, 1]})
    done = subcut("compare", "m.onnx", "-c", "ort", "-i", "data", "--json", cwd=tmp_path)
    assert done.code == 0 and done.document["samples"] == ["row_0", "row_1"]


def test_data_set_that_cannot_be_fed(graph: Graph, tmp_path: Path) -> None:
    other = save(tmp_path / "other", {"a": numbers(1), "b": numbers(1)})
    with raises(InputError, "dataset.no-column", "a, b", "rename_column to x"):
        labels(graph, other)
    save(tmp_path / "split" / "train", {"x": numbers(1)})
    (tmp_path / "split" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with raises(InputError, "dataset.splits", "train"):
        labels(graph, tmp_path / "split")
    indexed = save(tmp_path / "indexed", {"x": numbers(1)}, _indices_files=[{"filename": "i"}])
    with raises(InputError, "dataset.indexed"):
        labels(graph, indexed)
    uneven = save(tmp_path / "uneven", {"x": [[[1.0], [1.0, 2.0]]]})
    with raises(InputError, "dataset.no-tensor"):
        labels(graph, uneven)
    link = save(tmp_path / "link", {"img": [{"bytes": b"", "path": "/etc/passwd"}]})
    with raises(InputError, "dataset.not-embedded"):
        labels(graph, link)


@pytest.mark.parametrize("text", ["{}", "[]", "not json", '{"_data_files": [{"filename": "x"}]}'])
def test_damaged_data_set(text: str, graph: Graph, tmp_path: Path) -> None:
    folder = save(tmp_path / "data", {"x": numbers(1)})
    (folder / "state.json").write_text(text)
    with raises(InputError, "dataset.damaged"):
        labels(graph, folder)


def test_file_outside_the_folder_is_not_read(graph: Graph, tmp_path: Path) -> None:
    secret = save(tmp_path / "secret", {"x": numbers(1)})
    folder = save(tmp_path / "data", {"x": numbers(1)})
    (folder / "data-00000-of-00001.arrow").rename(folder / "away")
    name = f"../{secret.name}/data-00000-of-00001.arrow"
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with raises(InputError, "dataset.damaged"):
        labels(graph, folder)


def test_data_set_that_is_written_again_is_read_again(graph: Graph, tmp_path: Path) -> None:
    folder = save(tmp_path / "data", {"x": numbers(2)})
    assert len(labels(graph, folder)) == 2
    save(tmp_path / "other", {"x": numbers(3)})
    shutil.rmtree(folder)
    (tmp_path / "other").rename(folder)
    assert len(labels(graph, folder)) == 3
