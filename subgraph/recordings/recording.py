"""A folder that a tool or a device left -> its tensors; the format is detected by content.

Every format returns how surely a folder is of its kind, and the most specific one wins: a mark that
only one tool leaves (a list, a magic number, a pattern of names) beats files that store type and
shape, which beat bare numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from subgraph import plugins
from subgraph.errors import InputError, UnknownName
from subgraph.graph import protobuf, shape_inference
from subgraph.graph.graph import Graph
from subgraph.recordings.dump_files import DamagedFile, Files, scan
from subgraph.recordings.dumps import DumpEntry, DumpHints, TensorSpec, WrittenNames
from subgraph.storage import dtypes
from subgraph.storage.file_kinds import recognize
from subgraph.text import count, find_nearest
from subgraph.types import frozen

# Ends of files that hold lists, logs, models and programs
NO_TENSORS = tuple(
    ".json .csv .md .log .txt .onnx .data .prototxt .tnnproto .tnnmodel .mnn .ir .py .sh .html"
    " .yaml .yml".split()
)
MAX_LOST = 0.1  # of the files, that may be damaged
STATISTICS = frozenset(
    "min max mean std stddev norm variance rmse mean_error max_abs_error l2norm sqnr".split()
)
CHOOSE = "choose one with --dump-format"

# The specs are kept, because shape inference starts a process.
_specs: WeakKeyDictionary[Graph, dict[str, TensorSpec]] = WeakKeyDictionary()


@frozen
class Recording:
    """Tensors recorded elsewhere.

    Attributes:
        format: its name, that of a module in `dumps`.
        entries: one per tensor, in the order of the files.
        left_out: by their ends, how many files were not read; without those that hold lists, logs
            or models.
    """

    folder: Path
    format: str
    entries: tuple[DumpEntry, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[DumpEntry]:
        return iter(self.entries)

    @property
    def plain(self) -> Callable[[str], str]:
        """A name as the tool writes it."""
        return getattr(_load_format(self.format), "plain", str)

    @property
    def is_half(self) -> bool:
        """Whether the tool computes floats in float16, whatever it writes."""
        return bool(getattr(_load_format(self.format), "HALF", False))

    def join_parts(self, names: Iterable[str]) -> Recording:
        """Return the recording with folders as a part of names, if the joined path is one of these.

        Tools write a name with `/` in it as folders; such a folder is no run. A folder that is a
        part of one tensor's name is one of all tensors in it.
        """
        written = WrittenNames(names, self.plain)
        scopes = set[str]()
        for entry in self.entries:
            if not (entry.side and entry.tensor and entry.file.startswith(f"{entry.side}/")):
                continue
            folders = entry.side.split("/")
            for k in range(len(folders)):
                name = "/".join((*folders[k:], entry.tensor))
                if written.find(name) or written.find(f"/{name}"):
                    scopes.update("/".join(folders[: end + 1]) for end in range(k, len(folders)))
                    break
        entries = []
        for entry in self.entries:
            outer = entry.side
            name = entry.tensor
            while name and outer in scopes:
                outer, _, last = outer.rpartition("/")
                name = f"{last}/{name}"
            entries.append(replace(entry, tensor=name, side=outer))
        return replace(self, entries=tuple(entries))


def list_formats() -> list[str]:
    """Return the names of all formats."""
    return plugins.list_names("dumps")


def open(place: Path, format: str = "", hints: DumpHints | None = None) -> Recording:
    """Return the tensors in a folder, or in one file; values are read later, entry by entry.

    Args:
        format: detected if not given.
        hints: types, shapes and layout for files that do not store them.

    Raises:
        InputError: there is nothing, nothing is recognized, or a file is damaged. UnknownName: no
            such format.
    """
    files = scan(place)
    known = list_formats()
    if format and format not in known and not format.endswith(".py"):
        raise UnknownName(
            f"no dump format '{format}'; known: {', '.join(known)}",
            nearest=find_nearest(format, known),
            code="recording.unknown-format",
        )
    format = format or _detect_one(place, files)
    entries = _read_entries(_load_format(format), files, hints or DumpHints())
    if not entries:
        what = f"no tensors in {place} in the format {format}"
        hint = f"known formats: {', '.join(known)}"
        raise InputError(what, hint, code="recording.no-tensors")
    read = {entry.file for entry in entries}
    others = (Path(n) for n in files.names if n not in read and not n.endswith(NO_TENSORS))
    ends = Counter(path.suffix or "without an end" for path in others)
    return Recording(files.root, format, entries, ends)


def _read_entries(module: ModuleType, files: Files, hints: DumpHints) -> tuple[DumpEntry, ...]:
    """Read the tensors; a damaged file is an entry with the reason if the others can be read.

    Raises:
        InputError: most are damaged, or one that lists the others.
    """
    left = files
    lost = list[DumpEntry]()
    while True:
        try:
            return (*module.entries(left, hints), *lost)
        except DamagedFile as e:
            is_tensor = e.file in left.sizes and not e.file.endswith(NO_TENSORS)
            if not is_tensor or len(lost) + 1 > MAX_LOST * len(files.sizes):
                raise
            side, _, base = e.file.rpartition("/")
            name = base.rpartition(".")[0] or base
            lost.append(DumpEntry(e.file, dtype="", tensor=name, side=side, missing=e.what))
            left = replace(left, sizes={n: size for n, size in left.sizes.items() if n != e.file})


def detect(place: Path) -> list[str]:
    """Return the formats that the files may be of, all equally sure; none if nothing is recognized.

    Raises:
        InputError: it cannot be listed.
    """
    return _find_surest(scan(place))


def find_hints(graph: Graph, layout: str = "") -> DumpHints:
    """Return the types and shapes of a model's tensors, declared and inferred; `layout`: of the
    files."""
    if graph not in _specs:
        types = shape_inference.infer_types(graph)
        specs = {
            name: _make_spec(types.type_of(name)) for name in {**types.declared, **types.inferred}
        }
        _specs[graph] = {name: spec for name, spec in specs.items() if spec.dtype}
    return DumpHints(_specs[graph], layout)


def _load_format(format: str) -> ModuleType:
    return plugins.load("dumps", format)


def _find_surest(files: Files) -> list[str]:
    formats = list_formats() if files.sizes else []
    ranks = {format: int(_load_format(format).detect(files)) for format in formats}
    highest = max(ranks.values(), default=0)
    return [format for format, rank in ranks.items() if rank == highest > 0]


def _detect_one(place: Path, files: Files) -> str:
    surest = _find_surest(files)
    if len(surest) == 1:
        return surest[0]
    if surest:
        what = f"{place} may be {' or '.join(surest)}"
        hint = f"{CHOOSE}: {surest[0]}, for example"
        raise InputError(what, hint, code="recording.ambiguous-format")
    for name in files.ending(".csv", ".tsv", ".txt", ".json"):
        head = files.head(name).decode(errors="replace").lower()
        words = set(re.findall(r"[a-z][a-z0-9_]*", head))
        if len(statistics := sorted(words & STATISTICS)) > 1:
            what = f"{name} holds statistics of tensors ({', '.join(statistics)}), not their values"
            hint = "have the tool dump the tensors themselves"
            break
    else:
        what = f"{count(files.sizes, 'file')}, none of a known format"
        hint = f"{CHOOSE}, if it is one of {', '.join(list_formats())}"
        if not files.sizes:
            what = "it is empty"
        elif place.is_file() and (kind := recognize(place)):
            what = f"it is {kind.name}"
            hint = "name the tensors that the device or the tool has written"
    raise InputError(f"no tensors in {place}: {what}", hint, code="recording.no-tensors")


def _make_spec(proto: protobuf.TypeProto | None) -> TensorSpec:
    """Return type and shape of a tensor; an empty spec for other kinds of values."""
    if proto is None or not proto.HasField("tensor_type"):
        return TensorSpec()
    tensor = proto.tensor_type
    dims = (int(d.dim_value) if d.HasField("dim_value") else None for d in tensor.shape.dim)
    shape = tuple(dims) if tensor.HasField("shape") else None
    return TensorSpec(dtypes.name_of(tensor.elem_type), shape)
