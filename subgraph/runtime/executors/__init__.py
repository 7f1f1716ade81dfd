"""One file per kind of cluster: `--executor NAME://ADDRESS`. Its name is the word before `://`.

To add one, write a file here (a package names it under the entry point `subcut.executors`). It
needs one function:

    connect(address: str, resources: Mapping[str, float]) -> concurrent.futures.Executor

which raises `BackendError` if nobody answers, or if nobody has what one task needs. Optional:

    slots(executor)               how many tasks run at once: the default of `--jobs`
    alive(executor)               False once it takes no task and returns no result
    end(executor, call, token)    calls `call(token)` in every worker's process, without waiting

`--executor MODULE:FUNCTION` or `FILE.py:FUNCTION` needs no file here: the function returns any
Executor.
"""

from __future__ import annotations

import atexit
import importlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

from subgraph import plugins
from subgraph.errors import BackendError, UsageError
from subgraph.types import Fields, Strings, frozen

LAST_SECONDS = 5.0
Resources: TypeAlias = Mapping[str, float]  # amounts by name, of a worker


@frozen
class Connection:
    """An executor that is connected, and its plug-in in this folder."""

    spec: str
    executor: Executor
    plugin: ModuleType | None = None

    @property
    def slots(self) -> int:
        """Number of tasks that it runs at once, as far as it is known; at least 1."""
        return max(1, int(self._ask("slots", getattr(self.executor, "_max_workers", 1))))

    @property
    def alive(self) -> bool:
        """Whether a task that it has may still end, as far as it is known."""
        return bool(self._ask("alive", True))

    def end(self, call: Callable[[str], None], token: str) -> None:
        """Call `call(token)` in every worker's process, if the executor can do that."""
        self._ask("end", None, call, token)

    def _ask(self, name: str, default: Any, *words: object) -> Any:
        function = getattr(self.plugin, name, None)
        if function:
            return function(self.executor, *words)
        return default


_connected: dict[tuple[object, ...], Connection] = {}
_lock = threading.RLock()


def check(spec: str) -> str:
    """Return the SPEC of an executor; "" for this machine.

    Raises:
        UsageError: It is malformed.
        UnknownName: There is no such plug-in.
    """
    scheme, sep, address = spec.partition("://")
    module, _, function = spec.rpartition(":")
    if not spec:
        return spec
    if sep and address and not scheme.endswith(".py"):  # loading a file would run it
        plugins.load("executors", scheme)
    elif sep or not module or not function.isidentifier():
        raise UsageError(
            f"--executor {spec} does not name an executor",
            "dask://HOST:8786, or MODULE:FUNCTION",
            code="executor.malformed",
        )
    return spec


def parse_resources(where: str, table: Fields) -> dict[str, float]:
    """Return the resources that each run takes of a worker, by name.

    Raises:
        UsageError: one is not a number above 0.
    """
    for name, count in table.items():
        if type(count) not in (int, float) or not count > 0:
            raise UsageError(
                f"{where}: resources: {name} must be a number above 0",
                "resources = { npu = 1 }",
                code="executor.wrong-resources",
            )
    return {name: float(count) for name, count in table.items()}


def parse_hosts(where: str, table: Fields, steps: Sequence[str]) -> Strings:
    """Return the hosts of a candidate's table, whose commands are its `steps`.

    Raises:
        UsageError: They are not names, or the commands have no place for them.
    """
    hosts = table.get("hosts", [])
    commands = " ".join(str(table.get(step, "")) for step in steps)
    if not all(
        isinstance(host, str) and re.fullmatch(r"[\w.:@%\[\]][\w.:@%\[\]-]*", host)
        for host in hosts
    ):
        raise UsageError(
            f"{where}: hosts must be names, not {hosts!r}",
            'hosts = ["board1", "board2"]',
            code="hosts.wrong-value",
        )
    if bool(hosts) != ("{host}" in commands):
        raise UsageError(
            f"{where}: hosts and {{host}} go together",
            'run = "./run.sh {host} {model} …", hosts = ["b1"]',
            code="hosts.no-place",
        )
    if hosts and table.get("executor"):
        raise UsageError(
            f"{where} has hosts and an executor",
            "keep one of them",
            code="hosts.with-executor",
        )
    return tuple(dict.fromkeys(hosts))


def connect(spec: str, resources: Resources) -> Connection:
    """Return the only executor of a SPEC, which ends with this process.

    Raises:
        BackendError: It is not reached, or cannot be made.
    """
    key = spec, *sorted(resources.items())
    with _lock:
        if key not in _connected:
            scheme, is_plugin, address = spec.partition("://")
            plugin = plugins.load("executors", scheme) if is_plugin else None
            executor = plugin.connect(address, resources) if plugin else _call_function(spec)
            _connected[key] = Connection(spec, executor, plugin)
            if len(_connected) == 1:
                # It does not wait, because Python 3.12 starts no thread when it ends.
                atexit.register(close, wait=False)
        return _connected[key]


def forget(connection: Connection) -> None:
    """Forget an executor, so that `connect` makes a new one of its SPEC."""
    with _lock:
        for key in [key for key, known in _connected.items() if known.spec == connection.spec]:
            del _connected[key]


def _call_function(spec: str) -> Executor:
    place, _, name = spec.rpartition(":")
    load = partial(plugins.load, "executors") if place.endswith(".py") else importlib.import_module
    try:
        executor = getattr(load(place), name)()
    except UsageError:
        raise
    except Exception as e:  # whatever a module or a function of the user's raises
        why = f"{type(e).__name__}: {e}"
        raise BackendError(
            f"--executor {spec}: {why}",
            "a function that returns an Executor",
            code="executor.failed",
        ) from e
    if not isinstance(executor, Executor):
        raise BackendError(
            f"--executor {spec} gave {type(executor).__name__}",
            "a function that returns a concurrent.futures.Executor",
            code="executor.wrong-return",
        )
    return executor


def close(*, wait: bool = True) -> None:
    """Shut down all executors, whose processes would outlive this one.

    `wait`: for each of them, at most `LAST_SECONDS`.
    """

    def shut_down(executor: Executor) -> None:
        with suppress(Exception):  # it may be gone already
            executor.shutdown(wait=wait, cancel_futures=True)

    closing = []
    for connection in _connected.values():
        if not wait:
            shut_down(connection.executor)
            continue
        arguments = (connection.executor,)
        closing.append(threading.Thread(target=shut_down, args=arguments, daemon=True))
        closing[-1].start()
    for thread in closing:
        thread.join(LAST_SECONDS)
