"""Node of an ONNX graph -> the PyTorch module and line that it came from; and their removal.

PyTorch is not needed. `torch.onnx.export(dynamo=True)` writes scopes, classes and the stack of
`forward` calls into a node's metadata: absolute paths and lines of code. The older exporter writes
scopes into the node's name, and a path into its documentation. All of it comes from the file, so it
is read as text. In models that are to be sent it is found and removed, or all metadata is. Names
of modules remain, which the weights' own names have, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from subgraph.documents import absent, json_key
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.walks import iter_predecessors, iter_successors
from subgraph.text import shorten, shorten_path
from subgraph.types import frozen

PREFIX = "pkg.torch.onnx."
STACK_TRACE = f"{PREFIX}stack_trace"
# Key of a node's metadata: a list of the scopes around it, its own name last.
SCOPE_NAMES = f"{PREFIX}name_scopes"
NAMESPACE = "namespace"
MAX_METADATA_CHARACTERS = 64 << 10  # characters of a metadata value that is read
FRAME = re.compile(
    r'^ *File "([^"\n]+)", line (\d{1,9}), in [^\n]*(?:\n(?! *File ")([^\n]*))?', re.MULTILINE
)
# torch's own code: a line in it is less useful than its caller.
LIBRARY = re.compile(
    r"-packages[/\\]torch[/\\]|[/\\]torch[/\\](?:nn|_\w+|utils|jit|onnx|fx|functional\.py$)"
)
PARAMETER = re.compile(r"((?:\w+\.)*\w+)\.\w+")  # `layer1.0.conv1.weight`


@frozen
class Source:
    """The origin of a node.

    Attributes:
        module: Path of the module that ran, `layer2.0.bn1`; of a fused node also those of its
            weights, `layer2.0.conv1 + layer2.0.bn1`. Empty for the model itself.
        kind: Its class, without the package; JSON calls it `class`.
        file: The file of the innermost call outside of torch's own files.
        line: The line of that call.
        code: The code of that call.
        derived: The direction of the node whose origin this is, if the node itself has no
            metadata: `before` for a producer, `after` for a consumer.
    """

    module: str
    kind: str | None = json_key("class", default=None)
    file: str | None = None
    line: int | None = None
    code: str | None = None
    derived: str | None = absent()

    def __str__(self) -> str:
        """`layer2.0.bn1 (BatchNorm2d) at models/resnet.py:93: out = self.bn1(out)`; "" for a module
        alone, which was read from the node's name."""
        if self.kind is None and not self.file:
            return ""
        kind = f" ({self.kind})" if self.kind else ""
        where = f" at {shorten_path(self.file)}:{self.line}" if self.file else ""
        code = f": {shorten(self.code)}" if where and self.code else ""
        derived = f"the node {self.derived} is of " if self.derived else ""
        return f"{derived}{self.module or 'the model'}{kind}{where}{code}"


def find_source(graph: Graph, index: int) -> Source | None:
    """Return the origin of a node; None if the file has none.

    The newer exporter writes nothing for Split: the metadata of a neighbor replaces it.
    Complexity: linear in the metadata of these.
    """
    if graph.nodes[index].metadata_props:
        return _read_own_source(graph, index)
    around = [
        *((i, "before") for i in iter_predecessors(graph, index)),
        *((i, "after") for i in iter_successors(graph, index)),
    ]
    found = (
        (_read_own_source(graph, i), where) for i, where in around if graph.nodes[i].metadata_props
    )
    derived = (replace(other, derived=where) for other, where in found if other and other.file)
    return next(derived, None) or _read_own_source(graph, index)


def _read_own_source(graph: Graph, index: int) -> Source | None:
    """Return the origin in the metadata or the name of a node."""
    metadata = read_node_metadata(graph, index)
    scopes, classes = _read_scopes(metadata)
    file, line, code = find_innermost_call(metadata.get(STACK_TRACE, "")[:MAX_METADATA_CHARACTERS])
    module = next((scope for scope in reversed(scopes) if scope), "") or parse_module_path(
        graph.node_names[index]
    )
    if not module and not file:
        return None
    # A fused node holds the work of several modules: those whose weights it reads.
    weights = (PARAMETER.fullmatch(name) for name in graph.reads[index] if graph.is_weight(name))
    others = dict.fromkeys(m[1] for m in weights if m and module and m[1] != module)
    kind = classes[len(scopes) - 1].rpartition(".")[2] if 0 < len(scopes) <= len(classes) else None
    modules = " + ".join(filter(None, (*others, module)))
    return Source(modules, kind or None, file, line, code)


def find_sources(graph: Graph, nodes: Iterable[int]) -> Sequence[Source | None] | None:
    """Return the origins of several nodes; None if none is known."""
    found = [find_source(graph, i) for i in nodes]
    return found if any(found) else None


def read_node_metadata(graph: Graph, index: int) -> dict[str, str]:
    """Read the `metadata_props` of a node."""
    return {str(entry.key): str(entry.value) for entry in graph.nodes[index].metadata_props}


def parse_module_path(name: str) -> str:
    """Return the module in a node's name; "" for a name of another exporter.

    >>> parse_module_path("/layer1/layer1.0/conv1/Conv"), parse_module_path("conv1")
    ('layer1.0.conv1', '')
    """
    path: list[str] = []
    for part in name.split("/")[1:-1] if name.startswith("/") else ():
        if path and part.startswith(f"{path[-1]}."):  # a container repeats its own name
            path.pop()
        path.append(part)
    return ".".join(path)


def _read_scopes(metadata: dict[str, str]) -> tuple[list[str], list[str]]:
    """Read the paths and classes of the modules around a node, from the model itself inwards.

    The last entry of both lists in the file is the operator, which is omitted.
    """
    scopes = parse_texts(metadata.get(SCOPE_NAMES, ""))
    if scopes:
        return scopes[:-1], parse_texts(metadata.get(f"{PREFIX}class_hierarchy", ""))[:-1]
    pairs = [
        part.partition(": ")
        for part in metadata.get(NAMESPACE, "")[:MAX_METADATA_CHARACTERS].split("/")
    ]
    if len(pairs) > 1 and all(colon for _, colon, _ in pairs):
        return [scope for scope, _, _ in pairs[:-1]], [kind for _, _, kind in pairs[:-1]]
    return [], []


def parse_texts(literal: str) -> list[str]:
    """Return a list of texts as Python writes it; empty for anything else."""
    if len(literal) > MAX_METADATA_CHARACTERS or not literal.startswith("["):
        return []
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return []


def find_innermost_call(trace: str) -> tuple[str, int, str] | tuple[None, None, None]:
    """Find file, line and code of the innermost frame outside of torch; else of
    the innermost one."""
    frames = [(str(m[1]), int(m[2]), str(m[3] or "").strip()) for m in FRAME.finditer(trace)]
    own = [frame for frame in frames if not LIBRARY.search(frame[0])] or frames
    return own[-1] if own else (None, None, None)


EXPORTER = "pkg.torch."  # begins the keys of PyTorch's exporter
EXPORTERS_KEY = re.compile(rf"{re.escape(EXPORTER)}|{NAMESPACE}$")
SIMPLE = ("TensorProto", "StringStringEntryProto")  # messages that are not searched for source code
CODE_PATH = re.compile(rb"\.pyc?\b")  # in a documentation


def strip_source_code(path: Path, folder: Path, name: str, every: bool = False) -> Path:
    """Return a copy of a model without source code, in a folder; the model itself if it holds
    none.

    `every`: without any metadata and documentation.
    """
    model = protobuf.read(path).model
    if not list(_remove_texts(model, every)):
        return path
    protobuf.rewrite(model, path, folder / name)
    return folder / name


@frozen
class ModelTexts:
    """The texts in a model: its metadata as `KEY VALUE`, and its documentation."""

    metadata: Sequence[str]
    documentation: Sequence[str]


def read_texts(path: Path) -> ModelTexts:
    """Return the metadata and documentation of a model, of its nodes and tensors too, without
    subcut's own entries."""
    texts: dict[bool, list[str]] = {True: [], False: []}
    for removed in _remove_texts(protobuf.read(path).model, every=True):
        if not removed.text.startswith("subcut."):
            texts[removed.in_metadata].append(removed.text)
    return ModelTexts(texts[True], texts[False])


@frozen
class _Text:
    """A text that was removed from a model."""

    text: str
    in_metadata: bool


def _remove_texts(message: Any, every: bool) -> Iterator[_Text]:
    """Remove texts about source code from a message and all inside it; yield traces and paths.

    `every`: remove and yield all metadata and documentation.
    """
    if hasattr(message, "metadata_props"):
        kept = [
            e
            for e in message.metadata_props
            if not every and (e.key == SCOPE_NAMES or not EXPORTERS_KEY.match(e.key))
        ]
        for e in message.metadata_props:
            if every or e.key == STACK_TRACE:
                yield _Text(f"{e.key} {e.value}" if every else e.value, True)
        if len(kept) < len(message.metadata_props):
            kept = [type(e).FromString(e.SerializeToString()) for e in kept]
            del message.metadata_props[:]
            message.metadata_props.extend(kept)
    documented = every and "doc_string" in message.DESCRIPTOR.fields_by_name and message.doc_string
    if documented or (
        message.DESCRIPTOR.name == "NodeProto" and CODE_PATH.search(_encode(message.doc_string))
    ):
        yield _Text(_encode(message.doc_string).decode(errors="replace"), False)
        message.ClearField("doc_string")
    for field, value in message.ListFields():
        if field.name == "value_info" and field.type == field.TYPE_BYTES:
            yield from _remove_from_bytes(value, every)
        elif field.type == field.TYPE_MESSAGE and (every or field.message_type.name not in SIMPLE):
            for inner in value if field.is_repeated else [value]:
                yield from _remove_texts(inner, every)


def _remove_from_bytes(declarations: Any, every: bool) -> Iterator[_Text]:
    """Remove texts from declarations of tensors, which are kept as bytes; the exporter's are not
    yielded."""
    for k, data in enumerate(declarations):
        if every or EXPORTER.encode() in data or NAMESPACE.encode() in data:
            info = protobuf.load_protos().ValueInfoProto.FromString(data)
            texts = list(_remove_texts(info, every))
            declarations[k] = info.SerializeToString()
            yield from texts if every else ()


def _encode(text: str | bytes) -> bytes:
    """Return a documentation: the classes that read models keep it as bytes."""
    if isinstance(text, str):
        return text.encode(errors="surrogateescape")
    return text
