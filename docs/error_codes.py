"""Codes of errors -> docs/errors.md: `python -m docs.error_codes`.

The source code names the codes; docs/errors.toml has their meaning.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import subgraph

SOURCE = Path(subgraph.__file__).parent
MEANINGS = Path(__file__).with_name("errors.toml")
PAGE = Path(__file__).with_name("errors.md")
WORDS = "[a-z][a-z0-9]*(-[a-z0-9]+)*"
CODE = re.compile(rf"{WORDS}\.{WORDS}")  # area.problem
INTRODUCTION = """# Errors

Each error has a code, which stays the same from release to release, while the text can change.
`--json` prints it as `error.code`, `-v` prints it after the text, the page of `subcut view` shows it,
and in Python it is `error.code` of a `subgraph.SubcutError`. The class of the error, `error.kind` in
JSON, decides about the [exit code](scripts.md#exit-codes). If a plugin raises an error without a
code, the code is `""`. Each line has the meaning of a code and the remedy; if it has no remedy, the
hint of the error is the remedy.

<!-- `make errors` writes this page from errors.toml. -->
"""  # noqa: E501


@dataclass(frozen=True)
class Meaning:
    """The documentation of a code.

    Attributes:
        area: Heading of the section.
        means: What happened, a sentence.
        advice: The remedy, a sentence; "" if only the hint of the error has one.
    """

    area: str
    means: str
    advice: str


def read_meanings() -> dict[str, Meaning]:
    """Read the documented codes, in the order of the page."""
    areas = tomllib.loads(MEANINGS.read_text(encoding="utf-8"))
    found: dict[str, Meaning] = {}
    for name, table in areas.items():
        title = table.pop("title")
        for problem, text in table.items():
            found[f"{name}.{problem}"] = Meaning(title, text["means"], text.get("do", ""))
    return found


@cache
def find_raised() -> frozenset[str]:
    """Find the codes in the source code."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        found |= set(_iter_codes(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(found)


def _iter_codes(module: ast.Module) -> Iterator[str]:
    """Yield the texts that are named `code`: of an argument, or in a dictionary."""
    for node in ast.walk(module):
        match node:
            case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                yield code
            case ast.Dict(keys=keys, values=values):
                pairs = zip(map(_text, keys), map(_text, values), strict=True)
                yield from (code for name, code in pairs if name == "code" and code)


def _text(node: ast.expr | None) -> str:
    """Return the text of a constant; "" for all else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
    return ""


def page() -> str:
    """Return the text of docs/errors.md: a list for each area."""
    parts = [INTRODUCTION]
    for area, codes in groupby(read_meanings().items(), key=lambda item: item[1].area):
        rows = [f"- `{code}`: {meaning.means} {meaning.advice}".rstrip() for code, meaning in codes]
        parts += [f"## {area}\n", *rows, ""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
