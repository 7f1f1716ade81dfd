"""`errors`: the tree's exit codes, and errors that travel from a child process as JSON."""

from __future__ import annotations

import json

import pytest

import subgraph
from subgraph import errors
from subgraph.errors import SubcutError, UnknownName, WorkerDied

CLASSES = [
    getattr(errors, name)
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, SubcutError)
]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_way_through_json_keeps_kind_text_and_hint(cls: type[SubcutError]) -> None:
    error = cls("what", "hint")
    again = errors.from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is cls
    assert (again.what, again.hint, again.exit_code) == ("what", "hint", error.exit_code)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_tree_on_top_of_the_file_names_each_with_its_exit_code(cls: type[SubcutError]) -> None:
    (line,) = [one for one in (errors.__doc__ or "").splitlines() if f"─ {cls.__name__} " in f"─ {one.lstrip('│├└─ ')}"]
    assert cls is SubcutError or f" {cls.exit_code} " in line
    assert cls.__name__ in subgraph.__all__


def test_how_a_process_ended_travels_too() -> None:
    error = WorkerDied("it hung", signature="timeout", process={"signal": "SIGKILL", "stderr": ["last"]})
    again = errors.from_json(json.loads(json.dumps(error.to_json())))
    assert isinstance(again, WorkerDied)
    assert (again.signature, again.process) == ("timeout", {"signal": "SIGKILL", "stderr": ["last"]})


def test_an_unknown_kind_is_still_an_error() -> None:
    assert errors.from_json({"kind": "FromTheFuture", "what": "x"}).what == "x"


def test_the_nearest_names_are_the_hint() -> None:
    assert UnknownName("no 'x'", nearest=["a", "b"]).hint == "did you mean 'a' or 'b'?"
