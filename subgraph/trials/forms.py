"""The forms in which a candidate is given a model.

The user runs a file, so the full model is that file, byte for byte and with its open dimensions.
If the candidate does not run it, the same file is tried with its open shapes pinned: that shows
whether the open shapes are the reason. All other declarations are kept, because a wrong one may be
the reason as well. A cut has the shapes of the values that it is fed, and no declaration that they
contradict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from subgraph.graph.graph import Graph
from subgraph.graph.model_file import copy_model, has_open_shapes, model_digest, write_pinned
from subgraph.graph.region import Region
from subgraph.graph.value_types import common_type
from subgraph.results.common import FormDocument
from subgraph.runtime.run_result import Feeds
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record
from subgraph.trials.candidate_model import CandidateModel
from subgraph.verdict import NO_OUTPUT, Signature, Status, Verdict


class Form(StrEnum):
    """The form in which a model was passed to a candidate."""

    SHIPPED = "as shipped"  # the user's file
    PINNED = "pinned"  # the user's file, with the shapes of its inputs; else a cut of all nodes
    CUT = "cut"  # a region, with the shapes of its boundary


@dataclass(frozen=True)
class FormsTried:
    """The verdicts on the forms of the whole model that were tried, the file as shipped first."""

    verdicts: dict[Form, Verdict] = field(default_factory=dict)

    @property
    def only_pinned(self) -> bool:
        """Whether the candidate returns outputs for the model only if its shapes are pinned."""
        return (
            Form.PINNED in self.verdicts
            and self._silent(Form.SHIPPED)
            and bool(self.verdicts[Form.PINNED].outputs)
        )

    def _silent(self, form: Form) -> bool:
        return self.verdicts[form].signature in NO_OUTPUT - {Signature.TIMEOUT}

    def sentences(self) -> Iterator[str]:
        """Yield a line for the reader if the two forms were not treated alike."""
        if Form.PINNED not in self.verdicts:
            return
        shipped = self.verdicts[Form.SHIPPED]
        pinned = self.verdicts[Form.PINNED]
        if self.only_pinned:
            yield (
                f"the file as shipped: {shipped.signature}: {shipped.why}; all other results are"
                " for pinned shapes"
            )
        elif self._silent(Form.PINNED) and not self._silent(Form.SHIPPED):
            yield (
                f"the model with pinned shapes, which every cut has: {pinned.signature}:"
                f" {pinned.why}"
            )
        elif shipped.status is Status.FAIL and pinned.status is Status.AGREE:
            yield (
                "the file as shipped is wrong, with pinned shapes it is right: the open dimensions"
                " are the reason"
            )

    def document(self) -> list[FormDocument]:
        """Each form tried."""
        return [FormDocument(f, v.status, v.signature, v.why) for f, v in self.verdicts.items()]


@dataclass(frozen=True)
class ShippedModel:
    """The model whose file is run as the whole: that of the reference, or the candidate's own."""

    whole: Region
    graph: Graph
    candidate_model: CandidateModel | None

    @cached_property
    def key(self) -> str:
        """A hash of the bytes of the file and its external data, and of the outputs that are asked
        for."""
        return digest("shipped/1", model_digest(self.graph), list(self.whole.outputs))

    @property
    def open_shapes(self) -> bool:
        """Whether the file declares a shape that is not all sizes."""
        return has_open_shapes(self.graph)

    def write(
        self, records: Feeds, folder: Path, *, pinned: bool
    ) -> tuple[list[list[Record]], Sequence[str]]:
        """Write the file as `model.onnx` into `folder`.

        Args:
            records: Per sample, the reference's values.
            folder: The folder, which also takes the values in the candidate's own form.
            pinned: Whether open shapes become those of the values. Nothing else is changed.

        Returns:
            The tensors to feed per sample, and the names of the outputs.

        Raises:
            DataError: External data cannot be read.
            OutputError: Nothing can be written.
        """
        if self.candidate_model:
            fed: Feeds = self.candidate_model.feeds(self.whole, records, folder)
            outputs = self.candidate_model.region(self.whole).outputs
            known = fed
        else:
            fed = [{n: sample[n] for n in self.graph.inputs} for sample in records]
            outputs = self.whole.outputs
            known = records
        if pinned:
            names = [name for name in (*self.graph.inputs, *outputs) if name in known[0]]
            types = {name: common_type([sample[name] for sample in known]) for name in names}
            write_pinned(self.graph, types, folder / "model.onnx")
        else:
            copy_model(self.graph, folder / "model.onnx")
        return [list(sample.values()) for sample in fed], outputs

    def other_form_tells_more(self, verdict: Verdict) -> bool:
        """Return whether to run the full model pinned as well: it is refused or wrong, and open
        dimensions may be the reason."""
        fails = verdict.status is Status.FAIL and verdict.signature is not Signature.TIMEOUT
        return self.open_shapes and (verdict.signature is Signature.REFUSED or fails)


def find_shipped_model(
    graph: Graph, whole: Region, candidate_model: CandidateModel | None
) -> ShippedModel | None:
    """The model whose file can be run as the whole; None if there is none.

    Random numbers must be those of the reference, and every input must have a value.
    """
    if candidate_model is None:
        fits = set(whole.inputs) <= graph.inputs.keys() and not whole.shapes
        return ShippedModel(whole, graph, None) if fits else None
    if candidate_model.problem(whole):
        return None
    region = candidate_model.region(whole)
    other = candidate_model.graph
    fits = set(region.inputs) == other.inputs.keys() and set(region.outputs) <= set(other.outputs)
    return ShippedModel(whole, other, candidate_model) if fits else None
