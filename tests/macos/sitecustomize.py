"""Linux without what macOS lacks: `make test-macos-like` puts this folder into $PYTHONPATH, so
every Python has it.

`subgraph.system` takes the system for macOS; to psutil and the standard library it stays Linux. Not
shown here: names that differ in case only, psutil's own view of macOS, what the system says when
memory runs out.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import resource
import select
import signal
import sys
from collections.abc import Sequence
from importlib import machinery
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType
from typing import Any

LACKING: dict[ModuleType, str] = {
    os: (
        "copy_file_range eventfd memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate"
        " sched_getaffinity sched_setaffinity splice waitid"
    ),
    signal: "SIGPWR SIGPOLL SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    fcntl: "F_SETSIG F_GETSIG F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS",
    resource: "prlimit",
    select: "epoll",
}
NO_SYMBOLS = "prctl renameat2 memfd_create mallopt malloc_trim gnu_get_libc_version".split()
# setrlimit takes them, without effect
NOT_HELD = (resource.RLIMIT_DATA, resource.RLIMIT_AS, resource.RLIMIT_RSS)
OF_LINUX = (10, 15, 1031, 1032, 1033)  # F_SETSIG, F_SETOWN_EX, sizes of pipes, seals

for module, names in LACKING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


class Loader(machinery.SourceFileLoader):
    """Of `subgraph.system`: there it is darwin."""

    def get_code(self, fullname: str) -> CodeType:
        """Compiled anew: the file in `__pycache__` is that of Linux."""
        source = self.get_data(self.path).replace(b"sys.platform", b"'darwin'")
        return self.source_to_code(source, self.path)


class Finder(MetaPathFinder):
    """For `subgraph.system.posix`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> machinery.ModuleSpec | None:
        """None for all others."""
        found = (
            machinery.PathFinder.find_spec(name, path) if name == "subgraph.system.posix" else None
        )
        if found and found.origin:
            found.loader = Loader(name, found.origin)
        return found


def control(handle: Any, command: int, argument: Any = 0, _real: Any = fcntl.fcntl) -> Any:
    """`fcntl.fcntl`."""
    if command in OF_LINUX:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _real(handle, command, argument)


_kept: dict[int, tuple[int, int]] = {}


def set_limit(kind: int, limits: tuple[int, int], _real: Any = resource.setrlimit) -> None:
    """`resource.setrlimit`."""
    if kind in NOT_HELD:
        _kept[kind] = limits
    else:
        _real(kind, limits)


def get_limit(kind: int, _real: Any = resource.getrlimit) -> tuple[int, int]:
    """`resource.getrlimit`."""
    return _kept.get(kind) or _real(kind)


def hide_proc(method: str) -> None:
    """Have a method of `Path` see nothing below /proc; psutil, which stands for that of macOS,
    opens files itself."""
    real = getattr(pathlib.Path, method)

    def hidden(self: pathlib.Path, *words: Any, **more: Any) -> Any:
        if not str(self).startswith("/proc"):
            return real(self, *words, **more)
        if method in ("exists", "is_dir", "is_file"):
            return False
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    setattr(pathlib.Path, method, hidden)


def hide_symbols() -> None:
    """Have ctypes find none of Linux's functions."""
    import ctypes

    real = ctypes.CDLL.__getattr__

    def hidden(self: ctypes.CDLL, name: str) -> Any:
        if name in NO_SYMBOLS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return real(self, name)

    vars(ctypes)["CDLL"].__getattr__ = hidden


sys.meta_path.insert(0, Finder())
fcntl.fcntl = control
resource.setrlimit = set_limit
resource.getrlimit = get_limit
for each in ("open", "exists", "is_dir", "is_file", "iterdir", "read_text", "read_bytes"):
    hide_proc(each)
hide_symbols()
with contextlib.suppress(ModuleNotFoundError):
    import subgraph.system  # noqa: F401

del __file__  # this is none of the files that a candidate consists of
