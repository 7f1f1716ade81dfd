"""`loop.toml`: what the names and types of a model do not say about its loop. Each key may be left
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from subgraph.documents import parse_toml, read_text
from subgraph.errors import UsageError
from subgraph.text import clean, nearest

STEPS = 64  # of a text, where neither the file nor its end says how many
MAX_STEPS = 100_000


@dataclass(frozen=True)
class Slicing:
    """An input that gets the next part of a longer sequence in each step.

    Attributes:
        size: elements along `axis` that a step is fed. step: how far the next part is; `size`
            without overlap.
    """

    size: int
    step: int
    axis: int = -1


@dataclass(frozen=True)
class LoopFile:
    """The file's keys.

    Attributes:
        tokens, logits, position_ids, attention_mask: names of the model's inputs and of its output.
        steps: how often the model is run at most; None for `STEPS`, or all slices.
        eos: tokens that end a text. pad: what is fed to rows that have ended.
        states: input → the output that is fed to it in the next step.
        slices: inputs that get parts of a sequence. constants: inputs that are the same number in
            every step.
    """

    tokens: str = ""
    logits: str = ""
    position_ids: str = ""
    attention_mask: str = ""
    steps: int | None = None
    eos: tuple[int, ...] = ()
    pad: int = 0
    states: Mapping[str, str] = field(default_factory=dict)
    slices: Mapping[str, Slicing] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path) -> LoopFile:
    """
    Raises:
        UsageError: it cannot be read, or a key or value means nothing.
    """
    try:
        document = parse_toml(read_text(path))
    except OSError as e:
        raise UsageError(
            f"cannot read {clean(str(path))}: {e.strerror or e}",
            "--loop FILE; it may be empty",
            code="file.unreadable",
        ) from e
    except ValueError as e:
        raise UsageError(
            f"{clean(str(path))} is not TOML: {clean(str(e))}",
            'eos = 2, [states] h0 = "hn"',
            code="loop.not-toml",
        ) from e
    known = [f.name for f in fields(LoopFile)]
    for key in document:
        if key not in known:
            near = nearest(key, known)
            raise UsageError(
                f"{clean(str(path))}: no key '{clean(key)}'",
                f"known: {', '.join(near or known)}",
                code="loop.unknown-key",
            )
    values = {key: _checked(str(path), key, value) for key, value in document.items()}
    return LoopFile(**values)


def _checked(file: str, key: str, value: Any) -> Any:
    """
    Raises:
        UsageError: the value is of another kind.
    """
    kind, fits = {
        "steps": (f"a number from 1 to {MAX_STEPS}", _is_number(value) and 1 <= value <= MAX_STEPS),
        "pad": ("a token's number", _is_number(value)),
        "eos": (
            "a token's number, or several",
            all(map(_is_number, value if isinstance(value, list) else [value])),
        ),
        "states": (
            'a table: h0 = "hn"',
            isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
        ),
        "slices": ("a table: input = 512", isinstance(value, dict)),
        "constants": ("a table: sr = 16000", isinstance(value, dict)),
    }.get(key, ("a name", isinstance(value, str)))
    if not fits:
        raise UsageError(
            f"{clean(file)}: {key} = {clean(str(value))}: expected {kind}", code="loop.wrong-value"
        )
    if key == "eos":
        return tuple(value) if isinstance(value, list) else (value,)
    if key == "slices":
        return {name: _slices(file, name, part) for name, part in value.items()}
    return value


def _slices(file: str, name: str, value: Any) -> Slicing:
    table = {"size": value} if _is_number(value) else value
    numbers = isinstance(table, dict) and "size" in table and all(map(_is_number, table.values()))
    if (
        not numbers
        or table.keys() - {"size", "step", "axis"}
        or min(table["size"], table.get("step", 1)) < 1
    ):
        what = (
            f"{clean(file)}: slices: {clean(name)} = {clean(str(value))}: expected a size in"
            " elements"
        )
        raise UsageError(
            what,
            f"{clean(name)} = 512, or {clean(name)} = {{ size = 576, step = 512, axis = -1 }}",
            code="loop.wrong-value",
        )
    return Slicing(table["size"], table.get("step", table["size"]), table.get("axis", -1))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def inputs_named(file: LoopFile) -> Sequence[str]:
    """The model's inputs that the file names."""
    named = (file.tokens, file.position_ids, file.attention_mask)
    return [*filter(None, named), *file.states, *file.slices, *file.constants]
