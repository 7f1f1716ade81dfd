"""More inputs like those of the samples: a cure that is right on these alone may be luck.

Inputs that only set how operators work (a shape, axes, scales) keep their values: another value of
one is another model, not another sample. Exporters make them initializers; onnx's operator tests
and some models take them as inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.graph.graph import Graph
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import SETTINGS
from subgraph.graph.region import Region
from subgraph.runtime.inputs import Feeding
from subgraph.storage.tensors import Record, Value, save
from subgraph.types import Strings

NOISE = 0.1  # of the standard deviation of a tensor


def draw_samples(
    samples: Sequence[Mapping[str, Record]], count: int, folder: Path, kept: Collection[str] = ()
) -> Iterator[Mapping[str, Record]]:
    """So many more samples: the same elements in another order, backwards, and with noise, in turn;
    seeded.

    Whole numbers keep their values and so their meaning (indices, tokens); sequences, texts and
    `kept` stay.
    """
    rng = np.random.default_rng(0)
    for k in range(count):
        sample = samples[k % len(samples)]
        changed = {}
        for i, (name, record) in enumerate(sample.items()):
            value = (
                _draw(record.value(), k, rng)
                if record.form == "tensor" and name not in kept
                else None
            )
            changed[name] = record
            if value is not None:
                saved = save(name, value, record.type_text, folder, f"draw{k}-{i}")
                changed[name] = saved.within(str(folder.resolve()))
        yield changed


def extend_samples(
    feeding: Feeding, samples: Sequence[Mapping[str, Record]], draws: Sequence[Mapping[str, Record]]
) -> Feeding:
    """The samples, and the draws after them."""
    origins = [*("" for _ in samples), *(f"drawn like the samples, {k}" for k in range(len(draws)))]
    return Feeding(
        feeding.inputs,
        feeding.shapes,
        feeding.seed,
        feeding.picture,
        (*samples, *draws),
        tuple(origins),
    )


def _draw(value: Value, k: int, rng: np.random.Generator) -> Any:
    array: Any = np.asarray(value)
    if array.dtype.kind in "OUS" or not array.size:
        return None
    is_float = array.dtype.kind == "f"
    if k % 3 == 1:
        return np.ascontiguousarray(array[tuple(slice(None, None, -1) for _ in array.shape)])
    if k % 3 == 2 and is_float:
        wide = array.astype(np.float64)
        noise = NOISE * float(np.nan_to_num(wide).std()) * rng.standard_normal(array.shape)
        return (wide + noise).astype(array.dtype)
    return rng.permutation(array.reshape(-1)).reshape(array.shape)


def parameters(graph: Graph) -> Strings:
    """The model's inputs that nodes read in such places only. Complexity: linear in their
    readers."""
    return tuple(
        name for name in graph.inputs if graph.readers.get(name) and _only_sets(graph, name)
    )


def _only_sets(graph: Graph, name: str) -> bool:
    nodes = [graph.nodes[i] for i in graph.readers[name]]
    return name not in graph.outputs and all(
        node.domain in STANDARD
        and name in node.input
        and all(
            k in SETTINGS.get(node.op_type, ()) for k, read in enumerate(node.input) if read == name
        )
        for node in nodes
    )


def fix_parameters(graph: Graph, region: Region) -> Region:
    """The region with these inputs as constants of its cut, as if they depended on shapes only."""
    constant = {*parameters(graph)}.intersection(region.inputs)
    inputs = tuple(name for name in region.inputs if name not in constant)
    return replace(
        region, inputs=inputs, shapes=(*region.shapes, *(n for n in region.inputs if n in constant))
    )
