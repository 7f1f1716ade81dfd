"""A model, and the reference's results for its regions: values, cuts, runs, rounding noise.

No candidate is run here.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.comparison.evidence import make_other_inputs
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.comparison.where import OutputChoice
from subgraph.errors import OutOfTime, SubcutError, WorkerDied
from subgraph.graph import protobuf, region as regions
from subgraph.graph.cut import Cut, cut_region, list_freezable
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import CONSTANT, SHAPE, find_kinds
from subgraph.graph.region import Region
from subgraph.iterables import flatten, pick
from subgraph.log import log
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, Records, write_value
from subgraph.types import StringMap, frozen, frozen_keywords
from subgraph.version import __version__

ROOT = Path("/")  # captured values have absolute paths


@frozen
class ReferenceCache:
    """The computed values of a model.

    Attributes:
        noises: by nodes, outputs and sample, the rounding noise of a region.
        digests: by weight, the digest of its data in the model's files.
        lock: held while noise is looked up.
    """

    noises: dict[Any, RegionNoise] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def weight_digest(self, graph: Graph, name: str) -> str:
        """Digest of a weight in the file's raw data; "" for smaller ones, which are part of the
        structure's digest."""
        if name not in self.digests:
            tensor = graph.weights.get(name)
            on_disk = [tensor] if tensor is not None and protobuf.is_on_disk(tensor) else []
            self.digests[name] = protobuf.digest_weights(on_disk, graph.path) if on_disk else ""
        return self.digests[name]


@frozen_keywords
class ReferenceModel:
    """One model on the reference. Several threads may share it.

    Attributes:
        graph: the model.
        reference: the process that runs the reference.
        values: captured reference values of tensors.
        store: keeps results across sessions.
        scratch: a folder for files that live as long as the session.
        freeze: whether tensors that compute shapes become constants in the cuts.
        comparable: tensors of which both sides have values; None for all.
        shared_tensors: the same, if one side runs the module that the model was exported from;
            else None.
        roundings: runs the ONNX model itself, if the reference runs the module that it was
            exported from.
        choice: which outputs are compared, and where.
        unrounded: Casts that a translation added, as `find_unrounded` returns them.
        cache: what was computed of the model; views of the same model share it.
    """

    graph: Graph
    reference: Reference
    values: ReferenceValues
    store: Store
    scratch: Path
    freeze: bool = True
    comparable: Collection[str] | None = None
    shared_tensors: frozenset[str] | None = None
    roundings: Reference | None = None
    unrounded: StringMap = field(default_factory=dict)
    choice: OutputChoice = field(default_factory=OutputChoice)
    cache: ReferenceCache = field(default_factory=ReferenceCache)

    # ------------------------------------------------------------ regions

    @property
    def outputs(self) -> list[str]:
        """The model's outputs that are compared, in its own order."""
        made = self.graph.maker
        return self.choice.select(name for name in self.graph.outputs if name in made)

    def whole(self, outputs: Collection[str] = ()) -> Region:
        """Return the whole model, with these tensors as further outputs."""
        if outputs:
            return _build_region_of(self, outputs)
        return self._whole

    @cached_property
    def _whole(self) -> Region:
        return _build_region_of(self, ())

    # ------------------------------------------------------------ variants

    def with_values(self, values: ReferenceValues) -> ReferenceModel:
        """Return this model on other inputs."""
        return replace(self, values=values, cache=replace(self.cache, noises={}))

    # ------------------------------------------------------------ tensors

    def tensors(self) -> list[str]:
        """Return every tensor whose value depends on more than shapes and that an output needs.

        They are in topological order.
        """
        whole = self.whole()
        names = list(self.graph.iter_outputs(whole.nodes))
        kinds = find_kinds(self.graph, names)
        read = set(self.graph.iter_inputs(whole.nodes)) | set(self.outputs)
        comparable = kinds.keys() if self.comparable is None else self.comparable
        return [
            n for n in names if kinds[n] not in (CONSTANT, SHAPE) and n in read and n in comparable
        ]

    # ------------------------------------------------------------ values, cuts

    def capture(self, *regions: Region) -> None:
        """Compute the reference's values at the boundary of regions, unless they are known.

        Raises:
            InputError: an input does not fit. ModelError: the reference cannot run the model.
                WorkerDied: it crashed.
        """
        ends = (region.boundary for region in regions)
        self.values.need(list(flatten(ends)))

    def make_values(self, *feeds: Feeds) -> Feeds:
        """Return all known values per sample; those in `feeds` replace those of the reference."""
        samples = zip(self.values.records, *feeds, strict=True)
        return [dict(flatten(tensors.items() for tensors in sample)) for sample in samples]

    def sample_groups(
        self, region: Region, feeds: Feeds | None = None
    ) -> list[tuple[list[int], Feeds]]:
        """Return samples that one cut serves, by index, with their tensors: equal input shapes,
        equal frozen values."""
        self.capture(region)
        records = self.values.records if feeds is None else self.make_values(feeds)
        groups: dict[Any, tuple[list[int], list[Records]]] = {}
        for k, sample in enumerate(records):
            shapes = tuple(sample[n].shapes for n in region.inputs)
            frozen = list_freezable(region, [sample]) if self.freeze and len(records) > 1 else ()
            values = tuple(self.values.digest([sample[n]])[0] for n in frozen)
            samples, tensors = groups.setdefault((shapes, values), ([], []))
            samples.append(k)
            tensors.append(sample)
        return list(groups.values())

    def cut(self, region: Region, records: Feeds) -> Cut:
        """Return the cut that serves samples of one group.

        Raises:
            ModelError: the region cannot be cut.
        """
        return cut_region(self.graph, region, records, ROOT, freeze=self.freeze)

    # ------------------------------------------------------------ runs

    def run_on_reference(
        self,
        region: Region,
        feeds: Feeds | None = None,
        change: Callable[[protobuf.ModelProto], None] | None = None,
    ) -> Feeds:
        """Return the reference's outputs of a region; tensors in `feeds` replace the values that
        enter it.

        `change`: changes each cut before it runs.

        Raises:
            ModelError: the reference cannot run the region on these values.
        """
        outputs: list[Records] = [{}] * len(self.values.samples)
        for samples, records in self.sample_groups(region, feeds):
            cut = self.cut(region, records)
            if change:
                change(cut.model)
            made = self.run_model(
                cut.model, [[sample[n] for n in cut.inputs] for sample in records], cut.outputs
            )
            for k, sample in zip(samples, made, strict=True):
                outputs[k] = sample
        return outputs

    def run_model(
        self, model: protobuf.ModelProto, feeds: Sequence[Sequence[Record]], outputs: Sequence[str]
    ) -> list[dict[str, Record]]:
        """Return the reference's outputs of a model with our weights; the files live as long as the
        session.

        Raises:
            ModelError: the reference cannot run it on these values.
        """
        with self.make_temporary_folder() as folder, self.reference.exclude_others():
            self.reference.load_model(folder.name, model, self.graph.path, folder)
            return run_loaded(self.reference, folder.name, feeds, outputs, self.new_folder)

    def new_folder(self) -> Path:
        """Return a new folder that lives as long as the session."""
        return Path(tempfile.mkdtemp(prefix="trial-", dir=self.scratch))

    @contextlib.contextmanager
    def make_temporary_folder(self) -> Iterator[Path]:
        """Provide a new folder that lives as long as the block."""
        with tempfile.TemporaryDirectory(
            prefix="trial-", dir=self.scratch, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    @cached_property
    def others(self) -> OtherInputs:
        """The reference's outputs for other inputs."""
        whole = self.whole()
        names = [name for name in whole.entering if name in self.graph.inputs]
        return OtherInputs(self.values, names, self.outputs, self.new_folder)

    # ------------------------------------------------------------ noise

    def noise(self, region: Region, k: int) -> RegionNoise:
        """Return the rounding noise of a region for sample `k`."""
        place = (region.nodes, region.outputs, k)
        with self.cache.lock:
            if place not in self.cache.noises:
                self.cache.noises[place] = compute_region_noise(
                    self, region, self.values.records[k]
                )
            return self.cache.noises[place]


def hash_region(model: ReferenceModel, region: Region, records: Feeds, *more: str) -> str:
    """Return a hash of the model's structure, the region's weights, boundary and values, fed and
    frozen; and of `more`."""
    entering = region.entering
    return digest(
        __version__,
        model.graph.skeleton.structure,
        [model.cache.weight_digest(model.graph, name) for name in region.weights],
        list(region.nodes),
        entering,
        list(region.outputs),
        model.freeze,
        *more,
        *(model.values.digest([sample[n] for n in entering]) for sample in records),
    )


def has_forms_of(model: ReferenceModel, values: Feeds, names: Sequence[str]) -> bool:
    """Return whether these tensors have the reference's types and shapes, as far as there are
    values of them."""

    def list_forms(records: Records, sample: Records) -> list[object]:
        return [(records[name].dtype, records[name].shapes) for name in names if name in sample]

    samples = zip(model.values.records, values, strict=True)
    return all(list_forms(known, sample) == list_forms(sample, sample) for known, sample in samples)


def _build_region_of(model: ReferenceModel, further: Collection[str]) -> Region:
    outputs = [*model.outputs, *further]
    region = regions.find_upstream(model.graph, outputs, keep_random=False)
    wanted = frozenset(outputs)  # without what only nodes that no output needs read
    return replace(region, outputs=tuple(n for n in region.outputs if n in wanted))


def compute_region_noise(model: ReferenceModel, region: Region, tensors: Records) -> RegionNoise:
    """Return the rounding noise of a region that is fed with these tensors and has these
    outputs."""
    runs = model.roundings or model.reference

    def key(label: str) -> str:
        casts = [f"unrounded {name}" for name in sorted(model.unrounded)]
        return digest(
            "noise/1", hash_region(model, region, [tensors], *casts), runs.identity(), label
        )

    return RegionNoise(
        model.graph,
        region,
        runs,
        tensors,
        model.scratch,
        lambda label, make: model.store.memo(key(label), make),
        other_program=model.roundings is not None,
        unrounded=model.unrounded,
    )


def run_loaded(
    reference: Reference,
    key: str,
    feeds: Iterable[Sequence[Record]],
    outputs: Sequence[str],
    new_folder: Callable[[], Path],
) -> list[dict[str, Record]]:
    """Return per sample the outputs of a model that is loaded as `key`.

    The model is dropped afterwards.

    Raises:
        ModelError: the reference cannot run it on these values. WorkerDied: the process crashed.
    """
    stems = folders.number_stems(outputs, "o")
    samples = []
    try:
        for sample in feeds:
            into = new_folder()
            run = reference.run(key, into, stems, sample)
            samples.append({r.name: r.rebase(str(into)) for r in run.tensors})
    finally:
        with contextlib.suppress(WorkerDied):  # a dead process holds no model
            reference.drop(key)
    return samples


# ------------------------------------------------------------ other inputs
# Reference values -> the outputs for other inputs, which show whether an output is evidence.

MAX_OTHER_SAMPLES = 8  # whose outputs are compared with those of one sample


@frozen
class OtherInputs:
    """The reference's outputs for other inputs than those of one sample. Several threads may share
    it.

    Attributes:
        values: the reference's values of all samples.
        inputs: the model's inputs that an output depends on.
        outputs: the outputs that are compared.
        new_folder: makes a folder that lives as long as the session.
    """

    values: ReferenceValues
    inputs: Sequence[str]
    outputs: Sequence[str]
    new_folder: Callable[[], Path]
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def outputs_without(self, k: int, names: Collection[str] = ()) -> Feeds:
        """Return the outputs for other inputs than sample `k`: other samples, or two drawn inputs.

        Inputs that the reference refuses are left out. `names`: further tensors that are needed.
        """
        records = self.values.records
        own = self._list_digests(records[k])
        if others := list(
            itertools.islice(
                ((s for s in (*records[k + 1 :], *records[:k]) if self._list_digests(s) != own)),
                MAX_OTHER_SAMPLES,
            )
        ):
            return others
        try:
            with self._lock:
                for values in self._drawn_values:
                    values.need(names)
                return list(flatten(values.records for values in self._drawn_values))
        except OSError as e:
            log.debug("no other input is tried, for the disk is full: %s", e)
            return []

    def _list_digests(self, sample: Records) -> list[str]:
        return self.values.digest([sample[name] for name in self.inputs])

    @cached_property
    def _drawn_values(self) -> list[ReferenceValues]:
        sample = self.values.records[0]
        values = {name: sample[name].value() for name in self.inputs}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        inputs = []
        for drawn in make_other_inputs(arrays):
            folder = self.new_folder()
            given = pick(sample, self.values.graph.inputs)
            for i, (name, value) in enumerate(drawn.items()):
                given[name] = write_value(name, value, folder, f"x{i}", given[name].type_text)
            inputs.append(given)
        return self._run_on_inputs(inputs) if inputs else []

    def _run_on_inputs(self, inputs: Feeds) -> list[ReferenceValues]:
        """Return the values for these inputs, in one session if the reference accepts all
        of them."""
        values = self.values.replace_inputs(inputs)
        try:
            values.need(self.outputs)
        except OutOfTime:
            raise  # without other inputs, an agreement would not be earned
        except SubcutError as e:
            log.debug("the reference refuses another input: %s", e.what)
            if len(inputs) < 2:
                return []
            return list(flatten(self._run_on_inputs([sample]) for sample in inputs))
        return [values]
