"""A module -> the program that PyTorch's exporter translates (`torch.export`), and the value of each of its nodes.

The nodes' names are those that the exporter gives to ONNX's tensors, and what a node says of itself stands in the
metadata of the ONNX nodes, so that it can be checked that both are the same program.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from subgraph.errors import BackendError, InputError
from subgraph.graph.graph import Graph
from subgraph.origins.source import PREFIX, node_metadata
from subgraph.storage.tensors import NOT_NUMPY, np_dtype
from subgraph.types import Array

Program = Any  # torch.export.ExportedProgram
Node = Any  # torch.fx.Node


def torch() -> Any:
    """The user's PyTorch.

    Raises:
        BackendError: it is not installed.
    """
    try:
        import torch
    except ImportError as e:
        raise BackendError("PyTorch is not installed", "pip install torch, in the environment of your module") from e
    return torch


def programs(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any) -> Iterator[Program]:
    """The module as the exporter sees it: first without running the exporter, then as it decomposes it itself.

    `options`: of `torch.onnx.export`, for example `dynamic_shapes` or `custom_translation_table`. Those that fail are
    left out, but for the last.

    Raises:
        InputError: the module cannot be exported; says why.
    """
    pytorch, given = torch(), (tuple(args), dict(kwargs))
    shapes = {"dynamic_shapes": options.get("dynamic_shapes")}
    try:
        with quiet():
            plain = pytorch.export.export(module, *given, strict=False, **shapes).run_decompositions({})
    except Exception as e:  # the user's code runs, and may raise anything
        raise InputError(f"torch.export cannot export the module: {first_line(e)}") from e
    yield plain
    try:
        with quiet():
            own = pytorch.onnx.export(
                module, given[0], kwargs=given[1], dynamo=True, optimize=False, verbose=False, **options
            )
    except Exception as e:  # noqa: BLE001 - as above; onnxscript may be missing
        logging.getLogger("subcut").debug("torch.onnx.export: %s", first_line(e))
        return
    yield own.exported_program


def same_program(graph: Graph, program: Program) -> tuple[int, int]:
    """Of how many ONNX nodes the program has the very statement that their metadata hold; and of how many it is known.

    >>> same_program(graph, program)  # doctest: +SKIP
    (49, 49)
    """
    own = {node.name: node.format_node() for node in program.graph.nodes}
    known = [text for i in range(len(graph.nodes)) if (text := statement(graph, i))]
    return sum(own.get(name_in(text)) == text for text in known), len(known)


def statement(graph: Graph, index: int) -> str:
    """What the exporter wrote of the program's node that an ONNX node comes from: `%relu : [num_users=1] = …`."""
    return node_metadata(graph, index).get(f"{PREFIX}fx_node", "")


def name_in(statement: str) -> str:
    """`%relu : [num_users=1] = …` → `relu`."""
    return statement.partition(" ")[0].removeprefix("%")


def run(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], seen: Callable[[Node, Any], None]) -> Any:
    """Run a program; `seen` is told each node and its value. Returns the values of the output node.

    Values are not copied: later nodes of a program without in-place operations do not change them.
    """
    interpreter = torch().fx.Interpreter(program.graph_module, garbage_collect_values=True)
    run_node = interpreter.run_node

    def told(node: Node) -> Any:
        value = run_node(node)
        seen(node, value)
        return value

    interpreter.run_node = told
    with torch().no_grad():
        return interpreter.run(*_inputs(program, args, kwargs))


def _inputs(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """What enters the program's graph, in its order: weights and buffers by name, then the user's own."""
    given = iter(flattened((tuple(args), dict(kwargs))))
    for spec in program.graph_signature.input_specs:
        if spec.target in program.state_dict:
            yield program.state_dict[spec.target]
        elif spec.target in program.constants:
            yield program.constants[spec.target]
        else:
            yield next(given)


def flattened(values: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, as `torch.export` orders them."""
    leaves: list[Any] = torch().utils._pytree.tree_leaves(values)
    return leaves


def tensors_in(values: Any) -> list[Any]:
    """The tensors of nested tuples, lists and dicts, in order."""
    return [leaf for leaf in flattened(values) if isinstance(leaf, torch().Tensor)]


def to_numpy(tensor: Any) -> Array:
    """A copy of a tensor of any device and element type as an array; bfloat16 and float8 as `ml_dtypes`.

    Raises:
        InputError: it is sparse or quantised, or ONNX has no such elements.
    """
    import numpy as np

    pytorch = torch()
    if tensor.layout != pytorch.strided or tensor.is_quantized:
        raise InputError(f"a tensor is {'quantised' if tensor.is_quantized else tensor.layout}, which ONNX has not")
    plain = tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name in NOT_NUMPY:
        bits = {1: pytorch.uint8, 2: pytorch.int16}[plain.element_size()]
        return np.asarray(plain.reshape(-1).view(bits).numpy()).view(np_dtype(name)).reshape(tuple(plain.shape))
    try:
        return np.asarray(plain.numpy())
    except (TypeError, RuntimeError) as e:
        raise InputError(f"elements of type {name} are none of ONNX's") from e


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and progress of the exporter."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says: those of the exporter are pages long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:400]
