"""Disks that are small or read-only, and limits on the size of files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def mount(path: Path, options: str) -> None:
    """Mount a tmpfs, or change its options; skip the test if this user cannot mount."""
    if not ROOT or not shutil.which("mount"):
        pytest.skip("only root can mount")
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("root cannot mount here")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a disk with these options, as `size=8k`, or changes its options."""
    path = tmp_path / "disk"
    path.mkdir()

    def change(options: str) -> Path:
        mount(path, f"remount,{options}" if path.is_mount() else options)
        return path

    yield change
    if path.is_mount():
        subprocess.run(["umount", path], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[Path]:
    """Make a folder that nobody can write to, root included."""
    path.mkdir()
    if not ROOT:
        path.chmod(0o555)
        yield path
        path.chmod(0o755)
        return
    mount(path, "ro")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def limit_files(size: int) -> Callable[[], None]:
    """Return a `preexec_fn` that limits the size of the files of a command, as a quota does."""
    import resource  # Windows lacks it

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def fill(path: Path) -> None:
    """Write a file that leaves no room on its disk."""
    with suppress(OSError), path.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
