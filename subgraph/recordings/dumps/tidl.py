"""TI's TIDL: layer traces `tidl_trace_…_float.bin` of debug_level 4; the names come from a `….layer_info.txt`.

Source: docs/debugging.md of TexasInstruments/edgeai-tidl-tools: traces are named
GRAPH_LAYER_BATCH_DIM1_DIM2_CHANNEL_WIDTHxHEIGHT and hold float32 in NCHW; layer_info.txt, of the artifacts' tempDir,
has "SL No., Layer Num, Name" in each line, and is to be copied beside the traces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial

from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy, _raw, unreadable
from subgraph.recordings.files import Files

INFO = "layer_info.txt"
_TRACE = re.compile(
    r"tidl_trace_(?P<graph>.+?)_(?P<layer>\d{4,})_(?P<dims>\d+(?:_\d+)+)_(?P<width>\d+)x(?P<height>\d+)"
    r"(?P<form>_float\.bin|\.y)"
)
plain = _npy.plain


def detect(files: Files) -> int:
    """By the names of the traces."""
    return MARKED if any(_traces(files)) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """A tensor per layer. A fixed-point trace, `.y`, tells neither type nor scale: the float trace is read."""
    names = _names(files)
    read = {(side, m["graph"], m["layer"]) for side, m, _ in _traces(files) if m["form"] != ".y"}
    for side, m, file in _traces(files):
        graph, layer = m["graph"], int(m["layer"])
        name = names.get((graph, layer)) or names.get(("", layer), "")
        entry = partial(DumpEntry, file, tensor=name, node="" if name else f"{graph}_layer_{layer}", side=side)
        if m["form"] == ".y":
            if (side, graph, m["layer"]) not in read:
                yield entry(unreadable, "", missing="fixed point without type and scale; set debug_level to 4")
            continue
        shape = _shape(m)
        if 4 * math.prod(shape) != files.sizes[file]:
            raise files.damaged(file, f"its name says {list(shape)}; it has {files.sizes[file]} bytes")
        yield entry(partial(_raw.read, files, file, "float32", shape), "float32", shape)


def _traces(files: Files) -> Iterator[tuple[str, re.Match[str], str]]:
    """(folder, what the name says, file) of each trace."""
    for file in files.ending("_float.bin", ".y"):
        side, _, base = file.rpartition("/")
        if trace := _TRACE.fullmatch(base):
            yield side, trace, file


def _shape(trace: re.Match[str]) -> tuple[int, ...]:
    """Batch, the two further dimensions where they are not 1, channels, height, width."""
    batch, *further, channel = map(int, trace["dims"].split("_"))
    more = further if any(d != 1 for d in further) else []
    return (batch, *more, channel, int(trace["height"]), int(trace["width"]))


def _names(files: Files) -> dict[tuple[str, int], str]:
    """(graph, number of the layer) -> name; the graph is "" where the list's own name does not say it."""
    found = {}
    for file in files.ending(INFO):
        graph = re.search(r"subgraph_\d+", file.rpartition("/")[2])
        for line in files.text(file).splitlines():
            words = line.split()
            if len(words) >= 3 and words[0].isdecimal() and words[1].isdecimal():
                found[graph[0] if graph else "", int(words[1])] = words[-1]
    return found
