"""A region that a person runs on a device -> folders with the task, for its outputs.

todo/3/           a case as `subcut cut` writes it, with the reference's outputs/
    TODO.txt      what to run, and what to bring back
    from_device/  the outputs go here, named as in outputs/: NAME.npy or NAME.bin
todo/3-2/         the same for samples that need a separate cut
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from subgraph.cases import case, write_case
from subgraph.cases.case import NodeEntry, RegionEntry, ResultPlace, StoredTensor, TensorEntry
from subgraph.cases.layout import FROM_DEVICE, TODO_TXT
from subgraph.documents import from_json
from subgraph.errors import UsageError
from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.run_result import Feeds
from subgraph.storage import folders
from subgraph.storage.convert import FORMATS, StoredFile, TensorFormat, parse_formats
from subgraph.storage.tensors import format_shape
from subgraph.text import clean, count
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import Strings, frozen, frozen_keywords


@frozen
class TaskFormat:
    """The form of the inputs.

    Attributes:
        formats: the kinds of files, npy or bin.
        form: the element type and the layout of .bin files.
    """

    formats: Strings = FORMATS
    form: TensorFormat = field(default_factory=TensorFormat)

    @classmethod
    def parse(cls, words: str) -> TaskFormat:
        """Parse the argument of `--export`.

        >>> TaskFormat.parse("bin:float16:NHWC").form
        TensorFormat(dtype='float16', layout='NHWC')

        Raises:
            UnknownName, UsageError: a word is unknown.
        """
        kinds, _, form = words.partition(":")
        file_formats = parse_formats(kinds)
        if not file_formats:
            raise UsageError(
                f"--export {words}: expected FORMAT[:DTYPE][:LAYOUT]",
                "--export bin:float16:NHWC",
                code="option.malformed",
            )
        if form and "bin" not in file_formats:
            raise UsageError(
                f"--export {words}: .npy files hold the true values",
                "--export bin:float16:NHWC",
                code="manual.export-npy",
            )
        return cls(file_formats, TensorFormat.parse(form))

    @property
    def words(self) -> str:
        """The words that `parse` reads."""
        return ":".join(filter(None, (",".join(self.formats), self.form.dtype, self.form.layout)))


@frozen
class Task:
    """A region to be run by hand, on all samples.

    Attributes:
        key: digest of everything that the result depends on.
        model: the model of the region; for a rewriting, the rewritten model.
        region: the region.
        feeds: values fed instead of reference values; None for reference values.
        how: how the full model is rewritten, in words; "" if it is not.
    """

    key: str
    model: ReferenceModel
    region: Region
    feeds: Feeds | None = None
    how: str = ""


@frozen
class TaskEntry:
    """The entry of a task in the manifest of each of its folders.

    Attributes:
        key: the key of the task.
        number: the number of the task.
        of: how many folders the task has.
        samples: positions of the samples that this folder is for.
    """

    key: str
    number: int
    of: int
    samples: Sequence[int]


@frozen_keywords
class WrittenTask(case.CaseManifest):
    """The manifest of a case, with the task that it is of."""

    by_hand: TaskEntry


@frozen_keywords
class TaskManifest(case.Manifest):
    """The manifest of a folder of a task; a folder without an entry is not a task's."""

    by_hand: TaskEntry | None = None


def format_span(region: RegionEntry | None) -> str:
    """Return `conv1 … prob, 229 nodes`."""
    nodes: Sequence[NodeEntry] = region.nodes if region else ()
    ends = dict.fromkeys(node.name for node in (*nodes[:1], *nodes[-1:]))
    return f"{' … '.join(ends)}, {count(nodes, 'node')}"


def read_task(folder: Path) -> TaskManifest | None:
    """Read the manifest in a folder of a task; return None if it is gone.

    Raises:
        InputError: the manifest is damaged.
    """
    manifest = case.read_plain_manifest(folder)
    if manifest is None:
        return None
    return from_json(TaskManifest, manifest, str(folder / case.MANIFEST))


def list_folders(todo: Path, number: int) -> list[Path]:
    """Return the folders of a task, one per cut."""
    cuts = [todo / str(number)]
    while (further := todo / f"{number}-{len(cuts) + 1}").is_dir():
        cuts.append(further)
    return cuts


def is_complete(todo: Path, number: int, key: str) -> bool:
    """Return whether all files exist that `write_task` wrote for this task."""
    cuts = list_folders(todo, number)
    manifests = [read_task(folder) for folder in cuts]
    entry = manifests[0].by_hand if manifests[0] else None
    if entry is None or entry.key != key or entry.of != len(cuts):
        return False
    return all(
        manifest and all((folder / file).is_file() for file in manifest.files)
        for folder, manifest in zip(cuts, manifests, strict=True)
    )


def write_task(
    task: Task,
    number: int,
    todo: Path,
    task_format: TaskFormat,
    feeding: Feeding,
) -> None:
    """Write the folders of a task. Files in the `from_device` of an earlier version stay.

    Raises:
        ModelError: the reference cannot run the region.
        OutputError: a folder cannot be written.
    """
    region = task.region
    model = task.model
    request = write_case.CaseRequest.make_for_nodes(
        model.graph,
        region.nodes,
        feeding,
        freeze=model.freeze,
        formats=task_format.formats,
        tensor_format=task_format.form,
    )
    groups = [samples for samples, _ in model.sample_groups(region, task.feeds)]
    with folders.make_scratch(todo) as aside:
        place = ResultPlace(aside, str(number))
        values = model.values
        if task.feeds is not None:  # the session's values, and the reference's outputs for these
            outputs = model.run_on_reference(region, task.feeds)
            values = copy.copy(values)
            values.records = [dict(sample) for sample in model.make_values(task.feeds, outputs)]
        cases = write_case.write_region(
            model.graph, region, request, place, model.reference, values
        )
        for written, samples in reversed(list(zip(cases, groups, strict=True))):
            folder = todo / written.path.name
            entry = TaskEntry(task.key, number, len(cases), samples)
            with folders.write_aside(folder) as work:
                for file in written.path.iterdir():
                    file.rename(work / file.name)
                text = _write_instructions(written.manifest, number)
                (work / TODO_TXT).write_text(text, encoding="utf-8")
                case.write_manifest(WrittenTask(**vars(written.manifest), by_hand=entry), work)
                (work / FROM_DEVICE).mkdir()
                if (folder / FROM_DEVICE).is_dir():
                    shutil.copytree(folder / FROM_DEVICE, work / FROM_DEVICE, dirs_exist_ok=True)


def list_files_of_kind(stored: StoredTensor, kind: str) -> list[StoredFile]:
    """Return the files of one kind, npy or bin, of a tensor in a manifest."""
    return [file for file in stored.files if file.format == kind]


def remove(folder: Path) -> bool:
    """Remove a task's folder with its outputs; return False if it holds any other file, and
    stays."""
    manifest = read_task(folder)
    listed = set(manifest.files) if manifest else set()
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
    foreign = sorted(file for file in files - listed if not file.startswith(f"{FROM_DEVICE}/"))
    if foreign:
        log.info("%s is left: it holds %s, which subcut did not write", folder, foreign[0])
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


# ------------------------------------------------------------ text


def _write_instructions(manifest: case.CaseManifest, number: int) -> str:
    """Write instructions for somebody who has only this folder."""
    lines = [f"{number}: {format_span(manifest.region)}", ""]
    lines += ["Run model.onnx on the device, with"]
    lines += [f"  {line}" for line in _iter_file_lines(manifest.inputs)]
    lines += ["", f"and put its outputs into {FROM_DEVICE}/, without a header (.bin) or as .npy:"]
    for line in _iter_file_lines(manifest.outputs):
        lines.append(f"  {line.replace('outputs/', f'{FROM_DEVICE}/', 1)}")
    lines += ["", "Then, where subcut was started:", "  subcut manual take"]
    lines += [
        f"or, without outputs: subcut manual good {number}, bad {number}, or skip {number} (it"
        " cannot be run)"
    ]
    return "".join(f"{clean(line)}\n" for line in lines)


def _iter_file_lines(tensors: Sequence[TensorEntry]) -> Iterator[str]:
    """Yield a line per file of each tensor: the .bin files if there are any, else the .npy
    files."""
    for tensor in tensors:
        for stored in tensor.samples:
            for file in list_files_of_kind(stored, "bin") or list_files_of_kind(stored, "npy"):
                layout = f" {file.layout}" if file.layout and len(file.shape) > 3 else ""
                yield f"{file.file}   {file.dtype}  {format_shape(file.shape)}{layout}"
