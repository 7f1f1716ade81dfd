"""The process that converts a model, or runs the original: a script for a separate environment.
See `converters`."""

import json
import runpy
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# File next to the recorded values: why inputs or outputs of the two models were not paired.
UNPAIRED = ".unpaired"
# Element type, "" for unknown; sizes, of which some may be no number.
Declared = tuple[str, Sequence[Any] | None]


class UnpairedError(Exception):
    """It is not sure which input, or output, of the original one of the ONNX model is."""


def main() -> None:
    """Convert a model or run the original, by the command line."""
    script, what, model, *rest = sys.argv[1:]
    family = SimpleNamespace(**runpy.run_path(script))
    if what == "convert":
        family.convert(Path(model), rest[0])
    else:
        run(
            family,
            Path(model),
            json.loads(Path(rest[0]).read_text(encoding="utf-8")),
            Path(rest[1]),
        )


def run(family: Any, model: Path, asked: dict[str, Any], folder: Path) -> None:
    """Write `sample_K.npz` per sample: the values that the original has, by the names of the ONNX
    model's tensors.

    Outputs that cannot be paired are omitted, and `UNPAIRED` has the reason; without its inputs
    nothing is run.
    """
    import numpy as np

    with family.open_original(model, asked["tensors"]) as (inputs, compute):
        for k, files in enumerate(asked["samples"]):
            fed = {name: np.load(file, allow_pickle=False) for name, file in files.items()}
            try:
                names = pair("input", _declare(fed), inputs)
            except UnpairedError as e:
                (folder / UNPAIRED).write_text(str(e), encoding="utf-8")
                return
            outputs, inner = compute({names[name]: value for name, value in fed.items()})
            arrays = {
                name: np.asarray(value) for name, value in inner.items() if name in asked["tensors"]
            }
            found = {name: np.asarray(value) for name, value in outputs.items()}
            try:
                names = pair("output", asked["outputs"], _declare(found))
                arrays |= {ours: found[theirs] for ours, theirs in names.items()}
            except UnpairedError as e:
                (folder / UNPAIRED).write_text(str(e), encoding="utf-8")
            # Np.savez has no tensor called "file".
            with zipfile.ZipFile(folder / f"sample_{k}.npz", "w") as archive:
                for name, value in arrays.items():
                    if not value.dtype.hasobject:  # of strings, which numpy would pickle
                        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, value, allow_pickle=False)


def _declare(values: Mapping[str, Any]) -> dict[str, Declared]:
    return {name: (value.dtype.name, value.shape) for name, value in values.items()}


def pair(kind: str, ours: Mapping[str, Declared], theirs: Mapping[str, Declared]) -> dict[str, str]:
    """Return the original's name of each tensor: the same, or the only one of its type and shape.

    The order of inputs and outputs means nothing: converters sort them.

    >>> ours = {"x": ("float32", (1, 3)), "n": ("int64", (1,))}
    >>> pair("input", ours, {"n:0": ("int64", (1,)), "x:0": ("float32", (None, 3))})
    {'x': 'x:0', 'n': 'n:0'}

    Raises:
        UnpairedError: Several are alike, or one has no partner.
    """
    pairs = {name: name for name in ours if name in theirs}
    unpaired = [n for n in ours if n not in pairs]
    others = [n for n in theirs if n not in pairs]
    if len(ours) == len(theirs) == 1:
        return dict(zip(ours, theirs, strict=True))
    alike = {name: [n for n in others if _fit(ours[name], theirs[n])] for name in unpaired}
    pairs |= {name: candidates[0] for name, candidates in alike.items() if len(candidates) == 1}
    if len(ours) == len(theirs) == len(set(pairs.values())):
        return pairs
    names = (
        f"{', '.join(n) or 'none'} of the {of}"
        for n, of in ((unpaired, "ONNX model"), (others, "original"))
    )
    raise UnpairedError(f"{kind}s cannot be paired by name: {' with '.join(names)}")


def _fit(first: Declared, second: Declared) -> bool:
    """Return whether the two can be the same tensor; an undeclared type or size fits all."""
    dtype, dims = first
    other_dtype, other_dims = second
    if dtype and other_dtype and dtype != other_dtype:
        return False
    if dims is None or other_dims is None:
        return True
    pairs = list(zip(dims, other_dims, strict=False))
    known = [
        (a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int) and min(a, b) >= 0
    ]
    return len(dims) == len(other_dims) and all(a == b for a, b in known)


if __name__ == "__main__":
    main()
