"""`subcut sweep`: onnx's operator tests on candidates that are right, wrong, crash, hang, or are
killed.

Covers `questions.sweep.sweep`, `questions.sweep.result_folder`, `questions.sweep.operator_tests`,
`questions.sweep.result_folder` and `commands.sweep`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import numpy as np
import pytest

from subgraph.documents import from_json, make_schema
from subgraph.questions.sweep.sweep import choose_outcome
from subgraph.reports import md
from subgraph.reports.html import render_sweep
from subgraph.results import sweep as sweep_results
from subgraph.results.sweep import (
    CandidateEntry,
    OnnxruntimeEntry,
    OperatorEntry,
    ResultEntry,
    RowEntry,
    SweepDocument,
    SweepOutcome,
)
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers import fake_candidate
from tests.helpers.facts import has_line
from tests.helpers.open_trials import spec_of
from tests.helpers.process_backends import MARK, all_gone, until
from tests.helpers.run_command import PATIENCE, SUBCUT, environment, manifest, run_program, subcut

SCHEMA = make_schema(SweepDocument)
ELU = {
    f"test_elu{name}{more}"
    for name in ("", "_default", "_example")
    for more in ("", "_expanded_ver18")
}
RIGHT = """
import onnxruntime
def session(model):
    found = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [o.name for o in found.get_outputs()]
    return lambda feeds: dict(zip(names, found.run(names, dict(feeds))))
"""


def long(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A sweep that may take more than a minute."""
    return run_program([SUBCUT, "sweep", *words], cwd=cwd, env=environment(), timeout=900)


@pytest.fixture
def here(tmp_path: Path, operator_tests: Path) -> Path:
    """A folder whose store has onnx's tests."""
    folder = tmp_path / "here"
    shutil.copytree(operator_tests, folder / "subcut_out" / ".store", copy_function=os.link)
    return folder


@pytest.fixture
def backend(here: Path) -> Callable[[str], str]:
    """A Python file as a candidate: `model` is its path, `op` the first node's, `run` plain
    onnxruntime on it."""

    def written(body: str, name: str = "mine.py") -> str:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (here / name).write_text(
            f"import os, signal, time\nimport onnx\n{RIGHT}\ndef load(model, options):\n    op, run"
            f" = onnx.load(model).graph.node[0].op_type, session(model)\n{lines}    return run\n"
        )
        return name

    return written


def sweep(*words: str | Path, cwd: Path, code: int, **more: Any) -> dict[str, Any]:
    """The document, checked against its schema and its own totals."""
    done = subcut("sweep", *words, "--json", cwd=cwd, **more)
    assert done.code == code, done
    document = done.document
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["exit_code"] == code
    check(document)
    return document


def check(document: dict[str, Any]) -> None:
    """Totals, operators and networks count each test once."""
    tests = document["tests"]
    assert len(document["rows"]) == tests["count"]
    assert len(document["left_out"]) == tests["left_out"]
    for k, candidate in enumerate(document["candidates"]):
        words = [row["results"][k]["status"] for row in document["rows"]]
        assert candidate["totals"] == {w.value: words.count(w) for w in SweepOutcome}
        for w in SweepOutcome:
            by_operator = sum(e["totals"][k][w] for e in document["operators"])
            assert by_operator + document["networks"][k][w] == words.count(w)
    assert sum(e["tests"] for e in document["operators"]) + tests["networks"] == tests["count"]
    plain = document["onnxruntime"]
    assert (
        plain["agrees"] + plain["refuses"] + plain["crashes"] + len(plain["differs"])
        == tests["count"]
    )


def statuses(document: dict[str, Any], k: int = 0) -> dict[str, str]:
    return {row["test"]: row["results"][k]["status"] for row in document["rows"]}


def faulty_spec(**faults: str) -> str:
    return spec_of(fake_candidate.HERE, **faults)


@pytest.mark.slow
def test_backends_caveat_is_said(here: Path, backend: Callable[[str], str]) -> None:
    """As the other commands say it: before anything runs."""
    name = backend("")
    with (here / name).open("a") as file:
        file.write("\ndef caveat(options): return 'it computes in fp16 here'\n")
    assert has_line(subcut("sweep", "-c", name, "--only", "test_abs", cwd=here).err, "fp16")


def test_unknown_option_is_refused_before_the_tests_are_made(tmp_path: Path) -> None:
    done = subcut("sweep", "-c", "ort:nonsense=1", cwd=tmp_path)
    assert (done.code, has_line(done.err, "making")) == (2, False)


# ------------------------------------------------------------ the answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patterns", "tests"),
    [
        (["Elu", "abs"], {*ELU, "test_abs"}),
        pytest.param(["elu"], ELU, marks=pytest.mark.slow),
        pytest.param(["test_elu"], {"test_elu"}, marks=pytest.mark.slow),
        (["elu_default*"], {"test_elu_default", "test_elu_default_expanded_ver18"}),
        (
            ["light_s*", "test_abs"],
            {"test_abs", *(f"test_light_{n}" for n in ("shufflenet", "squeezenet"))},
        ),
    ],
)
def test_only_selects_tests(patterns: list[str], tests: set[str], here: Path) -> None:
    words = [word for pattern in patterns for word in ("--only", pattern)]
    document = sweep("-c", "ort", *words, cwd=here, code=0)
    assert statuses(document) == dict.fromkeys(tests, "right")
    assert document["only"] == patterns
    # expanded ones as well
    assert {row["operator"] for row in document["rows"] if row["test"] in ELU} <= {"Elu"}


ODD = (
    "constant identity_sequence identity_opt sequence_insert_at_back "
    "split_to_sequence_1 if_opt castlike_FLOAT_to_BFLOAT16 castlike_BFLOAT16_to_FLOAT "
    "castlike_FLOAT_to_FLOAT8E4M3FN castlike_FLOAT_to_INT4 castlike_UINT4_to_FLOAT "
    "castlike_FLOAT_to_UINT2 string_concat string_split_basic "
    "ai_onnx_ml_label_encoder_string_int strnormalizer_nostopwords_nochangecase "
    "reduce_sum_empty_set reduce_max_empty_set nonzero_example size_example "
    "constantofshape_int_shape_zero optional_has_element_empty_no_input_tensor_input "
    "loop16_seq_none isnan max_float16 dropout_default training_dropout_zero_ratio "
    "training_dropout bernoulli sequence_map_identity_1_sequence_expanded "
    "split_zero_size_splits_opset18 attention_4d_fp16"
).split()


@pytest.mark.slow
def test_values_of_every_kind_have_an_outcome(here: Path) -> None:
    """Sequences, optionals, strings, types that numpy lacks, empty tensors; models without
    inputs."""
    words = [word for name in ODD for word in ("--only", f"test_{name}")]
    document = sweep("-c", "ort", "-c", "onnx-reference", *words, cwd=here, code=1)
    assert {row["test"] for row in document["left_out"]} == {
        "test_bernoulli",
        "test_training_dropout",
    }
    newer = {"test_optional_has_element_empty_no_input_tensor_input"}  # than the runtime
    assert {name for name, found in statuses(document).items() if found != "right"} <= newer
    assert {name for name, found in statuses(document, 1).items() if found != "right"} == {
        "test_if_opt"
    }


@pytest.mark.slow
def test_wrong_ones_have_a_case_that_replays(here: Path) -> None:
    spec = faulty_spec(op="Elu")
    document = sweep(
        "-c", spec, "--only", "test_elu*example*", "--only", "test_abs", cwd=here, code=1
    )
    wrong = {name for name, found in statuses(document).items() if found == "wrong"}
    assert wrong == {"test_elu_example"}
    assert [e["operator"] for e in document["operators"]] == ["Elu", "Abs"]
    (row,) = (r for r in document["rows"] if r["test"] in wrong)
    found = row["results"][0]
    assert (found["signature"], found["judged_by"], row["onnxruntime"]) == (
        "mismatch",
        "criterion",
        "agrees",
    )
    assert found["errors"]["max_abs"] == pytest.approx(0.5)
    place = here / found["case"]
    told = manifest(place)
    assert told["expected"] == {
        "test": "test_elu_example",
        "operator": "Elu",
        "rtol": 1e-3,
        "atol": 1e-7,
    }
    given, expected = (np.load(place / role / "y.npy") for role in ("candidate", "outputs"))
    assert np.allclose(given, expected + 0.5)
    assert manifest(place.parent)["request"]["only"] == ["test_elu*example*", "test_abs"]
    stored = json.loads((place.parent / "sweep.json").read_text(encoding="utf-8"))
    assert stored | {key: document[key] for key in ("says", "next")} == document
    assert [p.name for p in place.parent.iterdir() if p.is_dir()] == [place.name]
    page = (place.parent / "report.html").read_text(encoding="utf-8")
    assert (
        has_line(page, "1 of 2", "wrong</h1>")
        and "✗ 1 wrong" in page
        and page == render_sweep(from_json(SweepDocument, document))
    )
    told = json.loads(json.dumps(document).replace("test_elu_example", "<script>alert(1)"))
    hostile = from_json(SweepDocument, told)
    assert "<script>alert" not in render_sweep(
        hostile
    ) and "&lt;script&gt;alert(1)" in render_sweep(hostile)
    shown = subcut("report", place.parent, "-f", "html", "-o", "-", cwd=here)
    assert shown.out.rstrip() == page.rstrip()
    refused = subcut("report", place.parent, "-f", "csv", cwd=here)
    assert refused.code == 2 and has_line(refused.err, "render_sweep") and "-f html" in refused.err
    again = subcut("replay", place, "-c", spec, cwd=here)
    assert again.code == 1
    assert "max error " in again.out and "; limit " in again.out


def test_sweep_for_a_tracker() -> None:
    """The text, in a block of code."""

    def result(status: SweepOutcome) -> ResultEntry:
        return ResultEntry(
            status=status,
            signature=None,
            why="why|not",
            judged_by=None,
            phase=None,
            before=None,
            output=None,
            errors={},
            build_seconds=0.5,
            run_seconds=0.25,
            case=None,
        )

    statuses = {
        "test_a": SweepOutcome.RIGHT,
        "test_b": SweepOutcome.WRONG,
        "test_c": SweepOutcome.REFUSED,
        "test_d": SweepOutcome.CRASHED,
        "test_e": SweepOutcome.UNRESOLVED,
    }
    rows = [
        RowEntry(name, "Elu", "", "node", "agrees", [result(status)])
        for name, status in statuses.items()
    ]
    totals = {word: sum(status is word for status in statuses.values()) for word in SweepOutcome}
    candidate = CandidateEntry("x", "x", {}, "1.0", "fp32", totals, 3.75, None)
    document = SweepDocument(
        exit_code=1,
        command="subcut sweep -c x",
        criterion="noise",
        only=[],
        tests=sweep_results.TestsEntry("1.23", 5, 1, 0, 0),
        candidates=[candidate],
        operators=[OperatorEntry("Elu", "", 5, [totals])],
        networks=[totals],
        differ=[],
        onnxruntime=OnnxruntimeEntry("1.0", 5, 0, 0, []),
        left_out=[],
        rows=rows,
    )
    lines = md.render_sweep(document).splitlines()
    assert has_line(lines, "wrong", "Elu", "test_b", "why|not")
    assert has_line(lines, "Elu", "5", "1", "1", "1", "1", "1")


@pytest.mark.slow
def test_no_more_than_jobs_run_at_once(here: Path, backend: Callable[[str], str]) -> None:
    """More threads than jobs unpack and judge; of the candidate's runs there are never more than
    asked for."""
    body = (
        "plain = run\ndef run(feeds):\n"
        "    path = os.path.join(os.path.dirname(__file__), f'going{os.getpid()}')\n"
        "    open(path, 'w').close()\n    folder = os.listdir(os.path.dirname(__file__))\n"
        "    open(os.path.join(os.path.dirname(__file__), 'most'), 'a').write("
        "f\"{sum(n.startswith('going') for n in folder)}\\n\")\n"
        "    time.sleep(0.2)\n    os.remove(path)\n    return plain(feeds)"
    )
    document = sweep(
        "-c", backend(body), *"--only Abs --only Relu --only Elu --jobs 2".split(), cwd=here, code=0
    )
    assert document["candidates"][0]["totals"]["right"] == document["tests"]["count"] > 6
    assert max(map(int, (here / "most").read_text().split())) == 2


@pytest.mark.slow
def test_sweep_case_is_replayed(here: Path) -> None:
    place = sweep("-c", faulty_spec(op="Elu"), "--only", "test_elu", cwd=here, code=1)["rows"][0][
        "results"
    ][0]["case"]
    assert subcut("replay", place, "-c", "ort", cwd=here).code == 0
    # a Python file that a case names is not run unasked
    assert subcut("replay", place, cwd=here).code == 2
    found = subcut("replay", place, "--trust", cwd=here, env={"XDG_CONFIG_HOME": str(here)})
    assert found.code == 1
    words = [sys.executable, here / place / "repro.py"]
    proof = run_program(words)
    assert (proof.returncode, proof.stderr) == (0, "")  # the expected values are onnxruntime's


@pytest.mark.slow
def test_case_with_types_that_onnxruntime_lacks_is_replayed(here: Path) -> None:
    """Where it refuses the model, or gives something else, the test's own tolerance judges; also in
    a replay."""
    names = ("test_adam", "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal")
    words = [word for name in names for word in ("--only", name)]
    document = sweep("-c", "ort", "-c", "onnx-reference", *words, cwd=here, code=1)
    assert statuses(document) == dict(zip(names, ("refused", "wrong"), strict=True))
    assert statuses(document, 1) == dict.fromkeys(names, "right")
    assert {r["results"][1]["judged_by"] for r in document["rows"]} == {"tolerance"}
    assert [d["test"] for d in document["onnxruntime"]["differs"]] == [names[1]]
    assert document["onnxruntime"]["refuses"] == 1
    case = here / document["rows"][1]["results"][0]["case"]
    assert subcut("replay", case, cwd=here).code == 1
    assert subcut("replay", case, "-c", "onnx-reference", cwd=here).code == 0
    assert "own tolerance" in subcut("sweep", "-c", "ort", *words, cwd=here).out


@pytest.mark.slow
def test_own_criterion_is_used(here: Path) -> None:
    spec = faulty_spec(op="Elu", fault="drift")
    words = ("-c", spec, "--only", "test_elu")
    assert statuses(sweep(*words, cwd=here, code=1)) == {"test_elu": "wrong"}
    document = sweep(*words, "--rtol", "1", "--atol", "0.02", cwd=here, code=0)
    assert (document["criterion"], statuses(document)) == (
        "numpy:rtol=1,atol=0.02",
        {"test_elu": "right"},
    )
    assert document["rows"][0]["results"][0]["judged_by"] == "criterion"


@pytest.mark.slow
def test_two_side_by_side(here: Path, backend: Callable[[str], str]) -> None:
    spec = backend("if op == 'Elu': return lambda feeds: {}")
    words = (
        "-c",
        "ort",
        "-c",
        spec,
        *"--only test_elu --only test_celu_float16 --only test_abs".split(),
    )
    document = sweep(*words, cwd=here, code=1)
    assert document["differ"] == ["test_elu"]
    assert [len(row["results"]) for row in document["rows"]] == [2, 2, 2]


@pytest.mark.slow
def test_exact_operator_is_judged_by_rounding_or_its_tolerance(
    here: Path, backend: Callable[[str], str]
) -> None:
    """An Abs off by 0.15 % was right, as a fast exp may be."""
    mine = backend(
        "right = run\nrun = lambda feeds: {k: v * v.dtype.type(1.0015) for k, v in"
        " right(feeds).items()}"
    )
    document = sweep("--only", "test_abs", "--only", "test_exp", "-c", mine, cwd=here, code=1)
    assert statuses(document) == {"test_abs": "wrong", "test_exp": "right"}
    case = next(row["results"][0]["case"] for row in document["rows"] if row["test"] == "test_abs")
    assert subcut("replay", case, "-c", mine, cwd=here).code == 1


@pytest.mark.slow
def test_shape_that_is_computed_inside_has_no_expected_value(
    here: Path, backend: Callable[[str], str]
) -> None:
    """It was a KeyError, and the whole sweep ended, where noise decided on an attention that is
    spelled out."""
    body = (
        "right = run\nrun = lambda feeds: {k: v * v.dtype.type(1 + 1e-4) for k, v in"
        " right(feeds).items()}"
    )
    document = sweep("--only", "test_attention_3d_scaled*", "-c", backend(body), cwd=here, code=0)
    assert set(statuses(document).values()) == {"right"} and len(document["rows"]) > 1


# ------------------------------------------------------------ bad candidates


@pytest.mark.slow
def test_crash_costs_one_test(here: Path, backend: Callable[[str], str]) -> None:
    spec = backend("if op == 'Elu': os.kill(os.getpid(), signal.SIGSEGV)")
    document = sweep(
        "-c", spec, "--only", "test_elu", "--only", "test_a*s", "--jobs", "2", cwd=here, code=1
    )
    crashed = [
        row["results"][0] for row in document["rows"] if row["results"][0]["status"] == "crashed"
    ]
    assert len(crashed) == 1
    assert "SIGSEGV" in crashed[0]["why"]
    assert crashed[0]["while"] == "build"
    assert {found for name, found in statuses(document).items() if name != "test_elu"} == {"right"}
    assert (here / crashed[0]["case"] / "outputs" / "y.npy").exists()
    assert not (here / crashed[0]["case"] / "candidate").exists()


@pytest.mark.slow
def test_hang_costs_one_test(here: Path, backend: Callable[[str], str]) -> None:
    spec = backend("if op == 'Elu': return lambda feeds: time.sleep(600)")
    words = ("-c", spec, "--only", "test_elu", "--only", "test_abs", "--timeout", "3")
    begin = time.monotonic()
    document = sweep(*words, cwd=here, code=1)
    assert time.monotonic() - begin < PATIENCE
    assert statuses(document) == {"test_abs": "right", "test_elu": "timeout"}
    assert document["rows"][1]["results"][0]["while"] == "run"


@pytest.mark.slow
def test_errors_are_refusals(here: Path, backend: Callable[[str], str]) -> None:
    spec = backend(
        "if op == 'Elu': return lambda feeds: 1 / 0\nif op == 'Abs': raise ValueError('no Abs')"
    )
    document = sweep("-c", spec, "--only", "test_elu", "--only", "test_abs", cwd=here, code=5)
    found = {row["test"]: row["results"][0] for row in document["rows"]}
    assert {name: (f["status"], f["while"]) for name, f in found.items()} == {
        "test_abs": ("refused", "build"),
        "test_elu": ("refused", "run"),
    }
    assert "no Abs" in found["test_abs"]["why"]


@pytest.mark.slow
def test_failure_only_in_a_used_process_is_unresolved(
    here: Path, backend: Callable[[str], str]
) -> None:
    spec = backend(
        "session.count = getattr(session, 'count', 0) + 1\nif session.count > 1: return lambda"
        " feeds: {}"
    )
    document = sweep("-c", spec, "--only", "test_elu", "--only", "test_abs", cwd=here, code=1)
    assert statuses(document) == {"test_abs": "right", "test_elu": "unresolved"}
    assert [row["results"][0]["before"] for row in document["rows"]] == [None, "wrong"]
    text = subcut("sweep", "-c", spec, "--only", "test_elu", "--only", "test_abs", cwd=here).out
    assert has_line(text, "fresh", "test_elu")


# ------------------------------------------------------------ going on


@pytest.mark.slow
def test_kill_9_and_go_on(here: Path) -> None:
    """The same command repeats no finished test."""
    notes = here / "notes"
    notes.mkdir()
    (notes / "stop").write_text("5")
    words = ("sweep", "-c", faulty_spec(log=str(notes)), "--only", "Softmax", "--jobs", "2")
    mark = uuid4().hex
    running = subprocess.Popen(
        [SUBCUT, *words],
        cwd=here,
        env=environment({MARK: mark}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: runs(notes) >= 5)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    all_gone(mark)
    (notes / "stop").unlink()
    before = runs(notes)
    assert before >= 5
    assert not list((here / "subcut_out").glob("sweep*"))
    document = sweep(*words[1:], cwd=here, code=0)
    right = list(statuses(document).values()).count("right")
    assert before < right < runs(notes) + 1
    assert runs(notes) <= right + 2  # those that were running
    total = runs(notes)
    assert sweep(*words[1:], cwd=here, code=0)["rows"] == document["rows"]
    assert runs(notes) == total
    assert not list((here / "subcut_out").glob(".subcut*"))


def runs(notes: Path) -> int:
    log = notes / "log"
    return log.read_text(encoding="utf-8").count(" run\n") if log.exists() else 0


# ------------------------------------------------------------ slips, tables


# ------------------------------------------------------------ parts


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        (Verdict(Status.AGREE), "right"),
        (Verdict(Status.FAIL, Signature.NAN), "wrong"),
        (Verdict(Status.FAIL, Signature.MISSING), "wrong"),
        (Verdict(Status.UNRESOLVED), "unresolved"),
        (Verdict(Status.UNRESOLVED, Signature.REFUSED), "refused"),
        (Verdict(Status.FAIL, Signature.TIMEOUT), "timeout"),
        (Verdict(Status.FAIL, Signature.CRASH, process={"died": True}), "crashed"),
        (Verdict(Status.FAIL, Signature.CRASH, process={"died": False}), "refused"),
    ],
)
def test_outcomes_have_their_exit_codes(verdict: Verdict, found: str) -> None:
    assert choose_outcome(verdict) == found


# ------------------------------------------------------------ all of it


@pytest.mark.rare
def test_all_of_them(here: Path) -> None:
    done = long("-c", "ort", "--jobs", "2", "--json", cwd=here)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    check(document)
    tests = document["tests"]
    assert tests["count"] > 1800
    assert tests["operators"] > 190
    assert tests["networks"] == 9
    (ort,) = (c["totals"] for c in document["candidates"])
    assert (ort["unresolved"], ort["crashed"], ort["timeout"]) == (0, 0, 0)
    assert ort["right"] > 0.75 * tests["count"]
    assert document["networks"][0]["right"] == 9
    wrong = {row["operator"] for row in document["rows"] if row["results"][0]["status"] == "wrong"}
    # A mask's infinities in qk_matmul_output; indices of the pooled shape taken for the given one;
    # align_corners scaled by the rounded size. onnx's evaluator gives what ONNX expects; that
    # onnxruntime does not is known.
    assert wrong == {"Attention", "MaxUnpool", "Resize"}
    wrong = {row["test"] for row in document["rows"] if row["results"][0]["status"] == "wrong"}
    assert wrong == {row["test"] for row in document["onnxruntime"]["differs"]}
    assert len({row["why"] for row in document["left_out"]}) == 1
    for row in document["rows"]:
        for result in row["results"]:
            assert (result["case"] is not None) == (
                result["status"] in ("wrong", "crashed", "timeout")
            )
            if result["case"]:
                manifest(here / result["case"])
    odd = [word for name in (*sorted(wrong), "Range", "If") for word in ("--only", name)]
    evaluated = json.loads(
        long("-c", "ort", "-c", "onnx-reference", *odd, "--json", cwd=here).stdout
    )
    at_odds = [row["results"][1]["status"] for row in evaluated["rows"] if row["test"] in wrong]
    assert at_odds == ["right"] * 5
    assert {
        row["operator"] for row in evaluated["rows"] if row["results"][1]["status"] == "wrong"
    } == {"Range", "If"}
