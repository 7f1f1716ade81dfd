"""Protobuf's text format is read into a tree, and written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.errors import ModelError
from subgraph.origins.caffe import message_text
from subgraph.origins.caffe.message_text import Message, Scalar
from tests.helpers.refusals import raises

PATH = Path("net.prototxt")


def parse(data: str) -> Message:
    return message_text.parse(data, PATH)


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
    assert flat(parse(message_text.write(tree))) == flat(tree)


@pytest.mark.parametrize(
    ("data", "code", "about"),
    [
        ("layer { name: 'a'", "caffe.syntax", "line 1"),
        ("layer {\n name 'a' }", "caffe.syntax", "line 2: expected ':' or '{'"),
        ("layer {\n name: }", "caffe.syntax", "line 2: expected a value"),
        ("a: 1 }", "caffe.syntax", "line 1"),
        ("a: [1, 2", "caffe.syntax", "the end"),
        ("a: 'x\ny'", "caffe.syntax", 'found "\'"'),
        ("a: \0", "caffe.syntax", "text format"),
        ("a { " * 1000, "caffe.too-deep", "16"),
        ("a", "caffe.syntax", "':' or '{'"),
    ],
)
def test_damage_is_named_with_its_line(data: str, code: str, about: str) -> None:
    with raises(ModelError, code, about):
        parse(data)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.prototxt").write_bytes(b"name: \xff")
    with raises(ModelError, "caffe.not-text", "byte 6"):
        message_text.read(tmp_path / "a.prototxt")
    with raises(ModelError, "model.unreadable"):
        message_text.read(tmp_path / "none.prototxt")
