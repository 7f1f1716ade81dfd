"""The command line as a user meets it: each test runs the real command in a folder of its own.

Covers `cli`, `__main__`, `errors`, `project`, `text`, `documents`, `version`, `commands.cut`,
`commands.tensors` and `commands.help`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from subgraph import __version__, cli, project
from subgraph.project import KEYS
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.refusals import refused
from tests.helpers.run_command import (
    PATIENCE,
    SUBCUT,
    Done,
    environment,
    manifest,
    run_program,
    subcut,
    tree,
)

LAYERS = (
    "pool1 res2a_branch1 bn2a_branch1 scale2a_branch1 res2a_branch2a bn2a_branch2a scale2a_branch2a"
    " res2a_branch2a_relu res2a_branch2b bn2a_branch2b scale2a_branch2b res2a_branch2b_relu"
    " res2a_branch2c bn2a_branch2c scale2a_branch2c res2a res2a_relu"
).split()
CASE = "subcut_out/pool1__res2a_relu"
EDGE = ("--start", "pool1", "--end", "res2a_relu")
ODD = [
    "x[bold]y",
    "red\x1b[31m\x07",
    "two words",
    "a/b:0",
    "line\nbreak",
    "\u202eevil",
    "semi;$(touch pwned)",
]


# ------------------------------------------------------------ the main job


def test_the_line_as_the_user_wrote_it(here: Path) -> None:
    done = subcut(*EDGE, cwd=here)
    assert done.code == 0
    assert done.out.splitlines()[-1] == f"{CASE}/"
    told = manifest(here / CASE)
    assert [node["name"] for node in told["region"]["nodes"]] == LAYERS
    assert set(tree(here / CASE)) == {
        *(
            "inputs/conv1.bin inputs/conv1.npy outputs/res2a.bin outputs/res2a.npy "
            "log.txt manifest.json model.onnx repro.py"
        ).split()
    }
    log = (here / CASE / "log.txt").read_text()
    assert [
        line.split("Export Layer: ")[1] for line in log.splitlines() if "Export Layer" in line
    ] == LAYERS
    written = datetime.fromtimestamp((here / CASE / "inputs/conv1.npy").stat().st_mtime)
    assert has_line(
        log,
        f"{written:%Y-%m-%d %H:%M:%S} Input File",
        "conv1 float32 1×8×32×32",
        "inputs/conv1.npy",
    )
    assert sorted(p.name for p in here.iterdir()) == ["resnet50.onnx", "subcut_out"]


@pytest.mark.parametrize(
    "words",
    [
        ("cut", "resnet50.onnx", *EDGE),
        ("cut", *EDGE, "resnet50.onnx"),
        ("resnet50.onnx", *EDGE),
        ("./resnet50.onnx", *EDGE),
        ("cut", *EDGE),
        ("-e", "res2a_relu", "-s", "pool1", "resnet50.onnx"),
        ("--start=pool1", "--end=res2a_relu"),
        ("-spool1", "-eres2a_relu"),
    ],
)
def test_the_same_in_other_words(words: tuple[str, ...], here: Path) -> None:
    assert cut_nodes(*words, cwd=here) == LAYERS


def cut_nodes(*words: str, cwd: Path) -> list[str]:
    """The names of the nodes that a cut would have."""
    done = subcut(*words, "--dry-run", "--json", cwd=cwd)
    assert done.code == 0, done.err
    return [*done.document["region"]["nodes"]]


@pytest.mark.parametrize(
    ("start", "end", "nodes"),
    [
        ("node:pool1", "tensor:res2a", LAYERS),
        ("#4", "#20", LAYERS),
        ("MaxPool@1", "Relu@4", LAYERS),
        ("pool*1", "res2?_branch1", ["pool1", "res2a_branch1"]),
        ("data", "conv1", ["conv1"]),
    ],
)
def test_nodes_have_several_names(start: str, end: str, nodes: list[str], here: Path) -> None:
    assert cut_nodes("-s", start, "-e", end, cwd=here) == nodes


def test_several_starts_and_ends(here: Path) -> None:
    words = "-s res2a_branch1 -s res2a_branch2a -e scale2a_branch1 -e res2a_branch2a_relu".split()
    done = subcut(*words, cwd=here)
    (folder,) = (here / "subcut_out").iterdir()
    assert done.out.splitlines()[-1] == f"subcut_out/{folder.name}/"
    assert len(manifest(folder)["region"]["nodes"]) == 7


def test_open_end_means_the_models_own(here: Path) -> None:
    assert len(cut_nodes("-s", "pool1", cwd=here)) == 225
    assert len(cut_nodes("-e", "pool1", cwd=here)) == 5


def test_dry_run_writes_nothing_and_says_where_it_would(here: Path) -> None:
    done = subcut(*EDGE, "--dry-run", cwd=here)
    assert done.code == 0
    assert CASE in done.out.splitlines()[-1]
    assert [p.name for p in here.iterdir()] == ["resnet50.onnx"]


def test_python_alone_repeats_the_result(here: Path) -> None:
    assert subcut(*EDGE, cwd=here).code == 0
    done = run_program([sys.executable, here / CASE / "repro.py"])
    assert (done.returncode, done.stdout, done.stderr) == (0, done.stdout, "")


# ------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("word", ["x" * 300, "x" * 300 + ".onnx"])
def test_word_longer_than_a_file_name_is_refused(word: str, here: Path) -> None:
    refused(subcut(word, *EDGE, cwd=here))
    assert [p.name for p in here.iterdir()] == ["resnet50.onnx"]


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "empty"), (b"GIF89a, surely no model", "not an ONNX model")]
)
def test_unreadable_model_is_exit_3(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    assert "bad.onnx" in refused(subcut(*EDGE, cwd=tmp_path), 3), why


def test_unusable_runtime_is_exit_4(here: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no such library')")
    done = subcut(*EDGE, cwd=here, env={"PYTHONPATH": str(tmp_path)})
    assert has_line(refused(done, 4), "library")
    assert [p.name for p in here.iterdir()] == ["resnet50.onnx"]


def test_result_that_could_not_be_checked_is_exit_5(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference must repeat itself; one that does not is played by a backend that adds
    noise."""
    noisy = here / "noisy"
    noisy.mkdir()
    (noisy / "sitecustomize.py").write_text(
        "import os, sys\nif sys.argv[0] == '-m':\n    import subgraph.runtime.backends.ort as ort\n"
        "    plain = ort._Session.__call__\n    def noisy(self, feeds):\n        return {n: v +"
        " int.from_bytes(os.urandom(3), 'big') for n, v in plain(self, feeds).items()}\n   "
        " ort._Session.__call__ = noisy\n"
    )
    done = subcut(
        *EDGE, cwd=here, env={"PYTHONPATH": f"{noisy}:{Path(cli.__file__).parent.parent}"}
    )
    assert done.code == 5
    assert manifest(here / CASE)["check"]["status"] == "unrepeatable"


def test_argument_that_is_not_utf_8_is_refused(here: Path) -> None:
    """Linux allows such names; ONNX and JSON have no place for them."""
    for words in ((*EDGE, "-o", "\udcff"), ("-s", "\udcff"), ("b\udcff.onnx", *EDGE)):
        assert "UTF-8" in refused(subcut(*words, cwd=here))
        assert subcut(*words, "--json", cwd=here).document["exit_code"] == 2
    (here / "resnet50.onnx").rename(here / "b\udcff.onnx")
    assert "UTF-8" in refused(subcut(*EDGE, cwd=here))


# ------------------------------------------------------------ streams


def test_quiet_says_only_the_result(here: Path) -> None:
    for words in (("-q", *EDGE), (*EDGE, "--quiet")):
        done = subcut(*words, "--dry-run", cwd=here)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("region  pool1")
    assert "'nope'" in refused(subcut("-q", "-s", "nope", cwd=here))


def test_verbose_adds_to_standard_error_only(here: Path) -> None:
    plain, verbose = (subcut(*words, *EDGE, "--dry-run", cwd=here) for words in ((), ("-v",)))
    assert plain.out == verbose.out
    assert verbose.err.startswith(plain.err)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("words", "env", "colored"),
    [
        ((), {}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "always"), {}, True),
        (("--color=always",), {"NO_COLOR": "1"}, True),
        (("--color=never",), {"FORCE_COLOR": "1"}, False),
        (("--color=auto",), {}, False),
    ],
)
def test_color(words: tuple[str, ...], env: Mapping[str, str], colored: bool, here: Path) -> None:
    for line in ((*words, "-s", "nope"), ("cut", "-s", "nope", *words)):
        done = subcut(*line, cwd=here, env=env)
        assert done.code == 2
        assert ("\x1b[1;31merror:\x1b[0m " in done.err) == colored
        assert ("\x1b" in done.err) == colored


def test_terminal_gets_color(here: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        for env, colored in (
            ({"TERM": "xterm"}, True),
            ({"TERM": "dumb"}, False),
            ({"NO_COLOR": "1"}, False),
        ):
            subprocess.run(
                [SUBCUT, "-s", "nope"], cwd=here, env=environment(env), stderr=theirs, check=False
            )
            said = b""
            while b"nope" not in said:  # a read may give a part of what was written
                said += screen.read(4096)
            assert (b"\x1b[1;31merror:\x1b[0m" in said) == colored
    os.close(theirs)


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A line for bash, `subcut` being the command under test."""
    return run_program(
        ["bash", "-c", line],
        cwd=cwd,
        env=environment({"PATH": f"{SUBCUT.parent}:{os.environ['PATH']}"}),
    )


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("subcut -s pool1 -e prob --dry-run | head -1; exit ${PIPESTATUS[0]}", 0),
        ("(sleep 0.3; subcut -s pool1 -e prob --dry-run) | true; exit ${PIPESTATUS[0]}", 0),
        ("(sleep 0.3; subcut -s nope) 2>&1 | true; exit ${PIPESTATUS[0]}", 2),
        ("subcut -s pool1 -e prob --dry-run >&-", 0),
        ("subcut -s nope 2>&-", 2),
        ("subcut -s pool1 -e res2a_relu <&- >&- 2>&-", 0),
        ("subcut -s pool1 -e prob --dry-run > /dev/full", 74),
        ("LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii subcut -s pool1 -e prob --dry-run", 0),
    ],
)
def test_whatever_reads_the_output(line: str, code: int, here: Path) -> None:
    done = shell(line, here)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


# ------------------------------------------------------------ --json


@pytest.mark.parametrize(
    "words", [("--json", "cut", *EDGE), ("cut", *EDGE, "--json"), ("--json", *EDGE)]
)
def test_json_is_one_document(words: tuple[str, ...], here: Path) -> None:
    done = subcut(*words, cwd=here)
    found = done.document
    assert (done.code, found["exit_code"], found["schema"]) == (0, 0, "subcut.cut/1")
    assert has_line(done.err, "resnet50.onnx")
    (result,) = found["results"]
    told = manifest(here / result["path"])
    assert {k: v for k, v in result.items() if k != "path"} == {
        k: v for k, v in told.items() if k != "schema"
    }


@pytest.mark.parametrize(
    ("words", "exit_code", "kind", "code"),
    [
        (("-s", "nope"), 2, "UnknownName", "node.unknown"),
        (("-s", "res2a", "-e", "pool1"), 2, "NoRegion", "region.end-is-upstream"),
        (("nothing.onnx", *EDGE), 2, "UnknownName", "file.not-found"),
        (("exprot",), 2, "UsageError", "usage.command-line"),
        (("--seed", "x"), 2, "UsageError", "usage.command-line"),
        (("empty.onnx", *EDGE), 3, "ModelError", "model.not-onnx"),
        (("resnet50.onnx", *EDGE, "-o", "resnet50.onnx"), 74, "OutputError", "output.not-folder"),
        # of the reference's process
        (("resnet50.onnx", *EDGE, "-i", "bad.npy"), 2, "InputError", "input.wrong-shape"),
    ],
)
def test_json_of_an_error(
    words: tuple[str, ...], exit_code: int, kind: str, code: str, here: Path
) -> None:
    (here / "empty.onnx").write_bytes(b"")
    np.save(here / "bad.npy", np.zeros((1, 2), np.float32))
    done = subcut(*words, "--json", cwd=here, env={"SUBCUT_MODEL": "resnet50.onnx"})
    found = done.document
    assert (done.code, found["exit_code"], found["schema"]) == (
        exit_code,
        exit_code,
        "subcut.error/1",
    )
    assert found["error"].keys() >= {"kind", "code", "what", "hint"}
    assert (found["error"]["kind"], found["error"]["code"]) == (kind, code)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bare/model.onnx", "bare has no .onnx or .tflite file"),
        ("gone/model.onnx", "there is no folder"),
    ],
)
def test_a_missing_model_says_what_its_folder_has(name: str, hint: str, here: Path) -> None:
    (here / "bare").mkdir()
    error = subcut("inspect", name, "--json", cwd=here).document["error"]
    assert error["code"] == "file.not-found" and hint in error["hint"]


def test_only_verbose_text_has_the_code_of_an_error(here: Path) -> None:
    words = ("-s", "res2a", "-e", "pool1")
    assert "region." not in refused(subcut(*words, cwd=here))
    assert has_line(verbose := subcut(*words, "-v", cwd=here).err, "error: end 'pool1'")
    assert "[region.end-is-upstream]\n" in verbose


def test_json_of_a_dry_run_and_of_names_that_hurt(tmp_path: Path) -> None:
    chain(tmp_path / "odd.onnx", ODD)
    found = subcut(
        "--json", "-s", ODD[0], "-e", f"#{len(ODD) - 1}", "--dry-run", cwd=tmp_path
    ).document
    assert found["dry_run"] is True
    assert found["region"]["nodes"] == ODD
    assert not (tmp_path / found["path"]).exists()


# ------------------------------------------------------------ settings


def seed_of(done: Done) -> int:
    """The seed that a run said it used."""
    assert done.code == 0, done.err
    found = re.search(r"random model input, seed (\d+)", done.out)
    assert found
    return int(found[1])


def test_flag_before_environment_before_file_before_default(here: Path) -> None:
    def seed(*words: str, env: Mapping[str, str] | None = None) -> int:
        return seed_of(subcut(*EDGE, "--force", "--no-freeze", *words, cwd=here, env=env))

    assert seed() == 0
    (here / "subcut.toml").write_text("seed = 3\n")
    assert seed() == 3
    assert seed(env={"SUBCUT_SEED": "5"}) == 5
    assert seed("--seed", "7", env={"SUBCUT_SEED": "5"}) == 7
    assert seed("--seed", "0", env={"SUBCUT_SEED": "5"}) == 0


def test_the_model_is_found(here: Path) -> None:
    (here / "other.onnx").symlink_to("resnet50.onnx")
    (here / "third.onnx").symlink_to("resnet50.onnx")

    def model(*words: str, env: Mapping[str, str] | None = None) -> str:
        done = subcut(*words, *EDGE, "--dry-run", cwd=here, env=env)
        assert done.code == 0, done.err
        return done.err.strip()

    (here / "subcut.toml").write_text('model = "other.onnx"\n')
    file = here / "subcut.toml"
    assert has_line(model(), "other.onnx") and str(file) in model()
    assert has_line(model(env={"SUBCUT_MODEL": "third.onnx"}), "third.onnx")
    assert model("resnet50.onnx", env={"SUBCUT_MODEL": "third.onnx"}) == ""
    file.unlink()
    (here / "pyproject.toml").write_text('[tool.subcut]\nmodel = "third.onnx"\n')
    assert has_line(model(), "third.onnx") and str(here / "pyproject.toml") in model()
    said = refused(subcut(*EDGE, cwd=here, env={"SUBCUT_MODEL": "thrid.onnx"}))
    assert "$SUBCUT_MODEL" in said and "'third.onnx'" in said


def test_project_file_serves_the_folders_below(here: Path) -> None:
    np.save(here / "x.npy", np.zeros((1, 3, 64, 64), np.float32))
    (here / "subcut.toml").write_text(
        'model = "resnet50.onnx"\noutput = "results"\ninput = ["data=x.npy"]\nformat = "npy"\n'
    )
    below = here / "below"
    below.mkdir()
    for folder in (below, here):
        done = subcut(*EDGE, cwd=folder)
        assert done.code == 0, done.err
        assert "x.npy" in done.out
    assert done.out.endswith("\nresults/pool1__res2a_relu/\n")
    assert "inputs/conv1.bin" not in tree(here / "results/pool1__res2a_relu")
    done = subcut("dump", "conv1", cwd=here)
    assert done.code == 0
    assert (here / "results/pool1__res2a_relu").is_dir()
    assert (here / "results/dump/conv1.npy").is_file()


@pytest.mark.parametrize(
    ("key", "words", "there"),
    [
        ("weights", "random:7", "random:7"),
        ("weights", "random", "random"),
        ("weights", "random.caffemodel", "{here}/random.caffemodel"),
        ("criterion", "noise", "noise"),
        ("criterion", "mine.py", "{here}/mine.py"),
        ("criterion", "./mine.py:tight", "{here}/mine.py:tight"),
        (
            "criterion",
            "threshold:cosine>0.9,a/mine.py<1",
            "threshold:cosine>0.9,{here}/a/mine.py<1",
        ),
        ("criterion", "/its/own.py", "/its/own.py"),
    ],
)
def test_file_in_a_project_file_lies_beside_it(
    key: str, words: str, there: str, tmp_path: Path
) -> None:
    (tmp_path / "subcut.toml").write_text(f"{key} = {words!r}\n")
    (tmp_path / "below").mkdir()
    assert project.load(tmp_path / "below").get(key) == there.format(here=tmp_path)


def test_pyproject_without_settings_is_passed_over(here: Path) -> None:
    (here / "subcut.toml").write_text("seed = 4\n")
    below = here / "below"
    below.mkdir()
    (below / "pyproject.toml").write_text(
        "[project]\nname = 'mine'\ndescription = 'see tool.subcut'\n"
    )
    assert seed_of(subcut("../resnet50.onnx", *EDGE, cwd=below)) == 4


@pytest.mark.parametrize(
    "text", ["zzz = 1", "model = 3", "bgr = 1", "input = [1]", "model = " + "[" * 5000, "\ufffe"]
)
def test_slip_in_the_project_file_names_the_file(text: str, here: Path) -> None:
    (here / "subcut.toml").write_text(text, encoding="utf-16" if text == "\ufffe" else "utf-8")
    assert str(here / "subcut.toml") in refused(subcut(*EDGE, cwd=here))


def test_slip_in_pyproject_or_environment(here: Path) -> None:
    assert "$SUBCUT_SEED" in refused(subcut(*EDGE, cwd=here, env={"SUBCUT_SEED": "x"}))
    (here / "pyproject.toml").write_text("[tool]\n# tool.subcut\nsubcut = 3\n")
    assert "[tool.subcut]" in refused(subcut(*EDGE, cwd=here))


OF_CANDIDATES = set(
    "candidate candidates reference custom_ops criterion timeout memory memory_limit jobs known"
    " tests".split()
)
VALUES: dict[str, tuple[Any, str]] = {  # key → value in the file, the same in the environment
    "model": ("resnet50.onnx", "resnet50.onnx"),
    "weights": ("random:1", "random:1"),  # of a model of Caffe's, which this is not
    "output": ("there", "there"),
    "input": (["data=x.png"], "data=x.png"),
    "shape": (["data=1x3x64x64"], "data=1x3x64x64"),
    "seed": (2, "2"),
    "mean": ("1,2,3", "1,2,3"),
    "scale": ("0.5", "0.5"),
    "bgr": (True, "1"),
    "format": ("npy", "npy"),
    "dtype": ("float16", "float16"),
    "layout": ("nhwc", "nhwc"),
}


def test_each_setting_means_the_same_from_the_file_and_the_environment(here: Path) -> None:
    assert VALUES.keys() | OF_CANDIDATES == KEYS.keys()
    Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8).astype(np.uint8)
    ).save(here / "x.png")
    env = {f"SUBCUT_{key.upper()}": text for key, (_, text) in VALUES.items()}
    one = subcut(*EDGE, "--json", cwd=here, env=env).document
    (here / "subcut.toml").write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, (value, _) in VALUES.items())
    )
    two = subcut(*EDGE, "--json", "--force", cwd=here).document
    for found in (one, two):
        request = found["results"][0]["request"]
        assert request["inputs"][0].endswith("x.png")
        request["inputs"] = []
        assert request["picture"] == {"mean": [1.0, 2.0, 3.0], "scale": [0.5], "bgr": True}
        assert request["form"] == {"dtype": "float16", "layout": "NHWC"}
    assert one["results"][0]["request"] == two["results"][0]["request"]
    assert one["results"][0]["path"] == two["results"][0]["path"] == "there/pool1__res2a_relu"


# ------------------------------------------------------------ options of cut


def test_dump_all_adds_every_tensor_of_the_region(here: Path) -> None:
    assert subcut(*EDGE, "--dump", "all", cwd=here).code == 0
    told = manifest(here / CASE)
    assert [t["name"] for t in told["dump_data"]][:3] == [
        "pool1",
        "res2a_branch1@res2a_branch1",
        "res2a_branch1@bn2a_branch1",
    ]
    assert len(told["dump_data"]) == len(LAYERS)
    assert has_line(told["command"], "--start pool1", "--end", "res2a_relu", "--dump=all")
    for tensor in told["dump_data"]:
        npy, raw = tensor["samples"][0]["files"]
        found = np.load(here / CASE / npy["file"]).tobytes()
        assert found == (here / CASE / raw["file"]).read_bytes()


def test_stamp_names_the_folder_by_the_clock(here: Path) -> None:
    done = subcut(*EDGE, "--stamp", "--no-capture", cwd=here)
    assert re.fullmatch(r"subcut_out/dump_result_\d{4}(_\d\d){5}/", done.out.splitlines()[-1])
    (folder,) = (here / "subcut_out").iterdir()
    assert "--stamp" in (folder / "log.txt").read_text()


def test_the_devices_form(here: Path) -> None:
    done = subcut(*EDGE, "--dtype", "float16", "--layout", "nhwc", cwd=here)
    assert re.search(r"^loss +conv1 .*\d\.\de-04", done.out, re.MULTILINE)
    exact = np.load(here / CASE / "inputs/conv1.npy")
    raw = np.fromfile(here / CASE / "inputs/conv1.bin", np.float16).reshape(1, 32, 32, 8)
    assert exact.dtype == np.float32
    assert np.array_equal(raw.transpose(0, 3, 1, 2), exact.astype(np.float16))
    (entry,) = (
        f for f in manifest(here / CASE)["inputs"][0]["samples"][0]["files"] if f["format"] == "bin"
    )
    assert (entry["dtype"], entry["shape"], entry["layout"]) == ("float16", [1, 32, 32, 8], "NHWC")
    assert "float16 1×32×32×8 inputs/conv1.bin" in (here / CASE / "log.txt").read_text()


@pytest.mark.parametrize(
    ("format_", "kinds"),
    [("npy", {".npy"}), ("bin", {".npy", ".bin"}), ("npy,bin", {".npy", ".bin"})],
)
def test_format(format_: str, kinds: set[str], here: Path) -> None:
    """The .npy is always there: repro.py reads it."""
    assert subcut(*EDGE, "--format", format_, cwd=here).code == 0
    assert {p.suffix for p in (here / CASE / "inputs").iterdir()} == kinds


def test_no_capture_only_cuts(here: Path) -> None:
    done = subcut(*EDGE, "--no-capture", cwd=here)
    assert done.code == 0
    assert set(tree(here / CASE)) == {"log.txt", "manifest.json", "model.onnx"}


def test_check_runs_onnx_checker_too(here: Path) -> None:
    assert subcut(*EDGE, "--check", "--no-capture", cwd=here).code == 0


def test_several_samples(here: Path) -> None:
    (here / "images").mkdir()
    for name in ("dog", "cat"):
        Image.new("RGB", (64, 64), (len(name), 50, 100)).save(here / f"images/{name}.png")
    done = subcut(*EDGE, "-i", "images", cwd=here)
    assert done.code == 0
    assert [s["label"] for s in manifest(here / CASE)["samples"]] == ["cat", "dog"]
    assert {"inputs/cat/conv1.npy", "inputs/dog/conv1.npy", "outputs/cat/res2a.npy"} <= set(
        tree(here / CASE)
    )
    said = run_program([sys.executable, here / CASE / "repro.py"])
    assert [line.split()[:2] for line in said.stdout.splitlines()] == [
        ["cat", "res2a:"],
        ["dog", "res2a:"],
    ]


# ------------------------------------------------------------ the second run


def test_the_second_run_gives_the_same_bytes(here: Path) -> None:
    first = subcut(*EDGE, "--dump", "all", cwd=here)
    before = tree(here / CASE)
    inode = (here / CASE).stat().st_ino
    assert subcut(*EDGE, "--dump", "all", cwd=here) == first
    after = tree(here / CASE)
    assert (here / CASE).stat().st_ino != inode
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} <= {"log.txt"}
    assert [p.name for p in (here / "subcut_out").iterdir()] == ["pool1__res2a_relu"]


def test_another_request_for_the_same_model_replaces_the_result(here: Path) -> None:
    assert subcut(*EDGE, cwd=here).code == 0
    assert subcut(*EDGE, "--seed", "1", cwd=here).code == 0
    assert manifest(here / CASE)["seed"] == 1
    assert [p.name for p in (here / "subcut_out").iterdir()] == ["pool1__res2a_relu"]


def test_another_models_result_stays_beside_the_new_one(here: Path) -> None:
    chain(here / "chain.onnx", ["pool1", "res2a_relu"])
    assert subcut("chain.onnx", *EDGE, cwd=here).code == 0
    done = subcut("resnet50.onnx", *EDGE, cwd=here)
    assert done.code == 0 and f"{CASE}-2" in done.err
    sources = [manifest(here / f"{CASE}{end}")["source"]["file"] for end in ("", "-2")]
    assert sources == ["chain.onnx", "resnet50.onnx"]
    assert subcut("resnet50.onnx", *EDGE, "--force", cwd=here).code == 0
    assert manifest(here / CASE)["source"]["file"] == "resnet50.onnx"


def test_result_with_a_strangers_file_stays_beside_the_new_one(here: Path) -> None:
    assert subcut(*EDGE, cwd=here).code == 0
    (here / CASE / "notes.txt").write_text("mine")
    assert subcut(*EDGE, cwd=here).code == 0
    assert (here / CASE / "notes.txt").read_text() == "mine"
    assert manifest(here / f"{CASE}-2")["source"]["file"] == "resnet50.onnx"
    assert subcut(*EDGE, "--force", cwd=here).code == 0
    assert not (here / CASE / "notes.txt").exists()


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_foreign_folder_is_never_replaced(force: tuple[str, ...], here: Path) -> None:
    (here / CASE).mkdir(parents=True)
    (here / CASE / "thesis.txt").write_text("mine")
    refused(subcut(*EDGE, *force, cwd=here))
    refused(subcut("dump", "conv1", "-o", ".", *force, cwd=here))
    (here / "file").write_text("mine")
    (here / "link").symlink_to(here / CASE)
    for name in ("file", "link"):
        refused(subcut("dump", "conv1", "-o", name, *force, cwd=here))
    assert (here / CASE / "thesis.txt").read_text() == (here / "file").read_text() == "mine"


def test_empty_folder_is_free(here: Path) -> None:
    (here / CASE).mkdir(parents=True)
    assert subcut(*EDGE, cwd=here).code == 0
    manifest(here / CASE)


# ------------------------------------------------------------ names that hurt


def test_names_are_shown_without_what_moves_the_cursor(tmp_path: Path) -> None:
    chain(tmp_path / "odd.onnx", ODD)
    done = subcut("-s", "#0", "-e", f"#{len(ODD) - 1}", "--dry-run", cwd=tmp_path)
    assert done.code == 0
    for shown in (
        "x[bold]y",
        "red",
        "two words",
        "a/b:0",
        "linebreak",
        "evil",
        "semi;$(touch pwned)",
    ):
        assert re.search(rf"^  {re.escape(shown)}  +\w+$", done.out, re.MULTILINE)
    for bad in ("\x1b", "\x07", "\u202e"):
        assert bad not in done.out + done.err


@pytest.mark.parametrize("name", ODD)
def test_name_can_be_typed_back(name: str, tmp_path: Path) -> None:
    chain(tmp_path / "odd.onnx", ODD)
    assert cut_nodes("-s", name, "-e", name, cwd=tmp_path) == [name]


def test_error_shows_odd_names_in_one_line(tmp_path: Path) -> None:
    chain(tmp_path / "odd.onnx", ODD)
    refused(subcut("-s", "line\nbreak", "-e", ODD[0], cwd=tmp_path))
    refused(subcut("-s", "red\x1b[31m", cwd=tmp_path))
    assert subcut("-s", "line\nbreak", cwd=tmp_path).code == 0
    (folder,) = (tmp_path / "subcut_out").iterdir()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    refused(subcut("-s", "line\nbreak", cwd=tmp_path))


# ------------------------------------------------------------ help and TAB

HEAVY = {"numpy", "onnx", "onnxruntime", "networkx", "pydantic", "PIL", "ml_dtypes", "rich"}
SPY = """
import atexit, os, sys
sys.argv = ["subcut", *sys.argv[1:]]
leave = os._exit
def tell(code):
    print("loaded", *sorted(m for m in sys.modules if "." not in m), file=sys.stderr, flush=True)
    leave(code)
os._exit = tell
from subgraph.cli import main
main()
"""


def loaded(words: tuple[str, ...], cwd: Path, env: Mapping[str, str] | None = None) -> set[str]:
    """The heavy packages that a command line loads into its own process."""
    done = run_program([sys.executable, "-c", SPY, *words], cwd=cwd, env=environment(env))
    said = done.stderr.splitlines()[-1].split()
    assert said[0] == "loaded", done
    return HEAVY.intersection(said)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("-h",),
        ("--version",),
        (),
        ("bogus",),
        ("--bogus",),
        ("--color", "never", "--json", "--help"),
        ("cut", "--help"),
        ("bisect", "--help"),
        ("manual", "--help"),
        ("view", "--help"),
    ],
)
def test_help_loads_nothing_heavy(words: tuple[str, ...], here: Path) -> None:
    assert loaded(words, here) == set()


def test_cut_alone_loads_nothing_heavy(here: Path) -> None:
    assert loaded((*EDGE, "--no-capture"), here) == set()
    assert loaded(EDGE, here) <= {"numpy"}


def tab(line: str, cwd: Path) -> list[str]:
    """What bash is given at the end of a line of plain words."""
    words = line.split(" ")
    return answers(words, len(words) - 1, cwd)


def answers(words: list[str], at: int, cwd: Path) -> list[str]:
    """What bash is given, where it split the line into these words (as typer's script hands them
    on)."""
    env = {
        "_SUBCUT_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(at),
    }
    done = subcut(cwd=cwd, env=env)
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


def test_tab_completes_node_names(here: Path) -> None:
    assert tab("subcut --start po", here) == ["pool1", "pool5"]
    assert tab("subcut cut resnet50.onnx -e res2a_b", here) == [
        n for n in LAYERS if n.startswith("res2a_b")
    ]
    assert tab("subcut resnet50.onnx --end prob -s pool5", here) == ["pool5"]
    assert tab("subcut --json -s pool1 -e res2a_re", here) == ["res2a_relu"]
    assert tab("subcut dump resnet50.onnx po", here) == ["pool1", "pool5"]
    assert tab("subcut -s tensor:res2a@", here) == ["tensor:res2a@res2a"]
    assert tab("subcut -s node:po", here) == ["node:pool1", "node:pool5"]
    assert tab("subcut -s nothing", here) == []
    one_string = {
        "_SUBCUT_COMPLETE": "complete_bash",
        "COMP_WORDS": "subcut --start po",
        "COMP_CWORD": "2",
    }
    assert subcut(cwd=here, env=one_string).out == "pool1\npool5\n"


def test_tab_ends_quietly_when_the_shell_stops_reading(tmp_path: Path) -> None:
    chain(tmp_path / "m.onnx", [f"node{i}" for i in range(9000)])  # more names than a pipe takes
    words = {
        "_SUBCUT_COMPLETE": "complete_bash",
        "COMP_WORDS": "subcut\n--start\nno",
        "COMP_CWORD": "2",
    }
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [SUBCUT],
        cwd=tmp_path,
        env=environment(words),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_tab_completes_candidates_and_criteria(here: Path) -> None:
    (here / "my_board.py").write_text("")
    (here / "subcut.toml").write_text('[candidates.mybox]\nspec = "ort"\n')
    assert tab("subcut bisect -c my", here) == ["mybox", "my_board.py"]
    assert tab("subcut bisect -c ort", here) == ["ort"]
    assert tab("subcut compare --criterion no", here) == ["noise"]


def test_help_as_a_command(here: Path) -> None:
    assert subcut("help", cwd=here).out == subcut("--help", cwd=here).out
    assert subcut("help", "cut", cwd=here).out == subcut("cut", "--help", cwd=here).out


def test_python_m_subgraph_is_subcut(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "subgraph", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("subcut ")


def test_tab_completes_commands_and_options(here: Path) -> None:
    assert tab("subcut ex", here) == ["export"]
    assert tab("subcut --st", here) == ["--start", "--stamp"]
    assert tab("subcut cut --st", here) == ["--start", "--stamp"]
    assert "--version" in tab("subcut --", here)
    assert tab("subcut resn", here) == []  # bash itself completes file names


@pytest.mark.slow
def test_tab_finds_the_model_as_the_command_does(here: Path, tmp_path: Path) -> None:
    assert tab("subcut -s po", tmp_path) == []
    assert tab("subcut nothing.onnx -s po", here) == []
    assert tab("subcut cut here/resnet50.onnx -s pool1 -e po", tmp_path) == ["pool1", "pool5"]
    assert tab("subcut -s pool1 here/resnet50.onnx -e po", tmp_path) == ["pool1", "pool5"]
    home = {"HOME": str(here)}
    words = {
        "_SUBCUT_COMPLETE": "complete_bash",
        "COMP_WORDS": "subcut\n~/resnet50.onnx\n-s\npo",
        "COMP_CWORD": "3",
    }
    assert subcut(cwd=tmp_path, env=words | home).out == "pool1\npool5\n"
    (tmp_path / "subcut.toml").write_text('model = "here/resnet50.onnx"\n')
    assert tab("subcut -s po", tmp_path) == ["pool1", "pool5"]
    (tmp_path / "subcut.toml").write_text("model = 3\n")
    assert tab("subcut -s po", tmp_path) == []


@pytest.mark.slow
def test_tab_and_names_that_bash_splits_or_acts_on(tmp_path: Path) -> None:
    chain(tmp_path / "odd.onnx", [*ODD, "layer:0", "layer:1@a", "it's", "équipe"])
    assert answers(["subcut", "-s", "two"], 2, tmp_path) == ["two\\ words"]
    assert answers(["subcut", "-s", "two\\ w"], 2, tmp_path) == ["two\\ words"]
    assert answers(["subcut", "-s", '"two w'], 2, tmp_path) == ["two words"]
    assert answers(["subcut", "-s", "'two w"], 2, tmp_path) == ["two words"]
    assert answers(["subcut", "-s", "it"], 2, tmp_path) == ["it\\'s"]
    assert answers(["subcut", "-s", "semi"], 2, tmp_path) == ["semi\\;\\$\\(touch\\ pwned\\)"]
    assert answers(["subcut", "-s", '"semi'], 2, tmp_path) == ["semi;\\$(touch pwned)"]
    assert answers(["subcut", "-s", "éq"], 2, tmp_path) == ["équipe"]
    assert answers(["subcut", "--start", "=", "lay"], 3, tmp_path) == ["layer:0", "layer:1@a"]
    assert answers(["subcut", "--start", "="], 2, tmp_path)[0] == "x\\[bold\\]y"
    assert answers(["subcut", "-s", "layer", ":"], 3, tmp_path) == ["0", "1@a"]
    assert answers(["subcut", "-s", "layer", ":", "1"], 4, tmp_path) == ["1@a"]
    assert answers(["subcut", "-s", "layer", ":", "1", "@", "a"], 6, tmp_path) == ["a"]
    assert answers(["subcut", "-s", "layer", ":", "0", "-e", "layer", ":", "1"], 8, tmp_path) == [
        "1@a"
    ]
    for bad in ("line", "red", "\u202e"):  # cannot be typed
        assert answers(["subcut", "-s", bad], 2, tmp_path) == []


@pytest.mark.slow
def test_tab_in_a_real_bash(tmp_path: Path) -> None:
    """The script that `--install-completion` installs, in an interactive bash."""
    chain(tmp_path / "odd.onnx", ["first", "two words", "layer:0", "semi;echo", "last"])
    script = shell("subcut --show-completion; exit $?", tmp_path)
    assert script.returncode == 0, script.stderr
    (tmp_path / "rc").write_text(
        f"{script.stdout}\nPS1='$ '\nbind 'set bell-style none'\nsubcut() {{ printf '<%s>' \"$@\";"
        " echo; }\n"
    )
    real = f"env PATH={SUBCUT.parent}:$PATH subcut"
    rc = (tmp_path / "rc").read_text().replace("$1 ) )", f"{real} ) )")
    (tmp_path / "rc").write_text(rc)
    typed = (
        b"subcut -s fi\t-e la\tst\nsubcut --start=tw\t\nsubcut -s layer:\t -e semi\t\nsubcut -s"
        b' "two\t\nexit\n'
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", tmp_path / "rc", "-i"],
        cwd=tmp_path,
        env=environment({"TERM": "dumb"}),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as bash:
        os.write(ours, typed)
        said, _ = bash.communicate(timeout=PATIENCE)
    os.close(ours)
    os.close(theirs)
    assert said.splitlines()[:4] == [
        "<-s><first><-e><last>",
        "<--start=two words>",
        "<-s><layer:0><-e><semi;echo>",
        "<-s><two words>",
    ]


# ------------------------------------------------------------ the rest


def test_version(here: Path) -> None:
    assert subcut("--version", cwd=here) == Done(0, f"subcut {__version__}\n", "")


def test_help_lists_the_commands(here: Path) -> None:
    done = subcut("--help", cwd=here)
    assert done.code == 0
    assert subcut("-h", cwd=here) == done
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name} +\S", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        ([], []),
        (["--json"], ["--json"]),
        (["-s", "a"], ["cut", "-s", "a"]),
        (["m.onnx"], ["cut", "m.onnx"]),
        (["cut"], ["cut"]),
        (["bisekt"], ["bisekt"]),
        (["--help"], ["--help"]),
        (["-s", "a", "--help"], ["cut", "-s", "a", "--help"]),
        (
            ["cut", "-v", "--color", "never", "-s", "a"],
            ["-v", "--color", "never", "cut", "-s", "a"],
        ),
        (["-s", "a", "--", "--json"], ["cut", "-s", "a", "--", "--json"]),
    ],
)
def test_words_are_arranged(words: list[str], arranged: list[str]) -> None:
    assert cli.arrange(words, {"cut", "dump"}) == arranged


def test_ctrl_c_while_a_class_is_made(tmp_path: Path) -> None:
    """Python 3.11 raises a RuntimeError in its place."""
    code = (
        "from subgraph import cli\n"
        "class Field:\n"
        "    def __set_name__(self, owner, name): raise KeyboardInterrupt\n"
        "cli.app = type('App', (), {})\n"
        "cli.typer.main.get_command = lambda app: type('Cut', (), {'types': Field()})\n"
        "cli.main()"
    )
    done = run_program([sys.executable, "-c", code], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
