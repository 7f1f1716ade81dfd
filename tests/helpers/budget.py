"""What each test costs: seconds of CPU, of this process and of all that it started; a busy machine
stretches the clock.

Tests that have not begun by $TESTS_END_BY, in seconds since 1970, are skipped and named: CI of a
slow machine must end.

With $CPU_BUDGET, a number of seconds, a test that takes more fails the run; the ten costliest are
printed either way. The number holds where Python with onnxruntime starts in `START` seconds; a
slower or busier machine is allowed more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

BUDGET = float(os.environ.get("CPU_BUDGET", "inf"))
SHOWN = 10
START = 0.2  # seconds of CPU
TICKS = os.sysconf("SC_CLK_TCK") if sys.platform != "win32" else 1
END_BY = float(os.environ.get("TESTS_END_BY", "inf"))
NO_TIME = "no time is left: this machine is slower than TESTS_END_BY allows for"
STARTED = pytest.StashKey[float]()
_ended: list[float] = []  # used by all tests before, when the last one ended
spent: dict[str, float] = {}  # in the process that prints


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures; it begins where the last test ended."""
    item.stash[STARTED] = _ended.pop() if _ended else used()
    if time.time() > END_BY:
        pytest.skip(NO_TIME)


def used() -> float:
    """Seconds of this process, of its children that have ended, and of those that live."""
    if sys.platform == "win32":  # alone: what has ended is not counted there
        return time.process_time()
    import resource

    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both) + _living(os.getpid())


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """This thread takes less CPU time than that in this block, or so many times more as this
    machine is slower."""
    begin = time.thread_time()
    yield
    taken = time.thread_time() - begin
    assert taken < seconds or taken < seconds * slowness()


def slowness() -> float:
    """How many times longer than `START` a start takes here, at least 1."""
    before = used()
    subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True)
    return max(1.0, (used() - before) / START)


def _living(process: int) -> float:
    total = 0.0
    folder = f"/proc/{process}/task"
    try:
        tasks = os.listdir(folder)  # noqa: PTH208
    except OSError:  # it has ended, or the system has no such folder
        return total
    for task in tasks:
        try:
            for child in _read(f"{folder}/{task}/children").split():
                fields = _read(f"/proc/{int(child)}/stat").rpartition(b")")[2].split()
                total += sum(map(int, fields[11:15])) / TICKS + _living(int(child))
        except OSError:  # it has ended
            continue
    return total


def _read(path: str) -> bytes:
    """Read a short file without the objects of `open`: there are hundreds per test."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Its seconds travel with the report of its end to the process that prints."""
    report = yield
    if call.when == "teardown":
        now = used()
        _ended[:] = [now]
        report.user_properties.append(("cpu", now - item.stash.get(STARTED, now)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Kept for the summary."""
    for name, value in report.user_properties:
        if name == "cpu":
            spent[report.nodeid] = float(str(value))


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """The costliest ten; those above the budget are errors."""
    yield
    costliest = sorted(spent, key=lambda name: -spent[name])[:SHOWN]
    terminalreporter.write_line(
        f"{sum(spent.values()):.0f} s of CPU in {len(spent)} tests; the costliest:"
    )
    for name in costliest:
        terminalreporter.write_line(f"{spent[name]:7.2f} s  {name}")
    if left_out := [
        skip.nodeid
        for skip in terminalreporter.stats.get("skipped", [])
        if NO_TIME in str(skip.longrepr)
    ]:
        terminalreporter.write_line(
            "\n".join(["NOT RUN, this machine is too slow:", *left_out]), red=True
        )
    if any(spent[name] > BUDGET for name in costliest):
        budget = BUDGET * slowness()
        if over := [name for name in spent if spent[name] > budget]:
            terminalreporter.write_line(
                f"above {budget:.1f} s of CPU; mark them slow, or make them cheaper: {over}",
                red=True,
            )
            session = terminalreporter._session
            assert session
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
