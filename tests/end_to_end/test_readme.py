"""The README is correct: its commands print what it shows, its Python runs, its options exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import ROOT
from fixtures.device import board
from fixtures.resnet50 import build
from subgraph.project import load
from subgraph.runtime.candidate import parse
from tests.helpers.run_command import PATIENCE

README = (ROOT / "README.md").read_text(encoding="utf-8")
CASES = ROOT / "fixtures" / "cases"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one model that the README speaks of, at full size."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(CASES / "ort_padfusion_clean", place / "padfusion")
    board(place / "board")
    (place / "resnet50.onnx").write_bytes(build().SerializeToString())
    return place


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _console() -> list[tuple[str, str]]:
    """(command, what it prints) of each console block."""
    pairs = []
    for block in _blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            pairs.append((command, output.strip()))
    return pairs


def _steady(text: str) -> str:
    """Without what is another on each run or machine: times, and digits of rounding errors."""
    text = re.sub(r"\d+\.\d+ (ms|s)\b", "some time", text)
    return re.sub(r"ort \d\S+", "ort", re.sub(r"\d(\.\d)?e-\d\d", "small", text))


def _run(command: str, folder: Path) -> str:
    first, *rest = shlex.split(command)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUBCUT_")}
    done = subprocess.run(
        [str(BIN / first), *rest],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == (1 if {"compare", "bisect", "lint"} & set(rest) else 0), done.stdout
    return done.stdout.strip()


@pytest.mark.slow
def test_console_blocks_print_what_the_readme_says(folder: Path) -> None:
    pairs = _console()
    assert len(pairs) >= 3
    for command, output in pairs:
        assert _steady(_run(command, folder)) == _steady(output), command


def test_the_examples_of_candidates_agree(folder: Path) -> None:
    """The backend in a file and the command in 20 lines, as they stand, on a network."""
    backend, script = _blocks("py")
    (folder / "backend.py").write_text(backend)
    (folder / "run.py").write_text(script)
    assert len(script.splitlines()) <= 24
    for spec in ("backend.py", "cmd:python run.py {model} {inputs} {outputs}"):
        words = ["compare", "resnet50.onnx", "-c", spec, "--at", "pool1", "--json"]
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(BIN / "subcut"), *words],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            check=False,
        )
        found = json.loads(done.stdout)
        assert (done.returncode, found["agree"], found["whole"]["status"]) == (0, True, "agree"), found


def test_the_project_file_is_understood(tmp_path: Path) -> None:
    (block,) = _blocks("toml")
    (tmp_path / "subcut.toml").write_text(block)
    for file in ("src/a/kernel.c", "net.cfg"):  # what `depends` names must be there
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    npu = parse("npu", load(tmp_path))
    assert (npu.precision, npu.multi, npu.timeout, npu.memory) == ("fp16", True, 900.0, 8 << 30)


def test_python_block_runs(folder: Path) -> None:
    (block,) = _blocks("python")
    truths = ("t['conv1'].shape == (1, 64, 112, 112)", "finding['nodes'] == ['/pad/Pad', '/pool/MaxPool']")
    done = subprocess.run(
        [sys.executable, "-c", "\nassert ".join((block, *truths))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "piece.onnx").exists()


def test_commands_and_options_in_the_readme_exist(folder: Path) -> None:
    pages = {
        command: subprocess.run(
            [str(BIN / "subcut"), *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        ).stdout
        for command in (
            "cut",
            "bisect",
            "compare",
            "dump",
            "export",
            "inspect",
            "lint",
            "manual",
            "manual start",
            "report",
            "replay",
            "bundle",
            "sweep",
            "backends",
            "doctor",
        )
    }
    scripts = (ROOT / "subgraph" / "cases" / "repro.py").read_text(encoding="utf-8")
    everything = "".join(pages.values()) + _run("subcut --help", folder) + scripts
    for command in re.findall(r"^subcut (\w+) ", README, re.MULTILINE):
        assert command in {*pages, "MODEL"}
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)):
        assert option in everything, option


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets
