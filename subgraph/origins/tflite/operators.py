"""A .tflite as an ONNX model whose nodes are its operators, and a cut of that as a .tflite.

The schema of the flatbuffer is ai-edge-litert's. Runs in a child process: a damaged flatbuffer may
claim any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from subgraph.graph.quantization import TFLITE, TFLITE_SHIFT
from subgraph.iterables import flatten, index_by_name
from subgraph.storage.file_kinds import TFLITE_PRODUCER
from subgraph.types import Array, JsonObject

ALIGNMENT = 16  # bytes, of each buffer: `force_align` in the schema
VERSION = 3  # of the schema
ADD_VERSION = 2  # the first that adds int8
IR_VERSION = 8
OPSET = 17
MAX_BYTES = (1 << 31) - (1 << 20)  # of a flatbuffer, and of a protobuf
# Of element types; others are called as in the schema.
_ONNX_NAMES = {
    "FLOAT32": "FLOAT",
    "FLOAT64": "DOUBLE",
}


def _index_names(enum: type) -> dict[int, str]:
    """Return the names in an enumeration of the schema by their numbers."""
    return {code: name for name, code in vars(enum).items() if isinstance(code, int)}


_OPERATORS = _index_names(schema.BuiltinOperator)
_ACTIVATIONS = _index_names(schema.ActivationFunctionType)
_TYPES = _index_names(schema.TensorType)
_STATEFUL = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE", "CALL_ONCE")
_WHOLE_BYTES = frozenset(
    "FLOAT32 FLOAT16 INT32 UINT8 INT64 BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 UINT32"
    " UINT16".split()
)


class UncarriedOperatorError(ValueError):
    """The model has something that a cut of it could not hold; the text names it."""


class UnknownSignatureError(ValueError):
    """One of several signatures is to be named, or none is called so; the text names them."""


# ------------------------------------------------------------ .tflite -> ONNX


def to_onnx(data: bytes, name: str, signature: str = "") -> ModelProto:
    """Return the subgraph of a signature, else the first, one node per operator. Linear in its
    size.

    Raises:
        UnknownSignatureError: The file has several signatures, or not this one.
        UncarriedOperatorError: The model has variables, or weights in another file. Any other error
            (struct.error, IndexError, …) means that the file is damaged.
    """
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    if not model.subgraphs:
        raise UncarriedOperatorError("it has no subgraph: it computes nothing")
    subgraphs = {
        _decode(s.signatureKey): int(s.subgraphIndex) for s in _get_vector(model.signatureDefs)
    }
    names = ", ".join(map(repr, subgraphs))
    if signature and signature not in subgraphs:
        raise UnknownSignatureError(f"no signature {signature!r}; it has {names or 'none'}")
    if not signature and len(set(subgraphs.values())) > 1:
        raise UnknownSignatureError(f"which signature? it has {names}")
    number = subgraphs[signature] if signature else next(iter(subgraphs.values()), 0)
    converted = _SubgraphReader(model, data, number).read(name)
    if signature:
        helper.set_model_props(converted, {"tflite_signature": f"{signature!r} of {names}"})
    return converted


class _SubgraphReader:
    """One subgraph of a model: its tensors by number."""

    def __init__(self, model: Any, data: bytes, number: int) -> None:
        self.model = model
        self.graph = model.subgraphs[number]
        self.bytes = data
        self.tensors = list(self.graph.tensors)
        names = [_decode(t.name) or f"tensor_{k}" for k, t in enumerate(self.tensors)]
        taken = set(names)  # in TFLite a name identifies nothing: equal ones get a number
        given: dict[str, None] = {}
        for name in names:
            new = name
            k = 0
            while new in given or (new != name and new in taken):
                k += 1
                new = f"{name}_{k}"
            given[new] = None
        self.names = list(given)
        self.operators = list(_get_vector(self.graph.operators))
        self.made = set(_list_numbers(self.graph.inputs))
        for op in self.operators:
            self.made.update(_list_numbers(op.outputs))

    def read(self, name: str) -> ModelProto:
        """Return the ONNX model."""
        nodes = [self._make_node(k, op) for k, op in enumerate(self.operators)]
        read = set(flatten(node.input for node in nodes))
        weights = [
            helper.make_tensor(
                n,
                _find_onnx_type(self._name_type(k)),
                _list_numbers(self.tensors[k].shape),
                self._read_data(k).tobytes(),
                raw=True,
            )
            for k, n in enumerate(self.names)
            if n in read and k not in self.made
        ]
        inputs = [self._make_info(k) for k in _list_numbers(self.graph.inputs)]
        outputs = [self._make_info(k) for k in _list_numbers(self.graph.outputs)]
        ends = {v.name for v in (*inputs, *outputs)}
        infos = [self._make_info(k) for k in sorted(self.made) if self.names[k] not in ends]
        graph = helper.make_graph(nodes, name, inputs, outputs, value_info=infos)
        graph.initializer.extend(weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(TFLITE, 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name=TFLITE_PRODUCER
        )

    def _make_node(self, number: int, op: Any) -> NodeProto:
        code = self.model.operatorCodes[op.opcodeIndex]
        kind, where = self._check(number, op)
        inputs = _list_numbers(op.inputs)
        outputs = _list_numbers(op.outputs)
        if odd := [
            k
            for k in (*inputs, *outputs)
            if k >= 0 and self._name_type(k) in ("RESOURCE", "VARIANT")
        ]:
            raise UncarriedOperatorError(
                f"{where}: '{self.names[odd[0]]}' is a resource, not a tensor"
            )
        attributes: JsonObject = {"operator": self._write_alone(op, code)}
        for word, ports in (("input_", inputs), ("", outputs)):
            scales = [self._scale(k) for k in ports]
            if any(step for step, _ in scales):
                attributes |= {
                    f"{word}scale": [s[0] for s in scales],
                    f"{word}zero_point": [s[1] for s in scales],
                }
        if fused := getattr(op.builtinOptions, "fusedActivationFunction", 0):
            attributes["activation"] = _ACTIVATIONS.get(fused, "unknown")
        return helper.make_node(
            kind,
            [self.names[k] if k >= 0 and not self._owns_tensor(k) else "" for k in inputs],
            [self.names[k] for k in outputs],
            name=self.names[outputs[0]] if outputs else f"{kind}_{number}",
            domain=TFLITE,
            **attributes,
        )

    def _check(self, number: int, op: Any) -> tuple[str, str]:
        """Return the kind of an operator that a cut can hold, and its name in errors."""
        code = self.model.operatorCodes[op.opcodeIndex]
        kind = _OPERATORS.get(max(code.builtinCode, code.deprecatedBuiltinCode), "unknown")
        kind = _decode(code.customCode) or "CUSTOM" if kind == "CUSTOM" else kind
        where = f"operator {number} ({kind})"
        if kind.startswith(_STATEFUL):
            raise UncarriedOperatorError(f"{where} keeps a value from run to run")
        if getattr(op.builtinOptions2, "branchSubgraphIndices", None) is not None:
            raise UncarriedOperatorError(f"{where} chooses among several subgraphs")
        if op.largeCustomOptionsOffset > 1:
            raise UncarriedOperatorError(f"{where} has its options outside of the flatbuffer")
        return kind, where

    def _find_called(self, op: Any) -> list[int]:
        """Return all subgraphs that an operator runs: the branches of IF, the body of WHILE."""
        found = []
        waiting = [op]
        while waiting:
            for k in (k for *_, k in _iter_subgraphs(waiting.pop()) if k not in found):
                found.append(k)
                inner = list(_get_vector(self.model.subgraphs[k].operators))
                for number, called in enumerate(inner):
                    self._check(number, called)
                waiting += inner
        return found

    def _write_alone(self, op: Any, code: Any) -> bytes:
        """Return a .tflite of this operator; it holds the constants that ONNX has no type for, and
        the subgraphs it runs."""
        used = flatten(map(_list_numbers, (op.inputs, op.outputs, op.intermediates)))
        numbers: dict[int, int] = {}
        for k in used:
            if k >= 0:
                numbers.setdefault(k, len(numbers))
        buffers = [schema.BufferT()]
        tensors = []
        for k in numbers:
            tensor = schema.TensorT.InitFromPackedBuf(_pack(self.tensors[k]), 0)
            tensor.name = self.names[k].encode()
            tensor.buffer = 0
            if k not in self.made and self._owns_tensor(k) and len(data := self._read_data(k)):
                tensor.buffer = len(buffers)
                buffers.append(_make_buffer(data))
            tensors.append(tensor)
        own = schema.OperatorT.InitFromPackedBuf(_pack(op), 0)
        own.opcodeIndex = 0
        codes = [code]
        called = self._find_called(op)
        number_of = {k: place for place, k in enumerate(called, 1)}.__getitem__
        _renumber_subgraphs(own, number_of)

        def add_code(added: Any) -> int:
            codes.append(added)
            return len(codes) - 1

        others = [
            schema.SubGraphT.InitFromPackedBuf(_pack(self.model.subgraphs[k]), 0) for k in called
        ]
        for other in others:
            _relink(other, self.model, self.bytes, add_code, buffers, number_of)
        _renumber_ports(own, numbers.__getitem__)
        return _pack_model(codes, tensors, own.inputs, own.outputs, [own], buffers, others)

    def _owns_tensor(self, k: int) -> bool:
        """Return whether an operator owns a tensor: state, or a constant of no form in ONNX."""
        if k in self.made:
            return False
        tensor = self.tensors[k]
        kind = self._name_type(k)
        if tensor.isVariable or tensor.sparsity is not None or kind not in _WHOLE_BYTES:
            return True
        return math.prod(_list_numbers(tensor.shape)) * helper.tensor_dtype_to_np_dtype(
            _find_onnx_type(kind)
        ).itemsize != len(self._read_data(k))

    def _read_data(self, k: int) -> Array:
        return _read_values(self.model, self.bytes, self.tensors[k])

    def _make_info(self, k: int) -> ValueInfoProto:
        tensor = self.tensors[k]
        if self._name_type(k) in ("RESOURCE", "VARIANT"):
            raise UncarriedOperatorError(f"'{self.names[k]}' is a resource, not a tensor")
        dims: list[Any] = _list_numbers(tensor.shape)
        signature = _list_numbers(tensor.shapeSignature)
        if len(signature) == len(dims):
            dims = [
                size if size >= 0 else f"{self.names[k]}_{axis}"
                for axis, size in enumerate(signature)
            ]
        unknown = not dims and not tensor.hasRank and k not in _list_numbers(self.graph.inputs)
        return helper.make_tensor_value_info(
            self.names[k], _find_onnx_type(self._name_type(k)), None if unknown else dims
        )

    def _name_type(self, k: int) -> str:
        return str(_TYPES[self.tensors[k].type])

    def _scale(self, k: int) -> tuple[float, int]:
        """Return scale and zero point of a tensor that has one of each; scale 0 for another."""
        q = self.tensors[k].quantization if k >= 0 else None
        scales: Any = _get_vector(q.scale) if q else ()
        zeros: Any = _get_vector(q.zeroPoint) if q else ()
        if len(scales) == len(zeros) == 1 and scales[0] > 0:
            return float(scales[0]), int(zeros[0])
        return 0.0, 0


# ------------------------------------------------------------ ONNX -> .tflite


def to_tflite(model: ModelProto) -> bytes:
    """Return the .tflite of a model, or a cut of one, that `to_onnx` made. Its weights are loaded.

    Raises:
        UncarriedOperatorError: A node is not one of TFLite. Other errors: An attribute is damaged.
    """
    weights = index_by_name(model.graph.initializer)
    tensors: list[Any] = []
    numbers = {}
    buffers = [schema.BufferT()]
    codes: list[Any] = []
    operators = []
    called: list[Any] = []  # subgraphs after the first

    def code_of(code: Any) -> int:
        key = (code.builtinCode, code.deprecatedBuiltinCode, code.customCode, code.version)
        known = [(c.builtinCode, c.deprecatedBuiltinCode, c.customCode, c.version) for c in codes]
        codes.extend([code] if key not in known else [])
        return known.index(key) if key in known else len(known)

    def number_of(tensor: Any, own: Sequence[Any]) -> int:
        name = _decode(tensor.name)
        if name not in numbers:
            numbers[name] = len(tensors)
            tensors.append(tensor)
            if name in weights:
                weight = weights[name]
                data = weight.raw_data or numpy_helper.to_array(weight).tobytes()
                own = [_make_buffer(np.frombuffer(data, np.uint8))]
                tensor.buffer = 0
            if own and (name in weights or tensor.buffer):
                buffers.append(_make_buffer(own[tensor.buffer].data))
                tensor.buffer = len(buffers) - 1
        return numbers[name]

    for node in model.graph.node:
        shifted = node.domain == TFLITE and node.op_type == TFLITE_SHIFT
        written = next((a.s for a in node.attribute if a.name == "operator"), b"")
        if shifted:
            alone = _make_shift(tensors[numbers[node.input[0]]])
        elif node.domain == TFLITE and written:
            alone = schema.ModelT.InitFromPackedBuf(written, 0)
        else:
            raise UncarriedOperatorError(
                f"node '{node.name}' ({node.op_type}) is not an operator of TensorFlow Lite"
            )
        _rename(alone.subgraphs[0], node)
        held = alone.subgraphs[0]
        places = [number_of(t, alone.buffers) for t in held.tensors]
        (op,) = held.operators
        _renumber_ports(op, places.__getitem__)
        op.opcodeIndex = code_of(alone.operatorCodes[0])
        moved = partial(add, len(called))
        _renumber_subgraphs(op, moved)
        for other in alone.subgraphs[1:]:
            _relink(other, alone, b"", code_of, buffers, moved)
        called += alone.subgraphs[1:]
        operators.append(op)
    ends = [
        [number_of(_make_tensor(v), ()) for v in ports]
        for ports in (model.graph.input, model.graph.output)
    ]
    inputs, outputs = (np.array(end, np.int32) for end in ends)
    return _pack_model(codes, tensors, inputs, outputs, operators, buffers, called)


def _read_values(model: Any, data: bytes, tensor: Any) -> Array:
    """Return the bytes of a tensor of any subgraph; none for one that is computed.

    Args:
        data: The file of the model, if large buffers are outside of the flatbuffer.
    """
    if tensor.externalBuffer:
        raise UncarriedOperatorError(f"the values of '{_decode(tensor.name)}' are in another file")
    buffer = model.buffers[tensor.buffer]
    if buffer.offset > 1:  # of a file of more than 2 GB
        return np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
    return np.empty(0, np.uint8) if buffer.data is None else np.asarray(buffer.data, np.uint8)


def _iter_subgraphs(op: Any) -> Iterator[tuple[Any, str, int]]:
    """Yield (options, field, number) of each subgraph that an operator runs."""
    for options in (op.builtinOptions, op.builtinOptions2):
        for field, k in (vars(options) if options is not None else {}).items():
            if "ubgraph" in field and isinstance(k, int) and k >= 0:
                yield options, field, k


def _renumber_ports(op: Any, number_of: Callable[[int], int]) -> None:
    """Have an operator read and write tensors under their new numbers; -1 is a missing input."""
    for ports in ("inputs", "outputs", "intermediates"):
        old = getattr(op, ports)
        if old is not None:
            new = [number_of(k) if k >= 0 else -1 for k in _list_numbers(old)]
            setattr(op, ports, np.array(new, np.int32))


def _renumber_subgraphs(op: Any, number_of: Callable[[int], int]) -> None:
    """Have an operator run the subgraphs under their new numbers."""
    for options, field, k in list(_iter_subgraphs(op)):
        setattr(options, field, number_of(k))


def _relink(
    graph: Any,
    model: Any,
    data: bytes,
    add_code: Callable[[Any], int],
    buffers: list[Any],
    number_of: Callable[[int], int],
) -> None:
    """Have a subgraph of a model name the codes, buffers and subgraphs of a new one.

    Args:
        data: The file of the model, as in `_read_values`.
        add_code: Adds an operator's code to the new model, and returns its number there.
        buffers: The buffers of the new model, to which those of the subgraph are added.
        number_of: The number of a subgraph in the new model.
    """
    for tensor in _get_vector(graph.tensors):
        values = _read_values(model, data, tensor)
        tensor.buffer = 0
        if len(values):
            tensor.buffer = len(buffers)
            buffers.append(_make_buffer(values))
    for op in _get_vector(graph.operators):
        op.opcodeIndex = add_code(model.operatorCodes[op.opcodeIndex])
        _renumber_subgraphs(op, number_of)


def _rename(graph: Any, node: NodeProto) -> None:
    """Have the tensors of an operator's own subgraph the names that its node reads and makes."""
    (op,) = graph.operators
    for ports, names in ((op.inputs, node.input), (op.outputs, node.output)):
        for k, name in zip(_list_numbers(ports), names, strict=False):
            if k >= 0 and name:
                graph.tensors[k].name = name.encode()


def _make_shift(tensor: Any) -> Any:
    """Return a model of one ADD that moves codes by whole steps: with one scale on all sides it is
    exact; or floats."""
    graph = schema.SubGraphT()
    op = schema.OperatorT()
    code = schema.OperatorCodeT()
    model = schema.ModelT()
    graph.tensors = [schema.TensorT.InitFromPackedBuf(_pack(tensor), 0) for _ in range(3)]
    for copied in graph.tensors:
        copied.buffer = 0
    if tensor.type != schema.TensorType.FLOAT32:
        unsigned = tensor.type == schema.TensorType.UINT8
        graph.tensors[1].quantization.zeroPoint = np.array([128 if unsigned else 0], np.int64)
    op.inputs = np.array([0, 1], np.int32)
    op.outputs = np.array([2], np.int32)
    op.opcodeIndex = 0
    op.builtinOptionsType = schema.BuiltinOptions.AddOptions
    op.builtinOptions = schema.AddOptionsT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    code.version = ADD_VERSION
    graph.operators = [op]
    model.subgraphs = [graph]
    model.operatorCodes = [code]
    model.buffers = [schema.BufferT()]
    return model


def _make_tensor(info: ValueInfoProto) -> Any:
    """Return the description of a tensor that no operator has."""
    tensor = schema.TensorT()
    declared = info.type.tensor_type
    tensor.name = info.name.encode()
    tensor.quantization = schema.QuantizationParametersT()
    tensor.shape = np.array([d.dim_value or 1 for d in declared.shape.dim], np.int32)
    tensor.type = next(
        code for code, name in _TYPES.items() if _find_onnx_type(name) == declared.elem_type
    )
    return tensor


# ------------------------------------------------------------ flatbuffers


class _AlignedBuffer(schema.BufferT):  # type: ignore[misc]
    """A buffer at the alignment of the schema, which its generated code ignores."""

    def Pack(self, builder: Any) -> Any:
        """Write it."""
        builder.StartVector(1, len(self.data), ALIGNMENT)
        builder.head -= len(self.data)
        builder.Bytes[builder.head : builder.head + len(self.data)] = self.data.tobytes()
        vector = builder.EndVector()
        schema.BufferStart(builder)
        schema.BufferAddData(builder, vector)
        return schema.BufferEnd(builder)


def _make_buffer(data: Array | None) -> Any:
    buffer = _AlignedBuffer() if data is not None and len(data) else schema.BufferT()
    buffer.data = data
    return buffer


def _pack_model(
    codes: Sequence[Any],
    tensors: Sequence[Any],
    inputs: Array,
    outputs: Array,
    operators: Sequence[Any],
    buffers: Sequence[Any],
    called: Sequence[Any],
) -> bytes:
    """Return a model of one subgraph and those that it runs; seven parameters: the parts of one."""
    graph = schema.SubGraphT()
    model = schema.ModelT()
    graph.tensors = tensors
    graph.inputs = inputs
    graph.outputs = outputs
    graph.operators = operators
    model.version = VERSION
    model.operatorCodes = codes
    model.subgraphs = [graph, *called]
    model.buffers = buffers
    model.description = b"subcut"
    return _pack(model, sum(len(b.data) for b in buffers if b.data is not None), b"TFL3")


def _pack(table: Any, size: int = 0, identifier: bytes | None = None) -> bytes:
    if size > MAX_BYTES:
        raise UncarriedOperatorError("its weights are more than 2 GB")
    builder = flatbuffers.Builder(1024 + size + size // 16)
    builder.Finish(table.Pack(builder), file_identifier=identifier)
    return bytes(builder.Output())


def _get_vector(vector: Any) -> Any:
    return () if vector is None else vector


def _list_numbers(vector: Any) -> list[int]:
    return [int(v) for v in _get_vector(vector)]


def _decode(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "backslashreplace")


def _find_onnx_type(kind: str) -> int:
    return int(getattr(TensorProto, _ONNX_NAMES.get(kind, kind), 0))
