"""A model as the user has it: the file byte for byte, and the files of its weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from subgraph.errors import OutputError, explain_os_error
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import iter_tensors
from subgraph.graph.value_types import find_value_infos, is_fixed, pin
from subgraph.iterables import flatten
from subgraph.storage.digest import digest, digest_file


def find_external_files(graph: Graph) -> dict[str, Path]:
    """Return the files that hold a model's external data, by location as the model names them, with
    their real paths.

    Tensors inside nodes, bodies and functions count as well. Complexity: linear in the model.

    Raises:
        DataError: a location leads out of the model's folder, or its file is missing or too short.
    """
    files = {}
    for tensor in flatten(map(iter_tensors, (graph.model.graph, *graph.model.functions))):
        if protobuf.is_in_other_file(tensor):
            location = next((str(e.value) for e in tensor.external_data if e.key == "location"), "")
            files[location] = protobuf.locate(tensor, graph.path).file
    return files


def copy_model(graph: Graph, path: Path) -> None:
    """Copy the model's file to `path`, and its external data to the same relative places.

    The files are copies and no links, because a candidate can write into them.

    Raises:
        DataError: As `find_external_files`.
        OutputError: Nothing can be written.
    """
    _copy({path.name: graph.path, **find_external_files(graph)}, path.parent)


def _copy(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files into a folder, each to the location that is its key.

    Raises:
        OutputError: A file cannot be written.
    """
    for location, file in files.items():
        target = folder / location
        fact = f"cannot copy {file} to {target}"
        with explain_os_error(OutputError, fact, "free some space", code="output.unwritable"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def write_pinned(graph: Graph, types: Mapping[str, protobuf.TypeProto], path: Path) -> None:
    """Write the model's file to `path` with sizes in place of open dimensions.

    Every node, weight and declared element type is kept. A symbol takes the size that it has in an
    input. An intermediate tensor whose shape stays open is declared without a shape. External data
    is copied to the same relative places.

    Args:
        graph: The model.
        types: By model input, and by output if its shape is known, the type of its values.
        path: The file to write.

    Raises:
        DataError: As `find_external_files`.
        OutputError: Nothing can be written.
    """
    model = protobuf.to_onnx(graph.model, graph.path)
    symbols: dict[str, int] = {}
    for info in (*model.graph.input, *model.graph.output):
        if info.name in types and info.type.HasField("tensor_type"):
            symbols = pin(info.type, types[info.name]) | symbols
    for info in (*model.graph.output, *model.graph.value_info):
        if not info.type.HasField("tensor_type") or is_fixed(info.type):
            continue
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
        if not is_fixed(info.type):
            info.type.tensor_type.ClearField("shape")
    _copy(find_external_files(graph), path.parent)
    protobuf.rewrite(model, graph.path, path)


def digest_model(graph: Graph) -> str:
    """Return a hash of the bytes of the model's file and of its external data: 0.6 s per GB.

    Raises:
        DataError: as `find_external_files`. OSError: a file cannot be read.
    """
    files = find_external_files(graph)
    return digest(
        "file/1", digest_file(graph.path), {name: digest_file(file) for name, file in files.items()}
    )


def has_open_shapes(graph: Graph) -> bool:
    """Return whether an input, an output or a declared intermediate tensor has an open dimension.

    Complexity: linear in the declarations.
    """
    return not all(
        is_fixed(v.type) for v in (*graph.inputs.values(), *find_value_infos(graph).values())
    )
