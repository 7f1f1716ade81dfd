"""Releases of the runtimes that backends run: which there are, which are installed, and each in an
environment.

A backend names its runtime's package, and the first release that runs with numpy 2: `RELEASES =
"onnxruntime", "1.19"`; "" if it runs with any numpy. An environment holds only the release and
numpy. subcut lends its own copies of other packages that the worker needs, and of numpy if any
version of it works.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from subgraph import children, plugins
from subgraph.environments import emulated, installation
from subgraph.environments.installation import QUIET, Installation, make
from subgraph.errors import BackendError, UsageError
from subgraph.iterables import flatten
from subgraph.lazy import metadata
from subgraph.storage.folders import find_cache_folder
from subgraph.system import link_folder
from subgraph.types import Strings

if TYPE_CHECKING:
    from packaging.version import Version

LENT_PACKAGES = ("subgraph", "onnx")  # on any Python
# `graph.protobuf` reads models with these: for one processor.
PROTOBUF_PACKAGES = (
    "google.protobuf",
    "google._upb",
)
BUILT_PACKAGES = ("ml_dtypes", "numpy")  # for one version of Python as well
MIN_WORKER_PYTHON = (3, 11)  # Python that runs a worker
# Options of pip: without a reachable index, it fails soon.
INDEX_OPTIONS = (
    "--retries",
    "1",
    "--timeout",
    "15",
)
MAX_INDEX_SECONDS = 120  # that an index may take to reply
RELEASES_CONSTANT = "RELEASES"


def find_package(backend: str) -> tuple[str, str, Strings]:
    """Return a runtime's package, its first release that runs with numpy 2, and what it requires.

    Raises:
        UsageError: The backend names no package.
    """
    release = plugins.read_constant("backends", backend, RELEASES_CONSTANT)
    if not isinstance(release, tuple):
        backends = [
            name
            for name in plugins.list_own_names("backends")
            if plugins.read_constant("backends", name, RELEASES_CONSTANT)
        ]
        raise UsageError(
            f"the releases of {backend} are not known",
            f"those of {', '.join(backends)} are",
            code="release.unsupported",
        )
    return str(release[0]), str(release[1]), tuple(map(str, release[2:]))


def make_release(
    backend: str,
    version: str,
    sources: Sequence[str] = (),
    variant: str = "",
    more: Sequence[str] = (),
    processor: str = "",
) -> Installation:
    """Return the environment of a release; "" is the newest.

    Args:
        backend: The backend.
        version: The release.
        sources: Options for pip: the places of packages.
        variant: The package that holds another build of the runtime.
        more: Further packages that this build requires.
        processor: Another processor, as of `Installation`.

    Raises:
        UsageError: It is not a version, or the backend has no releases.
    """
    name, numpy_2, needs = find_package(backend)
    known = parse(version) if version else None
    needs = tuple(
        need.format(date=known.micro) if known else need.partition("<")[0] for need in needs
    )
    numpy: Strings = ()
    if numpy_2:
        is_older = known is not None and known < parse(numpy_2)
        numpy = ("numpy<2",) if is_older and not more else ("numpy",)
    package = variant or name
    requirement = f"{package}=={known}" if known else package
    if processor:  # what is built for this machine cannot be lent
        more = (*more, *(() if numpy else ("numpy",)), *emulated.BESIDE)
    return Installation(
        (requirement, *numpy, *needs, *more), tuple(sources), alone=True, processor=processor
    )


def parse(text: str) -> Version:
    """Parse a version.

    Raises:
        UsageError: The text is not a version.
    """
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion as e:
        raise UsageError(
            f"'{text}' is not a version",
            "a version is 1.22.1, as in ort==1.22.1 or --versions 1.19..1.22",
            code="release.malformed",
        ) from e


def find_published(backend: str, sources: Sequence[str] = (), variant: str = "") -> list[str]:
    """Return the releases on pip's indexes that have a wheel for this Python, the oldest first.

    Pre-releases are omitted.

    Args:
        backend: The backend.
        sources: Options for pip: the places of packages.
        variant: Another package that holds the runtime. "" for the backend's own package.

    Raises:
        BackendError: no index can be reached, or it has none. UsageError: the backend has no
            releases.
    """
    name = variant or find_package(backend)[0]
    if plugins.read_constant("backends", backend, "NPM"):
        return _find_published_by_npm(name)
    words = ["index", "versions", name, "--only-binary", ":all:", *QUIET, *INDEX_OPTIONS, *sources]
    # Without pip for this Python, a separate environment has one.
    pip_python = None if util.find_spec("pip") else make(Installation(("pip",), tuple(sources)))
    try:
        printed = children.run(
            [*children.make_python_command("-m", "pip", python=pip_python), *words],
            timeout=MAX_INDEX_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BackendError(
            f"pip cannot list the releases of {name}: {e}",
            "check the network",
            code="release.no-index",
        ) from e
    listed = re.search(
        r"^Available versions: (.*)$", printed.out.decode(errors="replace"), re.MULTILINE
    )
    if not listed:
        errors = re.findall(r"^ERROR.*", printed.err.decode(errors="replace"), re.MULTILINE)
        last = errors[-1] if errors else "pip found none"
        raise BackendError(
            f"no index lists the releases of {name}: {last}",
            "--index-url and --find-links name other indexes, as for pip; --versions names"
            " releases",
            code="release.no-index",
        )
    return sorted((word.strip() for word in listed[1].split(",")), key=parse)


def _find_published_by_npm(name: str) -> list[str]:
    """Return the releases that npm lists.

    Raises:
        BackendError: as `find_published`.
    """
    npm = shutil.which("npm")
    try:
        printed = children.run(
            [npm or "npm", "view", name, "versions", "--json"], timeout=MAX_INDEX_SECONDS
        )
        listed = json.loads(printed.out)
    except (OSError, subprocess.TimeoutExpired, ValueError) as e:
        raise BackendError(
            f"npm cannot list the releases of {name}",
            "--versions A,B names them",
            code="release.no-index",
        ) from e
    plain = (
        version
        for version in listed
        if isinstance(version, str) and re.fullmatch(r"[\d.]+", version)
    )
    return sorted(plain, key=parse)


def find_installed(backend: str, variant: str = "") -> list[str]:
    """Return the releases for which an environment exists already, the oldest first.

    Args:
        backend: The backend.
        variant: Another package that holds the runtime. "" for the backend's own package.

    Raises:
        UsageError: the backend has no releases.
    """
    if plugins.read_constant("backends", backend, "NPM"):
        begin = f"{find_package(backend)[0]}-"
        return sorted(
            (f.name.removeprefix(begin) for f in find_cache_folder(backend).glob(f"{begin}*")),
            key=parse,
        )
    begin = f"{variant or find_package(backend)[0]}=="
    versions = {
        word.removeprefix(begin)
        for word in flatten(
            installation.read_requirements(f)[:1] for f in installation.list_environments()
        )
        if word.startswith(begin)
    }
    return sorted(versions, key=parse)


def find_own_release(backend: str) -> str:
    """Return the release that is installed with subcut; "" without one.

    Raises:
        UsageError: the backend has no releases.
    """
    if plugins.read_constant("backends", backend, "NPM"):
        return find_package(backend)[1]
    try:
        return metadata.version(find_package(backend)[0])
    except metadata.PackageNotFoundError:
        return ""


def lend(folder: Path, python: Path) -> None:
    """Link packages for the worker into a folder for $PYTHONPATH; a missing numpy too.

    Builds for one version of Python, or for one processor, are lent only to the same.

    Raises:
        BackendError: the interpreter does not start, is too old, or has no numpy and cannot use
            this one's.
    """
    interpreter = read_interpreter(python)
    if interpreter.version < MIN_WORKER_PYTHON:
        version = ".".join(map(str, interpreter.version))
        raise BackendError(
            f"{python} is Python {version}: the worker needs 3.11 or newer",
            code="environment.old-python",
        )
    alike = interpreter.machine == platform.machine()
    same = alike and interpreter.version == sys.version_info[:2]
    if lacking := [
        name
        for name in ("numpy", *(() if alike else PROTOBUF_PACKAGES[:1]))
        if name not in interpreter.present and not same
    ]:
        package = {PROTOBUF_PACKAGES[0]: "protobuf"}.get(lacking[0], lacking[0])
        raise BackendError(
            f"{python} has no {package}",
            f"{python} -m pip install {package}",
            code="package.not-installed",
        )
    names = [name for name in LENT_PACKAGES if alike or name not in interpreter.present]
    if alike:
        names += PROTOBUF_PACKAGES
    if same:
        names += [n for n in BUILT_PACKAGES if n == "ml_dtypes" or n not in interpreter.present]
    for name in names:
        spec = util.find_spec(name)
        for place in spec.submodule_search_locations or () if spec else ():
            link = folder.joinpath(*name.split("."))
            link.parent.mkdir(parents=True, exist_ok=True)
            link_folder(link, Path(place).resolve())
            break


class Interpreter(NamedTuple):
    """A Python interpreter: its version, its processor, and the lent packages that it has."""

    version: tuple[int, int]
    machine: str
    present: frozenset[str]


@cache
def read_interpreter(python: Path) -> Interpreter:
    """Return the properties of a Python interpreter.

    Raises:
        BackendError: it does not start.
    """
    environment = python.parent.parent
    if (environment / installation.REQUIREMENTS).is_file() and not (
        python.parent / emulated.STARTED
    ).is_symlink():
        # subcut has made this environment: its interpreter need not be run.
        has_numpy = any(
            word.startswith("numpy") for word in installation.read_requirements(environment)
        )
        return Interpreter(
            sys.version_info[:2], platform.machine(), frozenset(["numpy"] if has_numpy else [])
        )
    packages = (*BUILT_PACKAGES, *LENT_PACKAGES, PROTOBUF_PACKAGES[0])
    code = (
        "import sys, platform, importlib.util as u\n"
        "def has(name):\n"
        " try: return u.find_spec(name)\n"
        " except ImportError: return None\n"
        f"print(*sys.version_info[:2], platform.machine(), *(n for n in {packages} if has(n)))"
    )
    try:
        command = children.make_python_command("-I", "-c", code, python=python)
        printed = children.run(command, timeout=MAX_INDEX_SECONDS).out.decode()
        major, minor, machine, *present = printed.split()
        return Interpreter((int(major), int(minor)), machine, frozenset(present))
    except (OSError, subprocess.TimeoutExpired, ValueError) as e:
        raise BackendError(
            f"{python} is no Python that starts",
            "python=PATH of an interpreter",
            code="environment.not-python",
        ) from e
