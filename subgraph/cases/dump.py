"""Reference values of any choice of tensors -> a folder with a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from subgraph.cases import case
from subgraph.cases.case import (
    ReferenceEntry,
    ResultFolder,
    ResultPlace,
    SampleEntry,
    TensorEntry,
    WrittenManifest,
)
from subgraph.cases.layout import sample_names
from subgraph.documents import Version, Word, keyed, to_json
from subgraph.graph import region
from subgraph.graph.graph import Graph
from subgraph.runtime.capture import capture_samples, inputs_needed
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.types import Strings
from subgraph.version import versions


@dataclass(frozen=True)
class DumpRequest:
    """All that a dump depends on beside the model."""

    tensors: Strings
    inputs: Strings = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    picture: ImageOptions = field(default_factory=ImageOptions)
    formats: Strings = ("npy",)
    tensor_format: TensorFormat = keyed("form", default_factory=TensorFormat)


@dataclass(frozen=True, kw_only=True)
class DumpManifest(WrittenManifest):
    """The manifest of a dump; `losses`: what conversions lost, in words."""

    schema: Word = "subcut.dump/1"
    tensors: Sequence[TensorEntry]
    samples: Sequence[SampleEntry]
    seed: int
    reference: ReferenceEntry
    versions: Mapping[str, Version] = field(default_factory=versions)
    losses: Sequence[str]


def dump(
    graph: Graph,
    request: DumpRequest,
    place: ResultPlace,
    reference: Reference,
    feeding: Feeding | None = None,
    command: str = "",
) -> ResultFolder[DumpManifest]:
    """Run the ancestors of the tensors once per sample and write them, a folder per sample where
    there are several.

    `feeding`: what the model is fed, where that is not as the request says. `command`: for the
    manifest.

    Raises:
        ResultExists: another result stands in the way. SubcutError: as inputs and capture do.
    """
    plain_request = to_json(request)
    source = case.source_of(graph)
    place = case.free_place(place, source, [graph.path])
    stems = folders.safe_names(request.tensors)
    above = region.find_upstream(graph, stems)
    feeding = feeding or Feeding(request.inputs, request.shapes, request.seed, request.picture)
    samples = feeding.plan(graph, inputs_needed(graph, above, request.tensors))
    targets = sample_names([s.label for s in samples])
    with folders.aside(place.path) as work, folders.scratch(place.parent) as scratch:
        captured = capture_samples(reference, graph, above, stems, samples, scratch)
        losses: list[str] = []
        tensors: list[TensorEntry] = []
        for name in request.tensors:
            stored = []
            for k, target in enumerate(targets):
                value = captured[k].tensors[name].within(str(scratch / str(k)))
                entry, lost = case.store(
                    value, target, work, request.formats, request.tensor_format, keep=False
                )
                stored.append(entry)
                losses += lost
            tensors.append(case.tensor_of(graph, name, stored))
        manifest = DumpManifest(
            source=source,
            command=command,
            request=plain_request,
            tensors=tensors,
            samples=[case.sample_of(s) for s in captured],
            seed=request.seed,
            reference=case.reference_of(reference),
            losses=losses,
        )
        return ResultFolder(place.path, case.write_manifest(manifest, work))
