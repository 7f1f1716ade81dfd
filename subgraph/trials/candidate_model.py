"""A candidate that is another model: cut where ours is cut, fed the same values in its own form.

A region of ours has an edge; `match` says which tensors of the other model these are; the nodes between them there are
its piece. Values are transposed, cast or quantized on the way in, and brought back on the way out, so that everything
else (judging, explaining, searching) knows only our model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError, ModelError, SubcutError, UsageError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.cut import Cut, boundary_types, build_model, frozen_constant
from subgraph.graph.graph import SHAPE, VALUE, Graph
from subgraph.graph.graph import load as load_graph
from subgraph.graph.quantization import Scale, scales_of
from subgraph.graph.region import Region
from subgraph.runtime.inputs import plan
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.digest import digest
from subgraph.storage.layouts import axis_orders
from subgraph.storage.tensors import Record, load, save
from subgraph.trials.match_tensors import MatchedTensor, match

if TYPE_CHECKING:
    from subgraph.types import Array

log = logging.getLogger("subcut")

EDGE = "edge.json"  # in a case, beside the candidate's model: which of its tensors are which of ours
KEPT = 128  # tensors held while models are matched
QUANTIZED = ("int8", "uint8", "int16", "uint16")


@dataclass
class CandidateModel:
    """The other model beside ours.

    Attributes:
        ours, graph: our model and the other one, prepared.
        matches: our tensors that are there as well.
        values: what plain onnxruntime gives for the other model; None where it cannot run it.
    """

    ours: Graph
    graph: Graph
    matches: Mapping[str, MatchedTensor]
    values: ReferenceValues | None
    _regions: dict[Any, Region] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """All that its answers depend on."""
        weights = protobuf.weights_digest(
            [t for t in self.graph.weights.values() if protobuf.on_disk(t)], self.graph.path
        )
        return digest("other/1", self.graph.skeleton.structure, weights, sorted(map(repr, self.matches.items())))

    @cached_property
    def _back(self) -> dict[str, str]:
        return {m.other: name for name, m in self.matches.items()}

    @property
    def precision(self) -> str | None:
        """What it computes in, as far as its tensors show: int8, fp16, bf16; None where it is as ours."""
        types = [m.dtype for m in self.matches.values() if m.dtype]
        if any(op in ("QuantizeLinear", "DequantizeLinear") or op.startswith("QLinear") for op in self.graph.ops):
            return "int8"
        for dtype, claim in (("float16", "fp16"), ("bfloat16", "bf16")):
            if types.count(dtype) * 2 > len(types):
                return claim
        return None

    def region(self, region: Region) -> Region:
        """The piece of the other model between the same edge.

        Raises:
            ModelError: an output of the edge is not there, or it is made from something outside of it.
        """
        key = (region.nodes, region.outputs)
        if key not in self._regions:
            self._regions[key] = self._between(region)
        return self._regions[key]

    def _between(self, region: Region) -> Region:
        graph, kinds = self.graph, self.ours.kinds(region.outputs)
        wanted = [n for n in region.outputs if kinds[n] == VALUE]
        lacking = [n for n in wanted if n not in self.matches]
        if lacking:
            raise ModelError(f"tensor '{lacking[0]}' is not in {graph.path.name}", "--map FILE says which one it is")
        outputs = tuple(dict.fromkeys(self.matches[n].other for n in wanted))
        borders = {self.matches[n].other for n in region.inputs if n in self.matches}
        nodes: set[int] = set()
        stack = [self._maker(n, borders) for n in outputs]
        while stack:
            i = stack.pop()
            if i in nodes:
                continue
            nodes.add(i)
            entering = graph.kinds(graph.reads[i])
            stack += [self._maker(n, borders) for n, kind in entering.items() if kind == VALUE and n not in borders]
        found = regions.of_nodes(graph, nodes, [(n,) for n in outputs])
        return replace(found, outputs=outputs)

    def _maker(self, name: str, borders: set[str]) -> int:
        maker = self.graph.maker.get(name)
        if maker is None or name in borders:
            raise ModelError(f"{self.graph.path.name} has no piece between the same tensors: '{name}' lies across")
        return maker

    def cut(self, region: Region, records: Feeds, place: Path) -> tuple[Cut, list[list[Record]]]:
        """The cut of the other model, and per sample what it is fed; files go to `place`.

        Raises:
            ModelError: as `region`; or the value of a shape, or a type, is known to nobody.
        """
        there = self.region(region)
        fed = [
            {n: self._theirs(sample[self._back[n]], n, place, k) for n in there.inputs}
            for k, sample in enumerate(records)
        ]
        infos = self.graph.value_infos({*there.inputs, *there.outputs})
        known: Sequence[Mapping[str, Record]] = ()
        if self.values:
            self.values.need([*there.shapes, *there.outputs])
            known = self.values.records
        elif there.shapes:
            raise ModelError(f"the shape '{there.shapes[0]}' of {self.graph.path.name} is known to nobody")
        types = boundary_types(self.graph, there.inputs, fed, {})
        types |= boundary_types(self.graph, there.outputs, known, infos)
        constants = [frozen_constant(known[0][n], Path("/")) for n in there.shapes]
        model, renamed = build_model(self.graph, there, there.inputs, there.outputs, types, infos, constants)
        full = protobuf.to_onnx(model, self.graph.path)
        cut = Cut(self.graph, there, there.inputs, there.outputs, there.shapes, types, full, renamed)
        return cut, [list(sample.values()) for sample in fed]

    def _theirs(self, record: Record, name: str, place: Path, k: int) -> Record:
        """A value of ours as the other model wants it."""
        found = self.matches[self._back[name]]
        if found.plain and found.dtype in ("", record.dtype):
            return replace(record, name=name)
        value = found.theirs(load(record, Path("/")))  # type: ignore[arg-type]  # sequences are never matched otherwise
        dtype = found.dtype or record.dtype
        return save(name, value, f"tensor({dtype_word(dtype)})", place, f"in{k}-{len(list(place.iterdir()))}").within(
            str(place)
        )

    def translated(self, region: Region, answer: RunResult, known: Feeds, place: Callable[[], Path]) -> RunResult:
        """An answer of the other model in our names and form. What only shapes decide is ours."""
        if answer.failure:
            return answer
        kinds = self.ours.kinds(region.outputs)
        tensors = []
        for k, sample in enumerate(answer.tensors):
            own: dict[str, Record] = {}
            for name in region.outputs:
                if kinds[name] == SHAPE and name in known[k]:
                    own[name] = known[k][name]
                elif name in self.matches and self.matches[name].other in sample:
                    own[name] = self._ours(name, sample[self.matches[name].other], known[k].get(name), place)
            tensors.append(own)
        return replace(answer, tensors=tuple(tensors))

    def _ours(self, name: str, record: Record, known: Record | None, place: Callable[[], Path]) -> Record:
        found = self.matches[name]
        dtype = known.dtype if known else record.dtype
        if record.form != "tensor" or (found.plain and record.dtype == dtype):
            return replace(record, name=name)
        from subgraph.storage.tensors import np_dtype

        value = found.ours(load(record, Path("/"))).astype(np_dtype(dtype))  # type: ignore[arg-type]
        folder = place()
        return save(name, value, f"tensor({dtype_word(dtype)})", folder, "t").within(str(folder))

    # ------------------------------------------------------------------------------------------------ reports

    def edge(self, region: Region) -> dict[str, Any]:
        """The matches of a region's edge as plain data: what `of_case` reads."""
        return {n: asdict(self.matches[n]) for n in (*region.inputs, *region.outputs) if n in self.matches}

    def summary(self) -> str:
        """How many tensors were found, and how."""
        matches = self.matches.values()
        hows = [f"{n} by {how}" for how in ("name", "map", "value") if (n := sum(m.how == how for m in matches))]
        turned = sum(bool(m.perm) for m in matches)
        quantized = sum(m.scale is not None for m in matches)
        more = [f"{turned} transposed"] * bool(turned) + [f"{quantized} quantized"] * bool(quantized)
        return f"{len(matches)} tensors of {self.graph.path.name} are ours: {', '.join(hows + more)}"

    def saturated(self, values: ReferenceValues) -> dict[str, float]:
        """Per tensor of ours that is quantized there: the share of its values that the type cannot hold."""
        found: dict[str, float] = {}
        for stored, scale in scales_of(self.graph).items():
            maker = self.graph.nodes[self.graph.maker[stored]]
            real = self._back.get(maker.input[0]) if maker.op_type == "QuantizeLinear" else self._back.get(stored)
            if real is None or self.values is None or real not in values.records[0]:
                continue
            self.values.need([stored])
            dtype = self.values.records[0][stored].dtype
            if dtype in QUANTIZED:
                found[real] = max(self._clipped(real, scale, dtype, load(s[real], Path("/"))) for s in values.records)
        return found

    def _clipped(self, name: str, scale: Scale, dtype: str, value: Any) -> float:
        import numpy as np

        readers = {self.ours.ops[i] for i in self.ours.readers.get(name, ())}
        if readers and readers <= {"Relu", "Clip"}:  # what these cut off is no loss
            value = np.maximum(value, 0)
        return scale.saturated(replace(self.matches[name], scale=None, dtype="").theirs(value), dtype)


def dtype_word(dtype: str) -> str:
    """An element type in ONNX's words."""
    from subgraph.storage.tensors import PROTO_NAMES

    return PROTO_NAMES.get(dtype, dtype)


def pair_models(
    ours: Graph,
    other: Graph,
    reference: Reference,
    values: ReferenceValues,
    scratch: Path,
    said: Mapping[str, str] | None = None,
) -> CandidateModel:
    """Match the other model's tensors with ours, on the first sample. One run of each model on the reference.

    Raises:
        UsageError: inputs or outputs of ours are not there. UnknownName: `said` names no tensor.
    """
    theirs = _values_of(ours, other, reference, values, scratch)
    matches = match(ours, other, _known(values, _capturable(ours)), _known(theirs, _capturable(other)), said)
    found = CandidateModel(ours, other, matches, theirs)
    lacking = [n for n in ours.outputs if n in ours.maker and ours.kinds([n])[n] == VALUE and n not in matches]
    if lacking:
        raise UsageError(
            f"the output '{lacking[0]}' is not in {other.path.name}", "--map FILE, with a line OURS THEIRS, names it"
        )
    return found


def of_case(ours: Graph, folder: Path) -> CandidateModel | None:
    """The candidate's own model in a case's folder; None where it ran ours.

    Raises:
        InputError: what says which tensors are which is damaged.
    """
    if not (folder / EDGE).is_file():
        return None
    try:
        found = {
            str(name): MatchedTensor(
                str(m["other"]), str(m["how"]), tuple(map(int, m["perm"])), str(m["dtype"]),
                m["scale"] and Scale(tuple(m["scale"]["step"]), tuple(m["scale"]["zero"]), int(m["scale"]["axis"])),
            )
            for name, m in json.loads((folder / EDGE).read_text(encoding="ascii")).items()
        }  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{folder / EDGE} is damaged: {e}", "make the case anew") from e
    return CandidateModel(ours, load_graph(folder / "model.onnx").prepare(), found, None)


def _capturable(graph: Graph) -> list[str]:
    kinds = graph.kinds(graph.maker)
    return [*graph.inputs, *(n for n in graph.maker if kinds[n] == VALUE)]


def _known(values: ReferenceValues | None, names: Sequence[str]) -> Callable[[str], Array | None]:
    """What the tensors are on the first sample; None for sequences, and where the model cannot be run."""
    if values is None:
        return lambda name: None
    values.need(names)

    @lru_cache(maxsize=KEPT)
    def value(name: str) -> Array | None:
        import numpy as np

        record = values.records[0].get(name)
        found = load(record, Path("/")) if record and record.form == "tensor" else None
        return found if isinstance(found, np.ndarray) and found.dtype.kind != "O" else None

    return value


def _values_of(
    ours: Graph, other: Graph, reference: Reference, values: ReferenceValues, scratch: Path
) -> ReferenceValues | None:
    """The other model on the same inputs; None where the reference cannot run it: then names decide."""
    values.need(list(ours.inputs))
    samples = []
    try:
        for k, known in enumerate(values.records):
            words = _fed(ours, other, known, scratch / f"other-in{k}")
            (sample,) = plan(other, other.inputs, words)
            samples.append(replace(sample, label=values.labels[k]))
        found = ReferenceValues(other, reference, samples, scratch / "other-values")
        found.need(_capturable(other))
    except SubcutError as e:
        log.info("%s cannot be run on the reference, so that names alone decide: %s", other.path.name, e.what)
        return None
    return found


def _fed(ours: Graph, other: Graph, known: Mapping[str, Record], place: Path) -> list[str]:
    """Our inputs as words for theirs: by name, else by position; transposed or cast where they are declared so."""
    from subgraph.graph.types import declared_type

    place.mkdir(parents=True)
    words = []
    for k, (name, info) in enumerate(other.inputs.items()):
        own = name if name in ours.inputs else list(ours.inputs)[k] if k < len(ours.inputs) else None
        if own is None:
            continue  # one that ours has not: random values, as for any input without a file
        _, dtype, dims = declared_type(info.type)
        record, value = known[own], load(known[own], Path("/"))
        perm = _perm(record.shapes[0], dims) if record.form == "tensor" and record.shapes else ()
        if perm or (dtype and dtype != record.dtype):
            value = MatchedTensor(name, "name", perm, dtype).theirs(value)  # type: ignore[arg-type]
            record = save(name, value, f"tensor({dtype_word(dtype or record.dtype)})", place, f"i{k}").within(
                str(place)
            )
        words += [f"{name}={file}" for file in record.files[:1]]
    return words


def _perm(shape: tuple[int, ...], dims: Sequence[Any] | None) -> tuple[int, ...]:
    """The order of our axes that fits what is declared; () where the plain one does, or none."""
    orders = [] if dims is None else list(axis_orders(shape, dims))
    if not orders or orders[0] == tuple(range(len(shape))):
        return ()
    nhwc = (0, *range(2, len(shape)), 1)
    return nhwc if nhwc in orders else orders[0] if len(orders) == 1 else ()
