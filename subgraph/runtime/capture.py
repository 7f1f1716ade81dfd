"""Graph and planned samples → reference values of chosen tensors, from a run of only their
ancestors.

The ancestors are a separate cut, from the model's inputs to the tensors.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

from subgraph.graph import protobuf, region
from subgraph.graph.cut import build_model
from subgraph.graph.graph import Graph, as_graph
from subgraph.graph.selection import select_tensor
from subgraph.graph.value_types import find_declared_types
from subgraph.iterables import index_by_name
from subgraph.log import log
from subgraph.runtime.inputs import (
    DRAWS,
    IMAGES,
    Feeding,
    ImageOptions,
    InputOrigin,
    InputSpec,
    OriginKind,
    Range,
    Sample,
)
from subgraph.runtime.python_values import Inputs, make_input_arguments
from subgraph.runtime.reference import LoadedAncestors, Reference, make_default
from subgraph.storage import folders
from subgraph.storage.tensors import Record, Tensors, load
from subgraph.text import clean
from subgraph.types import Shapes, StringMap, Strings, frozen

KEY = "above"  # of the ancestors in the reference process
MAX_PIXEL = 255.0  # the greatest value of a pixel
MAX_NORMALIZED = 4.0  # what a normalized input stays within
MIN_SCALE_RATIO = 8.0  # by which ranges differ that have another scale


@frozen
class Captured:
    """The values of one sample.

    Attributes:
        label: The sample's name; empty if there is only one.
        tensors: The record of each tensor; files are relative to the folder that was written into.
        fed: The records, without files, of the model inputs that were fed.
        origins: The source of each input's value.
        seconds: The duration of the run.
    """

    label: str
    tensors: dict[str, Record]
    fed: dict[str, Record]
    origins: dict[str, InputOrigin]
    seconds: float = 0.0


def capture_samples(
    reference: Reference,
    graph: Graph,
    above: region.Region,
    stems: StringMap,
    samples: Sequence[Sample],
    into: Path,
) -> list[Captured]:
    """Run the ancestors of some tensors once per sample; write each tensor as
    `into/<k>/<stem>.npy`.

    Model inputs among the tensors are written as fed. `stems`: tensor → file stem; `above`:
    `region.find_upstream` of these tensors.
    """
    captured = []
    first_draw = next(iter(DRAWS))  # the others only change floats
    first = samples[0]
    if not first.files and first.draw == first_draw:  # the run may fail on these values
        _warn_of_drawn_integers(first, [spec.name for spec in first.specs])
    with load_ancestors(reference, graph, above, stems, into):
        for k, sample in enumerate(samples):
            folder = into / str(k)
            folder.mkdir()
            run = reference.run(KEY, folder, stems, sample)
            fed = index_by_name(run.fed)
            captured.append(
                Captured(sample.label, run.by_name, fed, dict(run.origins), run.seconds)
            )
            if k == 0 and sample.files:
                _log_surprises(sample, run.origins)
            if len(samples) > 1:
                step = {"step": k + 1, "of": len(samples)}
                log.info("sample %d of %d: %s", k + 1, len(samples), sample.label, extra=step)
    _warn_of_ranges(first.specs, captured)
    pictures = captured[0].origins if first.picture == ImageOptions() else {}
    for name, origin in pictures.items():
        if origin.range and Path(origin.text).suffix.lower() in IMAGES:
            log.warning(
                "input %s: %s is fed as %s; does the model take other values (--mean, --scale)?",
                clean(name),
                clean(origin.text),
                _format_ends(origin.range),
            )
    return captured


def _warn_of_drawn_integers(sample: Sample, names: Collection[str]) -> None:
    """Name the integer inputs that are drawn: such an input often selects what the model
    computes."""
    if any("int" in spec.dtype and spec.name in names for spec in sample.specs):
        # numpy, which few commands need here.
        from subgraph.runtime.load_inputs import (
            iter_drawn_integers,
        )

        drawn = ", ".join(map(clean, iter_drawn_integers(sample, names)))
        if drawn:  # none if a dimension is unknown, which is the error that follows
            log.warning(
                "integer inputs are drawn: %s (-i NAME=NUMBER or -i NAME=FILE sets one)", drawn
            )


def _log_surprises(sample: Sample, origins: Mapping[str, InputOrigin]) -> None:
    """Log random values and conversions of inputs, which a user of files may not expect."""
    drawn = [name for name, origin in origins.items() if origin.kind is OriginKind.RANDOM]
    _warn_of_drawn_integers(sample, drawn)
    for name, origin in origins.items():
        if origin.kind is OriginKind.RANDOM:
            log.info("input %s was not given: %s", clean(name), origin)
        elif origin.conversion:
            log.info("input %s: %s", clean(name), clean(str(origin)))


def _warn_of_ranges(specs: Iterable[InputSpec], captured: Sequence[Captured]) -> None:
    """Warn of samples of one input of different scales, or beyond the model's quantized range."""
    for spec in specs:
        origins = (c.origins[spec.name] for c in captured if spec.name in c.origins)
        known = [(max(map(abs, o.range)), o.range, o) for o in origins if o.range]
        if not known:
            continue
        known.sort(key=itemgetter(0))
        least, small, first = known[0]
        most, large, last = known[-1]
        is_image = len(spec.dims or ()) >= 3
        if (
            is_image
            and large[0] >= 0
            and 0 < least <= MAX_NORMALIZED
            and MIN_SCALE_RATIO * MAX_NORMALIZED < most <= MAX_PIXEL
        ):
            log.warning(
                "input %s: %s holds values in %s, %s in %s: is one of them not scaled (--scale,"
                " --mean)?",
                clean(spec.name),
                clean(last.text),
                _format_ends(large),
                clean(first.text),
                _format_ends(small),
            )
        elif spec.reach and most > MIN_SCALE_RATIO * max(map(abs, spec.reach)):
            log.warning(
                "input %s: %s holds values in %s, and the model quantizes them to %s, which cuts"
                " them off",
                clean(spec.name),
                clean(last.text),
                _format_ends(large),
                _format_ends(spec.reach),
            )


def _format_ends(ends: Range) -> str:
    return "…".join(f"{end:.3g}" for end in ends)


@contextmanager
def load_ancestors(
    reference: Reference,
    graph: Graph,
    above: region.Region,
    tensors: Iterable[str],
    into: Path,
    types: Mapping[str, protobuf.TypeProto] | None = None,
) -> Iterator[Strings]:
    """Load the nodes that compute `tensors` as the model `KEY`, for this block; yield their inputs.

    They stay loaded: a later block that needs no others runs the same session. The model's file is
    in a folder of `into` meanwhile. `types`: of inputs that are not inputs of the model.
    """
    loaded = reference.process.ancestors
    if loaded and not types and loaded.covers(graph, above, tensors):
        yield loaded.needed
        return
    fed = [n for n in tensors if n in graph.inputs]  # also inputs that no node reads
    needed = tuple(dict.fromkeys((*above.entering, *fed)))
    outputs = [n for n in tensors if n in graph.maker] or fed[:1]  # a model must have an output
    model, _ = build_model(
        graph, above, needed, outputs, {**find_declared_types(graph, needed), **(types or {})}, {}
    )
    folder = into / "above"
    folder.mkdir()
    try:
        reference.process.ancestors = None
        reference.load_model(KEY, model, graph.path, folder)
        if not types:
            reference.process.ancestors = LoadedAncestors(
                graph, frozenset(above.nodes), frozenset(outputs), needed
            )
        yield needed
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def capture(
    graph: Graph | str | Path,
    tensors: Collection[str],
    inputs: Inputs = None,
    *,
    seed: int = 0,
    shapes: Shapes | None = None,
) -> list[Tensors]:
    """Return reference values of tensors, per input sample; only their ancestors are run.

    Values are numpy arrays, lists of arrays for sequences, None for empty optionals.

    Args:
        graph: The model.
        tensors: The names of the tensors.
        inputs: Files, arrays, name → array, or a list of these; None for seeded random values.
        seed: The seed.
        shapes: The shapes of inputs; None for the declared ones.

    >>> from subgraph import load
    >>> capture(load("resnet50.onnx"), ["conv1"])[0]["conv1"].shape
    (1, 8, 32, 32)

    Raises:
        UnknownName: No such tensor.
        InputError: An input does not fit.
        ModelError: The model cannot be run.
    """
    graph = as_graph(graph, "capture")
    names = [select_tensor(graph, name) for name in tensors]
    above = region.find_upstream(graph, names)
    words = make_input_arguments(inputs, graph.inputs)
    samples = Feeding(words, shapes or {}, seed).plan(
        graph, list_needed_inputs(graph, above, names)
    )
    with folders.make_temporary() as folder, make_default(graph) as reference:
        stems = folders.number_stems(names, "t")
        captured = capture_samples(reference, graph, above, stems, samples, folder)
        return [
            {n: load(c.tensors[n], folder / str(k)) for n in names} for k, c in enumerate(captured)
        ]


def list_needed_inputs(graph: Graph, above: region.Region, tensors: Collection[str]) -> list[str]:
    """Return the model inputs that tensors depend on, in the model's order.

    Args:
        graph: The model.
        above: `region.find_upstream` of the tensors.
        tensors: The tensors.
    """
    needed = {*above.entering, *tensors}
    return [name for name in graph.inputs if name in needed]
