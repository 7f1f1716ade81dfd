"""An Intel GPU, by OpenVINO."""

from subgraph.system import hardware

SPEC = "openvino:device=GPU"


def missing() -> str:
    """What this machine lacks."""
    return hardware.no_gpu_of("Intel", hardware.INTEL)
