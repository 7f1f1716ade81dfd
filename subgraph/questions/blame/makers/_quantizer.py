"""The options and operators of onnxruntime's quantizers as steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from subgraph.errors import UsageError
from subgraph.iterables import drop_repeats
from subgraph.questions.blame.makers import Making
from subgraph.text import find_nearest
from subgraph.types import StringMap, frozen

# An option -> its values: the default, the one in place of an omitted default, others. Names of
# extra options begin with a capital.
Options = Mapping[str, Sequence[str]]
OFF = ("false", "true")
ON = ("true", "false")
TYPES = ("QInt8", "QUInt8", "QInt16", "QUInt16")
SHARED: Options = {
    "per_channel": OFF,
    "reduce_range": OFF,
    "weight_type": TYPES,
    "WeightSymmetric": ON,
}
BOOLEANS = {"true": True, "false": False}
# Options of another type -> the enumeration that has their values.
ENUMERATIONS = {
    "activation_type": "QuantType",
    "weight_type": "QuantType",
    "calibrate_method": "CalibrationMethod",
    "quant_format": "QuantFormat",
}


@frozen
class Quantizer:
    """A function of onnxruntime.quantization.

    Attributes:
        function: Its name.
        options: Its options.
        registries: Names of the tables of the operators that it quantizes.
    """

    function: str
    options: Options
    registries: Sequence[str]

    def steps(self, making: Making, settings: StringMap) -> list[str]:
        """Return the operators that it quantizes, and `OPTION=VALUE` for each option.

        Raises:
            UsageError: A setting is not an option, or the option does not accept its value.
        """
        for name, value in settings.items():
            known = self.options.get(name, self.options)
            word = value if name in self.options else name
            if word not in known:
                raise UsageError(
                    f"--made-by: {self.function} has no '{name}={value}'",
                    ", ".join(find_nearest(word, known) or known),
                    code="maker.unknown-option",
                )
        chosen = {name: settings.get(name, values[0]) for name, values in self.options.items()}
        return [*self._find_operators(making), *(f"{n}={value}" for n, value in chosen.items())]

    def make(self, making: Making, settings: StringMap, **more: Any) -> None:
        """Write the quantized model; a copy if no operator is quantized.

        Raises:
            UsageError: As `steps`.
        """
        from onnxruntime import quantization

        arguments = {}
        for step in self.steps(making, settings):
            name, is_option, value = step.partition("=")
            if not is_option:
                continue
            default, second = self.options[name][:2]
            if step in making.skip:
                value = second if value == default else default
            values = getattr(quantization, ENUMERATIONS[name]) if name in ENUMERATIONS else BOOLEANS
            arguments[name] = values[value]
        operators = [op for op in self._find_operators(making) if op not in making.skip]
        if not operators:
            making.made.write_bytes(making.model.read_bytes())
            return
        extra = {name: arguments.pop(name) for name in self.options if name[0].isupper()}
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # advises to preprocess, which renames tensors
        try:
            getattr(quantization, self.function)(
                making.model,
                making.made,
                op_types_to_quantize=operators,
                extra_options=extra,
                **arguments,
                **more,
            )
        finally:
            logging.disable(disabled)

    def _find_operators(self, making: Making) -> list[str]:
        """Return the operators of the model that it quantizes."""
        from onnxruntime.quantization import registry

        known = set[str]().union(*(getattr(registry, name) for name in self.registries))
        nodes = onnx.load(making.model, load_external_data=False).graph.node
        return drop_repeats(node.op_type for node in nodes if node.op_type in known)
