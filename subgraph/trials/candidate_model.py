"""A candidate that runs its own model: cut at the same boundaries, fed the same values in the form
of that model.

`match_tensors` finds the boundary tensors of a region in the candidate's model; the nodes between
them are the region there. Values are transposed, cast or quantized on the way in and turned back on
the way out, so that judging, attribution and search see tensors of the reference's model only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from subgraph.comparison.float_types import mask_plateau
from subgraph.comparison.pair import pair_if_comparable
from subgraph.documents import read_document
from subgraph.errors import ModelError, NoRegion, SubcutError
from subgraph.graph import protobuf, region as regions
from subgraph.graph.cut import (
    Cut,
    build_model,
    drop_open_shapes,
    freeze_constant,
    list_boundary_types,
    make_consistent_infos,
)
from subgraph.graph.graph import Graph, load
from subgraph.graph.kinds import SHAPE, VALUE, find_kinds
from subgraph.graph.nested import get_attribute
from subgraph.graph.quantization import (
    AXIS,
    SPECIFIED_STEPS,
    TFLITE,
    WEIGHT_ONLY,
    find_tensor_scales,
    finds_scales,
    is_quantized,
    makes_steps,
    read_constant_scale,
)
from subgraph.graph.region import Region, prepare_graph
from subgraph.graph.selection import is_tensor
from subgraph.graph.value_types import find_value_infos, read_type, set_tensor
from subgraph.graph.walks import find_operator, skip_operators
from subgraph.iterables import flatten, group_values, pick
from subgraph.precision import Precision
from subgraph.reach import reach
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.digest import digest
from subgraph.storage.dtypes import TYPE_NUMBERS, Scale, name_of
from subgraph.storage.tensors import Record, Records, find_largest, write_value
from subgraph.text import omit_middle
from subgraph.trials.matching.as_quantized import find_quantized
from subgraph.trials.matching.matched_tensor import MatchedTensor, Matches
from subgraph.types import StringMap, Strings

# The file of a case with the `MatchedTensor` of each boundary tensor.
BOUNDARY_MATCHES = "edge.json"
MIN_NEAREST = 0.9  # of the quantized weights, if a model is judged by its steps alone
QUANTIZERS = ("QuantizeLinear", "QUANTIZE")
QUANTIZED = ("int8", "uint8", "int16", "uint16")


@dataclass
class CandidateModel:
    """The candidate's own model, in addition to the reference's model.

    Attributes:
        reference: The reference's model, prepared.
        graph: The candidate's model, prepared.
        matches: The place in the candidate's model of each tensor of the reference's model.
        values: onnxruntime's values of the candidate's model without optimizations; None if it
            cannot run it.
        unknown: The reason why there are no values.
        refuted: Names in the reference's model and in the candidate's that mean different tensors.
        weight_cost: How far the candidate's quantized weights move an output, as a share of its
            largest value, if the reference takes them (`as_quantized`); else None.
        nearest: The share of its quantized weights that the reference takes.
    """

    reference: Graph
    graph: Graph
    matches: Matches
    values: ReferenceValues | None
    unknown: str = "only its matches are known"
    refuted: Collection[tuple[str, str]] = ()
    weight_cost: float | None = None
    nearest: float = 0.0
    _regions: dict[tuple[tuple[int, ...], Strings], Region] = field(
        default_factory=dict, init=False
    )

    @cached_property
    def identity(self) -> str:
        """A hash of all that its outputs depend on."""
        weights = protobuf.digest_weights(
            [t for t in self.graph.weights.values() if protobuf.is_on_disk(t)], self.graph.path
        )
        return digest(
            "other/2",
            self.graph.skeleton.structure,
            weights,
            sorted(map(repr, self.matches.items())),
        )

    @cached_property
    def _names(self) -> StringMap:
        """Names in the reference's model by those in the candidate's."""
        read = {m.name: name for name, m in self._read_outputs.items()}
        return read | {m.name: name for name, m in self.matches.items()}

    @cached_property
    def _read_outputs(self) -> Matches:
        """Codes that nodes of the candidate's model read, by the output that is dequantized of
        them."""
        found = {}
        known = self.values.records[0] if self.values else {}
        taken = {match.name for match in self.matches.values()}
        for name in self.matches.keys() & set(self.reference.outputs):
            codes, scale = self.find_quantizer(name)
            is_read = len(self.graph.readers.get(codes, ())) > 1 and codes not in taken
            if is_read and codes in known:
                dtype = known[codes].dtype
                found[name] = replace(self.matches[name], name=codes, scale=scale, dtype=dtype)
        return found

    @property
    def is_of_case(self) -> bool:
        """Whether it is a region in a case: its inputs are tensors of the full model."""
        return self.values is None and self.unknown == ""

    def _match_entering(self, name: str) -> MatchedTensor:
        """Return the match of a tensor as a region reads it."""
        return self._read_outputs.get(name) or self.matches[name]

    @cached_property
    def precision(self) -> Precision | None:
        """The precision that its tensors show: int8, fp16, bf16; None if it is the reference's.
        Weights in blocks of 4 or 8 bits count as int8, unless the reference's are quantized, too.
        Blocks that the reference takes, too, change nothing.

        Also int8 if the reference's tensors are quantized and its own are not: the rounding is
        the reference's.
        """
        finer = any(m.reference_scale and not m.scale for m in self.matches.values())
        has_blocks = not WEIGHT_ONLY.isdisjoint(self.graph.ops)
        finds_steps = self.weight_cost is None or any(map(finds_scales, self.graph.nodes))
        has_blocks = has_blocks and finds_steps and not is_quantized(self.reference.ops)
        if finer or has_blocks or is_quantized(self.graph.ops) or find_tensor_scales(self.graph):
            return Precision.INT8
        return _find_narrow_type(self, range(len(self.graph.nodes)))

    def precision_of(self, region: Region) -> Precision | None:
        """Return the precision of a region.

        If only a part of the model is in float16, it is that of the element types of the region.
        """
        if not self.precision or not self.precision.narrow or self.find_problem(region):
            return self.precision
        own = self.region(region)
        return _find_narrow_type(self, own.all_nodes)

    def output_scales(self, region: Region) -> Mapping[str, Scale] | None:
        """Return the scales of the outputs that a region quantizes, if only their steps excuse it.

        None if other steps add up: of a quantizer within the region, or of weights that the
        reference does not take.
        """
        if self.nearest < MIN_NEAREST or self.find_problem(region):
            return None
        own = self.region(region)
        known = {n: self.find_quantizer(n) for n in region.outputs if n in self.matches}
        codes = {*own.outputs, *(name for name, _ in known.values())}
        for node in (self.graph.nodes[i] for i in own.all_nodes):
            is_step = makes_steps(node) or finds_scales(node)
            if node.domain == TFLITE or (is_step and node.output[0] not in codes):
                return None
        if any(self.matches[name].reference_scale for name in known):
            return None
        found = {name: scale for name, (_, scale) in known.items() if scale}
        if any(len(scale.step) > 1 for scale in found.values()):
            return None
        return found

    def find_quantizer(self, name: str) -> tuple[str, Scale | None]:
        """Return the codes of a tensor in the candidate's model, and their scale; None if it is not
        quantized."""
        match = self.matches[name]
        if match.scale or find_operator(self.graph, match.name) != "DequantizeLinear":
            return match.name, match.scale if match.dtype in QUANTIZED else None
        node = self.graph.nodes[self.graph.maker[match.name]]
        return node.input[0], read_constant_scale(self.graph, node, 1, 2)

    # ------------------------------------------------------------ cutting

    def region(self, region: Region) -> Region:
        """Return the region of the candidate's model between the same boundaries.

        Raises:
            ModelError: an output is not matched, or it depends on tensors that cross the boundary.
        """
        key = (region.nodes, region.outputs)
        if key in self._regions:
            return self._regions[key]
        graph = self.graph
        kinds = find_kinds(self.reference, region.outputs)
        names = [n for n in region.outputs if kinds[n] == VALUE]
        if unmatched := [n for n in names if n not in self.matches]:
            raise ModelError(
                f"tensor '{unmatched[0]}' is not in {graph.path.name}",
                "name it with --map FILE",
                code="pair.unmatched",
            )
        outputs = tuple(dict.fromkeys(self.matches[n].name for n in names))
        boundary = {self._match_entering(n).name for n in region.inputs if n in self.matches}

        def follow(i: int) -> Iterator[int]:
            for name, kind in find_kinds(graph, graph.reads[i]).items():
                is_defined = is_tensor(graph, name)
                if kind == VALUE and name not in boundary and is_defined:
                    yield _find_maker(self, name, boundary)

        nodes = reach([_find_maker(self, n, boundary) for n in outputs], follow)
        # A runtime refuses a piece that reads what no node makes, and so the search names it.
        piece = regions.build_region(graph, nodes, [(n,) for n in outputs], keep_undefined=True)
        self._regions[key] = replace(piece, outputs=outputs)
        return self._regions[key]

    def find_problem(self, region: Region) -> str:
        """Return the reason why the candidate's model has no such region; "" if it has."""
        try:
            self.region(region)
        except (ModelError, NoRegion) as e:
            return e.what
        return ""

    def cut(self, region: Region, records: Feeds, folder: Path) -> tuple[Cut, list[list[Record]]]:
        """Return the cut of the candidate's model, and per sample the tensors that it is fed; their
        files go to `folder`.

        Raises:
            ModelError: as `region`; or the value of a shape, or a type, is unknown.
        """
        cut = self.region(region)
        feeds = self.feeds(region, records, folder)
        graph = self.graph
        outputs = cut.outputs
        infos = find_value_infos(graph, {*cut.inputs, *outputs})
        shapes = self._get_captured(cut.shapes)
        captured = () if self.unknown else self._get_captured(outputs)
        if cut.shapes and not shapes:
            raise ModelError(
                f"the shape '{cut.shapes[0]}' of {graph.path.name} is not known: {self.unknown}",
                code="pair.unknown-type",
            )
        types = list_boundary_types(graph, cut.inputs, feeds, {})
        # onnx infers no types downstream of a contrib operator.
        declared = {}
        known = self._names
        for name in outputs:
            number = TYPE_NUMBERS.get(self.matches[known[name]].dtype)
            if number:
                declared[name] = protobuf.load_protos().ValueInfoProto(name=name)
                set_tensor(declared[name].type, number, None)
        types |= list_boundary_types(graph, outputs, captured, declared | infos)
        constants = [freeze_constant(shapes[0][n], Path("/")) for n in cut.shapes]
        infos = make_consistent_infos(graph, types, infos, pinned=True)
        model, renamed = build_model(graph, cut, cut.inputs, outputs, types, infos, constants)
        drop_open_shapes(model)
        full = protobuf.to_onnx(model, graph.path)
        other_cut = Cut(graph, cut, cut.inputs, outputs, cut.shapes, types, full, renamed)
        return other_cut, [list(sample.values()) for sample in feeds]

    def _get_captured(self, names: Sequence[str]) -> Feeds:
        """Return the reference's values of the candidate's model; none if it cannot compute these
        tensors."""
        if self.values is None:
            return ()
        try:
            self.values.need(names)
        except SubcutError:
            return ()
        return self.values.records

    def feeds(self, region: Region, records: Feeds, folder: Path) -> list[Records]:
        """Return per sample the tensors that the region of the candidate's model is fed.

        Their files go to `folder`.
        """
        known = self._names
        names = [(n, known[n]) for n in self.region(region).inputs]
        return [
            {
                n: self._match_entering(own).convert(sample[own], folder, f"in{k}-{i}")
                for i, (n, own) in enumerate(names)
            }
            for k, sample in enumerate(records)
        ]


def find_code_type(other: CandidateModel, name: str) -> str:
    """Return the element type of a tensor's codes in the candidate's model."""
    match = other.matches[name]
    if match.dtype in QUANTIZED:
        return match.dtype
    node = other.graph.nodes[other.graph.maker[match.name]]
    zero = other.graph.constant(node.input[2]) if len(node.input) > 2 else None
    return name_of(zero.data_type) if zero else "uint8"


def find_tflite_scale(other: CandidateModel, name: str) -> Scale | None:
    """Return the scale of an intermediate tensor of TensorFlow Lite's; None for one that has a
    scale per channel, as weights have, or that the reference quantizes, too."""
    match = other.matches.get(name)
    if not match or not match.scale or match.reference_scale or name in other.reference.outputs:
        return None
    makers = other.graph.producers([match.name])
    is_tflite = any(other.graph.nodes[i].domain == TFLITE for i in makers)
    if is_tflite and len(match.scale.step) == 1:
        return match.scale
    return None


INT8_STEPS = 127.0  # of int8, between zero and the largest value


def find_half_step(other: CandidateModel, name: str, scale: Scale, largest: float) -> float:
    """Find half a step of an intermediate tensor.

    Of a scale that was chosen and not specified, no more than its largest value needs.
    """
    step = scale.step[0]
    op_type = find_operator(other.graph, other.matches[name].name)
    is_specified = step == SPECIFIED_STEPS.get(op_type)
    return (step if is_specified else min(step, largest / INT8_STEPS)) / 2


def find_joined_tensors(other: CandidateModel) -> list[Strings]:
    """Find tensors that one node of the candidate's model computes: no boundary is between
    them, as in a fused Add and LayerNormalization."""
    makers = other.graph.maker
    made = group_values(
        (makers[m.name], name) for name, m in other.matches.items() if m.name in makers
    )
    return [tuple(names) for names in made.values() if len(names) > 1]


def _find_narrow_type(other: CandidateModel, nodes: Collection[int]) -> Precision | None:
    """Return the coarsest 16-bit float type among tensors of these nodes, as far as it is known."""
    graph = other.graph
    names = set(flatten((*graph.reads[i], *graph.makes[i]) for i in nodes))
    types = {m.dtype for m in other.matches.values() if m.name in names}
    types |= {name_of(t.data_type, "") for t in map(graph.constant, names) if t}
    casts = (graph.nodes[i] for i in nodes if graph.ops[i] == "Cast")
    types |= {name_of(int(get_attribute(node, "to", 0)), "") for node in casts}
    return next((p for p in (Precision.BF16, Precision.FP16) if p.dtype in types), None)


def _find_maker(other: CandidateModel, name: str, boundary: set[str]) -> int:
    maker = other.graph.maker.get(name)
    if maker is None or name in boundary:
        raise ModelError(
            f"{other.graph.path.name} has no piece between the same tensors: '{name}' lies across",
            code="pair.no-region",
        )
    return maker


def coarsen_inputs(
    other: CandidateModel,
    region: Region,
    records: Feeds,
    claim: Precision,
    new_folder: Callable[[], Path],
) -> list[dict[str, Record]]:
    """Return, per sample, the entering tensors of a region that the candidate's type cannot hold.

    Its scale clips them, or rounds more coarsely than the claimed precision. Their values are those
    that the candidate is fed, in the reference's form.

    Such an error belongs to the producer of the tensor, not to its consumers. The candidate's own
    rounding of the model's inputs has no producer: it counts as the candidate's error.
    """
    # Floats that depend on shapes alone stay: each quantizer on its way rounds a grid of anchors.
    shapes = {}
    for theirs in other.region(region).shapes:
        real_name = skip_operators(other.graph, theirs, AXIS)
        known = other._get_captured([theirs])
        if known and real_name in region.shapes and real_name != theirs:
            pair = pair_if_comparable(records[0][real_name].value(), known[0][theirs].value())
            if pair and pair.error <= find_largest(pair.reference) / INT8_STEPS:
                shapes[real_name] = replace(known[0][theirs], name=real_name)
    changed: list[dict[str, Record]] = [dict(shapes) for _ in records]
    own = () if other.is_of_case else other.reference.inputs
    for name in (n for n in region.inputs if n not in own and n in other.matches):
        match = other.matches[name]
        for fed, sample in zip(changed, records if match.scale else (), strict=False):
            value = sample[name].array()
            taken = match.to_candidate(value)
            real = match.get_real_reference(value)
            plateau = mask_plateau(real)
            free = real if plateau is None else real[~plateau]
            limit = claim.eps * find_largest(free)
            if not np.abs(match.to_real(taken) - real).max(initial=0) <= limit:  # or NaN
                coarse = match.to_reference(taken, sample[name].dtype)
                fed[name] = write_value(name, coarse, new_folder(), "f")
    return changed if any(changed) else []


def translate_result(
    other: CandidateModel,
    region: Region,
    result: RunResult,
    reference_values: Feeds,
    new_folder: Callable[[], Path],
) -> RunResult:
    """Return a result of the candidate's model in the names and forms of the reference's model.

    Outputs that depend on shapes alone take the reference's values.
    """
    if result.failure:
        return result
    kinds = find_kinds(other.reference, region.outputs)
    samples = []
    for reference, outputs in zip(reference_values, result.tensors, strict=False):
        sample = {}
        for name in region.outputs:
            expected = reference.get(name)
            if kinds[name] == SHAPE and expected:
                sample[name] = expected
                continue
            match = other.matches.get(name)
            record = outputs.get(match.name) if match else None
            if not match or not record:
                continue
            dtype = expected.dtype if expected else record.dtype
            if record.form == "tensor" and not (match.plain and record.dtype == dtype):
                value = match.to_reference(record.array(), dtype)
                record = write_value(name, value, new_folder(), "t")
            sample[name] = replace(record, name=name)
        samples.append(sample)
    return replace(result, tensors=tuple(samples))

    # ------------------------------------------------------------ reports


def find_boundary_matches(other: CandidateModel, region: Region) -> Matches:
    """Return the matches of a region's boundary, which `load_own_model` reads back."""
    entering = {n: other._match_entering(n) for n in region.inputs if n in other.matches}
    return entering | pick(other.matches, region.outputs)


def describe_matches(other: CandidateModel) -> str:
    """Return the number of matched tensors, and the ways in which they were matched."""
    matches = other.matches.values()
    hows = [
        f"{n} by {how}"
        for how in ("name", "map", "place", "value", "use")
        if (n := sum(m.how == how for m in matches))
    ]
    more = {
        "transposed": sum(bool(m.perm) for m in matches),
        "quantized": sum(m.scale is not None for m in matches),
    }
    hows += [f"{n} {word}" for word, n in more.items() if n]
    types = []
    for name, info in find_value_infos(other.reference, other.reference.outputs).items():
        own = other.matches.get(name)
        expected = read_type(info.type)[1]
        if own and own.dtype not in ("", expected) and not own.scale:
            types.append(f"output {name} is {own.dtype} for {expected}")
    if other.weight_cost is not None:
        cost = f"{100 * other.weight_cost:.2g} %"
        types.append(f"quantized weights are taken as they are there: {cost} of the outputs")
    if moved := sorted(name for name, _ in other.refuted):
        types.append(
            f"not the same in spite of the name: {len(moved)}, first {omit_middle(moved[0])}"
        )
    return f"{len(matches)} tensors of {other.graph.path.name} are ours: {', '.join(hows + types)}"


def measure_saturation(other: CandidateModel, values: ReferenceValues) -> dict[str, float]:
    """Return the share of values beyond the type's range, for tensors that the candidate quantizes.

    The candidate's model has their scales.
    """
    shares: dict[str, float] = {}
    known = other._names
    for stored, scale in find_tensor_scales(other.graph).items():
        real = skip_operators(other.graph, stored, QUANTIZERS)
        name = known.get(stored) or known.get(real)
        if name is None or other.values is None or name not in values.records[0]:
            continue
        other.values.need([stored])
        dtype = other.values.records[0][stored].dtype
        if dtype not in QUANTIZED:
            continue
        readers = {other.reference.ops[i] for i in other.reference.readers.get(name, ())}
        match = replace(other.matches[name], scale=None, dtype="")
        found = [sample[name].array() for sample in values.records]
        if readers and readers <= {"Relu", "Clip"}:  # what these cut off is not lost
            found = [np.maximum(value, 0) for value in found]
        shares[name] = max(
            scale.compute_saturated_share(match.to_candidate(value), dtype) for value in found
        )
    return shares


def load_own_model(graph: Graph, folder: Path) -> CandidateModel | None:
    """Load the candidate's own model from a case's folder.

    Returns:
        None if the candidate ran the reference's model.

    Raises:
        InputError: The file of matches is damaged.
    """
    if not (folder / BOUNDARY_MATCHES).is_file():
        return None
    matches = read_document(
        folder / BOUNDARY_MATCHES, dict[str, MatchedTensor], "make the case again"
    )
    other = prepare_graph(load(folder / "model.onnx"))
    _, share = find_quantized(graph, other)
    return CandidateModel(graph, other, matches, None, unknown="", nearest=share)
