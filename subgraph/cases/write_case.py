"""The main job: region, capture, cut, check, folder.

What a text report or `--json` says is read from the manifest; nothing is computed twice.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from subgraph.cases import case
from subgraph.cases.case import Case, ModelSource, ResultPlace
from subgraph.cases.check import FULL, check
from subgraph.cases.layout import REPRO, REPRO_SCRIPT
from subgraph.documents import to_json
from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.cut import Cut, cut_region, freezable, structure_problem
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime import inputs as feeding
from subgraph.runtime.capture import Captured, feeds_of, record
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.storage.tensors import Record
from subgraph.text import clean
from subgraph.version import __version__

SCHEMA = "subcut.case/1"
MAX_PLACE = 100  # characters of a result folder's name


@dataclass(frozen=True)
class CaseRequest:
    """What was asked for: all that a result depends on beside the model. Two equal requests give the same bytes."""

    start: tuple[str, ...]
    end: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    picture: feeding.ImageOptions = field(default_factory=feeding.ImageOptions)
    formats: tuple[str, ...] = ("npy", "bin")
    form: TensorFormat = field(default_factory=TensorFormat)
    dump_all: bool = False
    capture: bool = True
    checker: bool = False
    dynamic: bool = False
    freeze: bool = True
    recorded: str = ""

    @classmethod
    def of_nodes(
        cls, graph: Graph, nodes: Sequence[int], feeding: feeding.Feeding, *, freeze: bool, **options: Any
    ) -> CaseRequest:
        """A request for the region of these nodes, named by the first and the last; `options`: further fields."""
        start, end = (tuple(graph.label(i) for i in some) for some in (nodes[:1], nodes[-1:]))
        return cls(start, end, freeze=freeze, **feeding.options, **options)

    def to_json(self) -> Any:
        """As it stands in a manifest."""
        return case.plain(asdict(self))

    @property
    def command(self) -> str:
        """The command line that asks for this, model left out."""
        words = ["subcut", "cut", *(w for n in self.start for w in ("--start", n))]
        words += [w for n in self.end for w in ("--end", n)] + [w for f in self.inputs for w in ("-i", f)]
        for name, shape in self.shapes.items():
            words += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
        plain = CaseRequest(self.start, self.end)
        for flag, mine, default in (
            ("--seed", str(self.seed), str(plain.seed)),
            ("--mean", ",".join(map(str, self.picture.mean)), ",".join(map(str, plain.picture.mean))),
            ("--scale", ",".join(map(str, self.picture.scale)), ",".join(map(str, plain.picture.scale))),
            ("--format", ",".join(self.formats), ",".join(plain.formats)),
            ("--dtype", self.form.dtype, ""),
            ("--layout", self.form.layout, ""),
            ("--recorded", self.recorded, ""),
        ):
            words += [flag, mine] if mine != default else []
        for flag, on in (
            ("--bgr", self.picture.bgr),
            ("--dump=all", self.dump_all and not self.recorded),
            ("--no-capture", not self.capture),
            ("--check", self.checker),
            ("--dynamic", self.dynamic),
            ("--no-freeze", not self.freeze and not self.dynamic),
        ):
            words += [flag] if on else []
        return shlex.join(words)


class ValueSource(Protocol):
    """Values that are there already: of a session (`values.Values`), or of a device (`recut.Recorded`)."""

    @property
    def samples(self) -> Sequence[feeding.Sample]: ...

    def placed(self, stems: Mapping[str, str], folder: Path) -> list[Captured]: ...


class RecordedSource(ValueSource, Protocol):
    """Values of a device: `dump_data` is what it recorded, and `about` what the manifest says of that."""

    @property
    def about(self) -> Mapping[str, Any]: ...

    def dumped(self, stems: Mapping[str, str], folder: Path) -> list[dict[str, Record]]: ...


def place_name(region: Region) -> str:
    """`pool1__res2a_relu`; several starts or ends are joined by `+`; long ones are cut and told apart by a hash."""
    start, end = ("+".join(map(folders.safe_name, labels)) for labels in (region.start, region.end))
    name = f"{start}__{end}"
    if len(name) <= MAX_PLACE:
        return name
    return f"{name[: MAX_PLACE - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def stamp_name() -> str:
    """MindStudio's name for a dump folder."""
    return time.strftime("dump_result_%Y_%m_%d_%H_%M_%S")


def extract(graph: Graph, request: CaseRequest, place: ResultPlace, reference: Reference | None) -> list[Case]:
    """The main job. A `place` without a name is named after the region; without a `reference` nothing is run.

    Samples whose edge tensors have other shapes, or other values of frozen tensors, need a cut of their own: each group
    of equal ones gives one folder.

    Raises:
        ResultExists: another result stands in the way. SubcutError: as region, inputs, capture and cut do.
    """
    region, place = chosen(graph, request, place)
    if reference is None:
        return [_without_capture(graph, region, request, place)]
    return write_region(graph, region, request, place, reference)


def chosen(graph: Graph, request: CaseRequest, place: ResultPlace) -> tuple[Region, ResultPlace]:
    """What is to be cut, and where it goes.

    Raises: as `extract`.
    """
    region = regions.between(graph, request.start, request.end)
    place = place if place.name else replace(place, name=place_name(region))
    reads = [graph.path, *([Path(request.recorded)] if request.recorded else [])]
    case.require_free(place, request.to_json(), case.source_of(graph), reads)
    return region, place


def write_region(
    graph: Graph,
    region: Region,
    request: CaseRequest,
    place: ResultPlace,
    reference: Reference,
    values: ValueSource | None = None,
    device: RecordedSource | None = None,
) -> list[Case]:
    """Cut a known region as `extract` does; whether the place is free is the caller's question.

    `values`: of a session, so that the folder holds exactly what its trials were fed; else they are captured now.
    `device`: the same, and what the device recorded inside.
    """
    values = device or values
    wanted = [*region.inputs, *region.shapes, *region.outputs]
    if request.dump_all:
        wanted += [n for i in region.nodes for n in graph.makes[i]]
    stems = folders.safe_names(dict.fromkeys(wanted))
    above = regions.above(graph, stems)
    samples = values.samples if values else _planned(graph, feeds_of(graph, above, wanted), request)
    with folders.scratch(place.parent) as scratch:
        captured = values.placed(stems, scratch) if values else record(reference, graph, above, stems, samples, scratch)
        groups = _groups(region, captured, scratch, request)
        dumped = [DumpData(c.tensors, scratch / str(k)) for k, c in enumerate(captured)]
        if device:
            own = enumerate(device.dumped(stems, scratch / "device"))
            dumped = [DumpData(tensors, scratch / "device" / str(k)) for k, tensors in own]
        about = device.about if device else {}
        builder = CaseBuilder(
            graph, region, above, request, reference, scratch, samples, captured, stems, dumped, about
        )
        found = [builder.build(place, number, group) for number, group in enumerate(groups)]
    _drop_stale(place, len(found), request.to_json(), case.source_of(graph))
    return found


def _planned(graph: Graph, names: Iterable[str], request: CaseRequest) -> list[feeding.Sample]:
    return feeding.plan(graph, names, request.inputs, shapes=request.shapes, seed=request.seed, picture=request.picture)


def _drop_stale(place: ResultPlace, number: int, request: Any, source: ModelSource) -> None:
    """Remove what an earlier run of the same request left for groups of samples that are no more."""
    while (old := _numbered(place, number)).path.is_dir() and case.is_earlier(old, request, source):
        shutil.rmtree(old.path)
        number += 1


def _numbered(place: ResultPlace, number: int) -> ResultPlace:
    """Where the group of this number goes: the first has the plain name, the second ends in `-2`."""
    return place if number == 0 else replace(place, name=f"{place.name}-{number + 1}")


def _groups(region: Region, captured: Sequence[Captured], scratch: Path, request: CaseRequest) -> list[tuple[int, ...]]:
    """Samples that one cut can serve: equal shapes at its inputs and equal values of what is frozen."""
    groups: dict[Any, list[int]] = {}
    for k, sample in enumerate(captured):
        shapes = tuple(sample.tensors[n].shapes for n in region.inputs) if not request.dynamic else ()
        frozen = freezable(region, [sample.tensors]) if request.freeze and not request.dynamic else ()
        values = tuple((scratch / str(k) / f).read_bytes() for n in frozen for f in sample.tensors[n].files)
        groups.setdefault((shapes, values), []).append(k)
    return [tuple(group) for group in groups.values()]


@dataclass(frozen=True)
class DumpData:
    """Tensors of the region that go to `dump_data`, their files relative to a folder."""

    tensors: Mapping[str, Record]
    folder: Path


@dataclass(frozen=True)
class CaseBuilder:
    """What all groups of samples share; `build` makes the folder of one."""

    graph: Graph
    region: Region
    above: Region
    request: CaseRequest
    reference: Reference
    scratch: Path
    samples: Sequence[feeding.Sample]
    captured: Sequence[Captured]
    stems: Mapping[str, str]
    dumped: Sequence[DumpData]
    about: Mapping[str, Any]

    def build(self, place: ResultPlace, number: int, group: Sequence[int]) -> Case:
        """The folder of the samples `group`; those after the first are named `…-2`, `…-3`."""
        place = _numbered(place, number)
        if number:
            case.require_free(place, self.request.to_json(), case.source_of(self.graph), [self.graph.path])
        cut = cut_region(
            self.graph,
            self.region,
            [self.captured[k].tensors for k in group],
            self.scratch / str(group[0]),
            dynamic=self.request.dynamic,
            freeze=self.request.freeze,
        )
        with folders.aside(place.path) as work:
            _write_model(cut, self.request, work)
            verdict = check(
                self.reference,
                cut,
                [self.captured[k] for k in group],
                [self.scratch / str(k) for k in group],
                work / "model.onnx",
                self._again,
            )
            if self.about:
                verdict["what"] = verdict["what"].replace(FULL, "what the reference makes of the recorded inputs")
            tensors, losses = self._store(cut, group, work)
            manifest = _manifest(cut, self.request) | {
                **tensors,
                "samples": [case.sample_of(self.captured[k]) for k in group],
                "seed": self.request.seed,
                "reference": case.reference_of(self.reference),
                "above": len(self.above.nodes) - len(cut.region.nodes) - len(cut.region.pulled),
                "losses": losses,
                "check": verdict,
                **self.about,
            }
            shutil.copyfile(REPRO_SCRIPT, work / REPRO)
            manifest = _finish(manifest, work)
        return Case(place.path, manifest)

    def _again(self, k: int, into: Path) -> dict[str, Record]:
        """Run sample `k` a second time, to see whether the reference repeats itself."""
        names = {n: self.stems[n] for n in self.region.outputs}
        return record(self.reference, self.graph, self.above, names, [self.samples[k]], into)[0].tensors

    def _store(self, cut: Cut, group: Sequence[int], work: Path) -> tuple[dict[str, Any], list[str]]:
        """Move the captured files into the result, write their other forms, describe them."""
        roles: dict[str, Sequence[str]] = {"inputs": cut.inputs, "outputs": cut.outputs}
        if self.request.dump_all:
            made = (n for i in self.region.nodes for n in self.graph.makes[i])
            roles["dump_data"] = [n for n in made if all(n in self.dumped[k].tensors for k in group)]
        labels = folders.safe_names(self.captured[k].label or str(k) for k in group)
        device = bool(self.about)  # then a tensor may be in two roles, with other values
        losses: dict[str, None] = {}
        out: dict[str, Any] = {}
        for role, names in roles.items():
            out[role] = []
            for name in names:
                stored = []
                for k, label in zip(group, labels.values(), strict=True):
                    plain = DumpData(self.captured[k].tensors, self.scratch / str(k))
                    source = self.dumped[k] if role == "dump_data" else plain
                    entry, lost = case.store(
                        source.tensors[name],
                        source.folder,
                        f"{role}/{label}" if len(group) > 1 else role,
                        work,
                        self.request.formats,
                        self.request.form,
                        keep=self.request.dump_all,
                    )
                    stored.append(entry)
                    losses.update(dict.fromkeys(f"{role}: {said}" if device else said for said in lost))
                out[role].append(case.tensor_of(self.graph, name, stored))
        return out, list(losses)


def _without_capture(graph: Graph, region: Region, request: CaseRequest, place: ResultPlace) -> Case:
    cut = cut_region(graph, region, dynamic=request.dynamic)
    with folders.aside(place.path) as work:
        _write_model(cut, request, work)
        edges = {
            role: [case.tensor_of(graph, name, [to_json(cut.declared(name))]) | {"samples": []} for name in names]
            for role, names in (("inputs", cut.inputs), ("outputs", cut.outputs))
        }
        manifest = _manifest(cut, request) | edges
        manifest |= {"samples": [], "check": {"status": "not run", "what": "not run (--no-capture)"}}
        manifest = _finish(manifest, work)
    return Case(place.path, manifest)


def _write_model(cut: Cut, request: CaseRequest, work: Path) -> None:
    theirs = [p for p in cut.model.metadata_props if not p.key.startswith("subcut.")]  # a cut may be cut again
    del cut.model.metadata_props[:]
    cut.model.metadata_props.extend(theirs)
    for key, value in (
        ("subcut.source", cut.graph.path.name),
        ("subcut.source_sha256", cut.graph.skeleton.structure),
        ("subcut.start", ", ".join(cut.region.start)),
        ("subcut.end", ", ".join(cut.region.end)),
        ("subcut.version", __version__),
    ):
        entry = cut.model.metadata_props.add()
        entry.key, entry.value = key, value
    problem = structure_problem(cut.model)
    if problem:
        raise ModelError(f"the cut would be invalid: {problem}", f"subcut inspect {cut.graph.path}")
    cut.save(work / "model.onnx")
    if request.checker:
        _run_checker(work / "model.onnx")


def _run_checker(path: Path) -> None:
    import onnx.checker

    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError) as e:
        raise ModelError(f"onnx.checker refuses the cut: {' '.join(str(e).split())[:300]}") from e


def _manifest(cut: Cut, request: CaseRequest) -> dict[str, Any]:
    graph, region = cut.graph, cut.region

    def nodes(indices: Sequence[int]) -> list[dict[str, Any]]:
        return [{"name": graph.label(i), "op": graph.ops[i], "index": i} for i in indices]

    return {
        "schema": SCHEMA,
        "source": to_json(
            replace(case.source_of(graph), weights_sha256=protobuf.weights_digest(cut.weights, graph.path))
        ),
        "command": request.command,
        "request": request.to_json(),
        "region": {
            "start": list(region.start),
            "end": list(region.end),
            "nodes": nodes(region.nodes),
            "pulled": nodes(region.pulled),
            "random": nodes(region.random),
            "frozen": list(cut.frozen),
            "renamed": dict(cut.renamed),
            "parameters": cut.parameters,
        },
        "versions": case.versions(),
    }


def _finish(manifest: dict[str, Any], work: Path) -> dict[str, Any]:
    (work / "log.txt").write_text(_log(manifest), encoding="utf-8")
    return case.write_manifest(manifest, work)


def _log(manifest: Mapping[str, Any]) -> str:
    """What was done, a line each, in the words of MindStudio's dump log. The only file with times in it."""
    lines = [f"Command: {manifest['command']}", f"Model File: {manifest['source']['file']}"]
    for role, word in (("inputs", "Input File"), ("outputs", "Output File"), ("dump_data", "Dump Layer")):
        for tensor in manifest.get(role, ()):
            files = [f["file"] for s in tensor["samples"] for f in s["files"]]
            lines += [f"{word}: {clean(tensor['name'])} {f}" for f in files] or [f"{word}: {clean(tensor['name'])}"]
    recorded = manifest.get("recording", {}).get("files", {})
    lines += [f"Recorded: {clean(name)} {clean(file)}" for name, file in recorded.items()]
    lines += [f"Export Layer: {clean(node['name'])}" for node in manifest["region"]["nodes"]]
    lines += [f"Export Constant: {clean(node['name'])}" for node in manifest["region"]["pulled"]]
    lines += [f"Loss: {clean(loss)}" for loss in manifest.get("losses", ())]
    lines.append(f"Check: {manifest['check']['status']} {manifest['check']['what']}".rstrip())
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return "".join(f"{now} {line}\n" for line in lines)
