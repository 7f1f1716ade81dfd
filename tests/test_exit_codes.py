"""Each exit code that the README lists, by one command at least; those that all commands share, by
several."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures import ROOT
from subgraph import children
from tests.helpers import fake_candidate, text_models
from tests.helpers.run_command import subcut

NET = "g (float[1,3] x) => (float[1,3] y) { [one] h = Mul (x, w) [two] y = Add (h, w) }"
WRONG = f"{fake_candidate.HERE}:nodes=one"
COMMANDS = {  # those that run a candidate
    "compare": "compare m.onnx",
    "bisect": "bisect m.onnx",
    "blame": "blame m.onnx",
    "plan": "plan m.onnx --to fp16",
    "sweep": "sweep --only test_abs",
}
ELSEWHERE = {130: "tests/end_to_end/test_killed.py"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    text_models.save(tmp_path / "m.onnx", NET, w=np.array([2, 3, 4], np.float32))
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3]], np.float32))
    (tmp_path / "damaged.onnx").write_bytes(b"junk")
    (tmp_path / "blocked").write_text("a file")
    return tmp_path


def _cases() -> Iterator[tuple[int, str]]:
    yield 0, "compare m.onnx -i x.npy -c ort"
    yield 1, f"compare m.onnx -i x.npy -c {WRONG} --trust"
    yield 2, "compare none.onnx -c ort"
    yield 5, "plan m.onnx -i x.npy --to fp16 --max-time 0.001s"
    for name, words in COMMANDS.items():
        yield 2, f"{words} -c ort:nonsense=1"
        yield 4, f"{words} -c cmd:./nothing.sh --trust"
        yield 74, f"{words} -c ort -o blocked/out"
        if name != "sweep":
            yield 3, f"{words.replace('m.onnx', 'damaged.onnx')} -c ort"


@pytest.mark.turns(3)
@pytest.mark.parametrize(("code", "words"), list(_cases()))
def test_command_ends_with_the_code_of_the_readme(
    code: int, words: str, here: Path, request: pytest.FixtureRequest
) -> None:
    if words.startswith("sweep"):
        tests = request.getfixturevalue("operator_tests")
        shutil.copytree(tests, here / "subcut_out" / ".store", copy_function=os.link)
    done = subcut(*words.split(), "--json", cwd=here)
    assert (done.code, done.document["exit_code"]) == (code, code), done


def test_each_code_of_the_readme_has_a_command() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    codes = page.partition("## Exit codes")[2].partition("The result")[0]
    listed = set(map(int, re.findall(r"\b(\d+): ", codes)))
    assert listed == {code for code, _ in _cases()} | ELSEWHERE.keys()
    assert all((ROOT / file).is_file() for file in ELSEWHERE.values())


def test_disk_that_is_full_while_another_tool_writes_is_no_fault_of_the_model(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime's quantizer, a process of its own, ended with 3 then: the model is
    unsupported."""
    said = f"OSError: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}".encode()
    monkeypatch.setattr(children, "run", lambda *_, **__: children.CommandOutput(1, b"", said))
    done = subcut("plan", "m.onnx", "-i", "x.npy", "--to", "int8", "--json", cwd=here)
    assert (done.code, done.document["error"]["kind"]) == (74, "OutputError"), done


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["compare", "m.onnx", "-c", ""], "option.malformed"),
        (["bisect", "m.onnx", "--candidate="], "option.malformed"),
        (["compare", "m.onnx", "--seed", "-1"], "option.out-of-range"),
        (["convert", "net", "--with", "./nowhere {model} {output}"], "command.not-runnable"),
        (
            ["replace", "m.onnx", "-s", "one", "-e", "two", "--by", "m.onnx", "--map", "x=nothing"],
            "edit.unknown-tensor",
        ),
        (["bundle", "subcut_out/one", "--keep", "whi"], "bundle.unknown-text"),
    ],
)
def test_mistake_on_the_command_line_is_told_with_its_code(
    words: list[str], code: str, here: Path
) -> None:
    (here / "net").write_bytes(b"another format")
    if words[0] == "bundle":
        subcut("cut", "m.onnx", "-s", "one", "-e", "one", "-i", "x.npy", cwd=here)
        words[1] = str(next((here / "subcut_out").glob("*/manifest.json")).parent)
    done = subcut(*words, "--json", cwd=here)
    assert (done.code, done.document["error"]["code"]) == (2, code), done


def test_setting_that_makes_no_sense_is_told_with_its_code(here: Path) -> None:
    variables = {"SUBCUT_EXECUTOR": "nobody://host"}
    done = subcut("compare", "m.onnx", "-c", "ort", "--json", cwd=here, env=variables)
    assert (done.code, done.document["error"]["code"]) == (2, "plugin.unknown"), done
    (here / "subcut.toml").write_text("seed = -1")
    done = subcut("compare", "m.onnx", "-c", "ort", "--json", cwd=here)
    assert (done.code, done.document["error"]["code"]) == (2, "option.out-of-range"), done
