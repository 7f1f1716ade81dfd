"""Which onnxruntime runs: builds for other hardware are packages of other names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from subgraph.version import list_versions

Installed = Callable[[Mapping[str, str]], None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Packages of the module onnxruntime, by version, and nothing else; the last one lies over the
    others."""

    def install(packages: Mapping[str, str]) -> None:
        (tmp_path / "onnxruntime").mkdir()
        for name, version in {**packages, "onnx": "1", "numpy": "2"}.items():
            info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            if name in packages:
                (info / "top_level.txt").write_text("onnxruntime\n")
                (tmp_path / "onnxruntime/__init__.py").write_text(f'__version__ = "{version}"\n')
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)

    return install


@pytest.mark.parametrize(
    ("packages", "ran"),
    [
        ({"onnxruntime": "1.31.1"}, ("onnxruntime", "1.31.1")),
        # it was an internal error
        ({"onnxruntime-webgpu": "1.27.0"}, ("onnxruntime-webgpu", "1.27.0")),
        ({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.27.0"}, ("onnxruntime-gpu", "1.27.0")),
        ({"onnxruntime": "1.31.1.dev7"}, ("onnxruntime", "1.31.1.dev7")),
    ],
)
def test_the_package_that_runs_is_named(
    packages: dict[str, str], ran: tuple[str, str], installed: Installed
) -> None:
    installed(packages)
    found = list_versions()
    assert {n: v for n, v in found.items() if n.startswith("onnxruntime")} == dict([ran])
