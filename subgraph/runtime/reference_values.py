"""Reference values of a model's tensors for all samples: computed once, when they are needed, and
kept on disk."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from subgraph.graph import region
from subgraph.graph.cut import boundary_types
from subgraph.graph.graph import Graph
from subgraph.runtime.capture import KEY, Captured, capture_samples, loaded_ancestors
from subgraph.runtime.inputs import InputOrigin, OriginKind, Sample
from subgraph.runtime.reference import Reference
from subgraph.storage.digest import file_digest
from subgraph.storage.tensors import Record, Records, copied
from subgraph.types import StringMap


class ReferenceValues:
    """Records per sample, with absolute paths.

    The first run stores the model's inputs and the outputs of its random nodes. Later runs are fed
    from these files, so that all values belong to the same inputs, however open dimensions and
    unnamed files are resolved.

    Attributes:
        records: per sample, record by tensor; every sample has the same tensors.
        captured: the first run, per sample.
        watched: the values' files; whoever gets others from the store adds these.
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

    def with_input(self, name: str, values: Sequence[Records], origin: str) -> ReferenceValues:
        """The same samples with another value of one input; of `values`, that one is taken.
        `origin`: what it is.

        What does not depend on it is kept. Nothing runs before a value is needed.
        """
        graph = self.graph
        below = graph.descendants(graph.readers.get(name, ()))
        other = ReferenceValues(
            graph, self.reference, self.samples, Path(tempfile.mkdtemp(dir=self.folder))
        )
        kept = (
            {n: r for n, r in records.items() if graph.maker.get(n) not in below}
            for records in self.records
        )
        other.records = [
            {**records, name: value[name]} for records, value in zip(kept, values, strict=True)
        ]
        told = {name: InputOrigin(OriginKind.COMPUTED, origin)}
        other.captured = [replace(c, origins={**c.origins, **told}) for c in self.captured]
        return other

    def with_inputs(
        self, inputs: Sequence[Records], reference: Reference | None = None
    ) -> ReferenceValues:
        """The values for other inputs of the model, a sample each. Nothing runs before a value is
        needed.

        Args:
            inputs: Per sample, the value of each input; other values are ignored.
            reference: The process that computes the values; None for the present one.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        reference = reference or self.reference
        other = ReferenceValues(self.graph, reference, [self.samples[0]] * len(inputs), folder)
        names = self.graph.inputs
        other.records = [{n: sample[n] for n in names if n in sample} for sample in inputs]
        other.captured = self.captured[:1] * len(inputs)
        return other

    @property
    def are_drawn(self) -> bool:
        """Whether the user gave no value of any input."""
        return not any(sample.files for sample in self.samples)

    def redrawn(self, draw: str) -> ReferenceValues:
        """The values for floats that are drawn in another way. Nothing runs before a value is
        needed."""
        samples = [replace(sample, draw=draw) for sample in self.samples]
        return ReferenceValues(
            self.graph, self.reference, samples, Path(tempfile.mkdtemp(dir=self.folder))
        )

    @property
    def labels(self) -> list[str]:
        """The samples' names; [""] if there is only one sample."""
        return [s.label for s in self.samples]

    def need(self, names: Collection[str], *, near: bool = False) -> None:
        """Capture the tensors that have no values yet, in one run of their ancestors.

        `near`: run only ancestors between these tensors and tensors with values; many such calls in
        topological order cost no more than one. So it is always where the model does not fit into
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
            missing += [
                n for n in self._random_outputs(missing) if n not in stored and n not in missing
            ]
            if not self.captured:
                missing = list(dict.fromkeys((*self.graph.inputs, *missing)))
                stems = {name: f"t{i}" for i, name in enumerate(missing)}
                above = region.find_upstream(self.graph, missing)
                with self.reference.exclusive():
                    self.captured = capture_samples(
                        self.reference, self.graph, above, stems, self.samples, into
                    )
                for k, captured in enumerate(self.captured):
                    self._keep(k, captured.tensors, into / str(k))
            else:
                self._run_again(missing, into, near or self.reference.exceeded)

    def _random_outputs(self, names: Sequence[str]) -> list[str]:
        """Outputs of the random nodes above these tensors: another run would draw other numbers."""
        graph = self.graph
        if not graph.random_nodes:
            return []
        nodes = graph.ancestors(graph.maker[n] for n in names if n in graph.maker)
        return list(graph.iter_outputs(graph.in_order(nodes & graph.random_nodes)))

    def _run_again(self, names: Sequence[str], into: Path, near: bool) -> None:
        graph = self.graph
        made = [n for n in names if n in graph.maker]
        stored = self.records[0] if near else {}
        nodes = graph.ancestors_until((graph.maker[n] for n in made), stored.__contains__)
        stored_random = {
            i for i in nodes & graph.random_nodes if self.records[0].keys() >= set(graph.makes[i])
        }
        above = region.build_region(
            graph, nodes - stored_random, [(n,) for n in made], keep_random=True
        )
        types = boundary_types(
            graph, [n for n in (*above.inputs, *above.shapes) if n in graph.maker], self.records, {}
        )
        stems = {name: f"t{i}" for i, name in enumerate(names)}
        runs = []
        loaded = loaded_ancestors(self.reference, graph, above, names, into, types)
        with self.reference.exclusive(), loaded as needed:
            for k, records in enumerate(self.records):
                (into / str(k)).mkdir()
                runs.append(
                    self.reference.run(KEY, into / str(k), stems, [records[n] for n in needed])
                )
        for k, run in enumerate(runs):  # after the last run: every sample has the same tensors
            self._keep(k, run.by_name, into / str(k))

    def copy_to(self, stems: StringMap, folder: Path) -> list[Captured]:
        """The result of `capture.capture_samples` for these tensors and this folder, by copying
        files."""
        self.need(stems)
        samples = []
        for k, (captured, records) in enumerate(zip(self.captured, self.records, strict=True)):
            into = folder / str(k)
            into.mkdir()
            tensors = {name: copied(records[name], into, stem) for name, stem in stems.items()}
            samples.append(replace(captured, tensors=tensors))
        return samples

    def _keep(self, k: int, tensors: Records, folder: Path) -> None:
        kept = {n: r.within(folder) for n, r in tensors.items()}
        self.watched.add(chain.from_iterable(r.files for r in kept.values()))
        self.records[k].update(kept)

    def digest(self, records: Sequence[Record]) -> list[str]:
        """Type and digest of the contents of each value. Each file is read once."""
        identities = []
        for r in records:
            for file in r.files:
                if file not in self._digests:
                    self._digests[file] = file_digest(Path(file))
            contents = [self._digests[file] for file in r.files]
            identities.append(repr((asdict(replace(r, files=())), contents)))
        return identities


class Watched:
    """Files that nobody may change, by size and time as they were when they were added. For any number of threads.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file, watched = Path(folder, "x.npy"), Watched()
    ...     size = file.write_bytes(b"...")
    ...     watched.add([str(file)])
    ...     before = watched.changed([str(file)])
    ...     size = file.write_bytes(b"....")
    ...     before, watched.changed([str(file)]) == str(file)
    ('', True)
    """  # noqa: E501

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def add(self, files: Iterable[str]) -> None:
        """Watch these from now on; what is watched already stays as it was."""
        for file in files:
            if state := _read_state(file):
                self._known.setdefault(file, state)

    def changed(self, files: Iterable[str]) -> str:
        """The first of these files that is watched and is not as it was; "" if there is none.

        One that is gone counts as it was: the store may be removed by its owner, and whoever needs
        the file says so. One system call per file.
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
