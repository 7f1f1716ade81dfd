"""`subcut bisect` under adverse conditions: kills, Ctrl-C, full disks, candidates that change
during a search, flaky ones, errors that accumulate, hostile names, budgets, damaged cases.

A search is expensive, so two promises hold throughout: no finished run is repeated, and no finding
is wrong. Each run is a process of its own; processes that outlive it are found by a mark in their
environment.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import onnx
import pytest

from tests.helpers import fake_candidate
from tests.helpers.chain_models import line, products
from tests.helpers.disks import fill, limit_files
from tests.helpers.documents import problem
from tests.helpers.facts import has_line
from tests.helpers.process_backends import MARK, all_gone, until
from tests.helpers.run_command import (
    NO_BYTECODE,
    PATIENCE,
    Done,
    finish,
    run_program,
    start,
    subcut,
    tree,
)

# nodes of the models by which `trials.preflight` probes a candidate
PROBES = re.compile("(Relu|Add|Identity)([+]Add)?")
QUICK = ("--rtol", "1e-3", "--keep-input")
LONG = 280  # seconds; other work may share the machine
SHORT = [f"n{i}" for i in range(8)]
NAMES = [f"n{i}" for i in range(24)]
SMALL_ERROR = "1.001"  # on every node; 24 of them are beyond `LOOSE`, any few are not
LOOSE = ("--rtol", "1e-2")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a chain of eight nodes and an input for it."""
    folder = tmp_path / "here"
    folder.mkdir()
    line(folder / "m.onnx", SHORT)
    np.save(folder / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))
    (folder / "log").mkdir()
    return folder


def doubted(folder: Path, **faults: str | int) -> tuple[str, str]:
    """`-c SPEC` of the doubtful runtime with these faults; it logs in the folder's `log`."""
    faults = {"log": str(folder / "log"), **faults}
    return (
        "-c",
        f"{fake_candidate.HERE}:{','.join(f'{name}={value}' for name, value in faults.items())}",
    )


def start_bisect(
    *words: str | Path, cwd: Path, env: dict[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Start a bisection of the chain."""
    inputs = () if "-i" in words else ("-i", "x.npy")
    return start("bisect", "m.onnx", *inputs, *words, cwd=cwd, env=env, **more)


def bisect(*words: str | Path, cwd: Path, **more: Any) -> Done:
    """A bisection to its end; with an environment of its own, in a process of its own."""
    inputs = () if "-i" in words else ("-i", "x.npy")
    return subcut(
        "bisect", "m.onnx", *inputs, *words, cwd=cwd, **(more | ({"timeout": LONG} if more else {}))
    )


def found(done: Done) -> dict[str, Any]:
    """The document of `--json`, which keeps to its schema."""
    document = done.document
    assert "error" not in document, document
    assert not problem(document)
    assert done.code == document["exit_code"]
    return document


def answer(document: dict[str, Any]) -> list[Any]:
    """The findings, without times and paths."""
    told = ("kind", "signature", "nodes", "certified", "explains", "reproduces", "why", "nearest")
    return [
        document["outcome"],
        document["trials"],
        *({k: f[k] for k in told} for f in document["findings"]),
    ]


def named(document: dict[str, Any]) -> list[list[str]]:
    """The nodes of each finding."""
    return [finding["nodes"] for finding in document["findings"]]


def loads(folder: Path, *, with_probes: bool = False) -> list[str]:
    """The nodes of each model that the candidate loaded, in order; without the models that only
    probe it."""
    log = folder / "log" / "log"
    words = [row.split() for row in log.read_text().splitlines()] if log.exists() else []
    return [
        row[3]
        for row in words
        if row[1] == "load" and (with_probes or not PROBES.fullmatch(row[3]))
    ]


def runs(folder: Path) -> int:
    """Number of runs that the candidate has begun."""
    log = folder / "log" / "log"
    return sum(row.endswith(" run") for row in log.read_text().splitlines()) if log.exists() else 0


def comes_to(holds: Callable[[], bool], run: subprocess.Popen[str]) -> bool:
    """Wait until it holds; False if the run ended before. A run that hangs is killed."""
    try:
        until(lambda: holds() or run.poll() is not None)
    except AssertionError:
        run.kill()
        raise AssertionError(finish(run, LONG)) from None
    return holds()


def place(folder: Path) -> Path:
    """The one result in a folder's `subcut_out`."""
    (one,) = (folder / "subcut_out").glob("bisect-*")
    return one


def whole(folder: Path) -> None:
    """Results are complete: they hold exactly the files that the manifest lists."""
    for result in (folder / "subcut_out").glob("bisect-*"):
        manifest = json.loads((result / "manifest.json").read_text())
        assert sorted(manifest["files"]) == sorted(tree(result))
        assert json.loads((result / "run.json").read_text())["schema"] == "subcut.bisect/1"


# ------------------------------------------------------------ kills


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("jobs", "fault"),
    [(1, ("nodes", "n7+n9")), pytest.param(2, ("dies", "n13"), marks=pytest.mark.rare)],
)
def test_killed_at_ten_moments_it_goes_on(
    jobs: int, fault: tuple[str, str], here: Path, tmp_path: Path
) -> None:
    """Moments spread over the search, from before its first trial to its last; at most what runs
    then is lost.

    Where a machine was too slow to kill some of them in time, it tries again.
    """
    line(here / "m.onnx", NAMES)
    other = shutil.copytree(here, tmp_path / "other")
    words = ("--jobs", str(jobs), *QUICK, "--json")
    want = found(bisect(*doubted(other, **dict([fault])), *words, cwd=other))
    assert len(want["findings"]) == 1 and set(fault[1].split("+")) <= set(named(want)[0])
    assert want["findings"][0]["certified"]
    steady = Counter(loads(other))
    dice = random.Random(f"{fault[0]} {jobs}")
    kills = 0
    mark = uuid4().hex
    goals = sorted((dice.randint(0, steady.total()) for _ in range(10)), reverse=True)
    while goals or kills < 8:
        goal = goals.pop() if goals else 0
        run = start_bisect(*doubted(here, **dict([fault])), *words, cwd=here, env={MARK: mark})
        comes_to(lambda goal=goal: (Counter(loads(here)) & steady).total() >= goal, run)  # type: ignore[misc]
        time.sleep(dice.uniform(0, 0.3 if goal == 0 else 0.03))
        run.kill()
        kills += finish(run, LONG).code == -signal.SIGKILL
        all_gone(mark)
        whole(here)
    got = found(bisect(*doubted(here, **dict([fault])), *words, cwd=here))
    assert answer(got) == answer(want)
    again = Counter(loads(here))
    assert jobs > 1 or not steady - again
    # each command repeats a run of the whole and, where that dies, asks for one operator
    repeated = 2 * (kills + 1)
    # with two jobs, it depends on the moment what is run ahead
    once = Counter(dict.fromkeys(again, 1))
    # only what was running is lost
    assert (again - (steady | once)).total() <= kills * jobs + repeated
    assert sorted(p.name for p in (here / "subcut_out").iterdir()) == [".store", place(here).name]


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_found_and_says_so(here: Path, mark: dict[str, str]) -> None:
    words = (*doubted(here, nodes="n5"), *QUICK)
    (here / "log" / "stop").write_text("3")
    run = start_bisect(*words, cwd=here, env=mark)
    assert comes_to(lambda: runs(here) >= 3, run)
    run.send_signal(signal.SIGINT)
    done = finish(run, LONG)
    all_gone(mark[MARK])
    assert (done.code, done.out) == (130, "")
    assert [p.name for p in (here / "subcut_out").iterdir()] == [".store"]
    before = Counter(loads(here))
    (here / "log" / "stop").unlink()
    again = found(bisect(*words, "--json", cwd=here, env=mark))
    assert named(again) == [["n5"]]
    # one run of the whole is repeated
    repeated = before.total() + again["trials"] + 1 - len(loads(here))
    assert repeated in (before.total() - 1, before.total(), before.total() + 1)
    last = done.err[done.err.index("error: interrupted") :]
    assert "same command" in last, last


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_run_waits_for_no_candidate(
    jobs: int, number: signal.Signals, here: Path, mark: dict[str, str]
) -> None:
    """The candidate hangs from its fourth trial on; with two jobs another may run beside it."""
    line(here / "m.onnx", NAMES)
    words = (*doubted(here, nodes="n5+n9", after=4, then="hangs"), *QUICK, "--jobs", str(jobs))
    run = start_bisect(*words, cwd=here, env=mark)
    assert comes_to(lambda: runs(here) >= 4, run)
    run.send_signal(number)
    try:
        done = finish(run, PATIENCE)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
        raise
    assert done.code == 128 + number
    assert [p.name for p in (here / "subcut_out").iterdir()] == [".store"]


# ------------------------------------------------------------ places that cannot be


@pytest.mark.parametrize("output", ["file", "file/below", "/proc/nowhere", "/dev/null", "x" * 300])
def test_unwritable_output_is_refused_before_anything_runs(output: str, here: Path) -> None:
    (here / "file").write_text("mine")
    before = tree(here)
    done = bisect(*doubted(here, nodes="n5"), *QUICK, "-o", output, cwd=here)
    assert (done.code, done.out) == (74, "")
    assert done.problem in ("output.unwritable", "output.not-folder")
    assert output in done.err
    assert tree(here) == before
    assert loads(here) == []


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_obstacle_at_the_result_is_refused_before_anything_runs(kind: str, here: Path) -> None:
    way = here / "subcut_out" / "bisect-odd.py"
    way.parent.mkdir()
    if kind == "file":
        way.write_text("mine")
    elif kind == "link":
        way.symlink_to("/nowhere/at/all")
    else:
        (way / "mine").mkdir(parents=True)
    wrapped(here, nodes="n5")
    done = bisect("-c", "odd.py", "--force", *QUICK, cwd=here)
    assert (done.code, done.out) == (2, "")
    assert done.problem == ("output.not-ours" if kind == "folder" else "output.not-folder")
    assert loads(here) == []


def wrapped(folder: Path, **faults: str) -> None:
    """The doubtful runtime with these faults, whatever characters they have, as `odd.py`."""
    faults = {"log": str(folder / "log"), **faults}
    text = (
        f"import sys\nsys.path.insert(0, {str(Path(fake_candidate.HERE).parent)!r})\nimport"
        " fake_candidate\n"
    )
    (folder / "odd.py").write_text(
        f"{text}def load(model, options):\n    return fake_candidate.load(model, {faults!r})\n"
    )


# ------------------------------------------------------------ full disks


def reports_or_finds(done: Done, where: str) -> bool:
    """Return whether a command found the culprit; else it must end with an error on the place."""
    if "error" in done.document:
        assert (done.code, done.document["error"]["kind"]) == (74, "OutputError"), done
        assert where in done.document["error"]["what"]
        return False
    assert named(found(done)) == [["n5"]] and found(done)["findings"][0]["certified"]
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_full_disk_ends_with_the_answer_or_an_error(
    here: Path, disk: Callable[[str], Path], mark: dict[str, str]
) -> None:
    """At each size: the answer, or an error; never half a result. With more space the same command
    goes on."""
    line(here / "m.onnx", SHORT, width=2000)
    np.save(here / "x.npy", np.linspace(0, 3, 2000, dtype=np.float32)[None])
    words = (*doubted(here, nodes="n5"), *QUICK, "--json", "-o")
    ends = []
    for size in (8, 384, 1024):
        root = disk(f"size={size}k")
        done = bisect(*words, root, cwd=here, env=mark)
        ends.append(reports_or_finds(done, str(root)))
        if ends[-1]:
            (result,) = root.glob("bisect-*")
            assert sorted(tree(result)) == sorted(
                json.loads((result / "manifest.json").read_text())["files"]
            )
        else:
            assert [p.name for p in root.iterdir() if p.name != ".store"] == []
        known = len(loads(here))
        disk("size=16384k")
        more = found(bisect(*words, root, cwd=here, env=mark))
        assert named(more) == [["n5"]]
        assert len(loads(here)) - known <= more["trials"] + 1  # one run of the whole is repeated
        stored = len(loads(here))
        assert named(found(bisect(*words, root, cwd=here, env=mark))) == [["n5"]]
        assert len(loads(here)) == stored + 1
        for path in root.iterdir():
            shutil.rmtree(path)
    assert ends[0] is False and ends[-1] is True, ends


@pytest.mark.slow
def test_disk_that_fills_up_midway_keeps_the_stored_runs(
    here: Path, disk: Callable[[str], Path], mark: dict[str, str]
) -> None:
    """What was kept before stays good: with space again only what could not be kept is run
    again."""
    line(here / "m.onnx", SHORT, width=2000)
    np.save(here / "x.npy", np.linspace(0, 3, 2000, dtype=np.float32)[None])
    root = disk("size=16384k")
    words = (*doubted(here, nodes="n5"), *QUICK, "--json", "-o", root)
    (here / "log" / "stop").write_text("4")  # the whole, the probe, a first and a second region
    run = start_bisect(*words, cwd=here, env=mark)
    assert comes_to(lambda: runs(here) >= 4, run)
    fill(root / "ballast")
    (here / "log" / "stop").unlink()
    assert not reports_or_finds(finish(run, LONG), str(root))
    assert sorted(p.name for p in root.iterdir()) == [".store", "ballast"]
    known = Counter(loads(here))
    (root / "ballast").unlink()
    document = found(bisect(*words, cwd=here, env=mark))
    assert named(document) == [["n5"]]
    # one run of the whole is repeated
    kept = known.total() + document["trials"] + 1 - len(loads(here))
    assert kept >= 2, "the first two trials were on the disk"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [100, 3000, 20_000])
def test_limit_of_file_sizes_is_an_error_only_if_the_store_does_not_fit(
    limit: int, here: Path, mark: dict[str, str]
) -> None:
    """A quota, played by a limit: too small for the store, for a report, or for neither."""
    words = ("-c", "ort", *LOOSE, "--json")
    done = bisect(*words, cwd=here, env=mark | NO_BYTECODE, preexec_fn=limit_files(limit))
    if limit > 100:
        assert found(done)["agree"]
        return
    assert (done.code, done.document["error"]["kind"]) == (74, "OutputError"), done
    assert "subcut_out" in done.document["error"]["what"]


# ------------------------------------------------------------ sudden changes


def honest(document: dict[str, Any], then: str) -> None:
    """What is certified is one node that was really at fault, before it changed or after; all else
    says why."""
    after = {"n2": {"n2"}, "right": set()}.get(then, set(SHORT))
    for finding in document["findings"]:
        nodes = set(finding["nodes"])
        if finding["certified"]:
            assert len(nodes) == 1 and nodes <= {"n5"} | after, finding
        else:
            assert finding["why"], finding
            assert "n5" in nodes or nodes & after, finding
        if finding["certified"] or finding["kind"] == "flaky":
            assert 0 < finding["reproduces"] <= 1, "it was seen to fail alone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "after", "then"),  # each moment with two changes
    [
        ("nodes", 2, "right"),
        pytest.param("nodes", 3, "dies", marks=pytest.mark.rare),
        ("nodes", 4, "refuses"),
        ("nodes", 5, "n2"),
        pytest.param("nodes", 6, "nan", marks=pytest.mark.rare),
        ("blots", 7, "n2"),
    ],
)
def test_candidate_that_changes_midway_yields_no_wrong_certificate(
    fault: str, after: int, then: str, here: Path
) -> None:
    """It changes before the second run of the whole, the profile, the node alone, its confirmation,
    or the rest.

    With `blots`, the profile fails everywhere, so that single nodes run first, and agree.
    """
    words = doubted(here, after=after, then=then, **{fault: "n5"})
    done = bisect(*words, *QUICK, "--json", cwd=here)
    document = found(done)
    assert done.code in (1, 5) and document["findings"], document
    honest(document, then)
    assert then != "right" or "n5" in {node for nodes in named(document) for node in nodes}
    whole(here)


@pytest.mark.slow
def test_change_after_the_culprit_leaves_the_culprit_certified(here: Path) -> None:
    """The culprit stands; that the rest could not be asked about is said, not passed over."""
    document = found(
        bisect(*doubted(here, nodes="n5", after=7, then="dies"), *QUICK, "--json", cwd=here)
    )
    assert named(document) == [["n5"]] and document["findings"][0]["certified"]
    assert "complete" not in document
    assert has_line(document["notes"], "not known", "n5"), document["notes"]


@pytest.mark.slow
def test_candidate_that_stops_working_agrees_nowhere(here: Path) -> None:
    """It dies from its fourth run on: nothing can be learned."""
    line(here / "m.onnx", NAMES)
    document = found(
        bisect(*doubted(here, nodes="n13", after=4, then="dies"), *QUICK, "--json", cwd=here)
    )
    assert not any(finding["certified"] for finding in document["findings"])
    assert "complete" not in document
    assert has_line(document["findings"][0]["why"], "stopped")
    assert document["trials"] <= 20, "it is not asked about piece after piece"


COMMAND = """
import json, sys
from pathlib import Path

sys.path.insert(0, {tests!r})
import fake_candidate, numpy as np

HERE = Path(__file__).parent
model, inputs, outputs = map(Path, sys.argv[1:])
log = HERE / "log" / "log"
count = log.read_text().count(" load ") if log.exists() else 0
if count >= {most} and not (HERE / "log" / "repaired").exists():
    print("the license is gone", file=sys.stderr)
    sys.exit(126)
manifest = json.loads((inputs / "manifest.json").read_text())
feeds = {{i["name"]: np.load(inputs / i["npy"]) for i in manifest["inputs"]}}
given = fake_candidate.load(model, {faults!r})(feeds)
for o in manifest["outputs"]:
    np.save(outputs / o["npy"], given[o["name"]])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "most", [pytest.param(1, marks=pytest.mark.rare), 3, pytest.param(5, marks=pytest.mark.rare)]
)
def test_unusable_command_ends_the_search_and_repaired_continues_it(most: int, here: Path) -> None:
    faults = {"nodes": "n5", "log": str(here / "log")}
    text = COMMAND.format(tests=str(Path(fake_candidate.HERE).parent), most=most, faults=faults)
    (here / "run.py").write_text(text)
    words = ("-c", f"cmd:{sys.executable} run.py {{model}} {{inputs}} {{outputs}}", *QUICK)
    done = bisect(*words, cwd=here)
    assert (done.code, done.problem, done.out) == (4, "command.not-runnable", ""), done
    assert [p.name for p in (here / "subcut_out").iterdir()] == [".store"]
    assert len(loads(here, with_probes=True)) == most
    (here / "log" / "repaired").touch()
    document = found(bisect(*words, "--json", cwd=here))
    assert named(document) == [["n5"]]
    assert len(loads(here)) == document["trials"] + 1  # one run of the whole is repeated


# ------------------------------------------------------------ flaky


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.rare), 3])
def test_candidate_that_is_wrong_in_some_processes_is_flaky(seed: int, here: Path) -> None:
    """Wrong in 70 % of its processes; with these seeds the whole agrees at first (1), or the node
    alone (3)."""
    words = (*doubted(here, nodes="n5", often=70, seed=seed), *QUICK, "--json")
    document = found(bisect(*words, cwd=here))
    (one,) = document["findings"]
    assert (one["nodes"], one["kind"], document["exit_code"]) == (["n5"], "flaky", 1)
    assert 0 < one["rate"] == one["reproduces"] <= 1
    assert document["trials"] <= 120
    given, right = (values(place(here) / "flaky" / name) for name in ("candidate", "outputs"))
    assert not np.allclose(given, right), "the folder shows a run that went wrong"
    before = len(loads(here))
    assert answer(found(bisect(*words, cwd=here))) == answer(document)
    # a run of the whole is repeated, once more if it differs
    assert before < len(loads(here)) <= before + 2


def values(folder: Path) -> Any:
    """The one array in a folder."""
    (one,) = folder.glob("*.npy")
    return np.load(one)


# ------------------------------------------------------------ sums


@pytest.mark.slow
def test_errors_that_add_up_have_no_culprit(here: Path) -> None:
    line(here / "m.onnx", NAMES)
    document = found(bisect(*doubted(here, scale=SMALL_ERROR), *LOOSE, "--json", cwd=here))
    (one,) = document["findings"]
    assert (one["kind"], one["nodes"], one["certified"]) == ("accumulated", NAMES, False)
    sizes, errors = zip(*((point["nodes"], point["error"]) for point in one["growth"]), strict=True)
    assert sizes[-1] == 24 and list(sizes) == sorted(sizes)
    assert errors[-1] == pytest.approx(1) and list(errors) == sorted(errors)
    assert len(one["contributors"]) >= 12
    assert sum(c["explains"] for c in one["contributors"]) == pytest.approx(1, abs=0.1)
    assert max(c["explains"] for c in one["contributors"]) < 0.27
    assert document["exit_code"] == 1
    assert has_line(subcut("report", place(here) / "run.json", cwd=here).out, "accumulates")


@pytest.mark.slow
def test_real_float16_agrees_where_it_is_claimed_and_only_there(here: Path) -> None:
    np.save(here / "x.npy", products(here / "m.onnx", 40))
    words = doubted(here, half="yes")
    done = bisect(*words, "--precision", "fp16", cwd=here)
    assert done.code == 0, done
    assert {p.name[-7:] for p in (here / "subcut_out").iterdir()} == {".store", "-report"}
    known = len(loads(here))
    document = found(bisect(*words, "--precision", "fp16", "--json", cwd=here))
    # one is repeated
    assert (document["agree"], document["findings"], len(loads(here))) == (True, [], known + 1)
    document = found(bisect(*words, "--json", cwd=here))
    assert document["exit_code"] == 1
    assert {finding["kind"] for finding in document["findings"]} <= {"accumulated", "unresolved"}, (
        named(document)
    )


# ------------------------------------------------------------ samples


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dies", pytest.param("step", marks=pytest.mark.slow)])
def test_failure_on_one_of_three_samples_is_found(fault: str, here: Path) -> None:
    (here / "samples").mkdir()
    for k, value in enumerate((1.0, 2.0, 30.0)):
        np.save(here / "samples" / f"{k}.npy", np.full((1, 3), value, np.float32))
    words = doubted(here, dies="n5", above=20) if fault == "dies" else doubted(here, step="n5")
    if fault == "step":  # garbage where what it reads is small
        np.save(here / "samples" / "0.npy", np.full((1, 3), 0.1, np.float32))
    document = found(bisect("-i", "samples", *words, *QUICK, "--json", cwd=here))
    (one,) = document["findings"]
    assert (one["nodes"], one["certified"]) == (["n5"], True)
    assert one["signature"] == ("crash" if fault == "dies" else "mismatch")
    assert len(document["samples"]) == 3
    case = place(here) / "culprit"
    assert (
        len(list((case / "inputs").rglob("*.npy")))
        == len(list((case / "outputs").rglob("*.npy")))
        == 3
    )
    assert len(list((case / "candidate").rglob("*.npy"))) == (0 if fault == "dies" else 3)
    whole(here)


# ------------------------------------------------------------ names


ODD = [
    "a b/c",
    "quo\"ted 'x'",
    "semi;touch pwned",
    "$(touch pwned)",
    "ünï ☃ \u202eevil",
    "red\x1b[31m\x07",
    "<img src=x onerror=alert(1)>",
    "../../up",
]


@pytest.mark.slow
@pytest.mark.parametrize("guilty", [pytest.param(0, marks=pytest.mark.rare), 6])
def test_hostile_names_run_nothing_and_reach_no_terminal(
    guilty: int, here: Path, mark: dict[str, str]
) -> None:
    """In the names of nodes and tensors, the model's path and the folder."""
    folder = here / "a b;$(touch pwned)'"
    folder.mkdir()
    line(folder / "my model.onnx", ODD, [f"{name}:0" for name in ODD[:-1]])
    wrapped(here, nodes=ODD[guilty])
    words = ("my model.onnx", "-i", "../x.npy", "-c", "../odd.py", *QUICK, "--json")
    done = subcut("bisect", *words, cwd=folder, env=mark)
    document = found(done)
    (one,) = document["findings"]
    assert (one["nodes"], one["certified"]) == ([ODD[guilty]], True)
    assert "\x1b" not in done.err + done.out and "\u202e" not in done.err
    result = place(folder)
    shown = {
        name: (result / name).read_text()
        for name in ("report.html", "report.md", "run.json", "manifest.json")
    }
    assert not any(c in text for text in shown.values() for c in "\x1b\x07\u202e")
    assert "<img" not in shown["report.html"]
    for other in ("text", "html", "md", "model-explorer"):
        report = subcut(
            "report", result / "run.json", "-f", other, "-o", f"reports/{other}", cwd=here
        )
        assert report.code == 0, report
        assert "\x1b" not in report.out
    case = result / "culprit"
    command = [sys.executable, "repro.py", "--outputs", "candidate"]
    script = run_program(command, cwd=case)
    assert script.returncode == 1 and "\x1b" not in script.stdout, script
    assert onnx.load(case / "model.onnx").graph.node[0].name == ODD[guilty]
    assert (case / "candidate").is_dir()
    replayed = replay(result, "--trust", cwd=folder)
    assert replayed.code == 1 and "\x1b" not in replayed.out + replayed.err, replayed
    assert not list(here.rglob("pwned*"))
    known = {folder.name, "log", "m.onnx", "odd.py", "reports", "x.npy", "__pycache__"}
    assert {p.name for p in here.iterdir()} <= known


@pytest.mark.slow
def test_second_bisection_runs_nothing_and_another_candidate_has_another_folder(here: Path) -> None:
    words = (*doubted(here, nodes="n5"), *QUICK, "--json")
    first = found(bisect(*words, cwd=here))
    before = loads(here)
    told = {name: data for name, data in tree(place(here)).items() if not name.endswith("log.txt")}
    again = found(bisect(*words, cwd=here))
    assert answer(again) == answer(first)
    assert loads(here) == [*before, before[0]]  # one run of the whole is repeated
    assert {n for n in tree(place(here)) if not n.endswith("log.txt")} == told.keys()
    assert all(tree(place(here))[n] == told[n] for n in told if n.startswith("culprit"))
    wrapped(here, nodes="n2")
    other = found(bisect("-c", "odd.py", *QUICK, "--json", cwd=here))
    assert named(other) == [["n2"]]
    assert len(list((here / "subcut_out").glob("bisect-*"))) == 2
    assert all(
        tree(here / "subcut_out")[f"{place_of(first)}/{n}"] == told[n]
        for n in told
        if n.startswith("culprit")
    )


def place_of(document: dict[str, Any]) -> str:
    """The name of the result's folder."""
    return Path(document["report"]).parent.name


# ------------------------------------------------------------ budgets


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [("--max-trials", "1"), pytest.param(("--max-time", "1s"), marks=pytest.mark.slow)]
)
def test_used_up_budget_blames_nothing(
    budget: tuple[str, str], here: Path, mark: dict[str, str]
) -> None:
    """A run takes 0.7 s, so one or none fits into the time. Nothing is blamed."""
    words = (*doubted(here, nodes="n5", pause="0.7"), *QUICK, "--json")
    done = bisect(*words, *budget, cwd=here, env=mark)
    if "error" in done.document:
        assert (done.code, done.problem) == (5, "time.used-up")
        return
    document = found(done)
    (one,) = document["findings"]
    assert (one["kind"], one["certified"], one["nodes"]) == ("unresolved", False, SHORT)
    assert "used up" in one["reason"]
    assert not document["agree"]
    assert document["trials"] <= len(loads(here)) <= 2, "a run that was ended counts for nothing"
    # a disagreement that was seen is one
    assert done.code == (1 if document["whole"]["status"] == "fail" else 5)


@pytest.mark.slow
def test_run_beyond_the_time_limit_is_ended(here: Path, mark: dict[str, str]) -> None:
    begin = time.monotonic()
    words = (*doubted(here, pause="600"), *QUICK, "--max-time", "3s", "--json")
    done = bisect(*words, cwd=here, env=mark)
    assert time.monotonic() - begin < LONG / 4
    assert (done.code, done.problem) == (5, "time.used-up")


def test_time_limit_of_0_is_refused(here: Path) -> None:
    done = bisect(*doubted(here, nodes="n5"), "--max-time", "0s", cwd=here)
    assert (done.code, done.problem) == (2, "option.out-of-range"), done


# ------------------------------------------------------------ replay


@pytest.fixture(scope="module")
def bisected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bisection with a candidate in the file beside it."""
    folder = tmp_path_factory.mktemp("bisected")
    line(folder / "m.onnx", SHORT)
    np.save(folder / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))
    (folder / "log").mkdir()
    wrapped(folder, nodes="n5")
    assert bisect("-c", "odd.py", *QUICK, cwd=folder).code == 1
    return place(folder)


@pytest.fixture
def copied(bisected: Path, tmp_path: Path) -> Path:
    """The same, mailed elsewhere."""
    return shutil.copytree(bisected, tmp_path / "mail" / "a case")


def replay(*words: str | Path, cwd: Path) -> Done:
    """Run a case again, as somebody who has trusted nothing before."""
    return subcut(
        "replay",
        *words,
        *QUICK[:2],
        cwd=cwd,
        env={"XDG_CONFIG_HOME": str(cwd / f"config-{uuid4().hex}")},
    )


@pytest.mark.slow
def test_copied_case_is_replayed(copied: Path, tmp_path: Path) -> None:
    for words in ((copied,), (copied / "culprit",)):
        asked = replay(*words, cwd=tmp_path)
        assert (asked.code, asked.out) == (2, "") and "--trust" in asked.err, asked
        done = replay(*words, "--trust", cwd=tmp_path)
        assert done.code == 1 and "FAIL" in done.out, done
    assert replay(copied, "-c", "ort", cwd=tmp_path).code == 0
    alone = shutil.copytree(copied / "culprit", tmp_path / "alone")
    assert replay(alone, "-c", "ort", cwd=tmp_path).code == 0
    assert replay(alone, *doubted(tmp_path, nodes="n5", log=str(tmp_path)), cwd=tmp_path).code == 1


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def without(*keys: str) -> Callable[[Path], None]:
    """A function that removes an entry from a JSON file."""

    def change(path: Path) -> None:
        document = json.loads(path.read_text())
        inner = document
        for key in keys[:-1]:
            inner = inner[key] if not isinstance(inner, list) else inner[0]
        del inner[keys[-1]]
        path.write_text(json.dumps(document))

    return change


DAMAGES = ("case", "document", "file", "model", "tensor")  # areas of the codes


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "damage", "code"),
    [
        ("culprit/model.onnx", Path.unlink, 3),
        ("culprit/model.onnx", cut_short, 3),
        ("culprit/model.onnx", empty, 3),
        ("culprit/inputs/t4.npy", Path.unlink, 2),
        ("culprit/inputs/t4.npy", cut_short, 2),
        ("culprit/inputs/t4.npy", empty, 2),
        ("culprit/manifest.json", Path.unlink, 2),
        ("culprit/manifest.json", cut_short, 2),
        ("culprit/manifest.json", without("inputs"), 2),
        ("culprit/manifest.json", without("samples"), 2),
        ("culprit/manifest.json", without("inputs", "", "samples"), 2),
        ("manifest.json", cut_short, 2),
        ("manifest.json", without("request", "identity"), 2),
        ("manifest.json", without("request", "identity", "timeout"), 2),
        ("manifest.json", without("request", "candidate"), 2),
        ("culprit", shutil.rmtree, 2),
    ],
)
def test_damaged_case_is_refused(
    file: str, damage: Callable[[Path], None], code: int, copied: Path, tmp_path: Path
) -> None:
    damage(copied / file)
    done = replay(copied, "--trust", cwd=tmp_path)
    assert (done.code, done.out) == (code, ""), done
    assert done.problem.partition(".")[0] in DAMAGES, done


@pytest.mark.slow
def test_mailed_case_runs_no_other_file_of_that_name(copied: Path, tmp_path: Path) -> None:
    """The candidate's file is where the sender had it; where it is not, that is said."""
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["request"]["identity"]["backend"] = "/nowhere/odd.py"
    (copied / "manifest.json").write_text(json.dumps(manifest))
    done = replay(copied, "--trust", cwd=tmp_path)
    assert (done.code, done.out) in ((2, ""), (4, "")), done
    assert "/nowhere/odd.py" in done.err and "\n  " in done.err
