"""`sweep`, `bisect --loop`, `convert`, `blame` and `view` under kill -9: the next run gives the
answer of a run that nobody disturbed, nothing runs on, and nothing lies where the next run does not
remove it.

Each kill comes at another moment of a run; all of them happen in one folder, so that what one
leaves meets the next.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from fixtures import decoders, toy_releases
from tests.helpers import text_models
from tests.helpers.examples import ALL
from tests.helpers.process_backends import MARK, all_gone
from tests.helpers.run_command import PATIENCE, Done, finish, in_process, start

MOMENTS = 10 if ALL else 3
TOY = "g (float[2,3] x) => (float[2,3] y) { [one] y = Add(x, one) }"
CONVERTER = """
    import sys, tempfile, time, onnx
    from onnx import helper, TensorProto
    time.sleep(0.3)
    tempfile.mkdtemp()
    v = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64])] for n in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", *v)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])  # that runtimes load
    onnx.save(model, sys.argv[2])
    time.sleep(0.3)
"""  # noqa: E501


@dataclass(frozen=True)
class Case:
    """A command, and what of its answer must be the same however often it was killed.

    `each`: does a run come to its end after each kill? Else only one after the last, where a run
    takes long.
    """

    words: tuple[str, ...]
    prepare: Callable[[Path], object]
    told: Callable[[dict[str, Any]], object]
    code: int
    each: bool = True


def _decoder(folder: Path) -> None:
    decoders.write(folder)
    (folder / "loop.toml").write_text("steps = 12\n")


def _converter(folder: Path) -> None:
    (folder / "mine.py").write_text(textwrap.dedent(CONVERTER))
    (folder / "net.xyz").write_text("?")


def _releases(folder: Path) -> None:
    np.save(folder / "x.npy", np.ones((2, 3), np.float32))
    text_models.load(folder, TOY, one=np.ones((2, 3), np.float32))
    toy_releases.releases(folder / "wheels", {"1.0": "w", "1.1": "r", "1.2": "w"})


SWEEP = ("sweep", "-c", "ort", "--only", "Elu", "--only", "Abs")
FAULT = "wrong.py:node=layer0.k.rope,at=9,counter=past_key_values.0.key"
LOOP = (*"bisect decoder.onnx --loop loop.toml -i prompt.npy --repeat 1 -c".split(), FAULT)
CONVERT = "convert net.xyz -o out.onnx --force --with".split()
WITH = f"{sys.executable} mine.py {{model}} {{output}}"
BLAME = "blame model.onnx -i x.npy -c wheels/toy.py==1.2 --versions ..".split()


def _swept(document: dict[str, Any]) -> list[Any]:
    return [[row["test"], [r["status"] for r in row["results"]]] for row in document["rows"]]


def _first_wrong(document: dict[str, Any]) -> list[Any]:
    findings = document["bisection"]["findings"]
    return [document["outcome"], document["first_wrong"], [f["nodes"] for f in findings]]


def _exit_code(document: dict[str, Any]) -> list[Any]:
    return [document["exit_code"]]


def _versions(document: dict[str, Any]) -> list[Any]:
    return [document["region"], document["versions"]["right"], document["versions"]["wrong"]]


CASES = {
    "sweep": Case(SWEEP, lambda folder: None, _swept, 0, each=False),
    "loop": Case(LOOP, _decoder, _first_wrong, 1),
    "convert": Case((*CONVERT, WITH), _converter, _exit_code, 5),
    "blame": Case(tuple(BLAME), _releases, _versions, 1),
}


@dataclass(frozen=True)
class Place:
    """A folder of its own, with its own temporary folder, cache and mark of processes."""

    here: Path
    temporary: Path
    env: Mapping[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return start(*words, cwd=self.here, env=self.env)

    def run(self, *words: str) -> Done:
        return finish(self.start(*words), PATIENCE)

    def left(self) -> list[str]:
        """What lies in the temporary folder, and hidden beside results."""
        found = [p.name for p in self.temporary.iterdir() if p.name != "pymp"]
        hidden = [*self.here.rglob(".*.subcut-*"), *(self.here / "cache").rglob(".*.subcut-*")]
        return sorted([*found, *(p.relative_to(self.here).as_posix() for p in hidden)])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    here = tmp_path / "here"
    temporary = tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    wheels = {
        f"{tool}_{key}": value
        for tool in ("PIP", "UV")
        for key, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(here / "wheels")))
    }
    own = {
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(here / "cache"),
        "XDG_CONFIG_HOME": str(here / "config"),
    }
    return Place(here, temporary, {MARK: uuid4().hex, **own, **wheels})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(CASES))
def test_killed_at_any_moment_the_next_run_gives_the_same(name: str, place: Place) -> None:
    case = CASES[name]
    case.prepare(place.here)
    words = (*case.words, "--json")
    before = sorted(p.name for p in place.here.iterdir())
    begin = time.monotonic()
    first = place.run(*words)
    took = time.monotonic() - begin
    assert first.code == case.code, first
    known = {p.name for p in place.here.iterdir()} - set(before)
    assert place.left() == []
    for k in range(MOMENTS):
        for made in known:
            path = place.here / made
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        run = place.start(*words)
        time.sleep(took * (k + 0.5) / MOMENTS)
        run.kill()
        run.communicate()
        assert run.returncode in (-signal.SIGKILL, case.code)
        all_gone(place.env[MARK])
        if case.each or k == MOMENTS - 1:
            again = place.run(*words)
            assert again.code == case.code, again
            assert case.told(again.document) == case.told(first.document), f"killed at moment {k}"
            assert place.left() == [], f"killed at moment {k}"
            assert {p.name for p in place.here.iterdir()} - set(before) == known


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_page_leaves_nothing_to_the_next(place: Place) -> None:
    """Its run goes down with it, and the files of the tensors that were looked at are removed by
    the next page."""
    in_process("demo", place.here / "d")
    here = Place(place.here / "d", place.temporary, place.env)
    for k in range(MOMENTS):
        process, address, token = opened(here)
        model = json.loads(asked(address, "GET", f"/api/model?token={token}"))
        what = {"kind": "bisect"} if k % 2 else {"kind": "values", "node": 3}
        body = {"model": model["key"], "candidate": "wrong.py", **what}
        asked(address, "POST", "/api/run", body, token)
        time.sleep(3.0 * k / MOMENTS)
        process.kill()
        process.communicate()
        all_gone(here.env[MARK])
    process, _, _ = opened(here)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    all_gone(here.env[MARK])
    assert here.run("bisect", "model.onnx", "-c", "wrong.py", "--json").document["findings"][0][
        "nodes"
    ] == ["stem/pad", "stem/pool"]
    assert here.left() == []
    names = {p.name for p in (here.here / "subcut_out").iterdir()}
    assert not {name for name in names if name.startswith(".")} - {".store"}


def opened(place: Place) -> tuple[subprocess.Popen[str], str, str]:
    """A page's process, its address and its token."""
    process = place.start("view", "model.onnx", "-c", "wrong.py", "--no-browser")
    assert process.stderr
    found = next(
        filter(
            None, (re.search(r"http://(127\.0\.0\.1:\d+)/#(\S+)", line) for line in process.stderr)
        )
    )
    return process, found[1], found[2]


def asked(
    address: str, method: str, path: str, body: Mapping[str, Any] | None = None, token: str = ""
) -> bytes:
    """The answer of a page's server."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request(
        method,
        path,
        json.dumps(body or {}) if method == "POST" else None,
        {"X-Subcut-Token": token},
    )
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    assert reply.status == 200, data
    return data
