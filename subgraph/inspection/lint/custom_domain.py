"""Operators outside of the ONNX standard: custom domains, onnxruntime's, model-local functions."""

from __future__ import annotations

from subgraph.graph.quantization import TFLITE
from subgraph.inspection.lint import Issues, LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.runtime.devices import DEVICES
from subgraph.text import clean

MICROSOFT = ("com.microsoft", "com.ms", "com.microsoft.nchwc")
ONNXRUNTIMES = ("ort", "web")  # backends that run onnxruntime
# Of the 136 operators of com.microsoft in onnxruntime 1.31.1, those that the importer of a release
# did not refuse as unknown, given a model of one node of each. Operators that it takes for ONNX's
# of the same name, with other inputs or outputs, are omitted.
IMPORTED = {
    "mnn 3.6.1": "DequantizeLinear GatherND Gelu GridSample Pad QuantizeLinear Range Trilu",
    "opencv 5.0.0": (
        "Attention DequantizeLinear GatherND Gelu GridSample QGemm QLinearAdd QLinearAveragePool "
        "QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul "
        "QLinearSigmoid QLinearSoftmax QuantizeLinear Range Trilu"
    ),
    "openvino 2026.4.1": (
        "Attention BiasAdd BiasGelu BifurcationDetector DequantizeLinear DynamicQuantizeLSTM "
        "DynamicQuantizeMatMul EmbedLayerNormalization FastGelu FusedConv FusedGemm FusedMatMul "
        "GatherBlockQuantized GatherND Gelu GroupNorm GroupQueryAttention MatMulIntegerToFloat "
        "MatMulNBits MultiHeadAttention Pad QLinearAdd QLinearAveragePool QLinearConcat "
        "QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere "
        "QuantizeLinear QuickGelu Range RotaryEmbedding SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization Trilu"
    ),
    "tract 0.23.9": (
        "BiasGelu DequantizeLinear FastGelu GatherBlockQuantized GatherND Gelu "
        "GridSample GroupQueryAttention MatMulNBits MultiHeadAttention Pad QLinearConv "
        "QuantizeLinear QuickGelu Range SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization Trilu"
    ),
}
INLINE = "inline it before converting: onnx.inliner.inline_local_functions"


def check(context: LintContext) -> Issues:
    """Yield an issue for each node of another domain, unless the runtime has its operator."""
    functions = context.graph.functions
    is_device = context.runtime in DEVICES
    backend = DEVICES[context.runtime].spec.partition(":")[0] if is_device else context.runtime
    for node in context.all_nodes:
        if (node.proto.domain, node.op, node.proto.overload) in functions:
            yield note(
                node, "calls a model-local function, which many converters do not look into", INLINE
            )
        elif node.domain and (issue := _check_foreign(node, backend)):
            yield issue


def _check_foreign(node: LintNode, backend: str) -> LintIssue | None:
    """Return the issue of a node of another domain; None if the backend has its operator."""
    domain = clean(node.domain)
    if domain == TFLITE:  # subcut's form of a .tflite, which is no ONNX model
        return None
    if backend in ONNXRUNTIMES and domain.startswith((*MICROSOFT, "ai.onnx.")):
        return None
    if domain.startswith("ai.onnx."):
        reason = (
            f"is of domain '{domain}': few targets except onnxruntime on the CPU have its operators"
        )
        return note(node, reason, "run this part on the host, or cut the model in front of it")
    if domain.startswith(MICROSOFT):
        op = node.op if domain == MICROSOFT[0] else ""
        importing = [release for release, ops in IMPORTED.items() if op in ops.split()]
        own = [release for release in IMPORTED if release.partition(" ")[0] == backend]
        if own and own[0] in importing:
            return None
        verb = "import it" if importing else "do not import it"
        has = f"{', '.join(importing or IMPORTED)} {verb}, of those tried"
        if own:
            has = f"{own[0]} does not import it"
        fix = "export without onnxruntime's optimizations (or quantize in the QDQ form)"
        return warning(node, f"is an operator of onnxruntime, of domain '{domain}': {has}", fix)
    reason = f"is of the custom domain '{domain}': the target needs its own operator for it"
    return warning(
        node,
        reason,
        "export it as standard operators, or give the target and --custom-ops a plugin",
    )
