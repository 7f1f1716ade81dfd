"""The forms in which toolkits write the names of a model's tensors, as data.

A new form is one line of `FORMS` or one word of `ENDINGS`. A name proves nothing: the values do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from subgraph.errors import UnknownName
from subgraph.graph.graph import Graph
from subgraph.types import StringMap, frozen

TENSOR = "{tensor}"
_PLACE = re.compile(r"\{(tensor|node|op|index)\}")


@frozen
class NameForm:
    """A form in which toolkits write a tensor.

    Attributes:
        text: `{tensor}`, `{node}`, `{op}` and `{index}` are the tensor's name, the label and the
            operator of its node, and its position among the outputs of this node.
        is_read: Whether it means the value that the tensor's readers read, which quantization has
            clipped. The tensor's own name may then hold what a dropped activation read.
    """

    text: str
    is_read: bool = False

    def spell(self, graph: Graph, tensor: str) -> str:
        """Return a tensor's name in this form; "" if the form needs a node that it does not have.

        A form with a node and without a position means the first output of the node.
        """
        maker = graph.maker.get(tensor)
        words = {"tensor": tensor}
        if maker is not None:
            index = graph.makes[maker].index(tensor)
            words |= {"op": graph.ops[maker], "index": str(index)}
            if index == 0 or "{index}" in self.text:
                words["node"] = graph.label(maker)
        is_known = words.keys() >= set(_PLACE.findall(self.text))
        if is_known:
            return _PLACE.sub(lambda place: words[place[1]], self.text)
        return ""


FORMS = (
    NameForm("{tensor}_{op}"),  # tpu-mlir
    NameForm("{tensor}:0"),  # TensorFlow, SNPE
    NameForm("{node}:{index}"),  # OpenVINO
    NameForm("onnx_node!{node}"),  # OpenCV
    NameForm("{node}_out_blob_data"),  # Tengine
    NameForm("{tensor}_DequantizeLinear_Output", is_read=True),  # onnxruntime, AMD's Quark
    NameForm("{node}/fq_output_0", is_read=True),  # OpenVINO's NNCF
    NameForm("{tensor}/fq_output_0", is_read=True),
)
# Endings that are appended to a name, also several times: by RKNN (reshaped, transposed, fused),
# MNN, OpenVINO, onnxruntime's quantizer, tpu-mlir.
ENDINGS = (
    "-rs _rs _tp _mm _sw _sdpa _pad _int8 -mul __matmul_converted _raster_0 _WithoutBiases"
    " /WithoutBiases _quantized _QuantizeLinear_Output _DequantizeLinear_Output"
    " _QuantizeLinear_Input _f32 _si8 _ui8"
).split()
# Ends of names that only a tool that computes in int8 writes.
INT8_ENDINGS = (
    "_int8",
    "_si8",
    "_ui8",
    *(form.text.rpartition("}")[2] for form in FORMS if form.is_read),
)


def iter_spellings(graph: Graph, tensors: Iterable[str]) -> Iterator[tuple[str, NameForm, str]]:
    """Yield tensors with each form of their names, and the name in it."""
    for name, form in product(tensors, FORMS):
        if spelled := form.spell(graph, name):
            yield name, form, spelled


def list_likely_names(name: str) -> list[str]:
    """Return the name, and without endings."""
    return [name, *strip_endings(name)]


def strip_endings(name: str) -> list[str]:
    """Return the name without one, two … of the endings that toolkits append.

    >>> strip_endings("X_mm_tp-rs"), strip_endings("X")
    (['X_mm_tp', 'X_mm', 'X'], [])
    """
    names = []
    while end := next((e for e in ENDINGS if name.endswith(e) and name != e), ""):
        name = name.removesuffix(end)
        names.append(name)
    return names


def expand_map(tensor_map: StringMap, graph: Graph, known: Mapping[str, str]) -> StringMap:
    """Return a map whose line `{tensor} FORM` is a line for each tensor that is known in this form.

    Args:
        tensor_map: By the model's tensor, the name that others give it.
        known: By spelling, the names that others give.

    Raises:
        UnknownName: No tensor is known in the form.
    """
    lines = dict(tensor_map)
    text = lines.pop(TENSOR, "")
    if not text:
        return tensor_map
    form = NameForm(text)
    spelled = {name: form.spell(graph, name) for name in (*graph.inputs, *graph.maker)}
    found = {name: known[other] for name, other in spelled.items() if other in known}
    if not found:
        raise UnknownName(
            f"--map: no name has the form '{text}'",
            nearest=list(known)[:3],
            code="map.unknown-name",
        )
    return found | lines
