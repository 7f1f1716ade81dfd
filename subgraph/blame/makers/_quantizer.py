"""The options and operators of onnxruntime's quantizers as steps."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import onnx

from subgraph.blame.makers import Making
from subgraph.errors import UsageError
from subgraph.text import nearest

# An option -> its values: the default, the one in place of an omitted default, others.
Options = Mapping[str, Sequence[str]]
OFF = ("false", "true")
ON = ("true", "false")
SHARED: Options = {"per_channel": OFF, "reduce_range": OFF}
TYPES = ("QInt8", "QUInt8", "QInt16", "QUInt16")
BOOLEANS = {"true": True, "false": False}


def find_operators(making: Making, registries: Iterable[Collection[str]]) -> list[str]:
    """Return the operators of the model that a quantizer quantizes."""
    known = set().union(*registries)
    nodes = onnx.load(making.model, load_external_data=False).graph.node
    return list(dict.fromkeys(node.op_type for node in nodes if node.op_type in known))


def list_steps(options: Options, settings: Mapping[str, str]) -> list[str]:
    """Return `OPTION=VALUE` for each option.

    Raises:
        UsageError: A setting is none of the options, or its value none of the option's.
    """
    for name, value in settings.items():
        known = options.get(name, options)
        word = value if name in options else name
        if word not in known:
            what = f"--made-by: the quantizer has no '{name}={value}'"
            hint = ", ".join(nearest(word, known) or known)
            raise UsageError(what, hint, code="maker.unknown-option")
    return [f"{name}={settings.get(name, values[0])}" for name, values in options.items()]


def choose_options(
    making: Making, options: Options, settings: Mapping[str, str]
) -> dict[str, str | bool]:
    """Return the value of each option; one that is omitted has its default, or else its second
    value."""
    chosen: dict[str, str | bool] = {}
    for step in list_steps(options, settings):
        name, _, value = step.partition("=")
        default, second = options[name][:2]
        if step in making.skip:
            value = second if value == default else default
        chosen[name] = BOOLEANS.get(value, value)
    return chosen


def quantize(
    function: Any, making: Making, operators: Sequence[str], chosen: Mapping[str, Any], **more: Any
) -> None:
    """Write the model in which these operators are quantized; without any, it is a copy."""
    if not operators:
        making.made.write_bytes(making.model.read_bytes())
        return
    logging.disable(logging.WARNING)  # advises to preprocess, which renames tensors
    plain = {name: chosen[name] for name in SHARED}
    extra = {name: value for name, value in chosen.items() if name not in (*SHARED, *more)}
    function(
        making.model,
        making.made,
        op_types_to_quantize=list(operators),
        extra_options=extra,
        **plain,
        **more,
    )
