"""Any GPU of a Windows machine through DirectML, by onnxruntime-directml."""

from subgraph.system import hardware

SPEC = "ort:providers=DmlExecutionProvider"
PACKAGE = "onnxruntime-directml"
PROVIDER = "DmlExecutionProvider"
SWITCHES = {"metacommands of the driver": {"disable_metacommands": "1"}}


def missing() -> str:
    """What this machine lacks."""
    return hardware.not_on("Windows", "DirectML")
