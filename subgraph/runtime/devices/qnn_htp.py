"""Qualcomm's NPU (Hexagon HTP), by onnxruntime-qnn; on x86 Qualcomm's emulator of it."""

from subgraph.system import hardware

SPEC = "ort:ep=QNN,library=onnxruntime_qnn,backend_type=htp"
PACKAGE = "onnxruntime-qnn"
REQUIRES = ("onnxruntime",)
PROVIDER = "QNNExecutionProvider"
LOWERS = {"enable_htp_fp16_precision": ("0", "fp16")}
SWITCHES = {
    "fp16": {"enable_htp_fp16_precision": "0"},
    "the graph's optimisation": {"htp_graph_finalization_optimization_mode": "0"},
}


def emulated() -> str:
    """Qualcomm's emulator."""
    return "Qualcomm's x86 emulator" if hardware.is_x86() else ""
