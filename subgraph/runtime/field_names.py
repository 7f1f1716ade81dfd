"""The table of names of runtimes and chips that are no candidate of this name, and of what runs
them.

A name is added as one word of `_ANSWERS`.
"""

from __future__ import annotations

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
    "tidl sophgo sophon": f"{_BY_HAND}: docs/dumps.md",
    "hailo ambarella axera kneron": "-c cmd:COMMAND runs its own tools: docs/candidates.md",
}
# Name in small letters -> what to type or read in its place.
FIELD_NAMES: dict[str, str] = {}
for _names, _answer in _ANSWERS.items():
    FIELD_NAMES.update(dict.fromkeys(_names.split(), _answer))
