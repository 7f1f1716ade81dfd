"""What hardware a machine shows, with files in the place of its own. Covers `system.hardware`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from subgraph.system import hardware
from tests.helpers.facts import has_line

linux = pytest.mark.skipif(sys.platform != "linux", reason="what other systems show is not known")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any device, in a folder."""
    monkeypatch.setattr(hardware, "NVIDIA", (str(tmp_path / "nvidia"),))
    monkeypatch.setattr(hardware, "CARDS", tmp_path / "drm")
    monkeypatch.setattr(hardware, "RENDERERS", tmp_path / "dri")
    monkeypatch.setattr(hardware, "ACCELERATORS", tmp_path / "accel")
    monkeypatch.setattr("shutil.which", lambda _: None)
    return tmp_path


@linux
def test_machine_without_devices_lacks_each(bare: Path) -> None:
    assert has_line(hardware.name_missing_nvidia_gpu(), "NVIDIA GPU")
    assert has_line(hardware.name_missing_gpu("Intel", hardware.INTEL), "GPU of Intel")
    assert has_line(hardware.name_missing_npu("Intel"), "NPU of Intel")
    assert not hardware.has_gpu()


@linux
def test_machine_with_devices_lacks_none(bare: Path) -> None:
    (bare / "nvidia").touch()
    assert hardware.has_gpu()
    (bare / "dri").mkdir()
    (bare / "dri" / "renderD128").touch()
    (bare / "accel").mkdir()
    (bare / "drm" / "card0" / "device").mkdir(parents=True)
    (bare / "drm" / "card0" / "device" / "vendor").write_text("0x8086\n")
    assert hardware.name_missing_nvidia_gpu() == ""
    assert hardware.name_missing_gpu("Intel", hardware.INTEL) == ""
    assert has_line(hardware.name_missing_gpu("AMD", "0x1002"), "GPU of AMD")
    assert hardware.name_missing_npu("Intel") == ""


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert has_line(hardware.name_missing_system("Darwin", "CoreML"), "macOS", "CoreML")
    assert hardware.name_missing_system("Linux", "x") == ""
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    assert hardware.is_x86()


def test_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_text("no library")
    with pytest.raises(OSError, match=r"lib|193"):  # Windows says ERROR_BAD_EXE_FORMAT alone
        hardware.load_library(tmp_path / "lib.so")
