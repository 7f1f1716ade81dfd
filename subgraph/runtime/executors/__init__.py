"""One file per kind of cluster: `--executor NAME://ADDRESS`. Its name is the word before `://`.

To add one, write a file here (a package names it under the entry point `subcut.executors`). It needs one function:

    connect(address: str, resources: Mapping[str, float]) -> concurrent.futures.Executor

which raises `BackendError` if nobody answers, or if nobody has what one task needs. Optional:

    slots(executor)               how many tasks run at once: the default of `--jobs`
    alive(executor)               False once it takes and gives nothing any more
    end(executor, call, token)    calls `call(token)` in every worker's process, without waiting

`--executor MODULE:FUNCTION` or `FILE.py:FUNCTION` needs no file here: the function returns any Executor.
"""

from __future__ import annotations

import atexit
import importlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from types import ModuleType

from subgraph import plugins
from subgraph.errors import BackendError, UsageError
from subgraph.text import clean

LAST_SECONDS = 5.0

_connected: dict[str, Executor] = {}
_lock = threading.RLock()


def check(spec: str) -> str:
    """The SPEC; "" stays: this machine.

    Raises:
        UsageError, UnknownName: it is none.
    """
    scheme, sep, address = spec.partition("://")
    if not spec:
        return spec
    if sep and address:
        plugins.load("executors", scheme)
    elif sep or not spec.rpartition(":")[0] or not spec.rpartition(":")[2].isidentifier():
        raise UsageError(f"--executor {clean(spec)}: which executor?", "dask://HOST:8786, or MODULE:FUNCTION")
    return spec


def connected(spec: str, resources: Mapping[str, float]) -> Executor:
    """The executor of a SPEC, the same for all who ask; it ends with this process.

    Raises:
        BackendError: it is not reached, or cannot be made.
    """
    key = f"{spec} {sorted(resources.items())}"
    with _lock:
        if key not in _connected:
            plugin = _plugin(spec)
            if plugin:
                _connected[key] = plugin.connect(spec.partition("://")[2], resources)
            else:
                _connected[key] = _made(spec)
            if len(_connected) == 1:
                atexit.register(close)
        return _connected[key]


def forget(spec: str) -> None:
    """The next who asks for this SPEC gets a new executor."""
    with _lock:
        for key in [key for key in _connected if key.split(" ")[0] == spec]:
            del _connected[key]


def slots(spec: str, resources: Mapping[str, float]) -> int:
    """How many tasks the executor of a SPEC runs at once, as far as it says; at least 1.

    Raises: as `connected`.
    """
    executor = connected(spec, resources)
    plugin = _plugin(spec)
    if plugin and hasattr(plugin, "slots"):
        return max(1, int(plugin.slots(executor)))
    return max(1, int(getattr(executor, "_max_workers", 1)))


def alive(spec: str, executor: Executor) -> bool:
    """May a task that was given to it still end, as far as it says?"""
    plugin = _plugin(spec)
    return bool(plugin.alive(executor)) if plugin and hasattr(plugin, "alive") else True


def end(spec: str, executor: Executor, call: Callable[[str], None], token: str) -> None:
    """Call `call(token)` in every worker's process, where the executor can do that."""
    plugin = _plugin(spec)
    if plugin and hasattr(plugin, "end"):
        plugin.end(executor, call, token)


def _plugin(spec: str) -> ModuleType | None:
    scheme, sep, _ = spec.partition("://")
    return plugins.load("executors", scheme) if sep else None


def _made(spec: str) -> Executor:
    place, _, name = spec.rpartition(":")
    try:
        module = plugins.load("executors", place) if place.endswith(".py") else importlib.import_module(place)
        executor = getattr(module, name)()
    except UsageError:
        raise
    except Exception as e:  # whatever a module or a function of the user's raises
        why = f"{type(e).__name__}: {e}"
        raise BackendError(f"--executor {clean(spec)}: {clean(why)}", "a function that returns an Executor") from e
    if not isinstance(executor, Executor):
        what = f"--executor {clean(spec)} gave {type(executor).__name__}"
        raise BackendError(what, "a function that returns a concurrent.futures.Executor")
    return executor


def close() -> None:
    """Shut all of them down, as far as they do that in `LAST_SECONDS`; their processes would outlive this one."""
    closing = [threading.Thread(target=_shut_down, args=(e,), daemon=True) for e in _connected.values()]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(LAST_SECONDS)


def _shut_down(executor: Executor) -> None:
    with suppress(Exception):  # it may be gone already
        executor.shutdown(wait=True, cancel_futures=True)
