"""Graph + feeds -> Tensors: reference values of chosen tensors, from one run of only their ancestors.

The ancestors are themselves a cut, from the model's inputs to the tensors. Its weights stay where they are: the runtime
reads aligned external data in place. Other large weights are copied aside at aligned offsets, because kernels give
other last bits on unaligned memory.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from subgraph.graph import protobuf, region
from subgraph.graph.cut import build_model
from subgraph.graph.graph import Graph
from subgraph.runtime.inputs import Feeding, Sample
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record, Tensors, load

log = logging.getLogger("subcut")

KERNEL_ALIGN = 64  # bytes; what onnxruntime's own allocator gives


@dataclass(frozen=True)
class Captured:
    """What one sample gave.

    Attributes:
        label: the sample's name; empty where there is only one.
        tensors: record by tensor; files are relative to the folder that was written into.
        fed: the model inputs that were fed (records without files), and where each came from.
    """

    label: str
    tensors: dict[str, Record]
    fed: dict[str, Record]
    origins: dict[str, str]


def capture_samples(
    reference: Reference,
    graph: Graph,
    above: region.Region,
    stems: Mapping[str, str],
    samples: Sequence[Sample],
    into: Path,
) -> list[Captured]:
    """Run the ancestors of some tensors once per sample; write each tensor as `into/<k>/<stem>.npy`.

    `stems`: tensor → file stem; `above`: `regions.above` of those. Model inputs among them are written as fed.
    """
    aside = into / "above"
    aside.mkdir()
    try:
        load_ancestors(reference, graph, above, stems, aside)
        found = []
        for k, sample in enumerate(samples):
            found.append(_record_one(reference, stems, sample, into / str(k)))
            if len(samples) > 1:
                step = {"step": k + 1, "of": len(samples)}
                log.info("sample %d of %d: %s", k + 1, len(samples), sample.label, extra=step)
        return found
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _record_one(reference: Reference, stems: Mapping[str, str], sample: Sample, into: Path) -> Captured:
    into.mkdir()
    run = reference.run("above", into, stems, sample)
    return Captured(sample.label, run.by_name, {r.name: r for r in run.fed}, dict(run.origins))


def load_ancestors(
    reference: Reference,
    graph: Graph,
    above: region.Region,
    tensors: Iterable[str],
    aside: Path,
    types: Mapping[str, protobuf.TypeProto] | None = None,
) -> tuple[str, ...]:
    """Load what computes `tensors` from the model's inputs under the key "above"; return the inputs that it takes.

    `aside` is a folder for its files, needed as long as it is loaded; `types`, of inputs that are none of the model's.
    """
    fed = [n for n in tensors if n in graph.inputs]  # such among them as nothing above the others reads
    needed = tuple(dict.fromkeys((*above.inputs, *above.shapes, *fed)))
    outputs = [n for n in tensors if n in graph.maker] or fed[:1]  # a model that only takes inputs is none
    model, _ = build_model(graph, above, needed, outputs, {**graph.declared_types(needed), **(types or {})}, {})
    path = aside / "above.onnx"
    weights = [t for t in model.graph.initializer if protobuf.on_disk(t)]
    if weights and reference.backend == "ort" and all(_in_place(t, graph.path) for t in weights):
        path.write_bytes(model.SerializeToString())
        reference.load("above", path, graph.path.parent.resolve())
    else:
        protobuf.write(model, graph.path, path, external=True)
        reference.load("above", path)
    return needed


def _in_place(tensor: protobuf.TensorProto, model: Path) -> bool:
    """May the runtime read this weight where it lies?"""
    blob = protobuf.locate(tensor, model)
    return blob.file != model and blob.offset % KERNEL_ALIGN == 0


def capture(
    graph: Graph,
    tensors: Collection[str],
    inputs: Sequence[str] = (),
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> list[Tensors]:
    """Reference values of `tensors`: one mapping name → value per input sample (one, if nothing or one file is given).

    `inputs`: words as after `-i` on the command line; none: seeded random values. Values are numpy arrays, lists of
    arrays for sequences, None for empty optionals. Only the ancestors of the tensors are run.

    >>> capture(load("resnet50.onnx"), ["conv1"])[0]["conv1"].shape                              # doctest: +SKIP
    (1, 64, 112, 112)

    Raises:
        UnknownName: no such tensor. InputError: an input does not fit. ModelError: the model cannot be run.
    """
    names = [graph.tensor(name) for name in tensors]
    above = region.above(graph, names)
    samples = Feeding(tuple(inputs), shapes or {}, seed).plan(graph, inputs_needed(graph, above, names))
    with tempfile.TemporaryDirectory(prefix="subcut-") as temporary, Reference() as reference:
        into = Path(temporary)
        stems = {name: f"t{i}" for i, name in enumerate(names)}
        captured = capture_samples(reference, graph, above, stems, samples, into)
        return [{n: load(c.tensors[n], into / str(k)) for n in names} for k, c in enumerate(captured)]


def inputs_needed(graph: Graph, above: region.Region, tensors: Collection[str]) -> list[str]:
    """The model inputs that it takes to compute `tensors`, in the model's order; `above`: what lies above them."""
    needed = {*above.inputs, *above.shapes, *tensors}
    return [name for name in graph.inputs if name in needed]
