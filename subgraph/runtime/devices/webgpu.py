"""WebGPU, natively, by onnxruntime-webgpu; on a software renderer where there is no GPU."""

import os
from pathlib import Path

from subgraph.system import hardware

SPEC = "ort:providers=WebGpuExecutionProvider"
PACKAGE = "onnxruntime-webgpu"
PROVIDER = "WebGpuExecutionProvider"
SWITCHES = {"NHWC layout": {"preferredLayout": "NCHW"}}

CHROMIUM = Path("/usr/lib/chromium")  # of Debian: SwiftShader, a renderer in software, comes with it
RENDERER, LOADER = CHROMIUM / "vk_swiftshader_icd.json", CHROMIUM / "libvulkan.so.1"
NAMED = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # variables that name drivers of Vulkan


def missing() -> str:
    """What this machine lacks: something that renders."""
    if hardware.has_gpu() or any(os.environ.get(name) for name in NAMED) or RENDERER.is_file():
        return ""
    return "needs a GPU, or a renderer in software: `apt install chromium` brings SwiftShader"


def emulated() -> str:
    """The renderer in software."""
    return "" if hardware.has_gpu() else "a renderer in software on this processor"


def prepare() -> None:
    """Have Vulkan find chromium's renderer where there is no GPU; called before the provider is asked for."""
    if emulated() and RENDERER.is_file() and not any(os.environ.get(name) for name in NAMED):
        os.environ["VK_ICD_FILENAMES"] = str(RENDERER)
        hardware.load_library(LOADER)  # the provider loads it by its name
