"""What tests share: one process that runs the reference, since starting one takes longer than most tests; a network."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import hypothesis
import onnx
import pytest

from fixtures import resnet50
from subgraph.runtime.reference import Reference
from tests.helpers import lent_workers
from tests.helpers.budget import (  # noqa: F401
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
from tests.helpers.process_backends import MARK, all_gone

hypothesis.settings.register_profile("busy", deadline=None)  # two workers and their runtimes share the cores
hypothesis.settings.load_profile("busy")

# Where Python is told to write no bytecode, each command and each worker would compile subcut again: 0.1 to 0.3 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="subcut-tests-")  # where converted models are kept
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# A shell that starts tests in the background has them ignore Ctrl-C, and all that they start; some send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of what this system does not have are skipped; each says why."""
    on_linux = sys.platform == "linux" and hasattr(os, "posix_fadvise")  # not so with `make test-macos-like`
    lacking = [] if on_linux else ["linux"] if sys.platform != "win32" else ["linux", "posix"]
    for item in items if lacking else ():
        for mark in filter(None, map(item.get_closest_marker, lacking)):
            item.add_marker(pytest.mark.skip(reason=str(mark.args[0])))


def pytest_collection_finish() -> None:
    """Keep what was collected out of each later pass of the garbage collector: it took 0.5 s per `gc.collect()`."""
    gc.collect()
    gc.freeze()


lent_workers.lend()
atexit.register(lent_workers.close)


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """A reference for all tests of a session; not for models that may bring it down."""
    with Reference() as shared:
        yield shared


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrow ResNet-50 with Caffe's names, on disk."""
    path = tmp_path_factory.mktemp("model") / "resnet50.onnx"
    onnx.save(resnet50.build(width=8, size=64, classes=10), path)
    return path


@pytest.fixture
def here(tmp_path: Path, resnet: Path) -> Path:
    """A folder with one model in it, where a user stands."""
    folder = tmp_path / "here"
    folder.mkdir()
    os.link(resnet, folder / "resnet50.onnx")
    return folder


@pytest.fixture(autouse=True)
def _workers() -> Iterator[None]:
    """Processes are handed on from test to test."""
    yield
    lent_workers.next_test()


@pytest.fixture
def own_workers() -> Iterator[None]:
    """For tests that are about starting processes."""
    lent_workers.lend(False)
    yield
    lent_workers.lend()


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    """An environment for commands; when the test ends, none of their processes may be alive."""
    word = uuid4().hex
    yield {MARK: word}
    all_gone(word)
