"""Values of both sides in a folder: written, read again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from subgraph.errors import InputError, ResultExists
from subgraph.storage.value_pairs import (
    INDEX,
    ValuePair,
    load_pair,
    read_pairs,
    require_free_folder,
    save_values,
)
from tests.helpers.chain_models import chain
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones((2, 3), np.float32)


def test_written_document_is_read(tmp_path: Path) -> None:
    pairs = [
        ValuePair("a/b", "s0", "dev", A, B),
        ValuePair("c", "", "dev", A.astype(ml_dtypes.bfloat16), None),
    ]
    assert save_values([*pairs, ValuePair("d", "", "dev", [A], None)], tmp_path / "v") == 2
    found = read_pairs(tmp_path / "v")
    assert [(p.tensor, p.sample, p.source, p.given is None) for p in found] == [
        ("a/b", "s0", "dev", False),
        ("c", "", "dev", True),
    ]
    one, other = load_pair(tmp_path / "v", found[0])
    assert np.array_equal(one, A) and other is not None and np.array_equal(other, B)
    assert np.array_equal(load_pair(tmp_path / "v", found[1])[0], A), "bfloat16 as float32"
    save_values(pairs[:1], require_free_folder(str(tmp_path / "v")))
    assert len(read_pairs(tmp_path / "v")) == 1


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with raises(ResultExists, "output.not-ours"):
        require_free_folder(str(tmp_path))
    with pytest.raises(InputError):
        read_pairs(tmp_path)
    save_values([ValuePair("a", "", "", A, B)], tmp_path / "v")
    index = tmp_path / "v" / INDEX
    document = json.loads(index.read_text())
    for name, code, about in (
        ("../mine", "tensor.outside-folder", "../mine"),
        ("t0/none.npy", "tensor.unreadable", "none.npy"),
        (INDEX, "tensor.unreadable", INDEX),
    ):
        document["values"][0]["reference"] = name
        index.write_text(json.dumps(document))
        with raises(InputError, code, about):
            load_pair(tmp_path / "v", read_pairs(tmp_path / "v")[0])
    index.write_text('{"schema": "x", "values": [{"tensor": 3}]}')
    with raises(InputError, "document.damaged"):
        read_pairs(tmp_path / "v")


def test_compare_saves_what_it_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chain(Path("m.onnx"), ["a", "b", "c"])
    in_process("compare", "m.onnx", "-c", "ort", "--at", "b", "--save", "v")
    (pair,) = read_pairs(Path("v"))
    one, other = load_pair(Path("v"), pair)
    assert (pair.tensor, pair.source) == ("t1", "ort") and np.array_equal(one, other)  # type: ignore[arg-type]
    # The report of some tensors does not take the place of that of all.
    assert [p.name for p in Path("subcut_out").glob("compare-*")] == ["compare-ort-at"]
