"""A region and another form of it → do both compute the same on the reference?

A form counts only if it gives every output of every sample bit for bit, or within what one rounding
per operation can do (criterion `noise`, its floor for float32 lowered). What rounding cannot
change, integers and booleans for example, must be equal. A quantized operator has no rounding that
can be perturbed; a form of it in float32 has, and that counts.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from subgraph.comparison.criteria import OutputContext
from subgraph.comparison.criteria.noise import rule
from subgraph.comparison.judge import judge
from subgraph.comparison.noise.noise import OutputNoise, RegionNoise
from subgraph.errors import SubcutError, UsageError
from subgraph.graph import protobuf, region
from subgraph.graph.graph import load
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record
from subgraph.trials.reference_model import run_loaded
from subgraph.verdict import Judgement, Status

IDENTICAL = "bit-identical"
NOISE = "within fp32 noise"
DIFFERENT = "different"
NOT_RUN = "not run"
# of the scale: kernels round constants of their own, such as weights of an interpolation
CRITERION = "floor=1e-5"
CODES = ("int8", "uint8")


@dataclass(frozen=True)
class Equivalence:
    """Attributes: status: IDENTICAL, NOISE, DIFFERENT or NOT_RUN. why: one sentence."""

    status: str
    why: str = ""

    @property
    def proven(self) -> bool:
        """May this form stand in the region's place?"""
        return self.status in (IDENTICAL, NOISE)


class OriginalRegion:
    """A region on the reference, with which other forms of it are compared. It is run once.

    Give a `Reference` with `restart`: a form that crashes the process then costs no more than
    itself.
    """

    def __init__(
        self,
        model: protobuf.ModelProto,
        samples: Sequence[Mapping[str, Record]],
        reference: Reference,
        scratch: Path,
    ) -> None:
        """Runs nothing yet.

        Args:
            model: the cut, with its weights.
            samples: the record of each of its inputs, with absolute files; one mapping per sample.
            scratch: a folder, which the caller removes.

        Raises:
            UsageError: without samples nothing is proven.
        """
        if not samples:
            raise UsageError(
                "a rewriting is proven on samples, and there is none", code="blame.no-samples"
            )
        self._model = model
        self._samples = samples
        self._reference = reference
        self._scratch = scratch.resolve()

    def compare(self, form: protobuf.ModelProto) -> Equivalence:
        """Run another form on every sample and compare all outputs; the worst decides.

        Raises:
            SubcutError: the reference cannot run the region itself.
        """
        expected = self._outputs
        try:
            outputs = self._run(form)
        except SubcutError as e:
            return Equivalence(NOT_RUN, f"the reference does not run it: {e.what}")
        equal = True
        for k, (theirs, ours) in enumerate(zip(outputs, expected, strict=True)):
            for name, record in ours.items():
                if _same_files(theirs[name], record):
                    continue
                equal = False
                judgement = _judge(self._noise[k].of(name), record, theirs[name])
                is_code = (
                    record.dtype in CODES
                )  # what is a tie in one form may be none in the other
                if judgement.status is Status.AGREE and is_code:
                    noise = self._noise_of(form, k, theirs)
                    judgement = _judge(noise.of(name), theirs[name], record)
                if judgement.status is not Status.AGREE:
                    return Equivalence(DIFFERENT, f"'{name}': {judgement.why}")
        return Equivalence(IDENTICAL if equal else NOISE)

    @cached_property
    def _outputs(self) -> list[dict[str, Record]]:
        return self._run(self._model)

    @cached_property
    def _noise(self) -> list[RegionNoise]:
        return [self._noise_of(self._model, k, given) for k, given in enumerate(self._outputs)]

    def _noise_of(
        self, model: protobuf.ModelProto, k: int, outputs: Mapping[str, Record]
    ) -> RegionNoise:
        """The rounding noise of a model that gave these outputs for sample k.

        Two forms of a region are one only as far as rounding goes: a step that two runtimes may
        differ by is no proof.
        """
        path = numbered_folder(self._scratch, "noise") / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = load(path)
        tensors = {**self._samples[k], **outputs}
        return RegionNoise(
            graph,
            region.between(graph, (), ()),
            self._reference,
            tensors,
            path.parent,
            own_steps=False,
        )

    def _run(self, model: protobuf.ModelProto) -> list[dict[str, Record]]:
        """Outputs per sample, with absolute files."""
        folder = numbered_folder(self._scratch, "run")
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        feeds = [[sample[v.name] for v in model.graph.input] for sample in self._samples]
        outputs = [v.name for v in model.graph.output]
        with self._reference.exclusive():
            self._reference.load(str(folder), path)
            new_folder = partial(numbered_folder, folder, "sample")
            return run_loaded(self._reference, str(folder), feeds, outputs, new_folder)


def _judge(noise: OutputNoise, expected: Record, actual: Record) -> Judgement:
    context = OutputContext(expected.name, noise=noise if expected.form == "tensor" else None)
    return judge(expected.value(), actual.value(), rule(CRITERION), context)


def _same_files(one: Record, other: Record) -> bool:
    """Type, shape and values, each byte."""
    return len(one.files) == len(other.files) and all(
        filecmp.cmp(a, b, shallow=False) for a, b in zip(one.files, other.files, strict=True)
    )
