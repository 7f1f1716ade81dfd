"""The GPU and the Neural Engine of a Mac through CoreML, by onnxruntime."""

from subgraph.system import hardware

SPEC = "ort:providers=CoreMLExecutionProvider,ModelFormat=MLProgram"
PROVIDER = "CoreMLExecutionProvider"
PRECISION = "fp16"  # of the Neural Engine, and of programs on the GPU
SWITCHES = {
    "GPU and Neural Engine": {"MLComputeUnits": "CPUOnly"},
    "low precision sums on the GPU": {"AllowLowPrecisionAccumulationOnGPU": "0"},
}


def missing() -> str:
    """What this machine lacks."""
    return hardware.not_on("Darwin", "CoreML")
