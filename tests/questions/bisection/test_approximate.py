"""An error beyond rounding and within what approximate kernels may do: which of the two is it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.documents import from_json
from subgraph.reports import make_replay_command
from subgraph.results.bisect import BisectDocument
from subgraph.trials import pooled_runs
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut

# What each node of a kind gives, times 1 + `off`; of the others what is right.
OFF = planted("""
for node in nodes:
    if node.op_type == options["op"]:
        right, node.output[0] = node.output[0], node.output[0] + "/exact"
        factor = numpy_helper.from_array(np.float32(1 + float(options["off"])), right + "/factor")
        model.graph.initializer.append(factor)
        place = list(model.graph.node).index(node) + 1
        model.graph.node.insert(place, helper.make_node("Mul", [right + "/exact", factor.name], [right]))
""")  # noqa: E501
LINE = (
    "g (float[4, 16] x) => (float[4, 16] y) { [a] p = Abs (x) [b] q = Exp (p) [c] y = Add (q,"
    " large) }"
)
STEPS = " ".join(f"[a{k}] t{k + 1} = Abs (t{k})" for k in range(1, 30))
MANY = LINE.replace("p = Abs (x)", f"t1 = Abs (x) {STEPS}").replace("Exp (p)", "Exp (t30)")
# beside which what is off by per cents is off by per mille
LARGE = np.full((4, 16), 40, np.float32)


def asked(
    folder: Path,
    command: str,
    op: str,
    off: float,
    *more: str,
    text: str = LINE,
    spec: str = "",
    **weights: Any,
) -> Done:
    made = text_models.model(text, **(weights or {"large": LARGE}))
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    (folder / "off.py").write_text(OFF, encoding="utf-8")
    np.save(folder / "x.npy", np.random.default_rng(0).uniform(-1, 1, (4, 16)).astype(np.float32))
    words = ("-i", "x.npy", "-c", spec or f"off.py:op={op},off={off}", "--trust", "--json")
    return subcut(command, "m.onnx", *words, *more, cwd=folder)


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("op", "node"), [pytest.param("Abs", "a", marks=pytest.mark.slow), ("Exp", "b")]
)
def test_deviation_that_no_approximate_kernel_has_is_searched_by_rounding_alone(
    op: str, node: str, tmp_path: Path
) -> None:
    """It was right: 'limit 0.2 %', though a node was off by 1 % of its own output. No fast exp is
    off by that much."""
    done = asked(tmp_path, "bisect", op, 0.01)
    assert done.code == 1 and done.document["criterion"] == "noise:floor=1e-5", done.out
    assert [f["nodes"] for f in done.document["findings"]] == [[node]]
    case = done.document["findings"][0]["case"]
    words = make_replay_command(from_json(BisectDocument, done.document), case)
    assert words[-2:] == ["--criterion", "noise:floor=1e-5"], "as it was found"
    assert subcut(*words[1:], cwd=tmp_path).code == 1


@pytest.mark.slow
def test_finding_as_small_as_an_approximate_kernel_is_called_what_the_headline_calls_it(
    tmp_path: Path,
) -> None:
    """The headline said wrong, the line below it "no bug, by the size of the error: … as of
    approximate kernels"."""
    done = asked(tmp_path, "bisect", "Abs", 1.5e-3)
    (finding,) = done.document["findings"]
    assert finding["nodes"] == ["a"] and finding["worst"]["error"] < 2e-3
    lines = [finding["verdict"]["why"], *(line["says"] for line in finding["evidence"])]
    assert lines[1].startswith("a bug") and "approximate" not in "".join(lines), lines


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("off", "kernels"), [(1e-3, ("approximate", "1 Exp", "1.0e-03")), (1e-8, None)]
)
def test_approximate_kernel_is_right_and_named(
    off: float, kernels: tuple[str, ...] | None, tmp_path: Path
) -> None:
    done = asked(tmp_path, "bisect", "Exp", off, "--repeat", "1")
    assert done.code == 0 and done.document["criterion"] == "noise", done.out
    pieces = done.document.get("pieces")
    assert (pieces is None) == (kernels is None)
    assert has_line(pieces or "", *(kernels or ()))
    text = subcut(
        "report", done.document["report"].rpartition("/")[0], "-f", "text", cwd=tmp_path
    ).out
    assert (has_line(text, "right", "approximate", "1 Exp", "1.0e-03")) == bool(kernels)


# A GELU by tanh, where all nodes of the exact one are together; and another fault next to it.
TANH = planted("""
if {"Div", "Erf", "Add", "Mul"} <= {node.op_type for node in nodes}:
    (erf,) = (node for node in nodes if node.op_type == "Erf")
    names = "square cubic slope inner".split()
    for name, value in {"c1": 1.1283792 * float(options.get("slope", 1)), "c3": 0.1009108}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
    given = [2 * [erf.input[0]], ["square", "c3"], ["cubic", "c1"], ["slope", erf.input[0]]]
    kinds = "Mul Mul Add Mul".split()
    for k, (kind, read, name) in enumerate(zip(kinds, given, names)):
        model.graph.node.insert(nodes.index(erf) + k, helper.make_node(kind, read, [name]))
    erf.op_type, erf.input[0] = "Tanh", "inner"
""")
GELU = (
    "g (float[4, 16] x) => (float[4, 16] y) { d = Div (x, r) e = Erf (d) a = Add (e, one) m = Mul"
    " (x, a) q = Mul (m, half) y = Add (q, large) }"
)


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "code"), [("1", 0), ("1.002", 1)])
def test_known_approximation_by_several_nodes_is_right_if_it_explains_the_error(
    slope: str, code: int, tmp_path: Path
) -> None:
    """It was wrong, with "no bug by itself" as its cause: the nodes do not deviate alone. In a
    channel of small values, the outputs deviate by more than 0.2 % of it."""
    (tmp_path / "tanh.py").write_text(TANH, encoding="utf-8")
    constants = {"r": np.sqrt(np.float32(2)), "one": np.float32(1), "half": np.float32(0.5)}
    spec = f"tanh.py:slope={slope}"
    weights = constants | {"large": LARGE / 10}
    done = asked(tmp_path, "bisect", "", 0, text=GELU, spec=spec, **weights)
    assert done.code == code, done.out
    assert has_line(done.document.get("pieces") or "", "GELU by tanh", "×") == (code == 0)
    if not code:
        assert done.document["whole"]["why"].endswith("limit 0.2 %")
        assert done.document["trials"] <= 4, "no search"


NOT_LOOKED = ("inconclusive: ", "rounding", "approximate kernels", "nodes alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "off", "words", "code", "says"),
    [
        ("Exp", 1e-3, (), 0, ("right", "approximate", "1 Exp", "1.0e-03")),
        ("Abs", 1e-2, (), 1, ("wrong", "outputs", "3 of 3")),
        ("Exp", 1e-2, (), 1, ("wrong", "outputs", "2 of 3")),
        ("Exp", 1e-2, ("--at", "c"), 5, NOT_LOOKED),
        ("Exp", 1e-3, ("--at", "b"), 5, NOT_LOOKED),
        ("Abs", 1e-3, ("--align", "output"), 5, NOT_LOOKED),
        ("Abs", 1.5e-3, ("--at", "a"), 1, ("wrong", "outputs", "1 of 1")),
        ("Exp", 1e-3, ("--fail-fast",), 0, ("right", "approximate", "1 Exp", "1.0e-03")),
        ("Abs", 1e-9, ("--at", "a"), 0, ("right", "1 intermediate")),
    ],
)
def test_compare_says_right_of_no_more_than_it_looked_at(
    op: str, off: float, words: tuple[str, ...], code: int, says: tuple[str, ...], tmp_path: Path
) -> None:
    """With words, all of these were "right: outputs agree", whatever the nodes that were left out
    did."""
    done = asked(tmp_path, "compare", op, off, *words)
    assert done.code == code, done.out
    assert has_line(done.document["says"], *says), done.out


@pytest.mark.slow
def test_node_that_is_off_is_wrong_where_the_outputs_do_not_show_it(tmp_path: Path) -> None:
    """A Relu that is off by 1.5e-3 before what hides it was one of the "tensors that agree"."""
    text = (
        "g (float[4, 16] x) => (float[4, 16] y) { [a] p = Abs (x) [b] q = Mul (p, zero) [c] y = Add"
        " (q, x) }"
    )
    done = asked(tmp_path, "compare", "Abs", 1.5e-3, text=text, zero=np.zeros((4, 16), np.float32))
    assert done.code == 1
    assert has_line(done.document["says"], "outputs agree", "1 of 3")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--inside",), ("--within", "a..b")])
def test_bisect_looks_at_all_that_was_asked_about(words: tuple[str, ...], tmp_path: Path) -> None:
    """The outputs agree to the bit; what is inside was "right" within 2e-3, whatever the
    operator."""
    text = (
        "g (float[4, 16] x) => (float[4, 16] y) { [a] p = Abs (x) [b] q = Mul (p, zero) [c] y = Add"
        " (q, x) }"
    )
    done = asked(
        tmp_path,
        "bisect",
        "Mul",
        1.5e-3,
        *words,
        text=text.replace("zero", "z"),
        z=np.eye(4, 16, dtype="f"),
    )
    assert done.code == 1 and [f["nodes"] for f in done.document["findings"]] == [["b"]], done.out


@pytest.mark.slow
def test_no_more_runs_look_than_the_search_may_make(tmp_path: Path) -> None:
    done = asked(tmp_path, "bisect", "Exp", 1e-3, "--max-trials", "3", "--repeat", "2")
    assert done.document["trials"] == 3
    assert done.code == 5 and "pieces" not in done.document, "Exp was not looked at"


@pytest.mark.slow
def test_kernels_get_their_part_of_the_runs(tmp_path: Path) -> None:
    """What is never approximated came first and used up all: nothing was known of the others."""
    done = asked(
        tmp_path,
        "bisect",
        "Exp",
        1e-3,
        *"--max-trials 24 --repeat 2".split(),
        text=MANY,
        large=LARGE,
    )
    assert done.code == 0 and has_line(done.document["pieces"], "1 Exp", "1.0e-03"), done.out
    assert has_line(done.document["pieces"], "not looked")


POOLED = """
[candidates.pooled]
spec = "off.py:op=%s,off=%g"
multi = true
"""


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("op", "off", "nodes"),
    [("Exp", 1e-3, []), pytest.param("Trilu", 1e-3, [["t"]], marks=pytest.mark.slow)],
)
def test_nodes_are_looked_at_in_one_model_where_that_can_be(
    op: str, off: float, nodes: list[list[str]], tmp_path: Path
) -> None:
    """31 nodes took 31 runs. One that is off in the pool is run alone, and searched for."""
    (tmp_path / "subcut.toml").write_text(POOLED % (op, off), encoding="utf-8")
    text = MANY.replace("Add (q, large)", "Add (r, large)").replace("[c]", "[t] r = Trilu (q) [c]")
    done = asked(
        tmp_path, "bisect", op, off, "--repeat", "1", text=text, spec="pooled", large=LARGE
    )
    assert [f["nodes"] for f in done.document["findings"]] == nodes, done.out
    if not nodes:
        assert has_line(done.document["pieces"], "approximate", "1 Exp", "1.0e-03")
        assert done.document["runs"]["explain"] == 2, "one pool, and Exp"


CHOICE = """g (float[4, 16] x) => (float[4, 16] y) {
    [a] p = Abs (x) [s] q = Mul (p, w) [e] e = Greater (q, p) [c] y = Where (e, p, other) }"""


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("off", "nodes"), [(0.01, [["s"]]), pytest.param(0.0, [], marks=pytest.mark.slow)]
)
def test_jump_after_a_choice_does_not_excuse_a_node_that_fails_alone(
    off: float, nodes: list[list[str]], tmp_path: Path
) -> None:
    """Elements that a fault moved over a threshold were taken for those that rounding moves."""
    weights = np.full((4, 16), 2, np.float32)
    weights[1, 3:6] = 1  # there both sides are equal: perturbed runs decide either way
    (tmp_path / "subcut.toml").write_text(POOLED % ("Mul", off), encoding="utf-8")
    done = asked(
        tmp_path,
        "bisect",
        "Mul",
        off,
        "--repeat",
        "1",
        text=CHOICE,
        spec="pooled",
        w=weights,
        other=np.zeros((4, 16), "f"),
    )
    assert [f["nodes"] for f in done.document["findings"]] == nodes, done.out


@pytest.mark.slow
def test_kernel_that_was_not_looked_at_is_no_culprit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine the time was used up before it, and the search by rounding alone called it
    wrong."""
    monkeypatch.setattr(pooled_runs, "MAX_SECONDS", -1.0)
    monkeypatch.setattr(pooled_runs, "MAX_WHOLE", -1)
    done = asked(tmp_path, "bisect", "Exp", 1e-3)
    assert (done.code, done.document["findings"]) == (0, []), done.out
    assert has_line(done.document["pieces"], "approximate", "1 Exp", "1.0e-03")
    assert asked(tmp_path, "bisect", "Abs", 1e-3, "--force").code == 1


@pytest.mark.slow
def test_blame_proves_cures_by_the_criterion_that_found_the_fault(tmp_path: Path) -> None:
    """What is wrong by rounding alone agrees by the usual criterion, whatever is done: that cures
    nothing."""
    text = "g (float[4, 16] x) => (float[4, 16] y) { [a] p = Trilu (x) [c] y = Add (p, large) }"
    done = asked(tmp_path, "blame", "Trilu", 1.5e-3, text=text)
    assert done.code == 1 and done.document["cures"] == [], done.out


@pytest.mark.slow
def test_blame_names_the_kernels(tmp_path: Path) -> None:
    done = asked(tmp_path, "blame", "Exp", 1e-3)
    assert done.code == 0
    agrees = (
        "off.py:op=Exp,off=0.001 agrees on `m.onnx` within approximate kernels (1 Exp, up to"
        " 1.0e-03 of the scale)"
    )
    assert done.document["answer"] == f"**{agrees}**"


# All that a session gives, changed.
CHANGED = planted(
    change=(
        'change = {"half": lambda v: v.astype("float16"), "gain": lambda v: v *'
        ' 1.0015}[options["how"]]'
    ),
    answer=(
        'found = {k: change(v).astype(v.dtype) if v.dtype.kind == "f" else v for k, v in'
        " found.items()}"
    ),
)


@pytest.mark.slow
def test_a_type_that_every_output_shows_is_said_without_a_search(tmp_path: Path) -> None:
    subcut("demo", "demo", cwd=tmp_path)
    (tmp_path / "all.py").write_text(CHANGED, encoding="utf-8")
    words = ("demo/model.onnx", "-i", "demo/input.npy", "-c", "all.py:how=half", "--trust")
    done = subcut("bisect", *words, "--json", cwd=tmp_path)
    document = done.document
    assert (done.code, document["findings"], document["precise"]["computes_in"]) == (1, [], "fp16")
    assert document["trials"] < 10
    assert subcut("bisect", *words, "--precision", "fp16", "--force", cwd=tmp_path).code == 0


@pytest.mark.slow
def test_where_all_is_off_it_is_said_once(tmp_path: Path) -> None:
    """There were 26 findings after 127 runs, each with the right advice."""
    subcut("demo", "demo", cwd=tmp_path)
    (tmp_path / "all.py").write_text(CHANGED, encoding="utf-8")
    words = ("demo/model.onnx", "-i", "demo/input.npy", "-c", "all.py:how=gain", "--trust")
    done = subcut("bisect", *words, "--json", cwd=tmp_path)
    (finding,) = done.document["findings"]
    assert (
        done.code == 1 and finding["certified"] and finding["case"] and done.document["trials"] < 65
    ), done.out
    conclusion = ("bug", "layout", "preprocessing", "candidate = 1.0015")
    assert has_line(finding["evidence"][0]["says"], *conclusion), finding["evidence"]
    folder = done.document["report"].rpartition("/")[0]
    assert has_line(
        subcut("report", folder, "-f", "text", cwd=tmp_path).out.splitlines()[0],
        "deviates alone",
        "none",
    )
    replayed = subcut(
        "replay",
        finding["case"],
        "-c",
        "all.py:how=gain",
        "--criterion",
        "noise:floor=1e-5",
        cwd=tmp_path,
    )
    assert replayed.code == 1
