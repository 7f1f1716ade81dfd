"""Region -> case folder: capture its tensors, cut the model, check the cut, write model, tensors
and manifest.

Text reports and `--json` are rendered from the manifest; nothing is computed twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from subgraph import system
from subgraph.cases import case
from subgraph.cases.case import (
    Case,
    CaseManifest,
    CheckResult,
    NodeEntry,
    RecordingEntry,
    RegionEntry,
    ResultPlace,
    TensorEntry,
)
from subgraph.cases.check import REFUSED, check, find_type_problem, write_at_opset
from subgraph.cases.layout import LOG, MODEL, REPRO, REPRO_SCRIPT, list_sample_names, place_name
from subgraph.cases.short_values import list_case
from subgraph.documents import json_key, part, to_json
from subgraph.errors import ModelError
from subgraph.graph import protobuf, region as regions
from subgraph.graph.cut import Cut, cut_region, find_structure_problem, list_freezable
from subgraph.graph.graph import Graph
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.region import Region
from subgraph.graph.walks import find_producer_label
from subgraph.iterables import flatten
from subgraph.origins import load
from subgraph.runtime.capture import Captured, capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding, FeedingOptions, Sample
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.storage.tensors import Record, Records, format_shape
from subgraph.text import clean
from subgraph.types import StringMap, Strings, frozen
from subgraph.version import __version__

OF_MODEL = "the full model's values"
OF_RECORDING = "the reference's outputs for the recorded inputs"


@frozen
class CaseRequest:
    """All settings on which a case depends, in addition to the model.

    Two equal requests result in the same bytes.
    """

    start: Strings
    end: Strings
    fed: FeedingOptions = part(default_factory=FeedingOptions)
    formats: Strings = ("npy", "bin")
    tensor_format: TensorFormat = json_key("form", default_factory=TensorFormat)
    dump_all: bool = False
    capture: bool = True
    checker: bool = False
    dynamic: bool = False
    freeze: bool = True
    recorded: str = ""
    stamp: bool = False
    as_caffe: Strings = ()  # the prototxt, and its weights if they were named
    target_opset: int = 0

    @classmethod
    def make_for_nodes(
        cls, graph: Graph, nodes: Sequence[int], feeding: Feeding, *, freeze: bool, **options: Any
    ) -> CaseRequest:
        """Return a request for the region of these nodes, named by the first and the last;
        `options`: further fields."""
        start, end = (tuple(map(graph.label, some)) for some in (nodes[:1], nodes[-1:]))
        return cls(start, end, feeding.options, freeze=freeze, **options)

    @property
    def feeding(self) -> Feeding:
        """The inputs of the model."""
        return Feeding(**vars(self.fed))

    def format_command(self, model: str) -> str:
        """Return the command line of this request, for a model's file."""
        arguments = ["subcut", "cut", model]
        for flag, values in (("--start", self.start), ("--end", self.end), ("-i", self.fed.inputs)):
            arguments += flatten((flag, value) for value in values)
        for name, shape in self.fed.shapes.items():
            arguments += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
        plain = CaseRequest(self.start, self.end)._list_settings()
        arguments += flatten(
            (option, str(value))
            for option, value in self._list_settings().items()
            if value != plain[option]
        )
        for flag, on in (
            ("--bgr", self.fed.picture.bgr),
            ("--dump=all", self.dump_all and not self.recorded),
            ("--no-capture", not self.capture),
            ("--check", self.checker),
            ("--dynamic", self.dynamic),
            ("--no-freeze", not self.freeze and not self.dynamic),
            ("--stamp", self.stamp),
        ):
            if on:
                arguments.append(flag)
        return system.join(arguments)

    def _list_settings(self) -> dict[str, object]:
        """Return the values of the options with a value."""
        return {
            "--seed": self.fed.seed,
            "--mean": ",".join(map(str, self.fed.picture.mean)),
            "--scale": ",".join(map(str, self.fed.picture.scale)),
            "--format": ",".join(self.formats),
            "--dtype": self.tensor_format.dtype,
            "--layout": self.tensor_format.layout,
            "--recorded": self.recorded,
            "--as": "caffe" if self.as_caffe else "",
            "--target-opset": self.target_opset,
        }


class RecordedSource(Protocol):
    """A device's values of a region's tensors, the recording that they come from, and what was
    fed."""

    @property
    def samples(self) -> Sequence[Sample]: ...

    @property
    def recording(self) -> RecordingEntry: ...

    def copy_to(self, stems: StringMap, folder: Path) -> list[Captured]:
        """Copy the values, as `ReferenceValues.copy_to` does."""

    def dump(self, stems: StringMap, folder: Path) -> list[dict[str, Record]]:
        """Write the recorded tensors of the region's nodes into `folder`; return them per sample,
        with absolute paths."""


def extract(
    graph: Graph,
    request: CaseRequest,
    place: ResultPlace,
    reference: Reference | None,
    feeding: Feeding | None = None,
) -> list[Case]:
    """Cut a region into case folders. A `place` without a name is named after the region.

    Samples whose boundary tensors have other shapes, or other values of frozen tensors, need a
    separate cut: each group of equal samples has a folder.

    Args:
        graph: The model.
        request: The region and settings.
        place: The folder of the case.
        reference: The runtime; None to run nothing.
        feeding: The inputs of the model; None for those of the request.

    Raises:
        ResultExists: Another result is in the way.
        SubcutError: There is no such region, or it cannot be captured or cut.
    """
    region, place = find_place(graph, request, place)
    if reference is None:
        cut = cut_region(graph, region, dynamic=request.dynamic)
        with folders.write_aside(place.path) as work:
            _write_model(cut, request, work)
            converted = write_at_opset(cut, request.target_opset, work)
            manifest = replace(_make_manifest(cut, request), target_opset=converted)
            if problem := find_type_problem(cut):
                manifest = replace(
                    manifest, check=CheckResult(REFUSED, f"this cut does not load: {problem}")
                )
            return [_finish(manifest, work, place.path)]
    return write_region(graph, region, request, place, reference, feeding=feeding)


def find_place(
    graph: Graph, request: CaseRequest, place: ResultPlace
) -> tuple[Region, ResultPlace]:
    """Return the region to cut, and the free place of its case.

    Raises: as `extract`.
    """
    region = regions.find_region(graph, request.start, request.end)
    place = place if place.name else replace(place, name=place_name(region))
    reads = [graph.path, *([Path(request.recorded)] if request.recorded else [])]
    return region, case.find_free_place(place, case.describe_source(graph), reads)


def write_region(
    graph: Graph,
    region: Region,
    request: CaseRequest,
    place: ResultPlace,
    reference: Reference,
    values: ReferenceValues | None = None,
    device: RecordedSource | None = None,
    feeding: Feeding | None = None,
) -> list[Case]:
    """Cut a known region as `extract` does; the caller has made sure that the place is free.

    `values`: of a session, so that the folder holds exactly what its trials were fed; else they are
    captured now. `device`: the same from a recording; the tensors inside go to `dump_data`.
    """
    source = device or values
    names = region.boundary
    if request.dump_all:
        names = (*names, *graph.iter_outputs(region.nodes))
    stems = folders.make_safe_names(dict.fromkeys(names))
    above = regions.find_upstream(graph, stems)
    feeding = feeding or request.feeding
    if source:
        samples = source.samples
    else:
        samples = feeding.plan(graph, list_needed_inputs(graph, above, names))
    with folders.make_scratch(place.parent) as aside:
        scratch = aside.resolve()
        if source:
            captured = source.copy_to(stems, scratch)
        else:
            captured = capture_samples(reference, graph, above, stems, samples, scratch)
        for k, sample in enumerate(captured):
            tensors = {
                name: value.rebase(scratch / str(k)) for name, value in sample.tensors.items()
            }
            captured[k] = replace(sample, tensors=tensors)
        dumped = device.dump(stems, scratch / "device") if device else [c.tensors for c in captured]
        recording = device.recording if device else None
        builder = CaseBuilder(
            graph,
            region,
            above,
            request,
            reference,
            scratch,
            samples,
            captured,
            stems,
            dumped,
            recording,
        )
        cases = [
            builder.build(place, number, group)
            for number, group in enumerate(_find_groups(region, captured, request))
        ]
    # Remove the folders that an earlier run wrote for more groups of samples.
    plain_request = to_json(request)
    number = len(cases)
    while (old := _number_place(place, number)).path.is_dir() and case.is_earlier(
        old, plain_request, case.describe_source(graph)
    ):
        shutil.rmtree(old.path)
        number += 1
    return cases


def _number_place(place: ResultPlace, number: int) -> ResultPlace:
    """Return the place of the group of this number: the first has the plain name, the second ends
    in `-2`."""
    if number == 0:
        return place
    return replace(place, name=f"{place.name}-{number + 1}")


def _find_groups(
    region: Region, captured: Sequence[Captured], request: CaseRequest
) -> list[list[int]]:
    """Return samples that one cut can serve: equal shapes at its inputs and equal values of the
    frozen tensors."""
    is_frozen = request.freeze and not request.dynamic
    groups: dict[object, list[int]] = {}
    for k, sample in enumerate(captured):
        shapes = [] if request.dynamic else [sample.tensors[n].shapes for n in region.inputs]
        frozen = list_freezable(region, [sample.tensors]) if is_frozen else ()
        files = flatten(sample.tensors[n].files for n in frozen)
        values = tuple(Path(file).read_bytes() for file in files)
        groups.setdefault((tuple(shapes), values), []).append(k)
    return list(groups.values())


@frozen
class CaseBuilder:
    """The values that all groups of samples share; `build` makes the folder of one group.

    Attributes:
        graph: The model.
        region: The region.
        above: The nodes that the reference runs.
        request: The settings.
        reference: The runtime.
        scratch: A folder with a folder per sample.
        samples: The inputs of the model.
        captured: The captured tensors per sample, with absolute paths.
        stems: The file stem of each tensor.
        dumped: The tensors per sample for `dump_data`, with absolute paths.
        recording: The recording that the case is cut from, if any.
    """

    graph: Graph
    region: Region
    above: Region
    request: CaseRequest
    reference: Reference
    scratch: Path
    samples: Sequence[Sample]
    captured: Sequence[Captured]
    stems: StringMap
    dumped: Sequence[Records]
    recording: RecordingEntry | None

    def build(self, place: ResultPlace, number: int, group: Sequence[int]) -> Case:
        """Return the folder of the samples `group`; those after the first are named `…-2`,
        `…-3`."""
        place = _number_place(place, number)
        if number:
            place = case.find_free_place(place, case.describe_source(self.graph), [self.graph.path])
        captured = [self.captured[k] for k in group]
        tensors = [c.tensors for c in captured]
        request = self.request
        options = {"dynamic": request.dynamic, "freeze": request.freeze}
        cut = cut_region(self.graph, self.region, tensors, self.scratch, **options)
        with folders.write_aside(place.path) as work:
            _write_model(cut, request, work)
            scratches = [self.scratch / str(k) for k in group]
            expected = OF_RECORDING if self.recording else OF_MODEL
            checked = partial(
                check,
                self.reference,
                cut,
                captured,
                scratches,
                rerun=self._rerun,
                expected=expected,
            )
            result = checked(work / MODEL)
            converted = write_at_opset(cut, request.target_opset, work, checked)
            numbers = list_case(tensors[0], cut.inputs, cut.outputs)  # files are moved then
            entries, losses = self._store(cut, group, work)
            manifest = replace(
                _make_manifest(cut, request),
                numbers=numbers,
                inputs=entries["inputs"],
                outputs=entries["outputs"],
                dump_data=entries.get("dump_data"),
                samples=[case.describe_sample(c) for c in captured],
                seed=request.fed.seed,
                reference=case.describe_reference(self.reference),
                above=len(self.above.nodes) - len(cut.region.nodes) - len(cut.region.pulled),
                losses=losses,
                check=result,
                recording=self.recording,
                target_opset=converted,
            )
            shutil.copyfile(REPRO_SCRIPT, work / REPRO)
            return _finish(manifest, work, place.path)

    def _rerun(self, k: int, into: Path) -> dict[str, Record]:
        """Run sample `k` a second time, to see whether the reference repeats itself."""
        names = {n: self.stems[n] for n in self.region.outputs}
        return capture_samples(
            self.reference, self.graph, self.above, names, [self.samples[k]], into
        )[0].tensors

    def _store(
        self, cut: Cut, group: Sequence[int], work: Path
    ) -> tuple[dict[str, list[TensorEntry]], list[str]]:
        """Put the tensors of each role into the result, in all formats; return their entries and
        what was lost."""
        request = self.request
        captured = [c.tensors for c in self.captured]
        roles: dict[str, tuple[Sequence[str], Sequence[Records]]]
        roles = {"inputs": (cut.inputs, captured), "outputs": (cut.outputs, captured)}
        if request.dump_all:
            produced = self.graph.iter_outputs(self.region.nodes)
            roles["dump_data"] = (
                [n for n in produced if all(n in self.dumped[k] for k in group)],
                self.dumped,
            )
        labels = list_sample_names([self.captured[k].label for k in group])
        losses = {}
        entries: dict[str, list[TensorEntry]] = {role: [] for role in roles}
        for role, (names, tensors) in roles.items():
            for name in names:
                stored = []
                for k, label in zip(group, labels, strict=True):
                    value = tensors[k][name]
                    target = f"{role}/{label}"
                    entry, lost = case.store(
                        value,
                        target,
                        work,
                        request.formats,
                        request.tensor_format,
                        keep=request.dump_all,
                    )
                    stored.append(entry)
                    # A tensor of a recording can have two roles, with different values.
                    losses.update(
                        dict.fromkeys(
                            f"{role}: {loss}" if self.recording else loss for loss in lost
                        )
                    )
                entries[role].append(case.describe_tensor(self.graph, name, stored))
        return entries, list(losses)


def _write_model(cut: Cut, request: CaseRequest, work: Path) -> None:
    metadata = cut.model.metadata_props
    own = [p for p in metadata if not p.key.startswith("subcut.")]  # a cut may be cut again
    del metadata[:]
    metadata.extend(own)
    for key, value in (
        ("subcut.source", cut.graph.path.name),
        ("subcut.source_sha256", cut.graph.skeleton.structure),
        ("subcut.start", ", ".join(cut.region.start)),
        ("subcut.end", ", ".join(cut.region.end)),
        ("subcut.version", __version__),
    ):
        metadata.add(key=key, value=value)
    if problem := find_structure_problem(cut.model):
        raise ModelError(
            f"the cut would be invalid: {problem}",
            f"subcut inspect {cut.graph.path}",
            code="cut.invalid",
        )
    cut.save(work / MODEL)
    load.write_own_format(work / MODEL, work)
    if request.as_caffe:
        from subgraph.origins.caffe import conversion as caffe

        nodes = {cut.graph.node_names[i] for i in (*cut.region.nodes, *cut.region.pulled)}
        caffe_model = caffe.find_model(Path(request.as_caffe[0]), *request.as_caffe[1:])
        caffe.write_region(caffe_model, nodes, work)
    if request.checker:
        try:
            with OnnxProcess(work / MODEL) as onnx:
                onnx.check(work / MODEL)
        except OnnxError as e:
            raise ModelError(
                f"onnx.checker refuses the cut: {' '.join(str(e).split())[:300]}",
                code="cut.invalid",
            ) from e


def _make_manifest(cut: Cut, request: CaseRequest) -> CaseManifest:
    """Return the manifest of a cut without values."""
    graph = cut.graph
    region = cut.region

    def nodes(indices: Sequence[int]) -> list[NodeEntry]:
        return [NodeEntry(graph.label(i), graph.ops[i], i) for i in indices]

    def tensors(names: Sequence[str]) -> list[TensorEntry]:
        declared = ((name, cut.get_declaration(name)) for name in names)
        return [
            TensorEntry(name, find_producer_label(graph, name), d.dtype, d.form, d.shapes)
            for name, d in declared
        ]

    source = case.describe_source(graph)
    return CaseManifest(
        source=replace(source, weights_sha256=protobuf.digest_weights(cut.weights, graph.path)),
        command=request.format_command(source.file),
        request=to_json(request),
        region=RegionEntry(
            region.start,
            region.end,
            nodes(region.nodes),
            nodes(region.pulled),
            nodes(region.random),
            cut.frozen,
            cut.renamed,
            cut.parameters,
        ),
        inputs=tensors(cut.inputs),
        outputs=tensors(cut.outputs),
        samples=(),
        check=CheckResult("not run", "not run (--no-capture)"),
    )


def _finish(manifest: CaseManifest, work: Path, path: Path) -> Case:
    model = (work / MODEL).stat().st_mtime
    now = time.time()
    lines = [
        (model, f"Command: {manifest.command}"),
        (model, f"Model File: {manifest.source.file}"),
    ]
    roles = (
        (manifest.inputs, "Input File"),
        (manifest.outputs, "Output File"),
        (manifest.dump_data or (), "Dump Layer"),
    )
    for tensors, title in roles:
        for tensor in tensors:
            head = f"{title}: {clean(tensor.name)}"
            files = list(flatten(sample.files for sample in tensor.samples))
            for f in files:
                line = f"{head} {f.dtype} {format_shape(f.shape)} {f.file}"
                lines.append(((work / f.file).stat().st_mtime, line))
            if not files:
                lines.append((model, head))
    recorded = manifest.recording.files if manifest.recording else {}
    lines += [(now, f"Recorded: {clean(name)} {clean(file)}") for name, file in recorded.items()]
    lines += [(model, f"Export Layer: {clean(node.name)}") for node in manifest.region.nodes]
    lines += [(model, f"Export Constant: {clean(node.name)}") for node in manifest.region.pulled]
    lines += [(now, f"Loss: {clean(loss)}") for loss in manifest.losses or ()]
    lines.append((now, f"Check: {manifest.check.status} {manifest.check.what}".rstrip()))
    text = "".join(
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} {line}\n" for at, line in lines
    )
    (work / LOG).write_text(text, encoding="utf-8")
    return Case(path, case.write_manifest(manifest, work))
