"""All errors that a user can see. Each error has the fact, the place and the next step.

SubcutError                 exit code
├── UsageError              2   the command line or project file does not make sense
│   ├── UnknownName         2   no such node, tensor, command or setting; carries the nearest names
│   ├── NoRegion            2   start and end do not enclose anything
│   ├── InputError          2   inputs do not fit the model
│   ├── ArgumentTypeError   2   a value in Python of a type that a function does not take
│   └── ResultExists        2   another result has the path of this one
├── ModelError              3   the model cannot be read, is broken or is not supported
│   ├── DataError           3   a weight's external file is missing, short or outside the folder
│   ├── OutOfMemory         3   running the model needs more memory than is free
│   └── Refused             3   a backend does not accept the model, while converting or building
├── BackendError            4   a runtime cannot be used at all
│   ├── WorkerDied          4   the process of a model crashed, hung or grew too large; carries how
│   ├── NotInstalled        4   the package of a runtime is not there
│   └── Unreachable         4   the machine that should run a model does not answer
├── Inconclusive            5   nothing could be established
│   └── OutOfTime           5   the time limit of the user is reached
└── OutputError             74  something could not be written (disk full, no permission)

InternalError               70  subcut itself failed: no SubcutError, and never a result

Errors raised in a child process travel as plain data (`to_json`, `from_json`): never as pickles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from subgraph.text import clean
from subgraph.types import Fields, JsonObject

# Exit code of the command line → its meaning, for `--help`, README.md and docs/scripts.md.
EXIT_CODES = {
    0: "done, or all agree",
    1: "something disagrees",
    2: "wrong usage",
    3: "the model is unreadable or unsupported",
    4: "a runtime cannot be used",
    5: "inconclusive",
    70: "subcut itself failed",
    74: "something could not be written",
    130: "interrupted",
}


class InternalError(Exception):
    """A message between two processes of subcut that does not have the expected form.

    No verdict follows from it.

    Attributes:
        code: The name of the problem, as of a `SubcutError`.
    """

    def __init__(self, what: str, code: str) -> None:
        super().__init__(what, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class SubcutError(Exception):
    """An error with a fact (`what`, one line that names the place) and an action (`hint`).

    Both are safe to show: names from a model or a file lose their control characters here.

    `code` names the problem, as `region.no-path`, and stays the same from release to release, while
    `what` may be reworded. It is empty for an error that a plugin raises without a code.
    docs/errors.md lists all codes.

    >>> from subgraph import load
    >>> try:
    ...     load("none.onnx")
    ... except SubcutError as error:
    ...     print(error.code, error.what, error.hint, error.exit_code, sep=" / ")
    model.unreadable / cannot read none.onnx: No such file or directory / check the path / 3
    """

    exit_code = 70  # sysexits.h, EX_SOFTWARE: only of an error whose kind is not known here

    def __init__(self, what: str, hint: str = "", *, code: str = "") -> None:
        self.what = clean(what)
        self.hint = clean(hint)
        super().__init__(self.what)
        self.code = code

    def to_json(self) -> JsonObject:
        """Return plain data: kind, code, what, hint."""
        return {
            "kind": type(self).__name__,
            "code": self.code,
            "what": self.what,
            "hint": self.hint,
        }


class UsageError(SubcutError):
    """The command line or project file does not make sense."""

    exit_code = 2


class ArgumentTypeError(UsageError, TypeError):
    """A value in Python of a type that a function does not take."""

    @classmethod
    def from_value(cls, value: object, expected: str, hint: str) -> ArgumentTypeError:
        """Return the error about `value`; `expected` names the values that the function takes."""
        what = f"{expected}, not {type(value).__name__}"
        return cls(what, hint, code="api.wrong-type")


class UnknownName(UsageError):
    """A name that does not exist, with the nearest that do."""

    def __init__(
        self, what: str, hint: str = "", nearest: Iterable[str] = (), *, code: str = ""
    ) -> None:
        self.nearest = tuple(nearest)
        if self.nearest and not hint:
            hint = "did you mean " + " or ".join(f"'{name}'" for name in self.nearest) + "?"
        super().__init__(what, hint, code=code)

    def to_json(self) -> JsonObject:
        """Return plain data: kind, code, what, hint, nearest."""
        return {**super().to_json(), "nearest": self.nearest}


class NoRegion(UsageError):
    """Start and end do not enclose anything."""


class InputError(UsageError):
    """An input does not fit the model, or cannot be read."""


class ResultExists(UsageError):
    """The path of this result has another result."""


class ModelError(SubcutError):
    """The model cannot be read, is invalid or is not supported."""

    exit_code = 3


class DataError(ModelError):
    """A weight's external file is missing, short or outside the model's folder."""


class OutOfMemory(ModelError):
    """Running the model needs more memory than is free."""


class Refused(ModelError):
    """A backend does not accept the model, while converting or building."""


class BackendError(SubcutError):
    """A runtime cannot be used at all."""

    exit_code = 4


class NotInstalled(BackendError):
    """The package of a runtime is not there."""


class Unreachable(BackendError):
    """The machine that should run a model does not answer: nothing is known about the model."""


class WorkerDied(BackendError):
    """The process that ran a model crashed, hung or grew too large.

    `signature` is `crash`, `throws`, `memory` or `timeout`; `process` has `signal`, `exit_code`,
    `stderr` (the last lines); and `memory`, the limit in bytes, if the process was stopped because
    it exceeded that.
    """

    def __init__(
        self,
        what: str,
        hint: str = "",
        *,
        code: str = "",
        signature: str = "crash",
        process: Fields | None = None,
    ) -> None:
        super().__init__(what, hint, code=code)
        self.signature = signature
        self.process = dict(process or {})

    def to_json(self) -> JsonObject:
        """Return plain data: kind, code, what, hint, signature, process."""
        return {**super().to_json(), "signature": self.signature, "process": self.process}


class Inconclusive(SubcutError):
    """Nothing could be established."""

    exit_code = 5


class OutOfTime(Inconclusive):
    """The time limit of the user is reached. The run was ended, which is no fact about the
    candidate."""


class OutputError(SubcutError):
    """A file could not be written: disk full, no permission. That is no fact about a model or a
    candidate."""

    exit_code = 74  # sysexits.h, EX_IOERR


@contextmanager
def name_setting(setting: str) -> Iterator[None]:
    """Name the project file's setting in an error that its value causes.

    Args:
        setting: `input of subcut.toml`; "" if the value is from elsewhere.
    """
    try:
        yield
    except (UsageError, ModelError) as e:
        if (
            setting
            and setting.rpartition(" of ")[2] not in e.what
            and not isinstance(e, OutOfMemory)
        ):
            e.what += f" ({setting})"
            e.args = (e.what,)
            e.hint = ": ".join(filter(None, ("correct or remove that line", e.hint)))
        raise


@contextmanager
def explain_os_error(
    error: type[SubcutError], what: str, hint: str = "", *, code: str
) -> Iterator[None]:
    """Raise an error of the operating system in the block as an error of subcut, with the reason.

    Args:
        error: The class of the error.
        what: The fact, without the reason.
        hint: The action.
        code: The name of the problem.
    """
    try:
        yield
    except OSError as e:
        raise error(f"{what}: {e.strerror or e}", hint, code=code) from e


def _iter_subclasses(cls: type[SubcutError]) -> Iterable[type[SubcutError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _iter_subclasses(sub)


def from_json(data: Fields) -> SubcutError:
    """Return the error that a child process described; an unknown kind becomes a plain SubcutError,
    no code is ""."""
    by_name = {cls.__name__: cls for cls in _iter_subclasses(SubcutError)}
    cls = by_name.get(str(data.get("kind")), SubcutError)
    ending = {
        k: data[k] for k in ("signature", "process") if k in data and issubclass(cls, WorkerDied)
    }
    what, hint, code = (str(data.get(key, "")) for key in ("what", "hint", "code"))
    return cls(what, hint, code=code, **ending)
