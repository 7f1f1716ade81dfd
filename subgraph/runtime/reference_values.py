"""Reference values of a model's tensors for all samples: computed once, when they are needed, and
kept on disk."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from subgraph.graph import region
from subgraph.graph.cut import list_boundary_types
from subgraph.graph.graph import Graph
from subgraph.graph.walks import find_ancestors, find_ancestors_until, find_descendants
from subgraph.iterables import drop_repeats, flatten, pick
from subgraph.runtime.capture import KEY, Captured, capture_samples, load_ancestors
from subgraph.runtime.inputs import InputOrigin, OriginKind, Sample
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.digest import digest_file
from subgraph.storage.tensors import Record, Records, copy_record
from subgraph.types import Array, StringMap


class ReferenceValues:
    """Records per sample, with absolute paths.

    The first run stores the model's inputs and the outputs of its random nodes. Later runs are fed
    from these files, so that all values belong to the same inputs, however open dimensions and
    unnamed files are resolved.

    Attributes:
        records: The record of each tensor, per sample; every sample has the same tensors.
        captured: The first run, per sample.
        watched: The values' files; a caller that takes others from the store adds them.
    """

    def __init__(
        self, graph: Graph, reference: Reference, samples: Sequence[Sample], folder: Path
    ) -> None:
        self.graph = graph
        self.reference = reference
        self.samples = samples
        self.folder = folder.resolve()
        self.records: list[dict[str, Record]] = [{} for _ in samples]
        self.captured: list[Captured] = []
        self.watched = Watched()
        self._digests: dict[str, str] = {}
        self._lock = threading.RLock()
        self._batch = 0

    def _make(
        self, samples: Sequence[Sample], reference: Reference | None = None
    ) -> ReferenceValues:
        """Return values of the same model for other samples; nothing runs before one is needed."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return ReferenceValues(self.graph, reference or self.reference, samples, folder)

    def replace_input(self, name: str, values: Sequence[Records], origin: str) -> ReferenceValues:
        """Return the values for another value of one input; those that do not depend on it stay.

        Args:
            name: The input.
            values: The value of the input, per sample; other values are ignored.
            origin: The source of the value, for people.
        """
        graph = self.graph
        changed = find_descendants(graph, graph.readers.get(name, ()))
        other = self._make(self.samples)
        other.records = [
            {n: r for n, r in records.items() if graph.maker.get(n) not in changed}
            | {name: value[name]}
            for records, value in zip(self.records, values, strict=True)
        ]
        origins = {name: InputOrigin(OriginKind.COMPUTED, origin)}
        other.captured = [replace(c, origins={**c.origins, **origins}) for c in self.captured]
        return other

    def replace_inputs(
        self, inputs: Sequence[Records], reference: Reference | None = None
    ) -> ReferenceValues:
        """Return the values for other inputs of the model, a sample each.

        Args:
            inputs: Per sample, the value of each input; other values are ignored.
            reference: The process that computes the values; None for the present one.
        """
        other = self._make([self.samples[0]] * len(inputs), reference)
        names = self.graph.inputs
        other.records = [pick(sample, names) for sample in inputs]
        other.captured = self.captured[:1] * len(inputs)
        return other

    @property
    def are_drawn(self) -> bool:
        """Whether the values of all inputs are drawn."""
        return not any(sample.files for sample in self.samples)

    def redraw(self, draw: str) -> ReferenceValues:
        """Return the values for floats that are drawn in another way."""
        return self._make([replace(sample, draw=draw) for sample in self.samples])

    @property
    def labels(self) -> list[str]:
        """The samples' names; [""] if there is only one sample."""
        return [s.label for s in self.samples]

    def compute_first(self, name: str) -> Array:
        """Return a tensor's value for the first sample; raises as `need` does."""
        self.need([name])
        return self.records[0][name].array()

    def need(self, names: Collection[str], *, near: bool = False) -> None:
        """Capture the tensors that have no values yet, in one run of their ancestors.

        `near`: run only ancestors between these tensors and tensors with values; many such calls in
        topological order cost no more than one. So it is always if the model does not fit into
        memory.

        Raises:
            InputError: an input does not fit. ModelError: the reference cannot run the model.
                WorkerDied: it crashed.
        """
        with self._lock:
            stored = self.records[0]
            missing = [n for n in dict.fromkeys(names) if n not in stored]
            if not missing:
                return
            into = self.folder / f"batch{self._batch}"
            into.mkdir(parents=True)
            self._batch += 1
            # Another run would draw other numbers.
            graph = self.graph
            nodes = find_ancestors(graph, graph.producers(missing))
            drawn = graph.iter_outputs(graph.in_order(nodes & graph.random_nodes))
            missing += [n for n in drawn if n not in stored and n not in missing]
            if not self.captured:
                missing = drop_repeats((*self.graph.inputs, *missing))
                stems = folders.number_stems(missing, "t")
                above = region.find_upstream(self.graph, missing)
                with self.reference.exclude_others():
                    self.captured = capture_samples(
                        self.reference, self.graph, above, stems, self.samples, into
                    )
                for k, captured in enumerate(self.captured):
                    self._keep(k, captured.tensors, into / str(k))
            else:
                self._run_again(missing, into, near or self.reference.exceeded)

    def _run_again(self, names: Sequence[str], into: Path, near: bool) -> None:
        graph = self.graph
        computed = [n for n in names if n in graph.maker]
        stored = self.records[0] if near else {}
        nodes = find_ancestors_until(graph, graph.producers(computed), stored.__contains__)
        stored_random = {
            i for i in nodes & graph.random_nodes if self.records[0].keys() >= {*graph.makes[i]}
        }
        above = region.build_region(
            graph, nodes - stored_random, [(n,) for n in computed], keep_random=True
        )
        types = list_boundary_types(
            graph, [n for n in above.entering if n in graph.maker], self.records, {}
        )
        stems = folders.number_stems(names, "t")
        runs = []
        loaded = load_ancestors(self.reference, graph, above, names, into, types)
        with self.reference.exclude_others(), loaded as needed:
            for k, records in enumerate(self.records):
                (into / str(k)).mkdir()
                runs.append(
                    self.reference.run(KEY, into / str(k), stems, [records[n] for n in needed])
                )
        for k, run in enumerate(runs):  # after the last run: every sample has the same tensors
            self._keep(k, run.by_name, into / str(k))

    def copy_to(self, stems: StringMap, folder: Path) -> list[Captured]:
        """Copy tensors into a folder; return the result of `capture.capture_samples` for it."""
        self.need(stems)
        samples = []
        for k, (captured, records) in enumerate(zip(self.captured, self.records, strict=True)):
            into = folder / str(k)
            into.mkdir()
            tensors = {name: copy_record(records[name], into, stem) for name, stem in stems.items()}
            samples.append(replace(captured, tensors=tensors))
        return samples

    def _keep(self, k: int, tensors: Records, folder: Path) -> None:
        records = {n: r.rebase(folder) for n, r in tensors.items()}
        self.watched.add(flatten(r.files for r in records.values()))
        self.records[k].update(records)

    def digest(self, records: Sequence[Record]) -> list[str]:
        """Return type and digest of the contents of each value. Each file is read once."""
        identities = []
        for r in records:
            for file in r.files:
                if file not in self._digests:
                    self._digests[file] = digest_file(Path(file))
            contents = [self._digests[file] for file in r.files]
            identities.append(repr((asdict(replace(r, files=())), contents)))
        return identities


class Watched:
    """Files that nobody may change, with their size and time when they were added.

    Any number of threads may use it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file, watched = Path(folder, "x.npy"), Watched()
    ...     size = file.write_bytes(b"...")
    ...     watched.add([str(file)])
    ...     before = watched.find_change([str(file)])
    ...     size = file.write_bytes(b"....")
    ...     before, watched.find_change([str(file)]) == str(file)
    ('', True)
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def add(self, files: Iterable[str]) -> None:
        """Watch files from now on; the states of watched ones stay."""
        for file in files:
            if state := _read_state(file):
                self._known.setdefault(file, state)

    def find_change(self, files: Iterable[str]) -> str:
        """Return the first of these files that is watched and was changed; "" without one.

        A file that is gone counts as unchanged: the owner may remove the store, and the reader of
        the file raises an error. One system call per file.
        """
        for file in files:
            if file in self._known and _read_state(file) not in (None, self._known[file]):
                return file
        return ""


def _read_state(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
