"""The tables of devices that people know by a name, `-c cuda`, and of names that are no candidate.

A device is added as one entry of `DEVICES`, another name as one word of `_ANSWERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from subgraph.iterables import flatten
from subgraph.system import hardware
from subgraph.types import StringMap, Strings, frozen


def _say_nothing() -> str:
    return ""


@frozen
class Device:
    """A device, and the candidate that its name means.

    Attributes:
        name: The word that the user types; "" for a build or a provider that no device has.
        help: The line in lists of devices.
        spec: The candidate. Options of the user are added to it.
        package: The package that holds the runtime, installed into a separate environment; "" for
            the runtime that is installed with subcut.
        requires: Further packages of that environment, as pip names them.
        provider: The provider of onnxruntime that computes; "" for other runtimes.
        precision: The element type of the arithmetic, for any options.
        lowers: Options that lower the precision: name -> (default, precision if it is 1).
        switches: Sources of differences: name -> {option: value without it}. `blame` tries each.
        missing: Returns what this machine lacks, before anything is installed; "" if nothing is
            known to lack.
        emulated: Returns what computes in place of the device; "" if the device does.
        prepare: Has the provider find what it needs; called in the worker's process before the
            provider is created.
    """

    name: str = ""
    help: str = ""
    spec: str = ""
    package: str = ""
    requires: Strings = ()
    provider: str = ""
    precision: str = "fp32"
    lowers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    switches: Mapping[str, StringMap] = field(default_factory=dict)
    missing: Callable[[], str] = _say_nothing
    emulated: Callable[[], str] = _say_nothing
    prepare: Callable[[], object] = _say_nothing

    @property
    def options(self) -> dict[str, Strings]:
        """Options of the provider, as `backends.Options`: any value."""
        typed = (word.partition("=")[0] for word in self.spec.partition(":")[2].split(","))
        switched = flatten(self.switches.values())
        return dict.fromkeys(filter(None, [*typed, *self.lowers, *switched]), ())


CUDA_PACKAGES = (
    "nvidia-cublas",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-curand",
    "nvidia-nvjitlink",
)
DEVICES = {
    device.name: device
    for device in (
        Device(
            "coreml",
            "The GPU and the Neural Engine of a Mac through CoreML, by onnxruntime.",
            "ort:providers=CoreMLExecutionProvider,ModelFormat=MLProgram",
            provider="CoreMLExecutionProvider",
            precision="fp16",  # of the Neural Engine, and of programs on the GPU
            switches={
                "GPU and Neural Engine": {"MLComputeUnits": "CPUOnly"},
                "low precision sums on the GPU": {"AllowLowPrecisionAccumulationOnGPU": "0"},
            },
            missing=lambda: hardware.name_missing_system("Darwin", "CoreML"),
        ),
        Device(
            "cuda",
            "An NVIDIA GPU through CUDA, by onnxruntime-gpu.",
            "ort:providers=CUDAExecutionProvider",
            "onnxruntime-gpu",
            CUDA_PACKAGES,
            "CUDAExecutionProvider",
            lowers={"use_tf32": ("1", "tf32")},
            switches={
                "TF32": {"use_tf32": "0"},
                "cuDNN's search for the fastest algorithm": {"cudnn_conv_algo_search": "DEFAULT"},
                "fast layer normalization": {"enable_skip_layer_norm_strict_mode": "1"},
            },
            missing=lambda: hardware.name_missing_nvidia_gpu(),
        ),
        Device(
            "directml",
            "Any GPU of a Windows machine through DirectML, by onnxruntime-directml.",
            "ort:providers=DmlExecutionProvider",
            "onnxruntime-directml",
            provider="DmlExecutionProvider",
            switches={"metacommands of the driver": {"disable_metacommands": "1"}},
            missing=lambda: hardware.name_missing_system("Windows", "DirectML"),
        ),
        Device(
            "ncnn-vulkan",
            "ncnn by Vulkan, in a separate environment; on a software renderer where there is no"
            " GPU.",
            "ncnn:vulkan=1",
            "ncnn",
            missing=hardware.name_missing_vulkan,
            emulated=hardware.find_vulkan_emulator,
        ),
        Device(
            "openvino-gpu",
            "An Intel GPU, by OpenVINO.",
            "openvino:device=GPU",
            missing=lambda: hardware.name_missing_gpu("Intel", hardware.INTEL),
        ),
        Device(
            "openvino-npu",
            "An Intel NPU, by OpenVINO.",
            "openvino:device=NPU",
            missing=lambda: hardware.name_missing_npu("Intel"),
        ),
        Device(
            "qnn-htp",
            "Qualcomm's NPU (Hexagon HTP), by onnxruntime-qnn; on x86 Qualcomm's emulator of it.",
            "ort:ep=QNN,library=onnxruntime_qnn,backend_type=htp",
            "onnxruntime-qnn",
            ("onnxruntime",),
            "QNNExecutionProvider",
            lowers={"enable_htp_fp16_precision": ("0", "fp16")},
            switches={
                "fp16": {"enable_htp_fp16_precision": "0"},
                "the graph's optimization": {"htp_graph_finalization_optimization_mode": "0"},
            },
            emulated=lambda: "Qualcomm's x86 emulator" if hardware.is_x86() else "",
        ),
        Device(
            "tensorrt",
            "An NVIDIA GPU through TensorRT, by onnxruntime-gpu.",
            "ort:providers=TensorrtExecutionProvider+CUDAExecutionProvider",
            "onnxruntime-gpu",
            ("tensorrt-cu13", "tensorrt-cu13-libs", *CUDA_PACKAGES),
            "TensorrtExecutionProvider",
            "tf32",  # TensorRT's default, and the provider has no option against it
            {
                "trt_fp16_enable": ("0", "fp16"),
                "trt_bf16_enable": ("0", "bf16"),
                "trt_int8_enable": ("0", "int8"),
            },
            {
                "fp16": {"trt_fp16_enable": "0"},
                "int8": {"trt_int8_enable": "0"},
                "TensorRT's optimizations": {"trt_builder_optimization_level": "0"},
            },
            missing=lambda: hardware.name_missing_nvidia_gpu(),
        ),
        Device(
            "webgpu",
            "WebGPU, natively, by onnxruntime-webgpu; on a software renderer where there is no"
            " GPU.",
            "ort:providers=WebGpuExecutionProvider",
            "onnxruntime-webgpu",
            provider="WebGpuExecutionProvider",
            switches={"NHWC layout": {"preferredLayout": "NCHW"}},
            missing=hardware.name_missing_vulkan,
            emulated=hardware.find_vulkan_emulator,
            prepare=hardware.prepare_vulkan,
        ),
    )
}


def find_by_package(package: str, backend: str) -> Device:
    """Return the first device of a package; without one, a device without a name."""
    devices = (device for device in DEVICES.values() if device.package == package)
    return next(devices, Device(spec=backend, package=package))


def find_by_provider(provider: str) -> Device:
    """Return the device of a provider of onnxruntime; without one, a device without a name."""
    devices = (device for device in DEVICES.values() if provider and device.provider == provider)
    return next(devices, Device(provider=provider))


_BY_HAND = "-c cmd:COMMAND runs its own tools, --recorded DIR reads its layer dumps"
_ANSWERS = {
    "gpu": "-c cuda (NVIDIA), directml (Windows), coreml (a Mac), openvino-gpu (Intel), webgpu or"
    " ncnn-vulkan (any GPU)",
    "npu": "-c qnn-htp (Qualcomm), openvino-npu (Intel), coreml (a Mac); of another NPU,"
    f" {_BY_HAND}",
    "migraphx rocm amd": "-c onnxruntime-migraphx:providers=MIGraphXExecutionProvider",
    "vitisai ryzenai ryzen-ai": "-c ort:python=/path/to/ryzen-ai/python,"
    "providers=VitisAIExecutionProvider (docs/candidates.md)",
    "winml dml": "-c directml",
    "qnn htp hexagon snapdragon": "-c qnn-htp",
    "snpe": f"-c qnn-htp runs on the same chips; {_BY_HAND}: docs/dumps.md",
    "onnxruntime-web ort-web wasm browser chrome chromium firefox": "-c web, or web:ep=webgpu",
    "webgl": "-c web:ep=webgl",
    "ios iphone ipad": "-c coreml on a Mac; -c cmd:COMMAND runs an app: docs/candidates.md",
    "nnapi armnn acl": "docs/candidates/adb.md runs onnxruntime on a phone, with its providers;"
    " -c mnn:arch=aarch64 runs ARM's kernels here",
    "onnxruntime": "-c ort",
    "vulkan": "-c ncnn-vulkan",
    "mps metal ane": "-c coreml",
    "nvidia jetson": "-c cuda, or tensorrt",
    "genai llm llamacpp llama.cpp vllm": "-c FILE.py with a function load(model, options):"
    " docs/candidates.md; docs/loop.md searches a decoder token by token",
    "mlx tinygrad burn jax candle": "-c FILE.py with a function load(model, options):"
    " docs/candidates.md",
    "ascend cann": f"{_BY_HAND}: docs/from-mindstudio.md",
    "horizon": f"{_BY_HAND}: docs/from-horizon.md",
    "tnn": f"{_BY_HAND}: docs/from-tnn.md",
    "tidl": f"{_BY_HAND}: docs/dumps.md",
    "sophgo sophon tpu-mlir bm1684": f"{_BY_HAND}: docs/from-tpu-mlir.md",
    "hailo ambarella axera kneron": "-c cmd:COMMAND runs its own tools: docs/candidates.md",
}
# Name in small letters -> what to type or read in its place.
FIELD_NAMES: dict[str, str] = {}
for _names, _answer in _ANSWERS.items():
    FIELD_NAMES.update(dict.fromkeys(_names.split(), _answer))
