"""onnx's C++ functions on a foreign model, in a child process with limits of time and memory.

In this process they could not be interrupted: Python handles Ctrl-C and SIGTERM only between its
own instructions. And a model of a few kilobytes may keep them busy for ever, take all memory, or
crash them.

onnx's version converter stops at the first operator for which it has no adapter, though most of
them differ in nothing that the node uses. `convert_model` hides such nodes from it. They stay as
they are if they fit the other version; the others are named.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from subgraph.children import ScriptProcess, make_python_command
from subgraph.errors import ModelError, explain_os_error
from subgraph.graph import protobuf
from subgraph.graph.nested import assign, iter_model_nodes
from subgraph.graph.opsets import STANDARD, drop_defaults, find_misfit, get_opset
from subgraph.graph.value_types import declare_weights_on_disk
from subgraph.lazy import onnx
from subgraph.system import measure_free_memory, name_crash
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.graph.protobuf import FunctionProto, ModelProto, NodeProto, TypeProto


MAX_CALL_SECONDS = 60  # of processor time per call, and
# Of the model, for each second more; measured: 80,000 nodes, 9 MB, take 3 s.
BYTES_PER_SECOND = 50_000
MAX_MEMORY = 1 << 30  # bytes that the process may allocate, within what is free, and
MEMORY_PER_BYTE = 64  # of the model more; measured: 80,000 nodes, 3 MB, take 135 MB
MODEL_COPIES = 4  # of a model's bytes that onnx holds at once
# Names of tasks by the child's calls.
TASKS = {
    "infer": "shape inference",
    "convert": "version converter",
    "check": "checker",
    "check_file": "checker",
    "function": "operator functions",
}
CHILD = Path(__file__).with_name("onnx_child.py")
HIDDEN = "subcut.hidden"  # domain of nodes that the converter does not see
MAX_NAMED = 4  # nodes of an error
EVEN_PARTS = "num_outputs"  # of a Split, which has even parts without it if the size allows it
MIN_FUNCTIONS_VERSION = 8  # version of the file format that has local functions


class OnnxError(Exception):
    """An error that onnx itself reports."""


class OnnxProcess:
    """A process that calls onnx. Use it as a context manager; the process starts with the first
    call.

    Attributes:
        path: of the model, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._child: ScriptProcess | None = None
        self._bound = MAX_MEMORY

    def infer_shapes(
        self,
        model: ModelProto,
        *,
        strict: bool = False,
        track: bool = False,
        check_types: bool = False,
    ) -> ModelProto:
        """Return the model with inferred types; `track`: values of 1-D tensors as well, which onnx
        calls data propagation.

        `strict`: errors are reported. `check_types`: so is a tensor of a type that its operator
        does not take.

        Raises:
            OnnxError: onnx reports an error. ModelError: the process exceeded a limit, or crashed.
        """
        options = {"check_type": check_types, "strict_mode": strict, "data_prop": track}
        data = self._ask("infer", model.SerializeToString(), **options)
        inferred: ModelProto = type(model).FromString(data)
        return inferred

    def convert(self, model: ModelProto, version: int) -> ModelProto:
        """Return the model in another version of ONNX's own operators; large weights stay on disk.

        Raises:
            OnnxError: onnx cannot convert it. ModelError: the process exceeded a limit, or crashed.
        """
        bare = protobuf.clone(model)
        large = list(filter(protobuf.is_on_disk, model.graph.initializer))
        declare_weights_on_disk(bare.graph)  # the converter cannot read them
        try:
            data = self._ask("convert", bare.SerializeToString(), version=version)
        except OnnxError as e:
            text = " ".join(str(e).split())
            raise OnnxError(re.sub(r"^.*Assertion .* failed: ", "", text)) from e
        out: ModelProto = type(model).FromString(data)
        names = {weight.name for weight in large}
        for k in reversed([k for k, v in enumerate(out.graph.input) if v.name in names]):
            del out.graph.input[k]
        out.graph.initializer.extend(large)
        return out

    def function_body(
        self,
        node: NodeProto,
        types: Sequence[TypeProto],
        version: int,
        opset: int,
    ) -> FunctionProto:
        """Return the FunctionProto by which the standard defines a node; `types`: of its inputs.

        `version` of the operator; the body's own opset is the latest up to `opset`, else the first
        there is.

        Raises:
            OnnxError: the standard has no function for it. ModelError: the process exceeded a
                limit, or crashed.
        """
        parts = [node.SerializeToString(), *(m.SerializeToString() for m in types)]
        request = {"op": node.op_type, "domain": node.domain, "sizes": [len(p) for p in parts]}
        body = self._ask("function", b"".join(parts), version=version, opset=opset, **request)
        function: FunctionProto = protobuf.load_protos().FunctionProto.FromString(body)
        return function

    def check(self, model: ModelProto | Path) -> None:
        """Run onnx.checker on a model, or on a file with its external data.

        Raises:
            OnnxError: it refuses the model. ModelError: the process exceeded a limit, or crashed.
        """
        if isinstance(model, Path):
            self._ask("check_file", os.fsencode(model))
        else:
            self._ask("check", model.SerializeToString())

    def _ask(self, call: str, data: bytes, **options: Any) -> bytes:
        # It was started for a smaller model.
        if self._child and self._bound < MODEL_COPIES * len(data):
            self._child.end()
            self._child = None
        child = self._child = self._child or self._start(len(data))
        child.process.allow(MAX_CALL_SECONDS + len(data) // BYTES_PER_SECOND)
        reply = child.ask({"call": call, **options}, data)
        if reply is None:
            self._child = None
            code = child.end()
            name = name_crash(code)
            end = f"it was ended by {name}" if name else f"it ended with code {code}"
            limit = f"at its limit of time or memory ({self._bound / 2**30:.1f} GiB)"
            raise ModelError(
                f"onnx's {TASKS[call]} failed on {self.path.name}: {end}, {limit}, or by a crash",
                "the model may be damaged, or made to do harm",
                code="model.check-failed",
            )
        if reply.error:
            raise OnnxError(reply.error)
        return reply.data

    def _start(self, size: int) -> ScriptProcess:
        spec = importlib.util.find_spec("onnx")
        folder = Path(spec.origin).parent if spec and spec.origin else Path()
        self._bound = min(MAX_MEMORY + MEMORY_PER_BYTE * size, measure_free_memory())
        fact = f"cannot start a process to check {self.path.name}"
        with explain_os_error(ModelError, fact, code="process.not-started"):
            return ScriptProcess(make_python_command("-I", "-S", CHILD, folder), memory=self._bound)

    def __enter__(self) -> OnnxProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def convert_model(model: Any, path: Path, version: int) -> tuple[Any, set[str]]:
    """Convert a model to another version of ONNX's own operators.

    Args:
        model: The model, which may be changed.
        path: Its file, next to which its large weights are.
        version: The opset.

    Returns:
        The converted model, and the operators that are unchanged because they fit the version.

    Raises:
        ModelError: onnx cannot convert a node, and it does not fit the version.
    """
    own = get_opset(model)
    functions = list(model.functions)
    hidden = set()
    model.opset_import.add(domain=HIDDEN, version=1)
    with OnnxProcess(path) as process:
        while True:
            try:
                converted = process.convert(model, version)
                break
            except OnnxError as e:
                words = re.findall(r"\w+", str(e))
                standard = (n.op_type for n in iter_model_nodes(model) if n.domain in STANDARD)
                op = next((op for op in standard if op in words), "")
                if not op:
                    raise ModelError(
                        f"onnx cannot convert {path.name} to opset {version}: {e}",
                        code="opset.not-convertible",
                    ) from e
            hidden.add(op)
            for node in iter_model_nodes(model):
                if node.op_type == op and node.domain in STANDARD:
                    node.domain = HIDDEN
    imports = [entry for entry in converted.opset_import if entry.domain != HIDDEN]
    assign(converted.opset_import, imports)
    _require_fitting(converted, path, version)
    if functions and not converted.functions:  # onnx's converter leaves them out
        converted.functions.extend(functions)
    if version < own:
        # Runtimes of this opset read this version of the file format.
        least = int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", version)]))
        least = max(least, MIN_FUNCTIONS_VERSION) if converted.functions else least
        converted.ir_version = min(int(converted.ir_version), least)
    return converted, hidden


def _require_fitting(model: protobuf.ModelProto, path: Path, version: int) -> None:
    """Show the hidden nodes again, without attributes that the version lacks and implies.

    Raises:
        ModelError: Nodes do not fit the version; it names them.
    """
    unfit = []
    for node in iter_model_nodes(model):
        if node.domain != HIDDEN:
            continue
        node.domain = ""
        if find_misfit(node, version, {}):
            bare = drop_defaults(node)
            assign(bare.attribute, [a for a in bare.attribute if a.name != EVEN_PARTS])
            if reason := find_misfit(bare, version, {}):
                unfit.append(f"'{node.name or node.output[0]}' ({node.op_type}) {reason}")
            node.CopyFrom(bare)
    if unfit:
        more = f"; and {len(unfit) - MAX_NAMED} more" if len(unfit) > MAX_NAMED else ""
        raise ModelError(
            f"onnx cannot convert {count(unfit, 'node')} of {path.name} to opset {version}:"
            f" {'; '.join(map(clean, unfit[:MAX_NAMED]))}{more}",
            f"subcut lint {path.name} --target-opset {version} lists them",
            code="opset.not-convertible",
        )
