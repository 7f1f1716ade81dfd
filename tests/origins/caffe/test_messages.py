"""Protobuf's text format is read into a tree, and written again. Fields have kinds and defaults; a
misspelt field is an error with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.errors import ModelError
from subgraph.origins.caffe import messages
from subgraph.origins.caffe.messages import Message, Parameters, Scalar
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

PATH = Path("net.prototxt")


def parse(data: str) -> Message:
    return messages.parse(data, PATH)


def flat(message: Message) -> list[object]:
    return [(n, v.text if isinstance(v, Scalar) else flat(v)) for n, v in message.fields]


def test_all_forms_of_a_value() -> None:
    tree = parse("""
        # a comment with { braces
        name: "a \\"b\\" \\x41\\101" 'c' dim: [1, -2, 0x10]; scale: 1.5e-3f, flag: true
        inner { x: 1 } other: { y: MAX }  third < z: 'q' >
    """)
    expected = [
        ("name", 'a "b" AAc'),
        ("dim", "1"),
        ("dim", "-2"),
        ("dim", "0x10"),
        ("scale", "1.5e-3f"),
        ("flag", "true"),
        ("inner", [("x", "1")]),
        ("other", [("y", "MAX")]),
        ("third", [("z", "q")]),
    ]
    assert flat(tree) == expected


def test_written_text_is_read_again() -> None:
    tree = parse('name: "a\\\\b\\"\\n" layer { type: "X" p { q: 1 q: 2 } }')
    assert flat(parse(messages.write(tree))) == flat(tree)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.prototxt").write_bytes(b"name: \xff")
    with raises(ModelError, "caffe.not-text", "byte 6"):
        messages.read(tmp_path / "a.prototxt")
    with raises(ModelError, "model.unreadable"):
        messages.read(tmp_path / "none.prototxt")


def read(name: str, data: str) -> Parameters:
    return Parameters(name, parse(data), "n")


def test_defaults_and_values() -> None:
    p = read(
        "convolution_param",
        "num_output: 8 kernel_size: 3 kernel_size: 5 bias_term: false weight_filler { type: 'x' }",
    )
    assert (p.num_output, p.kernel_size, p.bias_term, p.group, p.pad, p.kernel_h) == (
        8,
        [3, 5],
        False,
        1,
        [],
        None,
    )
    assert read("lrn_param", "alpha: 1e-4f").alpha == 1e-4
    assert read("elu_param", "alpha: inf").alpha == float("inf")
    assert read("reshape_param", "shape { dim: 0 dim: -1 }").shape.dim == [0, -1]


def test_the_hint_of_an_unknown_field_is_said_once() -> None:
    said = {}
    for data in ("kernal_size: 3", "qqqqqqqqqqqq: 1"):
        with pytest.raises(ModelError) as refusal:
            read("convolution_param", data)
        said[data] = refusal.value.hint
    assert has_line(said["kernal_size: 3"], "'kernel_size'", "change the result")
    assert has_line(said["qqqqqqqqqqqq: 1"], "change the result")
    assert len(said) == 2
