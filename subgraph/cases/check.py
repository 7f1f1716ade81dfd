"""Is the cut right? It runs alone on the captured inputs and must give the captured outputs, bit for bit."""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from subgraph.graph.cut import Cut
from subgraph.runtime.capture import Captured
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record, load

# onnxruntime keeps float32 between float16 nodes at every optimisation level, and where it inserts its Casts depends on
# what surrounds the nodes. Largest difference seen: one rounding (4.9e-4 of the scale); a few may add up.
FLOAT16 = 10  # TensorProto.DataType
HALF_ROUNDINGS = 8 * 2.0**-11
FULL = "the full model's values"  # what a cut gives that changes nothing


def check(
    reference: Reference,
    cut: Cut,
    samples: Sequence[Captured],
    folders: Sequence[Path],
    model: Path,
    again: Callable[[int, Path], Mapping[str, Record]],
) -> dict[str, Any]:
    """{"status": "identical" | "rounding" | "unrepeatable" | "different", "what": words, "tolerance", "outputs"}.

    `model` is the cut on disk. `folders` hold the captured files of each sample; `again(k, into)` runs the ancestors
    anew.
    """
    reference.load("cut", model)
    stems = {n: f"check{i}" for i, n in enumerate(cut.outputs)}
    far: list[dict[str, Any]] = []
    for sample, folder in zip(samples, folders, strict=True):
        feeds = [sample.tensors[n].to_json() for n in cut.inputs]
        answer = reference.run("cut", folder, stems, feeds=feeds)
        found = {r.name: r for r in map(Record.from_json, answer["tensors"])}
        far += [d for n in cut.outputs if (d := _difference(sample.tensors[n], found[n], folder))]
        for record in found.values():
            for file in record.files:
                (folder / file).unlink()
    if not far:
        return _verdict("identical", f"the cut alone gives {FULL}: bit-identical")
    worst = max(far, key=lambda d: float(d["relative"]))
    how = f"'{worst['name']}' differs by {worst['max_abs']:.1e} of {worst['scale']:.3g}"
    if not worst["comparable"]:
        how = f"'{worst['name']}' has {worst['why']}"
    if worst["comparable"] and worst["relative"] <= HALF_ROUNDINGS and _has_half(cut, samples):
        why = "onnxruntime keeps float32 between float16 nodes"
        return _verdict("rounding", f"{how}: one fp16 rounding ({why})", far, HALF_ROUNDINGS)
    if not _repeats(samples, folders, again):
        return _verdict("unrepeatable", f"{how}: the reference itself gives other values each time", far)
    return _verdict("different", f"{how}: the cut does NOT give {FULL}", far)


def _verdict(status: str, what: str, far: Sequence[dict[str, Any]] = (), tolerance: float = 0.0) -> dict[str, Any]:
    """`tolerance`: the largest difference, of the scale, that the verdict excuses."""
    # JSON has no infinity
    outputs = [{k: None if v == float("inf") else v for k, v in d.items()} for d in far]
    return {"status": status, "what": what, "tolerance": tolerance, "outputs": outputs}


def _difference(want: Record, got: Record, folder: Path) -> dict[str, Any] | None:
    """How far two values are apart; None where their files are equal byte for byte.

    Only floating values with NaN and infinities in the same places are comparable: an index or a sign of infinity that
    differs is never a rounding.
    """
    if len(want.files) == len(got.files) and all(
        filecmp.cmp(folder / a, folder / b, shallow=False) for a, b in zip(want.files, got.files, strict=True)
    ):
        return None
    import numpy as np

    nothing = {"name": want.name, "comparable": False, "max_abs": 0.0, "scale": 0.0, "relative": float("inf")}
    if want.shapes != got.shapes or want.dtype != got.dtype:
        return nothing | {"why": "another type or shape"}
    if "float" not in want.dtype and not want.dtype.startswith("complex"):
        return nothing | {"why": "other values"}
    error = scale = 0.0
    for a, b in zip(_arrays(load(want, folder)), _arrays(load(got, folder)), strict=True):
        x, y = np.asarray(a).astype(np.complex128), np.asarray(b).astype(np.complex128)
        finite = np.isfinite(x) & np.isfinite(y)
        if (~finite & (x != y) & ~(np.isnan(x) & np.isnan(y))).any():
            return nothing | {"why": "other NaN or infinities"}
        error = max(error, float(np.abs(x[finite] - y[finite]).max(initial=0.0)))
        scale = max(scale, float(np.abs(x[finite]).max(initial=0.0)))
    relative = error / scale if scale else error
    return nothing | {"comparable": True, "why": "", "max_abs": error, "scale": scale, "relative": relative}


def _arrays(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _has_half(cut: Cut, samples: Sequence[Captured]) -> bool:
    return any(t.data_type == FLOAT16 for t in cut.model.graph.initializer) or any(
        s.tensors[n].dtype == "float16" for s in samples for n in (*cut.inputs, *cut.outputs)
    )


def _repeats(
    samples: Sequence[Captured], folders: Sequence[Path], again: Callable[[int, Path], Mapping[str, Record]]
) -> bool:
    """Does a second run of the whole give the captured values?"""
    for folder in folders:
        second = folder / "again"
        second.mkdir()
        found = again(int(folder.name), second)
        first = samples[folders.index(folder)].tensors
        for name, record in found.items():
            moved = record.within("again/0")
            if _difference(first[name], moved, folder):
                return False
    return True
