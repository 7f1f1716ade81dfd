"""Horizon and D-Robotics: what hrt_model_exec leaves of outputs and layers, and hb_mapper's NODE_float.bin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from subgraph.recordings.dumps import MARKED, NONE, TYPED, DumpEntry, DumpHints, TensorSpec, _raw, _text
from subgraph.recordings.files import Files

_OUTPUT = re.compile(r"model_infer_output_(?P<index>\d+)__?(?P<tensor>.+)\.(?P<end>bin|txt)")
_LAYER = re.compile(
    r"layer-(?P<layer>\d+)-(?P<op>[^-]+)-(?P<node>.+)-(?P<role>input|output)-(?P<index>\d+)-(?P<tensor>.+)\.(?P<end>bin|txt)"
)
_FLOAT = re.compile(r"(?P<node>.+)_float\.bin")
STEP = 1e-9  # of --dump_precision 9, its default


def detect(files: Files) -> int:
    """By names model_infer_output_0_X and layer-0-OP-X-output-0-Y; all .bin files ending in _float.bin."""
    own = [n.rpartition("/")[2] for n in files.ending(".bin", ".txt")]
    if any(_OUTPUT.fullmatch(n) or _LAYER.fullmatch(n) for n in own):
        return MARKED
    bins = [n for n in own if n.endswith(".bin")]
    return TYPED if bins and all(_FLOAT.fullmatch(n) for n in bins) else NONE


def plain(name: str) -> str:
    """Characters that no file name has become `_`."""
    return re.sub(r"[/:\\ ]", "_", name).strip("_")


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """Layers in the order of the run, then outputs. Rows padded by the device need a manifest.json with `aligned`."""
    said = _raw.said(files)
    for file in files.ending(".bin", ".txt"):
        side, _, own = file.rpartition("/")
        found = _LAYER.fullmatch(own) or _OUTPUT.fullmatch(own) or _FLOAT.fullmatch(own)
        if found:
            parts = found.groupdict()
            more: dict[str, Any] = {"tensor": parts.get("tensor") or "", "node": parts.get("node") or "", "side": side}
            more |= {"role": parts.get("role") or "output", "index": int(parts.get("index") or 0)}
            if parts.get("op") == "bpu":
                more["note"] = "the edge of a whole subgraph on the BPU"
            yield _entry(files, file, said, known, more)


def _entry(
    files: Files, file: str, said: dict[str, tuple[str, TensorSpec]], known: DumpHints, more: dict[str, Any]
) -> DumpEntry:
    spec = said[file][1] if file in said else known.find(more["tensor"] or more["node"], plain)
    if file.endswith(".bin"):
        return _raw.entry(files, file, spec, known, "" if file in said else "float32", **more)
    shape = None if spec.shape is None or None in spec.shape else tuple(d for d in spec.shape if d is not None)
    whole = _text.is_whole(files, file)
    dtype = "int32" if whole else "float32"
    if shape is None and not more.get("note"):
        more["note"] = "its shape is not known"
    step = 0.0 if whole else STEP
    return DumpEntry(file, _text.loader(files, file, dtype, shape), dtype, shape, step=step, **more)
