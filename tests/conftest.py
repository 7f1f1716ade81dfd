"""What tests share: one process that runs the reference, since starting one takes longer than most
tests; a network."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from uuid import uuid4

import hypothesis
import numpy as np
import onnx
import pytest

from fixtures import ROOT, resnet50
from subgraph.questions.sweep import operator_tests as operator_tests_module
from subgraph.runtime.reference import Reference
from subgraph.storage import store, tensors
from subgraph.storage.digest import digest, digest_file
from subgraph.system import Lock
from tests.helpers import lent_workers
from tests.helpers.budget import (
    pytest_runtest_logreport,  # noqa: F401
    pytest_runtest_makereport,  # noqa: F401
    pytest_runtest_setup,  # noqa: F401
    pytest_terminal_summary,  # noqa: F401
)
from tests.helpers.disks import disk  # noqa: F401
from tests.helpers.process_backends import MARK, all_gone
from tests.helpers.run_command import subcut
from tests.helpers.turns import takes_its_turn
from tests.helpers.web_runtime import borrow_release

# two workers and their runtimes share the cores
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

# Where Python is told to write no bytecode, each command and each worker would compile subcut
# again: 0.1 to 0.3 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# where converted models are kept
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="subcut-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
borrow_release()

# A shell that starts tests in the background has them ignore Ctrl-C, and all that they start; some
# send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take turns; and those of what this system does not have are skipped, each says
    why."""
    in_turn = {item: takes_its_turn(item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not in_turn[item]])
    items[:] = [item for item in items if in_turn[item]]
    # not so with `make test-macos-like`
    on_linux = sys.platform == "linux" and hasattr(os, "posix_fadvise")
    lacking = [] if on_linux else ["linux"] if sys.platform != "win32" else ["linux", "posix"]
    for item in items if lacking else ():
        for mark in filter(None, map(item.get_closest_marker, lacking)):
            item.add_marker(pytest.mark.skip(reason=str(mark.args[0])))


def pytest_collection_finish() -> None:
    """Keep what was collected out of each later pass of the garbage collector: it took 0.5 s per
    `gc.collect()`."""
    gc.collect()
    gc.freeze()


def _remember(name: str) -> None:
    """Look packages up once, as long as `sys.path` stays: it takes 1 to 3 ms, six times in most
    commands."""
    function = vars(metadata)[name]
    known = functools.cache(lambda path, *words, **more: function(*words, **more))
    vars(metadata)[name] = lambda *words, **more: known(tuple(sys.path), *words, **more)


_remember("version")
_remember("entry_points")
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


@pytest.fixture(scope="session")
def operator_tests() -> Path:
    """A store with onnx's operator tests, kept from run to run: making them takes half a minute of
    CPU."""
    made_by = [operator_tests_module.__file__, onnx.__file__, store.__file__, tensors.__file__]
    versions = f"{onnx.__version__} {np.__version__}"
    word = digest(versions, *(digest_file(Path(str(name))) for name in made_by))[:16]
    folder = ROOT / "build" / f"operator-tests-{word}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").touch()
    with Lock(folder / "lock"):
        if not (folder / "done").exists():
            done = subcut(
                *"sweep -c ort --only test_abs --only test_bernoulli".split(),
                cwd=folder,
                timeout=900,
            )
            assert done.code == 0 and "making onnx's operator tests" in done.err, done
            (folder / "done").touch()
    return folder / "subcut_out" / ".store"


@pytest.fixture
def here(tmp_path: Path, resnet: Path) -> Path:
    """A folder with one model in it, where a user stands."""
    folder = tmp_path / "here"
    folder.mkdir()
    os.link(resnet, folder / "resnet50.onnx")
    return folder


@pytest.fixture(autouse=True)
def _given_inputs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings keep their input, and right answers plant no faults, unless a test is marked
    `small_inputs`: each takes 0.5 s. With the mark, the load of the machine changes no number."""
    is_complete = bool(request.node.get_closest_marker("small_inputs"))
    if not is_complete:
        monkeypatch.setattr("subgraph.questions.bisection.bisection.MAX_RUNS", 0)
    monkeypatch.setattr("subgraph.questions.bisection.bisection.POWER_SECONDS", 100.0 * is_complete)


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
