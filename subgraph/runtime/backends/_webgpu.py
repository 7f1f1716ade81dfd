"""Shared by the backends that run onnxruntime's WebGPU: its messages about a device that lacks a feature."""  # noqa: E501

# Pattern of a message -> the feature's name in WebGPU.
LACKS = {
    r"requires f16 but the device does not support|extension 'f16' is not allowed": "shader-f16",
    r"requires subgroups? but the device does not support|extension 'subgroups' is not allowed": (
        "subgroups"
    ),
    r"requires subgroup matrix but the device does not support": (
        "chromium-experimental-subgroup-matrix"
    ),
}
