"""A case travels: packed, copied to another empty folder, checked, unpacked, run. Nothing private
goes.

Covers `cases.bundle`, `cases.contents`, `cases.find_case`, `cases.readme`,
`trials.replay` and `commands.bundle`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from subgraph.cases import bundle
from subgraph.cases.find_case import find_candidate, find_case
from subgraph.cases.layout import BUNDLE_LIST, CANDIDATE_FILES
from subgraph.cases.readme import ENVIRONMENT, README
from subgraph.demo.files import make_files
from subgraph.errors import SubcutError
from tests.helpers import fake_candidate, text_models
from tests.helpers.chain_models import chain
from tests.helpers.examples import examples
from tests.helpers.facts import has_line
from tests.helpers.run_command import run_program, subcut, tree

SECRETS = {
    "MY_API_TOKEN": "s3cr3t-of-the-environment",
    "ORT_SECRET_KEY": "hushhush77",
    "USER": "alice_w",
    "LOGNAME": "alice_w",
    "OMP_NUM_THREADS": "2",
}
TYPED = "typed4567secret"  # as an option of the candidate
LEAKS = ("alice_w", "s3cr3t", "hushhush77", TYPED, "proj dir")
# The demo's candidate, which also prints what is private.
BACKEND = (
    make_files()["wrong.py"]
    .decode()
    .replace("import onnx\n", "import onnx\nimport os, sys\n", 1)
    .replace(
        "    network =",
        '    print("with", os.environ.get("MY_API_TOKEN"), "in", os.getcwd(), file=sys.stderr)\n   '
        " network =",
    )
)
RUN = """
import json, sys
from pathlib import Path
import numpy as np
import onnxruntime
from helpers.shift import SHIFT
model, inputs, outputs = map(Path, sys.argv[1:4])
told = json.loads((inputs / "manifest.json").read_text())
x = {i["name"]: np.load(inputs / i["npy"]) for i in told["inputs"]}
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
for o in told["outputs"]:
    (value,) = session.run([o["name"]], x)
    np.save(outputs / o["npy"], value + np.float32(SHIFT * (o["name"] == "out")))
"""


def names(path: Path) -> list[str]:
    """Of the files in a zip, below its folder."""
    with zipfile.ZipFile(path) as file:
        return [name.partition("/")[2] for name in file.namelist()]


def content(path: Path, name: str) -> Any:
    """One file of a bundle; a document where it is JSON."""
    with zipfile.ZipFile(path) as file:
        data = file.read(f"{file.namelist()[0].partition('/')[0]}/{name}")
    return json.loads(data) if name.endswith(".json") else data.decode()


def carried(path: Path, to: Path) -> Path:
    """A bundle in an empty folder of somebody else's."""
    to.mkdir()
    return Path(shutil.copy(path, to))


def repro(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The script in a case, in an empty folder, by a Python that sees no subcut."""
    return run_program([sys.executable, "-I", folder / "repro.py", *words], cwd=folder)


def steady(document: dict[str, Any]) -> dict[str, Any]:
    """What a replay says, without times and places."""
    rows = [
        {k: v for k, v in row.items() if not k.endswith("seconds")} for row in document["samples"]
    ]
    return {"exit_code": document["exit_code"], "samples": rows}


@pytest.fixture(scope="module")
def bisected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a fault was bisected, with a backend of one's own and much that is
    private."""
    folder = tmp_path_factory.mktemp("home") / "alice_w" / "proj dir"
    folder.mkdir(parents=True)
    for name in ("model.onnx", "input.npy"):
        (folder / name).write_bytes(make_files()[name])
    (folder / "mine.py").write_text(BACKEND, encoding="utf-8")
    spec = f"mine.py:api_key={TYPED}"
    done = subcut(
        "bisect",
        "model.onnx",
        "-i",
        folder / "input.npy",
        "-c",
        spec,
        cwd=folder,
        env=secrets(folder),
    )
    assert done.code == 1, done
    return folder


def secrets(folder: Path) -> dict[str, str]:
    """The environment of somebody who has things to hide."""
    return SECRETS | {"HOME": str(folder.parent), "XDG_CONFIG_HOME": str(folder.parent / "config")}


@pytest.fixture(scope="module")
def packed(bisected: Path) -> Path:
    (place,) = (bisected / "subcut_out").glob("bisect-*")
    words = ("bundle", place, "-o", "it.zip", "--candidate-files", "mine.py")
    done = subcut(*words, cwd=bisected, env=secrets(bisected))
    assert done.code == 0, done
    assert done.out.endswith(": it.zip\n")
    said = [line.rstrip() for line in done.err.splitlines()]
    assert said[0].endswith(": mine.py:api_key=REMOVED")
    assert has_line(said[1], "candidate_files/mine.py")
    assert len(said) == 3 and "log.txt" in said[2]
    return bisected / "it.zip"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder with a small cut in `subcut_out/n1__n1`."""
    folder = tmp_path / "plain"
    folder.mkdir()
    chain(folder / "m.onnx", ["n0", "n1", "n2"])
    np.save(folder / "x.npy", np.array([[1, -2, 3]], np.float32))
    done = subcut("cut", "m.onnx", "-s", "n2", "-e", "n2", "-i", "x.npy", cwd=folder)
    assert done.code == 0, done
    return folder


CUT = Path("subcut_out", "n2__n2")


def cut_model(folder: Path, model: str, *words: str) -> Path:
    """Cut a model from its first to its last node; return the case."""
    last = len(onnx.load(folder / model, load_external_data=False).graph.node) - 1
    done = subcut("cut", model, "-s", "#0", "-e", f"#{last}", *words, "--json", cwd=folder)
    assert done.code == 0, done
    return Path(done.document["results"][0]["path"])


def find_fault(
    folder: Path, spec: str, *words: str | Path, env: dict[str, str] | None = None
) -> Path:
    """Bisect the cut on a candidate; return the folder of the bisection."""
    done = subcut("bisect", folder / CUT, "-c", spec, *words, "--json", cwd=folder, env=env)
    assert done.code == 1, done
    return Path(folder, done.document["report"]).parent


# ------------------------------------------------------------ the whole way


@pytest.mark.slow
def test_bundle_of_a_bisection_replays_elsewhere(
    bisected: Path, packed: Path, tmp_path: Path
) -> None:
    (place,) = (bisected / "subcut_out").glob("bisect-*")
    there = carried(packed, tmp_path / "there").parent
    env = {"HOME": str(there), "XDG_CONFIG_HOME": str(there)}
    asked = subcut("replay", "it.zip", cwd=there, env=env)
    assert (asked.code, asked.out) == (2, "") and "it/" in asked.err
    assert "mine.py:api_key=REMOVED" in asked.err and "-c SPEC" in asked.err
    own = subcut(
        "replay", "it.zip", "-c", "it/candidate_files/mine.py", "--json", cwd=there, env=env
    )
    assert own.code == own.document["exit_code"] == 1 and "it/" in own.err
    assert own.document["case"] == "it/culprit"
    theirs = subcut("replay", "it.zip", "-c", "ort", "--json", cwd=there, env=env).document
    ours = subcut("replay", place, "-c", "ort", "--json", cwd=bisected).document
    assert steady(theirs) == steady(ours)
    right = repro(there / "it" / "culprit")
    assert (right.returncode, right.stderr) == (0, "") and "bit-identical" in right.stdout
    wrong = repro(there / "it" / "culprit", "--outputs", there / "it" / "culprit" / "candidate")
    assert (wrong.returncode, wrong.stderr) == (1, "") and "DIFFERS" in wrong.stdout


@pytest.mark.slow
def test_bundle_has_only_listed_files(packed: Path) -> None:
    inside = names(packed)
    assert inside == sorted(inside)
    wanted = {
        README,
        ENVIRONMENT,
        BUNDLE_LIST,
        *"manifest.json run.json report.html report.md".split(),
        f"{CANDIDATE_FILES}/mine.py",
    }
    wanted |= {f"culprit/{name}" for name in ("model.onnx", "repro.py", "manifest.json")}
    assert wanted < set(inside)
    assert any(name.startswith("culprit/candidate/") for name in inside)
    assert any(name.startswith("culprit-agrees/inputs/") for name in inside)
    manifest = content(packed, "manifest.json")
    assert sorted(manifest["files"]) == sorted(
        {*inside} - {README, ENVIRONMENT, BUNDLE_LIST, f"{CANDIDATE_FILES}/mine.py"}
    )
    identity = manifest["request"]["identity"]
    assert identity["backend"] == "mine.py" and identity["options"] == {"api_key": "REMOVED"}
    assert not any(name.endswith("log.txt") for name in inside)
    text = content(packed, README)
    assert all(len(line) <= 120 for line in text.splitlines())
    assert has_line(text, "stem/pad, stem/pool", "Pad, AveragePool", "2 nodes", "model.onnx")
    assert has_line(text, "FAIL", "stem/pool:0: ")
    assert "python culprit/repro.py --outputs culprit/candidate" in text and has_line(
        text, "replay it.zip --trust"
    )
    assert has_line(text, "About the sender's candidate") and has_line(
        text, "mine.py:api_key=REMOVED"
    )
    run = content(packed, "run.json")
    assert run["findings"][0]["case"] == "culprit" and run["report"] == "report.html"
    assert run["findings"][0]["nodes"] == ["stem/pad", "stem/pool"], "names are not paths"
    assert "network" not in run["model"], "how the rest of the model is built does not leave"


@pytest.mark.slow
def test_nothing_private_leaves(bisected: Path, packed: Path) -> None:
    host = platform.node()
    with zipfile.ZipFile(packed) as file:
        data = {name: file.read(name) for name in file.namelist()}
    words = [*LEAKS, str(bisected.parent), str(bisected.parents[1].name)]
    for name, text in data.items():
        if name.endswith((".json", ".html", ".md", ".txt")):
            assert not re.search(rf"(?<![\w.#-]){re.escape(host)}(?![\w-])", text.decode()), name
        for word in words:
            assert word not in name and word.encode() not in text, (name, word)
    told = json.loads(data["it/" + ENVIRONMENT])
    assert set(told) == {*"schema system machine processor cores packages".split()}


TALKATIVE = """
import os, onnx, platform
from onnx.reference import ReferenceEvaluator
def load(model, options):
    evaluator, nodes = ReferenceEvaluator(str(model)), onnx.load(str(model)).graph.node
    def run(feeds):
        if not any(node.name == "n1" for node in nodes):
            return dict(zip(evaluator.output_names, evaluator.run(None, feeds)))
        raise RuntimeError(f"host={platform.node()} home={os.path.expanduser('~')}/x url=https://bob:hunter2@h.x/p?sig=abc1"
            " Authorization: Basic Ym9iOmh1bnRlcjI= db=postgres://u:pw@db/x ip=10.1.2.3 bobuser@corp.example")
    return run
"""  # noqa: E501
TALK = ("hunter2", "sig=", "Basic", "host=", "bobuser", "10.1.2", "postgres", "alice_w")


@pytest.mark.slow
def test_printed_text_leaves_only_on_request(plain: Path) -> None:
    (plain / "talk.py").write_text(TALKATIVE)
    env = secrets(plain)
    assert subcut("bisect", "m.onnx", "-i", "x.npy", "-c", "talk.py", cwd=plain, env=env).code == 1
    (place,) = (plain / "subcut_out").glob("bisect-*")
    for path, free in (("out.zip", ()), ("all.zip", ("--keep", "all"))):
        assert subcut("bundle", place, "-o", path, *free, cwd=plain, env=env).code == 0
        with zipfile.ZipFile(plain / path) as file:
            texts = [
                file.read(n).decode()
                for n in file.namelist()
                if n.endswith((".json", ".html", ".md", ".txt"))
            ]
        assert any("Basic" in text for text in texts) == bool(free)
        assert not any("hunter2" in text for text in texts)
        assert bool(free) or not any(word in text for text in texts for word in TALK)
    assert "FAIL   throws\n" in content(plain / "out.zip", README)
    assert "  texts: " in content(plain / "all.zip", README) and "log.txt" in content(
        plain / "all.zip", README
    )
    assert content(plain / "out.zip", "run.json")["whole"]["signature"] == "throws"


@pytest.mark.slow
def test_one_region_of_it(bisected: Path, tmp_path: Path) -> None:
    (place,) = (bisected / "subcut_out").glob("bisect-*")
    words = ("bundle", place / "culprit", "--candidate-files", "mine.py", "--json")
    done = subcut(*words, cwd=bisected, env=secrets(bisected))
    assert done.code == 0 and done.document["path"].endswith("-culprit.zip"), done
    path = bisected / done.document["path"]
    assert not any(word in path.name for word in LEAKS)
    assert {"model.onnx", "repro.py", f"{CANDIDATE_FILES}/mine.py"} < set(names(path))
    assert "FAIL   stem/pool:0" in content(path, README)
    there = carried(path, tmp_path / "there").parent
    spec = f"{path.stem}/{CANDIDATE_FILES}/mine.py"
    found = subcut("replay", path.name, "-c", spec, cwd=there, env={"XDG_CONFIG_HOME": str(there)})
    assert found.code == 1
    assert repro(there / path.stem).returncode == 0
    moved = shutil.copytree(there / path.stem, tmp_path / "moved")
    assert (
        subcut(
            "replay", moved, "-c", "ort:opt=disable", "--reference", "ort:opt=basic", cwd=tmp_path
        ).code
        == 0
    )
    path.unlink()


@pytest.mark.slow
def test_full_model_is_bundled(tmp_path: Path) -> None:
    """Weights outside the file come along."""
    here_ = tmp_path / "here"
    there = tmp_path / "there"
    here_.mkdir()
    weight = ((np.arange(2048) * 37 % 101 - 50) / np.float32(50)).astype(np.float32)
    text = "g (float[N,4] x) => (float[N,512] y) { [mm] h = MatMul(x, w) [r] y = Relu(h) }"
    model = text_models.model(text, w=weight.reshape(4, 512))
    onnx.save(
        model, here_ / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    case = cut_model(here_, "big.onnx", "--shape", "x=2x4")
    done = subcut("bundle", case, "-o", "big.zip", "--json", cwd=here_)
    assert done.code == 0 and done.document["path"] == "big.zip", done
    assert {"model.onnx", "outputs/y.npy", "inputs/x.npy"} < set(names(here_ / "big.zip"))
    with zipfile.ZipFile(here_ / "big.zip") as file:
        assert any((here_ / "w.bin").read_bytes() in file.read(name) for name in file.namelist())
    first = (here_ / "big.zip").read_bytes()
    assert subcut("bundle", case, "-o", "big.zip", cwd=here_).code == 0
    assert (here_ / "big.zip").read_bytes() == first
    carried(here_ / "big.zip", there)
    assert subcut("replay", "big.zip", "-o", "un/packed", "-c", "ort", cwd=there).code == 0
    assert repro(there / "un" / "packed").returncode == 0


@pytest.mark.slow
def test_command_is_bundled_with_its_scripts(plain: Path, tmp_path: Path) -> None:
    (plain / "helpers").mkdir()
    (plain / "helpers" / "shift.py").write_text("SHIFT = 0.5\n")
    (plain / "run.py").write_text(RUN)
    secret = (
        f"cmd:{sys.executable} {plain / 'run.py'} {{model}} {{inputs}} {{outputs}} --token={TYPED}"
    )
    found = find_fault(plain, secret, "-o", "secret")
    assert subcut("bundle", found, "-o", "secret.zip", cwd=plain).code == 0
    told = content(plain / "secret.zip", "manifest.json")["request"]["identity"]
    program = Path(sys.executable).name
    assert (
        told["options"]["run"]
        == f"{program} run.py {{model}} {{inputs}} {{outputs}} --token=REMOVED"
    )
    found = find_fault(plain, f"cmd:{sys.executable} run.py {{model}} {{inputs}} {{outputs}}")
    words = ("bundle", found / "culprit", "-o", "out.zip")
    done = subcut(*words, cwd=plain)
    assert done.code == 0 and "run.py" in done.err and "--candidate-files" in done.err
    done = subcut(*words, "--candidate-files", "helpers", "--candidate-files", "run.py", cwd=plain)
    assert done.code == 0 and "--candidate-files" not in done.err, done
    path = plain / "out.zip"
    assert {
        f"{CANDIDATE_FILES}/run.py",
        f"{CANDIDATE_FILES}/helpers/shift.py",
        "candidate/out.npy",
    } < set(names(path))
    told = content(path, BUNDLE_LIST)
    command = told["found_with"]["request"]["identity"]["options"]["run"]
    assert command == f"{program} run.py {{model}} {{inputs}} {{outputs}}"
    assert f"run: {command}" in content(path, README) and f"run: {command}" in done.err
    assert told["found"]["status"] == "fail"
    there = carried(path, tmp_path / "there").parent
    env = {
        "XDG_CONFIG_HOME": str(there),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    asked = subcut("replay", "out.zip", cwd=there, env=env)
    assert asked.code == 2 and command in asked.err and "--trust" in asked.err
    shutil.move(plain, tmp_path / "gone")
    again = subcut("replay", "out.zip", "--trust", cwd=there, env=env)
    assert again.code == 1 and "max error " in again.out and "; limit " in again.out, again
    assert subcut("replay", "out.zip", cwd=there, env=env).code == 1, "trusted before, and the same"
    (there / "out" / CANDIDATE_FILES / "helpers" / "shift.py").write_text("SHIFT = 0\n")
    # a script that no command names has changed
    assert subcut("replay", "out", cwd=there, env=env).code == 2


@pytest.mark.slow
def test_several_samples_are_bundled(plain: Path) -> None:
    (plain / "many").mkdir()
    for k in range(2):
        np.save(plain / "many" / f"s{k}.npy", np.array([[1, -2, 3]], np.float32) * (2 * k - 1))
    case = cut_model(plain, "m.onnx", "-i", "many")
    assert subcut("bundle", case, "-o", "m.zip", cwd=plain).code == 0
    assert {f"outputs/s{k}/out.npy" for k in range(2)} < set(names(plain / "m.zip"))
    done = subcut("replay", "m.zip", "--json", "-o", "m", "-c", "ort", cwd=plain)
    assert done.code == 0 and [row["sample"] for row in done.document["samples"]] == ["s0", "s1"]
    assert repro(plain / "m").returncode == 0
    given = shutil.copytree(plain / "m" / "outputs", plain / "given")
    assert repro(plain / "m", "--outputs", given).returncode == 0
    np.save(given / "s1" / "out.npy", np.ones((1, 3), np.float32) * 9)
    wrong = repro(plain / "m", "--outputs", given)
    said = [line.split()[2] for line in wrong.stdout.splitlines()]
    assert (wrong.returncode, said) == (1, ["bit-identical", "DIFFERS:"])


@pytest.mark.slow
def test_outputs_that_a_device_wrote(plain: Path) -> None:
    given = plain / "given"
    given.mkdir()
    missing = repro(plain / CUT, "--outputs", given)
    assert missing.returncode == 1 and "out: " in missing.stdout
    shutil.copy(plain / CUT / "outputs" / "out.bin", given)
    assert has_line(repro(plain / CUT, "--outputs", given).stdout, "out: ", "identical")
    (given / "out.bin").write_bytes(b"1234")
    assert repro(plain / CUT, "--outputs", given).returncode == 1
    assert "no folder" in repro(plain / CUT, "--outputs", plain / "nowhere").stderr


def test_added_file_stays_in_a_bundle(plain: Path) -> None:
    (plain / CUT / "passwords.txt").write_text("mine")
    (plain / CUT / "from_device").mkdir()
    shutil.copy(plain / CUT / "outputs" / "out.npy", plain / CUT / "from_device")
    done = subcut("bundle", CUT, "--json", cwd=plain)
    assert done.document["left_out"] == ["passwords.txt"] and has_line(done.err, "passwords.txt")
    assert "from_device/out.npy" in names(plain / "n2__n2.zip")


def test_model_with_a_home_path_has_a_warning(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", ["a", "b"])
    model = onnx.load(path)
    model.doc_string = f"exported in {tmp_path}/train"
    onnx.save(model, path)
    case = cut_model(tmp_path, "m.onnx")
    done = subcut("bundle", case, cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert done.code == 0 and "home path" in done.err


@pytest.mark.slow
def test_sweep_case_is_bundled(tmp_path: Path, operator_tests: Path) -> None:
    shutil.copytree(operator_tests, tmp_path / "subcut_out" / ".store", copy_function=os.link)
    words = ("-c", f"{fake_candidate.HERE}:op=Elu", "--only", "test_elu*", "--only", "test_abs")
    assert subcut("sweep", *words, "-q", cwd=tmp_path).code == 1
    (place,) = (tmp_path / "subcut_out").glob("sweep-*")
    assert subcut("bundle", place, "-o", "all.zip", cwd=tmp_path).code == 0
    done = subcut("replay", "all.zip", "-c", "ort", cwd=tmp_path)
    assert done.code == 2 and "test_elu_example" in done.err
    assert subcut("replay", "all/test_elu_example", "-c", "ort", cwd=tmp_path).code == 0
    assert subcut("bundle", place / "test_elu", "-o", "one.zip", cwd=tmp_path).code == 0
    assert subcut("replay", "one.zip", "-c", "ort", cwd=tmp_path).code == 0
    assert repro(tmp_path / "one").returncode == 0


# ------------------------------------------------------------ slips


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["bundle", "empty"], 2),
        (["bundle", "x.npy"], 2),
        (["bundle", CUT, "-o", "x.zip"], 2),
        (["replay", "x.npy"], 2),
        (["replay", "x.zip"], 2),
        (["replay", "empty.zip"], 2),
        (["replay", CUT, "-o", "x"], 2),
        (["replay", "good.zip", "-o", "empty"], 2),
        (["replay", "good.zip", "-o", "x.npy/a"], 74),
    ],
)
def test_slips_change_no_file(words: list[str | Path], code: int, slipping: Path) -> None:
    before = tree(slipping)
    done = subcut(*words, cwd=slipping)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") <= 3 and tree(slipping) == before


@pytest.fixture(scope="module")
def slipping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a case, a bundle, and what is neither."""
    folder = tmp_path_factory.mktemp("slips")
    chain(folder / "m.onnx", ["n0", "n1", "n2"])
    np.save(folder / "x.npy", np.array([[1, -2, 3]], np.float32))
    assert subcut("cut", "m.onnx", "-s", "n2", "-e", "n2", "-i", "x.npy", cwd=folder).code == 0
    assert subcut("bundle", CUT, "-o", "good.zip", cwd=folder).code == 0
    (folder / "empty").mkdir()
    (folder / "empty" / "note").touch()
    (folder / "empty.zip").touch()
    with zipfile.ZipFile(folder / "x.zip", "w") as file:
        file.writestr("a/b", "c")
    return folder


@pytest.mark.slow
def test_another_bundle_is_not_replaced_unasked(plain: Path) -> None:
    assert subcut("bundle", CUT, "-o", "a.zip", cwd=plain).code == 0
    assert subcut("bundle", CUT, "-o", "a.zip", cwd=plain).code == 0, "its own earlier result"
    other = cut_model(plain, "m.onnx")
    refused = subcut("bundle", other, "-o", "a.zip", cwd=plain)
    assert refused.code == 2 and "--force" in refused.err
    assert subcut("bundle", other, "-o", "a.zip", "--force", cwd=plain).code == 0


@pytest.mark.slow
def test_unpacked_bundle_is_zipped_by_hand(asked: Path, tmp_path: Path) -> None:
    done = subcut("bundle", asked, cwd=tmp_path)
    assert done.code == 2
    words = [sys.executable, *done.err.partition("python ")[2].split()]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert not bundle.unpack(tmp_path / "asked.zip", asked), "the same bundle"


@pytest.mark.slow
def test_candidate_of_the_project_file_is_bundled(plain: Path, tmp_path: Path) -> None:
    """Its commands are relative to that file, wherever below it subcut runs; its claims go
    along."""
    (plain / "tools").mkdir()
    (plain / "tools" / "go.sh").write_text('#!/bin/sh\ncp "$2"/*.npy "$3"/out.npy\n')
    (plain / "tools" / "go.sh").chmod(0o755)
    run = "tools/go.sh {model} {inputs} {outputs}"
    (plain / "subcut.toml").write_text(
        f'[candidates.npu]\nrun = "{run}"\nprecision = "fp16"\ntimeout = 77\n'
    )
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = find_fault(plain, "npu", "--trust", env=env)
    words = ("bundle", found / "culprit", "-o", "../npu.zip", "--candidate-files", "../tools")
    done = subcut(*words, cwd=plain / "subcut_out", env=env)
    assert done.code == 0, done
    request = content(plain / "npu.zip", BUNDLE_LIST)["found_with"]["request"]
    assert (request["candidate"], request["precision"], request["identity"]["timeout"]) == (
        "npu",
        "fp16",
        77,
    )
    there = carried(plain / "npu.zip", tmp_path / "there").parent
    assert os.access(there, os.X_OK) and subcut("replay", "npu.zip", cwd=there, env=env).code == 2
    again = subcut("replay", "npu.zip", "--trust", cwd=there, env=env)
    assert again.code in (0, 1) and has_line(again.out, "npu/ on npu"), again
    assert os.access(there / "npu" / CANDIDATE_FILES / "tools" / "go.sh", os.X_OK)


def test_cut_without_tensors_is_refused(plain: Path) -> None:
    assert subcut("cut", "m.onnx", "-s", "n1", "-e", "n1", "--no-capture", cwd=plain).code == 0
    done = subcut("bundle", "subcut_out/n1__n1", cwd=plain)
    assert done.code == 2 and "--no-capture" in done.err


def test_manifest_cannot_send_other_files(plain: Path) -> None:
    """It may come from anywhere: what it lists must be files of the case."""
    manifest = plain / CUT / "manifest.json"
    document = json.loads(manifest.read_text())
    for name in ("../../m.onnx", str(plain / "m.onnx"), "link"):
        (plain / CUT / "link").unlink(missing_ok=True)
        (plain / CUT / "link").symlink_to(plain / "m.onnx")
        manifest.write_text(json.dumps(document | {"files": [*document["files"], name]}))
        done = subcut("bundle", CUT, cwd=plain)
        assert done.code == 2 and not (plain / "n2__n2.zip").exists(), done


def test_candidate_files_with_a_secret(plain: Path) -> None:
    (plain / "key.sh").write_text(f"curl -H {SECRETS['MY_API_TOKEN']}")
    done = subcut("bundle", CUT, "--candidate-files", "key.sh", cwd=plain, env=SECRETS)
    assert done.code == 2 and "key.sh" in done.err


@pytest.mark.slow
def test_candidate_file_goes_along_where_the_user_names_it(plain: Path, tmp_path: Path) -> None:
    far = tmp_path / "far.py"
    far.write_text(
        "import numpy as np\n\ndef load(model, options):\n"
        "    return lambda feeds: {'out': np.ones((1, 3), np.float32) * 9}\n"
    )
    words = ("bundle", find_fault(plain, str(far)) / "culprit", "-o", "far.zip")
    done = subcut(*words, cwd=plain)
    assert done.code == 0 and "far.py" in done.err and "--candidate-files" in done.err
    assert f"{CANDIDATE_FILES}/far.py" not in names(plain / "far.zip")
    replayed = subcut("replay", "far.zip", "--trust", cwd=plain)
    assert replayed.code == 2 and "far.py" in replayed.err
    shutil.rmtree(plain / "far")
    assert subcut(*words, "--candidate-files", far, cwd=plain).code == 0
    assert f"{CANDIDATE_FILES}/far.py" in names(plain / "far.zip")
    assert subcut("replay", "far.zip", "--trust", cwd=plain).code == 1


# ------------------------------------------------------------ what it says


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 1e308, True, "", "x", "../x", "/etc/passwd", [], [[]], {}, {"a": 1}]
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value in a document."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(p for k, v in inner for p in places(v, (*at, k)))]


@pytest.fixture(scope="module")
def asked(slipping: Path) -> Path:
    """An unpacked bundle that tells its candidate."""
    found = find_fault(slipping, f"{fake_candidate.HERE}:nodes=n2", "-o", slipping.parent / "out")
    done = subcut("bundle", found / "culprit", "-o", "asked.zip", cwd=slipping)
    assert done.code == 0, done
    (slipping / "asked.zip").rename(slipping.parent / "asked.zip")
    assert bundle.unpack(slipping.parent / "asked.zip", slipping.parent / "asked")
    return slipping.parent / "asked"


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.data())
def test_odd_documents_are_damaged_ones(asked: Path, data: st.DataObject) -> None:
    """Whatever a bundle's documents say: a case is found, or an error of ours says why not."""
    file = asked / data.draw(st.sampled_from(("manifest.json", BUNDLE_LIST)))
    whole = file.read_text()
    document = json.loads(whole)
    at = data.draw(st.sampled_from([p for p in places(document) if p]))
    inner = document
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = data.draw(ODD)
    try:
        file.write_text(json.dumps(document))
        found = find_case(asked)
        find_candidate(found)
    except SubcutError as e:
        assert e.what and e.exit_code in (2, 3)
    finally:
        file.write_text(whole)


@pytest.mark.parametrize("strip", [False, True])
def test_metadata_and_documentation_that_go_along_are_counted_and_private_details_named(
    strip: bool, tmp_path: Path
) -> None:
    made = text_models.model(
        "g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=np.ones(2, np.float32)
    )
    private = [
        "https://jane:Passw0rd77@git.corp.example/x.git",
        "jane.doe@corp.example",
        "on npulab7",
    ]
    for key, value in zip(("git", "author"), private, strict=False):
        made.metadata_props.add(key=key, value=value)
    made.doc_string = private[2]
    made.graph.initializer[0].doc_string = private[2]
    onnx.save(made, tmp_path / "m.onnx")
    case = cut_model(tmp_path, "m.onnx")
    done = subcut("bundle", case, "-o", "m.zip", *["--strip-metadata"] * strip, cwd=tmp_path)
    assert done.code == 0, done
    told = re.search(
        r"metadata: (\d+) texts?, documentation: (\d+) text.*--strip-metadata", done.err
    )
    warned = [
        line
        for line in done.err.splitlines()
        if line.startswith("warning: ") and "--strip-metadata" in line
    ]
    with zipfile.ZipFile(tmp_path / "m.zip") as archive:
        data = b"".join(map(archive.read, archive.namelist()))
    if strip:
        assert not told and not warned
        assert not any(text.encode() in data for text in private)
    else:
        assert told and (int(told[1]), int(told[2])) == (2, 2)
        assert len(warned) == 1
        assert all(
            kind in warned[0]
            for kind in ("a URL with a password", "a mail address", "the address of a host")
        )
