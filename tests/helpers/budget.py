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
from pathlib import Path

import pytest

BUDGET = float(os.environ.get("CPU_BUDGET", "inf"))
SHOWN = 10
START = 0.2  # seconds of CPU
TICKS = os.sysconf("SC_CLK_TCK") if sys.platform != "win32" else 1
END_BY = float(os.environ.get("TESTS_END_BY", "inf"))
NO_TIME = "no time is left: this machine is slower than TESTS_END_BY allows for"
STARTED = pytest.StashKey[float]()
spent: dict[str, float] = {}  # in the process that prints


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures."""
    item.stash[STARTED] = used()
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
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / TICKS + _living(int(child))
        except OSError:  # it has ended
            continue
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Its seconds travel with the report of its end to the process that prints."""
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu", used() - item.stash.get(STARTED, used())))
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
