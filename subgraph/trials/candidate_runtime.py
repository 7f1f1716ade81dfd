"""The runtime under test, as the trials of one session share it, and the forms in which it is given
models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from subgraph.graph.cut import Cut
from subgraph.graph.graph import Graph
from subgraph.graph.model_file import copy_model, digest_model, has_open_shapes, write_pinned
from subgraph.graph.region import Region
from subgraph.graph.value_types import find_common_type
from subgraph.origins import load as load_origin
from subgraph.results.common import FormDocument
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.run_result import Feeds
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.reference_model import ReferenceModel, hash_region
from subgraph.types import Fields, JsonObject, frozen, frozen_keywords
from subgraph.verdict import NO_OUTPUT, Signature, Verdict
from subgraph.version import __version__


@frozen_keywords
class CandidateRuntime:
    """The runtime under test.

    Attributes:
        candidate: settings of the runtime.
        workers: processes that run it.
        own_model: the model file that the candidate runs (int8, fp16, ...); None if it runs the
            reference's file.
        is_manual: whether a person runs the candidate, so that no process is ever started.
    """

    candidate: Candidate
    workers: Workers
    own_model: CandidateModel | None = None
    is_manual: bool = False

    @cached_property
    def about(self) -> BackendInfo:
        """Version, precision and capabilities that the backend reports with the candidate's
        options."""
        return self.workers.about()

    @property
    def runs_user_code(self) -> bool:
        """Whether user code computes the outputs; it may depend on the names of nodes."""
        return bool(self.candidate.runs_commands or self.candidate.script or self.is_manual)

    @property
    def runs_plain_cuts(self) -> bool:
        """Whether the candidate is given a cut unchanged; only plain cuts can be merged into one
        model."""
        return not self.own_model


def find_changed_options(candidate: Candidate, options: Fields) -> JsonObject:
    """Return the options that a candidate does not have yet."""
    present = {name: str(value) for name, value in candidate.options.items()}
    return {name: value for name, value in options.items() if present.get(name) != str(value)}


def describe_changed_options(candidate: Candidate, options: Fields) -> str:
    """Return the options that a candidate does not have yet, as in its specification."""
    changed = find_changed_options(candidate, options)
    return ",".join(f"{name}={value}" for name, value in changed.items())


@frozen
class CandidateKey:
    """Cache key of a candidate, combined with the key of a region.

    It contains all that is known of the candidate without running it, and how often its results
    were discarded. Each time left an entry in the store.

    Attributes:
        store: the store of the results.
        identity: what is known of the candidate.
    """

    store: Store
    identity: Fields

    @property
    def _generation(self) -> int:
        return next(n for n in itertools.count() if self.store.get(self._format_entry(n)) is None)

    def _format_entry(self, generation: int) -> str:
        return digest("dropped", self.identity, generation)

    @property
    def text(self) -> str:
        """The key; it changes with `discard_results`."""
        return digest("candidate", self.identity, self._generation)

    def discard_results(self) -> None:
        """Ignore all stored results of the candidate, for any model."""
        self.store.put(self._format_entry(self._generation), {}, self.store.new_folder())


# ------------------------------------------------------------ forms
# The forms in which a candidate is given a model.
#
# The user runs a file, so the full model is that file, byte for byte and with its open
# dimensions. If the candidate does not run it, the same file is tried with its open shapes
# pinned: that shows whether the open shapes are the reason. All other declarations are kept,
# because a wrong one may be the reason as well. A cut has the shapes of the values that it is
# fed, and no declaration that they contradict.


class Form(StrEnum):
    """The form in which a model was passed to a candidate."""

    SHIPPED = "as shipped"  # the user's file
    PINNED = "pinned"  # the user's file, with the shapes of its inputs; else a cut of all nodes
    CUT = "cut"  # a region, with the shapes of its boundary


@frozen
class FormsTried:
    """The verdicts on the forms of the whole model that were tried, the file as shipped first."""

    verdicts: dict[Form, Verdict] = field(default_factory=dict)

    @property
    def only_pinned(self) -> bool:
        """Whether the candidate returns outputs for the model only if its shapes are pinned."""
        return (
            Form.PINNED in self.verdicts
            and self._is_silent(Form.SHIPPED)
            and bool(self.verdicts[Form.PINNED].outputs)
        )

    def _is_silent(self, form: Form) -> bool:
        return self.verdicts[form].signature in NO_OUTPUT - {Signature.TIMEOUT}

    def iter_sentences(self) -> Iterator[str]:
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
        elif self._is_silent(Form.PINNED) and not self._is_silent(Form.SHIPPED):
            yield (
                f"the model with pinned shapes, which every cut has: {pinned.signature}:"
                f" {pinned.why}"
            )
        elif shipped.fails and pinned.agrees:
            yield (
                "the file as shipped is wrong, with pinned shapes it is right: the open dimensions"
                " are the reason"
            )

    def document(self) -> list[FormDocument]:
        """Return each form that was tried."""
        return [FormDocument(f, v.status, v.signature, v.why) for f, v in self.verdicts.items()]


@frozen
class ShippedModel:
    """The model whose file is run as the full model: the reference's, or the candidate's own."""

    whole: Region
    graph: Graph
    candidate_model: CandidateModel | None

    @cached_property
    def key(self) -> str:
        """A hash of the bytes of the file and its external data, and of the requested outputs."""
        return digest("shipped/1", digest_model(self.graph), list(self.whole.outputs))

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
            types = {name: find_common_type([sample[name] for sample in known]) for name in names}
            write_pinned(self.graph, types, folder / "model.onnx")
        else:
            copy_model(self.graph, folder / "model.onnx")
        return [list(sample.values()) for sample in fed], outputs


# ------------------------------------------------------------ files
# Region -> the model file that the candidate is given, the tensors that it is fed, and the cache
# key of both.


@frozen
class ModelWriter:
    """Writes the models that a candidate is given.

    Attributes:
        model: The reference's model, which is cut.
        runtime: The runtime that reads the files; it may have its own model.
    """

    model: ReferenceModel
    runtime: CandidateRuntime

    @cached_property
    def shipped(self) -> ShippedModel | None:
        """The user's file, if it can be run as the full model."""
        # Random numbers must be those of the reference, and every input must have a value.
        whole = self.model.whole()
        own_model = self.runtime.own_model
        if own_model is None:
            fits = set(whole.inputs) <= self.model.graph.inputs.keys() and not whole.shapes
            if fits:
                return ShippedModel(whole, self.model.graph, None)
            return None
        if own_model.find_problem(whole):
            return None
        region = own_model.region(whole)
        other = own_model.graph
        fits = set(region.inputs) == other.inputs.keys() and set(region.outputs) <= set(
            other.outputs
        )
        if fits:
            return ShippedModel(whole, other, own_model)
        return None

    def form_of(self, region: Region, full_model_form: Form) -> Form:
        """Return the form in which the candidate is given a region; `full_model_form`: that of the
        full model."""
        whole = self.model.whole()
        if region.nodes != whole.nodes:
            return Form.CUT
        if region == whole and self.shipped:
            return full_model_form
        return Form.PINNED

    def _find_file(self, form: Form, region: Region) -> ShippedModel | None:
        """Return the user's file if it is written in this form; None if a cut is."""
        if form is not Form.CUT and region == self.model.whole():
            return self.shipped
        return None

    def write(
        self, form: Form, region: Region, records: Feeds, folder: Path
    ) -> tuple[Sequence[Sequence[Record]], Sequence[str]]:
        """Write `model.onnx` into `folder`; return the tensors to feed per sample, and the names of
        the outputs.

        Raises:
            ModelError: the candidate's own model has no such region.
        """
        if shipped := self._find_file(form, region):
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
        """Return a hash of the file that the candidate is given, and of the values that it
        is fed."""
        if shipped := self._find_file(form, region):
            inputs = self.model.graph.inputs
            values = [self.model.values.digest([sample[n] for n in inputs]) for sample in records]
            return digest(__version__, shipped.key, form, *values, *self.model.choice.ignored)
        return hash_region(self.model, region, records)
