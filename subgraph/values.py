"""Reference values of a model's tensors for all samples: run once, kept on disk, added to as more are asked for."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subgraph import region as regions
from subgraph.capture import Captured, Reference, load_above, record
from subgraph.digest import file_digest
from subgraph.graph import Graph
from subgraph.inputs import Feeding, Sample
from subgraph.tensors import Record


class Values:
    """Records per sample, with absolute paths.

    The model's inputs are made in the first run and fed from their files in later ones, so that all values belong to
    the same inputs, however open dimensions and unnamed files are resolved.
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

    def need(self, names: Collection[str]) -> None:
        """Capture those of these tensors that are not there yet, in one run of their ancestors.

        Raises:
            InputError: an input does not fit. ModelError: the reference cannot run the model. WorkerDied: it crashed.
        """
        with self._lock:
            missing = [n for n in dict.fromkeys(names) if n not in self.records[0]]
            if not missing:
                return
            into = self.folder / f"batch{self._batch}"
            into.mkdir(parents=True)
            self._batch += 1
            if not self.captured:
                missing = list(dict.fromkeys((*self.graph.inputs, *missing)))
                self._first(missing, into)
            else:
                self._more(missing, into)

    def _first(self, names: Sequence[str], into: Path) -> None:
        above = regions.above(self.graph, names)
        stems = {name: f"t{i}" for i, name in enumerate(names)}
        self.captured = record(self.reference, self.graph, above, stems, self.samples, into)
        for k, captured in enumerate(self.captured):
            self._keep(k, captured.tensors, into / str(k))

    def _more(self, names: Sequence[str], into: Path) -> None:
        above = regions.above(self.graph, names)
        stems = {name: f"t{i}" for i, name in enumerate(names)}
        aside = into / "above"
        aside.mkdir()
        try:
            needed = load_above(self.reference, self.graph, above, names, aside)
            for k, known in enumerate(self.records):
                here = into / str(k)
                here.mkdir()
                answer = self.reference.run("above", here, stems, feeds=[known[n].to_json() for n in needed])
                self._keep(k, {r["name"]: Record.from_json(r) for r in answer["tensors"]}, here)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

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


def plan_all(graph: Graph, feeding: Feeding) -> list[Sample]:
    """The samples to run, with values for every input of the model.

    Raises:
        InputError, UnknownName: as `inputs.plan`.
    """
    return feeding.plan(graph, graph.inputs)
