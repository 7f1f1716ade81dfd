"""A graph, and the user's `loop.toml` -> the purpose of each input and output of a loop.

A state is an input that gets an output of the step before. Exporters call the two alike:
`past_key_values.0.key` and `present.0.key`, `h0` and `hn`, `state` and `stateN`, `conv_in` and
`conv_out`. `loop.toml` says what the names and types of a model do not say; each key is optional.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from subgraph.documents import parse_toml, read_text
from subgraph.errors import ModelError, UnknownName, UsageError, explain_os_error
from subgraph.graph.graph import Graph
from subgraph.graph.value_types import read_type
from subgraph.text import clean, nearest
from subgraph.types import Fields, StringMap, frozen

STEPS = 64  # of a text, where neither the file nor its end says how many
MAX_STEPS = 100_000


@frozen
class Slicing:
    """An input that gets the next part of a longer sequence in each step.

    Attributes:
        size: elements along `axis` that a step is fed. step: how far the next part is; `size`
            without overlap.
    """

    size: int
    step: int
    axis: int = -1


@frozen
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
    states: StringMap = field(default_factory=dict)
    slices: Mapping[str, Slicing] = field(default_factory=dict)
    constants: Fields = field(default_factory=dict)


def read_loop_file(path: Path) -> LoopFile:
    """
    Raises:
        UsageError: it cannot be read, or a key or value means nothing.
    """
    hint = "--loop FILE; it may be empty"
    try:
        with explain_os_error(UsageError, f"cannot read {path}", hint, code="file.unreadable"):
            document = parse_toml(read_text(path))
    except ValueError as e:
        raise UsageError(
            f"{path} is not TOML: {e}", 'eos = 2, [states] h0 = "hn"', code="loop.not-toml"
        ) from e
    known = [f.name for f in fields(LoopFile)]
    for key in document:
        if key not in known:
            near = nearest(key, known)
            raise UsageError(
                f"{path}: no key '{key}'",
                f"known: {', '.join(near or known)}",
                code="loop.unknown-key",
            )
    values = {key: _check_value(str(path), key, value) for key, value in document.items()}
    return LoopFile(**values)


def _check_value(file: str, key: str, value: Any) -> Any:
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
        raise UsageError(f"{file}: {key} = {value}: expected {kind}", code="loop.wrong-value")
    if key == "eos":
        return tuple(value) if isinstance(value, list) else (value,)
    if key == "slices":
        return {name: _parse_slices(file, name, part) for name, part in value.items()}
    return value


def _parse_slices(file: str, name: str, value: Any) -> Slicing:
    table = {"size": value} if _is_number(value) else value
    numbers = isinstance(table, dict) and "size" in table and all(map(_is_number, table.values()))
    if (
        not numbers
        or table.keys() - {"size", "step", "axis"}
        or min(table["size"], table.get("step", 1)) < 1
    ):
        raise UsageError(
            f"{file}: slices: {name} = {value}: expected a size in elements",
            f"{name} = 512, or {name} = {{ size = 576, step = 512, axis = -1 }}",
            code="loop.wrong-value",
        )
    return Slicing(table["size"], table.get("step", table["size"]), table.get("axis", -1))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def list_named_inputs(file: LoopFile) -> Sequence[str]:
    """The model's inputs that the file names."""
    named = filter(None, (file.tokens, file.position_ids, file.attention_mask))
    return [*named, *file.states, *file.slices, *file.constants]


TOKENS = ("input_ids", "decoder_input_ids", "tokens", "token", "ids", "input_id", "tgt")
LOGITS = ("logits", "lm_logits", "output_logits", "scores")
POSITIONS = ("position_ids", "positions")
MASK = ("attention_mask", "decoder_attention_mask")
CACHE_POSITION = "cache_position"  # without a batch, as transformers' static cache has them
# of two decoders merged into one: false in the first step, which makes the cache
CACHE_BRANCH = "use_cache_branch"
INTEGERS = ("int64", "int32")
FLOATS = ("float32", "float16", "bfloat16", "float64")
# What only says that a tensor is the one before or after a step.
_TIMES = re.compile(
    r"(past|present)(_key_values?)?|(?<![a-z])(prev|previous|next|new|updated|old|cur|current|in|out|input|output|init"
    r"|initial|final|last)(?![a-z])|(?<=[a-z])[0n]$"
)

Dims = Sequence[int | str | None] | None


@frozen
class Decoder:
    """What the inputs and outputs of a model are for; "" for what it has not.

    Attributes:
        tokens: input, integers (batch, length), or (batch,) for one per step. logits: output,
            (batch, …, vocabulary).
        position_ids, cache_position: inputs, places of the tokens. attention_mask: input, 1 for
            each token so far.
        cache_branch: input, whether there is a cache. Where there is, an empty state means that the
            one before stays.
        states: input → output, in the model's order. slices: inputs that get parts of a sequence.
        constants: inputs that are the same in every step.
    """

    graph: Graph
    tokens: str
    logits: str
    position_ids: str
    cache_position: str
    cache_branch: str
    attention_mask: str
    states: StringMap
    slices: Mapping[str, Slicing]
    constants: Sequence[str]

    @property
    def results(self) -> list[str]:
        """The outputs that are not states."""
        fed_back = set(self.states.values())
        return [name for name in self.graph.outputs if name not in fed_back] or list(
            self.graph.outputs
        )

    @property
    def takes_whole_prompt(self) -> bool:
        """May a step have several tokens?"""
        dims = find_dims(self.graph, self.tokens) if self.tokens else None
        return bool(self.tokens) and (
            dims is None or (len(dims) > 1 and not isinstance(dims[1], int))
        )


def resolve_decoder(graph: Graph, file: LoopFile, given: Collection[str]) -> Decoder:
    """`given`: inputs that the user gives a value for, which are constant unless they are something
    else.

    Raises:
        UnknownName: the file names a tensor that the model has not. UsageError: what an input is
            for is not known.
    """
    _require_names(graph, file)
    states = {**pair_states(graph, file), **file.states}
    left = [
        n
        for n in graph.inputs
        if n not in states and n not in file.slices and n not in file.constants
    ]

    def taken(named: str, usual: Sequence[str]) -> str:
        found = named or next((n for n in usual if n in left), "")
        if found in left:
            left.remove(found)
        return found

    positions = taken(file.position_ids, POSITIONS)
    mask = taken(file.attention_mask, MASK)
    cache_position = taken("", [CACHE_POSITION])
    cache_branch = taken("", [CACHE_BRANCH])
    tokens = taken(file.tokens, TOKENS)
    if not tokens and not file.slices:  # the only one of whole numbers
        numbers = [
            n
            for n in left
            if find_declared_type(graph, n)[1] in INTEGERS and not _is_scalar(graph, n)
        ]
        tokens = taken(numbers[0], ()) if len(numbers) == 1 else ""
    unknown = [n for n in left if n not in given]
    if unknown or not (states or tokens or file.slices):
        raise UsageError(*_explain_unclear(graph, unknown, states), code="loop.unclear-inputs")
    constants = [n for n in graph.inputs if n in left or n in file.constants]
    return Decoder(
        graph,
        tokens,
        _find_logits(graph, file, states, tokens),
        positions,
        cache_position,
        cache_branch,
        mask,
        {n: states[n] for n in graph.inputs if n in states},
        file.slices,
        constants,
    )


def _require_names(graph: Graph, file: LoopFile) -> None:
    outputs = [*file.states.values(), *filter(None, [file.logits])]
    for kind, known, wanted in (
        ("input", list(graph.inputs), list_named_inputs(file)),
        ("output", graph.outputs, outputs),
    ):
        for name in wanted:
            if name not in known:
                raise UnknownName(
                    f"the model has no {kind} '{name}'",
                    nearest=nearest(name, known),
                    code="loop.unknown-name",
                )


def _explain_unclear(graph: Graph, unknown: Sequence[str], states: StringMap) -> tuple[str, str]:
    """What is said where an input has no purpose, and what to write."""
    if not unknown:
        return (
            f"{graph.path.name}: no output is fed back, and there are no tokens",
            'in loop.toml: [states] h0 = "hn"',
        )
    name = clean(unknown[0])
    is_scalar = _is_scalar(graph, unknown[0])
    free = [
        clean(o) for o in graph.outputs if o not in states.values() and _fit(graph, unknown[0], o)
    ]
    is_integer = find_declared_type(graph, unknown[0])[1] in INTEGERS
    may = [f'tokens = "{name}"'] if is_integer and not is_scalar else []
    may += [f"[slices] {name} = 512"] if not is_scalar else []
    may += [f'[states] {name} = "{output}"' for output in free[:1]]
    may += [f"[constants] {name} = 1"]
    return (
        f"what is '{name}' fed in each step?",
        f"in loop.toml: {' or '.join(may)}; or -i {name}=FILE if it never changes",
    )


def _find_logits(graph: Graph, file: LoopFile, states: StringMap, tokens: str) -> str:
    """
    Raises:
        UsageError: several outputs may be it.
    """
    free = [n for n in graph.outputs if n not in states.values()]
    if file.logits or not tokens:
        return file.logits
    if usual := [n for n in LOGITS if n in free]:
        return usual[0]
    floats = [n for n in free if find_declared_type(graph, n)[1] in FLOATS]
    if len(floats) == 1:
        return floats[0]
    listed = ", ".join(floats) or "none is free"
    raise UsageError(
        f"which output are the logits? {listed}",
        f'in loop.toml: logits = "{(floats or ["…"])[0]}"',
        code="loop.ambiguous-logits",
    )


def find_declared_type(graph: Graph, name: str) -> tuple[str, str, Dims]:
    """(form, dtype, dimensions) of an input or output, as the model declares it; dimensions None
    for an unknown rank.

    Raises:
        ModelError: it declares no type.
    """
    types = graph.declared_types([name])
    if name not in types:
        raise ModelError(f"the model declares no type of '{name}'", code="loop.no-type")
    return read_type(types[name])


def find_dims(graph: Graph, name: str) -> Dims:
    """The declared dimensions of an input or output; None for an unknown rank."""
    return find_declared_type(graph, name)[2]


def _is_scalar(graph: Graph, name: str) -> bool:
    dims = find_dims(graph, name)
    return dims is not None and not dims


def pair_states(graph: Graph, file: LoopFile) -> dict[str, str]:
    """Inputs with the outputs that are called alike and have their type; without what the file says
    something about."""
    said = {*list_named_inputs(file), *file.states.values(), file.logits}
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for side, names in enumerate((graph.inputs, graph.outputs)):
        for name in names:
            if name not in said and name not in (*TOKENS, *LOGITS, *POSITIONS, *MASK):
                groups.setdefault(strip_time(name), ([], []))[side].append(name)
    pairs = ((one[0], other[0]) for one, other in groups.values() if len(one) == len(other) == 1)
    return {one: other for one, other in pairs if _fit(graph, one, other)}


def strip_time(name: str) -> str:
    """A name without what tells before from after.

    >>> [strip_time(n) for n in ("past_key_values.0.key", "present.0.key", "h0", "hn", "stateN", "conv_state_out")]
    ['0key', '0key', 'h', 'h', 'state', 'convstate']
    """  # noqa: E501
    return re.sub("[^a-z0-9]", "", _TIMES.sub("", name.lower()))


def _fit(graph: Graph, one: str, other: str) -> bool:
    *kind, dims = find_declared_type(graph, one)
    *other_kind, other_dims = find_declared_type(graph, other)
    if kind != other_kind:
        return False
    if dims is None or other_dims is None:
        return True
    same = all(
        a == b
        for a, b in zip(dims, other_dims, strict=False)
        if isinstance(a, int) and isinstance(b, int)
    )
    return len(dims) == len(other_dims) and same


def find_first_shape(decoder: Decoder, state: str, batch: int) -> list[int]:
    """The shape of a state before the first step: a dimension that grows is 0, a batch is that of
    the tokens.

    A symbol grows if the output has another one there; of dimensions without a name, the last but
    one of a cache.

    Raises:
        UsageError: it is not known.
    """
    graph = decoder.graph
    dims = find_dims(graph, state)
    after = find_dims(graph, decoder.states[state])
    if dims is None:
        raise UsageError(
            f"the first value of '{state}' is not known: the model declares no shape",
            f"-i {state}=FILE",
            code="loop.no-shape",
        )
    fed = [decoder.tokens] if decoder.tokens else decoder.slices
    shapes = [find_dims(graph, name) for name in fed]
    of_batch = {sizes[0] for sizes in shapes if sizes and isinstance(sizes[0], str)}
    cache = re.search("past|cache|key|value", state.lower()) is not None
    shape = []
    for axis, dim in enumerate(dims):
        stays = after is not None and axis < len(after) and after[axis] == dim
        grows = axis == len(dims) - 2 and cache if dim is None else not stays
        if isinstance(dim, int):
            shape.append(dim)
        else:
            shape.append(0 if grows and axis and dim not in of_batch else batch)
    return shape
