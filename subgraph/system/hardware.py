"""The hardware of this machine, as far as files and programs show it; libraries of its drivers.

By Vulkan computes a GPU, or a renderer in software on the processor.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

NVIDIA = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # of Linux, of WSL
CARDS = Path("/sys/class/drm")
RENDERERS = Path("/dev/dri")
ACCELERATORS = Path("/dev/accel")
INTEL = "0x8086"  # as PCI numbers it
# Debian's; SwiftShader, a renderer in software, comes with it
CHROMIUM = Path("/usr/lib/chromium")
RENDERER = CHROMIUM / "vk_swiftshader_icd.json"
LOADER = CHROMIUM / "libvulkan.so.1"
INSTALLED = Path("/usr/share/vulkan/icd.d")  # drivers, Mesa's renderer in software among them
NAMED = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # variables that name drivers


def name_missing_nvidia_gpu() -> str:
    """Name the missing part if there is no NVIDIA GPU with its driver."""
    there = any(Path(file).exists() for file in NVIDIA) or shutil.which("nvidia-smi")
    if there:
        return ""
    return "needs an NVIDIA GPU and its driver: none is seen on this machine"


def name_missing_gpu(maker: str, vendor: str) -> str:
    """Name the missing part on a Linux machine without a GPU of this vendor; elsewhere ""."""
    seen = {file.read_text(encoding="ascii").strip() for file in CARDS.glob("card*/device/vendor")}
    known = sys.platform == "linux" and vendor not in seen
    return f"needs a GPU of {maker}: none is seen on this machine" if known else ""


def name_missing_npu(maker: str) -> str:
    """Name the missing part on a Linux machine without an NPU; elsewhere nothing is known."""
    known = sys.platform == "linux" and not ACCELERATORS.is_dir()
    if known:
        return f"needs an NPU of {maker} and its driver: none is seen on this machine"
    return ""


def has_gpu() -> bool:
    """Return whether this machine shows a GPU of any vendor. True if that is not known."""
    return (
        sys.platform != "linux" or any(RENDERERS.glob("renderD*")) or not name_missing_nvidia_gpu()
    )


def is_x86() -> bool:
    """Return whether this processor is an x86: from Intel or AMD."""
    return platform.machine().lower() in ("x86_64", "amd64")


def load_library(file: Path) -> None:
    """Load a shared library so that others find it by its name, and its symbols.

    Raises:
        OSError: It cannot be loaded, because of a missing part.
    """
    import ctypes  # late: few commands need it

    ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)


def name_missing_system(system: str, what: str) -> str:
    """Name the missing system if this is another one: `Windows`, `Darwin`."""
    shown = {"Darwin": "macOS"}.get(system, system)
    if platform.system() == system:
        return ""
    return f"is for {shown} alone: {what} is a part of it"


# ------------------------------------------------------------ Vulkan


def name_missing_vulkan() -> str:
    """Name the missing part if nothing computes by Vulkan: a renderer."""
    named = any(os.environ.get(name) for name in NAMED)
    if has_gpu() or named or RENDERER.is_file() or any(INSTALLED.glob("*.json")):
        return ""
    return "needs a GPU, or a renderer in software: `apt install chromium` brings SwiftShader"


def find_vulkan_emulator() -> str:
    """Return what computes by Vulkan instead of a GPU; "" if a GPU does."""
    if has_gpu():
        return ""
    return "a renderer in software on this processor"


def prepare_vulkan() -> None:
    """Have Vulkan find chromium's renderer if there is no GPU, before a device is requested."""
    if (
        find_vulkan_emulator()
        and RENDERER.is_file()
        and not any(os.environ.get(name) for name in NAMED)
    ):
        os.environ["VK_ICD_FILENAMES"] = str(RENDERER)
        load_library(LOADER)  # it is loaded by its name
