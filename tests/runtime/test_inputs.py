"""The user's inputs become the arrays that a model takes, or an error that names the file and the
input.

Covers `runtime.inputs` and `runtime.load_inputs`.
"""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from PIL import Image

from subgraph.errors import InputError
from subgraph.graph.graph import Graph
from subgraph.runtime import inputs, load_inputs
from subgraph.runtime.inputs import Feeding, ImageOptions, InputSpec, Sample
from subgraph.runtime.load_inputs import load_sample
from subgraph.storage import tensors
from subgraph.types import Array, Shape
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

Feeds = dict[str, Any]
Build = Callable[..., Graph]  # of a model from its inputs


@pytest.fixture
def model(tmp_path: Path) -> Build:
    """A model of these inputs: `model("float[2,3] x, int64[N] ids")`, with a body that may read
    them."""

    def build(declared: str, body: str = "y = Foo(x)", **more: Any) -> Graph:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        return text_models.load(folder, f"g ({declared}) => (float[1] y) {{ {body} }}", **more)

    return build


def fed(g: Graph, *given: str | Path, needs: Sequence[str] | None = None, **more: Any) -> Feeds:
    """The arrays of the only sample."""
    (sample,) = Feeding(tuple(map(str, given)), **more).plan(
        g, g.inputs if needs is None else needs
    )
    return load_sample(sample)[0]


def origins(g: Graph, *given: str | Path) -> dict[str, str]:
    (sample,) = Feeding(tuple(map(str, given))).plan(g, g.inputs)
    return {name: str(origin) for name, origin in load_sample(sample)[1].items()}


X = np.arange(6, dtype=np.float32).reshape(2, 3)


# ------------------------------------------------------------ files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The same array in every kind of file."""
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "a.npz", x=X)
    (tmp_path / "a.bin").write_bytes(X.tobytes())
    (tmp_path / "a.raw").write_bytes(X.tobytes())
    (tmp_path / "a.pb").write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    (tmp_path / "b.pb").write_bytes(numpy_helper.from_array(X, "another name").SerializeToString())
    np.save(tmp_path / "a=b.npy", X)
    np.save(tmp_path / "UPPER.NPY.npy", X)
    (tmp_path / "UPPER.NPY.npy").rename(tmp_path / "UPPER.NPY")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["a.npy", "a.npz", "a.bin", "a.raw", "a.pb", "b.pb", "a=b.npy", "UPPER.NPY"]
)
@pytest.mark.parametrize("before", ["", "x="])
def test_file_of_each_kind(files: Path, model: Build, name: str, before: str) -> None:
    feeds = fed(model("float[2,3] x"), f"{before}{files / name}")
    assert feeds["x"].dtype == np.float32 and np.array_equal(feeds["x"], X)


def test_where_a_value_came_from_is_told(files: Path, model: Build) -> None:
    g = model("float[2,3] x, double[2,3] v, bool[2] flag")
    np.save(files / "ints.npy", X.astype(np.int32))
    told = origins(g, f"x={files / 'a.npy'}", f"v={files / 'ints.npy'}")
    assert told["x"] == "a.npy"
    assert has_line(told["v"], "ints.npy", "int32")
    assert has_line(told["flag"], "random", "seed 0")
    assert len(told) == 3


def test_several_inputs_by_their_names(tmp_path: Path, model: Build) -> None:
    g = model(
        "float[2] x, float[2] v, float[2] w",
        change=lambda m: setattr(m.graph.input[2], "name", "w:0"),
    )
    for k, name in enumerate(("x", "v", "w_0", "input_1", "other")):
        np.save(tmp_path / f"{name}.npy", np.full(2, k, np.float32))
    feeds = fed(g, tmp_path / "x.npy", tmp_path / "v.npy", tmp_path / "w_0.npy")
    assert [feeds[n][0] for n in ("x", "v", "w:0")] == [0, 1, 2]
    assert fed(g, tmp_path / "input_1.npy")["v"][0] == 3
    assert fed(g, f"w:0={tmp_path / 'other.npy'}")["w:0"][0] == 4
    with raises(InputError, "input.ambiguous", "other.npy", "'x', 'v', 'w:0'"):
        fed(g, tmp_path / "other.npy")


def test_file_for_an_input_that_this_run_does_not_need_is_left_out(
    tmp_path: Path, model: Build
) -> None:
    """The whole model's inputs are given, whatever the cut needs of them."""
    g = model("float[2] x, float[2] v")
    x = np.zeros(2, np.float32)
    v = np.ones(2, np.float32)
    np.savez(tmp_path / "both.npz", x=x, v=v, label=np.array(7))
    for name, value in (("x", x), ("v", v)):
        np.save(tmp_path / f"{name}.npy", value)
        (tmp_path / f"{name}.pb").write_bytes(
            numpy_helper.from_array(value, name).SerializeToString()
        )
    np.save(tmp_path / "some.npy", x)
    for given in (["both.npz"], ["x.npy", "v.npy"], ["x.pb", "v.pb"], ["x=some.npy", "v=v.npy"]):
        words = [w.replace("=", f"={tmp_path}/") if "=" in w else str(tmp_path / w) for w in given]
        for needs in (["x"], ["v"], ["x", "v"]):
            feeds = fed(g, *words, needs=needs)
            assert {name: value[0] for name, value in feeds.items()} == {
                n: {"x": 0, "v": 1}[n] for n in needs
            }
    # for the one that is needed, surely
    assert list(fed(g, tmp_path / "some.npy", needs=["v"])) == ["v"]


def test_archive_with_other_things_in_it(tmp_path: Path, model: Build) -> None:
    g = model("float[2,3] x")
    np.savez(tmp_path / "a.npz", x=X, label=np.array(3))
    assert np.array_equal(fed(g, tmp_path / "a.npz")["x"], X)
    np.savez(tmp_path / "b.npz", X)  # numpy calls it arr_0
    assert np.array_equal(fed(g, tmp_path / "b.npz")["x"], X)
    np.savez_compressed(tmp_path / "c.npz", one=X, two=X)
    with raises(InputError, "input.given-twice", "'x'"):
        fed(g, tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("declared", "stored", "says"),
    [
        ("float[2,3] x", X.astype(np.float64), "converted from float64"),
        ("float[2,3] x", X.astype(np.float16), "converted from float16"),
        ("float[2,3] x", X.astype(np.uint8), "converted from uint8"),
        ("float[2,3] x", X.astype(">f4"), "converted from >f4"),
        ("float[2,3] x", np.asfortranarray(X), ""),
        ("int64[2,3] x", X.astype(np.int32), "converted from int32"),
        ("uint8[2,3] x", X.astype(np.int64), "converted from int64"),
        ("bool[2,3] x", (X > 2).astype(np.uint8), "converted from uint8"),
        ("float16[2,3] x", X, "converted from float32"),
        ("bfloat16[2,3] x", X, "converted from float32"),
        # as subcut stores it
        ("bfloat16[2,3] x", X.astype(ml_dtypes.bfloat16).view(np.uint16), ""),
        ("bfloat16[2,3] x", X.astype(ml_dtypes.bfloat16).view(np.uint16).astype(">u2"), ""),
        ("bfloat16[2,3] x", X.astype(ml_dtypes.bfloat16), ""),  # np.save calls it V2
        ("int4[2,3] x", X.astype(ml_dtypes.int4), ""),
        ("float8e4m3fn[2,3] x", X, "converted from float32"),
        ("int4[2,3] x", X.astype(np.int8), "converted from int8"),
    ],
)
def test_harmless_conversion(
    tmp_path: Path, model: Build, declared: str, stored: Array, says: str
) -> None:
    np.save(tmp_path / "a.npy", stored)
    g = model(declared)
    (value,) = fed(g, tmp_path / "a.npy").values()
    want = X > 2 if "bool" in declared else X
    assert np.array_equal(value.astype(np.float32), want)
    assert says in origins(g, tmp_path / "a.npy")["x"]


@pytest.mark.parametrize(
    ("declared", "stored", "wrong"),
    [
        # a conversion that loses something
        ("int64[2,3] x", X, "type"),  # floats never become integers by themselves
        ("uint8[2,3] x", X.astype(np.int32) + 254, "type"),
        ("int8[2,3] x", X.astype(np.uint8) + 200, "type"),
        ("bool[2,3] x", X.astype(np.uint8), "type"),
        ("float16[2,3] x", X * 1e6, "type"),
        ("float[2,3] x", X.astype(np.complex64), "type"),
        ("float[2,3] x", X.astype(str), "type"),
        ("int4[2,3] x", X.astype(np.int8) + 4, "type"),
        ("float[2,3] x", X.astype("M8[s]"), "type"),
        ("bfloat16[2,3] x", X.astype("V4"), "type"),
        ("bfloat16[2,3] x", np.zeros((2, 3), [("a", "u1"), ("b", "u1")]), "type"),
        ("float[2,3] x", X.reshape(3, 2), "shape"),
        ("float[2,3] x", X.reshape(6), "shape"),
        ("float[N,4] x", X, "shape"),
    ],
)
def test_array_that_does_not_fit_is_refused(
    tmp_path: Path, model: Build, declared: str, stored: Array, wrong: str
) -> None:
    np.save(tmp_path / "a.npy", stored)
    with raises(InputError, f"input.wrong-{wrong}", "a.npy", "x"):
        fed(model(declared), tmp_path / "a.npy")


def test_another_type_of_the_same_size_is_no_raw_bits(tmp_path: Path, model: Build) -> None:
    """A TensorProto says its type: float8_e4m3fn is never read as the bits of int4."""
    tensor = numpy_helper.from_array(X.astype(ml_dtypes.float8_e4m3fn), "x")
    (tmp_path / "a.pb").write_bytes(tensor.SerializeToString())
    with raises(InputError, "input.wrong-type", "a.pb", "float8_e4m3fn", "int4"):
        fed(model("int4[2,3] x"), tmp_path / "a.pb")


@pytest.mark.parametrize(
    ("declared", "shape", "layout"),
    [("float[1,3,4,5] x", (1, 4, 5, 3), "NHWC"), ("float[N,4,5,3] x", (2, 3, 4, 5), "NCHW")],
)
def test_image_in_another_layout_is_called_that(
    tmp_path: Path, model: Build, declared: str, shape: Shape, layout: str
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, np.float32))
    with raises(InputError, "input.wrong-layout", "a.npy", layout, "'x'") as refusal:
        fed(model(declared), tmp_path / "a.npy")
    assert has_line(refusal.value.hint, "numpy.transpose(array, (0")


@pytest.mark.parametrize(
    ("declared", "size", "shape"),
    [
        ("float[2,3] x", 24, (2, 3)),
        ("float[N,3] x", 36, (3, 3)),
        ("float[2,T] x", 32, (2, 4)),
        ("float[N,2,T] x", 32, (1, 2, 4)),  # two are unknown: the first is 1
        ("float x", 4, ()),
        ("float[N,0] x", 0, None),
        ("float[N,3,H,W] x", 48, None),  # any H and W would do
        ("float[2,3] x", 23, None),
        ("float[N,3] x", 35, None),
        ("string[2] x", 8, None),
        ("int4[2] x", 1, None),
    ],
)
def test_headerless_file_gets_its_shape_from_the_model(
    tmp_path: Path, model: Build, declared: str, size: int, shape: Shape | None
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(size)))
    if shape is None:
        with pytest.raises(InputError, match=r"a\.bin"):
            fed(model(declared), tmp_path / "a.bin")
    else:
        value = fed(model(declared), tmp_path / "a.bin")["x"]
        assert value.shape == shape and value.tobytes() == bytes(range(size))


def test_headerless_file_with_shape_given(tmp_path: Path, model: Build) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(48))
    value = fed(model("float[N,3,H,W] x"), tmp_path / "a.bin", shapes={"x": [1, 3, 2, 2]})["x"]
    assert value.shape == (1, 3, 2, 2)


def test_texts(tmp_path: Path, model: Build) -> None:
    np.save(tmp_path / "a.npy", np.array(["one", "zwölf"]))
    assert fed(model("string[2] x"), tmp_path / "a.npy")["x"].tolist() == ["one", "zwölf"]
    tensor = TensorProto(
        data_type=TensorProto.STRING, dims=[2], string_data=[b"one", "zwölf".encode()]
    )
    (tmp_path / "a.pb").write_bytes(tensor.SerializeToString())
    assert fed(model("string[2] x"), tmp_path / "a.pb")["x"].tolist() == ["one", "zwölf"]


def test_onnxs_own_test_data(tmp_path: Path, model: Build) -> None:
    """test_data_set_0/input_0.pb, input_1.pb, output_0.pb: the outputs are not fed."""
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    for k in (0, 1):
        tensor = numpy_helper.from_array(np.full(2, k, np.float32), f"some name {k}")
        (folder / f"input_{k}.pb").write_bytes(tensor.SerializeToString())
    (folder / "output_0.pb").write_bytes(tensor.SerializeToString())
    feeds = fed(model("float[2] x, float[2] v"), folder)
    assert (feeds["x"][0], feeds["v"][0]) == (0, 1)


# ------------------------------------------------------------ images


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """2 × 2 pixels: red, green / blue, (10, 20, 30)."""
    pixels = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [10, 20, 30]]], np.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    return path


RED = [[255, 0], [0, 10]]
GREEN = [[0, 255], [0, 20]]
BLUE = [[0, 0], [255, 30]]


def test_image_is_planes_of_red_green_and_blue(picture: Path, model: Build) -> None:
    value = fed(model("float[1,3,2,2] x"), picture)["x"]
    assert value.dtype == np.float32 and value.tolist() == [[RED, GREEN, BLUE]]
    value = fed(model("uint8[1,3,2,2] x"), picture, picture=ImageOptions(bgr=True))["x"]
    assert value.dtype == np.uint8 and value.tolist() == [[BLUE, GREEN, RED]]


def test_mean_and_scale_by_hand(picture: Path, model: Build) -> None:
    """y = (x - mean) * scale, per channel in the order that the model gets."""
    look = ImageOptions(mean=(100.0, 10.0, 5.0), scale=(0.5, 1.0, 2.0))
    value = fed(model("float[1,3,2,2] x"), picture, picture=look)["x"]
    assert value.tolist() == [
        [[[77.5, -50.0], [-50.0, -45.0]], [[-10, 245], [-10, 10]], [[-10, -10], [500, 50]]]
    ]
    look = ImageOptions(mean=(5.0, 10.0, 100.0), scale=(2.0, 1.0, 0.5), bgr=True)
    found = fed(model("float[1,3,2,2] x"), picture, picture=look)["x"].tolist()
    assert found == value[:, ::-1].tolist()
    value = fed(
        model("float[1,3,2,2] x"), picture, picture=ImageOptions(mean=(127.5,), scale=(1 / 127.5,))
    )["x"]
    assert value.min() == -1 and value.max() == 1
    with raises(InputError, "input.channel-numbers", "not 2"):
        fed(model("float[1,3,2,2] x"), picture, picture=ImageOptions(mean=(1.0, 2.0)))
    with raises(InputError, "input.wrong-type", "'x'", "float32", "uint8"):
        fed(model("uint8[1,3,2,2] x"), picture, picture=ImageOptions(mean=(1.0,)))


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        ("float[1,3,2,2] x", (1, 3, 2, 2)),
        ("float[N,3,H,W] x", (1, 3, 2, 2)),  # as large as the picture
        ("float[1,3,5,7] x", (1, 3, 5, 7)),
        ("float[3,4,4] x", (3, 4, 4)),
        ("float[1,8,6,3] x", (1, 8, 6, 3)),  # channels last
        ("float[1,1,2,2] x", (1, 1, 2, 2)),  # gray
        ("float[1,4,2,2] x", (1, 4, 2, 2)),  # with alpha
    ],
)
def test_image_takes_the_inputs_shape(
    picture: Path, model: Build, declared: str, shape: Shape
) -> None:
    assert fed(model(declared), picture)["x"].shape == shape


def test_channels_last(picture: Path, model: Build) -> None:
    wide = picture.with_name("wide.png")
    Image.open(picture).resize((6, 8), Image.Resampling.NEAREST).save(wide)
    value = fed(model("float[1,8,6,3] x"), wide)["x"]
    assert value[0, 0, 0].tolist() == [255, 0, 0] and value[0, 7, 0].tolist() == [0, 0, 255]


def test_gray_image_for_a_model_of_colors(tmp_path: Path, model: Build) -> None:
    Image.fromarray(np.array([[7, 9]], np.uint8)).save(tmp_path / "gray.png")
    assert fed(model("uint8[1,3,1,2] x"), tmp_path / "gray.png")["x"].tolist() == [[[[7, 9]]] * 3]


def test_image_is_resized_bilinearly(tmp_path: Path, model: Build) -> None:
    Image.fromarray(np.array([[0, 100]], np.uint8)).save(tmp_path / "gray.png")
    value = fed(model("float[1,1,1,4] x"), tmp_path / "gray.png")["x"]
    assert value.tolist() == [[[[0, 25, 75, 100]]]]


@pytest.mark.parametrize(
    ("mode", "ending"),
    [("I", "tif"), ("I;16", "png"), ("I;16B", "tif"), ("F", "tif"), ("I", "pgm")],
)
def test_deep_image_is_refused(tmp_path: Path, model: Build, mode: str, ending: str) -> None:
    path = tmp_path / f"deep.{ending}"
    Image.new(mode, (2, 2), 1000).save(path)
    with raises(InputError, "input.image-depth", f"deep.{ending}") as refusal:
        fed(model("float[1,1,2,2] x"), path)
    assert ".npy" in refusal.value.hint


@pytest.mark.parametrize(
    "spec",
    [
        "float[1,4] x",
        "float[1,64,8,8] x",
        "int64[1,3,8,8] x",
        "bool[1,1,8,8] x",
        "float[1,128,768] x",
        "float[2,3] x",
    ],
)
def test_image_for_what_is_no_image_is_refused(picture: Path, model: Build, spec: str) -> None:
    with raises(InputError, "input.takes-no-image") as refusal:
        fed(model(spec), picture)
    assert "-i x=FILE.npy" in refusal.value.hint


def test_file_that_is_not_an_image_is_refused(tmp_path: Path, picture: Path, model: Build) -> None:
    (tmp_path / "a.png").write_bytes(picture.read_bytes()[:40])
    (tmp_path / "b.jpg").write_text("no picture")
    for name in ("a.png", "b.jpg"):
        with raises(InputError, "input.unreadable-image", name):
            fed(model("float[1,3,2,2] x"), tmp_path / name)
    with raises(InputError, "input.wrong-shape", "'x'", "1×3×2×2", "8×3×2×2"):
        fed(model("float[8,3,2,2] x"), picture)


# ------------------------------------------------------------ folders


def samples(g: Graph, *given: str | Path) -> dict[str, Feeds]:
    """Label → arrays."""
    return {s.label: load_sample(s)[0] for s in Feeding(tuple(map(str, given))).plan(g, g.inputs)}


def test_records_take_the_place_of_the_words(tmp_path: Path, model: Build) -> None:
    g = model("float[2,3] x, bfloat16[1] z")
    half = np.ones(1, ml_dtypes.bfloat16)
    fed = []
    for k in range(2):
        values = {"x": X + k, "z": half}
        records = {
            n: tensors.save(n, v, tensors.find_type(v), tmp_path, f"{n}{k}")
            for n, v in values.items()
        }
        fed.append({n: record.rebase(str(tmp_path)) for n, record in records.items()})
    two = Feeding(("no such file",), records=tuple(fed)).plan(g, g.inputs)
    assert [s.label for s in two] == ["sample_0", "sample_1"]
    arrays, _ = load_sample(two[1])
    assert np.array_equal(np.asarray(arrays["x"]), X + 1) and np.array_equal(
        np.asarray(arrays["z"]), half
    )
    assert [s.label for s in Feeding(records=(fed[0],)).plan(g, g.inputs)] == [""]


def test_folder_of_files_is_a_sample_each(tmp_path: Path, model: Build) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for k in (0, 2, 10):
        np.save(folder / f"sample_{k}.npy", np.full(2, k, np.float32))
    (folder / "readme.txt").write_text("not fed")
    (folder / ".hidden.npy").write_text("not fed")
    found = samples(model("float[2] x"), folder)
    assert {label: feeds["x"][0] for label, feeds in found.items()} == {
        "sample_0": 0,
        "sample_2": 2,
        "sample_10": 10,
    }
    assert list(found) == ["sample_0", "sample_2", "sample_10"]  # as people count


def test_folder_of_images(tmp_path: Path, picture: Path, model: Build) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    picture.rename(folder / "cat.png")
    Image.open(folder / "cat.png").save(folder / "dog.jpg")
    Image.open(folder / "cat.png").save(folder / "cat.bmp")
    found = samples(model("uint8[1,3,2,2] x"), folder)
    assert list(found) == ["cat.bmp", "cat.png", "dog"]  # a name twice: told apart by its ending
    assert found["cat.png"]["x"].tolist() == found["cat.bmp"]["x"].tolist() == [[RED, GREEN, BLUE]]


def test_folder_named_after_several_inputs_is_one_sample(tmp_path: Path, model: Build) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    np.save(folder / "x.npy", np.zeros(2, np.float32))
    np.save(folder / "v.npy", np.ones(2, np.float32))
    ((label, feeds),) = samples(model("float[2] x, float[2] v"), folder).items()
    assert label == "one" and (feeds["x"][0], feeds["v"][0]) == (0, 1)


def test_folder_of_folders_is_a_sample_each(tmp_path: Path, model: Build) -> None:
    for k in range(3):
        place = tmp_path / "sets" / f"set{k}"
        place.mkdir(parents=True)
        np.save(place / "x.npy", np.full(2, k, np.float32))
        np.save(place / "v.npy", np.full(2, 10 + k, np.float32))
    (tmp_path / "sets" / "empty").mkdir()
    found = samples(model("float[2] x, float[2] v"), tmp_path / "sets")
    assert {label: (f["x"][0], f["v"][0]) for label, f in found.items()} == {
        "set0": (0, 10),
        "set1": (1, 11),
        "set2": (2, 12),
    }


def test_folder_for_each_input(tmp_path: Path, model: Build) -> None:
    for name in ("a", "b", "short"):
        (tmp_path / name).mkdir()
        for k in range(1 if name == "short" else 2):
            np.save(tmp_path / name / f"{k}.npy", np.full(2, k, np.float32))
    np.save(tmp_path / "fixed.npy", np.full(2, 9, np.float32))
    g = model("float[2] x, float[2] v, float[2] w")
    found = samples(g, f"x={tmp_path / 'a'}", f"v={tmp_path / 'b'}", f"w={tmp_path / 'fixed.npy'}")
    assert [(f["x"][0], f["v"][0], f["w"][0]) for f in found.values()] == [(0, 0, 9), (1, 1, 9)]
    with raises(InputError, "input.sample-counts", "[1, 2]"):
        samples(g, f"x={tmp_path / 'a'}", f"v={tmp_path / 'short'}")


def test_labels_are_distinct(tmp_path: Path, model: Build) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("x.npy", "x.npy.npy", "x.npy~2.npy"):
        np.save(folder / name, np.zeros(2, np.float32))
    Image.new("L", (2, 2)).save(folder / "x.png")
    g = model("float[2] x, float[2] v")
    found = [
        (s.label, Path(str(s.files[0][1])).name)
        for s in Feeding((f"x={folder}",)).plan(g, g.inputs)
    ]
    assert sorted(found) == [
        ("x.npy", "x.npy"),
        ("x.npy~2", "x.npy~2.npy"),
        ("x.npy~3", "x.npy.npy"),
        ("x.png", "x.png"),
    ]


def test_labels_of_two_folders_are_distinct(tmp_path: Path, model: Build) -> None:
    for place, names in (("one", ("a+z", "a")), ("two", ("c", "z+c"))):
        (tmp_path / place).mkdir()
        for name in names:
            np.save(tmp_path / place / f"{name}.npy", np.zeros(2, np.float32))
    found = samples(
        model("float[2] x, float[2] v"), f"x={tmp_path / 'one'}", f"v={tmp_path / 'two'}"
    )
    assert list(found) == ["a+z+c", "a+z+c~2"]


def test_inputs_own_name_goes_before_what_else_a_file_may_be_called(
    tmp_path: Path, model: Build
) -> None:
    g = model("float[2] x, float[2] input_0, float[2] input_x")
    for k, name in enumerate(("x", "input_0", "input_x", "input_2")):
        np.save(tmp_path / f"{name}.npy", np.full(2, k, np.float32))
    feeds = fed(g, *(tmp_path / f"{name}.npy" for name in g.inputs))
    assert [feeds[name][0] for name in g.inputs] == [0, 1, 2]
    assert fed(g, tmp_path / "input_2.npy")["input_x"][0] == 3


def test_thousand_inputs_from_a_folder(
    tmp_path: Path, model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are made once for each input, not for each file and input."""
    names = [f"in{k}" for k in range(1000)]
    g = model(", ".join(f"float[2] {n}" for n in names), f"y = Foo({names[0]})")
    folder = tmp_path / "one"
    folder.mkdir()
    for k, name in enumerate(names):
        (folder / f"{name}.bin").write_bytes(np.full(2, k, np.float32).tobytes())
    made: list[str] = []

    def counted(name: str) -> str:
        made.append(name)
        return name

    monkeypatch.setattr(inputs, "make_safe_name", counted)
    feeds = fed(g, folder)
    assert [feeds[n][0] for n in names] == list(range(1000))
    assert len(made) == 2 * len(names)  # once to plan, once to load_sample


def test_samples_differ_where_values_are_made_up(tmp_path: Path, model: Build) -> None:
    (tmp_path / "a").mkdir()
    for k in range(2):
        np.save(tmp_path / "a" / f"{k}.npy", np.zeros(2, np.float32))
    one, two = samples(model("float[2] x, float[2] v"), f"x={tmp_path / 'a'}").values()
    assert not np.array_equal(one["v"], two["v"])


# ------------------------------------------------------------ made up


def test_made_up_values_respect_the_type(model: Build) -> None:
    g = model(
        "float[400] f, float16[400] h, bfloat16[400] b, double[400] d, bool[400] t, int64[400] i,"
        " int8[400] s, uint8[400] u, int4[400] n, uint32[400] w, complex64[400] c, string[40] z",
        "y = Foo(f)",
    )
    feeds = fed(g)
    for name, dtype in (("f", "f4"), ("h", "f2"), ("d", "f8"), ("b", ml_dtypes.bfloat16)):
        assert feeds[name].dtype == np.dtype(dtype)
        assert abs(float(feeds[name].astype(np.float64).mean())) < 0.2
        assert 0.8 < float(feeds[name].astype(np.float64).std()) < 1.2
    assert feeds["t"].dtype == np.bool_ and 100 < feeds["t"].sum() < 300
    assert set(feeds["i"].tolist()) == set(feeds["w"].tolist()) == {0, 1}
    assert feeds["s"].min() < -100 and feeds["s"].max() > 100 and feeds["u"].max() > 200
    assert set(feeds["n"].astype(int).tolist()) == set(range(-8, 8))
    assert feeds["c"].dtype == np.complex64 and feeds["c"].imag.std() > 0.5
    assert feeds["z"].dtype == object and all(isinstance(w, str) for w in feeds["z"])


def test_made_up_values_are_the_same_for_the_same_seed_and_name(model: Build) -> None:
    g = model("float[4] x, float[4] v")
    assert np.array_equal(fed(g)["x"], fed(g, needs=["x"])["x"])  # whatever else is needed
    assert not np.array_equal(fed(g)["x"], fed(g)["v"])
    assert not np.array_equal(fed(g)["x"], fed(g, seed=1)["x"])


@pytest.mark.parametrize(
    ("body", "high"),
    [
        ("y = Gather(table, i)", 5),
        ("y = Gather<axis = 1>(table, i)", 7),
        ("y = Gather<axis = -1>(table, i)", 7),
        ("a = Gather(table, i)  y = Gather<axis = 1>(table, i)", 5),  # the smallest
        ("a = Cast<to = 6>(i)  b = Unsqueeze(a, i)  y = Gather(table, b)", 5),
        ("a = Concat<axis = 0>(i, i)  y = Gather(table, a)", 5),
        ("a = Concat<axis = 0>(one, i)  y = Gather(table, a)", 5),
        ("y = GatherElements(table, i)", 5),
        ("y = Gather(x, i)", 3),  # a table that is fed itself
        ("a = Foo(x)  y = Gather(a, i)", 1),  # of a size that nobody knows
        ("y = Gather(i, one)", None),  # it is the table, not the index
        ("y = Foo(i)", None),
    ],
)
def test_indices_stay_within_their_table(model: Build, body: str, high: int | None) -> None:
    g = model(
        "int64[500] i, float[3,2] x",
        body,
        table=np.zeros((5, 7), np.float32),
        one=np.ones(1, np.int64),
    )
    values = fed(g)["i"]
    assert values.min() == 0 and values.max() == (high or 2) - 1


def test_first_dimension_without_a_number_is_1_others_are_asked_for(model: Build) -> None:
    assert fed(model("float[N,3] x"))["x"].shape == (1, 3)
    assert fed(model("float[?,3] x"))["x"].shape == (1, 3)
    assert fed(model("float x"))["x"].shape == ()
    assert fed(model("float[0,3] x"))["x"].shape == (0, 3)
    with raises(InputError, "input.unknown-dimension", "'x'", "'T' (axis 1)") as refusal:
        fed(model("float[N,T] x"))
    assert "--shape T=N" in refusal.value.hint
    with raises(InputError, "input.unknown-dimension", "(axis 2)", "--shape x=1x3x?"):
        fed(model("float[N,3,?] x"))
    with raises(InputError, "input.no-shape", "'x'"):
        fed(
            model(
                "float[] x", change=lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")
            )
        )


def test_symbol_means_the_same_size_everywhere(tmp_path: Path, model: Build) -> None:
    g = model("float[B,T] x, int64[B,T] ids, bool[T] mask")
    feeds = fed(g, shapes={"x": [4, 6]})
    assert (feeds["x"].shape, feeds["ids"].shape, feeds["mask"].shape) == ((4, 6), (4, 6), (6,))
    np.save(tmp_path / "x.npy", np.zeros((2, 5), np.float32))
    feeds = fed(g, tmp_path / "x.npy")
    assert (feeds["ids"].shape, feeds["mask"].shape) == ((2, 5), (5,))
    assert fed(g, shapes={"x": [4, 6]}, needs=["mask"])["mask"].shape == (6,)
    assert fed(g, shapes={"T": [7]})["ids"].shape == (1, 7)


def test_optional_input_is_empty_and_a_sequence_has_one_element(model: Build) -> None:
    feeds = fed(model("optional(float[2]) x, seq(float[2]) s"))
    assert feeds["x"] is None and [a.shape for a in feeds["s"]] == [(2,)]


def test_dimension_that_must_be_a_mistake(model: Build) -> None:
    with raises(InputError, "input.too-large", "x", "1×99999999999", "372.5 GiB"):
        fed(model("float[1,99999999999] x"))


def test_input_without_an_element_type(model: Build) -> None:
    def forget(made: onnx.ModelProto) -> None:
        made.graph.input[0].type.tensor_type.elem_type = 0

    with raises(InputError, "input.no-type", "'x'"):
        fed(model("float[2] x", change=forget))


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", b""),
        (
            "a.npy",
            (
                b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape':"
                b" (99999999999, 9), }"
            ),
        ),
        ("a.npy", b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118),
        ("a.npz", b"PK\x03\x04 and no more"),
        ("a.npz", b""),
        ("a.pb", b"\xff\xff\xff"),
        ("a.pb", b""),
        ("a.pb", TensorProto(dims=[1 << 40], data_type=1, raw_data=b"1234").SerializeToString()),
        ("a.pb", b"\x08\x02\x10\x63"),  # an element type of a later onnx
        ("a.pb", TensorProto(dims=[1], data_type=1, data_location="EXTERNAL").SerializeToString()),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, model: Build, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        fed(model("float[2,3] x"), tmp_path / name)


def test_objects_in_a_file_are_never_run(tmp_path: Path, model: Build) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", allow_pickle=True, x=np.array([{}], object))
    for name in ("a.npy", "a.npz"):
        with raises(InputError, "tensor.unreadable"):
            fed(model("float[1] x"), tmp_path / name)


def test_archive_with_a_password(tmp_path: Path, model: Build) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    for at, name in ((6, b"PK\x03\x04"), (8, b"PK\x01\x02")):
        data[data.index(name) + at] |= 1  # the flag that says: encrypted
    (tmp_path / "a.npz").write_bytes(data)
    assert zipfile.ZipFile(tmp_path / "a.npz").namelist() == ["x.npy"]
    with raises(InputError, "tensor.unreadable"):
        fed(model("float[2,3] x"), tmp_path / "a.npz")


def test_odd_file_names_are_sorted_too(tmp_path: Path, model: Build) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    names = ["1²2", "1", "²", "٣", "a1b22", "a1b3", "-", "0001"]
    for name in names:
        np.save(folder / f"{name}.npy", np.zeros(2, np.float32))
    found = list(samples(model("float[2] x"), folder))
    assert sorted(found) == sorted(names)
    assert found.index("a1b3") < found.index("a1b22")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int4", "float16", "int64"])
def test_input_is_drawn_in_pieces_within_its_own_size(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers do not depend on the pieces."""
    spec = InputSpec("x", "tensor", dtype, [1 << 20], None, "")
    monkeypatch.setattr(load_inputs, "PIECE_ELEMENTS", 1 << 20)
    sample = Sample("", [], [spec], ["x"], 0)
    whole, _ = load_inputs.generate_input(spec, {}, sample)
    monkeypatch.setattr(load_inputs, "PIECE_ELEMENTS", 1 << 12)
    tracemalloc.start()
    array, _ = load_inputs.generate_input(spec, {}, sample)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(array, np.ndarray) and isinstance(whole, np.ndarray)
    assert array.tobytes() == whole.tobytes()
    assert peak < array.nbytes + (1 << 17)


CODED = "y = DequantizeLinear (x, s, z)"
SCALE = "<float s = {0.5}, int8 z = {-128}>"


@pytest.fixture
def coded(tmp_path: Path) -> Graph:
    """A model that takes int8 codes of scale 0.5 and zero point -128."""
    text = f"g (int8[1,3,2,2] x) => (float[1] y) {SCALE} {{ {CODED} }}"
    return text_models.load(tmp_path, text)


def test_floats_are_quantized_by_the_scale_of_the_input(coded: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((1, 3, 2, 2), 3.0, np.float32))
    assert (fed(coded, tmp_path / "x.npy")["x"] == -122).all()
    assert "scale 0.5" in origins(coded, tmp_path / "x.npy")["x"]


def test_pixels_are_codes_of_an_int8_input(coded: Graph, picture: Path) -> None:
    assert fed(coded, picture)["x"][0, 0].tolist() == [[127, -128], [-128, -118]]


def test_scaled_picture_is_quantized_by_the_scale_of_the_input(coded: Graph, picture: Path) -> None:
    value = fed(coded, picture, picture=ImageOptions(scale=(0.1,)))["x"]
    assert value[0, 0].tolist() == [[-77, -128], [-128, -126]]


def test_codes_of_another_type_are_refused(coded: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((1, 3, 2, 2), 200, np.uint8))
    with raises(InputError, "input.wrong-type"):
        fed(coded, tmp_path / "x.npy")


def test_file_that_cannot_be_fed_is_named(coded: Graph, tmp_path: Path) -> None:
    (tmp_path / "net.espdl").write_bytes(b"EDL2" + bytes(60))
    with raises(InputError, "input.unknown-kind", "ESP-DL"):
        fed(coded, tmp_path / "net.espdl")
