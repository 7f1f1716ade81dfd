"""Is the cut right? It runs alone on the captured inputs and must give the captured outputs, bit for bit."""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from subgraph.capture import Captured, Reference
from subgraph.cut import Cut
from subgraph.tensors import Record, load

# onnxruntime keeps float32 between float16 nodes at every optimisation level, and where it inserts its Casts depends on
# what surrounds the nodes. Largest difference seen: one rounding (4.9e-4 of the scale); a few may add up.
HALF_ROUNDINGS = 8 * 2.0**-11


def check(
    reference: Reference,
    cut: Cut,
    samples: Sequence[Captured],
    folders: Sequence[Path],
    model: Path,
    again: Callable[[int, Path], Mapping[str, Record]],
) -> dict[str, Any]:
    """{"status": "identical" | "rounding" | "unrepeatable" | "different", "what": in words, "outputs": how far}.

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
        return {"status": "identical", "what": "the cut alone gives the full model's values: bit-identical"}
    worst = max(far, key=lambda d: float(d["relative"]))
    # JSON has no infinity
    outputs = [{k: None if v == float("inf") else v for k, v in d.items()} for d in far]
    how = f"'{worst['name']}' differs by {worst['max_abs']:.1e} of {worst['scale']:.3g}" if worst["comparable"] else (
        f"'{worst['name']}' has another type or shape"
    )  # fmt: skip
    if worst["comparable"] and worst["relative"] <= HALF_ROUNDINGS and _has_half(cut, samples):
        why = "onnxruntime keeps float32 between float16 nodes"
        return {"status": "rounding", "what": f"{how}: one fp16 rounding ({why})", "outputs": outputs}
    if not _repeats(samples, folders, again):
        return {
            "status": "unrepeatable",
            "what": f"{how}: the reference itself gives other values each time",
            "outputs": outputs,
        }
    return {"status": "different", "what": f"{how}: the cut does NOT give the full model's values", "outputs": outputs}


def _difference(want: Record, got: Record, folder: Path) -> dict[str, Any] | None:
    """How far two values are apart; None where their files are equal byte for byte."""
    if len(want.files) == len(got.files) and all(
        filecmp.cmp(folder / a, folder / b, shallow=False) for a, b in zip(want.files, got.files, strict=True)
    ):
        return None
    import numpy as np

    nothing = {"name": want.name, "comparable": False, "max_abs": 0.0, "scale": 0.0, "relative": float("inf")}
    if want.shapes != got.shapes or want.dtype != got.dtype or want.dtype == "string":
        return nothing
    error = scale = 0.0
    for a, b in zip(_arrays(load(want, folder)), _arrays(load(got, folder)), strict=True):
        x, y = np.asarray(a).astype(np.complex128), np.asarray(b).astype(np.complex128)
        if (np.isfinite(x) != np.isfinite(y)).any():
            return {**nothing, "comparable": True, "max_abs": float("inf")}
        finite = np.isfinite(x)
        error = max(error, float(np.abs(x - y)[finite].max(initial=0.0)))
        scale = max(scale, float(np.abs(x)[finite].max(initial=0.0)))
    return nothing | {
        "comparable": True,
        "max_abs": error,
        "scale": scale,
        "relative": error / scale if scale else error,
    }


def _arrays(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _has_half(cut: Cut, samples: Sequence[Captured]) -> bool:
    half = {"float16"}
    return any(t.data_type == 10 for t in cut.model.graph.initializer) or any(
        s.tensors[n].dtype in half for s in samples for n in (*cut.inputs, *cut.outputs)
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
