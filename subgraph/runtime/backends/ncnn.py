"""ncnn on the CPU or by Vulkan: converted by pnnx, in float32 or with precision=fp16."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subgraph.environments import emulated
from subgraph.errors import BackendError, ModelError, NotInstalled, Refused
from subgraph.graph import protobuf
from subgraph.lazy import np
from subgraph.runtime import command_line
from subgraph.runtime.backends import Run, Switches, _foreign
from subgraph.storage.tensors import Tensors, Values, find_dtype
from subgraph.system import hardware
from subgraph.types import Fields, JsonObject

# The wheel of pnnx requires PyTorch, which its program does not need.
RELEASES = ("ncnn", "0", "pnnx<={date}")
OUTPUTS = ("float32", "float16")
INPUTS = (*OUTPUTS, "int32", "int64")
HALF = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")
PARTS = {
    "winograd": "use_winograd_convolution",
    "sgemm": "use_sgemm_convolution",
    "packing": "use_packing_layout",
}
OPTIONS = {
    "precision": ("fp32", "fp16"),
    "vulkan": ("0", "1"),
    "threads": (),
    "winograd": ("0", "1"),
    "sgemm": ("0", "1"),
    "packing": ("0", "1"),
}
HINT = "-c ncnn:package=ncnn brings both, apart from all else; or pip install --no-deps ncnn pnnx"
MAX_PNNX_SECONDS = 600  # that pnnx may take
NO_BATCH = 233  # ncnn's word for a tensor without a batch axis
INTEGERS = 2**31
WARNING = "[W:onnxruntime"  # in lines of pnnx
# In pnnx's script for a run, and in messages of both about unknown layers.
AXIS = re.compile(r'input\("in(\d+)", ncnn\.Mat\((?:.*?batch_index=|in\d+\.squeeze\()(\d+)')
IN = re.compile(r'\.input\("in(\d+)"')
OUT = re.compile(r'\.extract\("out(\d+)"')
OUT_AXIS = re.compile(r"\bout(\d+)\.numpy\(batch_index=(\d+)")
LOST = re.compile(
    r"^(?:ignore \S+ \S+ param .*|layer \S+ not exists.*|Unsupported .*|\S* ?not supported.*)",
    re.MULTILINE,
)


def version() -> str:
    """Return ncnn's version, and pnnx's."""
    _import_ncnn()
    _find_pnnx()
    return f"{package_version('ncnn')} by pnnx {package_version('pnnx')}"


def warm() -> None:
    """Import the runtime ahead of the first model."""
    _import_ncnn()


def _import_ncnn() -> Any:
    """Return the runtime.

    Raises:
        NotInstalled: it is not there.
    """
    if find_spec("ncnn") is None:
        raise NotInstalled("ncnn is not installed", HINT, code="package.not-installed")
    return _foreign.package("ncnn", "ncnn")


def precision(options: Fields) -> str:
    """Return the precision of the computation: float32, unless the defaults of ncnn and pnnx are
    requested."""
    _foreign.check_options("ncnn", options, OPTIONS)
    return str(options.get("precision", "fp32"))


def caveat(options: Fields) -> str:
    """Name the processor that computes instead of a GPU."""
    instead = hardware.find_vulkan_emulator() if str(options.get("vulkan", 0)) == "1" else ""
    if instead:
        return f"ncnn's Vulkan computes by {instead}: a GPU may differ"
    return ""


def exact(options: Fields) -> JsonObject | None:
    """Return the options for float32, and Conv without Winograd's approximation."""
    plain = {**options, "precision": "fp32", "winograd": "0"}
    return None if plain == dict(options) else plain


def switches(options: Fields) -> Switches:
    """Half precision, Vulkan, and ways of computing that are exact in real numbers only."""
    switched = {name: {**options, name: "0"} for name in PARTS if str(options.get(name, 1)) != "0"}
    if options.get("precision") == "fp16":
        switched["half precision"] = {**options, "precision": "fp32"}
    if str(options.get("vulkan", 0)) == "1":
        switched["Vulkan"] = {**options, "vulkan": "0"}
    return switched


def load(model: Path, options: Fields) -> Run:
    """Convert by pnnx, and build from its files.

    `options`: `precision` (fp32; fp16 is half precision wherever ncnn and pnnx have it by default),
    `vulkan` (0), `threads` (1), `winograd`, `sgemm`, `packing` (1: as ncnn does).

    Raises:
        BackendError: a package is missing, there is no Vulkan, or an option means nothing to it.
            Refused: it does not accept this model.
    """
    _foreign.check_options("ncnn", options, OPTIONS)
    ncnn = _import_ncnn()
    inputs, outputs = _foreign.ports("ncnn", model, INPUTS)
    if other := next((port for port in outputs if port.dtype not in OUTPUTS), None):
        raise Refused(
            f"ncnn outputs no {other.dtype}: '{other.name}'", code="backend.unsupported-type"
        )
    if open_port := next((port for port in inputs if port.dims is None or None in port.dims), None):
        raise Refused(
            f"pnnx needs the size of each input, and that of '{open_port.name}' is open",
            code="backend.open-size",
        )
    net = ncnn.Net()
    half = options.get("precision") == "fp16"
    net.opt.num_threads = _foreign.threads("ncnn", options) or ncnn.get_cpu_count()
    for name in () if half else HALF:
        setattr(net.opt, name, False)
    for name, switch in PARTS.items():
        setattr(net.opt, switch, str(options.get(name, 1)) == "1")
    if str(options.get("vulkan", 0)) == "1":
        hardware.prepare_vulkan()
        if not ncnn.get_gpu_count():
            raise BackendError(
                "ncnn finds no device that speaks Vulkan",
                hardware.name_missing_vulkan() or "vulkan=0: on the CPU",
                code="backend.no-device",
            )
        net.opt.use_vulkan_compute = True
    loaded = _Net(ncnn, net, inputs, outputs)
    folder = _foreign.make_folder(loaded, "ncnn")
    loaded.build(folder, _convert(model, folder, half))
    return loaded


@dataclass(eq=False)
class _Net:
    """A converted model.

    Attributes:
        ncnn: The module.
        net: The network, with all options set.
        input_ports: The inputs.
        output_ports: The outputs.
        axes: The axes of batches, by number of input, and of output.
    """

    ncnn: Any
    net: Any
    input_ports: _foreign.Ports
    output_ports: _foreign.Ports
    axes: Sequence[dict[int, int]] = ()

    def build(self, folder: Path, printed: str) -> None:
        """Load the files of pnnx; `printed`: its output.

        Raises:
            Refused: ncnn does not take them.
        """
        script = (folder / "m_ncnn.py").read_text()
        counts = len(set(IN.findall(script))), len(set(OUT.findall(script)))
        _foreign.require_ports("ncnn", counts, self.input_ports, self.output_ports)
        self.axes = [
            {int(k): int(axis) for k, axis in pattern.findall(script)}
            for pattern in (AXIS, OUT_AXIS)
        ]
        files = (self.net.load_param, "m.ncnn.param"), (self.net.load_model, "m.ncnn.bin")
        if any(read(str(folder / name)) for read, name in files):
            lost = "; ".join(LOST.findall(printed)) or "a layer that it does not have"
            raise Refused(
                f"ncnn refuses what pnnx made of the model: {lost[:400]}",
                code="backend.refused-model",
            )

    def __call__(self, feeds: Tensors) -> Values:
        """Run once.

        Raises:
            Refused: a number needs more than 32 bits. ModelError: it failed.
        """
        extractor = self.net.create_extractor()
        matrices = []
        for k, (array, port) in enumerate(
            zip(_foreign.input_arrays(feeds, self.input_ports), self.input_ports, strict=True)
        ):
            matrix = self._make_matrix(array, port, self.axes[0].get(k, NO_BATCH))
            matrices.append(matrix)
            extractor.input(f"in{k}", matrix)
        values = {}
        for k, port in enumerate(self.output_ports):
            code, value = extractor.extract(f"out{k}")
            if code:
                raise ModelError(
                    f"ncnn failed while running, with code {code}, at '{port.name}'",
                    code="backend.run-failed",
                )
            values[port.name] = self._read(value, port, self.axes[1].get(k, NO_BATCH))
        return values

    def _make_matrix(self, array: Any, port: _foreign.Port, axis: int) -> Any:
        if (
            array.dtype.kind == "i"
            and array.size
            and max(array.max(), -1 - array.min()) >= INTEGERS
        ):
            raise Refused(
                f"ncnn holds {port.dtype} in 32 bits: '{port.name}' has larger numbers",
                code="backend.unsupported-type",
            )
        stored = np.ascontiguousarray(array, np.int32 if array.dtype.kind == "i" else np.float32)
        if axis == NO_BATCH or array.shape[axis] == 1:
            return self.ncnn.Mat(stored if axis == NO_BATCH else stored.squeeze(axis)).clone()
        try:
            return self.ncnn.Mat(stored, batch_index=axis).clone()
        except TypeError as e:  # of releases before 2026
            raise Refused(
                f"this ncnn computes no batch of {array.shape[axis]}", code="backend.no-batch"
            ) from e

    @staticmethod
    def _read(value: Any, port: _foreign.Port, axis: int) -> Any:
        """Return a copy, with the axes of one that ncnn drops; a shape with other elements is its
        own."""
        sizes = [size for size in port.dims or () if size is not None]
        closed = port.dims is not None and len(sizes) == len(port.dims)
        is_single = axis == NO_BATCH or (closed and len(sizes) > axis and sizes[axis] == 1)
        array = np.array(value.numpy() if is_single else value.numpy(batch_index=axis))
        if closed and array.size == math.prod(sizes):
            array = array.reshape(sizes)
        return array.astype(find_dtype(port.dtype))


def _convert(model: Path, folder: Path, half: bool) -> str:
    """Have pnnx write a dozen files; what it prints.

    Raises:
        Refused: it wrote none. It ends with 0 whatever happens.
        DataError: the bytes of a weight cannot be read.
    """
    # It writes into the folder of the model, and computes without the weights in any file but
    # `m.onnx.data`.
    protobuf.write(protobuf.read(model).model, model, folder / "m.onnx", external=False)
    command = [*_find_pnnx(), "m.onnx", f"fp16={int(half)}"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MAX_PNNX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise Refused(
            f"pnnx took more than {MAX_PNNX_SECONDS} s for the model",
            code="backend.conversion-timeout",
        ) from e
    printed = done.stdout + done.stderr
    if (
        done.returncode
        or not (folder / "m.ncnn.param").is_file()
        or not (folder / "m_ncnn.py").is_file()
    ):
        lines = [line for line in printed.splitlines() if line.strip() and WARNING not in line]
        if lines and done.returncode >= 0:
            last = lines[-1]
        else:
            last = f"it ended with code {done.returncode}"
        raise Refused(
            f"pnnx does not convert the model: {last[:400]}", code="backend.refused-model"
        )
    return printed


def _find_pnnx() -> list[str]:
    """Return pnnx's program, next to its module, which is not imported: it imports PyTorch.

    Raises:
        NotInstalled: It is not installed.
    """
    spec = find_spec("pnnx")
    if spec is None or not spec.origin:
        raise NotInstalled("pnnx is not installed", HINT, code="package.not-installed")
    program = next(
        (file for file in Path(spec.origin).parent.glob("pnnx*") if file.suffix in ("", ".exe")),
        None,
    )
    if program is None:
        raise BackendError(
            "pnnx has no program for this machine",
            "pip install --no-deps pnnx --force-reinstall",
            code="backend.no-program",
        )
    return [*emulated.make_prefix(command_line.OWN_INTERPRETER), str(program)]


def error_text(error: Exception) -> str:
    """Return ncnn's error text."""
    return _foreign.message(error)
