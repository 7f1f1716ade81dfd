"""An NVIDIA GPU through TensorRT, by onnxruntime-gpu."""

from subgraph.system import hardware

SPEC = "ort:providers=TensorrtExecutionProvider+CUDAExecutionProvider"
PACKAGE = "onnxruntime-gpu"
REQUIRES = (
    "tensorrt-cu13",
    "tensorrt-cu13-libs",
    "nvidia-cublas",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-curand",
    "nvidia-nvjitlink",
)
PROVIDER = "TensorrtExecutionProvider"
PRECISION = "tf32"  # TensorRT's default, and the provider has no option against it
LOWERS = {
    "trt_fp16_enable": ("0", "fp16"),
    "trt_bf16_enable": ("0", "bf16"),
    "trt_int8_enable": ("0", "int8"),
}
SWITCHES = {
    "fp16": {"trt_fp16_enable": "0"},
    "int8": {"trt_int8_enable": "0"},
    "TensorRT's optimisations": {"trt_builder_optimization_level": "0"},
}


def missing() -> str:
    """What this machine lacks."""
    return hardware.no_nvidia_gpu()
