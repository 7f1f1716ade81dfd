"""`subcut backends`: the list of candidates.

`subcut doctor`: which backends and candidates work on this machine, and what the others lack."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from subgraph import plugins, project, system
from subgraph.commands import Result
from subgraph.documents import to_json
from subgraph.environments import emulated
from subgraph.errors import NotInstalled, SubcutError
from subgraph.results.commands import BackendEntry, BackendRow, BackendsResult, DoctorResult
from subgraph.runtime import candidate
from subgraph.runtime.backends import Options, capabilities
from subgraph.runtime.devices import DEVICES
from subgraph.runtime.reference import PLAIN
from subgraph.system import WEAKER
from subgraph.text import clean
from subgraph.version import versions

IMPORT_TIMEOUT = 120.0  # seconds for a runtime to be imported
ABSENT = "not installed"  # the package
LACKS = "not here"  # the device
FAILS = "fails"  # it does not start


def doctor() -> Result:
    """Say which backends work on this machine, and what the others lack.

    Each backend is started in a process of its own; devices and candidates of the project file are
    not run.

    Exit code 0: onnxruntime, which everything needs, works; 4: it does not.
    """
    with ThreadPoolExecutor(max_workers=2) as executor:
        rows = list(executor.map(_start, plugins.names("backends")))
    code = 0 if next(row.usable for row in rows if row.name == PLAIN) else 4
    backends = {row.name: row for row in rows}
    rows += [
        *map(_describe_processor, emulated.PROCESSORS),
        *(describe_device(name, backends) for name in DEVICES),
    ]
    rows += _describe_candidates()
    own = versions()
    runtime = next(
        f"{name} {version}" for name, version in own.items() if name.startswith("onnxruntime")
    )
    width = max(len(clean(row.name)) for row in rows)
    states = max(len(row.state) for row in rows)
    lines = [
        f"python {own['python']} on {platform.system().lower()}, subcut {own['subcut']}, onnx"
        f" {own['onnx']}, {runtime}"
    ]
    lines += [f"on this system: {text}" for text in WEAKER]
    lines += [
        f"{clean(r.name):<{width}}  {r.state:<{states}}  {clean(r.says)}".rstrip() for r in rows
    ]
    document = DoctorResult(exit_code=code, versions=own, backends=rows)
    return Result(to_json(document), "\n".join(lines), code)


def _start(name: str) -> BackendRow:
    """Start a backend in a process of its own."""
    from subgraph.runtime.worker import Worker

    try:
        with Worker(name, timeout=IMPORT_TIMEOUT) as worker:
            about = worker.about({})
    except SubcutError as e:
        return BackendRow(
            name, False, "", _describe_error(e), ABSENT if isinstance(e, NotInstalled) else FAILS
        )
    return BackendRow(
        name, True, about.version, "   ".join(filter(None, (about.version, about.caveat)))
    )


def describe_device(name: str, backends: Mapping[str, BackendRow]) -> BackendRow:
    """Describe the parts that a device lacks here; nothing is installed, nor started."""
    found = DEVICES[name]
    environment = candidate.parse(name).installation
    if lacks := found.missing():
        return BackendRow(name, False, "", lacks, LACKS)
    package = environment.requirements[0] if environment else found.spec.partition(":")[0]
    if environment is None and package in backends and not backends[package].usable:
        return replace(backends[package], name=name)
    ready = environment is None or environment.is_ready
    said = f"by {package}" if ready else f"{package} is installed when it is first used"
    instead = found.emulated()
    return BackendRow(name, True, "", f"{said}; {instead} answers for it" if instead else said)


def _describe_processor(name: str) -> BackendRow:
    """Describe the parts that this machine lacks for the kernels of another processor,
    `arch=NAME`."""
    if lacks := "" if emulated.is_own(name) else emulated.missing(name):
        return BackendRow(f"arch={name}", False, "", lacks, LACKS)
    says = "this machine's own" if emulated.is_own(name) else f"under {emulated.version(name)}"
    return BackendRow(f"arch={name}", True, "", says)


def _describe_candidates() -> list[BackendRow]:
    """The candidates of the project file: do the programs exist that they name?"""
    try:
        settings = project.load()
    except SubcutError as e:
        return [BackendRow("project file", False, "", _describe_error(e), FAILS)]
    rows = []
    for name in settings.values.get("candidates", {}):
        try:
            parsed = candidate.parse(name, settings)
        except SubcutError as e:
            rows.append(BackendRow(name, False, "", _describe_error(e), FAILS))
            continue
        folder = str(parsed.options.get("folder", ""))
        programs = (
            [system.split(command)[0] for command in parsed.commands]
            if parsed.runs_commands
            else []
        )
        lacking = []
        for program in programs:
            place = Path(folder, program) if re.search(r"[\\/]", program) else program
            if shutil.which(place) is None:
                lacking.append(program)
        problem = f"cannot run {', '.join(lacking)}: check its path, and that it may be executed"
        says, state = (problem, FAILS) if lacking else (parsed.backend, "ok")
        rows.append(BackendRow(name, not lacking, "", says, state))
    return rows


def _describe_error(e: SubcutError) -> str:
    return e.what if e.hint in ("", "subcut doctor") else f"{e.what} ({e.hint})"


def backends() -> Result:
    """List backends, devices and candidates of the project file."""
    settings = project.load()
    names = plugins.names("backends")
    rows = [
        *(
            _row(name, plugins.help_of("backends", name), capabilities(name).options)
            for name in names
        ),
        *(_row(name, device.help, device.options) for name, device in DEVICES.items()),
    ]
    for name, table in settings.values.get("candidates", {}).items():
        words = (
            [str(table[k]) for k in ("convert", "run", "spec") if k in table]
            if isinstance(table, dict)
            else []
        )
        rows.append(BackendEntry(name, " ; ".join(words), str(settings.file)))
    width = max(len(clean(r.name)) for r in rows)
    lines = []
    for row in rows:
        origin = f"   ({clean(row.origin)})" if row.origin else ""
        lines.append(f"{clean(row.name):<{width}}  {clean(row.help)}{origin}")
        own = {name: values for name, values in row.options.items() if values is not None}
        if own:
            words = [
                f"{name}={'|'.join(values)}" if values else name for name, values in own.items()
            ]
            lines.append(f"{'':<{width}}  options: {', '.join(words)}")
    lines.append(
        "a Python file with load(model, options) is one as well; `subcut doctor` says what each"
        " lacks"
    )
    return Result(to_json(BackendsResult(backends=rows)), "\n".join(lines))


def _row(name: str, about: str, options: Options) -> BackendEntry:
    return BackendEntry(name, about, "", options)
