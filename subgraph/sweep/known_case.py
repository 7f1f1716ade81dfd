"""The case of an entry of `known`, a model in onnx's text form -> an example, with what onnx's evaluator gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.graph.types import declared_type
from subgraph.known import Entry, KnownCase
from subgraph.storage.digest import digest, file_digest
from subgraph.storage.tensors import Record, Value, np_dtype, written
from subgraph.sweep.operator_tests import MODEL, Example

RTOL, ATOL = 1e-3, 1e-5  # what is known to be wrong is wrong by more


def example_of(entry: Entry, case: KnownCase, folder: Path) -> Example:
    """The example; its files go to a folder, which is made.

    Raises:
        InputError: it is no model, or the evaluator cannot run it.
    """
    from onnx import parser
    from onnx.reference import ReferenceEvaluator

    folder.mkdir(parents=True)
    try:
        model = parser.parse_model(case.model)
        feeds = _drawn(model, case)
        outputs = list(ReferenceEvaluator(model).run(None, feeds))
    except Exception as e:  # whatever the parser and numpy raise
        raise InputError(f"the case of {entry.path} does not run: {e}", "correct its model") from e
    file = folder / MODEL
    file.write_bytes(model.SerializeToString(deterministic=True))
    inputs = _saved(list(feeds), list(feeds.values()), folder, "i")
    wanted = _saved([o.name for o in model.graph.output], outputs, folder, "o")
    key = digest("known case/1", file_digest(file), case.seed, case.low, case.high)
    return Example(entry.name, file, inputs, wanted, RTOL, ATOL, key)


def _drawn(model: Any, case: KnownCase) -> dict[str, Any]:
    """A value for each input, of the shape and the type that the model declares."""
    random, feeds = np.random.default_rng(case.seed), {}
    weights = {w.name for w in model.graph.initializer}
    for one in model.graph.input:
        if one.name not in weights:
            _, dtype, dims = declared_type(one.type)
            feeds[one.name] = random.uniform(case.low, case.high, dims).astype(np_dtype(dtype))
    return feeds


def _saved(names: Sequence[str], values: Sequence[Value], folder: Path, stem: str) -> tuple[Record, ...]:
    records = (written(name, v, folder, f"{stem}{k}") for k, (name, v) in enumerate(zip(names, values, strict=True)))
    return tuple(record.within(str(folder)) for record in records)
