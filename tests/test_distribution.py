"""What `make dist` packs: the package, with its data, and nothing else.

The version is in one place. What `make docs` installs.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from flit_core.common import Module
from flit_core.sdist import SdistBuilder

from fixtures import ROOT
from tests.helpers.facts import has_line


def test_the_package_is_packed_with_its_data_and_nothing_else() -> None:
    packed = {Path(f).relative_to(ROOT).as_posix() for f in Module("subgraph", ROOT).iter_files()}
    some = (
        "__main__.py py.typed demo/wrong.py view/static/view.js "
        "inspection/known/tract/lstm-direction-reverse.toml SKILL.md"
    ).split()
    assert {f"subgraph/{f}" for f in some} <= packed
    kinds = {Path(name).suffix for name in packed}
    assert kinds == {".py", ".typed", ".js", ".css", ".html", ".svg", ".jinja", ".toml", ".md"}


def test_the_sdist_is_the_package_and_what_tells_of_it() -> None:
    builder = SdistBuilder.from_ini_path(ROOT / "pyproject.toml")
    files = builder.apply_includes_excludes(builder.select_files())
    outside = {str(f) for f in files if Path(f).parts[0] != "subgraph"}
    assert outside == {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"] and "version" not in project


def would_run(target: str) -> str:
    """What `make` would run for a target of which nothing is there."""
    words = ["make", "--dry-run", "--always-make", "--directory", str(ROOT), target]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not shutil.which("make"), reason="make is missing")
def test_the_wheel_is_tried_without_the_tools_that_packed_it() -> None:
    """twine brings rich and packaging: beside it a wheel that does not ask for them would run."""
    installed = [line.split() for line in would_run("dist").splitlines() if "pip install" in line]
    tools, clean = ({*words} for words in installed)
    assert "twine" in tools and "dist/*.whl" in clean and "twine" not in clean
    assert not any("requirements.lock" in words for words in installed)


@pytest.mark.skipif(not shutil.which("make"), reason="make is missing")
def test_the_site_needs_no_tools_of_development() -> None:
    commands = would_run("docs")
    assert (
        has_line(commands, "-r", "docs/requirements.lock")
        and "-r requirements.lock" not in commands
    )
    lock = (ROOT / "docs" / "requirements.lock").read_text(encoding="utf-8")
    assert (
        "sphinx==" in lock
        and "typer==" in lock
        and "pytest==" not in lock
        and "openvino==" not in lock
    )
