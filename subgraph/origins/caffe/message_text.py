"""The text of a prototxt <-> a tree of messages. No schema: what a field may hold is the matter of
`fields`.

Protobuf's text format, without extensions:
https://protobuf.dev/reference/protobuf/textformat-spec/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from subgraph.errors import ModelError

MAX_BYTES = 32 << 20  # the largest public prototxt has 0.2 MB
MAX_DEPTH = 16  # Caffe's own messages go five deep

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[-+.\w]+)|(?P<mark>[{}<>:\[\]])|(?P<other>.)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, an enumerator or a string (`quoted`), with its line in the file."""

    text: str
    quoted: bool
    line: int


@dataclass(slots=True)
class Message:
    """Fields in the order of the file; a repeated field is there several times."""

    line: int = 0
    fields: list[tuple[str, Value]] = field(default_factory=list)

    def add(self, name: str, *values: str | Message, quoted: bool = False) -> Message:
        """Append a field for each value; returns the message itself."""
        self.fields += [
            (name, v if isinstance(v, Message) else Scalar(v, quoted, 0)) for v in values
        ]
        return self

    def all(self, name: str) -> list[Value]:
        """The values of a field."""
        return [value for other, value in self.fields if other == name]


Value: TypeAlias = Scalar | Message


def read(path: Path) -> Message:
    """The tree of a prototxt. Linear in its size.

    Raises:
        ModelError: it cannot be read, is not UTF-8, too large, or not protobuf's text format; names
            the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ModelError(
                f"{path} is larger than {MAX_BYTES >> 20} MB",
                "a prototxt holds no weights",
                code="caffe.too-large",
            )
        text = data.decode("utf-8-sig")
    except OSError as e:
        raise ModelError(
            f"cannot read {path}: {e.strerror or e}", "check the path", code="model.unreadable"
        ) from e
    except UnicodeDecodeError as e:
        raise ModelError(
            f"{path} is not text: byte {e.start} is not UTF-8",
            "name the .prototxt",
            code="caffe.not-text",
        ) from e
    return parse(text, path)


def parse(text: str, path: Path) -> Message:
    """As `read`; `path` is only named in errors."""
    tokens = [*_iter_tokens(text, path), ("end", "", text.count("\n") + 1)]
    root = Message(1)
    stack = [root]
    i = 0
    while tokens[i][0] != "end" or len(stack) > 1:
        kind, name, line = tokens[i]
        i += 1
        if name in ("}", ">") and kind == "mark" and len(stack) > 1:
            stack.pop()
            continue
        if kind != "word":
            raise _refuse_token(path, line, "the name of a field", kind, name)
        colon = tokens[i][:2] == ("mark", ":")
        i += colon
        if tokens[i][0] == "mark" and tokens[i][1] in "{<":
            inner = Message(line)
            stack[-1].fields.append((name, inner))
            stack.append(inner)
            i += 1
            if len(stack) > MAX_DEPTH:
                raise ModelError(
                    f"{path}, line {line}: nested deeper than {MAX_DEPTH}",
                    "compare it with the original",
                    code="caffe.too-deep",
                )
        elif not colon:
            raise _refuse_token(path, tokens[i][2], f"':' or '{{' after '{name}'", *tokens[i][:2])
        else:
            values, i = _parse_values(tokens, i, path)
            stack[-1].fields += [(name, value) for value in values]
    return root


_Token: TypeAlias = tuple[str, str, int]  # kind, text, line


def _iter_tokens(text: str, path: Path) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        found = match[0]
        if kind == "other":
            raise _refuse_token(path, line, "protobuf's text format", kind, found)
        if kind != "space":
            yield kind, found, line
        line += found.count("\n")


def _parse_values(tokens: list[_Token], i: int, path: Path) -> tuple[list[Value], int]:
    """The scalar at `i`, or those of a list in brackets; and the index behind them."""
    if tokens[i][:2] != ("mark", "["):
        value, i = _parse_scalar(tokens, i, path)
        return [value], i
    i += 1
    values: list[Value] = []
    while tokens[i][:2] != ("mark", "]"):
        value, i = _parse_scalar(tokens, i, path)
        values.append(value)
    return values, i + 1


def _parse_scalar(tokens: list[_Token], i: int, path: Path) -> tuple[Scalar, int]:
    kind, text, line = tokens[i]
    if kind == "word":
        return Scalar(text, quoted=False, line=line), i + 1
    if kind != "string":
        raise _refuse_token(path, line, "a value", kind, text)
    parts = []
    while tokens[i][0] == "string":  # strings beside each other are one
        parts.append(_ESCAPE.sub(_unescape, tokens[i][1][1:-1]))
        i += 1
    return Scalar("".join(parts), quoted=True, line=line), i


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "01234567":
        return chr(int(code, 8))
    if code[0] in "xX" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)


def _refuse_token(path: Path, line: int, expected: str, kind: str, found: str) -> ModelError:
    found = "the end of the file" if kind == "end" else repr(found[:40])
    return ModelError(
        f"{path}, line {line}: expected {expected}, found {found}",
        "correct that line",
        code="caffe.syntax",
    )


def write(message: Message, indent: str = "") -> str:
    """The text of a tree."""
    lines = []
    for name, value in message.fields:
        if isinstance(value, Message):
            lines.append(f"{indent}{name} {{\n{write(value, indent + '  ')}{indent}}}\n")
        else:
            lines.append(f"{indent}{name}: {_quote(value.text) if value.quoted else value.text}\n")
    return "".join(lines)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
