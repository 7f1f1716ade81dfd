"""Folders of .pt and .pth files of torch.save: tensors, and dicts and lists of them; never
unpickled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from subgraph.recordings.dump_files import ZIP, Files
from subgraph.recordings.dumps import NONE, TYPED, DumpEntry, DumpHints, _npy, _torch
from subgraph.storage.folders import make_safe_name

ENDS = (".pt", ".pth")
plain = _npy.plain


def detect(files: Files) -> int:
    """Detect the format by the end .pt or .pth."""
    return TYPED if files.ending(*ENDS) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield the arrays of a file. A lone tensor has the file's name; those of a dict have their
    keys."""
    for file in files.ending(*ENDS):
        stem = file.rpartition(".")[0]
        if files.head(file, 4) != ZIP:
            missing = f"no archive, as torch before 1.6 wrote them, or no .pt: {_torch.SAVE_AS_NPY}"
            yield DumpEntry(file, dtype="", tensor=stem.rpartition("/")[2], missing=missing)
            continue
        for key, tensor in _torch.read_tensors(files, file).items():
            side, _, base = stem.rpartition("/") if not key else (stem, "", key)
            load = partial(_torch.read_array, files, file, tensor)
            path = f"{stem}/{make_safe_name(key)}" if key else stem
            yield DumpEntry(
                file, load, tensor.dtype, tensor.shape, tensor=base, side=side, stem=path
            )
