"""`subcut demo`: a folder with a small model and a candidate that has a planted fault, and what to
type there.

`subcut backends`: the list of candidates.

`subcut doctor`: which backends and candidates work on this machine, and what the others lack.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from subgraph import plugins, project, system
from subgraph.commands import Result
from subgraph.commands.table import make_next
from subgraph.environments import emulated
from subgraph.errors import (
    NotInstalled,
    OutputError,
    ResultExists,
    SubcutError,
    UsageError,
    explain_os_error,
)
from subgraph.iterables import index_by_name
from subgraph.results.answer import NextCommand
from subgraph.results.commands import (
    BackendEntry,
    BackendRow,
    BackendsResult,
    DemoResult,
    DoctorResult,
)
from subgraph.runtime import candidate
from subgraph.runtime.backends import capabilities
from subgraph.runtime.devices import DEVICES
from subgraph.runtime.reference import PLAIN
from subgraph.system import WEAKER
from subgraph.text import align_columns, clean
from subgraph.types import StringMap
from subgraph.version import list_versions

IMPORT_TIMEOUT = 120.0  # seconds for a runtime to be imported
ABSENT = "not installed"  # the package
LACKS = "not here"  # the device
FAILS = "fails"  # it does not start


def doctor() -> Result:
    """Say which backends work on this machine, and what the others lack.

    Each backend is started in a separate process; devices and candidates of the project file are
    not run.

    Exit code 0: onnxruntime, which everything needs, works; 4: it does not.
    """
    with ThreadPoolExecutor(max_workers=2) as executor:
        rows = list(executor.map(_start, plugins.list_names("backends")))
    code = 0 if next(row.usable for row in rows if row.name == PLAIN) else 4
    backends = index_by_name(rows)
    rows += [
        *map(_describe_processor, emulated.PROCESSORS),
        *(describe_device(name, backends) for name in DEVICES),
    ]
    rows += _describe_candidates()
    own = list_versions()
    runtime = next(
        f"{name} {version}" for name, version in own.items() if name.startswith("onnxruntime")
    )
    lines = [
        f"python {own['python']} on {platform.system().lower()}, subcut {own['subcut']}, onnx"
        f" {own['onnx']}, {runtime}"
    ]
    lines += [f"on this system: {text}" for text in WEAKER]
    lines += align_columns([(clean(row.name), row.state, clean(row.says)) for row in rows])
    document = DoctorResult(exit_code=code, versions=own, backends=rows)
    following = make_next("try it on a model with a fault", "demo")
    return Result(document, "\n".join(lines), [following])


def _start(name: str) -> BackendRow:
    """Start a backend in a separate process."""
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
    title = f"arch={name}"
    if emulated.is_own(name):
        return BackendRow(title, True, "", "this machine's own")
    if lacks := emulated.describe_missing(name):
        return BackendRow(title, False, "", lacks, LACKS)
    return BackendRow(title, True, "", f"under {emulated.find_emulator_version(name)}")


def _describe_candidates() -> list[BackendRow]:
    """Return the candidates of the project file: do the programs exist that they name?"""
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
        lacking = []
        for command in parsed.commands if parsed.runs_commands else ():
            program = system.split(command)[0]
            place = Path(folder, program) if re.search(r"[\\/]", program) else program
            if shutil.which(place) is None:
                lacking.append(program)
        problem = f"cannot run {', '.join(lacking)}: check its path, and that it may be executed"
        says, state = (problem, FAILS) if lacking else (parsed.backend, "ok")
        rows.append(BackendRow(name, not lacking, "", says, state))
    return rows


def _describe_error(e: SubcutError) -> str:
    if e.hint in ("", "subcut doctor"):
        return e.what
    return f"{e.what} ({e.hint})"


def backends() -> Result:
    """List backends, devices and candidates of the project file."""
    settings = project.load()
    names = plugins.list_names("backends")
    rows = [
        BackendEntry(name, plugins.read_help("backends", name), "", capabilities(name).options)
        for name in names
    ]
    rows += [
        BackendEntry(name, device.help, "", device.options) for name, device in DEVICES.items()
    ]
    for name, table in settings.values.get("candidates", {}).items():
        keys = ("convert", "run", "spec") if isinstance(table, dict) else ()
        words = " ; ".join(str(table[key]) for key in keys if key in table)
        rows.append(BackendEntry(name, words, str(settings.file)))
    cells = []
    for row in rows:
        origin = f"   ({clean(row.origin)})" if row.origin else ""
        cells.append((clean(row.name), f"{clean(row.help)}{origin}"))
        own = [
            f"{name}={'|'.join(values)}" if values else name
            for name, values in row.options.items()
            if values is not None
        ]
        if own:
            cells.append(("", f"options: {', '.join(own)}"))
    last = (
        "a Python file with load(model, options) is one as well; `subcut doctor` shows what each"
        " lacks"
    )
    return Result(BackendsResult(backends=rows), "\n".join([*align_columns(cells), last]))


DEFAULT_FOLDER = "subcut-demo"
ABOUT = {
    "model.onnx": "an image classifier of 28 nodes",
    "input.npy": "what it is fed",
    "wrong.py": "the candidate: runs the model, with a planted fault",
    "subcut.toml": "settings: input.npy is the input",
}
BISECT = "subcut bisect model.onnx -c wrong.py"
REPORT = "subcut_out/bisect-wrong.py/report.html"
NEXT = {
    "subcut compare model.onnx -c wrong.py": "every tensor",
    "subcut --start stem/pad --end stem/pool": "cut the two nodes out",
    "subcut bundle subcut_out/bisect-wrong.py": "pack the finding into one zip",
}


def demo(
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help=f"The new folder; {DEFAULT_FOLDER} if not given.",
            show_default=False,
        ),
    ] = DEFAULT_FOLDER,
) -> Result:
    """Write a small model with a planted fault, to try subcut on.

    In the folder are a model, an input, and a candidate in Python that computes two of the nodes
    wrong; the text lists the next commands. The same command again restores files that are missing;
    a file that was changed stays.

    Examples:
      subcut demo d && cd d && subcut bisect model.onnx -c wrong.py
    """
    from subgraph.demo.files import make_files

    place = Path(folder)
    _write(place, make_files())
    document = DemoResult(folder=str(place), files=list(ABOUT), commands=[BISECT, *NEXT])
    lines = [
        f"{clean(folder.rstrip('/'))}/ holds",
        *_format_table(ABOUT),
        "find the wrong nodes (some seconds):",
        f"  cd {clean(system.quote(folder))}",
        f"  {BISECT}",
        f"look at the report in a browser: {REPORT}",
        "and then:",
        *_format_table(NEXT),
    ]
    following = [NextCommand("try it", shlex.split(line)) for line in document.commands]
    return Result(document, "\n".join(lines), following)


def _format_table(rows: StringMap) -> list[str]:
    return align_columns([("", word, about) for word, about in rows.items()])


def _write(place: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files that are missing.

    Raises:
        UsageError: a file is in the way. ResultExists: a folder that holds anything else, or
            changed files of the demo.
        OutputError: the folder cannot be written.
    """
    hint = "name a folder that does not exist yet: subcut demo DIR"
    what = f"cannot write the demo to {place}"
    with explain_os_error(OutputError, what, hint, code="output.unwritable"):
        if place.exists() and not place.is_dir():
            raise UsageError(
                f"the demo needs a folder, and {place} is a file", hint, code="output.not-folder"
            )
        present = [name for name in contents if (place / name).exists()]
        if changed := [name for name in present if (place / name).read_bytes() != contents[name]]:
            raise ResultExists(
                f"{place}/{changed[0]} is not the demo's, or was changed; nothing was written",
                hint,
                code="output.not-ours",
            )
        if not present and place.is_dir() and any(place.iterdir()):
            raise ResultExists(
                f"the folder {place} is not empty; nothing was written",
                hint,
                code="output.not-empty",
            )
        place.mkdir(parents=True, exist_ok=True)
        for name in contents.keys() - set(present):
            unfinished = place / f".{name}.{os.getpid()}"
            unfinished.write_bytes(contents[name])
            unfinished.rename(place / name)
