"""A question put to a device by hand -> folders that say what is to be run, and where its outputs go.

todo/3/           a case as `subcut cut` makes it: model.onnx, inputs/, outputs/ (the reference's), repro.py, manifest
    TODO_TXT.txt      what to run, and what to bring back
    from_device/  where that goes: each output as in outputs/, NAME.npy or NAME.bin
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
from subgraph.storage.convert import FORMATS, LAYOUTS, TensorFormat, convert, formats, raw_bytes
from subgraph.storage.tensors import Record, load, shape_text
from subgraph.text import clean, count
from subgraph.trials.trial import Trials

log = logging.getLogger("subcut")

OURS = "by_hand"  # the key of a manifest that says whose question a folder is


@dataclass(frozen=True)
class TaskFormat:
    """In which forms the inputs are handed out: kinds of files, and the element type and layout of the .bin ones."""

    formats: tuple[str, ...] = FORMATS
    form: TensorFormat = field(default_factory=TensorFormat)

    @classmethod
    def parse(cls, words: str) -> TaskFormat:
        """
        >>> TaskFormat.parse("bin:float16:NHWC").form
        TensorFormat(dtype='float16', layout='NHWC')

        Raises:
            UnknownName, UsageError: a word that means nothing.
        """
        kinds, *rest = words.split(":")
        known = formats(kinds)
        layouts = [w.upper() for w in rest if w.upper() in LAYOUTS]
        dtypes = [w for w in rest if w and w.upper() not in LAYOUTS]
        if not known or len(layouts) > 1 or len(dtypes) > 1:
            raise UsageError(f"--export {words}: expected FORMAT[:DTYPE][:LAYOUT]", "--export bin:float16:NHWC")
        if rest and "bin" not in known:
            raise UsageError(f"--export {words}: .npy files hold the true values", "--export bin:float16:NHWC")
        return cls(known, TensorFormat(*dtypes[:1] or ("",), *layouts[:1]))

    @property
    def words(self) -> str:
        """As `parse` reads them."""
        return ":".join(filter(None, (",".join(self.formats), self.form.dtype, self.form.layout)))


@dataclass(frozen=True)
class Task:
    """A region to be run by hand, on all samples.

    Attributes:
        key: what its answer depends on.
        feeds: what it is fed in the place of reference values; None for those.
        groups: samples that one cut can serve.
    """

    key: str
    region: Region
    feeds: Feeds | None
    groups: tuple[tuple[int, ...], ...]


def is_there(todo: Path, number: int, key: str) -> bool:
    """Does all that `write` made for this question stand there?"""
    first = case.read_manifest(todo / str(number))
    if first is None or first.get(OURS, {}).get("key") != key:
        return False
    manifests = [case.read_manifest(p) for p in places(todo, number)]
    whole = len(manifests) == first[OURS]["of"] and None not in manifests
    return whole and all(
        (p / f).is_file() for p, m in zip(places(todo, number), manifests, strict=True) if m for f in m["files"]
    )


def places(todo: Path, number: int) -> list[Path]:
    """The folders of one question, one per cut."""
    found, more = [todo / str(number)], 2
    while (todo / f"{number}-{more}").is_dir():
        found.append(todo / f"{number}-{more}")
        more += 1
    return found


def write(trials: Trials, asked: Task, number: int, todo: Path, export: TaskFormat, feeding: Feeding) -> None:
    """The folders of a question. What somebody put into `from_device` of an earlier one stays.

    Raises:
        ModelError: the reference cannot run it. OutputError: it cannot be written.
    """
    graph, region = trials.graph, asked.region
    request = write_case.CaseRequest.of_nodes(
        graph, region.nodes, feeding, freeze=trials.freeze, formats=export.formats, tensor_format=export.form
    )
    with folders.scratch(todo) as aside:
        values = _values(trials, asked)
        made = write_case.write_region(
            graph, region, request, ResultPlace(aside, str(number)), trials.reference, values
        )
        for k, one in reversed(list(enumerate(made))):
            place = todo / one.path.name
            with folders.aside(place) as work:
                for item in one.path.iterdir():
                    item.rename(work / item.name)
                _keep_integers(one.manifest, work, export.form)
                mine = {"key": asked.key, "number": number, "of": len(made), "samples": list(asked.groups[k])}
                (work / TODO_TXT).write_text(_todo(one.manifest, number), encoding="utf-8")
                case.write_manifest(one.manifest | {OURS: mine}, work)
                (work / FROM_DEVICE).mkdir()
                if (place / FROM_DEVICE).is_dir():
                    shutil.copytree(place / FROM_DEVICE, work / FROM_DEVICE, dirs_exist_ok=True)


def _values(trials: Trials, asked: Task) -> ReferenceValues:
    """Those of the session; where a region is fed otherwise, with what it then should give."""
    if asked.feeds is None:
        return trials.values
    right = trials.run_on_reference(asked.region, asked.feeds)
    own = copy.copy(trials.values)
    own.records = [{**known, **fed, **given} for known, fed, given in zip(own.records, asked.feeds, right, strict=True)]
    return own


def _keep_integers(manifest: dict[str, Any], work: Path, form: TensorFormat) -> None:
    """Indices and masks are no numbers of the device's precision: their .bin keeps its type, but for the layout."""
    if "float" not in form.dtype:
        return
    for tensor in (*manifest["inputs"], *manifest["outputs"]):
        if "float" in tensor["dtype"] or tensor["dtype"] == "string":
            continue
        manifest["losses"] = [line for line in manifest["losses"] if not line.startswith(f"{tensor['name']} as ")]
        for stored in tensor["samples"]:
            for file, raw in zip(files_of(stored, "npy"), files_of(stored, "bin"), strict=True):
                record = Record(tensor["name"], "tensor", file["dtype"], (tuple(file["shape"]),), (file["file"],))
                array: Any = load(record, work)
                array, _, _ = convert(array, TensorFormat("", form.layout))
                (work / raw["file"]).write_bytes(raw_bytes(array, file["dtype"]))
                raw |= {"dtype": file["dtype"], "shape": list(array.shape)}


def files_of(stored: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The files of one kind, npy or bin, of a sample's tensor in a manifest."""
    return [f for f in stored["files"] if f["format"] == kind]


def drop(place: Path) -> bool:
    """Remove a hand-out with what came back into it; not where it holds anything else."""
    manifest = case.read_manifest(place)
    inside = {p.relative_to(place).as_posix() for p in place.rglob("*") if not p.is_dir()}
    foreign = {f for f in inside - set(manifest["files"] if manifest else ()) if not f.startswith(f"{FROM_DEVICE}/")}
    if foreign:
        log.info("%s is left: it holds %s, which subcut did not write", place, sorted(foreign)[0])
        return False
    shutil.rmtree(place, ignore_errors=True)
    return True


# ---------------------------------------------------------------------------------------------------- words


def _todo(manifest: Mapping[str, Any], number: int) -> str:
    """What to run, for somebody who has only this folder."""
    lines = [f"{number}: {ends(manifest)}", "", "Run model.onnx on the device, with"]
    lines += [f"  {line}" for line in _lines(manifest["inputs"])]
    lines += ["", f"and put what it gives into {FROM_DEVICE}/, without a header (.bin) or as .npy:"]
    lines += [f"  {line.replace('outputs/', f'{FROM_DEVICE}/', 1)}" for line in _lines(manifest["outputs"])]
    lines += ["", "Then, where subcut was started:", "  subcut manual take"]
    lines += [f"or, without outputs: subcut manual good {number}, bad {number}, or skip {number} (it cannot be run)"]
    return "".join(f"{clean(line)}\n" for line in lines)


def ends(manifest: Mapping[str, Any]) -> str:
    """`conv1 … prob, 229 nodes`."""
    nodes = manifest["region"]["nodes"]
    span = " … ".join(dict.fromkeys((nodes[0]["name"], nodes[-1]["name"])))
    return f"{span}, {count(len(nodes), 'node')}"


def _lines(tensors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each file of each tensor: the .bin, where there is one, else the .npy."""
    for tensor in tensors:
        for stored in tensor["samples"]:
            raw, plain = files_of(stored, "bin"), files_of(stored, "npy")
            for f in raw or plain:
                layout = f" {f['layout']}" if f["layout"] and len(f["shape"]) > 3 else ""
                yield f"{f['file']}   {f['dtype']}  {shape_text(tuple(f['shape']))}{layout}"
