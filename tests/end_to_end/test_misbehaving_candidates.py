"""`subcut compare` with candidates that crash, hang, exhaust memory or return nonsense: real
commands, tiny models."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers.process_backends import MARK, all_gone, living, wait_for
from tests.helpers.run_command import NO_BYTECODE, PATIENCE, Done, chain, finish, start, subcut

QUICK = ("--rtol", "1e-3")
TRIALS = 4  # of a comparison of `m.onnx` that is wrong: the whole, in place, two nodes alone
DEVIATING = TRIALS + 1  # of one whose whole has other values: it runs a second time
AGREEING = TRIALS + 2  # of one whose whole agrees: it runs a second time, and with another input
REPEATED = 1  # by each command that finds stored answers: the whole

BACKEND = '''"""A backend of a test: onnxruntime, with the test's own code after loading and running."""
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
import numpy as np, onnxruntime

HERE = Path(__file__).parent

def note(line):
    with (HERE / "log").open("a") as file:
        file.write(line + "\\n")
    return len((HERE / "log").read_text().splitlines())

def load(model, options):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    is_probe = set(names) <= {{"y", "z"}}
    if not is_probe:
        {load}
    noted = []  # further runs of a session are no trials
    def run(feeds):
        found = dict(zip(names, session.run(names, dict(feeds))))
        if is_probe:
            return found
        noted[:] = noted or [note("run " + "+".join(names))]
        count = noted[0]
        {run}
        return found
    return run
'''  # noqa: E501


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a model of two nodes."""
    folder = tmp_path / "here"
    folder.mkdir()
    chain(folder / "m.onnx", ["a", "b"])
    return folder


# The probe's model gives something.
SCRIPT = """#!/bin/sh
if grep -q '"y"' "$1/manifest.json"; then cp "$1/x.npy" "$2/y.npy"; exit; fi
echo "run" >> "{folder}/log"
{body}
"""


def backend(folder: Path, *, load: str = "pass", run: str = "pass") -> tuple[str, str]:
    """`-c FILE` of a backend that executes `load` and, after a run, `run`; each session adds a line
    to `log`."""
    (folder / "odd.py").write_text(BACKEND.format(load=load, run=run))
    return ("-c", "odd.py")


def script(folder: Path, body: str, name: str = "run.sh") -> tuple[str, str]:
    """`-c cmd:…` of a shell script; each run adds a line to `log`."""
    path = folder / name
    path.write_text(SCRIPT.format(folder=folder, body=body))
    path.chmod(0o755)
    return ("-c", f"cmd:./{name} {{inputs}} {{outputs}}")


def runs(folder: Path) -> list[str]:
    """A line per run of the candidate."""
    return (folder / "log").read_text().splitlines() if (folder / "log").exists() else []


def compare(*words: str, cwd: Path, **more: Any) -> Done:
    return subcut("compare", *words, *QUICK, cwd=cwd, **more)


# ------------------------------------------------------------------------------------------------
# how it may fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "name", "why"),
    [
        ("ctypes.string_at(0)", "SIGSEGV", "was ended by SIGSEGV"),
        ("1 / 0", None, "failed while running: ZeroDivisionError: division by zero"),
    ],
)
def test_crash_is_a_verdict(
    body: str, name: str | None, why: str, here: Path, mark: dict[str, str]
) -> None:
    words = backend(here, run=f"if 't0' in found: {body}")
    done = compare(*words, "--json", cwd=here, env=mark)
    found = done.document
    assert (done.code, found["exit_code"], found["agree"]) == (1, 1, False)
    assert found["whole"]["status"] == "agree"
    assert (found["in_place"]["status"], found["in_place"]["signature"]) == ("fail", "crash")
    assert [row["alone"]["status"] for row in found["rows"]] == ["fail", "agree"]
    crash = found["rows"][0]["alone"]
    assert crash["signature"] == "crash"
    assert re.search(why, crash["why"]), crash
    assert crash["process"]["signal"] == name
    assert found["first_bad"]["tensor"] == "t0"
    assert len(runs(here)) == AGREEING


@pytest.mark.slow
def test_crash_inside_a_right_model_is_printed(here: Path, mark: dict[str, str]) -> None:
    words = backend(here, run="if 't0' in found: print('last words'); os.abort()")
    said = compare(*words, cwd=here, env=mark).out
    why = "the process that should run the model was ended by SIGABRT: last words"
    assert (
        re.sub(r"built in .*\n", "…\n", said)
        == "outputs agree, the inside does not: 1 of 2 tensors wrong\n"
        "candidate    odd.py   fp32\n"
        "whole model  agree   out: every element is within 1e-05 + 1e-03·|reference|; "
        "the largest error is 0 of the scale\n"
        "             …\n"
        "    node  op   tensor  in place  alone\n"
        "#0  a     Abs  t0      -         FAIL (crash)\n"
        "#1  b     Neg  out     -         0.0e+00 agree\n"
        f"in place: FAIL (crash)   {why}\n"
        "2 tensors: 0 of 0 wrong in place; 1 of 2 wrong alone\n"
        "first bad tensor  t0   node a (Abs)\n"
    )


@pytest.mark.parametrize("when", [pytest.param("load", marks=pytest.mark.slow), "run"])
def test_hang_is_ended_with_its_child_processes(
    when: str, here: Path, mark: dict[str, str]
) -> None:
    """Its processes stay in its group, move to sessions of their own, or become orphans."""
    body = (
        "[subprocess.Popen(['sh', '-c', 'sleep 600 & sleep 600'], start_new_session=k) for k in (0,"
        " 1)], os.fork() or time.sleep(600), time.sleep(600)"
    )
    begin = time.monotonic()
    words = backend(here, load=body) if when == "load" else backend(here, run=body)
    done = compare(*words, "--timeout", "1", "--at", "b", "--json", cwd=here, env=mark)
    assert time.monotonic() - begin < PATIENCE
    all_gone(mark[MARK])
    whole = done.document["whole"]
    assert (done.code, whole["status"], whole["signature"]) == (1, "fail", "timeout")
    assert whole["why"] == f"the process that should {when} the model was stopped after 1 s"
    assert [row["alone"]["signature"] for row in done.document["rows"]] == ["timeout"]


@pytest.mark.slow
def test_memory_limit_covers_child_processes(here: Path, mark: dict[str, str]) -> None:
    """The limit holds for the whole process tree: here a child exceeds it."""
    body = (
        "subprocess.run([sys.executable, '-c', 'x = bytearray(600 << 20); input()'],"
        " stdin=subprocess.PIPE)"
    )
    words = backend(here, run=f"if len(names) > 1: {body}")
    done = compare(*words, "--memory-limit", "400M", "--at", "a", cwd=here, env=mark)
    assert done.code == 1
    assert re.search(r"^whole model  agree", done.out, re.MULTILINE)
    assert re.search(
        r"^in place: FAIL \(crash\)   .* was stopped at \d+ MiB, above 400$", done.out, re.MULTILINE
    ), done


@pytest.mark.rare
@pytest.mark.slow
def test_megabytes_of_words_change_nothing(here: Path, mark: dict[str, str]) -> None:
    words = backend(here, run="print('x' * (8 << 20)); os.write(2, b'y\\n' * (1 << 20))")
    done = compare(*words, "--json", cwd=here, env=mark)
    assert (done.code, done.document["agree"]) == (0, True)
    assert len(done.out) + len(done.err) < 20_000
    words = backend(here, run="os.write(2, b'y' * (8 << 20)); os.abort()")
    done = compare(*words, cwd=here, env=mark)
    assert done.code == 1
    assert len(done.out) + len(done.err) < 100_000


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("body", "signature", "why"),
    [
        ("found.clear()", "missing", "t1: the candidate gave no such output; it gave none"),
        ("found = {n: v + 1 for n, v in found.items()}", "mismatch", "3 of 3 elements are beyond"),
        ("found = 'nonsense'", "crash", "gave str, not a mapping of names to arrays"),
    ],
)
def test_wrong_outputs_are_named(body: str, signature: str, why: str, here: Path) -> None:
    chain(here / "m.onnx", ["a", "b"], sink="t1")
    words = backend(here, run=body)
    done = compare(*words, "--at", "b", cwd=here)
    assert done.code == 1
    word = "FAIL" if signature == "mismatch" else f"FAIL ({signature})"
    line, row = (
        next(line for line in done.out.splitlines() if line.startswith(w))
        for w in ("whole model", "#1")
    )
    assert line.startswith(f"whole model  {word}   "), line
    assert why in line
    assert row.endswith(word), row


def test_additional_outputs_do_no_harm(here: Path) -> None:
    done = compare(*backend(here, run="found.update(x=found, extra=np.ones(3))"), cwd=here)
    assert done.code == 0, done


@pytest.mark.rare
@pytest.mark.slow
def test_one_wrong_output_of_a_hundred_is_named(here: Path) -> None:
    names = [f"y{i}" for i in range(100)]
    nodes = [helper.make_node("Neg", ["x"], [name], name=f"n{name}") for name in names]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", *names)]
    graph = helper.make_graph(nodes, "many", infos[:1], infos[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, here / "m.onnx")
    words = backend(here, run="found.update(y57=found['y57'] + 1) if 'y57' in found else 0")
    done = compare(*words, "--json", cwd=here)
    found = done.document
    assert done.code == 1
    assert [j["name"] for j in found["whole"]["outputs"] if j["status"] == "fail"] == ["y57"]
    assert [row["tensor"] for row in found["rows"] if row["alone"]["status"] == "fail"] == ["y57"]
    assert len(found["rows"]) == 100
    assert found["first_bad"]["node"] == "ny57"
    assert len([line for line in done.err.splitlines() if "alone" in line]) <= 11
    assert "whole model  FAIL   y57: 2 of 2 elements" in compare(*words, cwd=here).out


# ------------------------------------------------------------------------------------------------
# whatever it does

LINE = """b'{"tensors": [], "fed": [], "origins": {}, "others": [], "seconds": 0}\\n'"""
LAZY = "found = {n: type('Lazy', (), {'__array__': lambda *_, **__: ACT})() for n in found}"
DAEMON = f"['setsid', 'env', '-i', '{MARK}=' + os.environ['{MARK}'], 'sleep', '600']"
FAILS = {
    "segv": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "loop": "exec('while 1: pass')",
    "C": "ctypes.PyDLL(None).pause()",
    "masked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64)), time.sleep(600)",
    "interrupts": "exec('raise KeyboardInterrupt')",
    "generator": "exec('raise GeneratorExit')",
    "recursion": "exec('def f(): f()\\nf()', d := {}) or d['f']()",
    "memory": "exec('raise MemoryError')",
    "exit 0": "os._exit(0)",
    "exit 77": "os._exit(77)",
    "sys.exit": "sys.exit(0)",
    "alarm": "signal.setitimer(signal.ITIMER_REAL, 0.001), time.sleep(600)",
    "writes everywhere": (
        f"[os.write(n, {LINE}) for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{{n}}') and"
        " not os.path.isfile(f'/proc/self/fd/{n}') and os.access(f'/proc/self/fd/{n}',"
        " os.W_OK)]"
    ),
    "closes all": "os.closerange(0, 256)",
    "closes high": "os.closerange(3, 256)",
    "file limit": "__import__('resource').setrlimit(__import__('resource').RLIMIT_FSIZE, (0, 0))",
    "descriptor limit": (
        "__import__('resource').setrlimit(__import__('resource').RLIMIT_NOFILE, (3, 3))"
    ),
    "no text": "found = {1: 2, None: 3}",
    "complex": "found = {n: v.astype('c8') for n, v in found.items()}",
    "record": "found = {n: np.zeros(3, [('a', 'f4'), ('b', 'i4')]) for n in found}",
    "date": "found = {n: np.array(['2020-01-01'], 'M8[D]') for n in found}",
    "bytes": "found = dict.fromkeys(found, b'abc')",
    "ragged": "found = dict.fromkeys(found, [[1, 2], [3]])",
    "none": "found = dict.fromkeys(found)",
    "huge": "found = {n: np.broadcast_to(np.float32(0), (1 << 20, 1 << 20)) for n in found}",
    "lazy exit": LAZY.replace("ACT", "sys.exit(3)"),
    "lazy end": LAZY.replace("ACT", "os._exit(5)"),
    "lazy loop": LAZY.replace("ACT", "time.sleep(600)"),
    "terminal": "exec('raise RuntimeError(chr(27) + chr(0x9b) + chr(0x202e))')",
    "feeds": "[ctypes.memset(v.ctypes.data, 0, v.nbytes) for v in feeds.values()], found.clear()",
}
HARMLESS = {
    "other directory": "os.chdir('/')",
    "no directory": (
        "(HERE / 'gone').mkdir(exist_ok=True), os.chdir(HERE / 'gone'), os.rmdir(HERE / 'gone')"
    ),
    "closes standard streams": "os.closerange(0, 3)",
    "no environment": "os.environ.clear()",
    "daemon": f"subprocess.Popen({DAEMON})",
    "orphan": (
        f"subprocess.run(['sh', '-c', '\"$@\" & ', 'sh', *{DAEMON}], stdout=subprocess.DEVNULL)"
    ),
    "prints a reply": f"os.write(1, {LINE})",
    "lists": "found = {n: v[::-1].copy()[::-1] for n, v in found.items()}",
}


# One of each way to end: a signal, a stop, no end, too much memory, no values, a process that
# stays.
KINDS = {"segv", "stopped", "C", "memory", "ragged", "orphan"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [n if n in KINDS else pytest.param(n, marks=pytest.mark.rare) for n in (*FAILS, *HARMLESS)],
)
def test_bisection_ends_with_an_answer_for_any_candidate(
    name: str, here: Path, mark: dict[str, str]
) -> None:
    act = (FAILS | HARMLESS)[name]
    words = backend(here, run=f"if 'out' in found: {act}")
    limits = ("--timeout", "5", "--memory-limit", "600M", "--repeat", "1")
    done = subcut("bisect", "m.onnx", *words, *QUICK, *limits, cwd=here, env=mark)
    assert done.code in ((1, 5) if name in FAILS else (0,)), done
    assert "subcut itself failed" not in done.err
    assert not re.search("worker_main|site-packages", done.out), "no traceback of ours"
    assert not set("\x1b\x9b\u202e") & set(done.out + done.err)


@pytest.mark.slow
def test_orphan_of_a_crashed_candidate_is_ended(here: Path, mark: dict[str, str]) -> None:
    """Its environment is empty but for the test's mark, its session its own, its parent dead."""
    words = backend(here, run=f"subprocess.Popen({DAEMON}), os.abort()")
    assert compare(*words, cwd=here, env=mark).code == 1


# ------------------------------------------------------------------------------------------------
# exit codes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [
        (125, 5, r"^whole model  refused   .*cannot be tested.*125"),
        (126, 4, r"^error: .*exit code 126.*\n  \S"),
    ],
)
def test_exit_codes_125_and_126_of_a_command_are_refused_and_an_error(
    code: int, exit_code: int, says: str, here: Path, mark: dict[str, str]
) -> None:
    words = script(here, f"echo sorry {code} >&2; exit {code}")
    done = compare(*words, cwd=here, env=mark)
    assert done.code == exit_code, done
    assert re.search(says, done.err if exit_code == 4 else done.out, re.MULTILINE), done
    if exit_code == 4:
        assert done.out == ""
        return
    assert f"| sorry {code}" in done.out
    assert len(runs(here)) == TRIALS


@pytest.mark.slow
def test_lost_connection_is_tried_3_times(here: Path, mark: dict[str, str]) -> None:
    done = compare(*script(here, "exit 255"), cwd=here, env=mark)
    assert (done.code, done.out) == (4, "")
    assert re.search(r"^error: .*255.*connection lost, 3 times\n  \S", done.err, re.MULTILINE), (
        done.err
    )
    assert len(runs(here)) == 3


@pytest.mark.turns(3)
@pytest.mark.parametrize("spec", ["cmd:./nothing.sh", "lacking.py"])
def test_unusable_candidate_is_exit_4(spec: str, here: Path) -> None:
    (here / "lacking.py").write_text("def load(model, options):\n    import nosuchthing\n")
    done = compare("-c", spec, cwd=here)
    assert (done.code, done.out) == (4, "")
    failed = compare("-c", spec, "--json", cwd=here)
    assert (failed.code, failed.document["error"]["kind"]) == (4, "BackendError")


@pytest.mark.parametrize("spec", ["ort:opt=most", "onnx-reference:fast=yes"])
def test_unknown_option_of_a_candidate_is_exit_2(spec: str, here: Path) -> None:
    done = compare("-c", spec, "--json", cwd=here)
    assert (done.code, done.document["error"]["kind"]) == (2, "UsageError"), done


@pytest.mark.turns(3)
@pytest.mark.parametrize("code", ["", "import nosuchthing"])
def test_file_that_is_not_a_candidate_is_exit_2(code: str, here: Path) -> None:
    (here / "own.py").write_text(code)
    done = compare("-c", "own.py", cwd=here)
    assert (done.code, done.out) == (2, "")


# ------------------------------------------------------------------------------------------------
# kills


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(n, marks=pytest.mark.rare) for n in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_stopped_comparison_continues_and_repeats_nothing(
    number: int, here: Path, mark: dict[str, str]
) -> None:
    """Stopped in the third of four trials, in which a child of the candidate sleeps."""
    pause = "subprocess.Popen(['sleep', '600']), (HERE / 'there').touch(), time.sleep(600)"
    words = backend(here, run=f"if count == 3 and not (HERE / 'go').exists(): {pause}")
    run = start("compare", *words, *QUICK, cwd=here, env=mark)
    wait_for(here / "there")
    assert len(runs(here)) == 3
    run.send_signal(number)
    done = finish(run)
    all_gone(mark[MARK])
    assert done.out == ""
    assert (
        done.code
        == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[signal.Signals(number)]
    )
    if number == signal.SIGINT:
        assert done.err.splitlines()[-2:] == [
            "error: interrupted",
            "  finished runs are stored: the same command continues",
        ]
    if number != signal.SIGKILL:
        assert [p.name for p in (here / "subcut_out").iterdir()] == [".store"]
    (here / "go").touch()
    again = compare(*words, cwd=here, env=mark)
    assert again.code == 0, again
    # The whole, with another input, and the second node alone have the same output; the whole runs
    # once more for its headline, and once because its stored result is checked.
    needed = Counter({"run out": 5, "run t0+out": 1, "run t0": 1})
    assert (Counter(runs(here)) - needed).total() == 1, "the run that was stopped"
    assert Counter(runs(here)) >= needed
    assert beside_reports(here) == [".store"]
    assert compare(*words, cwd=here, env=mark).out == again.out
    assert len(runs(here)) == 8 + REPEATED


@pytest.mark.slow
def test_ctrl_c_while_loading_with_json_is_one_document(here: Path, mark: dict[str, str]) -> None:
    run = start(
        "compare",
        *backend(here, load="(HERE / 'there').touch(), time.sleep(600)"),
        "--json",
        *QUICK,
        cwd=here,
        env=mark,
    )
    wait_for(here / "there")
    os.killpg(run.pid, signal.SIGINT)
    done = finish(run)
    assert (done.code, done.document["error"]["kind"]) == (130, "Interrupted")
    assert not (here / "subcut_out").exists() or not living(mark[MARK])


# ------------------------------------------------------------------------------------------------
# what is kept


@pytest.mark.slow
def test_edited_candidate_runs_again(here: Path) -> None:
    words = backend(here)
    first = compare(*words, cwd=here)
    assert (first.code, len(runs(here))) == (0, AGREEING)
    assert compare(*words, cwd=here).out == first.out
    assert len(runs(here)) == AGREEING + REPEATED
    backend(here, run="found = {n: v + 1 for n, v in found.items()}")
    assert compare(*words, cwd=here).code == 1
    assert len(runs(here)) == AGREEING + DEVIATING + REPEATED
    backend(here)
    assert compare(*words, cwd=here).out == first.out
    assert len(runs(here)) == AGREEING + DEVIATING + 2 * REPEATED


@pytest.mark.slow
def test_edited_script_of_a_command_runs_again(here: Path) -> None:
    words = script(here, "exit 3")
    assert compare(*words, cwd=here).code == 1
    assert compare(*words, cwd=here).code == 1
    assert len(runs(here)) == TRIALS + REPEATED
    script(here, "exit 125")
    assert compare(*words, cwd=here).code == 5
    assert len(runs(here)) == 2 * TRIALS + REPEATED


@pytest.mark.rare
@pytest.mark.slow
def test_limits_reuse_runs_and_other_inputs_do_not(here: Path) -> None:
    words = backend(here, run="found = {n: v + np.float32(0.01) for n, v in found.items()}")
    commands = [
        (("--rtol", "1e-3"), 1, DEVIATING),
        (("--atol", "0.02"), 0, REPEATED + 1),
        (("--criterion", "max_abs<0.001"), 1, REPEATED),
        (("--precision", "fp16", "--rtol", "1e-3"), 1, REPEATED),
        (("--at", "a", "--rtol", "1e-3"), 1, REPEATED),
        (("--seed", "1", "--rtol", "1e-3"), 1, DEVIATING),
        (("--timeout", "100", "--rtol", "1e-3"), 1, DEVIATING),
        (("--fresh", "--rtol", "1e-3"), 1, DEVIATING),
        (("--rtol", "1e-3"), 1, REPEATED),
    ]
    expected = 0
    for options, code, more in commands:
        done = subcut("compare", *words, *options, cwd=here)
        expected += more
        assert (done.code, len(runs(here))) == (code, expected), (options, done)


@pytest.mark.slow
def test_two_at_once_share_one_store(here: Path, mark: dict[str, str]) -> None:
    words = backend(here, run="time.sleep(0.05)")
    both = [start("compare", *words, *QUICK, cwd=here, env=mark) for _ in range(2)]
    one, two = (finish(run) for run in both)
    assert (one.code, two.code) == (0, 0), (one, two)
    assert without_times(one.out) == without_times(two.out)
    assert AGREEING <= len(runs(here)) <= 2 * AGREEING + REPEATED
    assert beside_reports(here) == [".store"]
    before = len(runs(here))
    assert without_times(compare(*words, cwd=here).out) == without_times(one.out)
    assert len(runs(here)) == before + REPEATED


def beside_reports(here: Path) -> list[str]:
    """What stands in the folder of results, without the reports of comparisons that ended."""
    return [p.name for p in (here / "subcut_out").iterdir() if not p.name.startswith("compare-")]


def without_times(text: str) -> str:
    return re.sub(r"built in .*, ran in .*", "", text)


@pytest.mark.slow
def test_file_instead_of_the_store_is_a_warning(here: Path) -> None:
    words = backend(here)
    expected = compare(*words, "--fresh", cwd=here)
    (here / "subcut_out").mkdir(exist_ok=True)
    (here / "subcut_out/.store").write_text("mine")
    done = compare(*words, cwd=here)
    assert done.code == 0
    assert without_times(done.out) == without_times(expected.out)
    assert [line for line in done.err.splitlines() if line.startswith("warning: ")] == [
        f"warning: cannot write in {here}/subcut_out/.store: it is not a folder; this run goes on,"
        " but its results are not stored: let this user write there, with nothing in the way"
    ]
    assert (here / "subcut_out/.store").read_text() == "mine"
    assert beside_reports(here) == [".store"]


def write_wide_model(path: Path) -> None:
    """Two nodes on 20 kB."""
    nodes = [
        helper.make_node("Neg", ["x"], ["t0"], name="a"),
        helper.make_node("Tanh", ["t0"], ["out"], name="b"),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [5000]) for name in ("x", "out")
    ]
    graph = helper.make_graph(nodes, "wide", infos[:1], infos[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


@pytest.mark.slow
def test_full_disk_costs_the_store_not_the_result(here: Path, mark: dict[str, str]) -> None:
    """The reference values just fit, the results do not: one warning, the same output, and the
    report."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root may mount")
    write_wide_model(here / "m.onnx")
    disk = here / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", disk], check=False
    ).returncode:
        pytest.skip("not even root may mount here")
    try:
        done = compare(*backend(here), "-o", "disk", cwd=here, env=mark)
        assert done.code == 0, done
        assert [w for w in done.err.splitlines() if w.startswith("warning: ")] == [
            f"warning: cannot write in {disk}/.store: No space left on device; this run goes on,"
            " but its results are not stored: free some space"
        ]
        assert sorted(p.name for p in disk.iterdir()) == [".store", "compare-odd.py"]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_limit_of_file_sizes_is_an_error_if_the_values_do_not_fit(
    here: Path, mark: dict[str, str]
) -> None:
    """A limit on file sizes stands for a quota: too small for the values, it is an error, else the
    command succeeds.

    The limit holds for the candidate's files as well.
    """
    write_wide_model(here / "m.onnx")
    for limit, code in ((1000, 74), (20_200, 0)):

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        done = compare("-c", "ort", cwd=here, env=mark | NO_BYTECODE, preexec_fn=limited)
        assert done.code == code, done
        if code:
            assert re.search(
                r"^error: cannot write .*\n  free some space", done.err, re.MULTILINE
            ), done.err
            assert not (here / "subcut_out").exists()


# A tenth of a second later: the clock of a file is coarse.
OVERWRITE = """[(time.sleep(0.1), f.write_bytes(f.read_bytes()[:-8] + bytes(8)))
    for f in HERE.glob('subcut_out/{where}/**/*.npy') if f.is_file()]"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compare", pytest.param("bisect", marks=pytest.mark.rare)])
@pytest.mark.parametrize("where", [".store", ".*"])
def test_candidate_that_overwrites_stored_values_is_an_error(
    command: str, where: str, here: Path, mark: dict[str, str]
) -> None:
    """Neither right nor wrong: the values that both sides are judged by are its own. The next run
    makes them again."""
    words = backend(
        here, run="'out' in found and " + OVERWRITE.replace("{where}", where).replace("\n", " ")
    )
    done = subcut(command, "m.onnx", *words, *QUICK, cwd=here, env=mark)
    assert (done.code, done.out) == (4, ""), done
    assert re.search(
        r"^error: while the candidate ran, something wrote over .*/subcut_out/\..*\n  \S",
        done.err,
        re.MULTILINE,
    )
    assert subcut(command, "m.onnx", *backend(here), *QUICK, cwd=here, env=mark).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "says"),
    [
        (
            "exec('import errno\\nraise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))')",
            "No space left",
        ),
        ("exec('raise RuntimeError(\"12 requested and 3 written\")')", "3 written"),
        ("(print(os.strerror(28), file=sys.stderr), os.abort())", "SIGABRT"),
    ],
)
def test_full_disk_of_the_candidate_is_not_a_verdict(
    act: str, says: str, here: Path, mark: dict[str, str]
) -> None:
    done = compare(*backend(here, run=act), cwd=here, env=mark)
    assert (done.code, done.out) == (4, ""), done
    said = f"^error: a disk that the runtime writes to is full: .*{says}.*\n  free some space"
    assert re.search(said, done.err, re.MULTILINE), done.err


@pytest.mark.slow
def test_full_disk_of_a_command_is_not_a_verdict(here: Path, mark: dict[str, str]) -> None:
    done = compare(*script(here, "head -c 9 /dev/zero > /dev/full; exit 1"), cwd=here, env=mark)
    assert (done.code, done.out) == (4, ""), done
    assert "error: a disk that the runtime writes to is full: the run command" in done.err
