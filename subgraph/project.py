"""The settings of a project: `subcut.toml`, or `[tool.subcut]` in pyproject.toml, in this folder or
one above.

A value comes from the command line, else from the environment, else from the project file, else
from the default. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import glob
import os
import re
import reprlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from subgraph.documents import parse_toml, read_text
from subgraph.errors import UnknownName, UsageError
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.text import clean, find_nearest, is_text, list_some, split_signature
from subgraph.types import JsonObject, frozen

# The value of `--weights`, instead of a file, for weights that are drawn from a seed.
RANDOM_WEIGHTS = re.compile(r"random(?::([0-9]{1,9}))?")


# key -> type of its value in the file
KEYS: dict[str, type] = {
    "model": str,
    "weights": str,
    "output": str,
    "input": list,
    "shape": list,
    "seed": int,
    "mean": str,
    "scale": str,
    "bgr": bool,
    "format": str,
    "dtype": str,
    "layout": str,
    "candidate": str,
    "candidates": dict,
    "reference": str,
    "custom_ops": str,
    "criterion": str,
    "timeout": float,
    "memory": str,
    "memory_limit": str,
    "jobs": int,
    "known": list,
    "tests": tuple,
}
KIND_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of texts",
    dict: "a table",
    tuple: "tables, each below [[tests]]",
}
# Keys that may be lists in `[[tests]]`: each model is tested on each candidate.
LIST_KEYS_OF_TESTS = ("model", "candidate")
# Keys that `[[tests]]` cannot have.
KEYS_WITHOUT_TESTS = frozenset("tests candidates known output jobs format dtype layout".split())
# The Python file of a criterion, or of a metric in a criterion.
PYTHON_FILE = re.compile(r"(?<![^:,\s])[^:,\s<>=]+\.py(?=$|[:<>=\s])")
FILE_NAMES = ("subcut.toml", "pyproject.toml")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}  # seconds


@frozen
class Project:
    """The settings of the nearest project file; empty without a project file."""

    file: Path | None = None
    values: JsonObject = field(default_factory=dict)

    def get(self, key: str, typed: Any = None, default: Any = None) -> Any:
        """Return the value of a key: `typed` on the command line if it is not None or empty, else
        `$SUBCUT_KEY`, else the file's value, else `default`.

        Raises:
            UsageError: The environment's value does not have the right type.
        """
        if typed not in (None, [], ()):
            return typed
        text = os.environ.get(f"SUBCUT_{key.upper()}")
        if text and KEYS.get(key) not in (dict, tuple):
            return _parse_text(key, text)
        return self.values.get(key, default)

    def find_origin(self, key: str, typed: Any = None) -> str:
        """Return the project file if `get` takes the value from it, else ""."""
        own = typed not in (None, [], ()) or os.environ.get(f"SUBCUT_{key.upper()}")
        if own or key not in self.values:
            return ""
        return str(self.file)

    def describe_settings(self, **typed: Any) -> str:
        """Return which settings are the project file's, as `input of subcut.toml`; "" if none is.

        Args:
            typed: By key, the value on the command line.
        """
        keys = [key for key, value in typed.items() if self.find_origin(key, value)]
        if not keys or not self.file:
            return ""
        place = self.file.name if self.file.parent == Path.cwd() else self.file
        return f"{' and '.join(keys)} of {place}"

    def iter_tests(self) -> Iterator[Project]:
        """Yield the settings of each test, which runs one `model` on one `candidate`.

        A table of `[[tests]]` overrides the settings of the file. A model may be a glob. The
        default candidate is `ort`.

        Raises:
            UsageError: The file has no tests, a test has no model, or a glob fits no file.
        """
        if not self.values.get("tests"):
            raise UsageError(
                f"{self.file}: no tests",
                'add one: [[tests]], model = "m.onnx", candidate = "ort"',
                code="project.no-tests",
            )
        for table in self.values["tests"]:
            values = {"candidate": "ort"} | self.values | table
            given = (values.get(key, []) for key in LIST_KEYS_OF_TESTS)
            words, candidates = ([one] if isinstance(one, str) else one for one in given)
            models = list(flatten(_expand_glob(word) for word in words))
            if not (models and candidates):
                raise UsageError(
                    f"{self.file}: one of [[tests]] has no model or no candidate: {table}",
                    "name one",
                    code="project.incomplete-test",
                )
            for model in models:
                yield from (
                    Project(self.file, values | {"model": model, "candidate": one})
                    for one in candidates
                )


def _expand_glob(word: str) -> list[str]:
    """Return the files that a glob matches; a word that is a file or not a glob as it is.

    Raises:
        UsageError: No file matches.
    """
    if not glob.has_magic(word) or os.path.exists(word):  # noqa: PTH110
        return [word]
    if found := sorted(glob.glob(word, recursive=True)):  # noqa: PTH207
        return found
    raise UsageError(
        f"no model fits {word}",
        "correct that line of [[tests]]",
        code="project.no-model-fits",
    )


def _parse_text(key: str, text: str) -> Any:
    kind = KEYS.get(key, str)
    if kind is list:
        return [word for word in text.split(os.pathsep) if word]
    if kind is bool:
        return text.lower() not in ("0", "false", "no", "off")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise UsageError(
                f"$SUBCUT_{key.upper()} is {text!r}, not {KIND_WORDS[kind]}",
                code="project.wrong-value",
            ) from None
    return text


def load(start: Path | None = None) -> Project:
    """Load the nearest project file, from this folder upwards.

    Raises:
        UsageError: The file is not TOML, or a value has the wrong type.
        UnknownName: The file has an unknown key.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        for name in FILE_NAMES:
            file = folder / name
            if file.is_file() and (values := _read(file)) is not None:
                if _is_in_result(folder):
                    log.warning(
                        "settings are read from %s, a file of a case or a bundle",
                        clean(str(file)),
                    )
                return Project(file, values)
    return Project()


def _is_in_result(folder: Path) -> bool:
    """Return whether the file is in a case or a bundle, which another person may have written."""
    for above in (folder, *list(folder.parents)[:2]):
        for name in ("bundle.json", "manifest.json"):
            if not (above / name).is_file():  # a pipe would block
                continue
            with suppress(OSError), (above / name).open("rb") as file:
                if b'"subcut.' in file.read(200):  # the key `schema` comes first
                    return True
    return False


def _read(file: Path) -> JsonObject | None:
    try:
        text = read_text(file)
        if file.name == "pyproject.toml" and "tool.subcut" not in text:
            return None
        data = parse_toml(text)
    except (OSError, ValueError) as e:  # ValueError: not UTF-8, or not TOML
        raise UsageError(
            f"cannot read {file}: {e}",
            "correct that line, or rename the file",
            code="project.unreadable",
        ) from e
    if file.name == "pyproject.toml":
        data = data.get("tool", {}).get("subcut")
        if data is None:
            return None
        if not isinstance(data, dict):
            raise UsageError(
                f"{file}: [tool.subcut] must be a table, not {data!r}", code="project.wrong-value"
            )
    return {key: _check_value(file, key, value) for key, value in data.items()}


def _check_value(file: Path, key: str, value: Any) -> Any:
    if key not in KEYS:
        raise UnknownName(
            f"{file}: unknown key '{key}'",
            nearest=find_nearest(key, KEYS)[:1],
            code="project.unknown-key",
        )
    kind = KEYS[key]
    if kind is tuple and isinstance(value, list):
        return [_check_test(file, table) for table in value]
    if kind is list and isinstance(value, str):
        value = [value]
    if kind is float and type(value) is int:
        with suppress(OverflowError):
            value = float(value)
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not fits or (kind is list and not all(isinstance(word, str) for word in value)):
        raise _make_wrong_value_error(file, key, value)
    if key in ("model", "output", "custom_ops") or (
        key == "weights" and not RANDOM_WEIGHTS.fullmatch(value)
    ):
        if file.parent == Path.cwd():
            return value
        return str(file.parent / value)
    if key == "criterion" and file.parent != Path.cwd():
        return PYTHON_FILE.sub(lambda word: str(file.parent / word[0]), value)
    if key == "input":
        return [_resolve_input(file, str(word)) for word in value]
    return value


def _make_wrong_value_error(file: Path, key: str, value: Any) -> UsageError:
    return UsageError(
        f"{file}: '{key}' must be {KIND_WORDS[KEYS[key]]}, not {reprlib.repr(value)}",
        "correct that line",
        code="project.wrong-value",
    )


def _check_test(file: Path, table: Any) -> JsonObject:
    """Check one table of `[[tests]]`, and return it with resolved paths."""
    if not isinstance(table, dict):
        raise _make_wrong_value_error(file, "tests", table)
    if odd := sorted(KEYS_WITHOUT_TESTS & table.keys()):
        raise UsageError(
            f"{file}: '{odd[0]}' is not a setting of one test",
            "write it above all tables",
            code="project.misplaced-key",
        )
    return {
        key: [_check_value(file, key, word) for word in value]
        if key in LIST_KEYS_OF_TESTS and isinstance(value, list)
        else _check_value(file, key, value)
        for key, value in table.items()
    }


def _resolve_input(file: Path, word: str) -> str:
    """Return an `input` whose path starts with the project file's folder; NAME=FILE keeps NAME."""
    name, sep, path = word.partition("=")
    if sep:
        return f"{name}={file.parent / path}"
    return str(file.parent / word)


def find_model(typed: str | None, project: Project | None = None) -> tuple[Path, str]:
    """Return the model to work on, and the place where it was found; "" for the command line.

    The places in this order: the argument, `$SUBCUT_MODEL`, `model` in the project file, the only
    *.onnx in this folder, the only *.prototxt, the only *.tflite.

    Raises:
        UsageError: No model was found, or several.
    """
    if typed and re.match(r"[a-z][a-z0-9+.-]+://", typed):
        raise UsageError(
            f"{typed} is an address, not a file",
            "download it first",
            code="model.is-address",
        )
    if typed:
        return _require_existing(Path(typed), ""), ""
    project = project or load()
    named = project.get("model")
    if named:
        how = "$SUBCUT_MODEL" if os.environ.get("SUBCUT_MODEL") else str(project.file)
        return _require_existing(Path(named), f" (named by {how})"), f"named by {how}"
    for pattern in ("*.onnx", "*.prototxt", "*.tflite"):
        if models := sorted(p for p in Path().glob(pattern) if p.is_file()):
            break
    if len(models) == 1:
        return _require_existing(models[0], ""), f"the only {pattern[1:]} here"
    if models:
        some = list_some([p.name for p in models], 8)
        raise UsageError(
            f"which model? there are {len(models)} here",
            f"name one: {some}",
            code="model.ambiguous",
        )
    how = "name one (subcut MODEL --start A --end B, subcut bisect MODEL), or set $SUBCUT_MODEL"
    raise UsageError(
        "no model named, and no .onnx file in this folder", how, code="model.none-here"
    )


def _require_existing(path: Path, named_by: str) -> Path:
    if not is_text(str(path)):
        raise UsageError(
            f"the name of {path} is not UTF-8{named_by}",
            "rename it; neither ONNX nor JSON can hold it",
            code="name.not-utf8",
        )
    if os.path.isdir(path):  # noqa: PTH112
        inside = ", ".join(sorted(str(p) for p in path.glob("*.onnx"))[:8])
        raise UsageError(
            f"{path} is a folder{named_by}",
            f"name the .onnx file in it{inside and ': ' + inside}",
            code="model.is-folder",
        )
    if not os.path.exists(split_signature(path)[0]):  # noqa: PTH110
        folder = path.parent.absolute()
        if not folder.is_dir():
            raise UnknownName(
                f"no file {path}{named_by}", f"there is no folder {folder}", code="file.not-found"
            )
        models = [str(p) for p in path.parent.iterdir() if p.suffix in (".onnx", ".tflite")]
        raise UnknownName(
            f"no file {path}{named_by}",
            "" if models else f"{folder} has no .onnx or .tflite file",
            find_nearest(str(path), models),
            code="file.not-found",
        )
    return path


def parse_seconds(text: str | float | None) -> float | None:
    """Return a time in seconds: `90s`, `30m`, `2h` or `90`; None for None.

    Raises:
        UsageError: The text is not a time, or the time is 0.
    """
    if text is None:
        return None
    m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(text).strip().lower())
    if m is None:
        raise UsageError(
            f"--max-time {text}: expected a time", "90s, 30m, 2h", code="option.malformed"
        )
    if not float(m[1]):
        raise UsageError(
            f"--max-time {text}: the time must be more than 0",
            "leave it out for no limit",
            code="option.out-of-range",
        )
    return float(m[1]) * UNITS[m[2]]
