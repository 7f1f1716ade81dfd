"""`log.txt`: what was done, a line each, in the words of MindStudio's dump log; the only file with times in it.

A line about a file has the time at which its bytes were written; a layer that of the model which holds it.
"""

from __future__ import annotations

import time
from pathlib import Path

from subgraph.cases.case import CaseManifest, TensorEntry
from subgraph.cases.layout import LOG, MODEL
from subgraph.storage.tensors import shape_text
from subgraph.text import clean


def write_log(manifest: CaseManifest, work: Path) -> None:
    """Write `log.txt` of the case in `work`, which holds its model and tensors already."""
    model, now = (work / MODEL).stat().st_mtime, time.time()
    lines = [(model, f"Command: {manifest.command}"), (model, f"Model File: {manifest.source.file}")]
    roles = (manifest.inputs, "Input File"), (manifest.outputs, "Output File"), (manifest.dump_data or (), "Dump Layer")
    for tensors, title in roles:
        for tensor in tensors:
            lines += _tensor_lines(f"{title}: {clean(tensor.name)}", tensor, work) or [
                (model, f"{title}: {clean(tensor.name)}")
            ]
    recorded = manifest.recording.files if manifest.recording else {}
    lines += [(now, f"Recorded: {clean(name)} {clean(file)}") for name, file in recorded.items()]
    lines += [(model, f"Export Layer: {clean(node.name)}") for node in manifest.region.nodes]
    lines += [(model, f"Export Constant: {clean(node.name)}") for node in manifest.region.pulled]
    lines += [(now, f"Loss: {clean(loss)}") for loss in manifest.losses or ()]
    lines.append((now, f"Check: {manifest.check.status} {manifest.check.what}".rstrip()))
    text = "".join(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} {line}\n" for at, line in lines)
    (work / LOG).write_text(text, encoding="utf-8")


def _tensor_lines(head: str, tensor: TensorEntry, work: Path) -> list[tuple[float, str]]:
    """A line per file, with type and shape (several of a sequence)."""
    return [
        ((work / f.file).stat().st_mtime, f"{head} {s.dtype} {', '.join(map(shape_text, s.shapes))} {f.file}")
        for s in tensor.samples
        for f in s.files
    ]
