"""CSV and HDF5: what people write of a tensor or of many."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from subgraph.errors import InputError
from subgraph.recordings import recording
from subgraph.recordings.dumps import DumpHints, TensorSpec

X = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4) / 8


def test_numbers_alone_have_the_shape_of_a_comment_or_of_the_model(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "said.csv", X.reshape(6, 4), delimiter=",", header="Array shape: (1, 2, 3, 4)", fmt="%.4f")
    np.savetxt(tmp_path / "known.tsv", X.reshape(6, 4), delimiter="\t")
    np.savetxt(tmp_path / "row.csv", np.zeros((1, 90_000)), delimiter=",")  # one line, longer than what is read at once
    found = {e.name: e for e in recording.open(tmp_path, hints=DumpHints({"known": TensorSpec("float32", X.shape)}))}
    assert found["said"].step == pytest.approx(1e-4)
    for name in ("said", "known"):
        assert np.array_equal(found[name].read(), X)
    assert found["row"].read().shape == (90_000,) and found["row"].note


def test_tables_of_tensors(tmp_path: Path) -> None:
    flat = "".join(f'"/a/b, c",{k},{v}\n' for k, v in reversed(list(enumerate(X.reshape(-1)))))
    (tmp_path / "flat.csv").write_text(f"Tensor Name,index,value\n{flat}z,1,7\nz,0,-7\nw,0,1\nw,2,1\nv,0,1\nv,0,2\n")
    axes = "".join(f"{n},{c},{h},{w},{v}\n" for (n, c, h, w), v in np.ndenumerate(X))
    (tmp_path / "conv1.csv").write_text(f"n,c,h,w,value\n{axes}")
    (tmp_path / "profile.csv").write_text("layer,time,flops\nconv1,2,3\n")
    found = {e.name: e for e in recording.open(tmp_path, hints=DumpHints({"/a/b, c": TensorSpec("float32", X.shape)}))}
    assert np.array_equal(found["/a/b, c"].read(), X) and np.array_equal(found["conv1"].read(), X)
    assert (found["z"].dtype, found["z"].read().tolist()) == ("int64", [-7, 7])
    assert "some are missing" in found["w"].lacks and found["v"].lacks
    assert set(found) == {"/a/b, c", "conv1", "z", "w", "v"}


@pytest.mark.parametrize("rows", ["x,0\n", "x,one,1\n", "x,0,abc\n", "x,0,1 2\n", "x,99999999999999999999,1\n"])
def test_a_damaged_table_is_an_error_with_its_name(rows: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"name,index,value\nx,0,1\n{rows}".replace("x,0,1\nx,0,", "x,1,1\nx,0,"))
    with pytest.raises(InputError, match=r"t\.csv"):
        for e in recording.open(tmp_path):
            e.read()


def test_a_table_of_pandas_says_how_to_save_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",0,1\n0,1.5,2.5\n")
    (entry,) = recording.open(tmp_path)
    assert "header=False" in entry.lacks


def test_a_model_of_keras_beside_a_dump_is_no_second_format(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file["model_weights/conv1/kernel:0"] = X
    np.save(tmp_path / "x.npy", X)
    assert recording.open(tmp_path).format == "npy" and recording.open(tmp_path).left_out == {".h5": 1}


def test_a_file_per_tensor_gives_its_name(tmp_path: Path) -> None:
    for name in ("conv1", "conv2"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["data"] = X
    assert [(e.name, e.side) for e in recording.open(tmp_path)] == [("conv1", ""), ("conv2", "")]
