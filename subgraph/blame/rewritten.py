"""Other forms of a region, put into the whole model: which of them does the candidate compute
right?

A form is asked about alone first, then proven on the reference, then tried in the whole; each step
is dearer than the one before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from subgraph.blame.cures import Prover
from subgraph.blame.equivalence import OriginalRegion
from subgraph.blame.parameters import with_constant_parameters
from subgraph.blame.rewrites import Rewriting, rewritings
from subgraph.editing.draft import Draft
from subgraph.editing.replace import replace as replaced
from subgraph.errors import SubcutError
from subgraph.graph.graph import load
from subgraph.graph.model_file import has_open_shapes
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.region import Region
from subgraph.results.blame import Cure
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import safe_name
from subgraph.storage.tensors import Record
from subgraph.text import clean, count
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

log = logging.getLogger("subcut")

MAX_PROVEN = 2  # cures by rewriting, after which no more are tried
MAX_NODES = 64  # of a region that is rewritten
MAX_SECONDS = 120.0  # after which no more forms are tried


@dataclass
class Rewriter:
    """The region, and what its forms are compared with.

    Attributes:
        work: the folder that the models go to, which becomes `place`. tried: forms that were run on
            the candidate.
    """

    prover: Prover
    trials: Trials
    region: Region
    work: Path
    place: Path
    tried: int = 0

    def cures(self) -> Iterator[Cure]:
        """Forms that heal the region alone; the first two that are proven in the whole are the last
        ones.

        Raises:
            SubcutError: the region cannot be cut, or the reference cannot run it.
        """
        trials = self.trials
        region = with_constant_parameters(self.trials.graph, self.region)
        if trials.runtime.own_model or trials.runtime.is_manual or len(region.nodes) > MAX_NODES:
            return
        deadline = trials.model.reference.deadline
        proven = 0
        scratch = trials.model.new_folder()
        end = time.monotonic() + deadline.timeout(MAX_SECONDS)
        records = trials.model.sample_groups(region)[0][1]
        cut, feeds = trials.writer.write_cut(region, records, scratch)
        fed = [{record.name: record for record in sample} for sample in feeds]
        frozen = region.shapes if has_open_shapes(trials.graph) or region != self.region else None
        log.info("rewritings of %s, each alone first", count(len(region.nodes), "node"))
        python = trials.model.reference.python if trials.model.reference.fixed else None
        with Reference(restart=True, python=python) as reference:
            reference.share(deadline)
            original = OriginalRegion(cut.to_model(), fed, reference, scratch)
            for form in rewritings(scratch / "model.onnx", folder=scratch, frozen=frozen):
                if proven == MAX_PROVEN or time.monotonic() > end:
                    break
                if cure := self._cure(form, original, tuple(fed), scratch):
                    proven += cure.proven
                    yield cure

    def _cure(
        self,
        form: Rewriting,
        original: OriginalRegion,
        fed: tuple[Mapping[str, Record], ...],
        scratch: Path,
    ) -> Cure | None:
        """The cure that a form is; None where it heals nothing, or is another function."""
        path = scratch / f"form{self.tried}.onnx"
        path.write_bytes(form.model.SerializeToString())
        self.tried += 1
        try:
            with self.prover.opened(path, Feeding(records=fed)) as alone:
                if alone.verdict(alone.model.whole()).status is not Status.AGREE:
                    return None
            equal = original.compare(form.model)
            if not equal.proven:
                return None
            log.info("cure? %s, on the whole model", clean(form.words))
            name = f"{safe_name(form.name)}-{self.tried}.onnx"
            self._whole(form, path).save(self.work / name)
            cure = self.prover.of_model(form.words, self.work / name)
        except (SubcutError, OnnxError) as e:
            log.debug("%s: %s", form.words, e)
            return None
        if not cure.proven:
            (self.work / name).unlink()
        return replace(
            cure, model=str(self.place / name) if cure.proven else None, equal=equal.status
        )

    def _whole(self, form: Rewriting, path: Path) -> Draft:
        """The whole model with the form in the region's place; converted as a whole where the form
        has another opset.

        Raises:
            SubcutError, OnnxError: it does not fit, or onnx cannot convert it.
        """
        graph = self.trials.graph
        if not form.opset:
            region = with_constant_parameters(graph, self.region)
            return replaced(graph, region, load(path), computed=region.shapes)
        draft = Draft(graph)
        with OnnxProcess(graph.path) as onnx:
            draft.model = onnx.convert(draft.model, form.opset)
        return draft
