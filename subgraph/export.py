"""The tensors of a case, a dump or a plain folder -> a folder in the device's form, and back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph import case
from subgraph import folder as folders
from subgraph.case import Case, Place
from subgraph.errors import InputError
from subgraph.form import Form, convert, raw_bytes
from subgraph.packing import unpack
from subgraph.tensors import PACKED, Record, load, np_dtype, to_bits

if TYPE_CHECKING:
    import numpy as np

SCHEMA = "subcut.export/1"


@dataclass(frozen=True)
class Item:
    """One stored array: which tensor, which file, and how it is to be read."""

    name: str
    file: str
    format: str
    dtype: str
    shape: tuple[int, ...]
    layout: str

    def read(self, folder: Path) -> np.ndarray[Any, Any]:
        """The array in its true type.

        Raises:
            InputError: the file is missing, damaged or of another size.
        """
        import numpy as np

        if self.format == "npy":
            return np.asarray(load(Record(self.name, "tensor", self.dtype, (self.shape,), (self.file,)), folder))
        try:
            raw = np.fromfile(folder / self.file, np.uint8)
            count = int(np.prod(self.shape, dtype=np.int64))
            flat = unpack(raw, self.dtype, count) if self.dtype in PACKED else raw.view(np_dtype(self.dtype))
            return flat.reshape(self.shape)
        except (OSError, ValueError) as e:
            raise InputError(f"cannot read {folder / self.file} as {self.dtype} {list(self.shape)}: {e}") from e


def export(source: Path, place: Place, formats: Sequence[str], form: Form) -> Case:
    """Write every tensor of `source` in another form below `place`, at the same relative paths.

    Raises:
        InputError: `source` holds no tensors. ResultExists: another result stands in the way.
    """
    if not source.exists():
        raise InputError(f"no folder {source}", "name a case, a dump, or a folder of .npy files")
    request = {"source": str(source), "formats": list(formats), "dtype": form.dtype, "layout": form.layout}
    case.require_free(place, request, {})
    base, items, left_out = _items(source)
    with folders.aside(place.path) as work:
        exported = [entry for item in items for entry in _export_one(item, base, work, formats, form, left_out)]
        words = ["subcut", "export", str(source), "--format", ",".join(formats)]
        words += ["--dtype", form.dtype] if form.dtype else []
        words += ["--layout", form.layout] if form.layout else []
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "source": {"folder": str(source)},
            "command": shlex.join(words),
            "request": request,
            "exported": exported,
            "left_out": left_out,
        }
        case.write_manifest(manifest, work)
    return Case(place.path, manifest)


def _items(source: Path) -> tuple[Path, list[Item], list[str]]:
    """(folder, what is in it, what cannot be exported and why)."""
    if source.is_file():
        return source.parent, [_bare(source, source.parent)], []
    manifest = case.read_manifest(source)
    if manifest is not None:
        items = list(_listed(manifest))
        if not items:
            raise InputError(
                f"{source} holds no tensors: it was cut without a capture", "cut again without --no-capture"
            )
        return source, items, []
    files = sorted(p for p in source.rglob("*.npy") if p.is_file())
    headless = [f"{p.name}: a .bin without a manifest has no type" for p in sorted(source.rglob("*.bin"))]
    if not files:
        raise InputError(f"no tensors in {source}", "name a case, a dump, or a folder of .npy files")
    return source, [_bare(p, source) for p in files], headless


def _listed(manifest: dict[str, Any]) -> Iterator[Item]:
    for tensor in (t for role in ("inputs", "outputs", "dump_data", "tensors") for t in manifest.get(role, ())):
        for stored in tensor["samples"]:
            for f in stored["files"]:
                if f["format"] == "npy":
                    yield Item(tensor["name"], f["file"], "npy", f["dtype"], tuple(f["shape"]), "NCHW")
    for f in manifest.get("exported", ()):
        yield Item(f["name"], f["file"], f["format"], f["dtype"], tuple(f["shape"]), f["layout"] or "NCHW")


def _bare(path: Path, base: Path) -> Item:
    """A .npy that nobody describes; its own header says what it is."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise InputError(f"cannot read {path}: {e}", "is it a .npy file without Python objects?") from e
    dtype = "string" if array.dtype.kind == "U" else str(array.dtype)
    return Item(path.stem, path.relative_to(base).as_posix(), "npy", dtype, tuple(array.shape), "")


def _export_one(
    item: Item, base: Path, work: Path, formats: Sequence[str], form: Form, left_out: list[str]
) -> Iterator[dict[str, Any]]:
    import numpy as np

    if item.dtype == "string":
        left_out.append(f"{item.name}: texts have no other form")
        return
    opposite = {"NHWC": "NCHW", "NCHW": "NHWC"}.get(form.layout, "NCHW")
    array, loss, layout = convert(item.read(base), form, item.layout or opposite)
    dtype = form.dtype or item.dtype
    known = layout if form.layout or item.layout == "NHWC" else ""
    for kind in formats:
        target = Path(item.file).with_suffix(f".{kind}")
        (work / target).parent.mkdir(parents=True, exist_ok=True)
        if kind == "npy":
            np.save(work / target, to_bits(array, dtype), allow_pickle=False)
        else:
            (work / target).write_bytes(raw_bytes(array, dtype))
        yield {
            "name": item.name,
            "file": target.as_posix(),
            "format": kind,
            "dtype": dtype,
            "shape": list(array.shape),
            "layout": known,
            "loss": loss.text if loss else "",
        }
