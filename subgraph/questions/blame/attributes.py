"""Attributes of the nodes of a wrong region -> those without which the candidate is right.

One attribute at a time is omitted, so that its default applies; if no single one helps, two are
omitted. The region then is another function. The reference computes that function, too, and the
candidate is right if it returns the same values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from subgraph.errors import SubcutError
from subgraph.graph import protobuf
from subgraph.graph.graph import load
from subgraph.graph.nested import list_bodies
from subgraph.graph.onnx_process import OnnxProcess
from subgraph.graph.opsets import canonicalize_domain, find_schema, read_imports
from subgraph.graph.quantization import AXIS
from subgraph.graph.region import Region
from subgraph.graph.shape_inference import infer_model
from subgraph.inspection.summary import format_attribute
from subgraph.iterables import index_by_name
from subgraph.log import log
from subgraph.questions.blame.cures import fix_parameters
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record
from subgraph.text import clean
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.other_attributes import read_value
from subgraph.trials.trial import Trials
from subgraph.verdict import NUMBERS, Signature, Verdict

MAX_NODES = 16  # of a region whose attributes are omitted
MAX_TRIED = 32  # attributes and pairs of them
MAX_SECONDS = 60.0  # after which no more are tried
# Factor by which the error without the attribute must be smaller than that of the region.
MIN_ERROR_RATIO = 10.0
# The numbers of these types in onnx.AttributeProto.
TENSOR = 4
GRAPH = 5
GRAPHS = 10
SPARSE = 11


@dataclass
class Attributes:
    """The attributes of a region that a candidate gets wrong, and its results without them.

    Attributes:
        trials: The trials.
        region: The region.
        setup: The setup of the trials.
        reference: Runs the region without an attribute. One with `restart` survives a function that
            ends its process.
        tried: Number of models that were run on the candidate.
        notes: Sentences about attributes that were not tried.
    """

    trials: Trials
    region: Region
    setup: Setup
    reference: Reference
    tried: int = 0
    notes: list[str] = field(default_factory=list)

    def deciding(self) -> Iterator[str]:
        """Yield each attribute without which the candidate is right: `ceil_mode=1 of 'pool'`.

        It must be right in a fresh process, too. If no attribute is found, the first pair is
        yielded (`… and …`). Nothing is yielded unless the unchanged region fails in the same kind
        of run.

        Raises:
            SubcutError: The region cannot be cut, or the candidate cannot be used.
        """
        trials = self.trials
        region = fix_parameters(self.trials.graph, self.region)
        if len(region.nodes) > MAX_NODES:
            return
        end = time.monotonic() + MAX_SECONDS
        folder = trials.model.new_folder()
        cut, feeds = trials.writer.write_cut(
            region, trials.model.sample_groups(region)[0][1], folder
        )
        model = cut.to_model()
        fed = tuple(index_by_name(sample) for sample in feeds)
        places = list(_iter_places(model))
        if not places:
            return
        with OnnxProcess(trials.graph.path) as onnx:
            original = _copy_with_own_shapes(model, onnx)
            as_it_is = self._judge_model(original, fed, folder / "as-it-is.onnx")
            if not as_it_is.fails and as_it_is.signature is not Signature.REFUSED:
                return
            found = False
            single = ((place,) for place in places)
            for tried, left_out in enumerate(chain(single, combinations(places, 2))):
                if found and len(left_out) > 1:
                    return
                if tried == MAX_TRIED or time.monotonic() > end:
                    self.notes.append(f"no more than {tried} attributes and pairs were left out")
                    return
                other = _copy_with_own_shapes(model, onnx, left_out)
                if self._is_right(other, fed, folder / f"without{tried}.onnx", as_it_is):
                    found = True
                    named = ((model.graph.node[i], k) for i, k in left_out)
                    words = " and ".join(
                        f"{_format_attribute(node.attribute[k])} of"
                        f" '{clean(node.name or node.output[0])}'"
                        for node, k in named
                    )
                    log.info("attributes: right without %s", words)
                    yield words

    def _is_right(
        self,
        model: protobuf.ModelProto,
        fed: Sequence[dict[str, Record]],
        path: Path,
        as_it_is: Verdict,
    ) -> bool:
        """Return whether the candidate is clearly right on this function.

        False if that is unknown, because the reference refuses it, for example.
        """
        try:
            verdict = self._judge_model(model, fed, path)
        except SubcutError as e:
            log.debug("%s: %s", path.name, e.what)
            return False
        if not verdict.agrees:
            return False
        # The same error may be small in comparison with larger values.
        is_smaller = verdict.largest_error("max_abs") * MIN_ERROR_RATIO <= as_it_is.largest_error(
            "max_abs"
        )
        return as_it_is.signature not in NUMBERS or is_smaller

    def _judge_model(
        self, model: protobuf.ModelProto, fed: Sequence[dict[str, Record]], path: Path
    ) -> Verdict:
        """Return the verdict on the candidate's outputs of a model, against the reference's values
        of that model.

        Raises:
            SubcutError: the reference cannot run it, or the candidate cannot be used.
        """
        path.write_bytes(model.SerializeToString())
        self.tried += 1
        setup = replace(
            self.setup,
            candidate=self.trials.runtime.candidate,
            feeding=Feeding(records=tuple(fed)),
            needs_evidence=True,
        )
        with open_trials(load(path), setup, self.reference, self.trials.runtime.workers) as trials:
            whole = trials.model.whole()
            verdict = trials.verdict(whole)
            if not verdict.agrees:
                return verdict
            return trials.verdict(whole, repetition=1, fresh=True)


def _iter_places(model: protobuf.ModelProto) -> Iterator[tuple[int, int]]:
    """Yield (node, attribute) of each attribute that can be omitted.

    It holds no graph, and is not at its default; or it is the axis of a scale per channel, and
    another axis fits.
    """
    versions = read_imports(model)
    for i, node in enumerate(model.graph.node):
        domain = canonicalize_domain(node.domain)
        known = find_schema(node.op_type, versions.get(domain, 1), domain)
        formals = known.attributes if known is not None else {}
        for k, attribute in enumerate(node.attribute):
            formal = formals.get(attribute.name)
            is_default = read_value(attribute) == read_value(formal and formal.default_value)
            changes = not is_default or _find_other_axis(model, node, attribute) is not None
            if node.op_type != "Constant" and not any(list_bodies(node)) and changes:
                yield i, k


def _find_other_axis(
    model: protobuf.ModelProto, node: protobuf.NodeProto, attribute: Any
) -> int | None:
    """Return another axis along which the constant scales of a constant fit; None without one."""
    dims = {t.name: list(t.dims) for t in model.graph.initializer if t.name in node.input[:2]}
    if node.op_type not in AXIS or attribute.name != "axis" or len(dims) < 2:
        return None
    sizes, scales = (dims[name] for name in node.input[:2])
    fits = (k for k, size in enumerate(sizes) if [size] == scales and k != attribute.i % len(sizes))
    return next(fits, None)


def describe_node(node: protobuf.NodeProto) -> str:
    """Return `'pool': AveragePool, ceil_mode=1, kernel_shape=[3,3]`, without bodies and weights."""
    held = (a for a in node.attribute if a.type not in (TENSOR, SPARSE, GRAPH, GRAPHS))
    title = f"'{clean(node.name or node.output[0])}': {clean(node.op_type)}"
    return ", ".join([title, *map(_format_attribute, held)])


def _format_attribute(attribute: Any) -> str:
    """Return `ceil_mode=1`, `strides=[2,2]` or `mode=linear`."""
    return f"{clean(attribute.name)}={format_attribute(attribute)}"


def _copy_with_own_shapes(
    model: protobuf.ModelProto, onnx: OnnxProcess, without: Sequence[tuple[int, int]] = ()
) -> protobuf.ModelProto:
    """Return a copy without these attributes, with the output shapes that are inferred from it."""
    made = protobuf.clone(model)
    graph = made.graph
    del graph.value_info[:]
    for i, k in sorted(without, reverse=True):  # from the end: earlier positions stay
        attribute = graph.node[i].attribute[k]
        axis = _find_other_axis(made, graph.node[i], attribute)
        if axis is None:
            del graph.node[i].attribute[k]
        else:
            attribute.i = axis
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    inferred = {v.name: v.type for v in infer_model(made, onnx)[0].graph.output}
    for output in graph.output:
        if output.name in inferred:
            output.type.CopyFrom(inferred[output.name])
    return made
