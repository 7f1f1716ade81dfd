"""A graph, and the user's `loop.toml` -> the purpose of each input and output of a loop.

A state is an input that gets an output of the step before. Exporters call the two alike:
`past_key_values.0.key` and `present.0.key`, `h0` and `hn`, `state` and `stateN`, `conv_in` and
`conv_out`. `loop.toml` has the facts that names and types do not show; each key is optional.
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
from subgraph.graph.value_types import find_declared_types, read_type
from subgraph.iterables import group_values, pick
from subgraph.text import clean, find_nearest
from subgraph.types import Fields, StringMap, frozen

DEFAULT_STEPS = 64  # of a text without a number in the file and without an end
MAX_STEPS = 100_000


@frozen
class Slicing:
    """An input that gets the next part of a longer sequence in each step.

    Attributes:
        size: Elements along `axis` that a step is fed.
        step: Elements from one part to the next; `size` without overlap.
        axis: The axis.
    """

    size: int
    step: int
    axis: int = -1


@frozen
class LoopFile:
    """The file's keys.

    Attributes:
        tokens: The input of tokens.
        logits: The output of logits.
        position_ids: The input of positions.
        attention_mask: The input of the mask.
        steps: The most runs of the model; None for `DEFAULT_STEPS`, or all slices.
        eos: Tokens that end a text.
        pad: The token that is fed to rows that have ended.
        states: The output that is fed to each of these inputs in the next step.
        slices: Inputs that get parts of a sequence.
        constants: Inputs that are the same number in every step.
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
    """Read the file that describes a loop.

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
            near = find_nearest(key, known)
            raise UsageError(
                f"{path}: no key '{key}'",
                f"known: {', '.join(near or known)}",
                code="loop.unknown-key",
            )
    values = {key: _check_value(str(path), key, value) for key, value in document.items()}
    return LoopFile(**values)


def _check_value(file: str, key: str, value: Any) -> Any:
    """Require the kind of value that a key takes, and return the value.

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
    if key != "slices":
        return value
    slices = {}
    for name, part in value.items():
        table = {"size": part} if _is_number(part) else part
        has_size = isinstance(table, dict) and "size" in table
        if (
            not has_size
            or not all(map(_is_number, table.values()))
            or table.keys() - {"size", "step", "axis"}
            or min(table["size"], table.get("step", 1)) < 1
        ):
            raise UsageError(
                f"{file}: slices: {name} = {part}: expected a size in elements",
                f"{name} = 512, or {name} = {{ size = 576, step = 512, axis = -1 }}",
                code="loop.wrong-value",
            )
        size = table["size"]
        slices[name] = Slicing(size, table.get("step", size), table.get("axis", -1))
    return slices


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def list_named_inputs(file: LoopFile) -> Sequence[str]:
    """Return the model's inputs that the file names."""
    named = filter(None, (file.tokens, file.position_ids, file.attention_mask))
    return [*named, *file.states, *file.slices, *file.constants]


TOKENS = ("input_ids", "decoder_input_ids", "tokens", "token", "ids", "input_id", "tgt")
LOGITS = ("logits", "lm_logits", "output_logits", "scores")
POSITIONS = ("position_ids", "positions")
MASK = ("attention_mask", "decoder_attention_mask")
CACHE_POSITION = "cache_position"  # without a batch, as transformers' static cache has them
# The input of two decoders merged into one: false in the first step, which computes the cache.
CACHE_BRANCH = "use_cache_branch"
INTEGERS = ("int64", "int32")
FLOATS = ("float32", "float16", "bfloat16", "float64")
# Parts of a name that only distinguish a tensor before a step and the one after it.
_TIMES = re.compile(
    r"(past|present)(_key_values?)?|(?<![a-z])(prev|previous|next|new|updated|old|cur|current|in"
    r"|out|input|output|init|initial|final|last)(?![a-z])|(?<=[a-z])[0n]$"
)

Dims = Sequence[int | str | None] | None


@frozen
class Decoder:
    """The purposes of the inputs and outputs of a model; "" for a missing one.

    Attributes:
        graph: The model.
        tokens: Input, integers (batch, length), or (batch,) for one per step.
        logits: Output, (batch, …, vocabulary).
        position_ids: Input, positions of the tokens.
        cache_position: Input, positions of the tokens, without a batch.
        cache_branch: Input, whether there is a cache. If there is, an empty state means that the
            earlier one stays.
        attention_mask: Input, 1 for each token up to the step.
        states: The output of each of these inputs, in the model's order.
        slices: Inputs that get parts of a sequence.
        constants: Inputs that are the same in every step.
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
        """Whether a step can have several tokens."""
        if not self.tokens:
            return False
        dims = find_dims(self.graph, self.tokens)
        return dims is None or (len(dims) > 1 and not isinstance(dims[1], int))


def resolve_decoder(graph: Graph, file: LoopFile, given: Collection[str]) -> Decoder:
    """Return the purposes of a model's inputs and outputs.

    Args:
        graph: The model.
        file: The user's file.
        given: Inputs with a value from the user, which are constant without another purpose.

    Raises:
        UnknownName: The file names a tensor that the model has not.
        UsageError: The purpose of an input is not known.
    """
    _require_names(graph, file)
    states = {**pair_states(graph, file), **file.states}
    left = [
        n
        for n in graph.inputs
        if n not in states and n not in file.slices and n not in file.constants
    ]

    def take(named: str, usual: Sequence[str]) -> str:
        found = named or next((n for n in usual if n in left), "")
        if found in left:
            left.remove(found)
        return found

    positions = take(file.position_ids, POSITIONS)
    mask = take(file.attention_mask, MASK)
    cache_position = take("", [CACHE_POSITION])
    cache_branch = take("", [CACHE_BRANCH])
    tokens = take(file.tokens, TOKENS)
    if not tokens and not file.slices:  # the only one of whole numbers
        numbers = [
            n
            for n in left
            if find_declared_type(graph, n)[1] in INTEGERS and not _is_scalar(graph, n)
        ]
        tokens = take(numbers[0], ()) if len(numbers) == 1 else ""
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
        pick(states, graph.inputs),
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
                    nearest=find_nearest(name, known),
                    code="loop.unknown-name",
                )


def _explain_unclear(graph: Graph, unknown: Sequence[str], states: StringMap) -> tuple[str, str]:
    """Return the error and the hint for an input without a purpose."""
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
    if not is_scalar:
        may.append(f"[slices] {name} = 512")
    may += [f'[states] {name} = "{output}"' for output in free[:1]]
    may += [f"[constants] {name} = 1"]
    return (
        f"what is '{name}' fed in each step?",
        f"in loop.toml: {' or '.join(may)}; or -i {name}=FILE if it never changes",
    )


def _find_logits(graph: Graph, file: LoopFile, states: StringMap, tokens: str) -> str:
    """Return the output that holds the logits; "" without one.

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
    """Find (form, dtype, dimensions) of an input or output, as the model declares it.

    The dimensions are None for an unknown rank.

    Raises:
        ModelError: it declares no type.
    """
    types = find_declared_types(graph, [name])
    if name not in types:
        raise ModelError(f"the model declares no type of '{name}'", code="loop.no-type")
    return read_type(types[name])


def find_dims(graph: Graph, name: str) -> Dims:
    """Return the declared dimensions of an input or output; None for an unknown rank."""
    return find_declared_type(graph, name)[2]


def _is_scalar(graph: Graph, name: str) -> bool:
    dims = find_dims(graph, name)
    return dims is not None and not dims


def pair_states(graph: Graph, file: LoopFile) -> dict[str, str]:
    """Return inputs with outputs of like names and their type, without those in the file."""
    excluded = {*list_named_inputs(file), *file.states.values(), file.logits}
    excluded.update(TOKENS, LOGITS, POSITIONS, MASK)
    inputs, outputs = (
        group_values((strip_time(name), name) for name in names if name not in excluded)
        for names in (graph.inputs, graph.outputs)
    )
    pairs = {}
    for key, (one, *others) in inputs.items():
        match = outputs.get(key, ())
        if not others and len(match) == 1 and _fit(graph, one, match[0]):
            pairs[one] = match[0]
    return pairs


def strip_time(name: str) -> str:
    """Return a name without the parts that distinguish before and after.

    >>> [strip_time(n) for n in ("past_key_values.0.key", "present.0.key", "h0", "hn", "stateN")]
    ['0key', '0key', 'h', 'h', 'state']
    """
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
    """Return the shape of a state before the first step: a dimension that grows is 0, a batch is
    that of the tokens.

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
