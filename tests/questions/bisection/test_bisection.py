"""`subcut bisect` as a user meets it: real commands, real faults, killed and continued.

Covers `questions.bisection.bisection`, `questions.bisection.options`, `questions.bisection.oracle`,
`questions.bisection.items`, `questions.bisection.error_shares`, `bisection.in_place`,
`questions.bisection.describe`, `bisection.document` and `questions.bisection.result_folder`;
`bisection.costs` is covered by `tests/trials/test_candidate_model.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph import plugins
from subgraph.results import parse
from tests.helpers import fake_candidate, text_models
from tests.helpers.chain_models import NAMES, line
from tests.helpers.documents import problem
from tests.helpers.facts import has_line
from tests.helpers.open_trials import spec_of
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut

QUICK = ("--rtol", "1e-3")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a chain of 24 nodes, none of which masks an error of its input."""
    line(tmp_path / "m.onnx", NAMES)
    np.save(tmp_path / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))
    return tmp_path


def bisect(cwd: Path, *words: str | Path, **faults: str) -> Done:
    """Bisect `m.onnx` with these faults on top of onnxruntime."""
    spec = spec_of(fake_candidate.HERE, **faults)
    return subcut("bisect", "m.onnx", "-i", "x.npy", "-c", spec, *QUICK, *words, cwd=cwd)


def found(done: Done) -> dict[str, Any]:
    """The document of `--json`, checked against its schema."""
    document = done.document
    assert not problem(document)
    assert done.code == document["exit_code"]
    return document


# ------------------------------------------------------------ what it finds


def test_the_case_holds_what_the_trial_was_fed(tmp_path: Path) -> None:
    """A node draws random numbers: another capture would give others."""
    text_models.save(tmp_path / "m.onnx", text_models.RANDOM)
    np.save(tmp_path / "x.npy", np.ones((1, 8), np.float32))
    (one,) = found(bisect(tmp_path, "--json", nodes="neg"))["findings"]
    case = tmp_path / one["case"]
    right = np.load(case / "outputs" / "y.npy")
    given = np.load(case / "candidate" / "y.npy")
    assert np.array_equal(right, -np.load(case / "inputs" / "a.npy"))
    assert np.allclose(given - right, 0.5, atol=1e-6)


@pytest.mark.parametrize(
    "guilty", [*(pytest.param(k, marks=pytest.mark.slow) for k in (0, 23)), 11]
)
def test_one_node_wherever_it_is(guilty: int, here: Path) -> None:
    document = found(bisect(here, "--json", nodes=f"n{guilty}"))
    (one,) = document["findings"]
    assert (one["nodes"], one["certified"], one["signature"]) == ([f"n{guilty}"], True, "mismatch")


def test_two_culprits_of_one_kind_are_one_finding_that_names_both(here: Path) -> None:
    """One of them has the case."""
    done = bisect(here, "--json", add="n4:0.5+n18:0.5")
    (one,) = found(done)["findings"]
    (other,) = one["repeats"]
    assert {*one["nodes"], *other["nodes"]} == {"n4", "n18"} and one["case"]
    assert one["of_kind"]["nodes"] > 2


@pytest.fixture
def masking(tmp_path: Path) -> Path:
    """A model whose last node, a Max, hides what its first operand is."""
    nodes = """a = Mul(X, c)  b = Add(a, c)  d = Mul(b, c)  big = Mul(X, h)  out = Max(d, big)"""
    text = f"g (float[1,3] X) => (float[1,3] out) {{ {nodes} }}"
    made = text_models.model(text, c=np.float32(1.1), h=np.float32(100))
    for i, node in enumerate(made.graph.node):
        node.name = f"n{i}"
    onnx.save(made, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))
    return tmp_path


@pytest.mark.parametrize("words", [("--within", "n0..n2"), ("--inside",)])
def test_fault_that_the_outputs_hide_is_found_inside(words: tuple[str, ...], masking: Path) -> None:
    done = bisect(masking, "--repeat", "1", "--json", *words, add="n1:0.5")
    document = found(done)
    assert (document["exit_code"], document["outcome"], document["whole"]["status"]) == (
        1,
        "disagree",
        "agree",
    )
    assert [(f["nodes"], f["certified"]) for f in document["findings"]] == [(["n1"], True)]
    assert has_line(document["notes"][0], "agree", "1 output", "1 run")
    assert (
        document["looked_at"]["inner"]
        if words == ("--inside",)
        else document["looked_at"]["within"] == "n0..n2"
    )
    for form in ("md", "html"):
        assert has_line(plugins.load("reports", form).render(parse(document)), "outputs agree")


def test_agreement_says_what_was_looked_at(masking: Path) -> None:
    elsewhere = bisect(masking, "--repeat", "1", "--within", "n2..n4", add="n1:0.5")
    assert elsewhere.code == 0 and has_line(elsewhere.out, "n2..n4", "2 runs")
    inside = bisect(masking, "--repeat", "1", "--inside", add="n1:0")
    assert inside.code == 0 and has_line(inside.out, "4 intermediate")
    assert not has_line(inside.out, "outputs agree")


def test_region_that_agrees_while_the_whole_fails_says_so_and_nothing_else(here: Path) -> None:
    document = found(bisect(here, "--json", "--within", "n9..n20", add="n4:0.5"))
    assert (document["exit_code"], document["outcome"], document["findings"]) == (
        1,
        "elsewhere",
        [],
    )
    (note,) = document["notes"]
    assert has_line(note, "n9..n20", "right", "outside")


WAVERING = planted(
    change='noise = int.from_bytes(os.urandom(4), "little") * float(options["by"])',
    answer=(
        "if 'Relu' not in node_names: found = {n: v + v.dtype.type(noise) for n, v in"
        " found.items()}"
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "code"), [("1e-13", 0), ("1", 1)])
def test_values_that_change_while_verdicts_do_not_are_said_to(
    by: str, code: int, here: Path
) -> None:
    """Whether it always agrees or always fails."""
    (here / "wavering.py").write_text(WAVERING)
    words = (
        "-i",
        "x.npy",
        "-c",
        f"wavering.py:by={by}",
        *QUICK,
        *"--repeat 2 --max-trials 2 --json".split(),
    )
    document = found(subcut("bisect", "m.onnx", *words, cwd=here))
    assert document["exit_code"] == code
    assert has_line(document["notes"], "run to", "1 of 1")


@pytest.mark.slow
@pytest.mark.parametrize(("multi", "runs"), [("true", 1), ("false", 3)])
def test_further_culprits_of_a_kind_run_in_one_model_if_the_candidate_takes_it(
    multi: str, runs: int, here: Path
) -> None:
    guilty = {f"n{k}" for k in range(3, 20, 4)}
    spec = spec_of(fake_candidate.HERE, add="+".join(f"{name}:0.5" for name in sorted(guilty)))
    table = f"[candidates.npu]\nspec = {json.dumps(str(spec))}\nmulti = {multi}\n"
    (here / "subcut.toml").write_text(table, encoding="utf-8")
    words = "bisect m.onnx -i x.npy -c npu --trust --json".split()
    document = found(subcut(*words, *QUICK, cwd=here))
    (one,) = document["findings"]
    assert {*one["nodes"], *(r["nodes"][0] for r in one["repeats"])} == guilty
    assert document["runs"]["alike"] == runs
    assert document["trials"] == sum(document["runs"].values())


def test_of_four_culprits_on_one_path_each_has_its_part(here: Path) -> None:
    """Each explains a quarter of the error, and the rest agrees without them. Three have one
    operator."""
    document = found(bisect(here, "--json", add="n3:0.5+n9:0.5+n14:0.5+n21:0.5"))
    regions = [[f, *f.get("repeats", ())] for f in document["findings"]]
    assert {tuple(sorted(r["nodes"][0] for r in some)) for some in regions} == {
        ("n14",),
        ("n21", "n3", "n9"),
    }
    assert all(f["certified"] and 0.1 < f["explains"] < 0.4 for f in document["findings"])
    assert document["complete"]


def test_they_agree(here: Path) -> None:
    done = bisect(here, add="n4:0")
    assert done.code == 0, done
    assert has_line(done.out, "right", "agree")
    assert has_line(done.out, "outputs agree", "7 runs") and has_line(done.out, "--inside")
    (name,) = {p.name for p in (here / "subcut_out").iterdir()} - {".store"}
    assert name.endswith("-report") and has_line(done.out, f"subcut_out/{name}/report.html")
    assert ">The network</h2>" in (here / "subcut_out" / name / "report.html").read_text(
        encoding="utf-8"
    )


# ------------------------------------------------------------ bounds, and going on


PADDED = planted("""
for node in nodes:
    if node.name == "res2a_branch2b":
        next(a for a in node.attribute if a.name == "pads").ints[:] = [0, 0, 2, 2]
""")


@pytest.mark.slow
@pytest.mark.parametrize(("contrast", "whole"), [(1, "fail"), (1000, "unresolved")])
def test_only_between_two_nodes(contrast: float, whole: str, resnet: Path, tmp_path: Path) -> None:
    """A wrongly padded convolution of a ResNet-50 is named, though a picture of strong contrast has
    one sure class."""
    (tmp_path / "padded.py").write_text(PADDED)
    picture = np.random.default_rng(2).standard_normal((1, 3, 64, 64)) * contrast
    np.save(tmp_path / "picture.npy", picture.astype(np.float32))
    words = ("-i", "picture.npy", "-c", "padded.py", "--within", "pool1..res2a_relu", "--json")
    document = found(subcut("bisect", resnet, *words, cwd=tmp_path))
    assert document["whole"]["status"] == whole
    assert [(f["nodes"], f["certified"]) for f in document["findings"]] == [
        (["res2a_branch2b"], True)
    ]
    regions = [
        step["count"] for step in document["steps"] if step["purpose"] not in ("baseline", "again")
    ]
    assert max(regions) <= 17 and len(regions) <= 5


@pytest.mark.slow
def test_budget_ends_it_and_the_same_command_with_more_goes_on(here: Path) -> None:
    (here / "log").mkdir()
    document = found(bisect(here, "--json", "--max-trials", "3", nodes="n7", log=str(here / "log")))
    assert (document["trials"], document["exit_code"]) == (3, 1)
    assert any("used up" in note for note in document["notes"])
    before = len((here / "log" / "log").read_text().splitlines())
    document = found(bisect(here, "--json", nodes="n7", log=str(here / "log")))
    assert [f["nodes"] for f in document["findings"]] == [["n7"]]
    lines = [line.partition(" ")[2] for line in (here / "log" / "log").read_text().splitlines()]
    # of the contract; each is a run and no trial
    probes = sum(line.endswith(" Relu+Add") for line in lines)
    assert lines.count("run") - probes <= document["trials"] + 1 and len(lines) > before


@pytest.mark.slow
def test_the_same_command_after_an_edit_of_the_candidate_replaces_its_result(here: Path) -> None:
    for offset in (3, 4):
        fault = (
            f"if 'Relu' not in node_names: found = {{n: v + {offset} for n, v in found.items()}}"
        )
        (here / "edited.py").write_text(planted(answer=fault))
        done = subcut("bisect", "m.onnx", "-c", "edited.py", "--max-trials", "4", cwd=here)
        assert done.code == 1, done
    assert [p.name for p in (here / "subcut_out").glob("bisect-*")] == ["bisect-edited.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--max-trials", "0"), ("--max-trials 0",)),
        (("--max-time", "soon"), ("--max-time soon",)),
        (("--repeat", "0"), ("--repeat 0",)),
        (("--within", "n3"), ("--within n3",)),
        (("--within", "n3..nn"), ("'nn'",)),
        (("--criterion", "nose"), ("'noise'",)),
    ],
)
def test_slips(words: tuple[str, ...], says: tuple[str, ...], here: Path) -> None:
    done = subcut("bisect", "m.onnx", *words, cwd=here)
    assert (done.code, done.out) == (2, "")
    assert has_line(done.err, *says)


# ------------------------------------------------------------ replay


FUSES = planted("""
readers = {node.input[0]: node for node in nodes}
for first in [node for node in nodes if node.op_type == "Exp"]:
    second = readers.get(first.output[0])
    third = readers.get(second.output[0]) if second and second.op_type == "Add" else None
    if third and third.op_type == "Log":
        third.op_type, third.input[0] = "Softplus", first.input[0]
        model.graph.node.remove(first)
        model.graph.node.remove(second)
""")


@pytest.mark.slow
def test_fusion_without_overflow_is_a_culprit_of_three_nodes(tmp_path: Path) -> None:
    """Any two of Exp, Add and Log are not fused: each pair agrees, and without it the whole error
    is gone, which is not an error that accumulates. The reference gives inf, the candidate finite
    values."""
    text = """g (float[1,4] x) => (float[1,4] y) <float[1] one = {1.0}>
        { a = Neg(x)  e = Exp(a)  s = Add(e, one)  l = Log(s)  y = Neg(l) }"""
    text_models.save(tmp_path / "m.onnx", text)
    np.save(tmp_path / "x.npy", np.array([[1.0, -2.0, -300.0, 4.0]], np.float32))
    (tmp_path / "fuses.py").write_text(FUSES)
    done = subcut("bisect", "m.onnx", "-c", "fuses.py", "-i", "x.npy", "--json", cwd=tmp_path)
    (finding,) = done.document["findings"]
    assert (finding["kind"], finding["ops"], finding["certified"]) == (
        "culprit",
        ["Exp", "Add", "Log"],
        True,
    )


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_the_time_ends_a_run_that_hangs_and_the_full_model_is_judged_all_the_same(
    here: Path, side: str
) -> None:
    """Explanations, reports and the repetition of the full model once took runs that nothing
    limited."""
    (here / "log").mkdir()
    hangs = {"log": str(here / "log"), "after": "4", "then": "hangs"}
    options = ",".join(f"{name}={value}" for name, value in hangs.items())
    words = [] if side == "candidate" else ["--reference", f"{fake_candidate.HERE}:{options}"]
    faults = hangs if side == "candidate" else {}
    done = bisect(here, *words, "--max-time", "2s", "--fresh", "--json", nodes="n13", **faults)
    document = found(done)
    assert (done.code, document["whole"]["status"], document["whole"]["signature"]) == (
        1,
        "fail",
        "mismatch",
    )
    assert "used up" in document["findings"][0]["reason"]
    text = subcut("report", Path(document["report"]).parent, "-f", "text", cwd=here).out
    assert has_line(text, document["whole"]["why"])
