"""Scores of a task: of ours and of a user's file, which runs in a process of its own. Covers
`trials.score_backend`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from subgraph import plugins
from subgraph.comparison.scores._text import compute_edit_distance
from subgraph.errors import InputError, UsageError
from subgraph.graph.graph import load
from subgraph.results.common import ScoreDocument
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials import score_backend
from subgraph.trials.compare_tensors import compare
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.score import ScoreGoal, describe_score, parse_drop, read_labels
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.fake_candidate import HERE
from tests.helpers.open_trials import faulty_candidate
from tests.helpers.refusals import raises
from tests.helpers.run_command import Done, subcut


@pytest.mark.parametrize(
    ("text", "found"), [("0.5%", (0.005, True)), ("2", (2.0, False)), (" .1 ", (0.1, False))]
)
def test_drop(text: str, found: tuple[float, bool]) -> None:
    assert parse_drop(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["", "-1", "x%", "1%%", "nan"])
def test_malformed_drop_is_refused(text: str) -> None:
    with raises(UsageError, "option.malformed", "--drop"):
        parse_drop(text)


def test_the_limit() -> None:
    assert ScoreGoal("top1", 0.1, relative=True).limit(0.8) == pytest.approx(0.72)
    assert ScoreGoal("top1", 0.1).limit(0.8) == pytest.approx(0.7)
    assert ScoreGoal("loss", 0.1, relative=True).limit(-2.0) == pytest.approx(-2.2)
    assert ScoreGoal("top1", at_least=0.9).limit(0.8) == 0.9


def test_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 2], [3, 4]]))
    assert [label.tolist() for label in read_labels(tmp_path / "a.npy", ["s", "t"])] == [
        [1, 2],
        [3, 4],
    ]
    (tmp_path / "named.csv").write_text("t,7\ns,5\n")
    assert [int(label) for label in read_labels(tmp_path / "named.csv", ["s", "t"])] == [5, 7]
    (tmp_path / "plain.csv").write_text("5\n7\n")
    assert [int(label) for label in read_labels(tmp_path / "plain.csv", ["s", "t"])] == [5, 7]
    with raises(InputError, "labels.wrong-count", "2 labels", "3 samples"):
        read_labels(tmp_path / "plain.csv", ["s", "t", "u"])
    (tmp_path / "texts.csv").write_text("cat\n2.5\n")
    assert [label.tolist() for label in read_labels(tmp_path / "texts.csv", ["s", "t"])] == [
        "cat",
        2.5,
    ]
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\n7\n")
    with raises(InputError, "labels.unreadable"):
        read_labels(tmp_path / "bad.csv", ["s", "t"])
    with raises(InputError, "file.not-found"):
        read_labels(tmp_path / "none.npy", ["s"])
    for names in (("ant", "bee"), ("7", "9")):
        folder = tmp_path / names[0]
        for name, sample in zip(names, ("s.png", "t.png"), strict=True):
            (folder / name).mkdir(parents=True)
            (folder / name / sample).touch()
    assert [int(label) for label in read_labels(tmp_path / "ant", ["t", "s.png"])] == [1, 0]
    assert [int(label) for label in read_labels(tmp_path / "7", ["t", "s"])] == [9, 7]
    with raises(InputError, "labels.unclear-folder", "u"):
        read_labels(tmp_path / "ant", ["s", "u"])
    (tmp_path / "ant" / "bee" / "s.png").touch()
    with raises(InputError, "labels.unclear-folder", "s"):
        read_labels(tmp_path / "ant", ["s", "t"])


def score(name: str, outputs: list[Any], true: list[Any]) -> float:
    module = plugins.load("scores", name)
    arrays = [g if isinstance(g, np.ndarray) else np.asarray(g) for g in outputs]
    return float(module.score([{"y": a} for a in arrays], true))


def truth(values: list[Any]) -> list[dict[str, Any]]:
    return [{"y": np.asarray(v, np.float32)} for v in values]


def labels(values: list[Any]) -> list[dict[str, Any]]:
    return [{"label": np.asarray(v)} for v in values]


def test_top1_and_top5() -> None:
    rows = [[[0, 1, 0.5]], [[3, 1, 2]], [[0, 0, 1]]]
    assert score("top1", rows, labels([1, 0, 1])) == pytest.approx(2 / 3)
    assert score("top1", rows, truth([[[0, 1, 0]], [[0, 1, 0]], [[0, 0, 1]]])) == pytest.approx(
        2 / 3
    )
    many = [[np.arange(10).tolist()]]
    assert score("top5", many, labels([5])) == 1 and score("top5", many, labels([4])) == 0
    assert score("top1", [[[0, 1], [1, 0]]], labels([[1, 1]])) == 0.5  # a batch


def test_nan_is_not_a_hit() -> None:
    broken = [[[np.nan, 1, 0.5]]]
    assert score("top1", broken, labels([0])) == score("top5", broken, labels([0])) == 0
    pixels = np.full((1, 2, 2, 2), np.nan)
    assert score("miou", [pixels], labels([[[0, 0], [0, 0]]])) == 0


def test_sqnr_of_what_holds_no_floats_is_no_score() -> None:
    module = plugins.load("scores", "sqnr")
    with pytest.raises(ValueError, match="floats"):
        module.score([{"y": np.array([1])}], [{"y": np.array([1])}])


def test_miou() -> None:
    pixels = np.zeros((1, 2, 2, 2))
    pixels[0, 1, 0] = 1  # the first row is class 1
    assert score("miou", [pixels], labels([[[1, 1], [0, 0]]])) == 1
    assert score("miou", [pixels], labels([[[1, 0], [0, 0]]])) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert score("miou", [pixels], truth([pixels])) == 1


def test_iou() -> None:
    mask = [[0.9, 0.2], [0.8, 0.1]]
    assert score("iou", [mask], labels([[[1, 0], [1, 0]]])) == 1
    assert score("iou", [mask], labels([[[1, 1], [0, 0]]])) == pytest.approx(1 / 3)
    assert score("iou", [[[2, -3], [1, -1]]], truth([[[2, -3], [-1, -1]]])) == 0.5  # logits
    assert score("iou", [[[0, 0.1]]], truth([[[0, 0.2]]])) == 1  # both are empty
    # a quantized probability is no logit
    assert score("iou", [[[-0.01, 0.1]]], truth([[[0.9, 0.2]]])) == 0
    assert score("iou", [[[np.nan, 1]]], labels([[0, 1]])) == 0


def ctc(classes: list[int], number: int = 5) -> list[list[list[float]]]:
    return [np.eye(number)[classes].tolist()]


def test_cer_and_wer() -> None:
    assert score("cer", [ctc([0, 2, 2, 0, 2, 3, 0])], labels([[2, 2, 3]])) == 1
    # the blank is the last class
    assert score("cer", [ctc([4, 4, 2, 4, 1])], labels([[2, 3]])) == 0.5
    assert score("cer", [ctc([0, 1, 0, 2])], truth([ctc([0, 1, 0, 0])])) == 0  # of one letter
    words = [np.array(["the cat sat"])]
    assert score("wer", words, labels(["the cat sat"])) == 1
    assert score("wer", words, labels(["the dog sat"])) == pytest.approx(2 / 3)
    assert score("cer", words, labels(["the cat sit"])) == pytest.approx(10 / 11)
    assert score("wer", [[3, 5, 7]], labels(["3 5 8"])) == pytest.approx(2 / 3)
    assert score("cer", [np.full((1, 2, 5), np.nan)], labels([[1]])) == 0
    with pytest.raises(ValueError, match="text"):
        score("cer", [ctc([1, 2])], labels(["ab"]))


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_law_edits_are_a_distance(a: str, b: str, c: str) -> None:
    assert (compute_edit_distance(a, b) == 0) == (a == b)
    assert compute_edit_distance(a, b) == compute_edit_distance(b, a) <= max(len(a), len(b))
    assert compute_edit_distance(a, c) <= compute_edit_distance(a, b) + compute_edit_distance(b, c)


def test_sqnr() -> None:
    assert score("sqnr", [[1.0, 2.0]], truth([[1.0, 2.0]])) == 200
    assert score("sqnr", [[1.1, 2.0]], truth([[1.0, 2.0]])) == pytest.approx(
        10 * np.log10(5 / 0.01), abs=1e-3
    )
    assert score("sqnr", [[np.nan, 2.0]], truth([[1.0, 2.0]])) == -200


@pytest.mark.parametrize("name", plugins.list_own_names("scores"))
def test_each_is_best_where_nothing_changes(name: str) -> None:
    values = [np.random.default_rng(k).normal(size=(1, 7, 3, 3)) for k in range(3)]
    assert score(name, values, truth(values)) >= score(name, [-v for v in values], truth(values))
    assert len(plugins.read_help("scores", name)) > 20


def test_users_function_gets_outputs_and_samples(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def both(outputs, samples):\n    return sum(o['y'][0] * s['x'][0] for o, s in zip(outputs,"
        " samples))\n"
    )
    run = score_backend.load(str(file), {"function": "both"})
    fed: dict[str, Any] = {f"o/{k}/y": np.array([k + 1.0]) for k in range(2)}
    fed |= {f"i/{k}/x": np.array([10.0**k]) for k in range(2)}
    assert run({**fed, "draws": np.array([[0, 1], [1, 1]])})["score"].tolist() == [21.0, 40.0]
    with pytest.raises(ValueError, match="function other"):
        score_backend.load(str(file), {"function": "other"})


# ------------------------------------------------------------ as the judge of the whole model

LINE = (
    "g (float[4] x) => (float[4] y) { two = Constant <value = float {2}> () [a] p = Mul(x, two) [b]"
    " q = Mul(p, two) [c] r = Mul(q, two) [d] y = Add(r, p) }"
)
SAMPLES = 4
EXACT = "numpy:rtol=1e-3"


@pytest.fixture
def line(tmp_path: Path) -> Path:
    """The folder of `LINE`, of samples, and of a score: how many of the outputs are below 11, of y
    = 10."""
    text_models.load(tmp_path, LINE)
    (tmp_path / "samples").mkdir()
    for k in range(SAMPLES):
        np.save(tmp_path / "samples" / f"s{k}.npy", np.ones(4, np.float32))
    (tmp_path / "mine.py").write_text(
        "def low(outputs):\n    return sum((o['y'] < 11).mean() for o in outputs) / 4\n"
    )
    return tmp_path


def verdict_of(
    line: Path, reference: Reference, workers: Workers, limit: float, **faults: str
) -> Verdict:
    """Of the whole, by `low`."""
    wanted = ScoreGoal(f"{line}/mine.py:low", at_least=limit)
    feeding = Feeding(inputs=(str(line / "samples"),))
    setup = Setup(faulty_candidate(**faults), feeding, line / "out", EXACT, score=wanted)
    with open_trials(load(line / "model.onnx"), setup, reference, workers) as trials:
        return trials.verdict(trials.model.whole())


def test_the_score_judges_the_whole_and_not_its_errors(
    line: Path, reference: Reference, workers: Workers
) -> None:
    """y is 10.2, not 10: wrong by the criterion."""
    verdict = verdict_of(line, reference, workers, 1.0, add="b:0.1")
    assert verdict.status is Status.AGREE
    assert has_line(verdict.why, f"{line}/mine.py:low 1", "at least 1", "4 samples: 1 to 1")
    assert verdict.worst and verdict.worst.errors["max_rel"] == pytest.approx(0.02)


def test_score_that_drops_is_wrong(line: Path, reference: Reference, workers: Workers) -> None:
    verdict = verdict_of(line, reference, workers, 0.5, add="b:1+d:0.1")
    assert (verdict.status, verdict.signature) == (Status.FAIL, Signature.MISMATCH)


def test_missing_output_of_the_candidate_has_no_score(
    line: Path, reference: Reference, workers: Workers
) -> None:
    verdict = verdict_of(line, reference, workers, 0.5, drop="y")
    assert (verdict.status, verdict.signature) == (Status.FAIL, Signature.MISSING)


def test_few_samples_leave_it_unresolved() -> None:
    known = ScoreDocument(
        words="f",
        limit=0.5,
        candidate=0.75,
        reference=1.0,
        samples=4,
        interval=(0.0, 0.75),
        of="drop",
        sure=False,
        says="",
    )
    assert has_line(describe_score(known), "f 0.75", "0.25", "0.5", "4 samples", "0 to 0.75")
    assert has_line(describe_score(replace(known, interval=None)), "allowed 0.5", "one sample")
    assert has_line(
        describe_score(replace(known, sure=True)), "f 0.75", "0.25", "0.5", "4 samples", "0 to 0.75"
    )


def by_low(line: Path, command: str, candidate: str, *words: str) -> Done:
    score = ("--score", "mine.py:low", *(words or ("--drop", "10%")))
    return subcut(
        command,
        *"model.onnx -i samples -c".split(),
        f"{HERE}:{candidate}",
        *score,
        "--json",
        "--criterion",
        EXACT,
        cwd=line,
    )


def test_compare_by_a_score(line: Path) -> None:
    compared = by_low(line, "compare", "add=b:1").document
    assert (
        has_line(compared["says"], "wrong", "mine.py:low", "0 of 1") and compared["exit_code"] == 1
    )


def test_score_without_a_limit_is_a_mistake(line: Path) -> None:
    done = by_low(line, "compare", "add=b:1", "--drop", "1", "--at-least", "1")
    assert done.code == 2 and has_line(done.out, "score")
    done = subcut("compare", "model.onnx", "--labels", "x.csv", cwd=line)
    assert done.code == 2 and has_line(done.err, "--labels", "--score")


BRANCHED = """g (float[2, 8] x, bool flag) => (float[2, 8] y) {
    y = If (flag) <then_branch = t () => (float[2, 8] a) { [neg] a = Neg (x) },
                   else_branch = e () => (float[2, 8] b) { b = Abs (x) }>
}"""


def test_score_is_of_the_models_outputs_and_not_of_a_bodys(tmp_path: Path) -> None:
    """It scored what the body gives."""
    model = text_models.model(BRANCHED)
    model.graph.node[0].name = "if"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    np.save(tmp_path / "flag.npy", np.array(True))
    asked = ("compare", "m.onnx", "-c", "ort", "-i", "flag=flag.npy", "--at", "if/then_branch/neg")
    done = subcut(*asked, "--score", "sqnr", "--at-least", "9", cwd=tmp_path)
    assert done.code == 2 and has_line(done.err, "score", "outputs"), done


def test_python_names_a_score(tmp_path: Path) -> None:
    text = "g (float[2, 8] x) => (float[2, 8] y) { y = Neg(x) }"
    path = text_models.save(tmp_path / "m.onnx", text)
    found = compare(path, "ort", score="sqnr", at_least=9, output=tmp_path / "out")
    assert found.document["score"]["words"] == "sqnr"
    with pytest.raises(UsageError) as error:
        compare(path, "ort", score="sqnr", output=tmp_path / "out")
    assert error.value.code == "option.requires"
