"""Other forms of a region in the full model, and which of them the candidate computes correctly.

A form is run alone first, then proven on the reference, then run in the full model; each step is
more expensive than the one before.

A form is proven if it returns every output of every sample bit for bit, or within the effect of one
rounding per operation (criterion `noise`, its floor for float32 lowered). Values that rounding
cannot change, integers and booleans for example, must be equal. A quantized operator has no
rounding that can be perturbed; a form of it in float32 has, and that counts.
"""

from __future__ import annotations

import filecmp
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from subgraph.comparison.criteria import OutputContext
from subgraph.comparison.criteria.noise import rule
from subgraph.comparison.judge import judge
from subgraph.comparison.noise.noise import OutputNoise, RegionNoise
from subgraph.editing.draft import Draft
from subgraph.editing.replace import replace as replaced
from subgraph.errors import SubcutError, UsageError
from subgraph.graph import protobuf, region as regions
from subgraph.graph.graph import load
from subgraph.graph.model_file import has_open_shapes
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.region import Region
from subgraph.graph.rewrites import Rewriting, rewritings
from subgraph.iterables import index_by_name
from subgraph.log import log
from subgraph.questions.blame.cures import Prover, fix_parameters
from subgraph.results.blame import Cure
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import make_numbered_folder, make_safe_name
from subgraph.storage.tensors import Record, Records
from subgraph.text import clean, count
from subgraph.trials.reference_model import run_loaded
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement

MAX_PROVEN = 2  # cures by rewriting, after which no more are tried
MAX_NODES = 64  # of a region that is rewritten
MAX_SECONDS = 120.0  # after which no more forms are tried
IDENTICAL = "bit-identical"
NOISE = "within fp32 noise"
DIFFERENT = "different"
NOT_RUN = "not run"
PROVEN = (IDENTICAL, NOISE)  # forms that are allowed to replace the region
# The floor is a share of the scale: kernels round internal constants, such as the weights of an
# interpolation.
CRITERION = "floor=1e-5"
CODES = ("int8", "uint8")


@dataclass
class Rewriter:
    """The forms of a region, which are compared with it.

    Attributes:
        prover: The prover of the full model.
        trials: The trials.
        region: The region.
        work: The folder that the models go to, which becomes `place`.
        place: The final name of the folder.
        tried: Number of forms that were run on the candidate.
    """

    prover: Prover
    trials: Trials
    region: Region
    work: Path
    place: Path
    tried: int = 0

    def cures(self) -> Iterator[Cure]:
        """Yield forms that heal the region alone, until two are proven in the full model.

        Raises:
            SubcutError: the region cannot be cut, or the reference cannot run it.
        """
        trials = self.trials
        region = fix_parameters(self.trials.graph, self.region)
        if len(region.nodes) > MAX_NODES:
            return
        deadline = trials.model.reference.deadline
        proven = 0
        scratch = trials.model.new_folder()
        end = time.monotonic() + deadline.timeout(MAX_SECONDS)
        records = trials.model.sample_groups(region)[0][1]
        cut, feeds = trials.writer.write_cut(region, records, scratch)
        fed = [index_by_name(sample) for sample in feeds]
        frozen = region.shapes if has_open_shapes(trials.graph) or region != self.region else None
        log.info("rewritings of %s, each alone first", count(region.nodes, "node"))
        python = trials.model.reference.python if trials.model.reference.fixed else None
        with Reference(restart=True, python=python) as reference:
            reference.share(deadline)
            original = OriginalRegion(cut.to_model(), fed, reference, scratch)
            for form in rewritings(scratch / "model.onnx", folder=scratch, frozen=frozen):
                if proven == MAX_PROVEN or time.monotonic() > end:
                    break
                if cure := self._make_cure(form, original, tuple(fed), scratch):
                    proven += cure.proven
                    yield cure

    def _make_cure(
        self,
        form: Rewriting,
        original: OriginalRegion,
        fed: tuple[Records, ...],
        scratch: Path,
    ) -> Cure | None:
        """Return the cure that a form is; None if it heals nothing, or is another function."""
        path = scratch / f"form{self.tried}.onnx"
        path.write_bytes(form.model.SerializeToString())
        self.tried += 1
        try:
            with self.prover.open_model(path, Feeding(records=fed)) as alone:
                if not alone.verdict(alone.model.whole()).agrees:
                    return None
            equal = original.compare(form.model)
            if equal not in PROVEN:
                return None
            log.info("cure? %s, on the full model", clean(form.words))
            name = f"{make_safe_name(form.name)}-{self.tried}.onnx"
            graph = self.trials.graph
            if form.opset:  # the full model is converted
                draft = Draft(graph)
                with OnnxProcess(graph.path) as onnx:
                    draft.model = onnx.convert(draft.model, form.opset)
            else:
                region = fix_parameters(graph, self.region)
                draft = replaced(graph, region, load(path), computed=region.shapes)
            draft.save(self.work / name)
            cure = self.prover.try_model(form.words, self.work / name)
        except (SubcutError, OnnxError) as e:
            log.debug("%s: %s", form.words, e)
            return None
        if not cure.proven:
            (self.work / name).unlink()
        model = str(self.place / name) if cure.proven else None
        return replace(cure, model=model, equal=equal)


class OriginalRegion:
    """A region on the reference, with which other forms of it are compared. It is run once.

    Give a `Reference` with `restart`: a form that crashes the process then costs no more than
    itself.
    """

    def __init__(
        self,
        model: protobuf.ModelProto,
        samples: Sequence[Records],
        reference: Reference,
        scratch: Path,
    ) -> None:
        """Hold the cut, its samples and the reference; nothing runs yet.

        Args:
            model: the cut, with its weights.
            samples: the record of each of its inputs, with absolute files; one mapping per sample.
            scratch: a folder, which the caller removes.

        Raises:
            UsageError: without samples nothing is proven.
        """
        if not samples:
            raise UsageError(
                "a rewriting is proven on samples, and no sample exists", code="blame.no-samples"
            )
        self._model = model
        self._samples = samples
        self._reference = reference
        self._scratch = scratch.resolve()
        self._noise: dict[int, RegionNoise] = {}

    def compare(self, form: protobuf.ModelProto) -> str:
        """Run another form on every sample and compare all outputs.

        Returns:
            IDENTICAL, NOISE, DIFFERENT or NOT_RUN, as the worst output has it.

        Raises:
            SubcutError: the reference cannot run the region itself.
        """
        expected = self._outputs
        try:
            outputs = self._run(form)
        except SubcutError:
            return NOT_RUN
        equal = True
        for k, (theirs, ours) in enumerate(zip(outputs, expected, strict=True)):
            for name, record in ours.items():
                pairs = zip(theirs[name].files, record.files, strict=False)
                is_same = all(filecmp.cmp(a, b, shallow=False) for a, b in pairs)
                if is_same and len(theirs[name].files) == len(record.files):
                    continue
                equal = False
                if k not in self._noise:
                    self._noise[k] = self._measure_noise(self._model, k, ours)
                judgement = _judge(self._noise[k].get_output(name), record, theirs[name])
                # A tie in one form need not be a tie in the other.
                is_code = record.dtype in CODES
                if judgement.agrees and is_code:
                    noise = self._measure_noise(form, k, theirs)
                    judgement = _judge(noise.get_output(name), theirs[name], record)
                if not judgement.agrees:
                    return DIFFERENT
        return IDENTICAL if equal else NOISE

    @cached_property
    def _outputs(self) -> list[dict[str, Record]]:
        return self._run(self._model)

    def _measure_noise(self, model: protobuf.ModelProto, k: int, outputs: Records) -> RegionNoise:
        """Return the rounding noise of a model that returned these outputs for sample k.

        Two forms of a region are one only as far as rounding goes: a step that two runtimes may
        differ by is no proof.
        """
        path = make_numbered_folder(self._scratch, "noise") / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = load(path)
        whole = regions.find_region(graph, (), ())
        tensors = {**self._samples[k], **outputs}
        reference = self._reference
        return RegionNoise(graph, whole, reference, tensors, path.parent, own_steps=False)

    def _run(self, model: protobuf.ModelProto) -> list[dict[str, Record]]:
        """Return outputs per sample, with absolute files."""
        folder = make_numbered_folder(self._scratch, "run")
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        feeds = [[sample[v.name] for v in model.graph.input] for sample in self._samples]
        outputs = [v.name for v in model.graph.output]
        with self._reference.exclude_others():
            self._reference.load(str(folder), path)
            new_folder = partial(make_numbered_folder, folder, "sample")
            return run_loaded(self._reference, str(folder), feeds, outputs, new_folder)


def _judge(noise: OutputNoise, expected: Record, actual: Record) -> Judgement:
    context = OutputContext(expected.name, noise=noise if expected.form == "tensor" else None)
    return judge(expected.value(), actual.value(), rule(CRITERION), context)
