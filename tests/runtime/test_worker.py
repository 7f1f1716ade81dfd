"""A backend may crash, hang, flood, grow, fork and lie: the parent reports how it ended, goes on,
and leaves nothing.

Covers `runtime.worker`, `runtime.worker_process`, `runtime.worker_main`, `runtime.protocol`,
`system.posix` and `children`.
Each test runs real processes. They inherit a mark in the environment; no process that carries the
mark may live when its test ends.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import pytest

from subgraph import plugins, system
from subgraph.errors import (
    BackendError,
    InternalError,
    ModelError,
    OutOfMemory,
    Refused,
    SubcutError,
    UsageError,
    WorkerDied,
)
from subgraph.precision import Precision
from subgraph.runtime import worker, worker_process
from subgraph.runtime.command_line import digest_contents
from subgraph.runtime.protocol import BackendInfo, ModelRun
from subgraph.runtime.run_result import Job, run_model
from subgraph.runtime.worker import Worker
from subgraph.storage import tensors
from tests.helpers.facts import has_line
from tests.helpers.process_backends import (
    MARK,
    all_gone,
    backend,
    interrupted_at,
    living,
    until,
    wait_for,
)
from tests.helpers.refusals import raises
from tests.helpers.run_command import PATIENCE, SOON

Start = Callable[..., Worker]  # of a worker on a backend of these lines
SHORT = 0.5  # seconds that a hanging backend is given
MIB = 1 << 20


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Nothing that a test started outlives it."""
    word = uuid4().hex
    monkeypatch.setenv(MARK, word)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # users do not set it
    yield word
    all_gone(word)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a worker on a backend made of these lines; limits go to the worker. All are closed at
    the end."""
    started: list[Worker] = []

    def make(*, top: str = "", load: str = "pass", run: str = "pass", **limits: Any) -> Worker:
        started.append(
            Worker(
                backend(tmp_path, top=top, load=load, run=run, name=f"b{len(started)}"), **limits
            )
        )
        return started[-1]

    yield make
    for one in started:
        one.close()


def build(one: Worker) -> None:
    one.load("m", Path("model.onnx"), {})


def ask(one: Worker, into: Path, *outputs: str) -> ModelRun:
    """Load, and run without inputs."""
    build(one)
    stems = {name: f"o{i}" for i, name in enumerate(outputs or ("y",))}
    return one.run("m", into, stems, [])


def value(run: ModelRun, into: Path) -> Any:
    return tensors.load(run.tensors[0], into)


def died(one: Worker, into: Path) -> WorkerDied:
    with pytest.raises(WorkerDied) as e:
        ask(one, into)
    assert not one.alive
    assert list(e.value.process)[:3] == ["signal", "exit_code", "stderr"]
    return e.value


def test_limit_of_the_candidate_is_no_full_disk(start: Start, tmp_path: Path) -> None:
    one = start(run="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))")
    with raises(ModelError, "worker.limit", "Too many open files"):
        ask(one, tmp_path)


def test_python_file_says_what_it_has_imported(start: Start, tmp_path: Path) -> None:
    """Wherever it found it, and as it was then."""
    for name in ("early", "late"):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        (tmp_path / "elsewhere" / f"{name}.py").write_text("ERR = 1")
    path = f"import sys; sys.path.append({str(tmp_path / 'elsewhere')!r}); "
    one = start(load=f"{path}import early, json, numpy", run="__import__('la' + 'te')")
    ask(one, tmp_path)
    found = one.sources()
    assert {Path(file).name for file in found} == {"b0.py", "early.py", "late.py"}
    for file in found:
        assert found[file] == digest_contents(Path(file))
    (tmp_path / "elsewhere/early.py").write_text("ERR = 2")
    assert one.sources() == found


# ------------------------------------------------------------ crashes


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("body", "name", "code"),
    [
        ("ctypes.string_at(0)", "SIGSEGV", None),
        ("os.abort()", "SIGABRT", None),
        ("os.kill(os.getpid(), signal.SIGFPE)", "SIGFPE", None),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", None),
        ("os.kill(os.getpid(), 40)", "signal 40", None),
        ("os._exit(3)", None, 3),
        ("os._exit(0)", None, 0),
    ],
)
@pytest.mark.parametrize("step", ["load", "run"])
def test_crash_says_how(
    body: str, name: str | None, code: int | None, step: str, start: Start, tmp_path: Path
) -> None:
    e = died(start(**{step: f"print('last words'); {body}"}), tmp_path)
    assert e.signature == "crash"
    assert e.process == {"signal": name, "exit_code": code, "stderr": ["last words"]}
    how = f"was ended by {name}" if name else f"ended with exit code {code}"
    assert has_line(e.what, f"{step}", how, "last words")


def test_words_of_a_c_library_are_kept_when_it_crashes(start: Start, tmp_path: Path) -> None:
    e = died(start(run="ctypes.CDLL(None).puts(b'from C'); os.abort()"), tmp_path)
    assert e.process["stderr"] == ["from C"]


def test_only_the_words_of_the_last_request_and_of_them_the_last(
    start: Start, tmp_path: Path
) -> None:
    said = "; ".join(f"print('line {i}')" for i in range(20))
    one = start(top="print('imported')", load="print('loaded')", run=said)
    ask(one, tmp_path)
    assert one.process.last_lines() == [
        f"line {i}" for i in range(20 - worker_process.SHOWN_LINES, 20)
    ]
    build(one)
    assert one.process.last_lines() == ["loaded"]


def test_crash_is_noticed_at_once_though_a_child_holds_the_pipes(
    start: Start, tmp_path: Path
) -> None:
    one = start(run="if os.fork() == 0: time.sleep(600)\nos.abort()")
    build(one)
    begin = time.monotonic()
    with pytest.raises(WorkerDied) as e:
        one.run("m", tmp_path, {}, [])
    assert time.monotonic() - begin < SOON
    assert e.value.process["signal"] == "SIGABRT"


def test_process_that_closes_its_pipes_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    begin = time.monotonic()
    e = died(start(run="os.closerange(3, 100); time.sleep(600)"), tmp_path)
    assert (e.signature, e.process["signal"]) == ("crash", None)
    assert has_line(e.what, "closed", "subcut")
    assert time.monotonic() - begin < SOON


ENDS_ON_SEEING = """
import threading
def watch(path):
    while not os.path.exists(path):
        time.sleep(0.005)
    os._exit(7)
"""


def test_answer_that_was_sent_counts_though_the_process_ended_then(
    start: Start, tmp_path: Path
) -> None:
    """It ends between the answer's arrival and its reading."""
    answered = tmp_path / "answered"
    one = start(
        top=ENDS_ON_SEEING, run=f"threading.Thread(target=watch, args=({str(answered)!r},)).start()"
    )
    receive = one.process._receive

    def received() -> None:
        receive()
        if b"tensors" in one.process._replies.data:
            answered.touch()
            until(lambda: one.process._process.has_exited())

    one.process._receive = received  # type: ignore[method-assign]
    assert value(ask(one, tmp_path), tmp_path).tolist() == [0, 1]
    assert not one.alive
    with pytest.raises(WorkerDied) as e:
        build(one)
    assert e.value.process["exit_code"] == 7


def test_whoever_asks_a_dead_one_again_is_told_again(start: Start, tmp_path: Path) -> None:
    one = start(run="os.abort()")
    died(one, tmp_path)
    died(one, tmp_path)


# ------------------------------------------------------------ hangs


SETSID = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
"""
ORPHANS = pytest.mark.linux("elsewhere the parent of an orphan is the system's first process")
# In an environment without subcut's mark, only with that of the test.
CLEARED = (
    f"(lambda n: os.execve('/bin/sleep', ['sleep', str(n)], {{'{MARK}': os.environ['{MARK}']}}))"
)


SLEEPER = f"['setsid', 'env', '-i', '{MARK}=' + os.environ['{MARK}'], 'sleep', '600']"
HANGS = {
    "sleep": "time.sleep(600)",
    "busy": "while True: pass",
    "lock held": "ctypes.PyDLL(None).sleep(600)",
    "forks": "[os.fork() for _ in range(3)]; time.sleep(600)",
    "child": "subprocess.run(['sleep', '600'])",
    "session": "subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)",
    "daemon": f"{SETSID}\ntime.sleep(600)",
    "cleared": f"subprocess.Popen({SLEEPER}); time.sleep(600)",
    "cleared daemon": f"{SETSID.replace('time.sleep', CLEARED)}\ntime.sleep(600)",
    "ignores": "signal.signal(signal.SIGTERM, signal.SIG_IGN); ctypes.PyDLL(None).sleep(600)",
    "flood": "while True: os.write(2, bytes(65536))",
    "lines": "while True: os.write(1, b'x\\n')",
}


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=ORPHANS) if n == "cleared daemon" else n for n in HANGS]
)
def test_hang_ends_in_time_with_all_that_it_started(
    name: str, start: Start, tmp_path: Path, mark: str
) -> None:
    one = start(run=HANGS[name])
    build(one)
    one.timeout = SHORT
    begin = time.monotonic()
    with raises(WorkerDied, "worker.died", f"{SHORT} s") as e:
        one.run("m", tmp_path, {}, [])
    assert SHORT <= time.monotonic() - begin < SHORT + SOON
    assert (e.value.signature, e.value.process["signal"], e.value.process["exit_code"]) == (
        "timeout",
        None,
        None,
    )
    all_gone(mark)


def test_the_time_of_the_import_is_not_the_models(start: Start, tmp_path: Path) -> None:
    """The load and the run are given more than a second: a busy machine may need that."""
    ask(start(top="time.sleep(2)", timeout=1.5), tmp_path)


@pytest.mark.turns(2)
@pytest.mark.parametrize("body", ["time.sleep(600)", "ctypes.PyDLL(None).sleep(600)"])
@pytest.mark.parametrize("size", [1, 4 * MIB], ids=["small", "more than a pipe holds"])
def test_import_that_hangs(
    body: str, size: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "START_SECONDS", SHORT)
    begin = time.monotonic()
    with pytest.raises(WorkerDied) as e:
        start(top=body, timeout=SHORT / 2).load("m", Path("x" * size), {})
    assert e.value.signature == "timeout"
    assert time.monotonic() - begin < SHORT + SOON


# ------------------------------------------------------------ memory


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "body",
    [
        "hold = b'x' * (400 << 20); time.sleep(600)",
        "subprocess.run([sys.executable, '-c', EATER])",
        "subprocess.run([sys.executable, '-c', EATER], start_new_session=True)",
        (
            "[subprocess.Popen([sys.executable, '-c', EATER.replace('400', '100')]) for _ in"
            " range(3)]; time.sleep(600)"
        ),
        pytest.param(
            f"{SETSID.replace('time.sleep(600)', 'exec(EATER)')}\ntime.sleep(600)", marks=ORPHANS
        ),
    ],
    ids=["itself", "child", "session", "together", "daemon"],
)
def test_memory_is_a_limit_on_the_whole_tree(
    body: str, start: Start, tmp_path: Path, mark: str
) -> None:
    eater = "EATER = 'import time; hold = bytes([1]) * (400 << 20); time.sleep(600)'"
    e = died(start(top=eater, run=body, memory=250 * MIB), tmp_path)
    assert e.signature == "memory"
    assert e.what.endswith("above 250"), e.what
    assert e.process["memory"] == 250 * MIB
    all_gone(mark)


def test_bounded_one_may_not_ask_for_more_than_there_is(start: Start, tmp_path: Path) -> None:
    one = start(run="hold = np.empty(1 << 44, np.uint8)", bounded=system.measure_free_memory())
    with raises(ModelError, "memory.exceeded"):
        ask(one, tmp_path)
    assert one.alive


@pytest.mark.linux("it replaces prlimit")
def test_bound_is_no_higher_than_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `ulimit -d`, only root may raise the limit: the process would end before the first
    request."""
    limits: list[tuple[int, int]] = []

    def prlimit(pid: int, kind: int, limit: tuple[int, int] | None = None) -> tuple[int, int]:
        limits.extend([limit] if limit else [])
        return 64 * MIB, 64 * MIB

    monkeypatch.setattr(resource, "prlimit", prlimit)
    with system.ProcessGroup([sys.executable, "-c", ""], memory=1 << 40):
        pass
    assert limits == [(64 * MIB, 64 * MIB)]


# ------------------------------------------------------------ what is printed


FLOOD = """
for _ in range(800):
    os.write(1, b"o" * 65535 + b"\\n")
    os.write(2, b"e" * 65535 + b"\\n")
print("the end")
"""


def held() -> int:
    """Bytes of resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("then", ["pass", "os.abort()"])
def test_flood_of_words_goes_by(then: str, start: Start, tmp_path: Path) -> None:
    one = start(run=f"{FLOOD}\n{then}", timeout=PATIENCE)
    build(one)
    before = held()
    if then == "pass":
        assert value(ask(one, tmp_path), tmp_path).tolist() == [0, 1]
        assert one.process.last_lines()[-1] == "the end"
    else:
        assert died(one, tmp_path).process["stderr"][-1] == "the end"
    assert held() - before < 20 * MIB
    assert sum(map(len, one.process.last_lines())) <= worker_process.KEPT_BYTES


def test_text_printed_between_requests_does_no_harm(start: Start, tmp_path: Path) -> None:
    chat = (
        "import threading; threading.Thread(target=lambda: os.write(1, bytes(1 << 20)),"
        " daemon=True).start()"
    )
    one = start(load=chat)
    for _ in range(3):
        ask(one, tmp_path)
        time.sleep(0.05)


def test_answer_may_be_longer_than_a_pipe(start: Start, tmp_path: Path) -> None:
    names = "return {f'tensor {i}': 0 for i in range(30000)}"
    assert len(ask(start(run=names), tmp_path).others) == 30000


def test_request_may_be_longer_than_a_pipe(start: Start, tmp_path: Path) -> None:
    one = start()
    build(one)
    names = {f"tensor {i}": str(i) for i in range(30000)} | {"y": "y"}
    answer = one.run("m", tmp_path, names, [])
    assert [r.name for r in answer.tensors] == ["y"]


# ------------------------------------------------------------ backends that raise


F16 = "Program MatMul requires f16 but the device does not support it."
LACKS = "from subgraph.runtime.backends import WEBGPU_LACKS as DEVICE_LACKS"


@pytest.mark.parametrize("fails", ["load", "run"])
@pytest.mark.parametrize("raised", ["RuntimeError", "ModelError", "Refused"])
def test_message_about_the_device_tells_nothing_of_the_model(
    fails: str, raised: str, start: Start, tmp_path: Path
) -> None:
    top = f"{LACKS}\nfrom subgraph.errors import ModelError, Refused"
    one = start(top=top, **{fails: f"raise {raised}({F16!r})"})
    with raises(BackendError, "backend.lacks-feature", "shader-f16") as caught:
        build(one)
        ask(one, tmp_path)
    assert "shader-f16" in caught.value.hint and not isinstance(caught.value, WorkerDied)


def test_any_other_message_is_about_the_model(start: Start, tmp_path: Path) -> None:
    one = start(top=LACKS, run="raise RuntimeError('Program MatMul requires a device')")
    build(one)
    with raises(ModelError, "backend.run-failed"):
        ask(one, tmp_path)


@pytest.mark.parametrize("name", ["ort", "web"])
def test_backend_with_webgpu_knows_the_messages_about_a_device(name: str) -> None:
    lacks = plugins.load("backends", name).DEVICE_LACKS
    assert [feature for pattern, feature in lacks.items() if re.search(pattern, F16)] == [
        "shader-f16"
    ]


def refusal(one: Worker, into: Path) -> SubcutError:
    """What a backend that does not crash is told to have done; it can be asked again."""
    with pytest.raises(SubcutError) as e:
        ask(one, into)
    assert one.alive
    return e.value


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("lines", "kind", "says"),
    [
        ({"load": "raise ValueError('bad  op\\n x')"}, Refused, ("refuses", "ValueError: bad op")),
        ({"load": "sys.exit(3)"}, Refused, ("refuses", "SystemExit: 3")),
        ({"load": "import no_such_module"}, BackendError, ("cannot be", "'no_such_module'")),
        ({"load": "return None"}, BackendError, ("load", "NoneType", "function")),
        ({"load": "return [1]"}, BackendError, ("load", "list", "function")),
        ({"top": "", "run": "raise KeyError('x')"}, ModelError, ("running", "KeyError: 'x'")),
        ({"run": "sys.exit('bye')"}, ModelError, ("running", "SystemExit: bye")),
        ({"run": "raise MemoryError"}, OutOfMemory, ("memory",)),
        ({"run": "open('/nonexistent/x')"}, ModelError, ("running", "FileNotFoundError")),
        ({"run": "return None"}, ModelError, ("NoneType", "mapping")),
        ({"run": "return [np.zeros(2)]"}, ModelError, ("list", "mapping")),
        ({"run": "return {'y': None}"}, ModelError, ("y", "tensor")),
        ({"run": "return {'y': []}"}, ModelError, ("y", "tensor")),
        ({"run": "return {'y': object()}"}, ModelError, ("y", "tensor", "TypeError", "object")),
        ({"run": "return {'y': {'a': 1}}"}, ModelError, ("y", "tensor", "TypeError", "dict")),
        ({"run": "return {'y': [[1, 2], [3, None]]}"}, ModelError, ("y", "tensor")),
        (
            {"run": "return {'y': np.zeros(2, 'M8[s]')}"},
            ModelError,
            ("y", "tensor", "element type"),
        ),
        ({"top": "1 / 0"}, UsageError, ("imported", "ZeroDivisionError")),
        ({"top": "import no_such_module"}, UsageError, ("imported", "ModuleNotFoundError")),
        ({"top": "sys.exit(3)"}, UsageError, ("imported", "SystemExit")),
        ({"top": "def ("}, UsageError, ("imported", "SyntaxError")),
        ({"top": "def warm(): 1 / 0", "load": "raise ValueError"}, Refused, ("ValueError",)),
    ],
)
def test_mistake_of_a_backend_is_an_error_and_the_worker_lives(
    lines: dict[str, str],
    kind: type[SubcutError],
    says: tuple[str, ...],
    start: Start,
    tmp_path: Path,
) -> None:
    e = refusal(start(**lines), tmp_path)
    assert type(e) is kind
    assert has_line(e.what, *says)


def test_reply_that_subcut_cannot_read_is_no_crash_of_the_candidate(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sealed, so the two halves of subcut do not agree about its form: no verdict may come of
    that."""
    one = start()
    build(one)
    monkeypatch.setattr(worker, "Loaded", ModelRun)
    with pytest.raises(InternalError) as e:
        run_model(one, Job(Path("model.onnx"), [[]], [], tmp_path))
    assert e.value.code == "worker.unreadable-reply"
    assert not one.alive


def test_request_that_the_child_cannot_read_is_no_crash_of_the_candidate(
    start: Start, tmp_path: Path
) -> None:
    one = start()
    job = Job(Path("model.onnx"), [[]], [], tmp_path, options=["no mapping"])  # type: ignore[arg-type]
    with pytest.raises(InternalError) as e:
        run_model(one, job)
    assert e.value.code == "worker.failed-inside"
    assert not one.alive


WRITES_INTO_PIPES = """
for n in range(3, 20):
    try:
        os.write(n, b"{}\\n")
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    ("run", "kind", "code"),
    [
        ("raise ValueError('n')", ModelError, "backend.run-failed"),
        ("return 7", ModelError, "plugin.wrong-return"),
        ("os._exit(3)", WorkerDied, "worker.died"),
        ("os.closerange(3, 100); time.sleep(600)", WorkerDied, "worker.closed-pipe"),
        (WRITES_INTO_PIPES, WorkerDied, "worker.wrote-into-pipe"),
    ],
)
def test_error_tells_a_report_of_the_backend_from_what_its_process_did(
    run: str, kind: type[SubcutError], code: str, start: Start, tmp_path: Path
) -> None:
    with pytest.raises(kind) as e:
        ask(start(run=run), tmp_path)
    assert (type(e.value), e.value.code) == (kind, code)


def test_file_without_load_is_no_backend(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("def lode(model, options): pass\n")
    with Worker(str(tmp_path / "half.py")) as one:
        assert has_line(refusal(one, tmp_path).what, "function load")


@pytest.mark.parametrize(
    ("body", "about"),
    [
        ("def version(): raise KeyError('v')", "KeyError: 'v'"),
        ("def version(): import no_such_module", "no_such_module"),
        ("def precision(options): return 1 / 0", "ZeroDivisionError"),
        ("def precision(options): return 'float16'", "float16"),
    ],
)
def test_description_of_a_backend_can_fail(body: str, about: str, start: Start) -> None:
    with raises(BackendError, "backend.unusable", about):
        start(top=body).about({})


def test_description_of_a_backend_is_read(start: Start) -> None:
    said = "MULTI = 1\ndef version(): return 3.1\ndef precision(options): return options['p']"
    assert start(top=said).about({"p": "fp16"}) == BackendInfo("3.1", Precision.FP16, multi=True)
    found = start(top="def version(options): return options['v']").about({"v": "1.2"})
    assert found == BackendInfo("1.2")
    assert start().about({}) == BackendInfo()


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("np.float16([1, 2])", np.array([1, 2], np.float16)),
        ("np.arange(3, dtype='>f4')", np.arange(3, dtype=np.float32)),
        ("np.arange(6).reshape(2, 3).T", np.arange(6).reshape(2, 3).T),
        ("3.5", np.float64(3.5)),
        ("np.bool_(True)", np.bool_(True)),
        ("np.array(['a', 'bc'], object)", np.array(["a", "bc"], object)),
        ("'word'", np.array("word", object)),
        ("np.zeros((0, 4), np.int8)", np.zeros((0, 4), np.int8)),
        ("memoryview(b'ab')", np.array([97, 98], np.uint8)),
    ],
)
def test_array_like_output_is_a_tensor(
    expression: str, expected: Any, start: Start, tmp_path: Path
) -> None:
    answer = ask(start(run=f"return {{'y': {expression}}}"), tmp_path)
    found = value(answer, tmp_path)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_type_that_was_not_declared_is_kept_as_it_came(start: Start, tmp_path: Path) -> None:
    """A device gives float16 for a float32 model: that is for the judge to say, and no reason to
    stop."""
    outputs = (
        "{'y': 'tensor(float)', 'b': 'tensor(bfloat16)', 's': 'seq(tensor(float))', 'o':"
        " 'optional(tensor(float))'}"
    )
    one = start(
        top=(
            f"class Run:\n    outputs = {outputs}\n    def __call__(self, feeds):\n"
            "        return {'y': np.float16([1, 2]), 'b': np.float32([3]), 's': [], 'o': None}"
        ),
        load="return Run()",
    )
    answer = ask(one, tmp_path, "y", "b", "s", "o")
    assert [(r.form, r.dtype) for r in answer.tensors] == [
        ("tensor", "float16"),
        ("tensor", "float32"),
        ("sequence", "float32"),
        ("optional", "float32"),
    ]
    found = [tensors.load(r, tmp_path) for r in answer.tensors]
    assert [np.asarray(f).tolist() if f is not None else None for f in found] == [
        [1, 2],
        [3],
        [],
        None,
    ]


# ------------------------------------------------------------ what it inherits


def test_child_of_a_worker_reads_no_request(start: Start, tmp_path: Path) -> None:
    body = (
        "assert subprocess.run(['cat'], capture_output=True).stdout == b'' =="
        " sys.stdin.buffer.read()"
    )
    one = start(run=body, timeout=PATIENCE)
    for _ in range(2):
        ask(one, tmp_path)


def test_fork_that_comes_back_does_not_answer(start: Start, tmp_path: Path) -> None:
    one = start(run="os.fork()", timeout=PATIENCE)
    for _ in range(3):
        assert value(ask(one, tmp_path), tmp_path).tolist() == [0, 1]


@pytest.mark.parametrize("given", [{}, {"PYTHONPATH": "/some/where", "OPENBLAS_NUM_THREADS": "1"}])
def test_child_of_a_worker_has_the_users_environment(
    given: dict[str, str], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our import path would be poison for a command that runs another Python."""
    for key in ("PYTHONPATH", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(key, raising=False)
        if key in given:
            monkeypatch.setenv(key, given[key])
    one = start(run="print(subprocess.run(['env'], capture_output=True, text=True).stdout)")
    monkeypatch.setattr(worker_process, "SHOWN_LINES", 1000)
    ask(one, tmp_path)
    theirs = dict(line.split("=", 1) for line in one.process.last_lines() if "=" in line)
    assert {k: theirs[k] for k in ("PYTHONPATH", "OPENBLAS_NUM_THREADS") if k in theirs} == given


# ------------------------------------------------------------ ends


def opened() -> int:
    """Descriptors of this process."""
    return int(psutil.Process().num_fds())


@pytest.mark.rare
@pytest.mark.slow
def test_fifty_workers_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor, no thread, no folder: whatever ended them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    hang = backend(tmp_path, run="time.sleep(600)", name="hang")
    crash = backend(tmp_path, load="os.abort()", name="crash")
    before = opened()
    threads = threading.active_count()
    for i in range(50):
        one = Worker((hang, crash)[i % 2], timeout=0.05)
        if i % 10 < 2:
            died(one, tmp_path)
        one.close()
    assert opened() == before
    assert threading.active_count() == threads
    assert list((tmp_path / "temporary").iterdir()) == []


def test_process_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with raises(BackendError, "process.not-started"):
        Worker("ort")
    assert opened() == before


@pytest.mark.parametrize(
    "body", ["pass", "ctypes.PyDLL(None).sleep(600)", "os.abort()", f"{SETSID}\ntime.sleep(600)"]
)
def test_closing_is_quick_and_may_be_repeated(
    body: str, start: Start, tmp_path: Path, mark: str
) -> None:
    running = tmp_path / "running"
    one = start(run=f"open({str(running)!r}, 'w').close()\n{body}")
    build(one)
    asking = threading.Thread(target=died, args=(one, tmp_path))
    if body == "pass":
        ask(one, tmp_path)
    else:
        asking.start()
        wait_for(running)
    for _ in range(2):
        begin = time.monotonic()
        one.close()
        assert time.monotonic() - begin < SOON
    if body != "pass":
        asking.join(SOON)
        assert not asking.is_alive()
    assert not one.alive
    all_gone(mark)


def test_closing_one_that_has_only_started(start: Start) -> None:
    one = start()
    begin = time.monotonic()
    one.close()
    assert time.monotonic() - begin < SOON
    with raises(WorkerDied, "worker.stopped"):
        build(one)
    assert one.process.last_lines() == []


def test_answer_that_was_not_waited_for_is_nobody_elses(start: Start, tmp_path: Path) -> None:
    """Ctrl-C while a request is under way: the next must not get its answer."""

    running = tmp_path / "running"
    one = start(run=f"open({str(running)!r}, 'w').close(); time.sleep(600)")
    build(one)
    with interrupted_at(running):
        one.run("m", tmp_path, {}, [])
    assert not one.alive
    with pytest.raises(WorkerDied):
        build(one)


PARENT = """
import sys
from pathlib import Path
from subgraph.runtime.worker import Worker
with Worker(sys.argv[1]) as one:
    one.load("m", Path("m"), {})
    one.run("m", Path("."), {}, [])
"""


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(600)",
        "ctypes.PyDLL(None).sleep(600)",
        "[os.fork() for _ in range(2)]; ctypes.PyDLL(None).sleep(600)",
        "subprocess.run(['sleep', '600'])",
        "subprocess.Popen(['sleep', '600'], close_fds=False); ctypes.PyDLL(None).sleep(600)",
    ],
    ids=["sleep", "lock held", "forks", "child", "child with our pipes"],
)
def test_kill_9_of_the_parent_leaves_no_child(
    body: str, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder for temporary files is removed by the next one."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = backend(tmp_path, run=f"open('running', 'w'); {body}")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, path], cwd=tmp_path)
    wait_for(tmp_path / "running")
    until(lambda: len(living(mark)) >= (4 if "fork" in body else 3 if "'sleep'" in body else 2))
    parent.kill()
    parent.wait()
    all_gone(mark)
    assert list(temporary.iterdir())
    Worker(path).close()
    assert not list(temporary.iterdir())
