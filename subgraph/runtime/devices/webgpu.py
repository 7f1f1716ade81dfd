"""WebGPU, natively, by onnxruntime-webgpu; on a software renderer where there is no GPU."""

from subgraph.system import vulkan

SPEC = "ort:providers=WebGpuExecutionProvider"
PACKAGE = "onnxruntime-webgpu"
PROVIDER = "WebGpuExecutionProvider"
SWITCHES = {"NHWC layout": {"preferredLayout": "NCHW"}}


def missing() -> str:
    """What this machine lacks."""
    return vulkan.missing()


def emulated() -> str:
    """What computes where there is no GPU."""
    return vulkan.emulated()


def prepare() -> None:
    """Have it find a renderer in software where there is no GPU."""
    vulkan.prepare()
