"""onnxruntime-web in a real browser: what is special to it. Covers `runtime.backends.web`."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from subgraph.errors import BackendError, ModelError, Refused, UsageError, WorkerDied
from subgraph.runtime import candidate
from subgraph.runtime.backends import web
from subgraph.runtime.worker import Worker
from subgraph.system import hardware
from tests.helpers import text_models, web_runtime
from tests.helpers.facts import has_line
from tests.helpers.runs import run_in_worker

pytestmark = pytest.mark.skipif(
    bool(web_runtime.lacking()), reason=web_runtime.lacking() or "it can be run"
)

PATIENCE = 120.0  # seconds: a browser starts
RELU = "g (float[3] x) => (float[3] y) { y = Relu(x) }"
RESHAPE = "g (float[3] x, int64[2] s) => (float[m, n] y) { y = Reshape(x, s) }"
X = np.array([-1.0, 0.5, np.nan], np.float32)


def model(folder: Path, text: str) -> Path:
    return text_models.save(folder / f"{abs(hash(text))}.onnx", text)


def run(worker: Worker, folder: Path, **feeds: Any) -> Any:
    return run_in_worker(worker, folder, feeds)["y"]


FIREFOX = pytest.param(
    {"browser": "firefox"},
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(not web.find_browser("firefox"), reason="Firefox is not installed"),
    ],
    id="firefox",
)
EACH_BROWSER = pytest.mark.parametrize("options", [pytest.param({}, id="chromium"), FIREFOX])


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker("web", timeout=PATIENCE) as it:
        yield it


def browsers() -> list[psutil.Process]:
    """The browser's processes that this one has started, through a worker."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end meanwhile
            if any(name in process.exe() for name in ("chrom", "firefox")):
                found.append(process)
    return found


@EACH_BROWSER
def test_one_page_serves_all_pieces_and_an_error_ends_none(
    worker: Worker, tmp_path: Path, options: dict[str, Any]
) -> None:
    assert worker.about(options).version.startswith(f"{web.NEWEST} in ")
    assert ("Firefox" in worker.about(options).version) == bool(options)
    worker.load("m", model(tmp_path, RELU), options)
    np.testing.assert_array_equal(run(worker, tmp_path, x=X), np.maximum(X, 0))
    first = {p.pid for p in browsers()}
    with pytest.raises(Refused, match="NoSuchOperator"):
        worker.load("m", model(tmp_path, RELU.replace("Relu", "NoSuchOperator")), options)
    worker.load("m", model(tmp_path, RESHAPE), options)
    with pytest.raises(ModelError, match="eshape"):
        run(worker, tmp_path, x=X, s=np.array([2, 2], np.int64))
    assert run(worker, tmp_path, x=X, s=np.array([1, -1], np.int64)).shape == (1, 3)
    assert first & {p.pid for p in browsers()}
    worker.load("other", model(tmp_path, RELU), options)  # the first stays
    assert run(worker, tmp_path, x=X, s=np.array([3, 1], np.int64)).shape == (3, 1)


@pytest.mark.slow
@EACH_BROWSER
def test_page_that_crashes_is_a_crash_of_the_candidate(
    worker: Worker, tmp_path: Path, options: dict[str, Any]
) -> None:
    worker.load("m", model(tmp_path, RELU), options)
    for process in browsers():
        if "--type=renderer" in process.cmdline() or "-contentproc" in process.cmdline():
            process.kill()
    with pytest.raises(WorkerDied, match="page crashed"):
        run(worker, tmp_path, x=X)


@pytest.mark.slow
def test_webgpu_computes_on_a_renderer_in_software_and_says_so(
    worker: Worker, tmp_path: Path
) -> None:
    options = {"ep": "webgpu"}
    assert hardware.has_gpu() or has_line(worker.about(options).caveat, "in software")
    worker.load("m", model(tmp_path, RELU.replace("Relu", "Exp")), options)
    np.testing.assert_allclose(
        run(worker, tmp_path, x=X[:2].repeat(2)[:3]), np.exp(X[:2].repeat(2)[:3]), 1e-6
    )


def test_error_is_told_without_where_it_was_built() -> None:
    at = (
        "/mnt/nvme/_work/1/s/onnxruntime/core/graph/model.cc:203"
        " onnxruntime::Model::Model(ModelProto &&, int)"
    )
    text = (
        f"Can't create a session. ERROR_CODE: 1, ERROR_MESSAGE: {at} Unsupported model IR"
        " version: 14"
    )
    assert has_line(web.PLACE.sub("", text), "IR", "14")


def test_unavailable_value_is_an_error(worker: Worker, tmp_path: Path) -> None:
    relu = model(tmp_path, RELU)
    for options, words in (
        ({"version": "../evil"}, "no version"),
        ({"version": "1.2.0"}, "1.19"),
        ({"browser": str(tmp_path / "none")}, "cannot be started"),
    ):
        with pytest.raises((BackendError, UsageError), match=words):
            worker.load("m", relu, options)


def test_the_server_answers_who_knows_its_secret_and_gives_only_what_it_must(
    tmp_path: Path,
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "ort.mjs").write_text("1")
    (tmp_path / "secret.mjs").write_text("2")
    server = web.ReleaseServer(tmp_path / "dist")
    try:
        at = server.give([b"values"])[0]
        for name, body in (("ort.mjs", b"1"), (at, b"values")):
            assert urllib.request.urlopen(f"{server.address}/{name}").read() == body
        for address in (
            f"{server.address}/../secret.mjs",
            f"{server.address}/%2e%2e/secret.mjs",
            f"{server.address[:-1]}/ort.mjs",
            f"{server.address.rpartition('/')[0]}/ort.mjs",
        ):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address)
    finally:
        server.close()


def test_release_is_an_option_and_is_asked_for() -> None:
    for spec in ("web==1.24.3:ep=webgpu", "web:version=1.24.3,ep=webgpu"):
        found = candidate.parse(spec)
        assert (found.release, found.options) == ("1.24.3", {"version": "1.24.3", "ep": "webgpu"})
        assert found.installation is None and "onnxruntime-web@1.24.3" in found.commands
    other = found.set_release("1.25.0")
    assert (other.release, other.options["version"]) == ("1.25.0", "1.25.0")
