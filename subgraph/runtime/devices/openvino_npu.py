"""An Intel NPU, by OpenVINO."""

from subgraph.system import hardware

SPEC = "openvino:device=NPU"


def missing() -> str:
    """What this machine lacks."""
    return hardware.no_npu_of("Intel")
