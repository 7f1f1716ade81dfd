"""A cut fed with what a device recorded: the recorded tensors enter it, and lie beside it as
`dump_data`.

Its outputs are what the reference computes from those inputs, so the usual self-check of a case
applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from subgraph.cases import write_case
from subgraph.cases.case import Case, RecordingEntry, ResultPlace
from subgraph.cases.write_case import CaseRequest
from subgraph.errors import UsageError
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.recordings.matching.matched import MatchedSample
from subgraph.recordings.reference_tensors import capture_tensors
from subgraph.runtime.capture import Captured
from subgraph.runtime.inputs import Sample
from subgraph.storage.tensors import Record, copied
from subgraph.text import clean
from subgraph.trials.judge import Judge


@dataclass
class RecordedValues:
    """A `write_case.RecordedSource`: recorded tensors enter the region; where none was recorded,
    the reference's."""

    judge: Judge
    matched: Sequence[MatchedSample]
    region: Region
    folder: Path
    recording: RecordingEntry

    @property
    def samples(self) -> Sequence[Sample]:
        """What the reference was fed."""
        return self.judge.model.values.samples

    def copy_to(self, stems: Mapping[str, str], folder: Path) -> list[Captured]:
        """As `ReferenceValues.copy_to`."""
        inputs = [self._inputs(k) for k in range(len(self.samples))]
        outputs = self.judge.model.run_on_reference(self.region, inputs)
        captured_names = self.judge.model.values.records[0]
        placed = self.judge.model.values.copy_to(
            {n: s for n, s in stems.items() if n in captured_names}, folder
        )
        out = []
        for k, captured in enumerate(placed):
            tensors = dict(captured.tensors)
            for name, record in {
                **inputs[k],
                **{n: r for n, r in outputs[k].items() if n in stems},
            }.items():
                tensors[name] = copied(record, folder / str(k), stems[name])
            out.append(replace(captured, tensors=tensors))
        return out

    def _inputs(self, k: int) -> dict[str, Record]:
        """The recorded inputs of the region.

        Raises UsageError: one was not recorded; says which, and where a cut could start instead.
        """
        graph = self.judge.model.graph
        matches = self.matched[k].matches
        lacking = [n for n in self.region.inputs if n not in matches and n in graph.maker]
        if lacking:
            wider = regions.above_until(graph, lacking, lambda n: n in matches)
            starts = ", ".join(clean(graph.label(i)) for i in (wider.nodes[:1] if wider else ()))
            what = f"the recording holds no '{clean(lacking[0])}', which the cut reads"
            raise UsageError(
                what,
                f"--start {starts} begins at tensors that it holds" if starts else "cut elsewhere",
                code="recording.input-missing",
            )
        known = [n for n in self.region.inputs if n in matches]
        return {
            n: self.matched[k].save(n, self.folder / str(k), f"r{i}") for i, n in enumerate(known)
        }

    def dumped(self, stems: Mapping[str, str], folder: Path) -> list[dict[str, Record]]:
        """Per sample, the recorded tensors of the region's nodes, as files in `folder/<k>`, with
        absolute paths."""
        graph = self.judge.model.graph
        out = []
        for k, m in enumerate(self.matched[: len(self.samples)]):
            names = [
                n
                for n in chain.from_iterable(graph.makes[i] for i in self.region.nodes)
                if n in m.matches
            ]
            capture_tensors(self.judge.model, names)
            out.append(m.save_all(names, folder / str(k), stems))
        return out


def write_recorded_case(
    graph: Graph,
    request: CaseRequest,
    place: ResultPlace,
    judge: Judge,
    matched: Sequence[MatchedSample],
    recording: RecordingEntry,
) -> list[Case]:
    """As `write_case.extract`, with a device's tensors; `recording`: for the manifest, without its
    `files`.

    Raises:
        UsageError: the recording lacks an input of the cut. SubcutError: as `write_case.extract`.
    """
    region, place = write_case.chosen(graph, request, place)
    judge.model.values.need([*region.inputs, *region.shapes, *region.outputs])
    files = {n: m.entry.file for n, m in matched[0].matches.items() if n in region.inputs}
    values = RecordedValues(
        judge, matched, region, judge.model.new_folder(), replace(recording, files=files)
    )
    return write_case.write_region(
        graph, region, request, place, judge.model.reference, device=values
    )
