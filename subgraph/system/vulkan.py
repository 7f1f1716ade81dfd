"""The device that computes by Vulkan on this machine: a GPU, or a renderer in software on its
processor."""

import os
from pathlib import Path

from subgraph.system import hardware

CHROMIUM = Path(
    "/usr/lib/chromium"
)  # of Debian: SwiftShader, a renderer in software, comes with it
RENDERER = CHROMIUM / "vk_swiftshader_icd.json"
LOADER = CHROMIUM / "libvulkan.so.1"
INSTALLED = Path("/usr/share/vulkan/icd.d")  # drivers, Mesa's renderer in software among them
NAMED = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # variables that name drivers


def missing() -> str:
    """Name the missing part: a renderer."""
    named = any(os.environ.get(name) for name in NAMED)
    if hardware.has_gpu() or named or RENDERER.is_file() or any(INSTALLED.glob("*.json")):
        return ""
    return "needs a GPU, or a renderer in software: `apt install chromium` brings SwiftShader"


def emulated() -> str:
    """The renderer in software."""
    return "" if hardware.has_gpu() else "a renderer in software on this processor"


def prepare() -> None:
    """Have Vulkan find chromium's renderer where there is no GPU; called before a device is asked
    for."""
    if emulated() and RENDERER.is_file() and not any(os.environ.get(name) for name in NAMED):
        os.environ["VK_ICD_FILENAMES"] = str(RENDERER)
        hardware.load_library(LOADER)  # it is loaded by its name
