"""Models as tests of pytest: what is collected, what a failing test says, that nothing unsure is
green.

Covers `pytest_plugin` and `agreement`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fixtures import ROOT
from subgraph import project
from subgraph.errors import SubcutError, UnknownName, UsageError
from tests.helpers import text_models
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.pages import PLUGIN
from tests.helpers.process_backends import MARK, all_gone
from tests.helpers.run_command import SOON, environment, run_program

pytest_plugins = ["pytester"]
# pytester forgets what is imported in its sessions, this with numpy
import_module("subgraph.agreement")

TESTS = """
[[tests]]
model = "models/*.onnx"
candidate = ["ort", "npu"]

[[tests]]
model = "models/a.onnx"
input = "x.npy"

[candidates.npu]
spec = "ort:opt=basic"
"""
IDS = [
    *("subcut.toml::models/a.onnx[ort]", "subcut.toml::models/a.onnx[npu]"),
    *("subcut.toml::models/b.onnx[ort]", "subcut.toml::models/b.onnx[npu]"),
    "subcut.toml::models/a.onnx[ort]-2",
]


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """A rootdir with two models, a project file and a plain test."""
    (pytester.path / "models").mkdir()
    for name in "ab":
        (pytester.path / f"models/{name}.onnx").touch()
    (pytester.path / "subcut.toml").write_text(TESTS)
    (pytester.path / "test_plain.py").write_text("def test_plain():\n    pass\n")
    return pytester.path


def collected(pytester: pytest.Pytester, *words: str) -> list[str]:
    """The node ids that these words collect."""
    done = pytester.runpytest_inprocess(*PLUGIN, "--collect-only", "-q", *words)
    return [line for line in done.outlines if "::" in line]


def test_each_model_on_each_candidate_is_a_test(pytester: pytest.Pytester, folder: Path) -> None:
    assert collected(pytester, "--subcut") == [*IDS, "test_plain.py::test_plain"]
    assert collected(pytester) == ["test_plain.py::test_plain"]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["-k", "npu and b.onnx"], [IDS[3]]),
        ([IDS[1]], [IDS[1]]),
        (["subcut.toml"], IDS),
        (["test_plain.py"], ["test_plain.py::test_plain"]),
    ],
)
def test_tests_of_models_are_chosen_as_others(
    words: list[str], ids: list[str], pytester: pytest.Pytester, folder: Path
) -> None:
    assert collected(pytester, "--subcut", *words) == ids


def test_testpaths_do_not_hide_the_project_file(pytester: pytest.Pytester, folder: Path) -> None:
    (folder / "tests").mkdir()
    (folder / "subcut.toml").rename(folder / "part.toml")
    settings = (folder / "part.toml").read_text().replace("[[tests]]", "[[tool.subcut.tests]]")
    settings = settings.replace("[candidates", "[tool.subcut.candidates")
    (folder / "pyproject.toml").write_text(
        f"[tool.pytest.ini_options]\ntestpaths = ['tests']\n{settings}"
    )
    assert collected(pytester, "--subcut") == [name.replace("subcut", "pyproject") for name in IDS]


def test_project_file_further_down_runs_nothing(pytester: pytest.Pytester, folder: Path) -> None:
    """It may lie in somebody's bundle; named on the command line, it counts."""
    below = folder / "below"
    below.mkdir()
    (below / "subcut.toml").write_text('[[tests]]\nmodel = "../models/a.onnx"\n')
    assert not any("below" in name for name in collected(pytester, "--subcut"))
    assert collected(pytester, "--subcut", "below/subcut.toml") == [
        "below/subcut.toml::../models/a.onnx[ort]"
    ]


def test_name_reaches_the_terminal_without_its_control_characters(
    pytester: pytest.Pytester, folder: Path
) -> None:
    (folder / "models/\x1b[31mred.onnx").touch()
    found = collected(pytester, "--subcut")
    assert len(found) == len(IDS) + 3
    assert "\x1b" not in "".join(found)


def test_code_that_a_file_above_the_rootdir_names_is_not_run(pytester: pytest.Pytester) -> None:
    (pytester.path / "subcut.toml").write_text('[candidates.npu]\nspec = "evil.py"\n')
    (pytester.path / "evil.py").write_text("raise SystemExit\n")
    root = pytester.mkdir("root")
    (root / "pytest.ini").write_text("[pytest]\n")
    chain(root / "chain.onnx", ["abs", "neg"])
    test = f"def test(subcut_agrees):\n    subcut_agrees({str(root / 'chain.onnx')!r}, 'npu')\n"
    (root / "test_npu.py").write_text(test)
    done = pytester.runpytest_inprocess(*PLUGIN, f"--rootdir={root}", root)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["error: candidate npu would run code from *subcut.toml: *evil.py", "  to run it, *"]
    )


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "text",
    [
        "[[tests]]\nmodle = 'a'",
        "[[tests]]\nmodel = 'none/*.onnx'",
        "[[tests]]\ncandidate = 'ort'",
        "seed = 1",
        "seed = ",
        None,
    ],
)
def test_slip_is_no_green_run(text: str | None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    if text is not None:
        (pytester.path / "subcut.toml").write_text(text)
    done = pytester.runpytest_inprocess(*PLUGIN, "--subcut")
    assert done.ret not in (0, 1)
    shown = "\n".join([*done.outlines, *done.errlines])
    assert "Traceback" not in shown
    assert "INTERNALERROR" not in shown


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("tests = 3", UsageError),
        ("tests = ['m.onnx']", UsageError),
        ("[[tests]]\njobs = 2", UsageError),
        ("[[tests]]\nmodel = [1]", UsageError),
        ("[[tests]]\nmodel = 'm.onnx'\ncandidate = []", UsageError),
        ("[[tests]]\nsede = 1", UnknownName),
    ],
)
def test_slip_in_a_table_of_tests_names_the_file(
    table: str, error: type[SubcutError], tmp_path: Path
) -> None:
    (tmp_path / "subcut.toml").write_text(table)
    with pytest.raises(error) as e:
        list(project.load(tmp_path).iter_tests())
    assert str(tmp_path / "subcut.toml") in e.value.what


def test_test_has_the_settings_of_the_file_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "subcut.toml").write_text(
        'candidate = "npu"\nseed = 3\ncriterion = "tnn"\n[[tests]]\nmodel = ["a.onnx",'
        ' "b.onnx"]\nseed = 4\n'
    )
    found = [one.values for one in project.load(tmp_path).iter_tests()]
    assert [Path(one["model"]).name for one in found] == ["a.onnx", "b.onnx"]
    assert all(
        (one["candidate"], one["seed"], one["criterion"]) == ("npu", 4, "tnn") for one in found
    )
    assert all(Path(one["model"]).parent == tmp_path for one in found)


# ------------------------------------------------------------ real runs

CASES = """
import numpy as np
import pytest

FAKE = {fake!r}


def test_right(subcut_agrees):
    subcut_agrees("chain.onnx", "ort", "x.npy")


@pytest.mark.parametrize("model", ["./chain.onnx"])
def test_wrong(subcut_agrees, model, tmp_path, record_property):
    record_property("own", 1)
    subcut_agrees(model, FAKE + ":op=Neg,fault=wrong", {{"in": np.full((1, 3), 0.2, np.float32)}})


def test_state(subcut_agrees):
    subcut_agrees("chain.onnx", "state.py")


def test_refused(subcut_agrees):
    subcut_agrees("chain.onnx", "cmd:{python} no.py {{model}} {{inputs}} {{outputs}}")


def test_once(subcut_agrees):
    subcut_agrees("chain.onnx", FAKE + ":log=once")


def test_flaky(subcut_agrees, tmp_path):
    subcut_agrees("chain.onnx", f"{{FAKE}}:blots=*,after=2,then=right,log={{tmp_path}}")


def test_unread(subcut_agrees):
    subcut_agrees("empty.onnx")


def test_no_runtime(subcut_agrees):
    subcut_agrees("chain.onnx", "none")


def test_no_model(subcut_agrees):
    subcut_agrees("gone.onnx")


def test_bad_array(subcut_agrees):
    subcut_agrees("chain.onnx", inputs={{"in": np.ones((2, 2))}})


def test_limit(subcut_agrees):
    varied = {{"in": np.float32([[-1, 0.2, 3]])}}
    subcut_agrees("chain.onnx", FAKE + ":op=Neg,fault=drift", varied, criterion="numpy:rtol=0.2")
"""
STATE = """
from pathlib import Path

import numpy as np
import onnxruntime


def load(model, options):
    session = onnxruntime.InferenceSession(model)
    names = [output.name for output in session.get_outputs()]
    add = float(Path("{state}").read_text())
    return lambda feeds: {{name: value + np.float32(add) for name, value in zip(names, session.run(names, feeds))}}
"""  # noqa: E501


@dataclass(frozen=True)
class Outcome:
    """A test in junit's XML: the text of its failure, "" where it passed, and its properties."""

    says: str
    properties: Mapping[str, str]


def outcomes(folder: Path, *words: str) -> dict[str, Outcome]:
    """What one session says of each test."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--junitxml=junit.xml", *words]
    env = environment({"PYTHONPATH": str(ROOT)})
    done = run_program(command, cwd=folder, env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        failure = case.find("failure")
        properties = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        assert case.find("error") is None
        found[case.attrib["name"]] = Outcome(
            "" if failure is None else failure.text or "", properties
        )
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, candidates and tests."""
    place = tmp_path_factory.mktemp("models")
    fake = ROOT / "tests/helpers/fake_candidate.py"
    chain(place / "chain.onnx", ["abs", "neg", "relu", "abs2"])
    np.save(place / "x.npy", np.array([[-2, -2.5, -3]], np.float32))
    text = """g (float[4] in) => (float[4] out, float[0] nothing) <int64[1] none = {0}> {
        out = Relu(in) nothing = Slice(in, none, none)
    }"""
    text_models.save(place / "empty.onnx", text)
    (place / "once").mkdir()
    (place / "no.py").write_text("import sys\nsys.exit(125)\n")
    (place / "state").write_text("1")
    (place / "state.py").write_text(STATE.format(state=place / "state"))
    (place / "test_models.py").write_text(CASES.format(fake=str(fake), python=sys.executable))
    (place / "subcut.toml").write_text(
        '[[tests]]\nmodel = "chain.onnx"\ncandidate = ["ort", "npu"]\n'
        f'[candidates.npu]\nspec = "{fake}:op=Neg,fault=nan"\n'
    )
    return place


@pytest.fixture(scope="module")
def first(place: Path) -> Iterator[dict[str, Outcome]]:
    """The outcomes of a first session."""
    yield outcomes(place, "--subcut")


@pytest.mark.slow
def test_right_candidate_passes(first: dict[str, Outcome], place: Path) -> None:
    for name in ("chain.onnx[ort]", "test_right", "test_limit"):
        assert first[name] == Outcome("", {})
        # it leaves no folder
        assert not list(place.glob(f"subcut_out/*{name.replace('[', '_').strip(']')}*"))


@pytest.mark.slow
def test_right_candidate_costs_one_run_and_one_with_another_input(
    first: dict[str, Outcome], place: Path
) -> None:
    assert first["test_once"].says == ""
    assert [line.split()[1] for line in (place / "once/log").read_text().splitlines()] == [
        "load",
        "run",
    ] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain.onnx[npu]", "test_wrong[./chain.onnx]"])
def test_wrong_candidate_fails_with_place_and_next_command(
    name: str, first: dict[str, Outcome], place: Path
) -> None:
    lines = first[name].says.splitlines()
    assert has_line(lines[0], ": 1 of 4", "neg (Neg)")
    assert has_line(lines[1], "chain.onnx")
    assert " a bug: " in f" {lines[2].strip()}"
    case, report = (lines[k].partition(": ")[2] for k in (3, 4))
    assert [line.split(":")[0].strip() for line in lines[3:]] == ["case", "report", "next"]
    assert (place / case / "model.onnx").is_file()
    assert (place / report).is_file()
    assert has_line(lines[5], "next", "replay", f"{case}")
    told = dict(first[name].properties)
    told.pop("own", None)
    assert told == {"subcut": lines[0], "subcut_case": case, "subcut_report": report}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_refused", ["unresolved: chain.onnx on cmd:", "exit code 125", "\n  not searched: "]),
        ("test_flaky", ["flaky: not right in the first run, then right in ", "chain.onnx on "]),
        (
            "test_unread",
            [
                "unresolved: an output was not compared\n  empty.onnx on ort: nothing: the shape"
                " is 0"
            ],
        ),
        ("test_no_runtime", ["error: no candidate 'none'", "one of "]),
        ("test_no_model", ["error: no file gone.onnx\n  did you mean"]),
        ("test_bad_array", ["error: ", "the array has shape 2×2; input 'in' takes 1×3"]),
    ],
)
def test_unresolved_candidate_never_passes(
    name: str, says: list[str], first: dict[str, Outcome]
) -> None:
    for part in says:
        assert part in first[name].says
    assert first[name].says.startswith(says[0])


@pytest.mark.rare
@pytest.mark.slow
def test_second_session_in_parallel_runs_the_whole_anew(
    first: dict[str, Outcome], place: Path
) -> None:
    """No stored answer of a candidate that has changed in a way that nothing shows counts."""
    assert first["test_state"].says.startswith("wrong: ")
    (place / "state").write_text("0")
    second = outcomes(
        place, "-n", "2", "--subcut", "-k", "state or chain", "--subcut-output", "there"
    )
    assert second["test_state"].says == ""
    assert second["chain.onnx[npu]"].says == first["chain.onnx[npu]"].says.replace(
        "subcut_out/", "there/"
    )
    (place / "state").write_text("1")


@pytest.mark.slow
def test_interrupt_ends_every_process(place: Path, mark: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(
        "def test_hangs(subcut_agrees):\n"
        f"    subcut_agrees({str(place / 'chain.onnx')!r},"
        f" {str(ROOT / 'tests/helpers/fake_candidate.py')!r} + ':pause=600,log={tmp_path}')\n"
    )
    env = environment({**mark, "PYTHONPATH": str(ROOT)})
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGIN],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    end = time.monotonic() + SOON
    while not (tmp_path / "log").exists() and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=SOON)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, said
    all_gone(mark[MARK])


@pytest.mark.slow
def test_installed_it_is_there_and_costs_others_nothing(tmp_path: Path) -> None:
    """As pip installs the package: pytest finds the plugin, which imports nothing that is not
    used."""
    site = tmp_path / "site"
    pip = [
        sys.executable,
        *"-m pip install -q --no-deps --no-build-isolation --target".split(),
        str(site),
        str(ROOT),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n    ours = {m for m in sys.modules if"
        " m.startswith('subgraph')}\n    assert ours == {'subgraph', 'subgraph.lazy',"
        " 'subgraph.version', 'subgraph.pytest_plugin'}\n"
        "    assert not {'numpy', 'onnx', 'typer'} & {*sys.modules}\n"
    )
    done = run_program(
        [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(site)}),
    )
    assert done.returncode == 0, done.stdout
    assert "subcut-" in done.stdout  # in the line of plugins
