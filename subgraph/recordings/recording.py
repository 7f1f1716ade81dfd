"""A folder that a tool or a device left -> its tensors, whatever the format: detected by content, read one by one.

Insight: all formats answer how surely a folder is theirs, and the most particular one wins: a mark that only one tool
leaves (a list, a magic number, a pattern of names) beats files that say what they hold, which beat bare numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from subgraph import plugins
from subgraph.errors import InputError, UnknownName
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.recordings.dumps import DumpEntry, DumpHints, TensorSpec, same
from subgraph.recordings.files import Files, scan
from subgraph.storage import dtypes
from subgraph.storage.folders import safe_name
from subgraph.storage.tensors import Tensors
from subgraph.text import clean, count, nearest

CHOOSE = "say which with --dump-format"


@dataclass(frozen=True)
class Recording:
    """Tensors recorded elsewhere.

    Attributes:
        folder: where they lie.
        format: the word for how.
        entries: one per tensor, in the order of the files.
    """

    folder: Path
    format: str
    entries: tuple[DumpEntry, ...]

    def __iter__(self) -> Iterator[DumpEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def candidates(self, names: Iterable[str]) -> list[tuple[DumpEntry, tuple[str, ...]]]:
        """For each entry, which of a model's names it may stand for; of a node only where the tensor has no name.

        What the recording itself says comes before the very same name, and that before names that the tool would have
        written so. Inputs of a node that have no name of their own stand for nothing. Complexity: linear in both. A
        name is no proof: after fusion a node holds another tensor.
        """
        plain = getattr(_module(self.format), "plain", same)
        written: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            for form in dict.fromkeys((plain(name), plain(safe_name(name)))):  # a tool's way, and ours
                written.setdefault(form, []).append(name)
        own = {name for group in written.values() for name in group}
        return [(entry, _stands_for(entry, own, written, plain)) for entry in self.entries]


def _stands_for(
    entry: DumpEntry, own: Container[str], written: Mapping[str, list[str]], plain: Callable[[str], str]
) -> tuple[str, ...]:
    said = tuple(name for name in entry.originals if name in own)
    if said:
        return said
    for word in filter(None, (entry.tensor, entry.node if entry.role == "output" else "")):
        found = [word] if word in own else written.get(plain(word), [])
        if found:
            return tuple(found)
    return ()


def formats() -> list[str]:
    """The words for all formats."""
    return plugins.names("dumps")


def open(place: Path, format: str | None = None, known: DumpHints | None = None) -> Recording:
    """Find out what a folder (or one file) holds; values are read later, entry by entry.

    Args:
        place: the folder, or one file of it.
        format: the word for its format; detected if not given.
        known: types, shapes and layout of files that say nothing of themselves.

    Raises:
        InputError: there is nothing, nothing is recognised, or a file is damaged. UnknownName: no such format.
    """
    files = scan(place)
    word = _chosen(format) if format else _detected(place, files)
    found = tuple(_module(word).entries(files, known or DumpHints()))
    if not found:
        raise InputError(f"no tensors in {place} in the format {word}", f"known formats: {', '.join(formats())}")
    return Recording(files.root, word, found)


def detect(place: Path) -> list[str]:
    """The formats that a place may be in, all equally sure; none where nothing is recognised.

    Raises:
        InputError: it cannot be listed.
    """
    return _ranked(scan(place))


def hints_of(graph: Graph, layout: str = "") -> DumpHints:
    """What a model says of its tensors: types and shapes, declared and inferred."""
    from subgraph.graph import shape_inference

    types = shape_inference.infer_types(graph)
    specs = {}
    for name in {**types.declared, **types.inferred}:
        specs[name] = _spec(types.type_of(name))
    return DumpHints({name: spec for name, spec in specs.items() if spec.dtype}, layout)


def write(tensors: Tensors, folder: Path, format: str) -> None:
    """Write tensors as a tool expects them.

    Raises:
        UnknownName: no such format. InputError: it cannot be written, or cannot hold one of them.
    """
    module = _module(_chosen(format))
    if not hasattr(module, "write"):
        writers = [word for word in formats() if hasattr(_module(word), "write")]
        raise InputError(f"the format {format} is only read", f"written are: {', '.join(writers)}")
    folder.mkdir(parents=True, exist_ok=True)
    module.write(tensors, folder)


def _module(word: str) -> ModuleType:
    return plugins.load("dumps", word)


def _chosen(word: str) -> str:
    names = formats()
    if word not in names and not word.endswith(".py"):
        raise UnknownName(f"no dump format '{clean(word)}'; known: {', '.join(names)}", nearest=nearest(word, names))
    return word


def _ranked(files: Files) -> list[str]:
    sure = {word: int(_module(word).detect(files)) for word in formats()} if files.sizes else {}
    most = max(sure.values(), default=0)
    return [word for word, rank in sure.items() if rank == most and most > 0]


def _detected(place: Path, files: Files) -> str:
    found = _ranked(files)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{place} may be {' or '.join(found)}", f"{CHOOSE}: {found[0]}, for example")
    what = f"{count(len(files.sizes), 'file')}, none of a known format" if files.sizes else "it is empty"
    raise InputError(f"no tensors in {place}: {what}", f"{CHOOSE}, if it is one of {', '.join(formats())}")


def _spec(proto: protobuf.TypeProto | None) -> TensorSpec:
    """Type and shape of a tensor; nothing of what is none."""
    if proto is None or not proto.HasField("tensor_type"):
        return TensorSpec()
    tensor = proto.tensor_type
    dtype = dtypes.name_of(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TensorSpec(dtype)
    return TensorSpec(dtype, tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in tensor.shape.dim))
