"""A cut whose inputs are what a device recorded: its own tensors go in, its own tensors lie beside as `dump_data`.

The outputs are what the reference makes of those inputs, so that the cut proves itself as any other does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subgraph.cases import write_case
from subgraph.cases.case import Case, RecordingEntry, ResultPlace
from subgraph.cases.write_case import CaseRequest
from subgraph.errors import InputError, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.recordings.align import cast, fitted
from subgraph.recordings.compare import piece
from subgraph.recordings.match import MatchedRun, need, reference_of
from subgraph.runtime.capture import Captured
from subgraph.runtime.inputs import Sample
from subgraph.storage.tensors import PROTO_NAMES, Record, copied, save
from subgraph.text import clean
from subgraph.trials.trial import Trials

ASCEND = ("ascend", "ascend-converted")
AIPP = "the data layer is cut away: compile this cut without AIPP (no --insert_op_conf); its inputs are what AIPP gave"


@dataclass
class RecordedValues:
    """Values for `write_case.write_region`: what enters a region is what the device recorded, where it did."""

    trials: Trials
    matched: Sequence[MatchedRun]
    region: Region
    folder: Path
    recording: RecordingEntry

    @property
    def samples(self) -> Sequence[Sample]:
        """As the reference was fed."""
        return self.trials.values.samples

    def placed(self, stems: Mapping[str, str], folder: Path) -> list[Captured]:
        """As `Values.placed`."""
        fed = [self._fed(k) for k in range(len(self.samples))]
        given = self.trials.run_on_reference(self.region, fed)
        found = self.trials.values.placed(
            {n: s for n, s in stems.items() if n in self.trials.values.records[0]}, folder
        )
        out = []
        for k, captured in enumerate(found):
            tensors = dict(captured.tensors)
            for name, record in {**fed[k], **{n: r for n, r in given[k].items() if n in stems}}.items():
                tensors[name] = copied(record, folder / str(k), stems[name])
            out.append(replace(captured, tensors=tensors))
        return out

    def _fed(self, k: int) -> dict[str, Record]:
        """
        Raises:
            UsageError: what enters was not recorded; says which, and from where on a cut could be fed.
        """
        graph, held = self.trials.graph, self.matched[k].held
        lacking = [n for n in self.region.inputs if n not in held and n in graph.maker]
        if lacking:
            wider = piece(self.trials, lacking, lambda n: n in held)
            starts = ", ".join(clean(graph.label(i)) for i in (wider.nodes[:1] if wider else ()))
            what = f"the recording holds no '{clean(lacking[0])}', which the cut reads"
            raise UsageError(what, f"--start {starts} begins at tensors that it holds" if starts else "cut elsewhere")
        return {n: self.saved(n, k, self.folder) for n in self.region.inputs if n in held}

    def saved(self, name: str, k: int, folder: Path, stem: str = "") -> Record:
        """A recorded tensor in the model's type and layout.

        Raises:
            InputError: it cannot be read.
        """
        own, right = self.matched[k].held[name], reference_of(self.trials, name, k)
        if right is None:
            raise InputError(f"'{clean(name)}' is no tensor")
        into = folder / str(k)
        into.mkdir(parents=True, exist_ok=True)
        text = f"tensor({PROTO_NAMES.get(right.dtype.name, right.dtype.name)})"
        value = cast(fitted(own.entry.read(), right, own.fit), right)
        stem = stem or f"r{len(list(into.iterdir()))}"
        return save(name, value, text, into, stem).within(str(into.resolve()))

    def dumped(self, stems: Mapping[str, str], folder: Path) -> list[dict[str, Record]]:
        """The recorded tensors of the region's nodes, as files of their own in `folder/<k>`, with absolute paths."""
        graph, out = self.trials.graph, []
        for k in range(len(self.samples)):
            names = [n for i in self.region.nodes for n in graph.makes[i] if n in self.matched[k].held]
            need(self.trials, names)
            out.append({n: self.saved(n, k, folder, stems[n]) for n in names})
        return out


def extract_recorded(
    graph: Graph,
    request: CaseRequest,
    place: ResultPlace,
    trials: Trials,
    matched: Sequence[MatchedRun],
    recording: RecordingEntry,
) -> list[Case]:
    """As `write_case.extract`, with a device's tensors from a recording.

    Raises:
        UsageError: the recording lacks what the cut reads. SubcutError: as `extract.extract`.
    """
    region, place = write_case.chosen(graph, request, place)
    trials.values.need([*region.inputs, *region.shapes, *region.outputs])
    files = {n: h.entry.file for n, h in matched[0].held.items() if n in region.inputs}
    values = RecordedValues(trials, matched, region, trials.new_folder(), replace(recording, files=files))
    return write_case.write_region(graph, region, request, place, trials.reference, device=values)


def hint(manifest: Mapping[str, Any]) -> str:
    """What the device's compiler is to be told, where the model's own input is not in the cut; "" where nothing."""
    away = bool(manifest["inputs"]) and all(t["producer"] for t in manifest["inputs"])
    return AIPP if away and manifest["recording"]["format"] in ASCEND else ""
