"""Runs a region on the reference with perturbed or rounded values, for one sample.

One session serves all draws of a claim: its model perturbs the values itself, and is fed with the
keys of the random numbers alone.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from subgraph.comparison.float_types import FLOATS
from subgraph.comparison.noise import perturb
from subgraph.comparison.noise.analysis import (
    RoundingSites,
    find_channel_axis,
    find_ranked_tensor,
    find_rounding_sites,
)
from subgraph.comparison.noise.instrument import (
    STEPPED,
    Change,
    add_steps,
    find_element_types,
    instrument_model,
    set_outputs,
)
from subgraph.comparison.noise.rounding_nodes import ChannelRange, compute_noise_scale, is_stepped
from subgraph.errors import ModelError, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut, cut_region
from subgraph.graph.graph import Graph
from subgraph.graph.opsets import get_opset
from subgraph.graph.properties import SUMS
from subgraph.graph.quantization import TFLITE
from subgraph.graph.region import Region
from subgraph.graph.walks import find_operator
from subgraph.iterables import drop_repeats, pick
from subgraph.precision import Precision
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.dtypes import name_of
from subgraph.storage.folders import make_numbered_folder
from subgraph.storage.tensors import (
    Record,
    Records,
    copy_record,
    find_type,
    load,
    save,
    write_value,
)
from subgraph.types import Array, StringMap, Strings, frozen

if TYPE_CHECKING:
    from subgraph.comparison.noise.instrument import Instrumented
    from subgraph.comparison.noise.rounding_nodes import ChannelRange

# Ops whose values are sums of many terms; a runtime may add them in another order at another index.
MAX_ATTEMPTS = 4  # at a draw that is not void
SEED = 0  # part of the labels of stored runs
_NUMBERS = itertools.count()  # of samplers: threads that share a reference use different keys


@frozen
class NoiseRun:
    """One run of the region, in which all that rounds is perturbed; equal values of a tensor alike.

    Attributes:
        number: of the run among those alike; it selects the random numbers.
        rounded: nothing is perturbed: every value is rounded to the claimed type instead.
        tie_factor: if not 0, computed values are perturbed independently, equal ones too, by so
            many roundings.
    """

    claim: Precision
    number: int = 0
    rounded: bool = False
    tie_factor: float = 0.0

    @property
    def label(self) -> str:
        """The name under which the result is stored, within a region, sample and reference."""
        if self.rounded:
            return f"rounded {self.claim}"
        kind = f"untied {self.tie_factor:g}" if self.tie_factor else "draw"
        return f"{kind} {self.claim} {self.number} seed {SEED}"

    @property
    def model(self) -> tuple[object, ...]:
        """Runs for which this is equal share an instrumented model."""
        return self.claim, self.rounded, bool(self.tie_factor)


@frozen
class NoiseRunDocument:
    """The stored result of a run: the tensors that were written, and whether many sums of a tensor
    are equal."""

    tensors: tuple[Record, ...]
    ties: bool = False


@dataclass
class NoiseSampler:
    """One region and sample on the reference; not thread-safe.

    Attributes:
        tensors: records of the region's inputs, shapes and outputs at least, with absolute files.
        scratch: folder for intermediate values; the caller removes it.
        unrounded: as of `find_unrounded`.
    """

    graph: Graph
    region: Region
    reference: Reference
    tensors: Records
    scratch: Path
    unrounded: Collection[str] = ()

    def __post_init__(self) -> None:
        self._key = f"noise{next(_NUMBERS)}"
        # Which model the reference holds under our key: `NoiseRun.model`.
        self._loaded: tuple[object, ...] = ()
        self._instrumented: Instrumented  # that model
        self._ranges: dict[str, ChannelRange] = {}  # of its weights
        self._calm: bool | None = None  # is its check finite without noise?
        nodes = (self.graph.nodes[i] for i in (*self.region.nodes, *self.region.pulled))
        self._has_tflite = any(node.domain == TFLITE for node in nodes)

    @cached_property
    def sites(self) -> RoundingSites:
        """The places of rounding in the region."""
        boundary = pick(self.tensors, (*self.region.inputs, *self.region.outputs))
        return find_rounding_sites(self.graph, self.region, boundary, self.unrounded)

    @property
    def ranked(self) -> Strings:
        """Tensors of the region that a TopK, ArgMax or ArgMin compares, and whose indices leave the
        region: perturbed runs return them in addition to the outputs."""
        ranked = (find_ranked_tensor(self.graph, output) for output in self.region.outputs)
        inside = {*self.region.inputs, *self.graph.iter_outputs(self.sites.order)}
        return tuple(dict.fromkeys(r[0] for r in ranked if r and r[0] in inside))

    def release(self) -> None:
        """Free the model in the reference; the next run builds it again."""
        if self._loaded:
            self._loaded = ()
            with contextlib.suppress(WorkerDied):  # a dead process holds no model
                self.reference.drop(self._key)

    def run(self, run: NoiseRun, folder: Path) -> NoiseRunDocument:
        """Run the region, and write its outputs into `folder`.

        A perturbed run also writes the ranked tensors.

        A perturbed run that computes NaN or infinities which the reference has not does not show
        rounding: it is drawn again, `MAX_ATTEMPTS` times in all.

        Raises:
            ModelError, InputError: the reference does not build or run the changed model, or all
                attempts are void.
        """
        names = drop_repeats((*self.region.outputs, *(() if run.rounded else self.ranked)))
        if self._loaded != run.model:
            self._build(run, names)
        wanted = [*names, *filter(None, [self._instrumented.check])]
        for attempt in range(MAX_ATTEMPTS):
            numbers: list[float] = []  # the random factors and scales of the noise
            for label, dtype in self._instrumented.keyed:
                key = perturb.compute_key(label, SEED, run.number, attempt)
                factor = perturb.compute_factor(key)
                numbers += factor, compute_noise_scale(run.claim, dtype, factor)
            keys = np.array(numbers, np.float32)
            tensors = _draw(self, run, folder, wanted, keys, attempt)
            if run.rounded or not _is_void(self, run, tensors, folder, keys):
                return NoiseRunDocument(tuple(tensors[name] for name in names))
        raise ModelError(
            f"all of {MAX_ATTEMPTS} perturbed runs computed NaN or infinities that the reference"
            " has not",
            code="noise.not-finite",
        )

    def collect_compared(self, folder: Path) -> NoiseRunDocument:
        """Collect the values that a TopK, ArgMax or ArgMin compares, without noise."""
        sources = {
            **self._run_unperturbed(self.ranked),
            **pick(self.tensors, self.region.inputs),
        }
        return NoiseRunDocument(
            tuple(copy_record(sources[name], folder, f"t{k}") for k, name in enumerate(self.ranked))
        )

    def has_ties(self, folder: Path) -> NoiseRunDocument:
        """Return whether many sums are equal, because all weights are the same, for example."""
        sums = [
            n
            for n in _find_floats(self, self.sites.rounded)
            if find_operator(self.graph, n) in SUMS
        ]
        return NoiseRunDocument(
            (),
            any(perturb.has_repeats(load_array(r)) for r in self._run_unperturbed(sums).values()),
        )

    # ----------------------------------------------------------------------------------------
    # models

    @cached_property
    def _cut(self) -> Cut:
        return cut_region(self.graph, self.region, [self.tensors], Path("/"))

    @cached_property
    def _types(self) -> StringMap:
        """Element types by name; "" for sequences.

        The types of tensors whose operators have no schema are those of a run.
        """
        model = self._cut.model
        opset = get_opset(model, 0)
        types = find_element_types(model.graph, {}, opset)
        unknown = [n for n in (*self.sites.rounded, *self.sites.converted) if not types.get(n)]
        if not unknown:
            return types
        records = self._run_unperturbed(unknown)
        known = {n: r.dtype if r.form == "tensor" else r.form for n, r in records.items()}
        return find_element_types(model.graph, {}, opset, known)

    def _run_unperturbed(self, names: Iterable[str]) -> Records:
        """Run the region without noise, and return the values of tensors that it computes, as
        absolute files."""
        inside = [
            n for n in dict.fromkeys(names) if n in self.graph.maker and n not in self.region.inputs
        ]
        if not inside:
            return {}
        folder = make_numbered_folder(self.scratch, "base")
        model = deepcopy(self._cut.model)
        set_outputs(model, inside)
        _load_model(self, model, ("unperturbed",), folder)
        records = _run_model(self, folder, inside, [self.tensors[n] for n in self._cut.inputs])
        return {name: record.rebase(str(folder)) for name, record in records.items()}

    def plain(self, name: str) -> Array:
        """Return an output of the region as the reference computes it, without noise.

        Raises:
            ModelError: the reference does not run the region.
        """
        record = self._run_unperturbed([name])[name]
        self.release()
        return load_array(record)

    @cached_property
    def _untied(self) -> Records:
        """Values from which the shifts of untied runs, and of TensorFlow Lite's floats, are
        computed."""
        if not self._has_tflite:
            return self._run_unperturbed(_find_floats(self, self.sites.rounded))
        return self._run_unperturbed(n for n, (dtype, _) in self._moved.items() if dtype in FLOATS)

    def _build(self, run: NoiseRun, names: list[str]) -> None:
        """Load the cut's model, instrumented for runs of this kind and claim."""
        if self._has_tflite:
            entering, self._ranges = _find_entering(self, run.claim)
            if run.rounded or run.tie_factor or not (self._moved or entering):
                raise ModelError(
                    "inside of TensorFlow Lite's operators nothing can be rounded or perturbed",
                    code="noise.tflite",
                )
            _ = self._untied  # from a model under the same key
            model = deepcopy(self._cut.model)
            self._instrumented = add_steps(model, self._moved, names, entering)
            self._calm = None
            _load_model(self, model, run.model, make_numbered_folder(self.scratch, "model"))
            return

        sites = self.sites
        computed = _find_floats(self, (*sites.rounded, *(sites.converted if run.rounded else ())))
        if run.rounded and run.claim.narrow:
            computed = {n: t for n, t in computed.items() if t != run.claim.dtype}
        quantizers = () if run.rounded else sites.quantizers
        steps = {n: t for n in quantizers if (t := self._types.get(n)) and is_stepped(t)}
        untied = self._untied if run.tie_factor else {}
        entering, channels = _find_entering(self, run.claim)
        change = Change(
            run.claim,
            run.rounded,
            entering,
            computed,
            self._types,
            channels,
            steps,
            untied={n: untied[n].shapes[0] for n in computed if n in untied},
            certain=frozenset() if run.rounded else frozenset(computed) - sites.discrete.choices,
        )
        model = deepcopy(self._cut.model)
        self._instrumented = instrument_model(model, sites, change, names)
        self._calm = None
        _load_model(self, model, run.model, make_numbered_folder(self.scratch, "model"))

    @cached_property
    def _moved(self) -> dict[str, tuple[str, list[int]]]:
        """Type and shape of the codes, and of the floats, that TensorFlow Lite's operators return
        and that can be moved."""
        graph = self._cut.model.graph
        infos = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.output)}
        places: dict[str, Collection[str]] = dict.fromkeys(self.sites.rounded, ("float32",))
        places |= dict.fromkeys(self.sites.quantizers, STEPPED)
        types = {n: (name_of(infos[n].elem_type), infos[n].shape) for n in places if n in infos}
        return {
            n: (t, [d.dim_value or 1 for d in shape.dim])
            for n, (t, shape) in types.items()
            if t in places[n]
        }


# ------------------------------------------------------------ runs


def _draw(
    sampler: NoiseSampler,
    run: NoiseRun,
    into: Path,
    names: Sequence[str],
    keys: Array,
    attempt: int,
) -> Records:
    """Return one run of the instrumented model; what leaves it is perturbed as well."""
    folder = make_numbered_folder(sampler.scratch, "feeds")
    try:
        feeds = list(_iter_feeds(sampler, run, keys, attempt, folder))
        drawn = _run_model(sampler, into, names, feeds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    floats = sampler._untied.keys() & drawn.keys() if sampler._has_tflite else ()
    for k, name in enumerate(floats):
        shift = _draw_shift(sampler, run, name, attempt)
        value = load_array(drawn[name], into) + shift
        drawn[name] = save(name, value, find_type(value), into, f"d{k}")
    return drawn


def _run_model(
    sampler: NoiseSampler, into: Path, names: Iterable[str], feeds: Iterable[Record]
) -> dict[str, Record]:
    return sampler.reference.run(
        sampler._key, into, folders.number_stems(names, "t"), feeds
    ).by_name


def _load_model(
    sampler: NoiseSampler, model: protobuf.ModelProto, loaded: tuple[object, ...], folder: Path
) -> None:
    sampler._loaded = ()
    # Without reuse, 6,700 nodes take 0.4 s instead of 12.
    sampler.reference.load_model(sampler._key, model, sampler.graph.path, folder, reuse=False)
    sampler._loaded = loaded


def _find_floats(sampler: NoiseSampler, names: Iterable[str]) -> StringMap:
    """Find the types of the float tensors among tensors that nodes produce."""
    computed = (n for n in names if n in sampler.graph.maker and n not in sampler.region.inputs)
    return {n: sampler._types[n] for n in computed if sampler._types.get(n) in FLOATS}


def _find_entering(
    sampler: NoiseSampler, claim: Precision
) -> tuple[dict[str, str], dict[str, ChannelRange]]:
    """Find the types of the inputs and weights that the claimed precision does not hold exactly.

    For int8, also the ranges of the weights: per channel if they have two axes or more.
    """
    entering = {}
    ranges = {}
    for name in sampler.sites.entering:
        is_weight = name not in sampler.region.inputs
        values = _load_value(sampler, name)
        if claim is Precision.INT8 and is_weight:
            if values.ndim < 2:
                continue
            # The axis over which the node that reads the weight does not sum.
            nodes = (sampler.graph.nodes[i] for i in sampler.sites.order)
            axes = (find_channel_axis(node, name) for node in nodes if name in node.input)
            axis = next(axes, 0) % values.ndim
            others = tuple(k for k in range(values.ndim) if k != axis)
            wide = values.astype(np.float32)
            lowest, highest = (end(axis=others, keepdims=True) for end in (wide.min, wide.max))
            channels = ChannelRange(lowest, highest)
            if perturb.is_on_int8_grid(
                values.astype(np.float64), channels.lowest, channels.highest
            ):
                continue
            ranges[name] = channels
        elif perturb.is_exact(
            values, perturb.WEIGHTS_HELD_AS if is_weight and claim is Precision.FP32 else claim
        ):
            continue
        entering[name] = values.dtype.name
    return entering, ranges


def _is_void(
    sampler: NoiseSampler, run: NoiseRun, tensors: Records, folder: Path, keys: Array
) -> bool:
    """Return whether a perturbed run computed NaN or infinities, in intermediate tensors or
    outputs, that the reference has not."""
    made = sampler._instrumented
    if made.check and not np.isfinite(load_array(tensors[made.check], folder)):
        if sampler._calm is None:
            still = keys.copy()
            still[1::2] = 0
            into = make_numbered_folder(sampler.scratch, "calm")
            plain = replace(run, tie_factor=0.0)
            drawn = _draw(sampler, plain, into, [made.check], still, 0)
            sampler._calm = bool(np.isfinite(load_array(drawn[made.check], into)))
        if sampler._calm:
            return True
    judged = {*sampler.region.outputs} - {*sampler.sites.discrete.choices}
    # An operator test has its outputs only.
    known = [n for n in judged if n in tensors and n in sampler.tensors]
    for name in known:
        expected = sampler.tensors[name]
        if expected.dtype in FLOATS and expected.form == "tensor":
            before = load_array(expected)
            after = load_array(tensors[name], folder)
            lost = before.shape == after.shape and np.isfinite(before) & ~np.isfinite(after)
            if np.any(lost):
                return True
    return False


def _draw_shift(sampler: NoiseSampler, run: NoiseRun, tensor: str, attempt: int) -> Array:
    """Return a random shift of a tensor by its rounding, or by steps."""
    key = perturb.compute_key(tensor, SEED, run.number, attempt)
    if sampler._has_tflite and sampler._moved[tensor][0] in STEPPED:
        dtype, shape = sampler._moved[tensor]
        return perturb.draw_steps(shape, dtype, key)
    values = load_array(sampler._untied[tensor])
    return perturb.draw_untied_shift(values, run.claim, key, run.tie_factor or 1.0)


def _iter_feeds(
    sampler: NoiseSampler, run: NoiseRun, keys: Array, attempt: int, folder: Path
) -> Iterator[Record]:
    """Yield records of the model's inputs, with absolute files; new values are written into
    `folder`."""
    made = sampler._instrumented
    for name in sampler._cut.inputs:
        if name not in made.moved:
            yield replace(sampler.tensors[name], name=made.raw.get(name, name))
    for k, name in enumerate(made.moved):
        key = perturb.compute_key(name, SEED, run.number, attempt)
        value = _load_value(sampler, name)
        span = sampler._ranges[name].span if name in sampler._ranges else None
        moved = value + perturb.draw_untied_shift(value, run.claim, key, 1.0, span)
        yield write_value(name, moved.astype(value.dtype), folder, f"m{k}")
    for k, (name, tensor) in enumerate(made.shifts.items()):
        yield write_value(name, _draw_shift(sampler, run, tensor, attempt), folder, f"s{k}")
    if made.keys:
        yield write_value(made.keys, keys, folder, "keys")


def _load_value(sampler: NoiseSampler, name: str) -> Array:
    """Return the value of an input or a weight."""
    if name in sampler.region.inputs:
        return load_array(sampler.tensors[name])
    return protobuf.to_array(sampler.graph.weights[name], sampler.graph.path)


def load_array(record: Record, folder: Path = Path("/")) -> Array:
    """Return the value of a tensor.

    Raises:
        ModelError: a sequence, or an optional.
    """
    if record.form != "tensor":
        raise ModelError(
            f"'{record.name}' is a {record.form}: its noise is not defined", code="noise.undefined"
        )
    value = load(record, folder)
    assert isinstance(value, np.ndarray)
    return value
