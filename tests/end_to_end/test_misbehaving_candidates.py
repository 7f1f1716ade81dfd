"""`subcut compare` with candidates that crash, hang, exhaust memory or return nonsense: real
commands, tiny models."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import text_models
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.process_backends import MARK, all_gone, wait_for
from tests.helpers.run_command import PATIENCE, Done, finish, start, subcut

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


# ------------------------------------------------------------ how it may fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "kind", "signal_name"),
    [("ctypes.string_at(0)", "crash", "SIGSEGV"), ("1 / 0", "throws", None)],
)
def test_crash_is_a_verdict(
    body: str, kind: str, signal_name: str | None, here: Path, mark: dict[str, str]
) -> None:
    words = backend(here, run=f"if 't0' in found: {body}")
    done = compare(*words, "--json", cwd=here, env=mark)
    found = done.document
    assert (done.code, found["exit_code"], found["agree"]) == (1, 1, False)
    assert found["whole"]["status"] == "agree"
    assert (found["in_place"]["status"], found["in_place"]["signature"]) == ("fail", kind)
    assert [row["alone"]["status"] for row in found["rows"]] == ["fail", "agree"]
    crash = found["rows"][0]["alone"]
    assert (crash["signature"], crash["process"]["signal"]) == (kind, signal_name)
    assert found["first_bad"]["tensor"] == "t0"
    assert len(runs(here)) == AGREEING


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
    assert [row["alone"]["signature"] for row in done.document["rows"]] == ["timeout"]


@pytest.mark.slow
def test_memory_limit_covers_child_processes(here: Path, mark: dict[str, str]) -> None:
    """The limit holds for the whole process tree: here a child exceeds it."""
    body = (
        "subprocess.run([sys.executable, '-c', 'x = bytearray(600 << 20); input()'],"
        " stdin=subprocess.PIPE)"
    )
    words = backend(here, run=f"if len(names) > 1: {body}")
    done = compare(*words, "--memory-limit", "400M", "--at", "a", "--json", cwd=here, env=mark)
    found = done.document
    assert (done.code, found["whole"]["status"]) == (1, "agree")
    assert (found["in_place"]["status"], found["in_place"]["signature"]) == ("fail", "memory")
    assert "above 400" in found["in_place"]["why"]


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("body", "signature"),
    [
        ("found.clear()", "missing"),
        ("found = {n: v + 1 for n, v in found.items()}", "mismatch"),
        ("found = 'nonsense'", "throws"),
    ],
)
def test_wrong_outputs_have_their_signature(body: str, signature: str, here: Path) -> None:
    done = compare(*backend(here, run=body), "--at", "b", "--json", cwd=here)
    verdicts = [done.document["whole"], done.document["rows"][0]["alone"]]
    assert done.code == 1
    assert [(v["status"], v["signature"]) for v in verdicts] == [("fail", signature)] * 2


@pytest.mark.slow
def test_additional_outputs_do_no_harm(here: Path) -> None:
    done = compare(*backend(here, run="found.update(x=found, extra=np.ones(3))"), cwd=here)
    assert done.code == 0, done


# ------------------------------------------------------------ whatever it does

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
    assert not has_line(done.err, "itself failed")
    assert not re.search("worker_main|site-packages", done.out), "no traceback of ours"
    assert not set("\x1b\x9b\u202e") & set(done.out + done.err)


@pytest.mark.slow
def test_orphan_of_a_crashed_candidate_is_ended(here: Path, mark: dict[str, str]) -> None:
    """Its environment is empty but for the test's mark, its session its own, its parent dead."""
    words = backend(here, run=f"subprocess.Popen({DAEMON}), os.abort()")
    assert compare(*words, cwd=here, env=mark).code == 1


# ------------------------------------------------------------ errors


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["path", "path, **more", "path, *rest"])
def test_function_without_options_is_a_candidate(parameters: str, here: Path) -> None:
    """As in Python, `load(path)` will do."""
    start = f"import onnxruntime as ort\n\ndef load({parameters}):\n"
    text = f"{start}    session = ort.InferenceSession(path)\n"
    run = "    names = [one.name for one in session.get_outputs()]\n    return lambda feeds: "
    (here / "own.py").write_text(f"{text}{run}dict(zip(names, session.run(None, feeds)))\n")
    done = compare("-c", "own.py", "--trust", cwd=here)
    assert done.code == 0, done


# ------------------------------------------------------------ kills


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


# ------------------------------------------------------------ what is kept


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
def test_full_disk_costs_the_store_not_the_result(
    here: Path, disk: Callable[[str], Path], mark: dict[str, str]
) -> None:
    """The reference values just fit, the results do not: one warning, the same output, and the
    report."""
    text = "g (float[5000] x) => (float[5000] out) { [a] t0 = Neg (x) [b] out = Tanh (t0) }"
    text_models.save(here / "m.onnx", text)
    root = disk("size=296k")
    done = compare(*backend(here), "-o", str(root), cwd=here, env=mark)
    assert done.code == 0, done
    (warning,) = (line for line in done.err.splitlines() if line.startswith("warning: "))
    assert f"{root}/.store" in warning
    assert sorted(p.name for p in root.iterdir()) == [".store", "compare-odd.py"]


# The new time of change is set: the clock of a file is coarse.
OVERWRITE = """[(f.write_bytes(f.read_bytes()[:-8] + bytes(8)), os.utime(f, (1, 1)))
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
    done = subcut(command, "m.onnx", *words, *QUICK, "--json", cwd=here, env=mark)
    assert (done.code, done.problem) == (4, "store.changed"), done
    assert subcut(command, "m.onnx", *backend(here), *QUICK, cwd=here, env=mark).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "act",
    [
        "exec('import errno\\nraise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))')",
        "exec('raise RuntimeError(\"12 requested and 3 written\")')",
        "(print(os.strerror(28), file=sys.stderr), os.abort())",
        "",
    ],
)
def test_full_disk_of_the_candidate_is_not_a_verdict(
    act: str, here: Path, mark: dict[str, str]
) -> None:
    command = "head -c 9 /dev/zero > /dev/full; exit 1"
    words = backend(here, run=act) if act else script(here, command)
    done = compare(*words, "--json", cwd=here, env=mark)
    assert (done.code, done.problem) == (4, "output.disk-full"), done
