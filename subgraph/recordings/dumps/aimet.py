"""Qualcomm's AIMET: `layer_outputs_0/NAME.raw` of its LayerOutputUtil, and `inputs/`.

Source: aimet_common/layer_output_utils.py of quic/aimet, class SaveInputOutput:
`outputs/layer_outputs_N/NAME.raw`, `inputs/input_N.raw` (or `inputs/input_N/K.raw` of several
inputs), as numpy's tofile writes them, and `layer_output_name_order.json`. Older releases turn what
has four dimensions to NHWC, newer ones do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    MARKED,
    NONE,
    DumpEntry,
    DumpHints,
    TensorSpec,
    _raw,
    replace_characters,
)

ORDER = "layer_output_name_order.json"
plain = replace_characters(r"[^A-Za-z0-9]+", strip=True)  # exports differ in the other characters
_OUTPUT = re.compile(r"(?P<side>(?:.*/)?)outputs/layer_outputs_(?P<sample>\d+)/(?P<name>.+)\.raw")
_INPUT = re.compile(r"(?P<side>(?:.*/)?)inputs/input_(?P<sample>\d+)(?:/(?P<index>\d+))?\.raw")


def detect(files: Files) -> int:
    """Detect the format by the folders of outputs."""
    if any(map(_OUTPUT.fullmatch, files.ending(".raw"))):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield inputs and outputs of layers per sample, in the order of the run if it is listed."""
    found = files.ending(".raw")
    for m in filter(None, map(_INPUT.fullmatch, found)):
        index = int(m["index"] or 0)
        side = f"{m['side']}inputs/{m['sample']}"
        names = {"tensor": f"input_{index}", "role": "input", "index": index, "side": side}
        yield _raw.make_entry(files, m[0], TensorSpec(), hints, "float32", **names)
    listed = next((n for n in files.names if n.rpartition("/")[2] == ORDER), None)
    data = files.read_json_if_there(listed) if listed else None
    order = data.get("layer_output_names") if isinstance(data, dict) else None
    names_in_order = order if isinstance(order, list) else []
    place = {plain(str(name)): k for k, name in enumerate(names_in_order)}
    outputs = filter(None, map(_OUTPUT.fullmatch, found))
    for m in sorted(
        outputs,
        key=lambda m: (m["side"], int(m["sample"]), place.get(plain(m["name"]), len(place))),
    ):
        side = f"{m['side']}outputs/{m['sample']}"
        spec = hints.find(m["name"], plain)
        yield _raw.make_entry(files, m[0], spec, hints, "float32", tensor=m["name"], side=side)
