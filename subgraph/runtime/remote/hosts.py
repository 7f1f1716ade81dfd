"""Boards that a command reaches by name: each is lent to one run at a time, and one that does not
answer is avoided."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from subgraph.errors import UsageError
from subgraph.types import Fields, Strings

MAX_LOSSES = 2  # in a row; then a host is used only where no other is left
POLL = 0.2  # seconds between two looks whether anybody still waits

_free_again = threading.Condition()
_lent: set[str] = set()  # by all candidates of this process: a board runs one model at a time


class Hosts:
    """The hosts of one candidate. Several threads may share it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._losses: Counter[str] = Counter()

    @contextmanager
    def lease(self, tried: Collection[str], go_on: Callable[[], None]) -> Iterator[str]:
        """A host that no other run has, and that was not tried before; waits for one. `go_on`
        raises to end waiting."""
        with _free_again:
            while (host := self._free(tried)) is None:
                go_on()
                _free_again.wait(POLL)
            _lent.add(host)
        try:
            yield host
        finally:
            with _free_again:
                _lent.discard(host)
                _free_again.notify_all()

    def _free(self, tried: Collection[str]) -> str | None:
        left = [host for host in self.names if host not in tried]
        answering = [host for host in left if self._losses[host] < MAX_LOSSES] or left
        return next((host for host in answering if host not in _lent), None)

    def note(self, host: str, *, answered: bool) -> None:
        """Record the end of a run on a host."""
        self._losses[host] = 0 if answered else self._losses[host] + 1

    @property
    def none_answers(self) -> bool:
        """Whether every host was lost, each several times in a row."""
        return all(self._losses[host] >= MAX_LOSSES for host in self.names)


# ------------------------------------------------------------ the project file


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
    """The hosts of a candidate's table, whose commands are its `steps`.

    Raises:
        UsageError: they are not names, or the commands do not say where they go.
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
            "one of them says where it runs",
            code="hosts.with-executor",
        )
    return tuple(dict.fromkeys(hosts))
