"""The version of subcut, and of the packages that it uses."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from subgraph.lazy import metadata

__version__ = "0.1.0"


def list_versions() -> dict[str, str]:
    """Return the versions of subcut, Python and the packages that it uses; import no package."""
    python = ".".join(map(str, sys.version_info[:3]))
    package, release = _find_onnxruntime()
    return {
        "subcut": __version__,
        "python": python,
        "onnx": metadata.version("onnx"),
        package: release,
        "numpy": metadata.version("numpy"),
    }


def make_install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra of subcut, for example
    `pip install 'openvino>=2026.4,<2027'`.

    The command names the packages themselves. No index has subcut, so pip cannot find
    `subcut[openvino]`.
    """
    try:
        requirements = [line.partition(";") for line in metadata.requires("subcut") or ()]
    except metadata.PackageNotFoundError:  # run from a clone that is not installed
        requirements = []
    names = [
        name.strip()
        for name, _, condition in requirements
        if f'extra == "{extra}"' in condition.replace("'", '"')
    ]
    return f"pip install {shlex.join(names or [extra])}"


def _find_onnxruntime() -> tuple[str, str]:
    """Return the name of the package that the module onnxruntime is from, and the module's version.

    Packages for other hardware have other names and the same module. They may overwrite the module
    of the package `onnxruntime`.
    """
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise metadata.PackageNotFoundError("onnxruntime")
    stated = re.search(
        r"^__version__ = [\"'](.+)[\"']",
        Path(spec.origin).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    try:
        plain = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        plain = ""
    release = stated[1] if stated else plain
    if release == plain:
        return "onnxruntime", plain
    # Reads the files of all packages.
    names = metadata.packages_distributions().get("onnxruntime", ())
    return next(
        (name for name in names if metadata.version(name) == release), "onnxruntime"
    ), release
