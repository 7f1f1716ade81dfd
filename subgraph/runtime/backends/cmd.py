"""Your own commands: one that runs, and one that converts before.

Folders are the protocol. A command line is split into words, then `{…}` are put in; there is no
shell.

`convert`: `{model}` (the .onnx) and `{converted}` (a path for the file or folder that it makes;
nothing is there yet).
`run`: these, `{inputs}` (a folder with each input as .npy and .bin, and a manifest.json that lists
them and the outputs that are wanted) and `{outputs}` (an empty folder: each output goes there under
its name in the manifest, as .npy, or as .bin of the type and shape in the manifest).
`{keep}`: in both, a file with the names of the nodes that stay in float, a line each, of `subcut
plan`; else it is empty.
`{host}`: in both, the one of the candidate's `hosts` that this run has to itself. All others are
whole paths. A command that names none of its places gets them as its last words: `{model}
{converted}`; `{model} {inputs} {outputs}`, or `{converted} {inputs} {outputs}` if something was
converted. Any other `{name}` is
refused: `{{name}}` means `{name}` itself; `${name}`, `{"a": 1}` and `{ print $1 }` are not places.
Commands of a project file run in its folder, others where subcut runs.

`inputs`, `outputs`: how a device has them, if not as the model: `[big:][DTYPE][:LAYOUT]`,
`float16:NHWC`; `big` is big-endian. `inputs` is about the .bin files, whose shapes are in the
manifest; `outputs` about .bin and .npy files.

Exit codes: 0 ran; 125 cannot be tested; 126, 127 not runnable; 128 + n crashed by signal n; 255 a
connection was lost (tried again, then given up); any other: refused in convert, crashed in run.
"""

from __future__ import annotations

import errno
import json
import math
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subgraph import system
from subgraph.documents import to_json
from subgraph.errors import (
    BackendError,
    InputError,
    ModelError,
    Refused,
    SubcutError,
    Unreachable,
    UsageError,
    WorkerDied,
)
from subgraph.lazy import np
from subgraph.runtime.backends import Run, _foreign
from subgraph.runtime.command_line import PLACES, fill, split_command
from subgraph.storage import dtypes, tensors
from subgraph.storage.convert import DeviceForm, find_axes, write_bin
from subgraph.storage.folders import make_safe_names
from subgraph.storage.tensors import (
    PACKED,
    Tensors,
    Value,
    Values,
    find_dtype,
    format_shape,
    has_dims,
    unpack,
)
from subgraph.system import name_crash
from subgraph.types import Fields, StringMap, frozen_keywords

COMMANDS = ("convert", "run")
DEFAULTS = {"convert": ["{model}", "{converted}"], "run": ["{model}", "{inputs}", "{outputs}"]}
CANNOT_TEST = 125
NOT_RUNNABLE = (126, 127)
SIGNALLED = 128
LOST = 255
OPTIONS = {
    "convert": None,
    "run": None,
    "folder": None,
    "keep": None,
    "host": None,
    "inputs": (),
    "outputs": (),
}
RETRY_SECONDS = (1.0, 3.0)  # before each retry of a command that lost its connection


def words_of(step: str, command: str, *, converted: bool = False) -> list[str]:
    """Return the words of a command line, with places added to one that names none.

    Args:
        step: `convert` or `run`.
        command: The command line.
        converted: Whether the run gets the result of a convert command instead of the model.

    Raises:
        UsageError: It is empty, or has an open quote.
        UnknownName: It names an unknown place.
    """
    words = split_command("cmd", step, command)
    line = " ".join(words)
    if any(f"{{{place}}}" in line for place in PLACES[step] if place not in ("keep", "host")):
        return words
    return words + [
        "{converted}" if converted and word == "{model}" else word for word in DEFAULTS[step]
    ]


def load(model: Path, options: Fields) -> Run:
    """Convert, if there is a convert command; its result lives as long as the loaded model.

    Raises:
        Refused: the model has inputs or outputs other than tensors, or the command ended with an
            exit code other than 0 or 125, or wrote nothing.
        BackendError: the command cannot be run. UsageError: an option is unknown. WorkerDied: it
            crashed.
    """
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise UsageError(
            f"cmd has no setting '{unknown[0]}'",
            "it has run, convert, inputs and outputs",
            code="backend.unknown-option",
        )
    return _Commands(model, options)


class _Commands:
    def __init__(self, model: Path, options: Fields) -> None:
        convert, run = (str(options.get(step) or "") for step in ("convert", "run"))
        self._cwd = str(options.get("folder") or "") or None
        self._run = words_of("run", run, converted=bool(convert))
        if "{host}" in f"{convert} {run}".replace("{{host}}", "") and "host" not in options:
            raise UsageError(
                "cmd: its command names {host}, and this run has none",
                "as bisect, compare, sweep have",
                code="command.no-host",
            )
        needed = any("{converted}" in word for word in self._run)
        if needed and not convert:
            raise UsageError(
                "cmd: run names {converted}, but nothing converts",
                "add a convert command",
                code="command.no-convert",
            )
        _, self._outputs = _foreign.ports("a command", model, dtypes.TYPE_NUMBERS)
        self._fed, self._given = (
            DeviceForm.parse(str(options.get(key) or "")) for key in ("inputs", "outputs")
        )
        folder = _foreign.make_folder(self, "cmd")
        converted = folder / "converted"
        keep = folder / "keep.txt"
        keep.write_text(str(options.get("keep") or ""), encoding="utf-8")
        self._places = {"model": str(model.resolve()), "converted": str(converted)}
        self._places |= {"host": str(options["host"])} if "host" in options else {}
        self._places["keep"] = str(keep)
        if convert:
            words = words_of("convert", convert)
            _run_command("convert", words, self._places, self._cwd)
            if needed and not converted.exists():
                raise Refused(
                    f"the convert command {words[0]} ended well, but made nothing at {{converted}}",
                    code="command.no-output",
                )

    @property
    def outputs(self) -> StringMap:
        """The type of each output."""
        return {output.name: tensors.format_tensor_type(output.dtype) for output in self._outputs}

    def __call__(self, feeds: Tensors) -> Values:
        """Run once in fresh folders.

        Raises:
            Refused: the command ended with 125. ModelError: an output cannot be read.
            WorkerDied: it crashed. BackendError: it cannot be run, or its connection stays lost.
        """
        with tempfile.TemporaryDirectory(
            prefix="subcut-cmd-", ignore_cleanup_errors=True
        ) as temporary:
            inputs = Path(temporary) / "inputs"
            outputs = Path(temporary) / "outputs"
            inputs.mkdir()
            outputs.mkdir()
            _write(feeds, self._outputs, inputs, self._fed)
            _run_command(
                "run",
                self._run,
                self._places | {"inputs": str(inputs), "outputs": str(outputs)},
                self._cwd,
            )
            return _read(outputs, self._outputs, self._given)


# ------------------------------------------------------------ commands


def _run_command(step: str, words: Sequence[str], places: StringMap, cwd: str | None) -> None:
    first, *rest = (fill(word, places) for word in words)
    command = [system.find_program(first, cwd), *rest]
    for wait in (*RETRY_SECONDS, None):
        try:
            # It prints where this process prints; the parent keeps the last lines.
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, cwd=cwd, check=False
            ).returncode
        except OSError as e:
            hint = "check its path, and that it may be executed (chmod +x)"
            if e.errno == errno.ENOEXEC:
                hint = "a script needs a first line such as #!/bin/sh"
            raise BackendError(
                f"cannot run {command[0]}: {e.strerror or e}", hint, code="command.not-runnable"
            ) from e
        if code != LOST or wait is None:
            break
        time.sleep(wait)
    if code:
        raise _make_error(step, command[0], code, Unreachable if "host" in places else BackendError)


def _make_error(step: str, command: str, code: int, lost: type[SubcutError]) -> SubcutError:
    """Return the error of an exit code, which is -n for signal n; `lost`: of a lost connection."""
    what = f"{step} command {command} ended with exit code {code}"
    if code == CANNOT_TEST:
        return Refused(f"cannot be tested: the {what}", code="command.cannot-test")
    if code in NOT_RUNNABLE:
        return BackendError(
            f"the {what}: not executable, or not found",
            "run it by hand to see why",
            code="command.not-runnable",
        )
    if code == LOST:
        times = f"{len(RETRY_SECONDS) + 1} times"
        return lost(
            f"the {what}: connection lost, {times}",
            "check that the device is reachable",
            code="command.connection-lost",
        )
    if name := name_crash(code) or name_crash(SIGNALLED - code):
        return WorkerDied(
            f"the {step} command {command} was ended by {name}",
            process={"signal": name},
            code="command.ended-by-signal",
        )
    if step == "convert":
        return Refused(f"the {what}", code="command.convert-failed")
    process = {"exit_code": code}
    return WorkerDied(f"the {what}", signature="throws", process=process, code="command.failed")


# ------------------------------------------------------------ folders


@frozen_keywords
class RunManifest:
    """The list of the files that a command is given, and of those that it writes."""

    schema: str = "subcut.run/1"
    inputs: Sequence[Fields]
    outputs: Sequence[Fields]


def _write(feeds: Tensors, declared: _foreign.Ports, folder: Path, form: DeviceForm) -> None:
    """Write each input as .npy and .bin, and the manifest, which describes the .bin.

    A .bin is little endian, in C order, sub-byte types packed, unless declared otherwise.
    """
    stems = make_safe_names(feeds)
    inputs = []
    for name, value in feeds.items():
        record = tensors.save(name, value, tensors.find_type(value), folder, stems[name])
        entry = {
            "name": name,
            "dtype": record.dtype,
            "shape": list(record.shapes[0]),
            "npy": record.files[0],
        }
        for raw in write_bin(record, folder, form.form)[0]:
            entry |= {"bin": raw.file, "dtype": raw.dtype, "shape": list(raw.shape)}
            if form.big:
                turned = np.fromfile(folder / raw.file, find_dtype(raw.dtype)).byteswap()
                (folder / raw.file).write_bytes(turned.tobytes())
        inputs.append(entry)
    output_stems = _find_stems(declared)
    outputs = [
        {
            "name": output.name,
            "dtype": output.dtype,
            "shape": None if output.dims is None else list(output.dims),
            "npy": f"{output_stems[output.name]}.npy",
            "bin": f"{output_stems[output.name]}.bin",
        }
        for output in declared
    ]
    manifest = to_json(RunManifest(inputs=inputs, outputs=outputs))
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="ascii")


def _find_stems(declared: _foreign.Ports) -> StringMap:
    """Return the name of each output's file."""
    return make_safe_names(output.name for output in declared)


def _read(folder: Path, declared: _foreign.Ports, form: DeviceForm) -> Values:
    """Read the outputs, .npy before .bin; other files count as outputs under their own names.

    Raises:
        ModelError: a file is damaged, or its size does not fit.
    """
    outputs = {}
    stems = _find_stems(declared)
    for output in declared:
        npy = folder / f"{stems[output.name]}.npy"
        raw = folder / f"{stems[output.name]}.bin"
        if npy.is_file():
            outputs[output.name] = _convert_to_model(_read_npy(npy, output.dtype), output, form)
        elif raw.is_file():
            outputs[output.name] = _convert_to_model(_read_bin(raw, output, form), output, form)
    known = set(stems.values())
    others = (
        p for p in sorted(folder.iterdir()) if p.stem not in known and p.suffix in (".npy", ".bin")
    )
    outputs.update((p.name, None) for p in others)
    return outputs


def _read_npy(path: Path, dtype: str) -> Value:
    """Read the array in a .npy file; raw bits become the declared type if numpy lacks that."""
    try:
        array = tensors.read_npy(path)
    except InputError as e:
        raise ModelError(
            f"the output {path.name} cannot be read: {e.what}", e.hint, code=e.code
        ) from e
    bits = dtype in tensors.NOT_NUMPY and tensors.are_bits(array.dtype, find_dtype(dtype))
    if bits or (dtype == "string" and array.dtype.kind == "U"):
        return tensors.from_bits(array, dtype)
    return array


def _convert_to_model(array: Any, output: _foreign.Port, form: DeviceForm) -> Value:
    """Convert an array from the device's layout and float type to the model's."""
    dtype = output.dtype
    dims = _find_stored_dims(output, form) or ()
    fits = form.form.layout and has_dims(array.shape, dims)
    if fits and (axes := find_axes(array.shape, form.form.layout, "NCHW")):
        array = np.ascontiguousarray(array.transpose(axes))
    value: Value = (
        array.astype(find_dtype(dtype)) if form.dtype(dtype) == array.dtype.name != dtype else array
    )
    return value


def _find_stored_dims(output: _foreign.Port, form: DeviceForm) -> _foreign.Dims:
    """Return the dimensions of an output as the device stores it."""
    axes = find_axes((0,) * len(output.dims), "NCHW", form.form.layout) if output.dims else None
    if axes and output.dims:
        return tuple(output.dims[k] for k in axes)
    return output.dims


def _read_bin(path: Path, output: _foreign.Port, form: DeviceForm) -> Value:
    """Read a headerless file, in the device's type and layout; one open size follows from the
    file's.

    Raises:
        ModelError: the sizes do not fit.
    """
    dtype = form.dtype(output.dtype)
    bits = dtypes.count_bits(dtype)
    size = path.stat().st_size
    stored = _find_stored_dims(output, form)
    dims = (None,) if stored is None else stored
    text = "any shape" if stored is None else format_shape(dims)
    if not bits or dims.count(None) > 1:
        raise ModelError(
            f"{path.name}: {text} of {dtype} cannot be read from a .bin",
            "write .npy",
            code="tensor.no-raw-form",
        )
    fixed = math.prod(d for d in dims if d is not None)
    count = fixed
    if None in dims and fixed:
        count = size * 8 // bits // fixed * fixed  # packed: the last byte may be half empty
    if (count * bits + 7) // 8 != size:
        raise ModelError(
            f"{path.name} has {size} bytes, which is not {text} of {dtype}",
            "little endian, no header; another element type is declared: cmd[outputs=float16]:…",
            code="tensor.wrong-size",
        )
    shape = [count // max(fixed, 1) if d is None else d for d in dims]
    data = np.fromfile(path, np.uint8)
    if dtype in PACKED:
        return unpack(data, dtype, count).reshape(shape)
    if dtype == "bool":
        return data.astype(np.bool_).reshape(shape)
    values = data.view(find_dtype(dtype)).reshape(shape)
    own: Value = values.byteswap() if form.big else values
    return own
