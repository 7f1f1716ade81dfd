"""An NVIDIA GPU through CUDA, by onnxruntime-gpu."""

from subgraph.system import hardware

SPEC = "ort:providers=CUDAExecutionProvider"
PACKAGE = "onnxruntime-gpu"
REQUIRES = (
    "nvidia-cublas",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-curand",
    "nvidia-nvjitlink",
)
PROVIDER = "CUDAExecutionProvider"
LOWERS = {"use_tf32": ("1", "tf32")}
SWITCHES = {
    "TF32": {"use_tf32": "0"},
    "cuDNN's search for the fastest algorithm": {"cudnn_conv_algo_search": "DEFAULT"},
    "fast layer normalisation": {"enable_skip_layer_norm_strict_mode": "1"},
}


def missing() -> str:
    """What this machine lacks."""
    return hardware.no_nvidia_gpu()
