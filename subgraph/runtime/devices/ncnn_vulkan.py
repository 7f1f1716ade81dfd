"""ncnn by Vulkan, in an environment of its own; on a software renderer where there is no GPU."""

from subgraph.system import vulkan

SPEC = "ncnn:vulkan=1"
PACKAGE = "ncnn"


def missing() -> str:
    """What this machine lacks."""
    return vulkan.missing()


def emulated() -> str:
    """What computes where there is no GPU."""
    return vulkan.emulated()
