"""Errors compared by their code, which stays, and by what they are about; not by their text."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

import pytest

from subgraph.errors import SubcutError
from tests.helpers.run_command import Done

E = TypeVar("E", bound=SubcutError)
PROGRESS = ("model: ", "candidate", "inputs: ")  # lines on standard error before an error


class _Raises(Generic[E]):
    """The context of `raises`."""

    def __init__(self, kind: type[E] | tuple[type[E], ...], code: str, about: tuple[str, ...]):
        self.expected = pytest.raises(kind)
        self.code = code
        self.about = about

    def __enter__(self) -> pytest.ExceptionInfo[E]:
        self.raised = self.expected.__enter__()
        return self.raised

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_expected = self.expected.__exit__(kind, error, traceback)
        if is_expected:
            found = self.raised.value
            text = f"{found.what}\n{found.hint}"
            assert found.code == self.code, text
            assert not [name for name in self.about if name not in text], text
        return is_expected


def raises(kind: type[E] | tuple[type[E], ...], code: str, *about: str) -> _Raises[E]:
    """Expect an error with this code.

    Args:
        kind: Its class, a base of that, or several.
        code: Its code.
        about: Names, files, options or numbers that its text or hint has to contain.
    """
    return _Raises(kind, code, about)


def refused(done: Done, exit_code: int = 2) -> str:
    """Return the error of a command that printed one error, at most one hint, and no result."""
    assert (done.code, done.out) == (exit_code, ""), done
    lines = done.err.splitlines()
    (start,) = [k for k, line in enumerate(lines) if line.startswith("error: ")]
    assert all(line.startswith(PROGRESS) for line in lines[:start]), done
    assert len(lines) - start <= 2, done
    return "\n".join(lines[start:])
