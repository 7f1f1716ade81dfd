"""Python and wheels of another processor, run by qemu: the kernels of phones and boards on any
Linux machine.

The processor's system (C library, Python) is unpacked from packages of this machine's own
distribution, which apt fetches and verifies. Nothing is installed, and their code runs only in
qemu. The cache has one such system, in which the separate interpreter of each environment starts.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from subgraph import children
from subgraph.errors import BackendError, UsageError
from subgraph.iterables import flatten
from subgraph.storage.folders import find_cache_folder
from subgraph.system import PYTHON, hardware

# By the name that wheels and kernels use: the distribution's name.
PROCESSORS = {"aarch64": "arm64"}
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libgomp1")
# Packages that the worker imports in addition to a runtime and numpy.
BESIDE = (
    "ml_dtypes",
    "protobuf",
)
# Minor versions of the C libraries that wheels are built for.
GLIBC = (17, 24, 26, 27, 28, 31, 34, 35, 38, 39)
MAX_VERSION_SECONDS = 60  # that the emulator may take to print its version
MIN_QEMU_MAJOR = 10  # major version of qemu: older ones crash in newer kernels
HINT = (
    f"qemu {MIN_QEMU_MAJOR} (Debian 13's, or that of bookworm-backports) runs what older ones"
    " crash in, onnxruntime 1.28 for one"
)
UNFETCHED = "apt fetches its C library and Python from the servers in /etc/apt: check the network"
STARTED = "emulated"  # next to PYTHON: the interpreter that qemu runs

Run = Callable[[Sequence[str]], object]


def find_processor(word: str) -> str:
    """Return the processor that a word names; "" for that of this machine.

    Raises:
        UsageError: no such processor is known.
    """
    for processor, of_distribution in PROCESSORS.items():
        if word in (processor, of_distribution):
            return "" if is_own(processor) else processor
    raise UsageError(
        f"arch={word} is not a processor that runs here",
        f"one of {', '.join(PROCESSORS)}",
        code="environment.unknown-processor",
    )


def is_own(processor: str) -> bool:
    """Return whether it is the processor of this machine."""
    return platform.machine().lower() in (processor, PROCESSORS[processor])


def find_qemu(processor: str) -> str:
    """Return the emulator's program; "" if it is not installed."""
    return next(filter(None, map(shutil.which, _list_programs(processor))), "")


def _list_programs(processor: str) -> list[str]:
    return [f"qemu-{processor}-static", f"qemu-{processor}"]


@cache
def find_emulator_version(processor: str) -> str:
    """Return the emulator, with its version: `qemu 7.2.22 (older than 10: newer kernels may crash
    in it)`; "" without one."""
    if not find_qemu(processor):
        return ""
    printed = children.run(
        [find_qemu(processor), "--version"], timeout=MAX_VERSION_SECONDS
    ).out.decode(errors="replace")
    version = re.search(r"version ((\d+)[\d.]*)", printed)
    if not version:
        return "qemu"
    is_old = int(version[2]) < MIN_QEMU_MAJOR
    old = f" (older than {MIN_QEMU_MAJOR}: newer kernels may crash in it)" if is_old else ""
    return f"qemu {version[1]}{old}"


def describe_missing(processor: str) -> str:
    """Name the parts that this machine lacks, in a line; "" if none."""
    if lacks := hardware.name_missing_system("Linux", "qemu for single programs"):
        return f"{processor} {lacks}"
    if not find_qemu(processor):
        return f"{processor} needs qemu: `apt install qemu-user-static`"
    if not (find_system(processor) / "usr").is_dir() and not (
        shutil.which("apt-get") and shutil.which("dpkg-deb")
    ):
        return (
            f"{processor} needs apt-get and dpkg-deb, which fetch and unpack its C library and"
            " Python"
        )
    return ""


def find_system(processor: str) -> Path:
    """Return the folder of the processor's system, which may not exist yet."""
    return find_cache_folder("processors") / processor


def make_system(processor: str, folder: Path, run: Run) -> None:
    """Unpack the processor's system into a folder; `run` runs each command line.

    Raises:
        BackendError: the distribution has no packages for the processor.
    """
    fetched = folder / "fetched"
    for name in ("lists/partial", "archives/partial"):
        (fetched / name).mkdir(parents=True)
    (fetched / "status").touch()  # nothing is installed, so that all is fetched
    settings = {
        "APT::Architecture": PROCESSORS[processor],
        "APT::Architectures": PROCESSORS[processor],
        "APT::Sandbox::User": "root",  # where root fetches: another user cannot write here
        "Dir::State": fetched,
        "Dir::State::status": fetched / "status",
        "Dir::Cache": fetched,
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "-q", *flatten(("-o", f"{key}={value}") for key, value in settings.items())]
    run([*apt, "update"])
    run([*apt, *"install --download-only --yes --no-install-recommends".split(), *PACKAGES])
    packages = sorted((fetched / "archives").glob("*.deb"))
    if not packages:
        raise BackendError(
            f"apt has no packages for {PROCESSORS[processor]} where it looks",
            "name a source that has them in /etc/apt/sources.list.d",
            code="environment.no-packages",
        )
    for package in packages:
        run(["dpkg-deb", "-x", str(package), str(folder)])
    shutil.rmtree(fetched)


def find_python_version(processor: str) -> str:
    """Return the version of the processor's Python: `3.11`.

    Raises:
        BackendError: its system is damaged.
    """
    for file in (find_system(processor) / "usr" / "bin").glob("python3.*"):
        if re.fullmatch(r"3\.\d+", version := file.name.removeprefix("python")):
            return version
    raise _make_damaged_error(processor)


def _make_damaged_error(processor: str) -> BackendError:
    return BackendError(
        f"{find_system(processor)} is damaged",
        "remove that folder: it is created again",
        code="environment.damaged",
    )


def choose_wheels(processor: str) -> list[str]:
    """Return options for pip that choose the wheels that the system's C library can load.

    Raises:
        BackendError: its system is damaged.
    """
    library = next(
        flatten(find_system(processor).glob(f"{lib}/*/libc.so.6") for lib in ("lib", "usr/lib")),
        None,
    )
    version = re.search(rb"release version 2\.(\d+)", library.read_bytes()) if library else None
    if not version:
        raise _make_damaged_error(processor)
    names = ("2014", *(f"_2_{minor}" for minor in GLIBC if minor <= int(version[1])))
    platforms = flatten(("--platform", f"manylinux{n}_{processor}") for n in names)
    return [
        "--python-version",
        find_python_version(processor),
        "--implementation",
        "cp",
        *platforms,
    ]


def make_prefix(interpreter: Path) -> list[str]:
    """Return the words before another program of the processor whose interpreter runs this; empty
    for this machine's."""
    if interpreter.name != STARTED:
        return []
    processor = platform.machine()
    return [find_qemu(processor), "-L", str(find_system(processor))]


def write_interpreter(processor: str, work: Path, folder: Path) -> None:
    """Write an interpreter into an environment in `work`, which is renamed to `folder` later.

    It is a virtual environment of the processor's Python, with a script instead of its interpreter.
    """
    system = find_system(processor)
    original = system / "usr" / "bin" / f"python{find_python_version(processor)}"
    (work / "pyvenv.cfg").write_text(
        f"home = {original.parent}\ninclude-system-site-packages = false\n"
    )
    script = work / PYTHON
    script.parent.mkdir(parents=True, exist_ok=True)
    (script.parent / STARTED).symlink_to(original)
    # Another one may be installed later.
    program = " || ".join(f"command -v {name}" for name in _list_programs(processor))
    started = shlex.join(["-L", str(system), str(folder / Path(PYTHON).parent / STARTED)])
    script.write_text(f'#!/bin/sh\nexec "$({program})" {started} "$@"\n')
    script.chmod(0o755)


def find_packages_folder(processor: str, work: Path) -> Path:
    """Return the folder of an environment's packages."""
    return work / "lib" / f"python{find_python_version(processor)}" / "site-packages"
