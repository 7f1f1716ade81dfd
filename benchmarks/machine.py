"""This machine -> what a reader needs to compare figures: its class and the versions that ran on
it."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "subcut",
    "onnx",
    "onnxruntime",
    "numpy",
    "protobuf",
    "onnx_ir",
    "onnx-graphsurgeon",
    "polygraphy",
)


def first(path: str, key: str) -> str:
    """The value of the first `key : value` line of a file in /proc."""
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def line(floor: float, *packages: str) -> str:
    """One line; `packages` whose versions matter."""
    here = describe(floor)
    named = ", ".join(f"{name} {version(name)}" for name in ("subcut", "onnxruntime", *packages))
    size = f"{here['cores']} cores, {here['memory_gib']} GiB"
    return f"{here['cpu']}, {size}, {here['os']}, Python {here['python']}; {named}"


def describe(floor: float) -> dict[str, object]:
    """`floor`: MiB that the smallest child shows as its peak."""
    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(first("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "os": (
            f"{platform.freedesktop_os_release().get('PRETTY_NAME', '')}, Linux"
            f" {platform.release()}"
        ),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "floor_mib": round(floor, 1),
    }
