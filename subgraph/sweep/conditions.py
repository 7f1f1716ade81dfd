"""Attributes and inputs of a node that a candidate gets wrong -> which of them matter, as runs tell.

One at a time is left out, so that its default holds, or changed, and an input that is fed is made a constant. That is
another function: the reference computes it, too. Where the candidate is still wrong, what was changed does not matter,
and stays changed while the next one is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from subgraph.errors import SubcutError
from subgraph.graph import protobuf
from subgraph.precision import Precision
from subgraph.results.sweep import SweepOutcome
from subgraph.runtime.candidate import parse
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.storage.digest import digest
from subgraph.storage.dtypes import TYPE_NUMBERS
from subgraph.storage.tensors import Record
from subgraph.sweep.expected import Runtime
from subgraph.sweep.operator_tests import MODEL, Example
from subgraph.sweep.sweep import BAD, Sweep
from subgraph.verdict import Status

Facts = Mapping[str, str]
EVALUATOR = "onnx-reference"
FLOAT, INT, FLOATS, INTS = 1, 2, 6, 7  # onnx.AttributeProto's numbers of these types
STEPS = (1, 2, 3, -1)  # by which whole numbers are changed: among three in a row is an even and an odd one
TYPES = ("to", "dtype", "output_dtype", "softmax_precision", "stash_type")  # attributes whose numbers are words
ENOUGH = 2  # other numbers that are right, before one counts as the only wrong one


@dataclass
class Conditions:
    """Tries what a runtime makes of examples that are changed.

    Attributes:
        evaluator: onnx's own, the reference where plain onnxruntime does not give what an example expects.
        tried: models that were run on the runtime.
    """

    sweep: Sweep
    runtime: Runtime
    evaluator: Runtime
    tried: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def told(self, example: Example, at: int, own: Facts) -> dict[str, bool]:
        """By fact of a node: does it matter to what is wrong? What no run could tell is left out.

        `at`: the node's place in the model. `own`: its facts, of which attributes that are set and inputs behind the
        first are tried. `ceil_mode` is about the value, `set ceil_mode` about having one, `type 2` about the input's
        being there, `input 2` about its being fed. Nothing is told where no reference
        gives what the example expects, or the runtime is not wrong.
        """
        model, said = protobuf.protos().ModelProto.FromString(example.model.read_bytes()), dict[str, bool]()
        if not self._is_wrong(example, model):
            return said
        for name in [a.name for a in model.graph.node[at].attribute if own.get(f"set {a.name}") == "yes"]:
            model = self._attribute(example, model, at, name, said)
        for place in range(1, len(model.graph.node[at].input)):
            model = self._input(example, model, at, place, said)
        return said

    def _attribute(self, example: Example, model: Any, at: int, name: str, said: dict[str, bool]) -> Any:
        """Add what is told of an attribute to `said`; the model, without it where it does not matter."""
        without = _copy(model)
        attributes = without.graph.node[at].attribute
        place = next(k for k, attribute in enumerate(attributes) if attribute.name == name)
        del attributes[place]
        wrong = self._is_wrong(example, without)
        if wrong:
            said |= {name: False, f"set {name}": False}
            return without
        if wrong is False:
            said[f"set {name}"] = True
        changed = list[bool | None]()
        for other in _changed(model, at, place):
            changed.append(self._is_wrong(example, other))
            if changed[-1]:
                said[name] = False
                return model
        if changed.count(False) >= ENOUGH or (wrong is False and not changed):
            said[name] = True
        return model

    def _input(self, example: Example, model: Any, at: int, place: int, said: dict[str, bool]) -> Any:
        """As `_attribute`, of an input: as a constant where it is fed, then without it."""
        names = [*model.graph.node[at].input]
        record = next((r for r in example.inputs if r.name == names[place] and r.form == "tensor"), None)
        if record is not None and names.count(record.name) == 1:
            constant = _with_constant(model, record)
            if (wrong := self._is_wrong(example, constant)) is not None:
                said[f"input {place}"] = not wrong
            model = constant if wrong else model
        without = _copy(model)
        without.graph.node[at].input[place] = ""
        if names[place] and (wrong := self._is_wrong(example, without)) is not None:
            said[f"type {place}"] = not wrong  # one that is given has a type
            model = without if wrong else model
        return model

    def _is_wrong(self, example: Example, model: Any) -> bool | None:
        """Is the runtime wrong on this model? None where that is not known, as where the reference refuses it."""
        try:
            made = self._example(example, model)
            outcome = self.sweep.result(self.runtime, made).outcome if made else None
        except SubcutError:
            return None
        self.tried += 1
        if made is None or outcome in BAD:
            return None if made is None else True
        return False if outcome is SweepOutcome.RIGHT and (_tells(made) or not _tells(example)) else None

    def _example(self, example: Example, model: Any) -> Example | None:
        """The changed model with what the reference gives; None where it gives nothing."""
        folder = self.sweep.scratch / f"changed{next(self._numbers)}"
        folder.mkdir()
        fed = {value.name for value in model.graph.input}
        inputs = tuple(record for record in example.inputs if record.name in fed)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        asked = _written(replace(example, inputs=inputs), model, folder)
        given = self._given(example, asked)
        if given.keys() != {record.name for record in example.outputs}:
            return None
        for value in model.graph.output:
            _declare(value, given[value.name])
        return _written(replace(asked, outputs=tuple(given[r.name] for r in example.outputs)), model, folder)

    def _given(self, example: Example, asked: Example) -> Mapping[str, Record]:
        """What the first reference that is right about an example gives for a changed one."""
        expected = self.sweep.expected
        if expected.reference_result(example).outcome in ("agrees", "near"):
            return expected.given(asked)
        own = expected.verdict(example, self.evaluator.run(example), Precision.FP32)[0]
        result = self.evaluator.run(asked)
        return result.tensors[0] if own.status is Status.AGREE and not result.failure else {}


@contextmanager
def open_conditions(sweep: Sweep, column: int) -> Iterator[Conditions]:
    """Those of a sweep's candidate."""
    runtime, evaluator = sweep.candidates[column], parse(EVALUATOR)
    with open_workers(replace(evaluator, timeout=runtime.candidate.timeout)) as workers:
        yield Conditions(sweep, runtime, Runtime(evaluator, workers, runtime.store))


def _written(example: Example, model: Any, folder: Path) -> Example:
    """The example of a model, which is written to a folder."""
    data = model.SerializeToString(deterministic=True)
    (folder / MODEL).write_bytes(data)
    return replace(example, model=folder / MODEL, key=digest("changed/1", example.key, data))


def _copy(model: Any) -> Any:
    made = protobuf.protos().ModelProto()
    made.CopyFrom(model)
    return made


def _declare(value: Any, record: Record) -> None:
    """Have an output declared as what the reference gave."""
    if record.form != "tensor":
        return
    value.type.tensor_type.elem_type = TYPE_NUMBERS[record.dtype]
    value.type.tensor_type.shape.SetInParent()
    for size in record.shapes[0]:
        value.type.tensor_type.shape.dim.add().dim_value = size


def _with_constant(model: Any, record: Record) -> Any:
    """The model in which an input that was fed is a constant."""
    from onnx import numpy_helper

    made = _copy(model)
    kept = [value for value in made.graph.input if value.name != record.name]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.add().ParseFromString(
        numpy_helper.from_array(record.array(), record.name).SerializeToString()
    )
    return made


def _changed(model: Any, at: int, place: int) -> Iterator[Any]:
    """Copies of a model in which the numbers of an attribute are others; none of words."""
    attribute = model.graph.node[at].attribute[place]
    for step in STEPS:
        made = _copy(model)
        other = made.graph.node[at].attribute[place]
        if attribute.type == INT and attribute.i not in (0, 1) and attribute.name not in TYPES:  # 0 and 1 are flags
            other.i += step
        elif attribute.type == FLOAT:
            other.f *= 2.0**step
        elif attribute.type == INTS and min(attribute.ints, default=0) + step > 0:  # no kernel has no elements
            other.ints[:] = [number + step for number in attribute.ints]
        elif attribute.type == FLOATS:
            other.floats[:] = [number * 2.0**step for number in attribute.floats]
        else:
            continue
        yield made


def _tells(example: Example) -> bool:
    """Has an expected output different elements? Equal ones, as a Softmax over one element gives, show nothing."""
    arrays = [record.array().reshape(-1) for record in example.outputs if record.form == "tensor"]
    return any(bool((array != array[0]).any()) for array in arrays if array.size)
