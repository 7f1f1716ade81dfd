"""Region -> the model file that the candidate is given, the tensors that it is fed, and the cache
key of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from subgraph.graph.cut import Cut
from subgraph.graph.region import Region
from subgraph.origins import load as load_origin
from subgraph.runtime.run_result import Feeds
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record
from subgraph.trials.candidate_runtime import CandidateRuntime
from subgraph.trials.forms import Form, ShippedModel, find_shipped_model
from subgraph.trials.reference_model import ReferenceModel
from subgraph.version import __version__


@dataclass(frozen=True)
class ModelWriter:
    """Writes the models that a candidate is given.

    Attributes:
        model: the reference's model, which is cut.
        runtime: the runtime that reads the files; it may have a model of its own.
    """

    model: ReferenceModel
    runtime: CandidateRuntime

    @cached_property
    def shipped(self) -> ShippedModel | None:
        """The user's file, if it can be run as the full model."""
        return find_shipped_model(self.model.graph, self.model.whole(), self.runtime.own_model)

    def form_of(self, region: Region, full_model_form: Form) -> Form:
        """The form in which the candidate is given a region; `full_model_form`: that of the full
        model."""
        whole = self.model.whole()
        if region.nodes != whole.nodes:
            return Form.CUT
        return full_model_form if region == whole and self.shipped else Form.PINNED

    def _file_of(self, form: Form, region: Region) -> ShippedModel | None:
        """Return the user's file if it is written in this form; None if a cut is."""
        return self.shipped if form is not Form.CUT and region == self.model.whole() else None

    def write(
        self, form: Form, region: Region, records: Feeds, folder: Path
    ) -> tuple[Sequence[Sequence[Record]], Sequence[str]]:
        """Write `model.onnx` into `folder`; return the tensors to feed per sample, and the names of
        the outputs.

        Raises:
            ModelError: the candidate's own model has no such region.
        """
        if shipped := self._file_of(form, region):
            feeds, outputs = shipped.write(records, folder, pinned=form is Form.PINNED)
        else:
            cut, feeds = self.write_cut(region, records, folder)
            outputs = cut.outputs
        if not self.runtime.candidate.can.tflite_operators:
            load_origin.write_own_format(folder / "model.onnx", folder)
        return feeds, outputs

    def write_cut(
        self, region: Region, records: Feeds, folder: Path
    ) -> tuple[Cut, list[list[Record]]]:
        """Write the cut of a region as `model.onnx` into `folder`; return it with the tensors to
        feed per sample.

        Raises:
            ModelError: the candidate's own model has no such region.
        """
        if self.runtime.own_model:
            cut, feeds = self.runtime.own_model.cut(region, records, folder)
        else:
            cut = self.model.cut(region, records)
            feeds = [[sample[n] for n in cut.inputs] for sample in records]
        cut.save(folder / "model.onnx")
        return cut, feeds

    def key(self, form: Form, region: Region, records: Feeds) -> str:
        """A hash of the file that the candidate is given, and of the values that it is fed."""
        if shipped := self._file_of(form, region):
            inputs = self.model.graph.inputs
            values = [self.model.values.digest([sample[n] for n in inputs]) for sample in records]
            return digest(__version__, shipped.key, form, *values, *self.model.choice.ignored)
        return self.model.region_key(region, records)
