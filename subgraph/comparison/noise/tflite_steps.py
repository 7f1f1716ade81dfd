"""A cut of a .tflite -> a model in which steps are added to what each of its operators quantizes.

Inside of TensorFlow Lite's operators nothing can be reached; but what they make is codes, which may
be off by a step.

    before:  CONV_2D → y → ADD …
    after:   CONV_2D → y → an operator of ours that adds the steps it is fed → y:moved → ADD …

What leaves the region is what its last operator makes: its own step is allowed for by the
criterion.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import helper

from subgraph.comparison.noise.instrument import MARK, Instrumented, set_outputs
from subgraph.graph import protobuf
from subgraph.graph.quantization import TFLITE, TFLITE_SHIFT
from subgraph.graph.walk import assign
from subgraph.storage.dtypes import TYPE_NUMBERS

STEPPED = ("int8", "uint8")  # types that TensorFlow Lite adds with any scale


def add_steps(
    model: protobuf.ModelProto, stepped: dict[str, tuple[str, list[int]]], outputs: Sequence[str]
) -> Instrumented:
    """Change the model of a cut. `stepped`: type and shape of each tensor that is moved; `outputs`:
    what the model gives then."""
    nodes = []
    shifts = dict[str, str]()
    read = {name for node in model.graph.node for name in node.input}
    for node in model.graph.node:
        node.input[:] = [
            f"{name}{MARK}moved" if name in shifts.values() else name for name in node.input
        ]
        nodes.append(node)
        for name in node.output:
            if name in stepped and name in read:
                shift = f"{name}{MARK}shift"
                shifts[shift] = name
                nodes.append(
                    helper.make_node(
                        TFLITE_SHIFT, [name, shift], [f"{name}{MARK}moved"], domain=TFLITE
                    )
                )
    infos = [
        helper.make_tensor_value_info(s, TYPE_NUMBERS[stepped[n][0]], stepped[n][1])
        for s, n in shifts.items()
    ]
    model.graph.input.extend(infos)
    assign(model.graph.node, nodes)
    set_outputs(model, outputs)
    return Instrumented("", (), {}, shifts, "")
