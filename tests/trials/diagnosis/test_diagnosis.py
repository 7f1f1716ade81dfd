"""Precision or bug: the evidence about failing regions, for faults whose nature is known; and in
commands.

Covers `trials.diagnosis.diagnosis`, `trials.diagnosis.conclusions`, `trials.similar_outputs` and
`trials.compare_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials import open_trials
from subgraph.trials.compare_tensors import compare_tensors
from subgraph.trials.diagnosis.conclusions import UNKNOWN, Evidence, Fact, conclude
from subgraph.trials.diagnosis.diagnosis import MAX_EVALUATED, diagnose
from subgraph.trials.questions import PreparedTrials
from subgraph.trials.similar_outputs import WrongOutput
from subgraph.trials.trial import Processes, Trials
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers import mistaken_candidate, text_models
from tests.helpers.documents import problem
from tests.helpers.facts import has_line
from tests.helpers.open_trials import region_of, spec_of
from tests.helpers.run_command import Done, in_process, subcut

IMAGE = (
    "g (float[N,3,8,9] x) => (float[N,3,8,9] y) { [first] p = Conv <pads=[1,1,1,1]> (x, w) [act] q"
    " = Tanh(p) [last] y = Conv <pads=[1,1,1,1]> (q, w) }"
)
STRICT = "noise:floor=0"
LATER = "only the first 3 findings are looked into so far"
Ask = Callable[..., Trials]


def weight() -> Any:
    return np.random.default_rng(3).standard_normal((3, 3, 3, 3), np.float32) / 3


def images(folder: Path, count: int) -> str:
    """So many samples, as a folder of them."""
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    for k in range(count):
        np.save(folder / "images" / f"s{k}.npy", rng.standard_normal((1, 3, 8, 9), np.float32))
    return str(folder / "images")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Processes of the mistaken candidate; its mistakes are options, so the tests of this file
    share them."""
    with Workers(candidate.parse(mistaken_candidate.HERE)) as shared:
        yield shared


@pytest.fixture
def ask(tmp_path: Path, reference: Reference, workers: Workers) -> Iterator[Ask]:
    """`ask(samples, **options)` -> trials on a model that reads an image."""
    with ExitStack() as stack:

        def opened(samples: int = 1, text: str = IMAGE, **options: str) -> Trials:
            graph = text_models.load(tmp_path, text, w=weight())
            mistaken = replace(candidate.parse(mistaken_candidate.HERE), options=options)
            setup = open_trials.Setup(
                mistaken, Feeding((images(tmp_path, samples),)), tmp_path / "out", STRICT
            )
            trials = stack.enter_context(open_trials.open_trials(graph, setup, reference, workers))
            trials.runtime.__dict__["about"] = workers_about(workers, options)
            return trials

        yield opened


def workers_about(workers: Workers, options: dict[str, str]) -> BackendInfo:
    """With these options instead of the workers' own."""
    with workers.borrow() as worker:
        return worker.about(options)


def evidence_of(trials: Trials, *names: str, more: bool = False) -> dict[str, str]:
    """The evidence about a region of these nodes, by kind; `more`: also by runs of other
    candidates."""
    region = region_of(trials.model.graph, *names)
    found = diagnose(trials, region, trials.verdict(region), "" if more else LATER)
    assert found[0].kind == "conclusion" and len(found) == len({one.kind for one in found})
    return {one.kind: one.says for one in found}


# ------------------------------------------------------------ likeness

NHWC = ("axes", "0,2,3,1", "NHWC for NCHW")


@pytest.mark.parametrize(
    ("mistake", "words"), [("nhwc", NHWC), ("bgr", ("0 and 2", "axis 1", "RGB for BGR"))]
)
def test_simple_mistake_is_named(mistake: str, words: tuple[str, ...], ask: Ask) -> None:
    found = evidence_of(ask(mistake=mistake, tensor="y"), "last")
    assert has_line(found["likeness"], "looks like", *words)
    assert has_line(found["conclusion"], "bug", "layout", "preprocessing")


def test_the_previous_sample_is_named(ask: Ask) -> None:
    found = evidence_of(ask(3, mistake="before", tensor="y"), "last")
    assert any(has_line(found["likeness"], f"sample s{k}") for k in range(2))


def test_input_taken_for_another_layout_is_named(ask: Ask) -> None:
    found = evidence_of(ask(2, mistake="fed"), "first")
    assert has_line(found["input"], "RGB for BGR", "0 and 2", "axis 1")
    assert has_line(found["conclusion"], "input", "RGB for BGR")


def test_values_like_nothing(ask: Ask) -> None:
    found = evidence_of(ask(mistake="noise", tensor="y"), "last")
    assert "likeness" not in found
    assert has_line(found["noise"], "rounding", "fp32", "not explain"), found["noise"]
    assert has_line(found["precision"], "explain") or has_line(found["precision"], "imprecise")


# ------------------------------------------------------------ precision


def test_float16_that_nobody_declared(ask: Ask) -> None:
    found = evidence_of(ask(mistake="half"), "first", "act", "last")
    assert has_line(found["conclusion"], "rounding", "not a bug", "float16", "--precision fp16")
    assert has_line(found["likeness"], "every value", "float16")
    assert has_line(found["precision"], "float16")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("inside", ("perhaps no", "0.002", "approximate", "Conv, Tanh")),
        ("drift", (("bug", "float16", "size"))),
    ],
)
def test_by_its_size(mistake: str, words: tuple[str, ...], ask: Ask) -> None:
    found = evidence_of(ask(mistake=mistake, tensor="y"), "first", "act", "last")
    assert has_line(found["conclusion"], *words)
    assert "likeness" not in found


def test_lower_precision_that_every_node_shows(ask: Ask) -> None:
    found = evidence_of(ask(mistake="jitter"), "first", "act", "last", more=True)
    assert has_line(found["alone"], "3 nodes")
    assert has_line(found["conclusion"], "probably rounding", "float16")


def test_exact_operator_has_no_approximate_kernel(ask: Ask) -> None:
    """It was called "no bug, by the size of the error", whatever the operator."""
    text = "g (float[N,3,8,9] x) => (float[N,3,8,9] y) { [last] y = Abs(x) }"
    found = evidence_of(ask(text=text, mistake="gain", tensor="y"), "last", more=True)
    assert found["conclusion"].startswith("a bug"), found
    assert "approximate" not in " ".join(found.values())


def test_criterion_that_asks_for_equal_bits(ask: Ask) -> None:
    trials = ask(mistake="last-bits", tensor="y")
    exacting = trials.with_criterion("numpy:rtol=0,atol=0")
    assert has_line(evidence_of(exacting, "last")["conclusion"], "rounding", "not a bug")


def test_float16_that_was_declared_is_not_brought_up(ask: Ask) -> None:
    trials = ask(mistake="half", claim="fp16")
    region = region_of(trials.model.graph, "first", "act", "last")
    verdict = trials.verdict(region)
    assert verdict.status is Status.AGREE
    assert not [
        one for one in diagnose(trials, region, verdict) if one.kind in ("likeness", "precision")
    ]


@pytest.mark.turns(3)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("value", "claim"), [("98000000", "fp16"), ("98000000", "fp32"), ("-98000000", "fp16")]
)
def test_weight_beyond_the_claimed_range_is_named(
    value: str, claim: str, constant: bool, ask: Ask
) -> None:
    """Clipped to float16's range, the variance of a batch normalization looked like "a bug: a mean
    and a scale?"."""
    text = (
        f"g (float[N,3,8,9] x) => (float[N,3,8,9] y) <float[1] v = {{{value}}}> {{ [last] y ="
        " Mul(x, v) }"
    )
    if constant:
        made = f"v = Constant <value: tensor = float[1] {{{value}}}> ()"
        text = f"g (float[N,3,8,9] x) => (float[N,3,8,9] y) {{ {made} [last] y = Mul(x, v) }}"
    found = evidence_of(ask(text=text, mistake="sign", tensor="y", claim=claim), "last")
    named = found.get("range") == "weight 'v' holds 9.8e+07: float16 ends at 6.55e+04"
    assert (
        named == found["conclusion"].startswith("range: ") == (value[0] == "9" and claim == "fp16")
    )


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("exact", "claim", "words", "conclusion"),
    [
        ("right", "fp16", ("right", "precision=f32", "lower precision"), ("not known", "right")),
        ("wrong", "fp16", ("wrong", "claim=fp32,precision=f32"), ("bug", "full precision")),
        ("right", "fp32", ("right", "precision=f32", "optimizer"), ("bug", "optimizer", "right")),
    ],
)
def test_the_same_backend_in_full_precision(
    exact: str, claim: str, words: tuple[str, ...], conclusion: tuple[str, ...], ask: Ask
) -> None:
    found = evidence_of(
        ask(mistake="noise", tensor="y", exact=exact, claim=claim), "last", more=True
    )
    assert has_line(found["exact"], *words)
    assert has_line(found["conclusion"], *conclusion)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switches", "words", "conclusion"),
    [
        ("heal", ("right", "exp=exact"), ("one option",)),
        (
            "none",
            ("wrong", "threads=1", "wrong", "fast exp"),
            (("bug", "approximation", "float16", "'first' alone", "fp32")),
        ),
    ],
)
def test_switch_confirms_what_a_precision_only_fits(
    switches: str, words: tuple[str, ...], conclusion: tuple[str, ...], ask: Ask
) -> None:
    """The error fits float16: that is a guess, until turning something off heals it."""
    trials = ask(mistake="drift", tensor="y", switches=switches)
    found = evidence_of(trials, "first", "act", "last", more=True)
    assert has_line(found["switch"], *words)
    assert has_line(found["conclusion"], *conclusion)
    withheld = evidence_of(trials, "first", "act", "last")
    assert has_line(withheld["switch"], "not run", "threads") and LATER in withheld["switch"]


def test_no_switch_is_thrown_where_full_precision_is_right(ask: Ask) -> None:
    assert "switch" not in evidence_of(
        ask(mistake="noise", tensor="y", exact="right", switches="heal"), "last", more=True
    )


# ------------------------------------------------------------ other opinions


def test_reference_that_errs_is_not_defended(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate's values are the evaluator's, as if the candidate were right."""
    trials = ask(mistake="bgr", tensor="y")
    region = region_of(trials.model.graph, "last")
    verdict = trials.verdict(region)
    answer = trials.run(region)
    real = Processes.run

    def answered(self: Processes, *words: Any, **more: Any) -> Any:
        return (
            real(self, *words, **more)
            if self.runtime.candidate is trials.runtime.candidate
            else answer
        )

    monkeypatch.setattr(Processes, "run", answered)
    found = {one.kind: one.says for one in diagnose(trials, region, verdict)}
    assert has_line(found["second"], "evaluator agrees", "candidate")
    assert has_line(found["conclusion"], "which side", "evaluator agrees", "candidate")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [("nan", ("rounding", "fp32", "not explain")), ("shape", ("rounding", "1×3×8×1", "1×3"))],
)
def test_deviation_beyond_rounding_is_not_a_precision(
    mistake: str, words: tuple[str, ...], ask: Ask
) -> None:
    found = evidence_of(ask(mistake=mistake, tensor="y"), "last", more=True)
    assert has_line(found["noise"], *words)
    assert has_line(found["conclusion"], "bug", "rounding", "evaluator agrees")


def test_indices_that_no_rounding_changes(ask: Ask) -> None:
    text = "g (float[N,3,8,9] x) => (int64[N,3,8,1] y) { [last] y = ArgMax <axis=3> (x) }"
    found = evidence_of(ask(text=text, mistake="bgr", tensor="y"), "last")
    assert has_line(found["noise"], "indices")


def test_evaluator_confirms_values_that_a_wrong_candidate_could_guess(ask: Ask) -> None:
    """Its agreement on zeros was no opinion: "this input tells nothing"."""
    text = "g (float[N,3,8,9] x) => (float[N,3,8,9] y) { [last] y = Sub(x, x) }"
    found = evidence_of(ask(text=text, mistake="offset", tensor="y"), "last", more=True)
    assert has_line(found["second"], "agrees", "reference")


def test_evaluator_that_cannot_is_no_opinion(ask: Ask) -> None:
    text = "g (float[N,3,8,9] x) => (float[N,3,8,9] y) { [last] y = com.microsoft.Gelu(x) }"
    trials = ask(text=f"{text}", mistake="noise", tensor="y")
    found = evidence_of(trials, "last")
    assert has_line(found["second"], "second opinion")
    assert "conclusion" in found


def test_nothing_more_is_run_where_the_budget_is_spent(ask: Ask) -> None:
    trials = ask(mistake="offset", tensor="y", exact="right")
    region = region_of(trials.model.graph, "last")
    verdict = trials.verdict(region)
    found = {
        one.kind: one.says for one in diagnose(trials, region, verdict, "9 trials were too few")
    }
    assert has_line(found["exact"], "precision=f32", "9 trials")
    assert has_line(found["second"], "second opinion", "9 trials")
    slow = replace(verdict, run=100.0)
    found = {one.kind: one.says for one in diagnose(trials, region, slow)}
    assert has_line(found["second"], "second opinion", "100 s")


def test_candidate_that_gave_nothing_has_noconclude(ask: Ask) -> None:
    trials = ask(mistake="noise", tensor="y", exact="right")
    died = Verdict(Status.FAIL, Signature.CRASH, "killed by signal 6")
    (one,) = diagnose(trials, region_of(trials.model.graph, "last"), died)
    assert one.kind == "exact"
    assert has_line(one.says, "right", "precision=f32", "optimizer")


def test_big_region_is_not_given_to_the_evaluator(ask: Ask) -> None:
    chain = " ".join(f"[n{k}] t{k + 1} = Neg(t{k})" for k in range(MAX_EVALUATED + 2))
    text = f"g (float[N,3,8,9] t0) => (float[N,3,8,9] t{MAX_EVALUATED + 2}) {{ {chain} }}"
    trials = ask(text=text, mistake="sign", tensor=f"t{MAX_EVALUATED + 2}")
    found = evidence_of(trials, *(f"n{k}" for k in range(MAX_EVALUATED + 2)), more=True)
    assert has_line(found["second"], "second opinion", f"{MAX_EVALUATED + 2}", "Python")


def test_rounding_that_an_option_avoids_is_rounding() -> None:
    """A chaotic model was "wrong" because of an option that changed the last bit of a Sigmoid."""
    found = [Evidence("noise", "", Fact.WITHIN), Evidence("switch", "", Fact.SWITCH, quoted="off")]
    assert conclude(found).fact is Fact.ROUNDS


def test_nothing_decides() -> None:
    assert conclude([Evidence("noise", "")]).says == UNKNOWN


def test_overflow_is_no_bug_though_the_evaluator_agrees_with_the_reference() -> None:
    overflow = Evidence("likeness", "", Fact.RANGE, quoted="infinite beyond 65504")
    says = conclude([overflow, Evidence("second", "", Fact.REFERENCE)]).says
    assert has_line(says, "range, not a bug", "infinite beyond 65504", "float32")


# ------------------------------------------------------------ compare


def test_compare_tells_it_of_the_first_bad_tensor(ask: Ask) -> None:
    trials = ask(mistake="nhwc", tensor="p")
    found = compare_tensors(PreparedTrials(trials))
    assert found.first_bad and found.first_bad.tensor == "p"
    (text,) = found.looks_like
    assert has_line(text, *NHWC)
    region = trials.model.whole(["p"])
    (judged,) = (j for j in trials.verdict(region).outputs if j.name == "p")
    assert WrongOutput(trials, region, judged).looks_like == [text], "in place as well"


# ------------------------------------------------------------ commands


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the model and two samples."""
    text_models.load(tmp_path, IMAGE, w=weight())
    images(tmp_path, 2)
    return tmp_path


def run(verb: str, cwd: Path, *words: str, **options: str) -> Done:
    return subcut(
        verb,
        *"model.onnx -i images -c".split(),
        spec_of(mistaken_candidate.HERE, **options),
        *words,
        cwd=cwd,
    )


def evidence(done: Done) -> dict[str, str]:
    """Of the first finding, by kind."""
    document = done.document
    assert not problem(document)
    return {one["kind"]: one["says"] for one in document["findings"][0]["evidence"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "other", [(), ("--candidate-model", "other.onnx")], ids=["the model", "another model"]
)
def test_bug_of_an_optimizer_is_explained(other: Sequence[str], tmp_path: Path) -> None:
    """The demo's fault, in a backend whose optimizer can be switched off."""
    in_process("demo", tmp_path / "bug")
    copy = onnx.load(tmp_path / "bug" / "model.onnx")
    copy.doc_string = "another one"
    onnx.save(copy, tmp_path / "bug" / "other.onnx")
    wrong = tmp_path / "bug" / "wrong.py"
    call = "    join_pads_with_pools(network.graph)\n"
    text = wrong.read_text().replace(call, f'    if options.get("opt") != "disable":\n    {call}')
    wrong.write_text(text + 'def exact(options):\n    return {**options, "opt": "disable"}\n')
    done = subcut("bisect", "model.onnx", "-c", "wrong.py", *other, "--json", cwd=tmp_path / "bug")
    found = evidence(done)
    assert has_line(found["exact"], "right", "opt=disable", "optimizer")
    assert has_line(found["second"], "evaluator agrees", "reference")
    assert has_line(found["conclusion"], "bug", "optimizer", "evaluator")
    assert "likeness" not in found
    report = (tmp_path / "bug" / done.document["report"]).read_text()
    assert has_line(report, "right", "opt=disable")


@pytest.mark.slow
def test_bisect_says_it(here: Path) -> None:
    done = run("bisect", here, mistake="bgr", tensor="y")
    answer = " ".join(done.out.split())  # lines are wrapped
    assert has_line(answer, "0 and 2", "axis 1", "RGB for BGR"), done
    assert has_line(answer, "bug", "layout")
    again = run("bisect", here, mistake="bgr", tensor="y")
    kept, first = (out.partition("\n")[2] for out in (again.out, done.out))
    assert kept == first, "all of it was kept"


@pytest.mark.slow
def test_bisect_tells_float16_from_a_bug(here: Path) -> None:
    found = evidence(run("bisect", here, "--json", "--rtol", "1e-4", mistake="half"))
    assert has_line(found["conclusion"], "rounding", "not a bug", "float16", "--precision fp16")
    assert has_line(found["second"], "evaluator agrees", "reference")
    done = run(
        "bisect", here, *"--precision fp16 --criterion noise:k=0.6 --force".split(), mistake="half"
    )
    assert done.code == 0 and has_line(done.out, "right", "agree"), done


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["bisect", "compare"])
def test_misread_input_stands_first(verb: str, here: Path) -> None:
    done = run(verb, here, mistake="fed")
    assert (done.code, has_line(done.err, "RGB for BGR", "0 and 2", "axis 1")) == (4, True), done


@pytest.mark.slow
def test_compare_says_it(here: Path) -> None:
    done = run("compare", here, mistake="nhwc", tensor="y")
    assert has_line(done.out, "looks like", *NHWC), done
    document = run("compare", here, "--json", mistake="nhwc", tensor="y").document
    (text,) = document["first_bad"]["looks_like"]
    assert has_line(text, *NHWC)


@pytest.mark.slow
def test_refusal_with_a_switch_off_is_reported(tmp_path: Path) -> None:
    """It was "not known"."""
    (tmp_path / "picky.py").write_text(
        "import onnx, onnxruntime\ndef exact(options): return {'precision': 'f32'} if not options"
        " else None\ndef switches(options): return {} if options else {'threads': {'threads':"
        " '1'}}\ndef load(model, options):\n    if any(node.op_type == 'Tanh' for node in"
        " onnx.load(model).graph.node): raise ValueError('no Tanh')\n    session ="
        " onnxruntime.InferenceSession(str(model))\n    names = [o.name for o in"
        " session.get_outputs()]\n    return lambda feeds: dict(zip(names, session.run(names,"
        " feeds)))\n"
    )
    text = (
        "g (float[4] x) => (float[4] y) { [first] a = Neg(x) [turn] b = Tanh(a) [last] y = Exp(b) }"
    )
    text_models.save(tmp_path / "m.onnx", text)
    found = evidence(subcut("bisect", "m.onnx", "-c", "picky.py", "--json", cwd=tmp_path))
    assert has_line(found["exact"], "refused", "precision=f32")
    assert has_line(found["switch"], "refused", "threads=1")
