"""A module -> the program that PyTorch's exporter translates (`torch.export`), and the value of
each of its nodes.

The exporter uses the nodes' names for ONNX's tensors, and a node's statement is in the metadata of
the ONNX nodes, so that it can be checked that both are the same program.

A module in memory, or an exported program (`.pt2`), becomes an ONNX file. `torch.export.load`
unpickles weights and constants with `weights_only=False` (2.13), so a file can run any code: it
needs trust, as all code that a file names, and the user's own PyTorch runs in a separate process.
"""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subgraph import children, system, trust as trusted
from subgraph.errors import (
    ArgumentTypeError,
    BackendError,
    InputError,
    ModelError,
    NotInstalled,
    UsageError,
)
from subgraph.graph.graph import Graph
from subgraph.lazy import np
from subgraph.log import log
from subgraph.origins.converted import convert_once
from subgraph.origins.source import PREFIX, find_innermost_call, read_node_metadata
from subgraph.storage import folders
from subgraph.storage.digest import digest_file
from subgraph.storage.tensors import NOT_NUMPY, find_dtype
from subgraph.system import measure_free_memory
from subgraph.text import clean, shorten_path
from subgraph.trust import NamedCode
from subgraph.types import Array, Fields, JsonObject

Program = Any  # torch.export.ExportedProgram
Node = Any  # torch.fx.Node
Place = tuple[str, int | None]  # a node's name, and the position in its value if that is a tuple

# Name that the exporter uses for an element of a node with several values.
PART = re.compile(r"(.+)_(?:_|split_)(\d+)")
# Relative difference of outputs, up to which a program computes the same as the module.
MAX_EXPORT_ERROR = 1e-5


def import_torch() -> Any:
    """Return the user's PyTorch.

    Raises:
        NotInstalled: it is not there.
    """
    try:
        import torch
    except ImportError as e:
        raise NotInstalled(
            "PyTorch is not installed",
            "pip install torch, in the environment of your module",
            code="package.not-installed",
        ) from e
    return torch


def iter_programs(
    module: Any, args: Sequence[Any], kwargs: Fields, **options: Any
) -> Iterator[Program]:
    """Yield the module as the exporter sees it: first without running the exporter, then as it
    decomposes it itself.

    `options`: of `torch.onnx.export`, for example `dynamic_shapes` or `custom_translation_table`.
    Those that fail are omitted, but for the last.

    Raises:
        InputError: The module cannot be exported, with the reason.
    """
    pytorch = import_torch()
    given = (tuple(args), dict(kwargs))
    shapes = {"dynamic_shapes": options.get("dynamic_shapes")}
    try:
        with silence_exporter():
            plain = pytorch.export.export(
                module, *given, strict=False, **shapes
            ).run_decompositions({})
    except Exception as e:  # the user's code runs, and may raise anything
        raise InputError(
            f"torch.export cannot export the module: {summarize_error(e)}",
            code="torch.export-failed",
        ) from e
    yield plain
    try:
        with silence_exporter():
            own = pytorch.onnx.export(
                module,
                given[0],
                kwargs=given[1],
                dynamo=True,
                optimize=False,
                verbose=False,
                **options,
            )
    except Exception as e:  # noqa: BLE001
        log.debug("torch.onnx.export: %s", summarize_error(e))
        return
    yield own.exported_program


def count_same_nodes(graph: Graph, program: Program) -> tuple[int, int]:
    """Count the ONNX nodes whose statement in the metadata the program has, and all with one.

    >>> count_same_nodes(graph, program)  # doctest: +SKIP
    (49, 49)
    """
    own = {node.name: node.format_node() for node in program.graph.nodes}
    known = [text for i in range(len(graph.nodes)) if (text := read_statement(graph, i))]
    return sum(own.get(parse_name(text)) == text for text in known), len(known)


def find_nearest(graph: Graph, candidates: Iterator[Program]) -> tuple[Program, str]:
    """Return the first program that is the one that was exported; else the nearest, and what is
    missing."""
    most = -1
    best = None
    of = 0
    for program in candidates:
        same, of = count_same_nodes(graph, program)
        if same > most:
            most = same
            best = program
        if same == of:
            return program, ""
    return best, f"{of - most} of {of} nodes come from another program than the module's"


def find_places(graph: Graph, program: Program) -> dict[str, Place]:
    """Return the places in the program of an ONNX graph's tensors, if the program has them."""
    statements = {node.name: node.format_node() for node in program.graph.nodes}
    found = {}
    for tensor, i in graph.maker.items():
        statement = read_statement(graph, i)
        place = find_place(tensor, statements)
        if place and (not statement or statements.get(parse_name(statement)) == statement):
            found[tensor] = place
    return found


def find_place(tensor: str, nodes: Collection[str]) -> Place | None:
    """Return the place that the exporter calls so, if the program has such a node."""
    if tensor in nodes:
        return tensor, None
    part = PART.fullmatch(tensor)
    return (part[1], int(part[2])) if part and part[1] in nodes else None


def get_element(value: Any, position: int | None) -> Any:
    """Return the value of a `Place`, from that of its node; None if it has no such position."""
    if position is None:
        return value
    if isinstance(value, (tuple, list)) and position < len(value):
        return value[position]
    return None


def iter_departures(expected: Sequence[Any], values: Sequence[Any]) -> Iterator[str]:
    """Yield outputs in which the exported program itself is not the module."""
    close = import_torch().allclose
    for k, (right, value) in enumerate(zip(expected, values, strict=False)):
        if right.shape != value.shape or not close(
            right, value, rtol=MAX_EXPORT_ERROR, atol=MAX_EXPORT_ERROR, equal_nan=True
        ):
            yield (
                f"output {k}: what torch.export made of the module is not the module: look at the"
                " export, not at ONNX"
            )


def read_statement(graph: Graph, index: int) -> str:
    """Return the statement of the program that an ONNX node comes from: `%relu : […] = …`."""
    return read_node_metadata(graph, index).get(f"{PREFIX}fx_node", "")


def parse_name(statement: str) -> str:
    """Parse `%relu : [num_users=1] = …` into `relu`."""
    return statement.partition(" ")[0].removeprefix("%")


def run(
    program: Program, args: Sequence[Any], kwargs: Fields, seen: Callable[[Node, Any], None]
) -> Any:
    """Run a program; call `seen` with each node and its value; return the values of the outputs.

    Values are not copied: later nodes of a program without in-place operations do not change them.
    """
    interpreter = import_torch().fx.Interpreter(program.graph_module, garbage_collect_values=True)
    run_node = interpreter.run_node

    def run_seen(node: Node) -> Any:
        value = run_node(node)
        seen(node, value)
        return value

    interpreter.run_node = run_seen
    given = iter(flatten((tuple(args), dict(kwargs))))
    own = find_weights(program)
    names = [spec.arg.name for spec in program.graph_signature.input_specs]
    inputs = [own[name] if name in own else next(given) for name in names]
    with import_torch().no_grad():
        return interpreter.run(*inputs)


def find_weights(program: Program) -> JsonObject:
    """Find weights, buffers and constants, by the node through which they enter the graph."""
    known = {**program.constants, **program.state_dict}
    return {
        s.arg.name: known[s.target]
        for s in program.graph_signature.input_specs
        if s.target in known
    }


def flatten(values: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts, as `torch.export` orders them."""
    leaves: list[Any] = import_torch().utils._pytree.tree_leaves(values)
    return leaves


def list_tensors(values: Any) -> list[Any]:
    """Return the tensors of nested tuples, lists and dicts, in order."""
    return [leaf for leaf in flatten(values) if isinstance(leaf, import_torch().Tensor)]


def to_numpy(tensor: Any) -> Array:
    """Return a copy of a tensor of any device and element type as an array; bfloat16 and float8 as
    `ml_dtypes`.

    Raises:
        InputError: it is sparse or quantized, or ONNX has no such elements.
    """
    pytorch = import_torch()
    if tensor.layout != pytorch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else tensor.layout
        raise InputError(
            f"a tensor is {kind}, which ONNX has not",
            code="tensor.unsupported-type",
        )
    plain = tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name in NOT_NUMPY:
        bits = {1: pytorch.uint8, 2: pytorch.int16}[plain.element_size()]
        return (
            np.asarray(plain.reshape(-1).view(bits).numpy())
            .view(find_dtype(name))
            .reshape(tuple(plain.shape))
        )
    try:
        return np.asarray(plain.numpy())
    except (TypeError, RuntimeError) as e:
        raise InputError(f"ONNX has no element type {name}", code="tensor.unsupported-type") from e


def to_tensor(array: Array) -> Any:
    """Return a copy of an array as a tensor on the CPU; bfloat16 and float8 from `ml_dtypes`.

    Raises:
        InputError: PyTorch has no such elements.
    """
    pytorch = import_torch()
    name = array.dtype.name
    if name in NOT_NUMPY and hasattr(pytorch, name):
        bits = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return pytorch.from_numpy(np.array(array).view(bits)).view(getattr(pytorch, name))
    try:
        return pytorch.from_numpy(np.array(array, order="C"))
    except TypeError as e:
        raise InputError(
            f"PyTorch has no elements of type {name}", code="tensor.unsupported-type"
        ) from e


@contextmanager
def silence_exporter() -> Iterator[None]:
    """Hide the warnings and progress of the exporter, and its graphs of failures."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def summarize_error(error: BaseException) -> str:
    """Return kind, first line, and the user's line of code of an error's first cause.

    Errors of the exporter are pages long.
    """
    while error.__cause__:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    file, line, code = find_innermost_call(str(error))
    where = f", at {shorten_path(file)}:{line}: {code}" if file else ""
    first = lines[0] if lines else ""
    return f"{type(error).__name__}: {first}"[:400] + where


# ------------------------------------------------------------ the ONNX file


def export_module(module: Any, args: Sequence[Any] | None) -> Path:
    """Export a module by `torch.onnx.export(…, dynamo=True)` into a temporary folder.

    Raises:
        BackendError: PyTorch is not installed. UsageError: it is not a module, or there are no
            `args`.
        ModelError: It cannot be exported, with the reason.
    """
    pytorch = import_torch()
    if not isinstance(module, pytorch.nn.Module):
        raise ArgumentTypeError.from_value(
            module, "a model is a file or a torch.nn.Module", "subgraph.load(model, args=(x,))"
        )
    if args is None:
        raise UsageError(
            "the export of a torch.nn.Module needs the arguments of its call",
            "load(module, args=(x,))",
            code="torch.no-arguments",
        )
    path = folders.make_lasting("subcut-torch") / f"{type(module).__name__}.onnx"
    log.info("torch.onnx.export(module, args, %r, dynamo=True)", clean(path.name))
    try:
        with silence_exporter():
            pytorch.onnx.export(module, tuple(args), str(path), dynamo=True, verbose=False)
    except Exception as e:  # the user's code runs, and may raise anything
        raise ModelError(
            f"PyTorch cannot export {type(module).__name__}: {summarize_error(e)}",
            code="torch.export-failed",
        ) from e
    return path


NEEDS = ("torch", "onnxscript")
# Line that names an error, as at the end of a traceback.
SAID = re.compile(r"[\w.]*(?:Error|Exception|Node)\b.*")
EXPORT_TIMEOUT = 3600  # seconds that an export may take
CODE = 'import torch; torch.onnx.export(torch.export.load({}), f="model.onnx", dynamo=True)'


def convert_program(path: Path, trust: bool = False) -> Path:
    """Return the exported model as a file, kept for the next command; shows the command that
    exports it.

    Raises:
        UsageError: the file is not trusted. BackendError: PyTorch is not installed.
        ModelError: PyTorch cannot load or export it.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise BackendError(
            f"{path.name} is an exported program of PyTorch; reading it needs"
            f" {' and '.join(missing)}",
            f"pip install {' '.join(missing)}",
            code="package.not-installed",
        )
    path = path.absolute()
    # A literal of Python as well.
    command = children.make_python_command("-c", CODE.format(json.dumps(str(path))))
    shown = f"torch.export.load({path.name!r}), which unpickles it"
    trusted.require(NamedCode(f"the model {clean(path.name)}", [shown], str(path), [path]), trust)

    def write(target: Path) -> None:
        log.info("%s", clean(system.join(["python", *command[1:]])))
        _run(command, path, target.parent)
        (target.parent / "model.onnx").rename(target)

    versions = [version(name) for name in NEEDS]  # another exporter writes another model
    return convert_once(["pt2/2", *versions, digest_file(path)], path.name, write)


def _run(command: list[str], path: Path, folder: Path) -> None:
    """Run the export in a folder, where it leaves `model.onnx`.

    Raises:
        ModelError: it fails; with the last error that it printed.
    """
    hint = f"run it yourself to see more: {system.join(command)}"
    try:
        done = children.run(
            command, timeout=EXPORT_TIMEOUT, cwd=folder, memory=measure_free_memory()
        )
    except subprocess.TimeoutExpired as e:
        raise ModelError(
            f"PyTorch did not export {path.name} within {EXPORT_TIMEOUT} s",
            hint,
            code="torch.timeout",
        ) from e
    done.require_space()
    if done.code or not (folder / "model.onnx").is_file():
        lines = [
            line.strip() for line in done.err.decode(errors="replace").splitlines() if line.strip()
        ]
        errors = list(filter(SAID.match, lines)) or lines or ["it ended without a word"]
        raise ModelError(
            f"PyTorch cannot export {path.name}: {errors[-1][:400]}",
            hint,
            code="torch.export-failed",
        )
