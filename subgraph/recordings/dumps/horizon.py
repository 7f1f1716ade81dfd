"""Horizon and D-Robotics: dumps of hrt_model_exec, and hb_mapper's NODE_float.bin."""

from __future__ import annotations

import re
from collections.abc import Iterator

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    MARKED,
    NONE,
    TYPED,
    DumpEntry,
    DumpHints,
    _raw,
    _text,
    replace_characters,
)
from subgraph.types import JsonObject

_OUTPUT = re.compile(r"model_infer_output_(?P<index>\d+)__?(?P<tensor>.+)\.(?P<end>bin|txt)")
_LAYER = re.compile(
    r"layer-(?P<layer>\d+)-(?P<op>[^-]+)-(?P<node>.+)-(?P<role>input|output)-(?P<index>\d+)"
    r"-(?P<tensor>.+)\.(?P<end>bin|txt)"
)
_FLOAT = re.compile(r"(?P<node>.+)_float\.bin")
TEXT_STEP = 1e-9  # of --dump_precision 9, its default
plain = replace_characters(r"[/:\\ ]", strip=True)  # which file names cannot hold
BPU_NOTE = "the edge of a whole subgraph on the BPU"


def detect(files: Files) -> int:
    """Detect the format by names model_infer_output_0_X and layer-0-OP-X-output-0-Y; by the end
    _float.bin of all."""
    names = [n.rpartition("/")[2] for n in files.ending(".bin", ".txt")]
    if any(_OUTPUT.fullmatch(n) or _LAYER.fullmatch(n) for n in names):
        return MARKED
    bins = [n for n in names if n.endswith(".bin")]
    if bins and all(_FLOAT.fullmatch(n) for n in bins):
        return TYPED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield layers in run order, then outputs; padded rows need `aligned` in a manifest."""
    listed = _raw.read_manifest(files)
    for file in files.ending(".bin", ".txt"):
        side, _, base = file.rpartition("/")
        name = _LAYER.fullmatch(base) or _OUTPUT.fullmatch(base) or _FLOAT.fullmatch(base)
        if name:
            parts = name.groupdict()
            tensor = parts.get("tensor") or ""
            node = parts.get("node") or ""
            spec = listed[file][1] if file in listed else hints.find(tensor or node, plain)
            fields: JsonObject = {
                "tensor": tensor,
                "node": node,
                "role": parts.get("role") or "output",
                "index": int(parts.get("index") or 0),
                "side": side,
            }
            fields |= {"note": BPU_NOTE} if parts.get("op") == "bpu" else {}
            if file.endswith(".bin"):
                default = "" if file in listed else "float32"
                yield _raw.make_entry(files, file, spec, hints, default, **fields)
            elif _text.is_whole(files, file):
                yield _text.make_entry(files, file, "int32", spec, **fields)
            else:
                yield _text.make_entry(files, file, "float32", spec, step=TEXT_STEP, **fields)
