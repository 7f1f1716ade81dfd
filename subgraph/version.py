"""The version of subcut, and of the packages that take part."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from subgraph.lazy import metadata

__version__ = "0.1.0"


def list_versions() -> dict[str, str]:
    """Return the versions of subcut, Python and the packages that take part, without importing
    them."""
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
    """Return the command that installs what an extra of subcut needs: `pip install
    'openvino>=2026.4,<2027'`.

    By the packages' own names: subcut is in no index, so `pip install 'subcut[openvino]'` would not
    find it.
    """
    try:
        known = [line.partition(";") for line in metadata.requires("subcut") or ()]
    except metadata.PackageNotFoundError:  # run from a clone that is not installed
        known = []
    names = [
        name.strip() for name, _, where in known if f'extra == "{extra}"' in where.replace("'", '"')
    ]
    return f"pip install {shlex.join(names or [extra])}"


def _find_onnxruntime() -> tuple[str, str]:
    """Return the package of onnxruntime that runs, and its version according to the module.

    Builds for other hardware are packages of other names with the same module, and may overwrite
    the plain one.
    """
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise metadata.PackageNotFoundError("onnxruntime")
    said = re.search(
        r"^__version__ = [\"'](.+)[\"']",
        Path(spec.origin).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    try:
        plain = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        plain = ""
    release = said[1] if said else plain
    if release == plain:
        return "onnxruntime", plain
    # Reads the files of all packages.
    names = metadata.packages_distributions().get("onnxruntime", ())
    return next(
        (name for name in names if metadata.version(name) == release), "onnxruntime"
    ), release
