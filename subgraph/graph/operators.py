"""One node against its operator's schema: what it gives and takes, and where that does not fit.

Insight: onnx keeps every version of every schema, so the answer to "not at this opset" can say from which one on.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.storage import dtypes
from subgraph.storage.tensors import PROTO_NAMES, parse_type
from subgraph.text import count

GUESSABLE = 20_000  # names; looking for similar ones takes a tenth of a second for so many
MANY = 1 << 16  # inputs; a schema without a limit says 2³¹ − 1
# Ops of the standard domain that onnx does not know, or only later, but onnxruntime does (1.22 to 1.31,
# `get_all_operator_schema`): its own optimizer and old exporters write them.
RUNTIME_OWN = frozenset(
    "Affine Crop DynamicSlice GRUUnit GivenTensorFill ImageScaler LayerNormalization MeanVarianceNormalization "
    "ParametricSoftplus Scale ScaledTanh SimplifiedLayerNormalization ThresholdedRelu".split()
)


@dataclass(frozen=True)
class SchemaIssue:
    """What does not fit at one node; `what` is said of the node: "reads 'x' as int64 …"."""

    kind: str
    what: str
    hint: str = ""
    tensor: str | None = None
    fatal: bool = True


@dataclass(frozen=True)
class Schemas:
    """The operators that a model may use: opset version by domain, and its local functions."""

    opsets: Mapping[str, int]
    functions: frozenset[tuple[str, str, str]] = field(default=frozenset())

    def check(self, node: protobuf.NodeProto, types: Mapping[str, str]) -> Iterator[SchemaIssue]:
        """All that does not fit. `types`: tensor → `tensor(float)`; a missing or empty one is unknown.

        Local functions, domains without schemas and opsets newer than the installed onnx are not looked at.
        """
        domain = canonical_domain(node.domain)
        version = self.opsets.get(domain)
        if version is None or version > standard().get(domain, 0):
            return
        if self.functions and (node.domain, node.op_type, node.overload) in self.functions:
            return
        schema = _schema(domain, str(node.op_type), version)
        if schema is None:
            yield _unknown(domain, str(node.op_type), version)
        elif schema.deprecated:
            hint = "convert the model to a newer opset with onnx.version_converter, or export it anew"
            yield SchemaIssue("op", f"is no longer part of opset {version} (since {schema.since_version})", hint)
        else:
            place = _NodeSchema(node, schema, domain, version)
            yield from place.attributes()
            yield from place.arity()
            if node.op_type != "Constant":  # it took floats only until opset 9; nobody minds, it is a weight
                yield from place.types(types)


@cache
def standard() -> dict[str, int]:
    """Domains whose schemas onnx has → the newest opset it knows of each."""
    import onnx.defs

    newest = {"": int(onnx.defs.onnx_opset_version())}
    for schema in onnx.defs.get_all_schemas_with_history():
        newest[schema.domain] = max(newest.get(schema.domain, 1), int(schema.since_version))
    return newest


@cache
def _schema(domain: str, op: str, version: int) -> Any | None:
    import onnx.defs

    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def _history(domain: str, op: str) -> list[Any]:
    """All versions of an operator's schema, oldest first."""
    import onnx.defs

    found = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain and s.name == op]
    return sorted(found, key=lambda s: int(s.since_version))


@cache
def _unknown(domain: str, op: str, version: int) -> SchemaIssue:
    import onnx.defs

    since = [int(s.since_version) for s in _history(domain, op)]
    if op in RUNTIME_OWN and not domain:
        hint = "onnxruntime knows it, other runtimes and converters do not: export without its optimisations"
        return SchemaIssue("op", f"is not part of opset {version}", hint, fatal=False)
    if since:
        what = f"is not part of opset {version}: it comes with opset {since[0]}"
        return SchemaIssue("op", what, f"import opset {since[0]} (onnx.version_converter), or export with it")
    guess = guessed(op, {str(s.name) for s in onnx.defs.get_all_schemas() if s.domain == domain})
    what = f"is no operator of domain '{domain or 'ai.onnx'}'"
    return SchemaIssue("op", what, " ".join(filter(None, (guess, "an operator of your own needs a domain of its own"))))


@dataclass(frozen=True)
class _NodeSchema:
    """A node beside its schema."""

    node: protobuf.NodeProto
    schema: Any
    domain: str
    version: int

    def attributes(self) -> Iterator[SchemaIssue]:
        allowed = self.schema.attributes
        for attribute in self.node.attribute:
            name, want = str(attribute.name), allowed.get(attribute.name)
            if want is None and not name.startswith("__"):  # onnx leaves names of that form to the tools
                what = f"has the attribute '{name}', which opset {self.version} does not know"
                hint = self._since("attributes", name) or guessed(name, allowed) or "remove it"
                yield SchemaIssue("attribute", what, hint)
            elif want is not None and attribute.type and attribute.type != want.type.value:
                have = protobuf.protos().AttributeProto.AttributeType.Name(attribute.type)
                what = f"has the attribute '{name}' as {have}, but it is {want.type.name}"
                yield SchemaIssue("attribute", what, "set it again with that type")
        present = Counter(str(a.name) for a in self.node.attribute)
        for name, number in present.items():
            if number > 1:
                yield SchemaIssue("attribute", f"has the attribute '{name}' {number} times", "keep one of them")
        for name, want in allowed.items():
            if want.required and name not in present:
                yield SchemaIssue("attribute", f"lacks the attribute '{name}', which it needs", "set it")

    def arity(self) -> Iterator[SchemaIssue]:
        s = self.schema
        for word, names, formals, low, high in (
            ("input", self.node.input, s.inputs, s.min_input, s.max_input),
            ("output", self.node.output, s.outputs, s.min_output, s.max_output),
        ):
            if not low <= len(names) <= high:
                limits = f"{low}" if low == high else f"{low} or more" if high > MANY else f"{low} to {high}"
                what = f"has {count(len(names), word)}; at opset {self.version} it has {limits}"
                later = self._since(word, len(names))
                yield SchemaIssue(
                    "arity", what, later or (f"they are: {', '.join(f.name for f in formals)}" if formals else "")
                )
        for name, formal in zip(self.node.input, s.inputs, strict=False):
            if not name and formal.option.name != "Optional":
                yield SchemaIssue(
                    "arity", f"leaves out its input '{formal.name}', which it needs", "name a tensor there"
                )

    def types(self, types: Mapping[str, str]) -> Iterator[SchemaIssue]:
        """Inputs and outputs against the allowed types, and against each other where they must be the same."""
        bound: dict[str, tuple[str, str]] = {}
        wrong: set[str] = set()  # kinds of type that were complained of: what the node makes follows from them
        for made, names, formals in (
            (False, self.node.input, self.schema.inputs),
            (True, self.node.output, self.schema.outputs),
        ):
            for name, formal in _paired(names, formals):
                have = types.get(name)
                if not have or (made and formal.type_str in wrong):
                    continue
                if have not in formal.types:
                    wrong.add(formal.type_str)
                    yield self._not_allowed(name, have, formal, made)
                elif "(" not in formal.type_str and (formal.option.name != "Variadic" or formal.is_homogeneous):
                    other, first = bound.setdefault(formal.type_str, (have, name))
                    if other != have:
                        wrong.add(formal.type_str)
                        yield _mixed(name, have, first, other, made)

    def _not_allowed(self, name: str, have: str, formal: Any, made: bool) -> SchemaIssue:
        allowed = _listed(formal.types)
        if made:
            what = f"makes '{name}', declared as {shown(have)}; at opset {self.version} it makes {allowed}"
            return SchemaIssue("type", what, "correct the declared type", name)
        what = f"reads '{name}' as {shown(have)}; at opset {self.version} it takes {allowed}"
        later = self._since(formal.name, have)
        return SchemaIssue("type", what, f"{later}{', or ' if later else ''}put a Cast before it", name)

    def _since(self, part: str, want: Any) -> str:
        """From which later opset on `want` is right in a part of the schema; empty where in none."""
        for s in _history(self.domain, self.schema.name):
            if s.since_version > self.version and not s.deprecated and _fits(s, part, want):
                return f"that is right from opset {s.since_version} on: convert the model (onnx.version_converter)"
        return ""


def _fits(schema: Any, part: str, want: Any) -> bool:
    """Has the schema this attribute, room for so many inputs or outputs, or this type for the input called `part`?"""
    if part == "attributes":
        return want in schema.attributes
    if part in ("input", "output") and isinstance(want, int):
        return bool(getattr(schema, f"min_{part}") <= want <= getattr(schema, f"max_{part}"))
    return any(formal.name == part and want in formal.types for formal in schema.inputs)


def _paired(names: Iterable[str], formals: Any) -> Iterator[tuple[str, Any]]:
    """Each tensor with the parameter that it stands for; the last one may take many."""
    for position, name in enumerate(names):
        if name and position < len(formals):
            yield name, formals[position]
        elif name and formals and formals[-1].option.name == "Variadic":
            yield name, formals[-1]


def _mixed(name: str, have: str, first: str, other: str, made: bool) -> SchemaIssue:
    if made:
        what = f"makes '{name}' as {shown(other)} (the type of '{first}'), but it is declared as {shown(have)}"
        return SchemaIssue("type", what, "correct the declared type", name)
    what = f"mixes types: '{first}' is {shown(other)}, '{name}' is {shown(have)}"
    return SchemaIssue("type", what, "they must be the same: cast one of the two", name)


def guessed(word: str, names: Collection[str]) -> str:
    """`did you mean 'alpha'?`; empty where nothing is like it, or where there are too many to look at."""
    close = difflib.get_close_matches(word, names, 2) if len(names) <= GUESSABLE else []
    return f"did you mean {' or '.join(repr(n) for n in close)}?" if close else ""


def _listed(types: Iterable[str]) -> str:
    """`float16, float32 or float64`; plain tensors only, where there are any."""
    plain = sorted({shown(t) for t in types if t.startswith("tensor(")}) or sorted(map(shown, types))
    return " or ".join(filter(None, (", ".join(plain[:-1]), plain[-1])))


# ---------------------------------------------------------------------------------------------------- type names


def type_text(proto: protobuf.TypeProto) -> str:
    """A type as schemas write it: `tensor(float)`, `seq(tensor(int64))`; empty where it is not fully known."""
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


def canonical_domain(name: str) -> str:
    """`ai.onnx` is another name of the standard domain, ""."""
    return "" if name == "ai.onnx" else str(name)


def element_text(number: int) -> str:
    """`tensor(float)` of a TensorProto.DataType; empty for one that is not known."""
    name = dtypes.name_of(number)
    return f"tensor({PROTO_NAMES.get(name, name)})" if name else ""


def shown(text: str) -> str:
    """A type as users know it: float32, `sequence of int64`."""
    try:
        form, dtype = parse_type(text)
    except InputError:
        return text
    return dtype if form == "tensor" else f"{form} of {dtype}"
