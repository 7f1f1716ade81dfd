"""TI's TIDL: layer traces `tidl_trace_…_float.bin`; the names come from a `….layer_info.txt`.

A name has BASE, data id, batches, two dimensions, channels and WIDTHxHEIGHT. Older names omit the
two dimensions, or the batches, too. BASE is `tidl_trace_subgraph_0_` in onnxruntime and TFLite,
`tidl_trace` in TIDL-RT, or a name that the user chose. The file has batches, channels, rows and
columns: real values in float32.

Each line of layer_info.txt has the layer, the data id and the tensor's name; for several cores, the
mode is before the name. It is in the tempDir of the artifacts. The user must copy it to the folder
of the traces.

Sources: tidl_writeTraceDataBuf of the TIDL library, and the documentation of
TexasInstruments/edgeai-tidl-tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial

from subgraph.precision import Precision
from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy, _raw
from subgraph.types import Shape

INFO = "layer_info.txt"
_TRACE = re.compile(
    r"(?P<base>(?:C7x_(?P<core>\d+)_)?(?:tidl_trace|.*?_|))(?P<layer>\d{4})"
    r"_(?P<dims>(?:\d{4}_\d{4}_\d{5}_|\d{5}_)?\d{5})"
    r"_(?P<width>\d{5,6})x(?P<height>\d{5,6})(?P<form>_float\.bin|\.y)"
)
_GRAPH = re.compile(r"subgraph_\d+")
# Bytes of a fixed-point element -> precision; 16 bits are nearest to fp16.
COMPUTED_IN = {1: Precision.INT8, 2: Precision.FP16}
plain = _npy.plain


def detect(files: Files) -> int:
    """Detect the format by the names of the traces."""
    return MARKED if any(_iter_traces(files)) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield a tensor per layer. A fixed-point trace, `.y`, has neither type nor scale."""
    names = _read_names(files)
    traces = list(_iter_traces(files))
    read = {(side, m["base"], m["layer"]) for side, m, _ in traces if m["form"] != ".y"}
    fixed = {
        (side, m["base"], m["layer"]): files.sizes[file]
        for side, m, file in traces
        if m["form"] == ".y"
    }
    for side, m, file in traces:
        key = (side, m["base"], m["layer"])
        name = _find_name(names, m)
        base = m["base"].removeprefix("tidl_trace").strip("_")  # without what all traces have
        node = "_".join(filter(None, (base, "layer", str(int(m["layer"])))))
        entry = partial(DumpEntry, file, tensor=name, node="" if name else node, side=side)
        shape = _find_shape(m)
        if m["form"] == ".y":
            if key not in read:
                missing = "fixed point without type and scale; set debug_level to 4"
                yield entry(dtype="", missing=missing)
        elif 4 * math.prod(shape) != files.sizes[file]:
            raise files.make_error(
                file, f"its name has shape {list(shape)}; it has {files.sizes[file]} bytes"
            )
        elif m["core"] and any(
            o["layer"] == m["layer"] and o["core"] not in (None, m["core"]) for _, o, _ in traces
        ):
            missing = "the rows of one core; join them with TI's stitch_multicore_traces.py"
            yield entry(dtype="", missing=missing)
        else:
            computed = COMPUTED_IN.get(fixed.get(key, 0) // max(math.prod(shape), 1), "")
            load = partial(_raw.read, files, file, "float32", shape)
            yield entry(load, shape=shape, computed=computed)


def _iter_traces(files: Files) -> Iterator[tuple[str, re.Match[str], str]]:
    """Yield the folder, the parsed name and the file of each trace."""
    for file in files.ending("_float.bin", ".y"):
        side, _, base = file.rpartition("/")
        if trace := _TRACE.fullmatch(base):
            yield side, trace, file


def _find_shape(trace: re.Match[str]) -> Shape:
    """Return batch (else 1), the two further dimensions if not 1, channels, height, width."""
    *before, channel = map(int, trace["dims"].split("_"))
    batch, *further = before or [1]
    more = further if any(d != 1 for d in further) else []
    return (batch, *more, channel, int(trace["height"]), int(trace["width"]))


def _find_name(names: Mapping[str, Mapping[int, str]], trace: re.Match[str]) -> str:
    """Find the tensor's name in the list of the trace's graph, or in the only list."""
    graph = _GRAPH.search(trace["base"])
    if graph:
        lists = [names.get(graph[0], {}), names.get("", {})]
    else:
        lists = list(names.values())[: 2 - len(names)]
    return next((found[int(trace["layer"])] for found in lists if int(trace["layer"]) in found), "")


def _read_names(files: Files) -> dict[str, dict[int, str]]:
    """Read the name of each data id by graph; "" for a list whose name has no graph."""
    found: dict[str, dict[int, str]] = {}
    for file in files.ending(INFO):
        graph = _GRAPH.search(file.rpartition("/")[2])
        for line in files.text(file).splitlines():
            words = line.split()
            if len(words) >= 3 and words[0].isdecimal() and words[1].isdecimal():
                found.setdefault(graph[0] if graph else "", {})[int(words[1])] = words[-1]
    return found
