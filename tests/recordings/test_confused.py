"""Recordings whose names are exchanged or written otherwise, and whose axes lie in an order that no
value confirms.

Covers `recordings.matching.unnamed`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fixtures.oracle import tapped
from subgraph.errors import InputError
from subgraph.recordings import recording
from subgraph.recordings.matching.matched import Reason
from subgraph.recordings.run_comparison import RunComparison
from subgraph.runtime.reference import Reference
from subgraph.types import Array
from subgraph.verdict import Status
from tests.helpers import text_models
from tests.helpers.compared_dumps import compare_dump
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut
from tests.helpers.runs import evaluate

TEXT = """g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] out)
{
    layer1_0 = Conv <pads = [1, 1, 1, 1]> (x, w1)
    layer1_1 = Conv <pads = [1, 1, 1, 1]> (layer1_0, w2)
    act = Relu (layer1_1)
    last = Conv <pads = [1, 1, 1, 1]> (act, w3)
    rows = Reshape (last, to_rows)
    heads = Reshape (rows, to_heads)
    turned = Transpose <perm = [0, 1, 3, 2]> (heads)
    scores = MatMul (heads, turned)
    scaled = Mul (scores, scale)
    shares = Softmax <axis = -1> (scaled)
    mixed = MatMul (shares, heads)
    out = Reshape (mixed, to_image)
}"""
IMAGES = ("layer1.0", "layer1.1", "act", "last")  # that the device has with channels last


def made(fault: str = "") -> onnx.ModelProto:
    """The model; with a `fault`, the weight of this name rolled."""
    draw = np.random.default_rng(0).standard_normal
    weights: dict[str, Any] = {
        n: np.roll((draw((4, 4, 3, 3)) / 4).astype(np.float32), n == fault, 0)
        for n in ("w1", "w2", "w3")
    }
    shapes: dict[str, Any] = {
        "to_rows": np.array([1, 24, 6]),
        "to_heads": np.array([1, 6, 4, 6]),
        "to_image": np.array([1, 4, 6, 6]),
    }
    model = text_models.model(TEXT, **weights, **shapes, scale=np.float32(0.1))
    for names in (f for node in model.graph.node for f in (node.input, node.output)):
        names[:] = [n.replace("layer1_", "layer1.") for n in names]
    return model


def values(folder: Path, fault: str = "") -> dict[str, Array]:
    """All tensors of the model with this fault; the right model and an input lie in the folder
    then."""
    onnx.save(made(), folder / "m.onnx")
    data = np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype(np.float32)
    np.save(folder / "x.npy", data)
    names = [n for node in made().graph.node for n in node.output]
    return evaluate(tapped(made(fault), names), {"x": data}, names)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    return folder


def compared(dump: Path) -> tuple[RunComparison, list[list[str]]]:
    """The recording, and the operators of each of its intervals."""
    with Reference() as reference:
        found = compare_dump(reference, dump.parent / "m.onnx", dump, dump.parent / "x.npy")
    return found.run, found.places


def test_exchanged_values_are_told(dump: Path) -> None:
    """Nothing is repaired: the recording is wrong as its names say."""
    written = values(dump.parent)
    turn = dict(zip(IMAGES, (*IMAGES[1:], IMAGES[0]), strict=True))
    for name, value in written.items():
        np.save(dump / f"{turn.get(name, name)}.npy", value)
    found, _ = compared(dump)
    assert found.status is Status.FAIL and found.failing == [*IMAGES]
    assert {
        name: row.match.others.held for name, row in found.rows.items() if row.match.others.held
    } == {turn[name]: name for name in IMAGES}
    assert has_line(found.notes, "layer1.0, last, act", "layer1.1")


def test_value_of_a_tensor_without_a_file_is_told(dump: Path) -> None:
    """A file has the name of another tensor, whose own file is missing."""
    written = values(dump.parent)
    written["act"] = written.pop("layer1.0")
    for name, value in written.items():
        np.save(dump / f"{name}.npy", value)
    found, _ = compared(dump)
    assert found.failing == ["act"] and found.rows["act"].match.others.held == "layer1.0"


def test_device_that_exchanges_tensors_is_wrong(dump: Path) -> None:
    written = values(dump.parent)
    written |= {
        "layer1.0": written["layer1.1"],
        "layer1.1": written["layer1.0"],
        "act": written["layer1.0"].clip(0),
    }
    for name, value in written.items():
        np.save(dump / f"{name}.npy", value)
    found, places = compared(dump)
    assert found.failing == ["layer1.0", "layer1.1", "act"] and has_line(
        found.notes, "layer1.0", "layer1.1"
    )
    assert places[0] == ["#0"], places


def test_dots_in_names_of_headerless_files(dump: Path) -> None:
    for name, value in values(dump.parent).items():
        value.tofile(dump / f"{name.replace('.', '_')}.bin")
    found, _ = compared(dump)
    assert found.status is Status.AGREE and len(found.rows) == 12, found.notes


@pytest.mark.parametrize(("fault", "place"), [("", []), ("w2", [["#1"]])])
def test_axes_in_an_order_that_no_value_confirms(
    fault: str, place: list[list[str]], dump: Path
) -> None:
    """Images have channels last, attention has not: behind a fault no tensor of it is said to add
    an error."""
    (dump / "Result_0").mkdir()
    for name, value in values(dump.parent, fault).items():
        stored = value.transpose(0, 2, 3, 1) if name in IMAGES else value
        np.ascontiguousarray(stored).tofile(dump / f"Result_0/{name.replace('.', '_')}.raw")
    found, places = compared(dump)
    assert places == place
    notes = {name: row.match.note for name, row in found.rows.items()}
    assert all(("as NHWC" in note) == (name in IMAGES) for name, note in notes.items()), notes
    unknown = {name for name, note in notes.items() if "not known" in note}
    assert unknown == (notes.keys() - {*IMAGES} if fault else set()), notes


def test_image_that_no_value_confirms_lies_as_the_others(dump: Path) -> None:
    (dump / "Result_0").mkdir()
    for name, value in values(dump.parent, "w3").items():
        if name in IMAGES:
            value.transpose(0, 2, 3, 1).tofile(dump / f"Result_0/{name.replace('.', '_')}.raw")
    found, places = compared(dump)
    assert places == [["#3"]] and found.failing == ["last"]
    assert found.rows["last"].match.note == "as NHWC"


def test_msprobe_writes_npy(dump: Path) -> None:
    folder = dump / "dump_tensor_data"
    folder.mkdir()
    calls = {}
    written = values(dump.parent)
    for k, (name, value) in enumerate(written.items()):
        np.save(folder / f"Functional.{name}.{k}.forward.output.0.npy", value)
        calls[f"Functional.{name}.{k}.forward"] = {
            "output": [{"data_name": f"Functional.{name}.{k}.forward.output.0.npy"}]
        }
    (dump / "dump.json").write_text(json.dumps({"data": calls}), encoding="utf-8")
    found = recording.open(dump)
    assert found.format == "msprobe" and [e.label for e in found] == [
        name.removesuffix(".forward") for name in calls
    ]
    assert all(
        np.array_equal(e.read(), value) for e, value in zip(found, written.values(), strict=True)
    )


@pytest.mark.parametrize("command", ["compare", pytest.param("bisect", marks=pytest.mark.slow)])
def test_export_is_judged_without_the_floor_of_approximate_kernels(
    tmp_path: Path, command: str
) -> None:
    """A GroupNorm whose epsilon was lost moved its tensor by 1.7e-3: another line was named."""
    text = """g (float[1, 4, 8] x) => (float[1, 4, 8] y) {{
        a = InstanceNormalization <epsilon = {}> (x, one, zero)
        b = LeakyRelu (a)
        y = Exp (b)
    }}"""
    ends: dict[str, Any] = {"one": np.ones(4, np.float32), "zero": np.zeros(4, np.float32)}
    made, module = (text_models.model(text.format(epsilon), **ends) for epsilon in ("1e-5", "1e-3"))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((1, 4, 8), np.float32))
    (tmp_path / "rec").mkdir()
    names = ["a", "b", "y"]
    for name, value in evaluate(
        tapped(module, names), {"x": np.load(tmp_path / "x.npy")}, names
    ).items():
        np.save(tmp_path / f"rec/{name}.npy", value)
    words = (command, "m.onnx", "--recorded", "rec", "-i", "x.npy", "--json")
    assert subcut(*words, cwd=tmp_path).code == 0, "a device's kernels may do so"
    (tmp_path / "rec/manifest.json").write_text('{"schema": "subcut.torch/1"}', encoding="utf-8")
    done = subcut(*words, cwd=tmp_path)
    assert done.code == 1 and done.document["criterion"] == "noise:floor=1e-5", done.out + done.err
    assert done.document["recordings"][0]["first_bad"] == "a"


def test_cast_that_an_export_added_excuses_nothing(tmp_path: Path) -> None:
    """A Cast to float16 and back made all that is behind it a claim of float16: an export that has
    one was right."""
    text = """g (float[4, 16] x) => (float[4, 16] y) {
        a = Mul (x, two) h = Cast <to = 10> (a) b = Cast <to = 1> (h) m = Transpose <perm = [1, 0]> (b)
        n = Transpose <perm = [1, 0]> (m) y = Sigmoid (n) }"""  # noqa: E501
    model = text_models.model(text, two=np.float32(1.7))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal((4, 16), np.float32)
    np.save(tmp_path / "x.npy", x)

    def compare(a: Array, b: Array, folder: str, module: bool = True) -> tuple[int, str, str]:
        (tmp_path / folder).mkdir()
        for name, value in {"a": a, "m": b.T, "y": 1 / (1 + np.exp(-b))}.items():
            np.save(tmp_path / folder / f"{name}.npy", value)
        if module:
            (tmp_path / folder / "manifest.json").write_text(
                '{"schema": "subcut.torch/1"}', encoding="utf-8"
            )
        done = subcut(
            "compare", "m.onnx", "--recorded", folder, "-i", "x.npy", "--json", cwd=tmp_path
        )
        (found,) = done.document["recordings"]
        return (
            done.code,
            found["first_bad"],
            next(r["runs"][0]["note"] for r in done.document["rows"] if r["tensor"] == "m"),
        )

    a = x * np.float32(1.7)
    code, first, note = compare(a, a, "without")
    assert (code, first) == (1, "m")
    assert has_line(note, "narrower", "(h)")
    assert compare(a, a, "device", module=False)[0] == 0, "a runtime may keep float32 between Casts"
    narrow = a.astype(np.float16)
    # between two of its steps both are right
    narrow[0, 0] = np.nextafter(narrow[0, 0], np.float16(9))
    assert compare(a, narrow.astype(np.float32), "with")[0] == 0


@pytest.mark.parametrize("is_shuffled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_fault_among_names_that_say_nothing(dump: Path, is_shuffled: bool) -> None:
    """Only the planted node is named; which tensors the entries behind it hold is told by the
    nodes."""
    written = values(dump.parent, "w2")
    order = np.random.default_rng(0).permutation(len(written))
    for k, value in enumerate(written.values()):
        np.save(dump / f"{order[k] if is_shuffled else k:04d}.npy", value)
    found, places = compared(dump)
    assert places == [["#1"]], (places, [row.match.note for row in found.rows.values()])
    assert found.status is Status.FAIL and len(found.rows) >= 10


@pytest.mark.parametrize(
    "text", [b"", b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order'"]
)
def test_one_unreadable_file_is_left_out_by_name(dump: Path, text: bytes) -> None:
    for name, value in values(dump.parent, "w2").items():
        np.save(dump / f"{name}.npy", value)
    (dump / "rows.npy").write_bytes(text)
    found, places = compared(dump)
    assert places == [["#1"]] and len(found.rows) == 11
    assert any(has_line(note, "1 of 12", "read") and "rows.npy" in note for note in found.notes)
    for name in ("act", "last"):
        (dump / f"{name}.npy").write_bytes(text)
    with raises(InputError, "recording.damaged", "last.npy"):
        recording.open(dump)


def test_table_of_statistics_says_what_it_is(dump: Path) -> None:
    (dump / "layers.csv").write_text("layer,min,max,mean\nconv1,0,1,0.5\n", encoding="ascii")
    with raises(InputError, "recording.no-tensors", "layers.csv", "max, mean, min"):
        recording.open(dump)


FEED_FORWARD = """g (float[1, 6, 16] x) => (float[1, 8] out)
{
    a = MatMul (x, w0)
    first = Add (a, b0)
    h = MatMul (first, w1)
    wide = Add (h, b1)
    d = Div (wide, root)
    e = Erf (d)
    f = Add (e, one)
    g = Mul (wide, f)
    act = Mul (g, half)
    y = MatMul (act, w2)
    narrow = Add (y, b2)
    sum = Add (first, narrow)
    mean = ReduceMean <axes = [1], keepdims = 0> (sum)
    out = MatMul (mean, w3)
}"""


def feed_forward(folder: Path, fault: bool = False) -> dict[str, Array]:
    """All tensors of a small network whose nodes a runtime fuses, with the weights of `h` rolled
    where it is at fault; the right model and an input lie in the folder then."""
    draw = np.random.default_rng(0).standard_normal
    shapes = {
        "w0": (16, 16),
        "b0": (16,),
        "w1": (16, 24),
        "b1": (24,),
        "w2": (24, 16),
        "b2": (16,),
        "w3": (16, 8),
    }
    weights: dict[str, Any] = {
        n: (draw(s) / (40 if n in ("w2", "b2") else 4)).astype(np.float32)
        for n, s in shapes.items()
    }
    numbers: dict[str, Any] = {
        "root": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    text_models.save(folder / "m.onnx", FEED_FORWARD, **weights, **numbers)
    x = draw((1, 6, 16)).astype(np.float32)
    np.save(folder / "x.npy", x)
    if fault:
        weights["w1"] = np.roll(weights["w1"], 1, 0)
    model = text_models.model(FEED_FORWARD, **weights, **numbers)
    names = [n for node in model.graph.node for n in node.output]
    return evaluate(tapped(model, names), {"x": x}, names)


def test_numbered_blobs_of_fused_nodes_are_found_behind_a_fault(dump: Path) -> None:
    """As ncnn's of a model that pnnx converted: GELU and MatMul with Add are one layer each, and
    Split copies."""
    written = feed_forward(dump.parent, fault=True)
    for number, name in enumerate(("first", "wide", "act", "narrow", "sum", "sum", "mean", "out")):
        np.save(dump / f"{number}.npy", written[name])
    found, places = compared(dump)
    assert [sorted(place) for place in places] == [["#2", "#3"]]
    assert [*found.rows] == ["first", "wide", "act", "narrow", "sum", "mean", "out"]
    assert not any("wrong values?" in note for note in found.notes), found.notes


def test_output_of_few_numbers_is_found_where_it_is_the_same(dump: Path) -> None:
    written = feed_forward(dump.parent)
    for number, name in enumerate(("first", "sum", "mean", "out")):
        np.save(dump / f"{number}.npy", written[name])
    np.save(dump / "4.npy", written["out"] * 1.001)
    found, _ = compared(dump)
    assert found.status is Status.AGREE and found.rows["out"].match.entry.tensor == "3"


def test_stranger_is_no_summand_though_the_sum_is_near(dump: Path) -> None:
    """It is small beside the other summand, so whatever it holds the sum is nearly the recorded
    one."""
    written = feed_forward(dump.parent, fault=True)
    for number, name in enumerate(("first", "sum", "mean", "out")):
        np.save(dump / f"{number}.npy", written[name])
    np.save(
        dump / "9.npy", np.random.default_rng(7).standard_normal((1, 6, 16)).astype(np.float32) / 50
    )
    found, places = compared(dump)
    assert [*found.rows] == ["first", "sum", "mean", "out"]
    assert len(places) == 1 and "#2" in places[0]


def test_codes_without_names_are_found_by_value(dump: Path) -> None:
    text = """g (float[1, 64] x) => (float[1, 64] y) {
        a = QuantizeLinear (x, scale, zero)
        b = DequantizeLinear (a, scale, zero)
        y = Relu (b)
    }"""
    numbers = {"scale": np.float32(0.02), "zero": np.int8(3)}
    text_models.save(dump.parent / "m.onnx", text, **numbers)
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    np.save(dump.parent / "x.npy", x)
    codes = np.clip(np.rint(x / np.float32(0.02)) + 3, -128, 127).astype(np.int8)
    np.save(dump / "t0.npy", codes)
    found, _ = compared(dump)
    assert list(found.rows) == ["a"] and found.rows["a"].match.how == "value"


def test_few_numbers_are_found_by_their_order(dump: Path) -> None:
    text = """g (float[1, 64] x) => (float[1, 1] y) {
        a = Relu (x)
        m = ReduceMean <axes = [1]> (a)
        y = Sqrt (m)
    }"""
    text_models.save(dump.parent / "m.onnx", text)
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    np.save(dump.parent / "x.npy", x)
    mean = x.clip(0).mean(1, keepdims=True)
    for number, value in enumerate((x.clip(0), mean, np.sqrt(mean))):
        np.save(dump / f"t{number}.npy", value)
    np.save(dump / "t1_of_the_tool.npy", mean * 9)
    found, _ = compared(dump)
    assert {name: row.match.how for name, row in found.rows.items()} == {
        "a": "value",
        "m": "order",
        "y": "order",
    }
    np.save(dump / "t2.npy", np.sqrt(mean) * 2)
    found, _ = compared(dump)
    assert [*found.rows] == ["a"], "a value that is not near confirms no order"


def test_few_numbers_that_int8_has_rounded_are_found_by_their_order(dump: Path) -> None:
    """Ten different numbers identify a tensor only where they are the same."""
    text = """g (float[1, 64] x) => (float[1, 10] y) {
        a = Relu (x)
        y = MatMul (a, w)
    }"""
    draw = np.random.default_rng(0).standard_normal
    weight = draw((64, 10)).astype(np.float32)
    text_models.save(dump.parent / "m.onnx", text, w=weight)
    x = draw((1, 64)).astype(np.float32)
    np.save(dump.parent / "x.npy", x)
    step = np.float32(0.02)
    read = np.rint(x.clip(0) / step) * step
    np.save(dump / "t0.npy", read)
    np.save(dump / "t1.npy", read @ weight)
    found, _ = compared(dump)
    assert found.rows["y"].match.how == "order"


def test_weights_without_names_are_no_tensors(dump: Path) -> None:
    """As of TFLite Micro with all tensors preserved: the weights are codes, and some of few
    numbers."""
    text = """g (float[1, 64] x) => (float[1, 2] z) {
        w = DequantizeLinear (codes, step)
        y = MatMul (x, w)
        z = Mul (y, few)
    }"""
    draw = np.random.default_rng(0)
    codes = draw.integers(-127, 128, (64, 2)).astype(np.int8)
    few = np.array([2, -3], np.float32)
    text_models.save(dump.parent / "m.onnx", text, codes=codes, step=np.float32(0.01), few=few)
    x = draw.standard_normal((1, 64)).astype(np.float32)
    np.save(dump.parent / "x.npy", x)
    y = x @ (codes * np.float32(0.01))
    values: list[np.ndarray[Any, np.dtype[Any]]] = [codes.T, few, y, y * few]
    for number, value in enumerate(values):
        np.save(dump / f"t{number}.npy", value)
    found, _ = compared(dump)
    assert {row.match.how for row in found.rows.values()} == {"order"}
    assert [left.detail for left in found.list_left_out(Reason.NOTHING)] == [
        "the weight codes",
        "the weight few",
    ]
    assert found.status is Status.AGREE


def test_two_strangers_that_are_alike_are_no_matrix_and_its_sum_with_a_bias(dump: Path) -> None:
    """The bias is small beside them, so the sum with it is nearly the other one."""
    written = feed_forward(dump.parent)
    for number, name in enumerate(("first", "act", "sum", "mean", "out")):
        np.save(dump / f"{number}.npy", written[name])
    stranger = np.random.default_rng(7).standard_normal((1, 6, 16)).astype(np.float32)
    np.save(dump / "8.npy", stranger)
    np.save(dump / "9.npy", stranger)
    found, _ = compared(dump)
    assert [*found.rows] == ["first", "act", "sum", "mean", "out"] and not found.failing


ORDERS = """g (float[1, 6, 16] x) => (float[96] z) {
    a = MatMul (x, w)
    b = Transpose <perm = [0, 2, 1]> (a)
    c = Relu (b)
    y = MatMul (c, v)
    z = Reshape (y, flat)
}"""


def orders(folder: Path) -> dict[str, Array]:
    draw = np.random.default_rng(0).standard_normal
    weights: dict[str, Any] = {
        "w": draw((16, 16)).astype(np.float32),
        "v": draw((6, 6)).astype(np.float32),
        "flat": np.array([96]),
    }
    text_models.save(folder / "m.onnx", ORDERS, **weights)
    x = draw((1, 6, 16)).astype(np.float32)
    np.save(folder / "x.npy", x)
    model = text_models.model(ORDERS, **weights)
    return {"x": x} | evaluate(tapped(model, [*"abcyz"]), {"x": x}, [*"abcyz"])


def test_entry_is_the_tensor_whose_axes_it_has(dump: Path) -> None:
    """A tensor and its Transpose have the same numbers; the model's input is no stranger."""
    written = orders(dump.parent)
    for number, name in enumerate("xabcy"):
        np.save(dump / f"{number}.npy", written[name])
    found, _ = compared(dump)
    assert {name: row.match.entry.tensor for name, row in found.rows.items()} == {
        name: str(number) for number, name in enumerate("abcy", 1)
    }
    assert found.inputs["x"].agreeing and not found.notes


def test_output_that_repeats_a_recorded_tensor_is_not_missing(dump: Path) -> None:
    written = orders(dump.parent)
    for name in "acy":
        np.save(dump / f"{name}.npy", written[name])
    found, _ = compared(dump)
    assert found.status is Status.AGREE and "z" not in found.rows
    (dump / "y.npy").unlink()
    found, _ = compared(dump)
    assert found.status is Status.UNRESOLVED and found.unseen_outputs == ("z",)


def test_value_of_a_tensor_that_is_known_by_another_is_not_looked_for(dump: Path) -> None:
    """`b` is the Transpose of `a`: whatever else has its size is the tool's own."""
    text = """g (float[1, 6, 16] x) => (float[1, 16, 5] y) {
        a = MatMul (x, w)
        b = Transpose <perm = [0, 2, 1]> (a)
        y = MatMul (b, v)
    }"""
    draw = np.random.default_rng(0).standard_normal
    w, v, x = (draw(shape).astype(np.float32) for shape in ((16, 16), (6, 5), (1, 6, 16)))
    text_models.save(dump.parent / "m.onnx", text, w=w, v=v)
    np.save(dump.parent / "x.npy", x)
    a = x @ w
    for number, value in enumerate((a, a.transpose(0, 2, 1) @ v, a * 3 + 1)):
        np.save(dump / f"{number}.npy", value)
    found, _ = compared(dump)
    assert found.status is Status.AGREE and found.rows["a"].match.others.equal == ("b",)
