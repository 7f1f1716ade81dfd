"""A region that a person runs on a device -> folders that say what to run, and where its outputs
go.

todo/3/           a case as `subcut cut` makes it: model.onnx, inputs/, outputs/ (the reference's),
repro.py, manifest
    TODO.txt      what to run, and what to bring back
    from_device/  the outputs go here, named as in outputs/: NAME.npy or NAME.bin
todo/3-2/         the same for samples that need a cut of their own
"""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subgraph.cases import case, write_case
from subgraph.cases.case import ResultPlace
from subgraph.cases.layout import FROM_DEVICE, TODO_TXT
from subgraph.errors import UsageError
from subgraph.graph.region import Region
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds
from subgraph.storage import folders
from subgraph.storage.convert import FORMATS, TensorFormat, formats
from subgraph.storage.tensors import shape_text
from subgraph.text import clean, count
from subgraph.trials.reference_model import ReferenceModel

log = logging.getLogger("subcut")

BY_HAND = "by_hand"  # key of a task's entry in the manifest of its folder


@dataclass(frozen=True)
class TaskFormat:
    """The form of the inputs: kinds of files, and the element type and layout of .bin files."""

    formats: tuple[str, ...] = FORMATS
    form: TensorFormat = field(default_factory=TensorFormat)

    @classmethod
    def parse(cls, words: str) -> TaskFormat:
        """
        >>> TaskFormat.parse("bin:float16:NHWC").form
        TensorFormat(dtype='float16', layout='NHWC')

        Raises:
            UnknownName, UsageError: a word is unknown.
        """
        kinds, _, rest = words.partition(":")
        file_formats = formats(kinds)
        if not file_formats:
            raise UsageError(
                f"--export {words}: expected FORMAT[:DTYPE][:LAYOUT]",
                "--export bin:float16:NHWC",
                code="option.malformed",
            )
        if rest and "bin" not in file_formats:
            raise UsageError(
                f"--export {words}: .npy files hold the true values",
                "--export bin:float16:NHWC",
                code="manual.export-npy",
            )
        return cls(file_formats, TensorFormat.parse(rest))

    @property
    def words(self) -> str:
        """The words that `parse` reads."""
        return ":".join(filter(None, (",".join(self.formats), self.form.dtype, self.form.layout)))


@dataclass(frozen=True)
class Task:
    """A region to be run by hand, on all samples.

    Attributes:
        key: digest of everything that the result depends on.
        feeds: values fed instead of reference values; None for reference values.
        groups: samples that one cut can serve.
        run: which of several runs of the region, from 0.
    """

    key: str
    region: Region
    feeds: Feeds | None
    groups: tuple[tuple[int, ...], ...]
    run: int = 0


@dataclass(frozen=True)
class TaskEntry:
    """A task in the manifest of its folder; `of` folders, this one for the samples at these
    positions."""

    key: str
    number: int
    of: int
    samples: Sequence[int]


def is_complete(todo: Path, number: int, key: str) -> bool:
    """Are all files there that `write_task` made for this task?"""
    folders_ = folders_of(todo, number)
    manifests = [case.read_manifest(folder) for folder in folders_]
    first = manifests[0]
    if (
        first is None
        or first.get(BY_HAND, {}).get("key") != key
        or len(manifests) != first[BY_HAND]["of"]
    ):
        return False
    return all(
        m and all((folder / f).is_file() for f in m["files"])
        for folder, m in zip(folders_, manifests, strict=True)
    )


def folders_of(todo: Path, number: int) -> list[Path]:
    """The folders of a task, one per cut."""
    cuts = [todo / str(number)]
    while (further := todo / f"{number}-{len(cuts) + 1}").is_dir():
        cuts.append(further)
    return cuts


def write_task(
    model: ReferenceModel,
    task: Task,
    number: int,
    todo: Path,
    task_format: TaskFormat,
    feeding: Feeding,
) -> None:
    """Write the folders of a task. Files in the `from_device` of an earlier version stay.

    Raises:
        ModelError: the reference cannot run the region. OutputError: a folder cannot be written.
    """
    graph = model.graph
    region = task.region
    request = write_case.CaseRequest.of_nodes(
        graph,
        region.nodes,
        feeding,
        freeze=model.freeze,
        formats=task_format.formats,
        tensor_format=task_format.form,
    )
    with folders.scratch(todo) as aside:
        place = ResultPlace(aside, str(number))
        cases = write_case.write_region(
            graph, region, request, place, model.reference, _values(model, task)
        )
        for k, written in reversed(list(enumerate(cases))):
            folder = todo / written.path.name
            manifest = written.manifest
            with folders.aside(folder) as work:
                for file in written.path.iterdir():
                    file.rename(work / file.name)
                (work / TODO_TXT).write_text(
                    _todo_text(manifest, number, task.run), encoding="utf-8"
                )
                entry = TaskEntry(task.key, number, len(cases), task.groups[k])
                case.write_manifest(manifest | {BY_HAND: entry}, work)
                (work / FROM_DEVICE).mkdir()
                if (folder / FROM_DEVICE).is_dir():
                    shutil.copytree(folder / FROM_DEVICE, work / FROM_DEVICE, dirs_exist_ok=True)


def _values(model: ReferenceModel, task: Task) -> ReferenceValues:
    """The session's values; of a task that is fed different values, these and what the reference
    makes of them."""
    if task.feeds is None:
        return model.values
    outputs = model.run_on_reference(task.region, task.feeds)
    values = copy.copy(model.values)
    values.records = [
        {**known, **fed, **made}
        for known, fed, made in zip(values.records, task.feeds, outputs, strict=True)
    ]
    return values


def files_of(stored: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The files of one kind, npy or bin, of a sample's tensor in a manifest."""
    return [f for f in stored["files"] if f["format"] == kind]


def remove(folder: Path) -> bool:
    """Remove a task's folder with its outputs; False if it holds any other file, and stays."""
    manifest = case.read_manifest(folder)
    inside = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
    foreign = {
        f
        for f in inside - set(manifest["files"] if manifest else ())
        if not f.startswith(f"{FROM_DEVICE}/")
    }
    if foreign:
        log.info("%s is left: it holds %s, which subcut did not write", folder, sorted(foreign)[0])
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


# ------------------------------------------------------------ text


def _todo_text(manifest: Mapping[str, Any], number: int, run: int) -> str:
    """Instructions for somebody who has only this folder."""
    lines = [f"{number}: {span_of(manifest)}", ""]
    lines += (
        [f"Run {run + 1} of this model: run it anew, do not copy the outputs of another run.", ""]
        if run
        else []
    )
    lines += ["Run model.onnx on the device, with"]
    lines += [f"  {line}" for line in _file_lines(manifest["inputs"])]
    lines += ["", f"and put what it gives into {FROM_DEVICE}/, without a header (.bin) or as .npy:"]
    lines += [
        f"  {line.replace('outputs/', f'{FROM_DEVICE}/', 1)}"
        for line in _file_lines(manifest["outputs"])
    ]
    lines += ["", "Then, where subcut was started:", "  subcut manual take"]
    lines += [
        f"or, without outputs: subcut manual good {number}, bad {number}, or skip {number} (it"
        " cannot be run)"
    ]
    return "".join(f"{clean(line)}\n" for line in lines)


def span_of(manifest: Mapping[str, Any]) -> str:
    """`conv1 … prob, 229 nodes`."""
    nodes = manifest["region"]["nodes"]
    span = " … ".join(dict.fromkeys((nodes[0]["name"], nodes[-1]["name"])))
    return f"{span}, {count(len(nodes), 'node')}"


def _file_lines(tensors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line per file of each tensor: the .bin files if there are any, else the .npy files."""
    for tensor in tensors:
        for stored in tensor["samples"]:
            for f in files_of(stored, "bin") or files_of(stored, "npy"):
                layout = f" {f['layout']}" if f["layout"] and len(f["shape"]) > 3 else ""
                yield f"{f['file']}   {f['dtype']}  {shape_text(tuple(f['shape']))}{layout}"
