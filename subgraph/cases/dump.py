"""Reference values of any choice of tensors -> a folder with a manifest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from subgraph.cases import case
from subgraph.cases.case import Case, ResultPlace
from subgraph.graph import region
from subgraph.graph.graph import Graph
from subgraph.runtime import inputs as feeding
from subgraph.runtime.capture import feeds_of, record
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat

SCHEMA = "subcut.dump/1"


@dataclass(frozen=True)
class DumpRequest:
    """All that a dump depends on beside the model."""

    tensors: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    picture: feeding.ImageOptions = field(default_factory=feeding.ImageOptions)
    formats: tuple[str, ...] = ("npy",)
    form: TensorFormat = field(default_factory=TensorFormat)


def dump(graph: Graph, request: DumpRequest, place: ResultPlace, reference: Reference) -> Case:
    """Run what the tensors need once per sample and write them, a folder per sample where there are several.

    Raises:
        ResultExists: another result stands in the way. SubcutError: as inputs and capture do.
    """
    asked, source = case.plain(asdict(request)), case.source_of(graph)
    case.require_free(place, asked, source, [graph.path])
    stems = folders.safe_names(request.tensors)
    above = region.above(graph, stems)
    samples = feeding.plan(
        graph,
        feeds_of(graph, above, request.tensors),
        request.inputs,
        shapes=request.shapes,
        seed=request.seed,
        picture=request.picture,
    )
    labels = folders.safe_names(s.label or str(k) for k, s in enumerate(samples))
    targets = list(labels.values()) if len(samples) > 1 else ["."]
    with folders.aside(place.path) as work, folders.scratch(place.parent) as scratch:
        captured = record(reference, graph, above, stems, samples, scratch)
        losses: list[str] = []
        tensors: list[dict[str, Any]] = []
        for name in request.tensors:
            stored = []
            for k, target in enumerate(targets):
                found, origin = captured[k].tensors[name], scratch / str(k)
                entry, lost = case.store(found, origin, target, work, request.formats, request.form, keep=False)
                stored.append(entry)
                losses += lost
            tensors.append(case.tensor_of(graph, name, stored))
        manifest = {
            "schema": SCHEMA,
            "source": source,
            "command": shlex.join(["subcut", "dump", *request.tensors]),
            "request": asked,
            "tensors": tensors,
            "samples": [case.sample_of(s) for s in captured],
            "seed": request.seed,
            "reference": case.reference_of(reference),
            "versions": case.versions(),
            "losses": losses,
        }
        written = case.write_manifest(manifest, work)
    return Case(place.path, written)
