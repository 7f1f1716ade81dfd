"""Recordings -> runs on a device: which there are, what they were fed, and where one that was named is missing.

A folder may hold several runs: of several tools (golden beside simulator) or of several samples (Result_0, Result_1).
Those whose names differ in the last number alone are samples, if as many are fed; else the first one is taken, and
that is said.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError
from subgraph.graph.graph import Graph
from subgraph.graph.types import declared_type
from subgraph.plugins import load as plugin
from subgraph.recordings import recording
from subgraph.recordings.align import fits
from subgraph.recordings.dumps import DumpEntry, DumpHints, TensorSpec, same
from subgraph.recordings.recording import Recording
from subgraph.storage.folders import safe_name, safe_names
from subgraph.storage.tensors import NOT_NUMPY, shape_text, to_bits
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.types import Array

log = logging.getLogger("subcut")


@dataclass(frozen=True)
class RecordedRun:
    """What one device, or one tool, recorded.

    Attributes:
        name: as reports call it: the folder, and what tells its runs apart.
        samples: per sample, its entries.
        loose: entries whose files say nothing of their shape.
        missing: why there is nothing; "" where there is something.
    """

    name: str
    recording: Recording | None = None
    samples: tuple[tuple[DumpEntry, ...], ...] = ()
    loose: frozenset[DumpEntry] = frozenset()
    missing: str = ""

    def sample(self, k: int) -> tuple[DumpEntry, ...]:
        """The entries of a sample; none of one that was not recorded."""
        return self.samples[k] if k < len(self.samples) else ()


def open_all(places: Sequence[Path], graph: Graph, layout: str = "", format: str | None = None) -> list[RecordedRun]:
    """The runs in some folders. One of several folders that cannot be read is a run that is missing.

    Raises:
        InputError: the only one cannot be read, or none can.
    """
    found: list[RecordedRun] = []
    names = _names(places)
    for place, name in zip(places, names, strict=True):
        try:
            found += _runs(name, *read(place, graph, layout, format))
        except InputError as e:
            if len(places) == 1:
                raise
            found.append(RecordedRun(name, missing=e.what))
    if all(run.missing for run in found):
        raise InputError("; ".join(run.missing for run in found), "--recorded names a folder of layer dumps")
    return found


def read(
    place: Path, graph: Graph, layout: str = "", format: str | None = None
) -> tuple[Recording, frozenset[DumpEntry]]:
    """A recording, and those entries whose shape the model says: their files have none.

    A headerless file whose size does not fit the tensor of its name is read flat: after fusion it holds another one.

    Raises:
        InputError: as `recording.open`.
    """
    known = recording.known_of(graph, layout)
    found = recording.open(place, format, known)
    flat = DumpHints({name: TensorSpec(spec.dtype) for name, spec in known.specs.items()})
    key = attrgetter("file", "side", "node", "tensor", "role", "index")
    bare = {key(e): e for e in recording.open(place, found.format, flat)}
    entries, loose = [], []
    for e in found:
        plain = bare.get(key(e))
        own = plain if plain and e.lacks and not plain.lacks else e
        entries.append(own)
        if plain and not layout and (own.shape is None or plain.shape != e.shape or own is plain is not e):
            loose.append(own)
    return replace(found, entries=tuple(entries)), frozenset(loose)


def _names(places: Sequence[Path]) -> list[str]:
    own = [Path(os.path.realpath(place)).name for place in places]
    return own if len(set(own)) == len(own) else [str(place) for place in places]


def _runs(name: str, found: Recording, loose: frozenset[DumpEntry]) -> list[RecordedRun]:
    sides: dict[str, list[DumpEntry]] = {}
    for entry in found:
        sides.setdefault(entry.side, []).append(entry)
    kinds: dict[str, list[str]] = {}
    for side in sides:
        kinds.setdefault(re.sub(r"\d+(?=\D*$)", "#", side), []).append(side)
    out = []
    for kind, some in kinds.items():
        own = name if len(kinds) == 1 else f"{name}:{some[0] if len(some) == 1 else kind}"
        ordered = sorted(some, key=_natural)
        out.append(RecordedRun(own, found, tuple(tuple(sides[side]) for side in ordered), loose))
    return _joined(out)


def _joined(found: list[RecordedRun]) -> list[RecordedRun]:
    """What holds nothing but inputs is no run of its own: it says what the others were fed."""
    fed = [run for run in found if all(e.role == "input" for sample in run.samples for e in sample)]
    others = [run for run in found if run not in fed]
    if not fed or not others:
        return found
    more = tuple(e for run in fed for e in run.sample(0))
    out = [replace(run, samples=tuple((*more, *entries) for entries in run.samples)) for run in others]
    return [replace(out[0], name=out[0].name.partition(":")[0])] if len(out) == 1 else out


def _natural(side: str) -> list[Any]:
    return [int(w) if i % 2 else w for i, w in enumerate(re.split(r"(\d+)", side))]


# ---------------------------------------------------------------------------------------------------- what was fed


def fed(found: Sequence[RecordedRun], graph: Graph) -> list[dict[str, DumpEntry]]:
    """Per sample of the run that says most of it: the entry of each input of the model that it holds."""
    best: list[dict[str, DumpEntry]] = []
    for run in found:
        own = [_inputs(run, entries, graph) for entries in run.samples]
        if own and min(map(len, own)) > (min(map(len, best)) if best else 0):
            best = own
    return best


def _inputs(run: RecordedRun, entries: Sequence[DumpEntry], graph: Graph) -> dict[str, DumpEntry]:
    """By its name; or by its number, as in ONNX's input_0.pb."""
    assert run.recording
    plain = getattr(plugin("dumps", run.recording.format), "plain", same)
    written = {form: name for name in graph.inputs for form in (plain(name), plain(safe_name(name)))}
    found: dict[str, DumpEntry] = {}
    numbered = list(graph.inputs)
    for entry in entries:
        if entry.lacks:
            continue
        word = entry.tensor or entry.node
        name = word if word in graph.inputs else written.get(plain(word), "")
        if not name and entry.role == "input" and re.fullmatch(r"input_\d+", word) and entry.index < len(numbered):
            name = numbered[entry.index]
        if name:
            found.setdefault(name, entry)
    return found


def save_fed(
    samples: Sequence[Mapping[str, DumpEntry]], graph: Graph, loose: frozenset[DumpEntry], folder: Path
) -> list[str]:
    """The recorded inputs as words for `-i`, their files in `folder`.

    Raises:
        InputError: one cannot be read, or is not what the model declares.
    """
    import numpy as np

    stems = safe_names(dict.fromkeys(n for sample in samples for n in sample))
    words: list[str] = []
    for k, sample in enumerate(samples):
        into = folder / f"sample_{k}" if len(samples) > 1 else folder
        into.mkdir(parents=True, exist_ok=True)
        for name, entry in sample.items():
            array, dtype = _declared(entry, entry in loose, graph, name)
            np.save(into / f"{stems[name]}.npy", to_bits(array, dtype), allow_pickle=False)
            if len(samples) == 1:
                words.append(f"{name}={into / f'{stems[name]}.npy'}")
    return words if len(samples) == 1 else [str(folder)]


def _declared(entry: DumpEntry, loose: bool, graph: Graph, name: str) -> tuple[Array, str]:
    """An input in the type and layout that the model declares."""
    import numpy as np

    from subgraph.storage.tensors import np_dtype

    array = entry.read()
    _, dtype, dims = declared_type(graph.inputs[name].type)
    if dims is not None:
        shape = _filled(dims, array)
        ways = list(fits(array, shape, loose)) if shape is not None else []
        if not ways:
            what = (
                f"{entry.file} holds {shape_text(array.shape)} for the input '{clean(name)}', {shape_text(tuple(dims))}"
            )
            raise InputError(what, "name what the device was fed with -i")
        array = ways[0][1]
    if array.dtype != np_dtype(dtype):
        if array.dtype.kind in "iub" and "float" in dtype and dtype not in NOT_NUMPY:
            log.info("input %s: recorded as %s, fed as %s", clean(name), array.dtype.name, dtype)
        array = array.astype(np_dtype(dtype))
    return np.ascontiguousarray(array), dtype


def _filled(dims: Sequence[int | str | None], array: Array) -> tuple[int, ...] | None:
    """The declared shape, what it leaves open as recorded; None where the array cannot have it."""
    if len(dims) == array.ndim:
        return tuple(d if isinstance(d, int) else s for d, s in zip(dims, array.shape, strict=True))
    fixed = math.prod(d for d in dims if isinstance(d, int))
    if sum(not isinstance(d, int) for d in dims) > (fixed > 0) or array.size % max(fixed, 1):
        return None
    return tuple(d if isinstance(d, int) else array.size // fixed for d in dims)


def with_samples(found: Sequence[RecordedRun], many: int) -> list[RecordedRun]:
    """The runs with as many samples as are fed; of more, the first ones, and that is said."""
    out = []
    for run in found:
        if len(run.samples) > many:
            log.warning(
                "%s holds %s, the input is %s: the first is compared (-i a folder of samples)",
                clean(run.name), count(len(run.samples), "sample"), count(many, "sample"),
            )  # fmt: skip
        out.append(replace(run, samples=run.samples[:many]))
    return out
