"""OpenVINO, on the CPU or another device; precision=f32 computes in float32 everywhere."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module, util
from pathlib import Path
from typing import Any

from subgraph.errors import BackendError
from subgraph.lazy import np
from subgraph.runtime.backends import Run, Switches, _foreign
from subgraph.storage.tensors import Tensors, Values, find_dtype
from subgraph.types import Fields, StringMap

MULTI = True
RELEASES = "openvino", "2024.4"
TYPES = _foreign.TYPES | {"bfloat16"}
# Precisions that a compiled model reports. "dynamic": each tensor in its own type, by which it is
# judged.
CLAIMS = {"f32": "fp32", "dynamic": "fp32", "f16": "fp16", "bf16": "bf16"}
MODE = "EXECUTION_MODE_HINT"
HINT = "INFERENCE_PRECISION_HINT"
THREADS = "INFERENCE_NUM_THREADS"
OPTIONS = {"precision": ("f32", "f16", "bf16"), "device": (), "threads": (), "[A-Z]*": ()}
# Elements that share a scale if activations are quantized to int8 while a MatMul runs; 0: never.
# Its default is on, with precision=f32 too.
DYNAMIC_QUANTIZATION = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
MAX_MESSAGE = 1200  # characters: it lists each operator that is not converted, with a reason
TELEMETRY = "openvino.tools.ovc"


def version() -> str:
    """Return the runtime's version."""
    return str(_import_runtime().get_version()).split("-")[0]


def warm() -> None:
    """Import the runtime ahead of the first model."""
    _make_core()


def precision(options: Fields) -> str:
    """Return the precision that a compiled model reports on this machine, which may differ from the
    option."""
    return CLAIMS.get(
        _computes_in(_find_device(options), tuple(sorted(_make_config(options).items()))), "fp32"
    )


def exact(options: Fields) -> Fields | None:
    """Return the options with float32 instead of a lower precision; None if these are."""
    others = {k: v for k, v in options.items() if k != HINT}
    if precision(options) != "fp32":
        return {**others, "precision": "f32"}
    return None


def switches(options: Fields) -> Switches:
    """Dynamic quantization, and all that its mode for speed allows."""
    changes = {
        "dynamic quantization": {DYNAMIC_QUANTIZATION: "0"},
        "its mode for speed": {MODE: "ACCURACY"},
    }
    device = _find_device(options)
    return {name: {**options, **o} for name, o in changes.items() if _has_property(device, *o)}


def caveat(options: Fields) -> str:
    """Return a precision below float32 that the options do not name, or another one than
    they name."""
    claim = precision(options)
    option = str(options.get("precision", ""))
    if option and CLAIMS[option] != claim:
        return f"openvino should compute in {option}, but computes in {claim} on this machine"
    if claim != "fp32" and not option and HINT not in options:
        return (
            f"openvino computes in {claim} by its own default on this machine;"
            " openvino:precision=f32 for float32"
        )
    return ""


def load(model: Path, options: Fields) -> Run:
    """Read and compile.

    `options`: `precision` (f32, f16, bf16; a hint: see `precision`; f32 turns dynamic quantization
    off as well), `device` (CPU), `threads` (1; 0 leaves it to OpenVINO) and any property by name:
    `EXECUTION_MODE_HINT=ACCURACY`.

    Raises:
        BackendError: OpenVINO is not installed, or an option or a device means nothing to it.
        Refused: it does not accept this model.
    """
    device = _find_device(options)
    config = _make_config(options)
    core = _make_core()
    inputs, outputs = _foreign.ports("openvino", model, TYPES)
    try:
        compiled = core.compile_model(str(model), device, config)
    except Exception:
        # It raises an error if the device or a property is at fault.
        _computes_in(device, tuple(sorted(config.items())))
        raise
    # Inputs match by position, because an input that is also an output has lost its name.
    positions = {i: i for i in range(len(inputs))}
    if len(compiled.inputs) != len(inputs):  # unread inputs are gone
        names = {}
        for i, port in enumerate(compiled.inputs):
            names.update(dict.fromkeys(port.names, i))
        positions = {i: names[port.name] for i, port in enumerate(inputs) if port.name in names}
    counts = len(positions), len(compiled.outputs)
    _foreign.require_ports("openvino", counts, compiled.inputs, outputs)
    request = compiled.create_infer_request()

    def run(feeds: Tensors) -> Values:
        arrays = _foreign.input_arrays(feeds, inputs)
        for i, position in positions.items():
            request.set_input_tensor(position, _make_tensor(arrays[i]))
        request.infer()
        values = {}
        for i, port in enumerate(outputs):
            tensor = request.get_output_tensor(i)
            is_bfloat16 = tensor.element_type == _import_runtime().Type.bf16
            # The bits come as float16, in memory that the next run overwrites.
            data = tensor.data.view(np.uint16) if is_bfloat16 else tensor.data
            array = data.copy()
            values[port.name] = array.view(find_dtype("bfloat16")) if is_bfloat16 else array
        return values

    return run


def _import_runtime() -> Any:
    """Import the package without its converter, which reports to a server when it is imported."""
    if (
        TELEMETRY not in sys.modules
        and "openvino" not in sys.modules
        and util.find_spec("openvino")
    ):
        sys.modules[TELEMETRY] = None  # type: ignore[assignment] # makes the import fail
    package = _foreign.package("openvino", "openvino")
    return package if hasattr(package, "Core") else import_module("openvino.runtime")  # before 2024


@cache
def _make_core() -> Any:
    return _import_runtime().Core()


def _find_device(options: Fields) -> str:
    return str(options.get("device", "CPU"))


def _make_config(options: Fields) -> StringMap:
    """Return the options as OpenVINO's properties.

    Raises:
        BackendError: an option means nothing.
    """
    properties = {k: str(v) for k, v in options.items() if k.isupper()}
    _foreign.check_options("openvino", options, OPTIONS)
    config = {}
    number = _foreign.threads("openvino", options)
    if number and _find_device(options).startswith("CPU"):
        # Parallel processes must not be pinned to the same core.
        config = {THREADS: str(number), "ENABLE_CPU_PINNING": "NO"}
    if "precision" in options:
        config[HINT] = str(options["precision"])
        if options["precision"] == "f32" and _has_property(
            _find_device(options), DYNAMIC_QUANTIZATION
        ):
            config[DYNAMIC_QUANTIZATION] = "0"
    return config | properties


@cache
def _has_property(device: str, name: str) -> bool:
    """Return whether the device knows the property. Versions before 2024.1 have no dynamic
    quantization."""
    try:
        return name in _make_core().get_property(device, "SUPPORTED_PROPERTIES")
    except Exception:  # noqa: BLE001
        return False


@cache
def _computes_in(device: str, config: tuple[tuple[str, str], ...]) -> str:
    """Return the element type of a compiled model's arithmetic: `bf16`.

    Raises:
        BackendError: no such device, or a property that means nothing to it.
    """
    ov = _import_runtime()
    # Before 2025.
    opset = ov.opset13 if hasattr(ov, "opset13") else import_module("openvino.runtime.opset10")
    value = opset.parameter([1], ov.Type.f32)
    tiny = ov.Model([opset.relu(value)], [value])
    try:
        precision = _make_core().compile_model(tiny, device, dict(config)).get_property(HINT)
    except Exception as e:
        raise BackendError(
            f"openvino cannot use {device} so: {error_text(e)}",
            f"it has {', '.join(_make_core().available_devices)}",
            code="backend.device-unusable",
        ) from e
    return str(precision.get_type_name())


def _make_tensor(array: Any) -> Any:
    """Return an OpenVINO tensor of the array: bfloat16 as raw bits; rank 0 stays."""
    ov = _import_runtime()
    if array.dtype.name != "bfloat16":
        return ov.Tensor(array)
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape(list(array.shape)))
    tensor.data.view(np.uint16)[...] = array.view(np.uint16)
    return tensor


def error_text(error: Exception) -> str:
    """Return OpenVINO's message without the places in its sources."""
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("Exception from "))[
        :MAX_MESSAGE
    ]
