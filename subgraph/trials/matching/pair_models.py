"""The reference's model and the candidate's -> `CandidateModel`: which tensor of one is which of
the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from subgraph.comparison.metrics import max_rel
from subgraph.comparison.pair import Pair, compute_relative_l2
from subgraph.comparison.where import OutputChoice
from subgraph.errors import InputError, ModelError, SubcutError, UsageError
from subgraph.graph.cut import Cut, cut_region
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.merged_cuts import merge_cuts, partition
from subgraph.graph.quantization import find_tensor_scales
from subgraph.graph.region import Region, find_upstream_until
from subgraph.graph.shape_inference import infer_types
from subgraph.graph.value_types import read_type
from subgraph.graph.walks import find_descendants, find_operator
from subgraph.iterables import ungroup
from subgraph.log import log
from subgraph.precision import Precision
from subgraph.reach import reach
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.folders import make_numbered_folder
from subgraph.storage.layouts import iter_axis_orders
from subgraph.storage.tensors import Record, Records, write_value
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.matching.match_tensors import (
    ModelValues,
    can_hold,
    find_misshapen,
    list_value_tensors,
    match_tensors,
)
from subgraph.trials.matching.matched_tensor import MatchedTensor, Matches
from subgraph.trials.reference_model import run_loaded
from subgraph.types import Array, Shape, StringMap

MAX_USES = 64  # tests of the use of two tensors upstream of another one
MAX_ALIKE = 0.5  # relative l2 distance from which on it shows nothing about such tensors
MAX_UPSTREAM = 8  # tensors of the candidate's model that are tried for that
MAX_ATTEMPTS = 16  # to match more tensors downstream of a fault
OTHER_SHAPE = "input.wrong-shape"  # the code of an error
MAX_BREAKS = 4  # nodes that the reference does not run, after which no more is captured
MAX_HELD = 128  # tensors in memory while models are matched


def pair_models(
    graph: Graph,
    other: Graph,
    reference: Reference,
    values: ReferenceValues,
    scratch: Path,
    tensor_map: StringMap | None = None,
    choice: OutputChoice | None = None,
) -> CandidateModel:
    """Match tensors of the candidate's model `other` on the first sample. One run of each model on
    the reference.

    Downstream of a fault values are not alike any more. So if some deviate far, the candidate's
    model is run again from the reference's value of each tensor that was matched, until no more are
    matched.

    Args:
        graph: The reference's model.
        other: The candidate's model.
        reference: The reference that runs `other`.
        values: The reference's values of `graph`.
        scratch: A folder for files.
        tensor_map: Name in `graph` → name in `other`; None without a map.
        choice: The outputs of `graph` that `other` must have; None for all.

    Raises:
        UsageError: An input or output of `graph` is not in `other`.
        UnknownName: `tensor_map` names a tensor that does not exist.
    """
    values.need(list_value_tensors(graph))
    other_values, unknown = _run_reference(graph, other, reference, values, scratch)
    ours = _read_first_sample(graph, values)
    theirs = _read_first_sample(other, other_values)
    pair = CandidateModel(graph, other, {}, other_values, unknown)
    pair = _match_by_meaning(pair, ours, theirs, values, scratch, tensor_map)
    for attempt in range(MAX_ATTEMPTS if other_values else 0):
        tests = MeaningTests(pair, values, scratch / f"other-again{attempt}")
        if tests.agree_in_place(tests.limit):
            break
        # each value is computed from the reference's values of the tensors before it
        assert pair.values
        again = ReferenceValues(other, reference, pair.values.samples[:1], tests.folder / "again")
        again.captured = pair.values.captured[:1]
        again.records = [{n: tests.records[n] for n in other.inputs} | tests.fed]
        _need_computable(again, list_value_tensors(other))
        theirs = _read_first_sample(other, again)
        more = match_tensors(ours, theirs, tensor_map, pair.matches, pair.refuted)
        if len(more) == len(pair.matches):
            more |= tests.find_by_use()
        if len(more) == len(pair.matches):
            break
        pair = replace(pair, matches=more)
    wanted = (choice or OutputChoice()).select(n for n in graph.outputs if n in graph.maker)
    unmatched = [n for n in wanted if find_kinds(graph, [n])[n] == VALUE and n not in pair.matches]
    if unmatched:
        raise UsageError(
            f"the output '{unmatched[0]}' is not in {other.path.name}",
            "--map FILE, with a line OURS THEIRS, names it",
            code="pair.unmatched",
        )
    return replace(pair, matches=_add_types(pair, values.records[0]))


def _match_by_meaning(
    pair: CandidateModel,
    ours: ModelValues,
    theirs: ModelValues,
    values: ReferenceValues,
    scratch: Path,
    tensor_map: StringMap | None,
) -> CandidateModel:
    """Match tensors by name and by value, without those whose names are refuted."""
    match = partial(match_tensors, ours, theirs, tensor_map)
    pair = replace(pair, matches=match())
    if pair.values is None:
        return pair
    misshapen = find_misshapen(ours, theirs, pair.matches)
    if misshapen:
        tentative = replace(pair, matches=match(misshapen=misshapen))
        tests = MeaningTests(tentative, values, scratch / "other-shapes")
        misshapen = tests.find_misshapen(misshapen & tentative.matches.keys())
        pair = replace(pair, matches=match(misshapen=misshapen))
    for attempt in range(MAX_ATTEMPTS):
        found = MeaningTests(pair, values, scratch / f"other-names{attempt}").find_refuted()
        if not found:
            break
        refuted = {*pair.refuted, *((name, pair.matches[name].name) for name in found)}
        matches = match(refuted=refuted, misshapen=misshapen)
        pair = replace(pair, matches=matches, refuted=refuted)
    return pair


def _add_types(pair: CandidateModel, ours: Records) -> Matches:
    """Return the matches, with element types if no value shows them, or if the file does not
    load: those that it declares, or that follow from these, else those of our tensors."""
    if not pair.unknown and all(m.dtype for m in pair.matches.values()):
        return pair.matches
    type_of = infer_types(pair.graph).type_of
    types = {n: type_of(m.name) for n, m in pair.matches.items() if pair.unknown or not m.dtype}
    declared = {n: read_type(known)[1] for n, known in types.items() if known}
    return {
        n: m.with_type(declared.get(n) or m.dtype or (ours[n].dtype if m.plain else ""))
        for n, m in pair.matches.items()
    }


def _read_first_sample(graph: Graph, values: ReferenceValues | None) -> ModelValues:
    """Read a model's tensors on the first sample; None for sequences, or if the model cannot be
    run."""

    @lru_cache(maxsize=MAX_HELD)
    def value(name: str) -> Array | None:
        record = values.records[0].get(name) if values else None
        array = record.array() if record and record.form == "tensor" else None
        if isinstance(array, np.ndarray) and array.dtype.kind != "O":
            return array
        return None

    return ModelValues(graph, value)


def _run_reference(
    graph: Graph, other: Graph, reference: Reference, values: ReferenceValues, scratch: Path
) -> tuple[ReferenceValues | None, str]:
    """Return the reference's values of `other` on the same inputs; None and why if it cannot run
    it: then names decide."""
    values.need(list(graph.inputs))
    samples = []
    try:
        for k, captured in enumerate(values.records):
            words = _make_input_words(graph, other, captured, scratch / f"other-in{k}")
            (sample,) = Feeding(tuple(words)).plan(other, other.inputs)
            samples.append(replace(sample, label=values.labels[k]))
        other_values = ReferenceValues(other, reference, samples, scratch / "other-values")
        other_values.need(list(other.inputs))
    except SubcutError as e:
        if e.code == OTHER_SHAPE:
            raise InputError(
                f"{other.path.name} does not take this input: {e.what.rpartition(' has ')[2]}",
                "both models need inputs of one shape",
                code=OTHER_SHAPE,
            ) from e
        log.info(
            "%s cannot be run on the reference, so that names alone decide: %s",
            other.path.name,
            e.what,
        )
        return None, e.what
    return other_values, _need_computable(other_values, list_value_tensors(other))


def _need_computable(values: ReferenceValues, names: Sequence[str]) -> str:
    """Capture the tensors that the reference can compute.

    `names` are in topological order. Halves are tried if all at once fail, and nothing downstream
    of a node that fails: one run, or a few per such node.

    Returns:
        The reason why it cannot compute the first of the other tensors; "" without other tensors.
    """
    graph = values.graph
    broken = set()
    reasons: list[str] = []

    def need(some: Sequence[str]) -> None:
        some = [n for n in some if graph.maker.get(n) not in broken]
        try:
            if len(reasons) < MAX_BREAKS:
                values.need(some, near=True)
            return
        except SubcutError as e:
            reason = e.what
        if len(some) == 1:
            reasons.append(reason)
            broken.update(find_descendants(graph, [graph.maker[some[0]]]))
            return
        need(some[: len(some) // 2])
        need(some[len(some) // 2 :])

    need(names)
    return next(iter(reasons), "")


def _make_input_words(graph: Graph, other: Graph, records: Records, folder: Path) -> list[str]:
    """Make words NAME=FILE for the inputs of `other` from those of `graph`.

    They are paired by name, else by position, transposed or cast.

    An input that `graph` does not have gets none, and so random values.
    """
    folder.mkdir(parents=True)
    words = []
    by_position = dict(zip(other.inputs, graph.inputs, strict=False))
    scales = find_tensor_scales(other)
    own_scales = find_tensor_scales(graph)
    for k, (name, info) in enumerate(other.inputs.items()):
        own = name if name in graph.inputs else by_position.get(name)
        if own is None:
            continue
        _, dtype, dims = read_type(info.type)
        record = records[own]
        shape = record.shapes[0] if record.form == "tensor" and record.shapes else ()
        orders = [] if dims is None else list(iter_axis_orders(shape, dims))
        is_turned = bool(orders) and orders[0] != tuple(range(len(shape)))
        nhwc = (0, *range(2, len(shape)), 1)
        perm: Shape = ()  # the order that leads to the declared dimensions; of several, NHWC
        if is_turned and nhwc in orders:
            perm = nhwc
        elif is_turned and len(orders) == 1:
            perm = orders[0]
        match = MatchedTensor(name, "name", perm, "", scales.get(name), own_scales.get(own))
        match = match.with_type(dtype or record.dtype)
        if record.form == "tensor":
            record = match.convert(record, folder, f"i{k}")
        words += [f"{name}={file}" for file in record.files[:1]]
    return words


# ------------------------------------------------------------ meaning
# Tests of the meaning of a tensor of the candidate's model, on the reference and the first sample.
#
# A name survives the changes of an optimizer. If BatchNormalization is folded into the Conv before,
# the name of the Conv's output remains, and its value is that of the normalization. A boundary is
# a claim, which is tested: if the nodes upstream of the tensor are wrong, and right by far when
# they are run as one with those downstream of it, the name means another tensor. If they are
# wrong as one, too, they have a fault.

MIN_DISTANCE = 1e-3  # relative l2 distance of tensors that are not the same; rounding is below it
MIN_ROUNDINGS = 12.0  # of the candidate's precision: in int8, a distance of 0.05
MIN_RATIO = 4.0  # of the error of a piece to that of the piece that it is joined with


@dataclass
class MeaningTests:
    """Runs pieces of the candidate's model, fed with the reference's values, on the reference.

    Attributes:
        pair: The two models, their matches, and the reference's values of the candidate's model.
        values: The reference's values of the reference's model.
        folder: A folder for files; it is created.
    """

    pair: CandidateModel
    values: ReferenceValues
    folder: Path

    @property
    def limit(self) -> float:
        """The distance from which on two tensors are not the same."""
        precision = self.pair.precision or Precision.FP32
        return max(MIN_DISTANCE, MIN_ROUNDINGS * precision.eps)

    @property
    def records(self) -> Records:
        """The reference's values of the candidate's model on the first sample."""
        assert self.pair.values
        return self.pair.values.records[0]

    @cached_property
    def regions(self) -> dict[str, Region | None]:
        """The nodes that compute each matched tensor, by its name in the reference's model."""
        return {name: self._find_region(name) for name in self.pair.matches}

    @cached_property
    def fed(self) -> dict[str, Record]:
        """The reference's values of the matches in the candidate's form, by its name of them."""
        folder = make_numbered_folder(self.folder, "run")
        records = self.values.records[0]
        return {
            match.name: match.convert(records[name], folder, f"f{k}")
            for k, (name, match) in enumerate(self.pair.matches.items())
            if records[name].form == "tensor"
        }

    def find_refuted(self) -> set[str]:
        """Find the matches by name that mean another tensor.

        One run if a tensor deviates in the full model, and another one if a piece does. A suspect
        is joined with its readers, alone and together with all suspects that it is linked with.
        """
        if self.agree_in_place(MIN_DISTANCE):
            return set()
        outputs = self.pair.reference.outputs
        named = [n for n, m in self.pair.matches.items() if m.how == "name" and n not in outputs]
        errors = self._measure_all()
        suspects = {name for name in named if errors[name] > self.limit}
        readers = {name: self.find_readers(name) for name in suspects}
        linked = {n: readers[n] | {m for m in suspects if n in readers[m]} for n in suspects}
        nets = (reach([name], lambda n: linked[n] & suspects) for name in suspects)
        groups = {frozenset(group) for group in (*([name] for name in suspects), *nets)}
        joined = {g: sorted(g.union(*(readers[name] for name in g))) for g in groups}
        pieces = [(n, self._find_region(n, g)) for g, n in ungroup(joined.items())]
        measured = iter(self.measure(pieces, {}))
        refuted = set()
        for group, names in joined.items():
            own = {name: next(measured) for name in names}
            others = own.keys() - group
            if _are_right(self, own, others):
                least = max(self.limit, *(MIN_RATIO * own[name] for name in others))
                refuted |= {name for name in group if own[name] > least}
        # Next to a fault nothing is right; there the other names of the kind decide, if all moved.
        moved = Counter(_find_kind(self, name) for name, _ in self.pair.refuted)
        kept = {_find_kind(self, name) for name in named if errors[name] <= self.limit}
        alike = {n for n in suspects if moved[kind := _find_kind(self, n)] > 1 and kind not in kept}
        return refuted | alike

    def find_misshapen(self, names: Collection[str]) -> set[str]:
        """Find the tensors whose shape is wrong in the candidate's model.

        Downstream of such a tensor, that model is right if it is fed with the reference's value,
        and not if that value has the other shape. An output that no node reads is one unless
        another tensor shows that the model has another layout.
        """
        pair = self.pair
        reshaped = {}
        folder = make_numbered_folder(self.folder, "run")
        for k, name in enumerate(names):
            target = pair.matches[name].name
            shape = self.records[target].shapes[0]
            value = self.fed[target].array()
            if value.size == math.prod(shape):
                reshaped[target] = write_value(target, value.reshape(shape), folder, f"r{k}")
        kept = self._measure_all()
        turned = self._measure_all(reshaped)
        found = set()
        has_layout = any(m.perm for name, m in pair.matches.items() if name not in names)
        for name in names:
            readers = self.find_readers(name)
            if not readers and not has_layout:
                found.add(name)
            is_same = pair.matches[name].name in reshaped and _are_right(self, turned, readers)
            if not is_same and _are_right(self, kept, readers):
                found.add(name)
        return found

    def find_by_use(self) -> dict[str, MatchedTensor]:
        """Match tensors within the deviating pieces by the tensors that are computed of them.

        A tensor is matched if the candidate's model, fed with the reference's value of it, outputs
        the reference's values. So the fault of a piece is upstream of it.
        """
        found: dict[str, MatchedTensor] = {}
        records = self.values.records[0]
        for name, error in self._measure_all().items():
            uses = islice(_iter_uses(self, name), MAX_USES) if error > self.limit else ()
            for some in uses:
                folder = make_numbered_folder(self.folder, "run")
                fed = {
                    match.name: match.convert(records[n], folder, f"u{k}")
                    for k, (n, match) in enumerate(some.items())
                }
                region = self._find_region(name, more=fed)
                if region is None or not fed.keys() <= {*region.inputs}:
                    continue
                if not self.measure([(name, region)], fed)[0] <= self.limit:  # or NaN
                    continue
                taken = {match.name for match in found.values()}
                is_new = taken.isdisjoint(match.name for match in some.values())
                if is_new and found.keys().isdisjoint(some):
                    found |= some
                break
        return found

    def find_readers(self, name: str) -> set[str]:
        """Find the tensors whose pieces are fed with this one."""
        target = self.pair.matches[name].name
        return {n for n, region in self.regions.items() if region and target in region.inputs}

    def _find_region(
        self, name: str, without: Collection[str] = (), more: Collection[str] = ()
    ) -> Region | None:
        """Find the nodes that compute a tensor from all matched tensors but some.

        Args:
            name: The tensor.
            without: Matched tensors that are not used.
            more: Further tensors of the candidate's model that are used.

        Returns:
            None without such nodes, or if one of them reads a tensor without a producer.
        """
        stops = {*more, *(m.name for n, m in self.pair.matches.items() if n not in without)}
        target = self.pair.matches[name].name
        try:
            region = find_upstream_until(self.pair.graph, [target], stops.__contains__)
        except ModelError:
            return None
        return region and replace(region, outputs=(target,))

    # ------------------------------------------------------------ runs

    def _measure_all(self, fed: Records | None = None) -> dict[str, float]:
        pieces = list(self.regions.items())
        return dict(zip(self.regions, self.measure(pieces, fed or {}), strict=True))

    def measure(
        self,
        pieces: Sequence[tuple[str, Region | None]],
        other_values: Records,
    ) -> list[float]:
        """Measure the relative error of each tensor that a piece computes; NaN if it is unknown.

        Args:
            pieces: A name in the reference's model, and the nodes that compute it.
            other_values: By name in the candidate's model, what to feed instead of `fed`.
        """
        own = self.pair.values
        assert own
        for _, region in pieces:
            with suppress(SubcutError):  # upstream of it a node does not run
                own.need(region.shapes if region else ())
        fed = {**self.records, **self.fed, **other_values}
        cuts = {}
        for k, (_, region) in enumerate(pieces):
            entering = {*region.entering} if region else set()
            if region and entering <= fed.keys():
                feeds = {name: fed[name] for name in entering}
                cuts[k] = cut_region(self.pair.graph, region, [feeds], Path("/"))
        made: dict[int, Record] = {}
        for pool in partition(list(cuts.values())) if cuts else ():
            made |= self._run(pool, fed)
        errors = [math.nan] * len(pieces)
        for k, cut in cuts.items():
            if id(cut) in made:
                errors[k] = self._measure_distance(pieces[k][0], made[id(cut)])
        return errors

    def _run(self, cuts: Sequence[Cut], fed: Records) -> dict[int, Record]:
        """Return the outputs of the cuts that the reference runs, by their `id`."""
        assert self.pair.values
        reference = self.pair.values.reference
        merged = merge_cuts(cuts)
        folder = make_numbered_folder(self.folder, "run")
        try:
            with reference.exclude_others():
                reference.load_model(str(folder), merged.model, self.pair.graph.path, folder)
                feeds = [merged.feeds(fed)]
                names = merged.output_names
                (made,) = run_loaded(reference, str(folder), feeds, names, lambda: folder)
        except SubcutError:
            half = len(cuts) // 2
            if half:
                return self._run(cuts[:half], fed) | self._run(cuts[half:], fed)
            return {}
        outputs = (of_cut.values() for of_cut in merged.split(made))
        return {id(cut): record for cut, record in ungroup(zip(cuts, outputs, strict=True))}

    def agree_in_place(self, limit: float) -> bool:
        """Return whether all matches agree in a run of the candidate's full model; an unknown
        tensor does not."""
        return all(
            m.name in self.records and self._measure_distance(name, self.records[m.name]) <= limit
            for name, m in self.pair.matches.items()
        )

    def _measure_distance(self, name: str, record: Record) -> float:
        """Return the relative distance of a tensor, whatever its shape; 0 for other values than
        real numbers.

        The largest error counts, too: a Relu may hide a fault in all but a few elements.
        """
        expected = self.values.records[0][name]
        match = self.pair.matches[name]
        if expected.form != "tensor" or record.form != "tensor":
            return 0.0
        real = match.get_real_reference(expected.array())
        if real.dtype.kind not in "fV":
            return 0.0
        values = real.reshape(-1), match.to_real(record.array()).reshape(-1)
        distance = compute_relative_l2(*values)
        if not math.isfinite(distance):
            return math.inf
        return max(distance, max_rel.of_pair(Pair(*values)))


def _are_right(tests: MeaningTests, errors: Mapping[str, float], names: Collection[str]) -> bool:
    """Return whether some tensors agree; an unknown error is NaN, which is on no side of a
    limit."""
    return bool(names) and all(errors[name] <= tests.limit for name in names)


def _iter_uses(tests: MeaningTests, name: str) -> Iterator[dict[str, MatchedTensor]]:
    """Yield tensors upstream of a matched one that may be the same: first what two nodes of one
    operator read, then those of one shape, likely ones first."""
    pair = tests.pair
    ours = pair.reference
    theirs = pair.graph
    target = pair.matches[name].name
    piece = find_upstream_until(ours, [name], pair.matches.__contains__)
    own_piece = tests.regions[name]
    if piece is None or own_piece is None:
        return
    own = tests.records
    scales = find_tensor_scales(theirs)
    uses = {
        n: MatchedTensor(n, "use", scale=scales.get(n)).with_type(own[n].dtype)
        for n in theirs.iter_outputs(own_piece.nodes)
        if n != target and n in own and own[n].form == "tensor"
    }
    records = tests.values.records[0]
    inner = [n for n in ours.iter_outputs(piece.nodes) if n in records.keys() - pair.matches]
    node = ours.maker[name]
    own_node = theirs.maker[target]
    reads = [n for n in ours.reads[node] if n in inner]
    own_reads = [uses[n] for n in theirs.reads[own_node] if n in uses]
    if ours.ops[node] == theirs.ops[own_node] and len(reads) == len(own_reads):
        yield dict(zip(reads, own_reads, strict=True))
    for n, use in [*uses.items()][: -MAX_UPSTREAM - 1 : -1]:
        value = own[n].array()
        alike = [
            name
            for name in inner
            if records[name].shapes == own[n].shapes
            and can_hold(ours, name, use, records[name].array(), value)
        ]
        yield from ({name: use} for name in sorted(alike, key=partial(_rank_use, tests, use)))


def _rank_use(tests: MeaningTests, match: MatchedTensor, name: str) -> tuple[float, bool]:
    """Return the distance of a tensor from another in place, and whether their operators differ.

    A distance from `MAX_ALIKE` on counts as `MAX_ALIKE`.
    """
    models = (tests.pair.reference, name), (tests.pair.graph, match.name)
    operators = {find_operator(graph, tensor) for graph, tensor in models}
    own = match.to_real(tests.records[match.name].array())
    apart = compute_relative_l2(tests.values.records[0][name].array(), own)
    return min(apart, MAX_ALIKE), len(operators) > 1


def _find_kind(tests: MeaningTests, name: str) -> tuple[str, frozenset[str]]:
    """Return the operator that computes a tensor of the reference's model, and those that read
    it."""
    graph = tests.pair.reference
    return find_operator(graph, name), frozenset(graph.ops[i] for i in graph.readers.get(name, ()))
