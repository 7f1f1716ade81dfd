"""Providers of onnxruntime other than the CPU's: options, plug-ins, and the nodes of each.

A provider that cannot be used is an error, never a silent return to the CPU. The facts about each
are in `runtime.devices`.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from subgraph.errors import BackendError, UsageError
from subgraph.graph import protobuf
from subgraph.iterables import flatten
from subgraph.lazy import ort
from subgraph.precision import Precision
from subgraph.runtime.devices import Device, find_by_provider
from subgraph.system.hardware import load_library
from subgraph.types import Fields, StringMap

CPU = "CPUExecutionProvider"
SUFFIX = "ExecutionProvider"
WEIGHTS = "session.model_external_initializers_file_folder_path"
RECORD = "session.record_ep_graph_assignment_info"  # since 1.24
# y = Relu(x) of one float, opset 13, as protobuf: it shows whether a provider takes any node.
TINY = bytes.fromhex(
    "08073a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08"
    "080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)


def list_names(options: Fields) -> list[str]:
    """Return the names of the requested providers; by default, the CPU's."""
    if plugin := str(options.get("ep", "")):
        return [plugin if plugin.endswith(SUFFIX) else f"{plugin}{SUFFIX}"]
    return str(options.get("providers", CPU)).split("+")


def is_plain(options: Fields) -> bool:
    """Return whether the CPU's provider is the only one that is requested."""
    return list_names(options) == [CPU]


def devices(options: Fields) -> list[Device]:
    """Return the known facts about each provider."""
    return [find_by_provider(name) for name in list_names(options)]


def precision(options: Fields) -> str:
    """Return the coarsest that the first provider may compute in, by its options and their
    defaults."""
    first = devices(options)[0]
    claims = (first.precision, *_find_lowered(first, options).values())
    return max(map(Precision, claims), key=Precision.roundoff)


def switches(options: Fields) -> dict[str, StringMap]:
    """Return the optimizations of the providers that may make a difference."""
    return dict(flatten(device.switches.items() for device in devices(options)))


def exact(options: Fields) -> StringMap:
    """Return the options that lower the precision, turned off."""
    lowered = flatten(_find_lowered(device, options) for device in devices(options))
    return dict.fromkeys(lowered, "0")


def _find_lowered(device: Device, options: Fields) -> StringMap:
    """Return the options that lower a device's precision, with the precision of each."""
    return {
        key: claim
        for key, (default, claim) in device.lowers.items()
        if str(options.get(key, default)) == "1"
    }


def caveat(options: Fields) -> str:
    """Name a precision below float32 that is a default, and the emulator of a device."""
    first = devices(options)[0]
    facts = [
        f"{first.name} computes in {claim} by its default; {first.name}:{key}=0 for float32"
        for key, claim in _find_lowered(first, {}).items()
        if key not in options
    ]
    if instead := first.emulated():
        facts.append(f"not the device: {instead} answers for {first.name}")
    return "; ".join(facts)


def prepare(options: Fields, settings: Any, own: Collection[str]) -> list[Any] | None:
    """Return the providers for a new session; None if a plug-in was put into `settings`.

    Raises:
        BackendError: A provider is not in this build, or a library cannot be loaded.
    """
    for device in devices(options):
        device.prepare()
    own_options = {  # the options of the first provider
        name: str(value)
        for name, value in options.items()
        if name not in own and not name.startswith("session.")
    }
    if "ep" in options:
        settings.add_provider_for_devices(_find_plugin_devices(options), own_options)
        return None
    names = list_names(options)
    available = ort.get_available_providers()
    if missing := [name for name in names if name not in available]:
        raise BackendError(
            f"onnxruntime has no provider {missing[0]} here",
            f"it has {', '.join(available)}",
            code="backend.unknown-provider",
        )
    if any(name.startswith(("CUDA", "Tensorrt")) for name in names) and hasattr(
        ort, "preload_dlls"
    ):
        ort.preload_dlls(directory="")  # CUDA's libraries that pip installed
    if own_options:
        return [(names[0], own_options), *names[1:]]
    return list(names)


def require(options: Fields, session: Any) -> None:
    """Require the requested provider in a session.

    Raises:
        BackendError: onnxruntime omitted it; with the reason, if its library has one.
    """
    first = list_names(options)[0]
    if "ep" not in options and first not in session.get_providers():
        raise BackendError(
            f"{first} cannot be used here: {_find_load_error(first)}",
            find_by_provider(first).missing() or "subcut doctor",
            code="backend.device-unusable",
        )


def unusable(options: Fields, settings: Any, providers: list[Any] | None) -> str:
    """Return the reason why a provider takes no model at all, not even one ReLU; "" if it takes
    that."""
    try:
        session = ort.InferenceSession(TINY, settings, providers=providers, enable_fallback=0)
        require(options, session)
    except Exception as e:  # noqa: BLE001
        return " ".join(str(e).split())[-400:]
    return ""


def find_assigned(model: Path, options: Fields, settings: Any, own: Collection[str]) -> list[str]:
    """Return `CUDA NAME` for each node of a provider: its short name, and its first tensor.

    Nodes that are fused or folded before are not among them. Empty for releases before 1.24.

    Raises:
        BackendError: As `prepare`.
        Exception: Any error of onnxruntime that refuses the model.
    """
    if not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        return []
    settings.add_session_config_entry(RECORD, "1")
    settings.add_session_config_entry(WEIGHTS, str(model.parent.resolve()))
    given, tensors = _name_nodes(model)
    providers = prepare(options, settings, own)
    session = ort.InferenceSession(given, settings, providers=providers, enable_fallback=0)
    parts = session.get_provider_graph_assignment_info()
    found = []
    for part in parts:
        names = (node.name for node in part.get_nodes() if node.name in tensors)
        found += [(part.ep_name, tensors[name]) for name in names]
    return [f"{name.removesuffix(SUFFIX)} {tensor}" for name, tensor in found]


def _name_nodes(model: Path) -> tuple[str | bytes, StringMap]:
    """Return the model with a name for each node, and by name the first tensor that it makes.

    A file that is too large to be parsed as a whole stays as it is: its nodes without a name are
    left out.
    """
    nodes = protobuf.read(model).model.graph.node
    if (
        len({node.name for node in nodes} - {""}) == len(nodes)
        or model.stat().st_size > protobuf.MIN_WALKED_BYTES
    ):
        return str(model), {node.name: node.output[0] for node in nodes if node.name}
    whole = protobuf.load_protos().ModelProto.FromString(model.read_bytes())
    for number, node in enumerate(whole.graph.node):
        node.name = f"{number}"
    return whole.SerializeToString(), {node.name: node.output[0] for node in whole.graph.node}


def _find_load_error(provider: str) -> str:
    """Return the error of loading a provider's library; a sentence without a reason if it loads."""
    stem = provider.removesuffix(SUFFIX).lower()
    for file in sorted(
        Path(ort.__file__).parent.joinpath("capi").glob(f"*onnxruntime_providers_{stem}.*")
    ):
        try:
            for name in (file.with_name(file.name.replace(stem, "shared")), file):
                load_library(name)
        except OSError as e:
            return str(e)
    return "onnxruntime has no reason"


def _find_plugin_devices(options: Fields) -> list[Any]:
    """Return the devices of a plug-in, whose library is registered.

    Raises:
        BackendError: there is no such library, or it sees no device.
    """
    if not hasattr(ort, "register_execution_provider_library"):
        raise BackendError(
            f"onnxruntime {ort.__version__} takes no plug-ins",
            "1.23 and later do",
            code="backend.no-plugins",
        )
    library = str(options.get("library", ""))
    place, module = _find_library(library)
    if module and hasattr(module, "get_ep_name"):
        name = str(module.get_ep_name())
    else:
        name = list_names(options)[0]
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    if not devices:
        try:
            ort.register_execution_provider_library(name, place)
        except Exception as e:
            raise BackendError(
                f"onnxruntime cannot load the provider {library}: {e}",
                "library=MODULE or FILE",
                code="backend.provider-not-loadable",
            ) from e
        devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    if not devices:
        raise BackendError(
            f"the provider {name} of {library} sees no device on this machine",
            code="backend.no-device",
        )
    return devices


def _find_library(library: str) -> tuple[str, ModuleType | None]:
    """Return file and module of a plug-in that is named by a module or a file.

    Raises:
        BackendError: There is no such plug-in.
    """
    if Path(library).is_file():
        return str(Path(library).resolve()), None
    try:
        module = import_module(library) if library else None
        place = str(module.get_library_path()) if module else ""
    except (ImportError, AttributeError, ValueError) as e:
        raise BackendError(
            f"no library of a provider: {library}: {e}",
            "library=MODULE (pip install it) or FILE",
            code="backend.provider-not-loadable",
        ) from e
    if not place:
        raise UsageError(
            "ep=NAME needs library=MODULE or FILE",
            "ep=QNN,library=onnxruntime_qnn",
            code="backend.no-library",
        )
    return place, module
