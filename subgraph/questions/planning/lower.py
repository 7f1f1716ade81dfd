"""A float model, and the tensors that are read in less precision -> the lowered model.

It has the same inputs and outputs. Another tool may lower it, in a separate process.

    before:  x → Conv → y        lowered:  x → QuantizeLinear → DequantizeLinear → Conv → y

Weights are stored as their codes. A node that computes in float16 hands its values on in float16 to
such nodes, and as float32 to all others.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from subgraph import children
from subgraph.editing.draft import Draft, load_at_opset
from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.model_file import copy_model
from subgraph.graph.nested import rename
from subgraph.graph.opsets import get_opset
from subgraph.iterables import flatten, group_values
from subgraph.questions.planning.places import (
    FLOAT,
    OUTPUT,
    Dynamic,
    Form,
    Lowering,
    Quantized,
    Read,
    Rounded,
    Twin,
)
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.run_result import Feeds
from subgraph.storage.dtypes import TYPE_NUMBERS
from subgraph.types import Array, JsonObject

MIN_AXIS_OPSET = 13  # opset from which QuantizeLinear takes a scale per channel
MIN_16_BIT_OPSET = 21  # opset from which it has 16 bits; before, onnxruntime has its own operators
WIDE = ("int16", "uint16")
MICROSOFT = "com.microsoft"
TYPES = ("int8", "uint8", "int16")
TIMEOUT = 3600.0  # seconds


def raise_model(graph: Graph, folder: Path) -> Graph:
    """Return the model at an opset that quantizes by channel: itself, or as onnx converts it, a
    file in `folder`.

    Raises:
        ModelError: onnx cannot convert it.
    """
    is_newer = get_opset(graph.model) >= MIN_AXIS_OPSET
    if is_newer:
        return graph
    return load_at_opset(graph, MIN_AXIS_OPSET, folder)


def lower_model(
    graph: Graph, lowerings: Mapping[Read, Lowering], *, simulated: bool = False
) -> Draft:
    """Return the model in which exactly these reads are lowered; for quantized ones its opset is
    that of `raise_model`.

    Args:
        graph: The float model.
        lowerings: The lowering of each read.
        simulated: Whether float16 is float32 whose values are rounded at each node: onnxruntime on
            a CPU otherwise keeps values between float16 nodes in float32, in which nothing
            overflows.
    """
    return _Drafting(graph, lowerings, simulated).run()


def narrow(value: Array) -> Array:
    """Return a constant in float16, as converters store it.

    A finite value stays finite, and a value other than 0 does not become 0.

    >>> narrow(np.array([1e-12, -1e9, 0, np.inf], np.float32)).tolist()
    [5.960464477539063e-08, -65504.0, 0.0, inf]
    """
    info = np.finfo(np.float16)
    most = float(info.max)
    finite = np.clip(value, -most, most, where=np.isfinite(value), out=value.copy())
    small = (value != 0) & (np.abs(value) < float(info.smallest_subnormal))
    return np.where(small, np.copysign(info.smallest_subnormal, value), finite).astype(np.float16)


class _Drafting:
    def __init__(self, graph: Graph, how: Mapping[Read, Lowering], simulated: bool) -> None:
        self.graph = graph
        self.simulated = simulated
        self.how = how
        self.draft = Draft(graph)
        self.proto = self.draft.model.graph
        self.opset = get_opset(self.draft.model)
        self.names: dict[tuple[str, Lowering], str] = {}  # of lowered values, by tensor and form
        # By tensor; the first one's nodes bear its name alone.
        self.forms: dict[str, list[Form]] = {}
        self.narrow: dict[str, str] = {}  # of values in float16, or rounded to bfloat16, by tensor
        self.made: list[Any] = []
        self.constants: set[str] = set()  # names of weights that were added

    def run(self) -> Draft:
        by_node = group_values((i, (name, how)) for (i, name), how in self.how.items())
        nodes = list(self.proto.node)
        for i in self.graph.in_order(i for i in by_node if i != OUTPUT):
            node = nodes[i]
            lowered = dict(by_node[i])
            if isinstance(form := lowered.get(""), Rounded):
                self._round(node, form)
            for k, name in enumerate(node.input):
                if name and (form := lowered.get(name)):
                    assert not isinstance(form, Rounded)
                    node.input[k] = self._lower(name, form)
        for name, form in sorted(by_node.get(OUTPUT, ())):
            assert not isinstance(form, Rounded)
            self._lower_output(name, form)
        return self._finish()

    def _finish(self) -> Draft:
        self.proto.node.extend(self.made)
        draft = self.draft
        draft.drop_unread()
        model = draft.model
        imported = {entry.domain for entry in model.opset_import}
        if {node.domain for node in self.made} - imported >= {MICROSOFT}:
            model.opset_import.add(domain=MICROSOFT, version=1)
        # Since this version a weight need not be an input.
        model.ir_version = max(model.ir_version, 4)
        draft.sort()
        return draft

    # ------------------------------------------------------------ quantized

    def _lower(self, name: str, form: Form) -> str:
        """Return the name of a tensor's lowered value; made once."""
        if (key := (name, form)) not in self.names:
            if isinstance(form, Dynamic):
                self.names[key] = self._add_dynamic(name)
            else:
                value = self.graph.array(name)
                codes = None if value is None else form.scale.quantize(value, form.dtype)
                self.names[key] = self._dequantize(name, form, codes)
        return self.names[key]

    def _dequantize(
        self, name: str, form: Quantized, codes: Array | None = None, gives: str = ""
    ) -> str:
        """Add nodes that quantize a tensor, or hold its codes, and dequantize them."""
        # A tensor may be read in several forms.
        forms = self.forms.setdefault(name, [])
        if form not in forms:
            forms.append(form)
        stem = f"{name}:{form.dtype}" if forms.index(form) else name
        step = _unwrap(np.asarray(form.scale.step, np.float32))
        zero = _unwrap(np.asarray(form.scale.zero, np.int64).astype(form.dtype))
        scale = [
            self._add_constant(f"{stem}:scale", step),
            self._add_constant(f"{stem}:zero", zero),
        ]
        more: JsonObject = {"axis": form.scale.axis} if len(form.scale.step) > 1 else {}
        if form.dtype in WIDE and self.opset < MIN_16_BIT_OPSET:
            more["domain"] = MICROSOFT
        if codes is not None:
            stored = self._add_constant(f"{stem}:codes", codes)
        else:
            stored = f"{stem}:codes"
            self._add_node("QuantizeLinear", [name, *scale], [stored], **more)
        gives = gives or f"{stem}:lowered"
        self._add_node("DequantizeLinear", [stored, *scale], [gives], **more)
        return gives

    def _add_dynamic(self, name: str) -> str:
        parts = [f"{name}:codes", f"{name}:scale", f"{name}:zero"]
        self._add_node("DynamicQuantizeLinear", [name], parts)
        self._add_node("DequantizeLinear", parts, [f"{name}:lowered"])
        return f"{name}:lowered"

    def _lower_output(self, name: str, form: Form) -> None:
        """Lower an output of the model, which keeps its name; its own value gets another one."""
        raw = f"{name}:float"
        outputs = list(self.proto.output)
        rename(self.proto, lambda n: raw if n == name else n, str)
        for node in self.made:
            for names in (node.input, node.output):
                names[:] = [raw if n == name else n for n in names]
        for value in outputs:
            if value.name == raw:
                value.name = name
        if isinstance(form, Dynamic):
            self._add_node("Identity", [self._add_dynamic(raw)], [name])
        else:
            self._dequantize(raw, form, gives=name)

    # ------------------------------------------------------------ float16

    def _round(self, node: Any, form: Rounded) -> None:
        """Round the inputs and outputs of a node. If it is not to compute in float16 itself, it
        computes in float32, as units with wide sums do."""
        is_float = form.dtype != "float16" or self.simulated
        for k in form.inputs:
            node.input[k] = self._add_rounded(node.input[k], form.dtype, is_float)
        suffix = "float" if is_float else form.dtype
        outputs = node.output
        for k in form.outputs:
            name = outputs[k]
            outputs[k] = f"{name}:{suffix}"
            if is_float:
                self._add_two_casts(outputs[k], name, form.dtype)
            else:
                self.narrow[name] = outputs[k]
                self._add_cast(outputs[k], name, "float32")

    def _add_rounded(self, name: str, dtype: str, is_float: bool) -> str:
        """Return the name of a tensor's rounded value, in float16 or in float32; made once."""
        if name not in self.narrow:
            suffix = "rounded" if is_float else dtype
            made = f"{name}:{suffix}"
            self.narrow[name] = made
            weight = self.graph.array(name) if dtype == "float16" else None
            if weight is not None:
                value = narrow(weight)
                self._add_constant(made, value.astype(np.float32) if is_float else value)
            elif is_float:
                self._add_two_casts(name, made, dtype)
            else:
                self._add_cast(name, made, dtype)
        return self.narrow[name]

    def _add_two_casts(self, name: str, gives: str, dtype: str) -> None:
        self._add_cast(name, f"{gives}:{dtype}", dtype)
        self._add_cast(f"{gives}:{dtype}", gives, "float32")

    def _add_cast(self, name: str, gives: str, dtype: str) -> None:
        self._add_node("Cast", [name], [gives], to=TYPE_NUMBERS[dtype])

    # ------------------------------------------------------------ parts

    def _add_node(self, op: str, reads: list[str], makes: list[str], **attributes: Any) -> None:
        self.made.append(helper.make_node(op, reads, makes, name=f"{makes[0]}/{op}", **attributes))

    def _add_constant(self, name: str, value: Array) -> str:
        if name not in self.constants:
            self.constants.add(name)
            self.proto.initializer.append(
                numpy_helper.from_array(np.asarray(value, order="C"), name)
            )
        return name


def _unwrap(values: Array) -> Array:
    """Return a scalar for a single value, else the values."""
    return values if len(values) > 1 else values.reshape(())


def count_bytes(graph: Graph, twin: Twin, lowerings: Mapping[Read, Lowering]) -> Mapping[str, int]:
    """Count the bytes of the float weights.

    "low" as the twin stores them, "between" in a gear above that, and "float".
    """
    stored: dict[str, str] = {}
    for (i, name), form in lowerings.items():
        if isinstance(form, Rounded):
            names = [graph.nodes[i].input[k] for k in form.inputs]
        else:
            names = [name]
        is_low = twin.forms.get(name) == form if name else twin.rounded.get(i) == form
        stored |= {n: "low" if is_low else "between" for n in names if stored.get(n) != "between"}
    sizes = {"low": 0, "between": 0, "float": 0}
    for name in dict.fromkeys(flatten(graph.reads)):
        weight = graph.constant(name)
        if weight is not None and weight.data_type == FLOAT:
            sizes[stored.get(name, "float")] += protobuf.count_bytes(weight)
    return sizes


def quantize_model(
    graph: Graph, samples: Feeds, dtype: str, listed: Path | None, folder: Path, deadline: Deadline
) -> Path:
    """Quantize the model by onnxruntime, into a file in `folder`; it is calibrated on all samples.

    Args:
        dtype: That of the activations.
        listed: A list of the nodes that stay in float; None for none.

    Raises:
        ModelError: onnxruntime cannot quantize it; with its own words. OutOfTime: the time is used
            up.
    """
    files = [{name: sample[name].files[0] for name in graph.inputs} for sample in samples]
    (folder / "samples.json").write_text(json.dumps(files), encoding="utf-8")
    output = folder / f"{graph.path.stem}-{dtype}.onnx"
    words: list[str | Path] = [dtype, folder / "samples.json", *filter(None, [listed])]
    return run_lowering(
        "onnxruntime's quantizer",
        "subgraph.questions.planning.quantize_main",
        graph,
        output,
        words,
        deadline,
    )


def run_lowering(
    tool: str,
    script: str,
    graph: Graph,
    output: Path,
    words: Sequence[str | Path],
    deadline: Deadline,
) -> Path:
    """Run a script `MODEL OUT WORDS…` that lowers a model by a tool; return `output`.

    Raises:
        ModelError: the tool cannot lower it; with its own words. OutputError: a disk is full.
        OutOfTime: the time is used up.
    """
    folder = output.parent
    name = graph.path.name
    source = folder / "float.onnx"
    copy_model(graph, source)
    command = children.make_python_command("-m", script, source, output, *words)
    try:
        process = children.run(command, timeout=deadline.timeout(TIMEOUT), cwd=folder)
    except subprocess.TimeoutExpired as e:
        deadline.require()
        raise ModelError(
            f"{tool} did not lower {name} within {TIMEOUT:g} s", code="plan.timeout"
        ) from e
    process.require_space()
    if process.code or not output.is_file():
        why = " ".join(process.list_last_lines(1)) or f"exit code {process.code}"
        raise ModelError(
            f"{tool} fails on {name}: {why}",
            "lower it by your own tool, and name that model with --candidate-model",
            code="plan.tool-failed",
        )
    return output
