"""`errors`: exit codes, codes and their documentation, and errors that travel from a child process
as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import subgraph
from docs import error_codes
from subgraph import errors
from subgraph.errors import EXIT_CODES, SubcutError, UnknownName, WorkerDied
from tests.helpers.facts import has_line
from tests.helpers.sources import parse

ROOT = Path(__file__).parents[1]
CLASSES = [
    getattr(errors, name)
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, SubcutError)
]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_way_through_json_keeps_kind_code_text_and_hint(cls: type[SubcutError]) -> None:
    error = cls("what", "hint", code="area.problem")
    again = errors.from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is cls
    assert (again.code, again.what, again.hint) == ("area.problem", "what", "hint")
    assert again.exit_code == error.exit_code
    assert error.exit_code in EXIT_CODES


@pytest.mark.parametrize("cls", CLASSES)
def test_the_tree_on_top_of_the_file_names_each_with_its_exit_code(cls: type[SubcutError]) -> None:
    (line,) = [
        one
        for one in (errors.__doc__ or "").splitlines()
        if f"─ {cls.__name__} " in f"─ {one.lstrip('│├└─ ')}"
    ]
    assert cls is SubcutError or f" {cls.exit_code} " in line
    assert cls.__name__ in subgraph.__all__


def _read_exit_codes(page: str) -> dict[int, str]:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    return {int(code): meaning for code, meaning in rows}


def test_pages_have_the_meanings_of_exit_codes() -> None:
    page = _read_exit_codes("docs/scripts.md")
    assert page.keys() == EXIT_CODES.keys()
    rows = [*page.items(), *_read_exit_codes("README.md").items()]
    assert all(meaning.startswith(EXIT_CODES[code]) for code, meaning in rows)


def test_how_a_process_ended_travels_too() -> None:
    error = WorkerDied(
        "it hung", signature="timeout", process={"signal": "SIGKILL", "stderr": ["last"]}
    )
    again = errors.from_json(json.loads(json.dumps(error.to_json())))
    assert isinstance(again, WorkerDied)
    assert (again.signature, again.process) == (
        "timeout",
        {"signal": "SIGKILL", "stderr": ["last"]},
    )


def test_unknown_kind_is_still_an_error() -> None:
    error = errors.from_json({"kind": "FromTheFuture", "what": "x"})
    assert (error.what, error.code) == ("x", "")


def test_names_in_an_error_are_safe_to_show() -> None:
    error = SubcutError("no node 'a\x1b[31mb'", "did you mean 'c\x07'?")
    assert (error.what, error.hint) == ("no node 'ab'", "did you mean 'c'?")
    assert str(error) == error.what


def test_the_nearest_names_are_the_hint() -> None:
    assert has_line(UnknownName("no 'x'", nearest=["a", "b"]).hint, "'a' or 'b'")


# ------------------------------------------------------------ codes


def error_classes(trees: Iterable[ast.Module]) -> set[str]:
    """Names of the classes of errors, also of those that a module defines for itself."""
    names = {cls.__name__ for cls in CLASSES}
    classes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    while more := {n.name for n in classes if names & set(map(ast.unparse, n.bases))} - names:
        names |= more
    return names


def test_each_error_in_the_source_code_has_a_code() -> None:
    files = sorted(Path(subgraph.__file__).parent.rglob("*.py"))
    trees = {path: parse(path) for path in files}
    names = error_classes(trees.values())
    bare = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="errors"), attr=name)
                ):
                    if name in names and "code" not in {word.arg for word in node.keywords}:
                        bare.append(f"{path}:{node.lineno}")
    assert bare == []


def test_each_code_is_an_area_and_a_problem() -> None:
    odd = [code for code in error_codes.find_raised() if not error_codes.CODE.fullmatch(code)]
    assert odd == []


def test_documented_codes_are_those_of_the_source_code() -> None:
    documented = error_codes.read_meanings().keys()
    raised = error_codes.find_raised()
    assert documented - raised == set()
    assert raised - documented == set()


def test_no_two_codes_have_one_meaning() -> None:
    counts = Counter(meaning.means for meaning in error_codes.read_meanings().values())
    assert [means for means, count in counts.items() if count > 1] == []


def test_the_page_of_errors_is_up_to_date() -> None:
    """`make errors` writes it."""
    assert error_codes.PAGE.read_text(encoding="utf-8") == error_codes.page()
