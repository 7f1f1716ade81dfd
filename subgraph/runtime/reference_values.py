"""Reference values of a model's tensors for all samples: run once, kept on disk, added to as more are asked for."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.graph import region
from subgraph.graph.cut import boundary_types
from subgraph.graph.graph import Graph
from subgraph.runtime.capture import Captured, capture_samples, load_ancestors
from subgraph.runtime.inputs import Sample
from subgraph.runtime.reference import Reference
from subgraph.storage.digest import file_digest
from subgraph.storage.tensors import Record, copied


class ReferenceValues:
    """Records per sample, with absolute paths.

    The model's inputs are made in the first run and fed from their files in later ones, and so is what random nodes
    drew, so that all values belong to the same inputs, however open dimensions and unnamed files are resolved.
    """

    def __init__(self, graph: Graph, reference: Reference, samples: Sequence[Sample], folder: Path) -> None:
        self.graph, self.reference, self.samples, self.folder = graph, reference, samples, folder.resolve()
        self.records: list[dict[str, Record]] = [{} for _ in samples]
        self.captured: list[Captured] = []
        self._digests: dict[str, str] = {}
        self._lock = threading.RLock()
        self._batch = 0

    @property
    def labels(self) -> list[str]:
        """The samples' names; empty ones where there is only one."""
        return [s.label for s in self.samples]

    def need(self, names: Collection[str], *, near: bool = False) -> None:
        """Capture those of these tensors that are not there yet, in one run of their ancestors.

        `near`: only of those behind tensors that are there, so that many such runs in order cost no more than one.

        Raises:
            InputError: an input does not fit. ModelError: the reference cannot run the model. WorkerDied: it crashed.
        """
        with self._lock:
            known = self.records[0]
            missing = [n for n in dict.fromkeys(names) if n not in known]
            if not missing:
                return
            into = self.folder / f"batch{self._batch}"
            into.mkdir(parents=True)
            self._batch += 1
            missing += [n for n in self._drawn(missing) if n not in known and n not in missing]
            if not self.captured:
                missing = list(dict.fromkeys((*self.graph.inputs, *missing)))
                self._first(missing, into)
            else:
                self._more(missing, into, near)

    def _drawn(self, names: Sequence[str]) -> list[str]:
        """What the random nodes above these tensors give: kept, or another run would draw other numbers."""
        graph = self.graph
        if not graph.random_nodes:
            return []
        nodes = graph.ancestors(graph.maker[n] for n in names if n in graph.maker)
        return [n for i in graph.in_order(nodes & graph.random_nodes) for n in graph.makes[i]]

    def _first(self, names: Sequence[str], into: Path) -> None:
        stems = {name: f"t{i}" for i, name in enumerate(names)}
        self.captured = capture_samples(
            self.reference, self.graph, region.above(self.graph, names), stems, self.samples, into
        )
        for k, captured in enumerate(self.captured):
            self._keep(k, captured.tensors, into / str(k))

    def _more(self, names: Sequence[str], into: Path, near: bool) -> None:
        graph, made = self.graph, [n for n in names if n in self.graph.maker]
        nodes = self._behind(made) if near else graph.ancestors(graph.maker[n] for n in made)
        drawn = {i for i in nodes & graph.random_nodes if self.records[0].keys() >= set(graph.makes[i])}
        above = region.of_nodes(graph, nodes - drawn, [(n,) for n in made], keep_random=True)
        types = boundary_types(graph, [n for n in (*above.inputs, *above.shapes) if n in graph.maker], self.records, {})
        stems = {name: f"t{i}" for i, name in enumerate(names)}
        aside = into / "above"
        aside.mkdir()
        try:
            needed = load_ancestors(self.reference, graph, above, names, aside, types)
            found = []
            for k, known in enumerate(self.records):
                (into / str(k)).mkdir()
                found.append(self.reference.run("above", into / str(k), stems, [known[n] for n in needed]))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        for k, run in enumerate(found):  # all samples or none: what one of them has, all have
            self._keep(k, run.by_name, into / str(k))

    def _behind(self, names: Sequence[str]) -> set[int]:
        """The nodes that make these tensors from what is there."""
        graph, known = self.graph, self.records[0]
        nodes: set[int] = set()
        stack = [graph.maker[n] for n in names]
        while stack:
            i = stack.pop()
            if i not in nodes:
                nodes.add(i)
                stack += [graph.maker[n] for n in graph.reads[i] if n in graph.maker and n not in known]
        return nodes

    def copy_to(self, stems: Mapping[str, str], folder: Path) -> list[Captured]:
        """These tensors as files of their own in `folder/<k>`, as `capture.record` gives them; `stems` as there."""
        self.need(stems)
        found = []
        for k, (captured, known) in enumerate(zip(self.captured, self.records, strict=True)):
            into = folder / str(k)
            into.mkdir()
            tensors = {name: copied(known[name], into, stem) for name, stem in stems.items()}
            found.append(replace(captured, tensors=tensors))
        return found

    def _keep(self, k: int, found: Mapping[str, Record], folder: Path) -> None:
        self.records[k].update((n, r.within(str(folder))) for n, r in found.items())

    def digest(self, records: Sequence[Record]) -> list[str]:
        """What identifies some values: their types and contents. Each file is read once."""
        found = []
        for r in records:
            for file in r.files:
                if file not in self._digests:
                    self._digests[file] = file_digest(Path(file))
            contents = [self._digests[file] for file in r.files]
            found.append(repr((replace(r, files=()).to_json(), contents)))
        return found
