"""Reading and writing models whose weights stay on disk; damaged and hostile files."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fixtures import graphs
from subgraph.errors import DataError, ModelError, OutputError
from subgraph.graph import graph, protobuf
from subgraph.graph.cut import cut
from subgraph.graph.value_types import find_declared_types
from subgraph.storage import dtypes, folders
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.walked_files import walk_files

NO_LINKS = pytest.mark.posix(
    "on Windows symbolic links need a privilege; there are no pipes among files"
)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is walked, and every weight of 100 bytes becomes a stub."""
    walk_files(monkeypatch)


def write(folder: Path, model: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


# ------------------------------------------------------------ reading


def test_the_classes_are_onnxs_own_whoever_comes_first(tmp_path: Path) -> None:
    """`onnx_ml_pb2` is loaded without the package around it; a later `import onnx` gives the same
    classes."""
    lines = (
        "import sys; from subgraph.graph import protobuf; mine = protobuf.load_protos().ModelProto",
        "assert 'onnx' not in sys.modules",
        (
            "import onnx; assert onnx.ModelProto is mine;"
            " onnx.checker.check_model(onnx.load(sys.argv[1]))"
        ),
    )
    path = write(tmp_path, graphs.plain())
    subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(lines), path], check=True)


@pytest.mark.usefixtures("large")
def test_large_weights_stay_on_disk(tmp_path: Path) -> None:
    model = graphs.plain()
    model.graph.initializer.append(numpy_helper.from_array(np.arange(3.0), "small"))
    path = write(tmp_path, model)
    found = {t.name: t for t in protobuf.read(path).model.graph.initializer}
    assert set(found) == {"W0", "W1", "W2", "small"}
    assert not protobuf.is_on_disk(found["small"])
    for name in ("W0", "W1", "W2"):
        blob = protobuf.locate(found[name], path)
        true = next(t for t in model.graph.initializer if t.name == name)
        assert (blob.file, blob.length) == (path, 256)
        assert path.read_bytes()[blob.offset : blob.offset + blob.length] == true.raw_data
        assert protobuf.load_raw(found[name], path).raw_data == true.raw_data
        assert not found[name].raw_data


@pytest.mark.usefixtures("large")
def test_values_that_are_not_raw_stay_in_the_message(tmp_path: Path) -> None:
    model = graphs.plain()
    values = [float(i) for i in range(64)]
    model.graph.initializer[1].CopyFrom(helper.make_tensor("W1", TensorProto.FLOAT, [8, 8], values))
    found = protobuf.read(write(tmp_path, model)).model.graph.initializer
    assert next(list(t.float_data) for t in found if t.name == "W1") == values


@pytest.mark.parametrize("walk", [0, 1 << 20])
def test_everything_but_the_weights_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int
) -> None:
    walk_files(monkeypatch, walk, None)
    for build in (
        graphs.metadata,
        graphs.quantization_annotations,
        graphs.nested_functions,
        graphs.sparse_inside,
    ):
        model = build()
        path = write(tmp_path, model)
        assert protobuf.to_onnx(protobuf.read(path).model, path) == model


@pytest.mark.parametrize("walk", [0, 1 << 20])
def test_graph_in_two_parts_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int
) -> None:
    """Protobuf messages are merged by concatenation; so an output can be appended to a file."""
    walk_files(monkeypatch, walk)
    tap = onnx.ModelProto()
    tap.graph.output.add(name="z")
    path = tmp_path / "model.onnx"
    path.write_bytes(graphs.plain().SerializeToString() + tap.SerializeToString())
    g = graph.load(path)
    assert g.outputs == ["y", "z"] and len(g.nodes) == 5 and len(g.weights) == 3


@pytest.mark.parametrize("walk", [0, 1 << 20])
def test_fields_of_a_later_onnx_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int
) -> None:
    """Field 1000 of each wire type, in the model and in the graph."""
    walk_files(monkeypatch, walk, None)
    new = b"".join(
        _tag(1000, kind) + value
        for kind, value in ((0, b"\x81\x01"), (1, b"8bytes.."), (2, b"\x02ab"), (5, b"four"))
    )
    inner = graphs.plain().graph.SerializeToString() + new
    outer = onnx.ModelProto()
    outer.CopyFrom(graphs.plain())
    outer.ClearField("graph")
    path = tmp_path / "model.onnx"
    path.write_bytes(outer.SerializeToString() + new + b"\x3a" + _varint(len(inner)) + inner)
    assert len(graph.load(path).nodes) == 5


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def test_the_digest_of_a_small_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, graphs.plain())
    assert protobuf.read(path).structure == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.usefixtures("large")
def test_the_digest_of_a_large_file_leaves_its_weights_out(tmp_path: Path) -> None:
    model = graphs.plain()
    first = protobuf.read(write(tmp_path, model)).structure
    weight = model.graph.initializer[0]
    weight.raw_data = weight.raw_data[:-1] + b"\x00"
    assert protobuf.read(write(tmp_path, model)).structure == first
    model.graph.node[0].name = "another"
    assert protobuf.read(write(tmp_path, model)).structure != first


def test_doc_strings_need_not_be_utf8(tmp_path: Path) -> None:
    """Exporters write paths and authors in the encoding of their machine. The bytes are kept."""
    model = graphs.metadata()
    data = model.SerializeToString()
    odd = data.replace(b"doc of first", b"doc of f\xefrst").replace(
        b"doc of the model", b"doc of the m\xf6del"
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(odd)
    cut(graph.load(path), "first", "last").save(tmp_path / "cut.onnx")
    saved = (tmp_path / "cut.onnx").read_bytes()
    assert b"doc of f\xefrst" in saved and b"doc of the m\xf6del" in saved


# ------------------------------------------------------------ damaged files


@pytest.mark.parametrize(
    ("head", "hint"),
    [
        (b"", ("empty file",)),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            ("git lfs pull",),
        ),
        (b"PK\x03\x04\x14\x00\x00\x00", ("zip archive",)),
        (b"<!DOCTYPE html><html>Sign in</html>", ("text",)),
        (b'  {"error": "not found"}', ("text",)),
    ],
)
@pytest.mark.parametrize("walk", [-1, 1 << 20])
def test_other_kind_of_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int, head: bytes, hint: tuple[str, ...]
) -> None:
    walk_files(monkeypatch, walk, None)
    path = tmp_path / "model.onnx"
    path.write_bytes(head)
    with pytest.raises(ModelError) as refusal:
        protobuf.read(path)
    if walk > 0 or not head:  # above 16 MiB nobody takes a page for a model
        assert has_line(f"{refusal.value.what} {refusal.value.hint}", *hint)


@pytest.mark.posix("a pipe among the files, and /dev/null")
def test_missing_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")  # opening it would wait for ever
    for place in (
        tmp_path,
        tmp_path / "absent.onnx",
        tmp_path / "pipe.onnx",
        Path("/dev/null"),
        tmp_path / ("n" * 300),
    ):
        with pytest.raises(ModelError):
            protobuf.read(place)


@pytest.mark.parametrize("large", [True, False])
def test_truncated_file_is_refused_with_the_byte_where_it_ends_too_early_or_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    walk_files(monkeypatch, 0 if large else 1 << 20)
    whole = graphs.plain().SerializeToString()
    path = tmp_path / "model.onnx"
    # the last field of the model: without it the file is whole, but no use
    opset = b"\x42\x04\x0a\x00\x10\x11"
    assert whole.endswith(opset)
    for size in range(3, len(whole) - len(opset), 7):
        path.write_bytes(whole[:size])
        with raises(ModelError, "model.damaged", "byte") as refusal:
            protobuf.read(path)
        number = re.search(r"byte (\d+)|\((\d+) bytes", refusal.value.what)
        assert number and (int(number[1]) <= size if large else int(number[2]) == size)


@pytest.mark.parametrize("walk", [0, 1 << 20])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x0a\x02W1\x12\x01b", b"\x0a\x02W1\x12\x7fb"),  # a length that leads out of the node
        (b"middle", b"mid\xffle"),  # a name that is not text
        (b"\x0a\x01x\x12", b"\x0a\x01\xfe\x12"),
    ],
)
def test_damaged_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int, old: bytes, new: bytes
) -> None:
    walk_files(monkeypatch, walk)
    whole = graphs.plain().SerializeToString()
    assert len(old) == len(new)
    path = tmp_path / "model.onnx"
    path.write_bytes(whole.replace(old, new, 1))
    with raises(ModelError, "model.damaged", str(len(whole))):
        protobuf.read(path)


@pytest.mark.parametrize("walk", [0, 1 << 20])
def test_damaged_declaration_is_found_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int
) -> None:
    walk_files(monkeypatch, walk, None)
    model = graphs.plain()
    path = tmp_path / "model.onnx"
    declared = next(v for v in model.graph.value_info if v.name == "b").SerializeToString()
    broken = declared.replace(b"\x12", b"\x13", 1)
    path.write_bytes(model.SerializeToString().replace(declared, broken))
    g = graph.load(path)
    assert cut(g, "before", "first").outputs  # far from it
    with raises(ModelError, "model.damaged"):
        cut(g, "first", "last")
    path.write_bytes(
        model.SerializeToString().replace(declared, declared[:2] + b"\xff" + declared[3:])
    )
    with raises(ModelError, "model.damaged"):
        find_declared_types(graph.load(path))


# ------------------------------------------------------------ weights


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        (TensorProto.FLOAT, (2, 3), 24),
        (TensorProto.BOOL, (5,), 5),
        (TensorProto.BFLOAT16, (5,), 10),
        (TensorProto.FLOAT8E4M3FN, (5,), 5),
        (TensorProto.INT4, (5,), 3),
        (TensorProto.UINT4, (0,), 0),
        (TensorProto.FLOAT4E2M1, (3, 3), 5),
        (dtypes.TYPE_NUMBERS["int2"], (5,), 2),
        (TensorProto.COMPLEX128, (), 16),
        (TensorProto.DOUBLE, (0, 1 << 62), 0),
    ],
)
def test_weight_has_its_size(dtype: int, shape: tuple[int, ...], size: int) -> None:
    assert protobuf.count_bytes(TensorProto(data_type=dtype, dims=shape)) == size


KNOWN = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}  # to the installed onnx


@pytest.mark.parametrize("number", sorted(KNOWN))
def test_every_element_type_has_its_name_and_size(number: int) -> None:
    name, bits = dtypes.TYPES[number]
    dtype = helper.tensor_dtype_to_np_dtype(number)
    if name != "string":
        assert dtype.name == name
        assert bits == dtype.itemsize * 8 or bits < 8


def test_no_element_type_of_onnx_is_missing() -> None:
    assert set(dtypes.TYPES) >= KNOWN


@pytest.mark.parametrize(
    ("dtype", "dims"),
    [(TensorProto.STRING, (2,)), (77, (2,)), (0, (2,)), (TensorProto.FLOAT, (-1,))],
)
def test_weight_without_a_size_is_refused(dtype: int, dims: tuple[int, ...]) -> None:
    tensor = TensorProto(name="w", dims=dims)
    # as a damaged file has it: the class itself takes no unknown type
    wire_type = b"\x10" + bytes([dtype])
    with pytest.raises(ModelError, match="'w'"):
        protobuf.count_bytes(TensorProto.FromString(tensor.SerializeToString() + wire_type))


def external(**entries: str) -> onnx.TensorProto:
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({"location": "d", "offset": "-4"}, "weight.too-short"),
        ({"location": "d", "offset": "8"}, "weight.too-short"),
        ({"location": "d", "offset": "9" * 30}, "weight.too-short"),
        ({"location": "d", "offset": "9" * 5000}, "weight.malformed-location"),
        ({"location": "d", "offset": "0x10"}, "weight.malformed-location"),
        ({"location": "d", "length": "15"}, "weight.wrong-size"),
        ({"location": "d", "length": "-16"}, "weight.wrong-size"),
        ({"location": "absent"}, "weight.missing"),
        ({"location": "folder"}, "file.not-regular"),
        pytest.param({"location": "pipe"}, "file.not-regular", marks=NO_LINKS),
        pytest.param({"location": "loop"}, "weight.missing", marks=NO_LINKS),
        ({"location": "d/inside"}, "weight.missing"),
        ({"location": "n" * 300}, "weight.missing"),
        ({"location": "../d"}, "weight.outside-folder"),
        ({"location": "folder/../../d"}, "weight.outside-folder"),
        ({"location": "..\\d"}, "weight.outside-folder"),
        ({"location": "/etc/passwd"}, "weight.absolute-path"),
        ({"location": "C:\\d"}, "weight.absolute-path"),
        ({"location": "\\\\host\\d"}, "weight.absolute-path"),
        ({"location": "d\0"}, "weight.absolute-path"),
        pytest.param({"location": "away"}, "weight.outside-folder", marks=NO_LINKS),
        pytest.param({"location": "outside/d"}, "weight.outside-folder", marks=NO_LINKS),
        ({}, "weight.no-file"),
        ({"location": ""}, "weight.no-file"),
    ],
)
def test_unavailable_external_data_is_refused(
    tmp_path: Path, entries: dict[str, str], code: str
) -> None:
    folder = tmp_path / "models"
    elsewhere = tmp_path / "elsewhere"
    for place in (folder / "folder", elsewhere):
        place.mkdir(parents=True)
        (place / "d").write_bytes(bytes(16))
    (folder / "d").write_bytes(bytes(16))
    (folder / "model.onnx").write_bytes(bytes(64))
    if sys.platform != "win32":
        os.mkfifo(folder / "pipe")
        (folder / "loop").symlink_to("loop")
        (folder / "away").symlink_to(elsewhere / "d")
        (folder / "outside").symlink_to(elsewhere)
    with raises(DataError, code) as refusal:
        protobuf.locate(external(**entries), folder / "model.onnx")
    assert "'w'" in refusal.value.what


@pytest.mark.parametrize("location", ["nul.txt", "folder/CON", "d:stream", "folder/d:stream"])
def test_names_that_are_not_files_on_windows_are_refused(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "SPECIAL_NAMES", True)
    with pytest.raises(DataError) as refusal:
        protobuf.locate(external(location=location), tmp_path / "model.onnx")
    assert refusal.value.code in ("weight.outside-folder", "weight.absolute-path")


INSIDE = ["d", "./d", "folder/d", "folder//d", "hard", "ünïcode d"]


@pytest.mark.parametrize(
    "location", [*INSIDE, *(pytest.param(name, marks=NO_LINKS) for name in ("link", "inside/d"))]
)
def test_external_data_within_the_folder_is_read(tmp_path: Path, location: str) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("d", "folder/d", "ünïcode d"):
        (tmp_path / name).write_bytes(bytes(range(20)))
    if sys.platform != "win32":
        (tmp_path / "link").symlink_to("d")
        (tmp_path / "inside").symlink_to("folder")
    (tmp_path / "hard").hardlink_to(tmp_path / "d")
    tensor = external(location=location, offset="4")
    blob = protobuf.locate(tensor, tmp_path / "model.onnx")
    assert (blob.offset, blob.length) == (4, 16)
    assert protobuf.load_raw(tensor, tmp_path / "model.onnx").raw_data == bytes(range(4, 20))


def test_the_digest_of_weights_is_of_their_values(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(16)))
    (tmp_path / "b").write_bytes(bytes(8) + bytes(range(16)))
    model = tmp_path / "model.onnx"
    here = protobuf.digest_weights([external(location="a")], model)
    assert here == protobuf.digest_weights([external(location="b", offset="8")], model)
    assert here != protobuf.digest_weights([external(location="b", offset="4")], model)
    assert protobuf.digest_weights([], model) == ""


# ------------------------------------------------------------ writing


@pytest.fixture
def model_of_three(tmp_path: Path) -> Path:
    """Weights of 256 bytes, one without any element, and one of 5,000 bytes."""
    model = graphs.plain()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((0, 4), np.float32), "none"))
    model.graph.initializer.append(
        numpy_helper.from_array(np.arange(1250, dtype=np.float32), "more")
    )
    model.graph.node.append(helper.make_node("Foo", ["none", "more", "z"], ["v"], "foo"))
    model.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]))
    return write(tmp_path, model)


def weights_of(model: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("external_data", [False, True])
def test_weights_are_written_as_they_were(
    tmp_path: Path, model_of_three: Path, external_data: bool
) -> None:
    want = weights_of(onnx.load(model_of_three))
    skeleton = protobuf.read(model_of_three)
    out = tmp_path / "out.onnx"
    model = protobuf.to_onnx(skeleton.model, model_of_three)
    files = protobuf.write(model, model_of_three, out, external=external_data)
    assert files == [out, tmp_path / "out.onnx.data"][: 1 + external_data]
    assert weights_of(onnx.load(out)) == want
    if external_data:
        lean = onnx.load(out, load_external_data=False)
        offsets = [
            int(e.value)
            for t in lean.graph.initializer
            for e in t.external_data
            if e.key == "offset"
        ]
        assert offsets and all(offset % protobuf.ALIGNMENT_BYTES == 0 for offset in offsets)


@pytest.mark.usefixtures("large")
def test_weights_beyond_2_gb_are_written_to_a_separate_file(
    tmp_path: Path, model_of_three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf, "MAX_INLINE_BYTES", 3000)
    g = graph.load(model_of_three)
    assert cut(g, "first", "last").save(tmp_path / "a.onnx") == [tmp_path / "a.onnx"]
    assert cut(g, "first", "foo").save(tmp_path / "b.onnx") == [
        tmp_path / "b.onnx",
        tmp_path / "b.onnx.data",
    ]


@pytest.mark.usefixtures("large")
def test_file_that_shrinks_while_it_is_copied_is_an_error(
    tmp_path: Path, model_of_three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = cut(graph.load(model_of_three), "first", "foo")
    found = protobuf.locate

    def locate_and_shrink(tensor: protobuf.TensorProto, model: Path) -> protobuf.Blob:
        blob = found(tensor, model)
        os.truncate(model_of_three, 400)
        return blob

    monkeypatch.setattr(protobuf, "locate", locate_and_shrink)
    with pytest.raises((OutputError, DataError)):
        c.save(tmp_path / "out.onnx")


def test_unwritable_place_is_an_error(tmp_path: Path) -> None:
    c = cut(graph.load(write(tmp_path, graphs.plain())), "first", "last")
    with raises(OutputError, "output.unwritable"):
        c.save(tmp_path / "absent" / "out.onnx")


def test_weights_in_bodies_and_functions_come_along(tmp_path: Path) -> None:
    """External data of a Constant in a local function is moved inside: beside the cut it would be
    missing."""
    made = text_models.model(
        'g (float[4] x) => (float[4] y) { a = Relu(x)  y = fx.add(a) } <domain: "fx", opset_import:'
        ' ["" : 17]> add (v) => (r) { c = Constant<value = float[1] {0}>()  r = Add(v, c) }',
        domains=("fx",),
    )
    made.functions[0].node[0].attribute[0].t.CopyFrom(external(location="d"))
    (tmp_path / "d").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "elsewhere").mkdir()
    cut(text_models.read(tmp_path, made), "y", "y").save(tmp_path / "elsewhere/out.onnx")
    function = onnx.load(tmp_path / "elsewhere/out.onnx").functions[0]
    assert numpy_helper.to_array(function.node[0].attribute[0].t).tolist() == [0, 1, 2, 3]
