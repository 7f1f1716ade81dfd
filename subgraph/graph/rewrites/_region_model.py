"""A region as a model, and copies of it with other nodes instead of some."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from subgraph.graph import protobuf
from subgraph.graph.nested import assign, get_attribute, iter_nodes, list_bodies
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.opsets import STANDARD, get_opset
from subgraph.graph.shape_inference import infer_model
from subgraph.graph.value_types import set_tensor
from subgraph.iterables import flatten
from subgraph.types import Array

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
INTEGERS = (
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.UINT32,
)
FIXED = ", for these shapes and sizes"
MAX_ALONE = 12  # nodes that a form is tried on one by one
FIRST = -1  # the place before all nodes
# Opset since which axes are an input; others: 18.
AXES_INPUT = {
    "ReduceSum": 13,
    "Squeeze": 13,
    "Unsqueeze": 13,
}


class RegionModel:
    """A region as a standalone model, with the properties that rewritings use.

    Attributes:
        model: The model with all its weights; rewritings never change it.
        opset: The opset of ONNX's own operators.
        types: The declared or inferred type of each tensor.
        any_shape: Whether the full model takes inputs of other shapes.
        frozen: Constants that the full model computes from shapes.
        fixed: Whether a shape or a frozen constant was read since this was set to False.
        nodes: The nodes of the graph itself.
        constants: Initializers, and values of Constant nodes.
        readers: The number of reads of each tensor, bodies included, plus one for a model output.
        inner: Tensors on an edge between two nodes, without constants.
    """

    def __init__(
        self, model: ModelProto, onnx: OnnxProcess, frozen: Collection[str] | None = None
    ) -> None:
        self.model = model
        self.opset = get_opset(model)
        self._onnx = onnx
        self.any_shape = frozen is not None
        self.frozen = frozenset(frozen or ())
        self.fixed = False
        inferred = infer_model(model, onnx)[0].graph
        self.types: dict[str, TypeProto] = {
            v.name: v.type for v in (*inferred.value_info, *inferred.input, *inferred.output)
        }
        self.nodes: Sequence[NodeProto] = model.graph.node
        nodes = (node for node in self.nodes if node.op_type == "Constant")
        values = ((node.output[0], get_attribute(node, "value")) for node in nodes)
        weights = ((tensor.name, tensor) for tensor in model.graph.initializer)
        self.constants: dict[str, TensorProto] = {
            name: tensor for name, tensor in (*values, *weights) if tensor is not None
        }
        read = list(_read(self.nodes))
        self.readers = Counter(chain(read, (v.name for v in model.graph.output)))
        made = set(flatten(node.output for node in self.nodes))
        self.inner = made.intersection(filter(None, read)) - self.constants.keys()

    def value(self, name: str) -> Array | None:
        """Return a constant's elements; None if it is computed."""
        self.fixed |= name in self.frozen
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        return None

    def element(self, name: str) -> int:
        """Return the TensorProto.DataType of a tensor; 0 if it is unknown, or the value is not a
        tensor."""
        if name in self.constants:
            return int(self.constants[name].data_type)
        if name in self.types:
            return int(self.types[name].tensor_type.elem_type)
        return 0

    def shape(self, name: str) -> list[int] | None:
        """Return the shape; None unless every dimension is known."""
        if name in self.constants:
            return list(self.constants[name].dims)
        self.fixed = True
        dims = self._find_dims(name)
        is_known = dims is not None and all(d.HasField("dim_value") for d in dims)
        if is_known:
            return [d.dim_value for d in dims]
        return None

    def rank(self, name: str) -> int | None:
        """Return the rank; None if it is unknown."""
        dims = self.constants[name].dims if name in self.constants else self._find_dims(name)
        return None if dims is None else len(dims)

    def _find_dims(self, name: str) -> Any:
        tensor = self.types[name].tensor_type if name in self.types else None
        if tensor is not None and tensor.HasField("shape"):
            return tensor.shape.dim
        return None

    def function_body(self, node: NodeProto, version: int) -> FunctionProto | None:
        """Return the function that defines this node in its schema `version`; None without one."""
        types = [self.types.get(n) or self._find_constant_type(n) for n in node.input]
        try:
            return self._onnx.function_body(node, types, version, self.opset)
        except OnnxError:
            return None

    def _find_constant_type(self, name: str) -> TypeProto:
        """Return the type of a constant; an empty one for any other tensor."""
        proto = protobuf.load_protos().TypeProto()
        if name in self.constants:
            set_tensor(proto, self.element(name), self.constants[name].dims)
        return proto

    def convert(self, version: int) -> ModelProto | None:
        """Return the model in another opset; None if onnx's converter does not reach it."""
        try:
            return self._onnx.convert(self.model, version)
        except OnnxError:
            return None


def _read(nodes: Sequence[NodeProto]) -> Iterator[str]:
    for node in iter_nodes(nodes):
        yield from node.input
        yield from (v.name for v in flatten(body.output for body in list_bodies(node)))


def get_argument(node: NodeProto, position: int) -> str:
    """Return the name of an input; "" if it is left out."""
    if position < len(node.input):
        return str(node.input[position])
    return ""


def format_node_title(node: NodeProto) -> str:
    """Return the name of a node for users; without a name, its operator and first output."""
    return str(node.name or f"{node.op_type} of '{next(filter(None, node.output), '')}'")


def find_reduced_axes(source: RegionModel, node: NodeProto) -> list[int] | None:
    """Return the axes of a reduction, none of them negative; None if they are unknown.

    A reduction without axes has all axes.
    """
    rank = source.rank(node.input[0])
    axes_input = get_argument(node, 1)
    if rank is None or (axes_input and source.value(axes_input) is None):
        return None
    value = source.value(axes_input) if axes_input else None
    axes = get_attribute(node, "axes") if value is None else [int(a) for a in value.reshape(-1)]
    if not axes and get_attribute(node, "noop_with_empty_axes", 0):
        return None
    if rank:
        return sorted(a % rank for a in axes or range(rank))
    return None


class Substitution:
    """A copy of a model: appended nodes replace the node that `at` named last."""

    def __init__(self, source: RegionModel, index: int = FIRST) -> None:
        self.source = source
        self.opset = source.opset
        self._new: dict[int, list[NodeProto]] = {}
        self._weights: list[TensorProto] = []
        self._never = ""
        used = flatten((*node.input, *node.output) for node in source.nodes)
        self._taken = {*used, *source.constants}
        self.move_to(index)

    def move_to(self, index: int) -> None:
        """Let the next nodes replace this node, or precede all nodes (`FIRST`)."""
        self._at = index
        self._new[index] = []

    def name(self, hint: str) -> str:
        """Return a tensor's name that is not taken."""
        name = f"rewritten/{hint}"
        number = 0
        while name in self._taken:
            number += 1
            name = f"rewritten/{hint}_{number}"
        self._taken.add(name)
        return name

    def node(
        self, op: str, inputs: Sequence[str], output: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Append a node of one output; return the name of the output."""
        output = output or self.name(op)
        present = {k: v for k, v in attributes.items() if v is not None}
        name = self.name(f"{op}_node")
        self._new[self._at].append(
            helper.make_node(op, list(inputs), [output], name, domain=domain, **present)
        )
        return output

    def formula(self, text: str, output: str | None = None, **given: Any) -> str:
        """Append the nodes of a formula such as `Mul(x, Sigmoid(x))`; return the result's name.

        Args:
            text: Operators in Python's syntax. `x` and `y` are the inputs of the replaced node;
                keywords are attributes.
            output: The name of the result; None for the first output of the replaced node.
            given: Further tensors by name; numbers and arrays become constants of the type of `x`.
        """
        node = self.source.nodes[self._at]
        names = {**dict(zip("xy", node.input, strict=False)), **given}

        def read(part: ast.expr) -> Any:
            if isinstance(part, ast.Name):
                return names[part.id]
            return ast.literal_eval(part)

        def build(part: ast.expr, output: str) -> str:
            if isinstance(part, ast.Call):
                inputs = [build(argument, "") for argument in part.args]
                attributes = {str(word.arg): read(word.value) for word in part.keywords}
                return self.node(ast.unparse(part.func), inputs, output, **attributes)
            value = read(part)
            if isinstance(value, str):
                return value
            return self.weight(value, self.source.element(node.input[0]))

        return build(
            ast.parse(text, mode="eval").body, node.output[0] if output is None else output
        )

    def copy(self, node: NodeProto) -> NodeProto:
        """Append a copy of a node, to be changed."""
        self._new[self._at].append(protobuf.clone(node))
        return self._new[self._at][-1]

    def weight(self, array: Any, dtype: int | None = None) -> str:
        """Add an initializer; return its name. `dtype`: the element type, if it is not the
        array's."""
        array = np.asarray(array)
        if dtype:
            array = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        self._weights.append(numpy_helper.from_array(array, self.name("constant")))
        return str(self._weights[-1].name)

    def drop(self, index: int) -> None:
        """Omit a node."""
        self._new[index] = []

    def reduce(
        self, op: str, x: str, axes: Sequence[int], output: str = "", keepdims: int | None = 1
    ) -> str:
        """Append a reduction, Squeeze or Unsqueeze with the axes as the opset has them; return the
        name of its output."""
        if self.opset >= AXES_INPUT.get(op, 18):
            return self.node(op, [x, self.integers(axes)], output, keepdims=keepdims)
        return self.node(op, [x], output, axes=list(axes), keepdims=keepdims)

    def integers(self, values: Sequence[int]) -> str:
        """Add an initializer of int64 in one dimension; return its name."""
        return self.weight(np.array(values, np.int64))

    def reshape(self, x: str, shape: Sequence[int], output: str = "") -> str:
        """Append a Reshape node; return the name of its output."""
        return self.node("Reshape", [x, self.integers(shape)], output)

    def never(self) -> str:
        """Return a condition that is never true; "" if no input has numbers.

        It is computed from an input, so that no optimizer can evaluate it.
        """
        inputs = (v.name for v in self.source.model.graph.input)
        number_inputs = (n for n in inputs if self.source.element(n) in (*FLOATS, *INTEGERS))
        number = next((n for n in number_inputs if n not in self.source.constants), "")
        if number and not self._never:
            place = self._at
            self._at = FIRST
            self._new.setdefault(FIRST, [])
            size = self.node("Abs", [self.node("Cast", [number], to=TensorProto.FLOAT)])
            total = self.node("ReduceSum", [size], keepdims=0)
            self._never = self.node("Less", [total, self.weight(0, TensorProto.FLOAT)])
            self._at = place
        return self._never

    def always(self, x: str, other: str, y: str = "") -> str:
        """Append a Where that always selects the first of two tensors, as no optimizer can see;
        return the name of its output."""
        return self.node("Where", [self.never(), other, x], y)

    def other(self, element: int) -> str:
        """Return a number that no other node reads: equal nodes would be merged."""
        return self.weight(len(self._weights) % 100 + 1, element)

    def model(self) -> ModelProto:
        """Return the copy, without constants that nothing reads any more."""
        variant = copy_without_nodes(self.source)
        variant.graph.node.extend(self._new.get(FIRST, []))
        for i, node in enumerate(self.source.nodes):
            variant.graph.node.extend(self._new.get(i, [node]))
        variant.graph.initializer.extend(self._weights)
        return tidy(variant)


def copy_without_nodes(source: RegionModel) -> ModelProto:
    """Return a copy of a region without its nodes and the types of its tensors."""
    variant = protobuf.clone(source.model)
    del variant.graph.node[:], variant.graph.value_info[:]
    return variant


def tidy(model: ModelProto) -> ModelProto:
    """Return the model without nodes and constants that nothing reads."""
    graph = model.graph
    read = {v.name for v in graph.output}
    for k in reversed(range(len(graph.node))):
        if read.intersection(graph.node[k].output):
            read.update(_read([graph.node[k]]))
        else:
            del graph.node[k]
    read.update(v.name for v in graph.input)
    assign(graph.initializer, [t for t in graph.initializer if t.name in read])
    # In older versions, every initializer must be an input as well.
    model.ir_version = max(model.ir_version, 4)
    return model


Form: TypeAlias = "Callable[[RegionModel, NodeProto, Substitution], str]"


def each(source: RegionModel, forms: Sequence[Form]) -> Iterator[tuple[str, ModelProto]]:
    """Yield each form instead of each node that it fits, up to `MAX_ALONE` nodes, and of all these.

    A form appends the nodes that replace a node, and returns their description, or "" if it does
    not fit. The description includes that it used shapes if the full model takes inputs of other
    shapes.
    """
    for form in forms:
        fits = []
        description = ""
        fixed = ""
        for i, node in enumerate(source.nodes):
            source.fixed = False
            if here := form(source, node, Substitution(source, i)):
                description = here
                own = FIXED if source.any_shape and source.fixed else ""
                fixed = fixed or own
                fits.append((i, f"{here} {format_node_title(node)}{own}"))
        for i, text in fits if len(fits) <= MAX_ALONE else ():
            yield text, _substitute(source, form, [i])
        if len(fits) > 1:
            text = f"{description} each of {len(fits)} nodes{fixed}"
            yield text, _substitute(source, form, [i for i, _ in fits])


def _substitute(source: RegionModel, form: Form, indices: Sequence[int]) -> ModelProto:
    """Make the model of a form again: all forms at once may not fit into memory."""
    new = Substitution(source)
    for i in indices:
        new.move_to(i)
        form(source, source.nodes[i], new)
    return new.model()


def make_formula_form(text: str, words: str) -> Form:
    """Return the form that replaces a node by a formula (`Substitution.formula`)."""

    def form(source: RegionModel, node: NodeProto, new: Substitution) -> str:
        new.formula(text)
        return words

    return form


def restrict_to(*ops: str, domain: str = "", floats: bool = False) -> Callable[[Form], Form]:
    """Restrict a form to operators.

    Args:
        ops: The operators.
        domain: Their domain; "" for the standard domains.
        floats: Whether the first input must be of a float type.
    """
    domains = STANDARD if not domain else (domain,)

    def restrict(form: Form) -> Form:
        def run(source: RegionModel, node: NodeProto, new: Substitution) -> str:
            if node.op_type not in ops or node.domain not in domains:
                return ""
            fits = not floats or source.element(node.input[0]) in FLOATS
            return form(source, node, new) if fits else ""

        return run

    return restrict
