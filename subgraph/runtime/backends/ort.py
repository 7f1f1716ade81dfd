"""onnxruntime. On the CPU, with optimizations off and a fixed thread count, it is the reference.

Every search starts processes with this module: what only `passes` needs is imported there.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from subgraph.errors import BackendError, ModelError, Refused, UsageError
from subgraph.lazy import np, ort
from subgraph.runtime.backends import WEBGPU_LACKS, Run, Switches, _foreign
from subgraph.storage import dtypes, folders
from subgraph.storage.tensors import (
    NOT_NUMPY,
    PACKED,
    Tensors,
    Values,
    find_dtype,
    pack,
    parse_type,
    to_bits,
    unpack,
)
from subgraph.text import find_nearest
from subgraph.types import Fields

MULTI = True
DEVICE_LACKS = WEBGPU_LACKS
CUSTOM_OPS = HALF_AS_FLOAT = ALONE = True
REFERENCE = {"opt": "disable", "threads": 1, "fixed": True}
VARIANTS = "onnxruntime-"
RELEASES = "onnxruntime", "1.19"  # the package; its first release that runs with numpy 2
PASSES = "disabled_optimizers"  # the option that turns optimizer passes off
CPU = "CPUExecutionProvider"
OPTIONS = {
    "opt": ("disable", "basic", "extended", "all"),
    "disabled_optimizers": (),
    "threads": (),
    "providers": (),
    "ep": (),
    "library": (),
    "custom_ops": None,
    "fixed": (),
    "weights": None,
    "reuse": (),
    "session.*": (),
}
# Names of passes are texts in the library, among 3,000 others of this form.
WORD = re.compile(rb"(?<=\0)[A-Za-z][A-Za-z0-9_]{5,59}(?=\0)")
LIBRARY_BYTES = 1 << 20  # of files in its folder, those of at least this size are libraries
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def version() -> str:
    """Return the runtime's version."""
    return str(ort.__version__)


def precision(options: Fields) -> str:
    """Return the precision in which the provider computes, by its options and their defaults;
    float32 on the CPU."""
    _check_options(options)
    return "fp32" if _uses_cpu(options) else _import_providers().precision(options)


def caveat(options: Fields) -> str:
    """Name a provider's default precision below float32, and the emulator of a device."""
    return "" if _uses_cpu(options) else _import_providers().caveat(options)


def exact(options: Fields) -> Fields | None:
    """Return the options for the full precision of a provider; else without optimizations."""
    if not _uses_cpu(options) and (full := _import_providers().exact(options)):
        return {**options, **full}
    return None if options.get("opt") == "disable" else {**options, "opt": "disable"}


def switches(options: Fields) -> Switches:
    """Activations in int8 next to 4-bit weights, weights packed ahead, memory that tensors share,
    kernels for int8, and threads, which add up in another order."""
    changes = {
        "int8 activations of 4-bit weights": {"session.qdq_matmulnbits_accuracy_level": "1"},
        "packed weights": {"session.disable_prepacking": "1"},
        "shared memory": {"reuse": "0"},
        "int8 kernels for QDQ": {"session.disable_quant_qdq": "1"},
        "int8 sums that saturate": {"session.x64quantprecision": "1"},
        "threads": {"threads": "1"},
    }
    if not _uses_cpu(options):
        changes = {**_import_providers().switches(options), **changes}
    return {name: {**options, **changed} for name, changed in changes.items()}


def load(model: Path, options: Fields) -> Run:
    """Build a session.

    `options`: `opt` (disable, basic, extended, all; default: all), `disabled_optimizers` (`A+B`:
    passes that do not run; see `passes`), `threads` (intra-op; 0 leaves it to onnxruntime),
    `providers` (`A+B`), `custom_ops` (a library of operators), `session.KEY` (a session config
    entry), `ep` and `library` (a plug-in's provider, and the Python module or the file that holds
    it), all others are the first provider's own (`use_tf32=0`), `fixed` (the reference's settings:
    deterministic kernels, no arena, threads that sleep), `weights` (the folder that external data
    is relative to, if it is not the model's own) and `reuse` (0: no tensors share memory).

    Raises:
        BackendError: onnxruntime is not installed or does not load. UsageError: an option means
            nothing to it.
        Refused: it does not accept this model.
    """
    try:
        ort.set_default_logger_severity(4)
    except ImportError as e:
        raise BackendError(
            f"onnxruntime cannot be loaded: {e}",
            "pip install onnxruntime",
            code="backend.not-loadable",
        ) from e
    settings = make_settings(options)
    off = _find_disabled_passes(options)
    if off and (unknown := sorted(set(off) - words())):  # to read the library takes half a second
        close = find_nearest(unknown[0], words())
        raise UsageError(
            f"onnxruntime has no optimizer pass '{unknown[0]}'",
            " or ".join(close) or f"{PASSES}=A+B",
            code="backend.unknown-pass",
        )
    providers = (
        [CPU] if _uses_cpu(options) else _import_providers().prepare(options, settings, OPTIONS)
    )
    try:
        if weights := options.get("weights"):
            settings.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(weights)
            )
        source = model.read_bytes() if weights else str(model)
        session = ort.InferenceSession(
            source, settings, providers=providers, disabled_optimizers=off, enable_fallback=0
        )
    except Exception as e:
        if not _uses_cpu(options) and (
            why := _import_providers().unusable(options, settings, providers)
        ):
            raise BackendError(
                f"{_import_providers().list_names(options)[0]} cannot be used here: {why}",
                "subcut doctor",
                code="backend.device-unusable",
            ) from e
        raise _make_refusal(e, _is_on(options.get("fixed"))) from e
    if not _uses_cpu(options):
        _import_providers().require(options, session)
    return _Session(session)


def _uses_cpu(options: Fields) -> bool:
    """Return whether no other provider is requested. Each search starts processes for which nothing
    else is imported."""
    return "ep" not in options and options.get("providers", CPU) == CPU


def _import_providers() -> ModuleType:
    return import_module("subgraph.runtime.backends._ort_providers")


def computed_by(model: Path, options: Fields) -> list[str]:
    """Return `CUDA NAME` for each node of a provider, with its first output; empty on the CPU."""
    if _uses_cpu(options):
        return []
    ort.set_default_logger_severity(4)
    return list(_import_providers().find_assigned(model, options, make_settings(options), OPTIONS))


def passes(model: Path, options: Fields) -> list[str]:
    """Return the optimizer passes without which, one by one, a model has another graph.

    There is no list of them. All words of the library are turned off in groups, and a group is
    halved as long as the optimized graph is another one without it: some 20 sessions for each pass
    that does something.
    """
    off = _find_disabled_passes(options)
    before = _hash_optimized_graph(model, options, off)

    def effective(words: Sequence[str]) -> list[str]:
        if not words or _hash_optimized_graph(model, options, [*off, *words]) == before:
            return []
        middle = len(words) // 2
        return [*effective(words[:middle]), *effective(words[middle:])] if middle else list(words)

    return effective(sorted(words() - set(off)))


@cache
def words() -> frozenset[str]:
    """Return the words that may be names of optimizer passes."""
    names = set()
    for file in Path(ort.__file__).parent.joinpath("capi").iterdir():
        if file.is_file() and file.stat().st_size >= LIBRARY_BYTES:
            with (
                file.open("rb") as library,
                mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as text,
            ):
                names.update(WORD.findall(text))
    return frozenset(word.decode() for word in names if not word.isupper() and not word.islower())


def _find_disabled_passes(options: Fields) -> list[str]:
    return [name for name in str(options.get(PASSES, "")).split("+") if name]


def _hash_optimized_graph(model: Path, options: Fields, off: Sequence[str]) -> str:
    """Return a hash of the graph that is run instead of a model, or of the error."""
    ort.set_default_logger_severity(4)
    settings = make_settings(options)
    providers = (
        [CPU] if _uses_cpu(options) else _import_providers().prepare(options, settings, OPTIONS)
    )
    with folders.make_temporary("subcut-ort") as folder:
        settings.optimized_model_filepath = str(folder / "model.onnx")
        try:
            ort.InferenceSession(
                str(model), settings, providers=providers, disabled_optimizers=list(off)
            )
            return _hash_nodes(folder / "model.onnx")
        except Exception as e:  # noqa: BLE001
            return _shorten_message(e)


def _hash_nodes(model: Path) -> str:
    """Return a hash of the nodes and their inputs, without order and names of intermediate tensors.

    For the same model, onnxruntime chooses other names each time.
    """
    from subgraph.graph import protobuf
    from subgraph.storage.digest import digest

    graph = protobuf.read(model).model.graph
    known = {value.name: value.name for value in graph.input}
    known |= {w.name: f"weight {w.data_type} {list(w.dims)}" for w in graph.initializer}
    for node in graph.node:
        known |= {name: f"{node.op_type} {k}" for k, name in enumerate(node.output)}
    nodes = []
    for node in graph.node:
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        nodes.append(
            [node.domain, node.op_type, [known.get(name, "") for name in node.input], attributes]
        )
    return digest(*sorted(digest(*node) for node in nodes))


def _check_options(options: Fields) -> None:
    """Check that onnxruntime has these options; others belong to the provider that is requested.

    Raises:
        UsageError: an option or its value is not allowed.
    """
    own = {key: value for key, value in options.items() if key in OPTIONS or _uses_cpu(options)}
    _foreign.check_options("ort", own, OPTIONS)


def make_settings(options: Fields) -> Any:
    """Return the session options of onnxruntime for these options of the backend."""
    _check_options(options)
    settings = ort.SessionOptions()
    level = LEVELS[str(options.get("opt", "all"))]
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    if _is_on(options.get("fixed")):
        settings.use_deterministic_compute = True
        settings.enable_cpu_mem_arena = False
        # Made in the first run, in time quadratic in the nodes: 10 s of 80,000.
        settings.enable_mem_pattern = False
        # Each model runs once.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.enable_mem_reuse = _is_on(options.get("reuse", True))
    settings.intra_op_num_threads = _foreign.threads("ort", {"threads": 0, **options})
    settings.inter_op_num_threads = 1
    for key, value in options.items():
        if key.startswith("session."):
            try:
                settings.add_session_config_entry(key, str(value))
            except Exception as e:
                raise UsageError(
                    f"ort: {key} cannot be {value}: {_shorten_message(e)}",
                    "see onnxruntime's session keys",
                    code="backend.wrong-option",
                ) from e
    if library := options.get("custom_ops"):
        try:
            settings.register_custom_ops_library(str(library))
        except Exception as e:
            raise BackendError(
                f"onnxruntime cannot load {library}: {_shorten_message(e)}",
                "--custom-ops LIB",
                code="backend.custom-ops",
            ) from e
    return settings


def _is_on(value: Any) -> bool:
    """Return whether a switch is on, given as the user types it or as a bool."""
    return str(value or "").lower() not in ("", "0", "false", "no", "off")


class _Session:
    def __init__(self, session: Any) -> None:
        self.session = session
        self.inputs = {i.name: i.type for i in session.get_inputs()}
        self.outputs = {o.name: o.type for o in session.get_outputs()}

    def __call__(self, feeds: Tensors) -> Values:
        """Run once.

        If there is a type that numpy lacks, all tensors are passed as OrtValue, so that all outputs
        come from one run. Sequences and optionals are passed as Python objects: as outputs in
        addition to such types they need a second run; as inputs they cannot be passed at all.
        """
        types = [self.inputs[n] for n in feeds] + list(self.outputs.values())
        as_values = any(parse_type(text)[1] in NOT_NUMPY for text in types)
        wrapped = [n for n, t in self.outputs.items() if as_values and parse_type(t)[0] == "tensor"]
        plain = [n for n in self.outputs if n not in wrapped]
        outputs: Values = {}
        try:
            if wrapped:
                values = {n: _wrap(v, self.inputs[n]) for n, v in feeds.items()}
                results = self.session.run_with_ort_values(wrapped, values)
                outputs.update(
                    (n, _unwrap(v, self.outputs[n])) for n, v in zip(wrapped, results, strict=True)
                )
            if plain:
                outputs.update(zip(plain, self.session.run(plain, dict(feeds)), strict=True))
        except Exception as e:
            raise ModelError(
                f"onnxruntime failed while running: {_shorten_message(e)}",
                "check that the model takes these inputs",
                code="backend.run-failed",
            ) from e
        return outputs


def _wrap(value: Any, type_text: str) -> Any:
    """Return a numpy array as an OrtValue of any element type."""
    form, dtype = parse_type(type_text)
    if form != "tensor":
        raise ModelError(
            f"onnxruntime's Python cannot take {type_text} together with a type that numpy lacks",
            code="backend.unsupported-type",
        )
    if dtype not in NOT_NUMPY:
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(value))
    bits = to_bits(value, dtype)
    if dtype in PACKED:  # the buffer has one byte per element; the packed bytes come first
        packed = pack(bits, dtype)
        bits = np.zeros(bits.shape, np.uint8)
        bits.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtypes.TYPE_NUMBERS[dtype])


def _unwrap(value: Any, type_text: str) -> Any:
    """Return an OrtValue as an array; element types that numpy lacks are read from its memory."""
    form, dtype = parse_type(type_text)
    if dtype not in NOT_NUMPY:
        return value.numpy()
    if form != "tensor":
        raise ModelError(
            f"onnxruntime's Python cannot give {type_text}",
            "cut elsewhere: between plain tensors",
            code="backend.unsupported-type",
        )
    shape = tuple(value.shape())
    count = math.prod(shape)
    bits = dtypes.count_bits(dtype)
    data = ctypes.string_at(value.data_ptr(), (count * bits + 7) // 8) if count else b""
    if dtype in PACKED:
        return unpack(np.frombuffer(data, np.uint8), dtype, count).reshape(shape)
    return np.frombuffer(data, find_dtype(dtype)).reshape(shape)


# File, line and function in onnxruntime's sources: `/…/model.cc:182 onnxruntime::Model::Model(…)
# const`.
_PLACE = re.compile(
    r"\S+\.(?:cc|h):\d+ (?:[^()'\"]*::[^()'\"]*\((?:[^()]|\([^()]*\))*\)(?: const)?|\w+) ?"
)


def _shorten_message(e: Exception) -> str:
    """Return onnxruntime's error text without prefixes and places; at most 400 characters."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : (\w+ : )?", "", " ".join(str(e).split()))
    text = re.sub(r"^Load model from .*?\.onnx failed: ?", "", text)  # subcut's own temporary file
    return _PLACE.sub("", text)[:400]


def _make_refusal(e: Exception, is_reference: bool) -> Refused:
    text = _shorten_message(e)
    way_out = ["`subcut cut --no-capture` cuts without running the model"] if is_reference else []
    hint = "".join(way_out)
    if "is not a registered function/op" in text:
        library = "--custom-ops LIB loads a library that has it"
        hint = f"an op that onnxruntime does not know: {'; '.join([library, *way_out])}"
    elif re.search(r"max supported IR version|opset \d+ is under development", text, re.IGNORECASE):
        newer = f"newer than this onnxruntime ({version()}): pip install -U onnxruntime"
        hint = ", or ".join([newer, *way_out])
    who = f"onnxruntime {version()}"
    if is_reference:
        who = f"the reference ({who})"
    return Refused(f"{who} refuses the model: {text}", hint, code="backend.refused-model")


def warm() -> None:
    """Import the runtime ahead of the first model."""
    with contextlib.suppress(ImportError):  # `load` reports it
        version()
