"""Node → `SchemaIssue`s: attributes, inputs, outputs and types that do not fit the schema of its operator.

onnx keeps all versions of every schema, so an issue can name the opset from which on the node would fit.

Operators that the model itself defines, its local functions, are inlined at loading by onnx and by most runtimes. Forty
functions that each call the one before twice fit into 3 kB and expand to 10¹² nodes.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf
from subgraph.graph.opsets import canonical_domain, history, newest_opsets, schema
from subgraph.graph.walk import FunctionKey, operator
from subgraph.storage import dtypes
from subgraph.storage.tensors import parse_type, tensor_text
from subgraph.text import count

MAX_NAMES = 20_000  # among which similar names are searched; takes 0.1 s
MAX_EXPANDED = 10_000_000  # nodes, with local functions inlined; the largest models that anyone runs have 10⁵
UNLIMITED = 1 << 16  # inputs; a schema without a limit gives 2³¹ − 1
# Operators of the standard domain that onnxruntime has (1.22 to 1.31, `get_all_operator_schema`) but onnx has not, or
# only in later opsets: onnxruntime's optimizer and old exporters write them.
RUNTIME_OWN = frozenset(
    "Affine Crop DynamicSlice GRUUnit GivenTensorFill ImageScaler LayerNormalization MeanVarianceNormalization "
    "ParametricSoftplus Scale ScaledTanh SimplifiedLayerNormalization ThresholdedRelu".split()
)


@dataclass(frozen=True)
class SchemaIssue:
    """One issue of a node; the node is the subject of the sentence `what`: "reads 'x' as int64 …"."""

    kind: str
    what: str
    hint: str = ""
    tensor: str | None = None
    fatal: bool = True


@dataclass(frozen=True)
class Schemas:
    """The operators that a model may use: opset version by domain, and keys of its local functions."""

    opsets: Mapping[str, int]
    functions: frozenset[FunctionKey] = field(default=frozenset())

    def check(self, node: protobuf.NodeProto, types: Mapping[str, str]) -> Iterator[SchemaIssue]:
        """The issues of a node. `types`: tensor → `tensor(float)`; unknown if missing or empty.

        Calls of local functions, domains without schemas and opsets newer than the installed onnx are not checked.
        """
        domain = canonical_domain(node.domain)
        version = self.opsets.get(domain)
        if version is None or version > newest_opsets().get(domain, 0):
            return
        if self.functions and operator(node) in self.functions:
            return
        known = schema(str(node.op_type), version, domain)
        if known is None:
            yield _unknown(domain, str(node.op_type), version)
        elif known.deprecated:
            hint = "convert the model to a newer opset with onnx.version_converter, or export it anew"
            yield SchemaIssue("op", f"is no longer part of opset {version} (since {known.since_version})", hint)
        else:
            checked = _NodeSchema(node, known, domain, version)
            yield from checked.attributes()
            yield from checked.arity()
            if node.op_type != "Constant":  # before opset 9 its schema allows floats only, but runtimes accept others
                yield from checked.types(types)


@cache
def _unknown(domain: str, op: str, version: int) -> SchemaIssue:
    """The issue of an operator that this opset does not have."""
    import onnx.defs

    since = [int(s.since_version) for s in history(op, domain)]
    if op in RUNTIME_OWN and not domain:
        hint = "onnxruntime knows it, other runtimes and converters do not: export without its optimisations"
        return SchemaIssue("op", f"is not part of opset {version}", hint, fatal=False)
    if since:
        what = f"is not part of opset {version}: it comes with opset {since[0]}"
        return SchemaIssue("op", what, f"import opset {since[0]} (onnx.version_converter), or export with it")
    guess = did_you_mean(op, {str(s.name) for s in onnx.defs.get_all_schemas() if s.domain == domain})
    what = f"is no operator of domain '{domain or 'ai.onnx'}'"
    return SchemaIssue("op", what, " ".join(filter(None, (guess, "an operator of your own needs a domain of its own"))))


@dataclass(frozen=True)
class _NodeSchema:
    """A node and its schema, of which each method checks a part."""

    node: protobuf.NodeProto
    schema: Any
    domain: str
    version: int

    def attributes(self) -> Iterator[SchemaIssue]:
        allowed = self.schema.attributes
        for attribute in self.node.attribute:
            name, formal = str(attribute.name), allowed.get(attribute.name)
            if formal is None and not name.startswith("__"):  # such names are reserved for tools
                what = f"has the attribute '{name}', which opset {self.version} does not know"
                hint = self._since("attributes", name) or did_you_mean(name, allowed) or "remove it"
                yield SchemaIssue("attribute", what, hint)
            elif formal is not None and attribute.type and attribute.type != formal.type.value:
                actual = protobuf.protos().AttributeProto.AttributeType.Name(attribute.type)
                what = f"has the attribute '{name}' as {actual}, but it is {formal.type.name}"
                yield SchemaIssue("attribute", what, "set it again with that type")
        present = Counter(str(a.name) for a in self.node.attribute)
        for name, number in present.items():
            if number > 1:
                yield SchemaIssue("attribute", f"has the attribute '{name}' {number} times", "keep one of them")
        for name, formal in allowed.items():
            if formal.required and name not in present:
                yield SchemaIssue("attribute", f"lacks the attribute '{name}', which it needs", "set it")

    def arity(self) -> Iterator[SchemaIssue]:
        s = self.schema
        for role, names, formals, low, high in (
            ("input", self.node.input, s.inputs, s.min_input, s.max_input),
            ("output", self.node.output, s.outputs, s.min_output, s.max_output),
        ):
            if not low <= len(names) <= high:
                limits = f"{low}" if low == high else f"{low} or more" if high > UNLIMITED else f"{low} to {high}"
                what = f"has {count(len(names), role)}; at opset {self.version} it has {limits}"
                listed = f"they are: {', '.join(f.name for f in formals)}" if formals else ""
                yield SchemaIssue("arity", what, self._since(role, len(names)) or listed)
        for name, formal in zip(self.node.input, s.inputs, strict=False):
            if not name and formal.option.name != "Optional":
                what = f"leaves out its input '{formal.name}', which it needs"
                yield SchemaIssue("arity", what, "name a tensor there")

    def types(self, types: Mapping[str, str]) -> Iterator[SchemaIssue]:
        """Inputs and outputs of types that are not allowed, or that differ where they must be equal."""
        bound: dict[str, tuple[str, str]] = {}  # type parameter (T) → type, and the tensor that bound it
        wrong: set[str] = set()  # type parameters with an issue at an input: outputs would only repeat it
        for made, names, formals in (
            (False, self.node.input, self.schema.inputs),
            (True, self.node.output, self.schema.outputs),
        ):
            for name, formal in _paired(names, formals):
                actual = types.get(name)
                if not actual or (made and formal.type_str in wrong):
                    continue
                if actual not in formal.types:
                    wrong.add(formal.type_str)
                    yield self._not_allowed(name, actual, formal, made)
                elif "(" not in formal.type_str and (formal.option.name != "Variadic" or formal.is_homogeneous):
                    other, first = bound.setdefault(formal.type_str, (actual, name))
                    if other != actual:
                        wrong.add(formal.type_str)
                        yield _mixed(name, actual, first, other, made)

    def _not_allowed(self, name: str, actual: str, formal: Any, made: bool) -> SchemaIssue:
        allowed = _listed(formal.types)
        if made:
            what = f"makes '{name}', declared as {shown(actual)}; at opset {self.version} it makes {allowed}"
            return SchemaIssue("type", what, "correct the declared type", name)
        what = f"reads '{name}' as {shown(actual)}; at opset {self.version} it takes {allowed}"
        later = self._since(formal.name, actual)
        return SchemaIssue("type", what, f"{later}{', or ' if later else ''}put a Cast before it", name)

    def _since(self, part: str, value: str | int) -> str:
        """Hint with the first later opset in which `value` fits (see `_fits`); empty if there is none."""
        for s in history(self.schema.name, self.domain):
            if s.since_version > self.version and not s.deprecated and _fits(s, part, value):
                return f"that is right from opset {s.since_version} on: convert the model (onnx.version_converter)"
        return ""


def _fits(schema: Any, part: str, value: str | int) -> bool:
    """Is `value` one of the attributes, a valid number of inputs or outputs, or a type of the input named `part`?"""
    if part == "attributes":
        return value in schema.attributes
    if part in ("input", "output") and isinstance(value, int):
        return bool(getattr(schema, f"min_{part}") <= value <= getattr(schema, f"max_{part}"))
    return any(formal.name == part and value in formal.types for formal in schema.inputs)


def _paired(names: Iterable[str], formals: Any) -> Iterator[tuple[str, Any]]:
    """Each tensor with its formal parameter; the last parameter may be variadic."""
    for position, name in enumerate(names):
        if name and position < len(formals):
            yield name, formals[position]
        elif name and formals and formals[-1].option.name == "Variadic":
            yield name, formals[-1]


def _mixed(name: str, actual: str, first: str, other: str, made: bool) -> SchemaIssue:
    """The issue that two tensors differ in type, though they share a type parameter."""
    if made:
        what = f"makes '{name}' as {shown(other)} (the type of '{first}'), but it is declared as {shown(actual)}"
        return SchemaIssue("type", what, "correct the declared type", name)
    what = f"mixes types: '{first}' is {shown(other)}, '{name}' is {shown(actual)}"
    return SchemaIssue("type", what, "they must be the same: cast one of the two", name)


def did_you_mean(name: str, names: Collection[str]) -> str:
    """`did you mean 'alpha'?`; empty if no name is similar, or there are more than `MAX_NAMES`."""
    close = difflib.get_close_matches(name, names, 2) if len(names) <= MAX_NAMES else []
    return f"did you mean {' or '.join(repr(n) for n in close)}?" if close else ""


def _listed(types: Iterable[str]) -> str:
    """`float16, float32 or float64`; only tensor types, if there are any."""
    plain = sorted({shown(t) for t in types if t.startswith("tensor(")}) or sorted(map(shown, types))
    return " or ".join(filter(None, (", ".join(plain[:-1]), plain[-1])))


# ---------------------------------------------------------------------------------------------------- type names


def type_text(proto: protobuf.TypeProto) -> str:
    """A type as schemas write it: `tensor(float)`, `seq(tensor(int64))`; empty if it is incomplete."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        text = element_text(getattr(proto, kind).elem_type)
        return f"sparse_{text}" if text and kind == "sparse_tensor_type" else text
    if kind == "map_type":
        key, value = element_text(proto.map_type.key_type), type_text(proto.map_type.value_type)
        return f"map({key[7:-1]},{value})" if key and value else ""
    if kind in ("sequence_type", "optional_type"):
        inner = type_text(getattr(proto, kind).elem_type)
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({inner})" if inner else ""
    return ""


def element_text(number: int) -> str:
    """`tensor(float)` of a TensorProto.DataType; empty for an unknown one."""
    name = dtypes.name_of(number)
    return tensor_text(name) if name else ""


def shown(text: str) -> str:
    """A type, written as by schemas, for users: `float32`, `sequence of int64`."""
    try:
        form, dtype = parse_type(text)
    except InputError:
        return text
    return dtype if form == "tensor" else f"{form} of {dtype}"


# ---------------------------------------------------------------------------------------------------- local functions


def require_expandable(
    model: str, nodes: Sequence[FunctionKey], functions: Mapping[FunctionKey, Sequence[FunctionKey]]
) -> None:
    """Check that local functions can be inlined. Complexity: linear in the nodes of the model and of its functions.

    Args:
        model: its name, for messages.
        nodes: domain, operator and overload of each node of the model, also in bodies.
        functions: the same for each function.

    Raises:
        ModelError: a function calls itself, also through others; or there would be more than `MAX_EXPANDED` nodes.
    """
    calls = {key: [op for op in ops if op in functions] for key, ops in functions.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as e:
        circle = " → ".join(_shown(key) for key in reversed(e.args[1]))
        what = f"local functions of {model} call each other in a circle: {circle}"
        raise ModelError(what, "ONNX allows no recursion: export the model anew") from e
    sizes: dict[FunctionKey, int] = {}  # when inlined
    for key in order:
        sizes[key] = len(functions[key]) + sum(sizes[called] for called in calls[key])
    total = len(nodes) + sum(sizes.get(op, 0) for op in nodes)
    if total > MAX_EXPANDED:
        largest = max(sizes, key=lambda key: sizes[key])
        what = f"{model} has {total:.1e} nodes once its local functions are inlined: {_shown(largest)} alone"
        raise ModelError(f"{what} has {sizes[largest]:.1e}", "no runtime can load it: export the model anew")


def _shown(key: FunctionKey) -> str:
    return "::".join(filter(None, key))
