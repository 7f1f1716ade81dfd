"""A model and the memory that a run of it may take → the same run, in stretches of its nodes.

Each stretch is a separate cut that the process loads, runs and drops; tensors that later ones read
are on disk. A tensor that depends on constants only is computed again in every stretch that reads
it, as a cut does. The sizes of tensors are learned on the way: a stretch that turns out to take too
much is halved, down to one node.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from subgraph.errors import BackendError, ModelError, OutOfMemory, SubcutError, WorkerDied
from subgraph.graph import protobuf, region as regions
from subgraph.graph.cut import build_model, list_boundary_types
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import CONSTANT, find_kinds
from subgraph.graph.model_file import find_external_files
from subgraph.graph.region import prepare_graph
from subgraph.graph.value_types import find_declared_types
from subgraph.graph.walks import find_ancestors, iter_predecessors
from subgraph.iterables import flatten, index_by_name
from subgraph.log import log
from subgraph.reach import reach
from subgraph.runtime.inputs import InputOrigin, Sample
from subgraph.runtime.protocol import ModelRun
from subgraph.storage import dtypes, folders
from subgraph.storage.tensors import Record, Records, RecordTuple, copy_record
from subgraph.system import KILLED
from subgraph.text import clean
from subgraph.types import Fields, StringMap, frozen

Feeds = Iterable[Record] | Sample

# Of an element of a weight that onnxruntime widens to float32 to compute with it.
CAST_BYTES = 4
# onnxruntime has few CPU kernels for these types: it casts all weights when a run begins.
HALF = ("float16", "bfloat16")
# Words for a lack of memory in errors of onnxruntime.
NO_MEMORY = re.compile(r"bad_alloc|[Ff]ailed to allocate|Cannot allocate")


class Process(Protocol):
    """The parts of `ReferenceProcess` that hold one model at a time."""

    def hold(
        self,
        token: object,
        build: Callable[[], protobuf.ModelProto],
        source: Path,
        folder: Path,
        options: Fields,
    ) -> None:
        """See `ReferenceProcess.hold`."""

    def run_held(self, into: Path, outputs: StringMap, feeds: Feeds) -> ModelRun:
        """See `ReferenceProcess.run_held`."""

    def release(self) -> None:
        """See `ReferenceProcess.release`."""


@frozen
class RunState:
    """The progress of a run.

    Attributes:
        position: The number of nodes that have run, in topological order.
        records: The tensors that are read later or were requested. Files are relative to the run's
            folder, or full paths.
        fed: As of `protocol.ModelRun`.
        origins: As of `protocol.ModelRun`.
        seconds: As of `protocol.ModelRun`.
    """

    position: int
    records: Records
    fed: RecordTuple = ()
    origins: Mapping[str, InputOrigin] = field(default_factory=dict)
    seconds: float = 0.0


class StretchedModel:
    """A model that is run within `limit` bytes; several threads must take turns."""

    def __init__(self, graph: Graph, process: Process, limit: int, options: Fields) -> None:
        self.graph = prepare_graph(graph)
        self.process = process
        self.limit = limit
        self.options = options
        self._files = set(find_external_files(graph).values())
        weights = graph.model.graph.initializer
        if any(protobuf.is_on_disk(t) and not protobuf.is_in_other_file(t) for t in weights):
            self._files.add(graph.path)

    def fits(self) -> bool:
        """Return whether one stretch is enough, by the size of its weights."""
        run = _Nodes(self.graph, self.graph.outputs)
        return find_end(run.costs, run.count_live_bytes({}), 0, self.limit) == len(run.order)

    def run(self, into: Path, outputs: StringMap, feeds: Feeds) -> ModelRun:
        """Run the model, as `Reference.run`.

        Raises:
            ModelError: The run failed, one node alone takes more than the limit, or a file of
                weights was changed.
            OutputError: The tensors between two stretches cannot be written.
        """
        if not isinstance(feeds, Sample):
            feeds = [r.rebase(into.resolve()) for r in feeds]
        with tempfile.TemporaryDirectory(prefix="stretches-", dir=into) as name:
            folder = Path(name).resolve()
            try:
                return self._run(folder, into, outputs, feeds)
            except OSError as e:
                raise folders.make_write_error(folder, e) from e

    def _run(self, folder: Path, into: Path, outputs: StringMap, feeds: Feeds) -> ModelRun:
        nodes = _Nodes(self.graph, outputs)
        stamps = self._list_stamps()
        state = self._enter(folder, nodes, feeds)
        several = False
        while state.position < len(nodes.order):
            state = self._advance(nodes, folder, state)
            if self._list_stamps() != stamps:
                raise ModelError(
                    "a file of weights was changed while the model was run",
                    "run it again",
                    code="weight.changed",
                )
            needed = set(flatten(record.files for record in state.records.values()))
            for path in folder.iterdir():
                if path.name not in needed:
                    path.unlink()
            several = several or state.position < len(nodes.order)
        tensors = tuple(
            copy_record(state.records[name].rebase(folder), into, stem, copy=folders.link_or_copy)
            for name, stem in outputs.items()
            if name in state.records
        )
        if several:
            self.process.release()
        return ModelRun(tensors, state.fed, state.origins, (), state.seconds)

    def _list_stamps(self) -> list[tuple[int, ...]]:
        """Return marks of the files that hold weights, which differ after a change, without reading
        the files."""
        stats = [path.stat() for path in sorted(self._files)]
        return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats]

    # ------------------------------------------------------------ one stretch

    def _enter(self, folder: Path, nodes: _Nodes, feeds: Feeds) -> RunState:
        """Return the state before the first node: the inputs that are read or requested."""
        if not isinstance(feeds, Sample):
            records = index_by_name(feeds)
            return RunState(0, records, tuple(replace(r, files=()) for r in records.values()))
        graph = self.graph
        if not graph.inputs:
            return RunState(0, {})
        names = list(graph.inputs)

        def build() -> protobuf.ModelProto:
            """Return a model without nodes, which takes the inputs."""
            types = find_declared_types(graph, names)
            nothing = regions.build_region(graph, ())
            return build_model(graph, nothing, names, names[:1], types, {})[0]

        used = nodes.requested | nodes.last_read.keys()
        stems = {name: f"in{k}" for k, name in enumerate(names) if name in used}
        self.process.hold((self, None), build, graph.path, folder, self.options)
        run = self.process.run_held(folder, stems, feeds)
        return RunState(0, run.by_name, run.fed, run.origins)

    def _advance(self, nodes: _Nodes, folder: Path, state: RunState) -> RunState:
        """Return the state after the next stretch."""
        live = nodes.count_live_bytes(state.records)
        start = state.position
        end = find_end(nodes.costs, live, start, self.limit)
        count = len(nodes.order)
        while True:
            held = compute_peak(nodes.costs, live, range(start, end)) >> 20
            if (start, end) != (0, count):
                words = "reference: nodes %d to %d of %d, about %d MiB"
                log.info(words, start + 1, end, count, held, extra={"step": end, "of": count})
            try:
                return self._run_stretch(nodes, folder, state, end)
            except (ModelError, BackendError) as e:
                if not lacks_memory(e):
                    raise
                if end == start + 1:
                    i = nodes.order[start]
                    raise ModelError(
                        f"node {clean(self.graph.label(i))} ({clean(self.graph.ops[i])}) alone does"
                        f" not run within {self.limit >> 20} MiB; its weights and tensors take"
                        f" about {held} ({e})",
                        "more memory: --memory",
                        code="memory.node-too-large",
                    ) from e
                end = start + (end - start) // 2

    def _run_stretch(self, nodes: _Nodes, folder: Path, state: RunState, end: int) -> RunState:
        graph = self.graph
        start = state.position
        region = regions.build_region(graph, nodes.order[start:end], keep_random=True)
        entering = region.entering
        if missing := [n for n in entering if n not in state.records]:
            raise ModelError(
                f"the reference received no value of '{missing[0]}'", code="reference.no-value"
            )
        made = list(graph.iter_outputs(nodes.order[start:end]))
        leaving = [n for n in made if n in nodes.requested or nodes.last_read.get(n, 0) >= end]

        def build() -> protobuf.ModelProto:
            types = {
                **find_declared_types(graph, entering),
                **list_boundary_types(graph, entering, [state.records], {}),
            }
            return build_model(graph, region, entering, leaving, types, {})[0]

        token = (self, start, end, tuple(leaving), tuple(state.records[n].shapes for n in entering))
        self.process.hold(token, build, graph.path, folder, self.options)
        stems = {name: f"s{start}-{k}" for k, name in enumerate(leaving)}
        run = self.process.run_held(
            folder, stems, [state.records[n].rebase(folder) for n in entering]
        )
        records = {
            n: r
            for n, r in state.records.items()
            if n in nodes.requested or nodes.last_read.get(n, -1) >= end
        }
        return RunState(
            end, {**records, **run.by_name}, state.fed, state.origins, state.seconds + run.seconds
        )


class _Nodes:
    """The nodes that compute the requested tensors, in topological order, without constants.

    Attributes:
        graph: The model.
        requested: The requested tensors.
        order: The indices of the nodes.
        last_read: The position of the last node that reads each tensor.
        costs: The cost of each node, by the size of its weights.
    """

    def __init__(self, graph: Graph, asked: Iterable[str]) -> None:
        self.graph = graph
        self.requested = frozenset(asked)
        makers = set(graph.producers(self.requested))
        needed = find_ancestors(graph, makers)
        named = flatten((*graph.makes[i], *graph.reads[i]) for i in needed)
        kinds = find_kinds(graph, list(named))
        own = {
            i for i in needed if i in makers or any(kinds[n] != CONSTANT for n in graph.makes[i])
        }
        self.order = [i for i in _iter_late(graph, needed) if i in own]
        self.last_read = dict[str, int]()
        for k, i in enumerate(self.order):
            self.last_read |= {n: k for n in graph.reads[i] if kinds[n] != CONSTANT}
        self.costs = list(map(self._measure_cost, self.order))

    def _measure_cost(self, node: int) -> Cost:
        """Return the cost of a node: of the weights that it reads, and of constants that are
        computed for it from them."""
        graph = self.graph
        costs = {}
        for name in reach(graph.reads[node], self._read_for_constant):
            read = self._read_for_constant(name)
            weights = [graph.weights[n] for n in read if n in graph.weights]
            if name in graph.weights:
                costs[name] = compute_held_bytes(graph.weights[name])
            elif read:
                costs[name] = CAST_BYTES * max(map(protobuf.count_elements, weights), default=0)
        return Cost(costs, max(costs.values(), default=0))

    def _read_for_constant(self, name: str) -> Sequence[str]:
        """Return the tensors from which a constant is computed; none for another tensor."""
        maker = self.graph.maker.get(name)
        if maker is None or find_kinds(self.graph, [name])[name] != CONSTANT:
            return ()
        return self.graph.reads[maker]

    def count_live_bytes(self, records: Records) -> list[int]:
        """Return the bytes of the tensors that are alive before each node.

        A tensor of unknown size counts as the largest known one.
        """
        graph = self.graph
        sizes = {
            n: sum(map(math.prod, r.shapes)) * max(dtypes.count_bits(r.dtype) // 8, 1)
            for n, r in records.items()
        }
        largest = max(sizes.values(), default=0)
        change = [0] * (len(self.order) + 2)
        positions = dict[str, int]()
        for k, i in enumerate(self.order):
            positions |= dict.fromkeys(graph.makes[i], k)
        for name, last in self.last_read.items():
            size = sizes.get(name, largest)
            change[positions.get(name, -1) + 1] += size
            change[last + 1] -= size
        return list(accumulate(change[:-1]))


def lacks_memory(e: SubcutError) -> bool:
    """Return whether the process lacked memory; the system may have killed it for that, too."""
    is_limited = isinstance(e, OutOfMemory)
    if isinstance(e, WorkerDied):
        is_limited = "memory" in e.process or e.process.get("signal") == KILLED
    return is_limited or bool(NO_MEMORY.search(e.what))


def compute_held_bytes(weight: protobuf.TensorProto) -> int:
    """Return the memory of a weight in onnxruntime on a CPU, which has half also as float32."""
    size = compute_raw_bytes(weight)
    if dtypes.name_of(weight.data_type) in HALF:
        size += CAST_BYTES * protobuf.count_elements(weight)
    return size


def compute_raw_bytes(weight: protobuf.TensorProto) -> int:
    """Return the bytes of a weight as it is stored; 0 for strings."""
    if dtypes.count_number_bits(weight.data_type):
        return protobuf.count_bytes(weight)
    return 0


def _iter_late(graph: Graph, nodes: Collection[int]) -> Iterator[int]:
    """Yield the nodes, each as late as possible, so that few tensors are alive.

    Depth first from the last nodes. Complexity: linear in nodes and edges.
    """
    done = set()
    for last in reversed(graph.in_order(nodes)):
        stack = [last]
        while stack:
            i = stack[-1]
            waiting = [] if i in done else [b for b in iter_predecessors(graph, i) if b not in done]
            if waiting:
                stack += reversed(waiting)
                continue
            stack.pop()
            if i not in done:
                done.add(i)
                yield i


@frozen
class Cost:
    """Bytes that one node takes.

    Attributes:
        weights: by name; a weight that several nodes of a stretch read is held once.
        work: while the node runs alone.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    work: int = 0


def find_end(costs: Sequence[Cost], live: Sequence[int], start: int, limit: int) -> int:
    """Return the end of the longest stretch from `start` that holds at most `limit` bytes.

    It is `start + 1` if no node fits.

    Args:
        costs: The cost of each node.
        live: Bytes of the tensors that are computed before node k and read at it or later, for k
            from 0 to `len(costs)`.
        start: The first node.
        limit: The most bytes.

    Complexity: linear in the nodes of the stretch and the weights that they read.
    """
    seen: set[str] = set()
    weights = work = most_live = 0
    for k in range(start, len(costs)):
        cost = costs[k]
        weights += sum(size for name, size in cost.weights.items() if name not in seen)
        seen.update(cost.weights)
        work = max(work, cost.work)
        most_live = max(most_live, live[k + 1])
        if k > start and live[start] + weights + work + most_live > limit:
            return k
    return len(costs)


def compute_peak(costs: Sequence[Cost], live: Sequence[int], nodes: range) -> int:
    """Return the most bytes that a stretch holds: weights, inputs, and tensors alive in it."""
    weights: dict[str, int] = {}
    for k in nodes:
        weights.update(costs[k].weights)
    work = max((costs[k].work for k in nodes), default=0)
    most_live = max((live[k + 1] for k in nodes), default=0)
    return live[nodes.start] + sum(weights.values()) + work + most_live


def iter_stretches(
    costs: Sequence[Cost], live: Sequence[int], limit: int, start: int = 0
) -> Iterator[range]:
    """Yield every node from `start` on, in ranges of at most `limit` bytes or one node."""
    while start < len(costs):
        end = find_end(costs, live, start, limit)
        yield range(start, end)
        start = end
