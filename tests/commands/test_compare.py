"""`subcut compare`, `backends` and `doctor` as a new user meets them: each test runs real commands.

Covers `commands.compare`, `commands.table`, `commands.manage` and, by them,
`verdict`.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

from subgraph import cli
from subgraph.commands.compare import make_bisect_command
from subgraph.environments.emulated import PROCESSORS
from subgraph.errors import BackendError
from subgraph.runtime import devices
from tests.helpers import fake_candidate, text_models
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.open_trials import spec_of
from tests.helpers.planted_candidates import planted
from tests.helpers.process_backends import backend
from tests.helpers.refusals import refused
from tests.helpers.run_command import SUBCUT, Done, environment, subcut

QUICK = ("--rtol", "1e-3")
ODD = [
    *"=1+2 +a -a @SUM(A1)".split(),
    "two, words",
    'quo"ted',
    "line\nbreak",
    "tab\there",
    *"red\x1b[31m x[bold]y a/b:0 \u202eevil".split(),
    "semi;$(touch pwned)",
    "ünï",
    "'apostrophe",
]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a model of four nodes."""
    folder = tmp_path / "here"
    folder.mkdir()
    chain(folder / "m.onnx", ["a", "b", "c", "d"])
    return folder


def compare(*words: str | Path, cwd: Path, **more: Any) -> Done:
    return subcut("compare", *words, *QUICK, cwd=cwd, **more)


def doubted(**faults: str) -> tuple[str, str]:
    """`-c SPEC` of the doubtful runtime with these faults."""
    return ("-c", spec_of(fake_candidate.HERE, **faults))


def model(folder: Path, text: str, **more: Any) -> None:
    text_models.save(folder / "m.onnx", text, **more)


def statuses(done: Done) -> dict[str, tuple[str | None, str | None]]:
    """Per tensor: in place, alone."""
    return {
        row["tensor"]: tuple(row[way] and row[way]["status"] for way in ("in_place", "alone"))
        for row in done.document["rows"]
    }


GOOD = ("agree", "agree")
BAD = ("fail", "fail")


# ------------------------------------------------------------ the answer


def test_without_any_words_onnxruntime_is_compared_at_each_node(here: Path) -> None:
    done = subcut("compare", "--json", cwd=here)
    assert statuses(done) == dict.fromkeys(("t0", "t1", "t2", "out"), GOOD)
    assert done.document["candidate"]["version"] == onnx_version()
    assert subcut("compare", "-q", cwd=here).err == ""


def onnx_version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


IN_PLACE = ("fail", "agree")
ALONE = ("agree", "fail")


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("faults", "whole", "rows", "first"),
    [
        ({"add": "b:-9"}, "fail", (GOOD, BAD, IN_PLACE, IN_PLACE), "t1"),
        ({"add": "c:9"}, "fail", (GOOD, GOOD, BAD, IN_PLACE), "t2"),
        ({"nodes": "b+c"}, "fail", (GOOD, GOOD, IN_PLACE, IN_PLACE), "t2"),
        ({"false": "d", "without": "a"}, "agree", (GOOD, GOOD, GOOD, ALONE), "out"),
    ],
)
def test_fault_is_located_by_release(
    faults: dict[str, str], whole: str, rows: tuple[tuple[str, str], ...], first: str, here: Path
) -> None:
    done = compare(*doubted(**faults), "--json", cwd=here)
    found = done.document
    assert (done.code, found["exit_code"], found["agree"]) == (1, 1, False)
    assert found["whole"]["status"] == whole
    assert tuple(statuses(done).items()) == tuple(zip(("t0", "t1", "t2", "out"), rows, strict=True))
    assert found["first_bad"]["tensor"] == first
    if whole == "agree":
        assert has_line(compare(*doubted(**faults), cwd=here).out, "first bad tensor", first)


@pytest.mark.slow
def test_fault_that_shows_in_the_whole_alone(here: Path) -> None:
    """Reading the tensors between hides it, as with a fusion."""
    wrong = "inputs[0].name == 'in' and names == ['out']"
    (here / "shy.py").write_text(
        planted(answer=f"found = {{n: v + ({wrong}) for n, v in found.items()}}")
    )
    done = compare("-c", "shy.py", cwd=here)
    assert done.code == 1
    assert "fusion" in done.out
    assert compare("-c", "shy.py", "--json", cwd=here).document["first_bad"] is None
    one = compare("-c", "shy.py", "--at", "a", cwd=here).out
    assert re.search(r"\d+ other .* not compared$", one, re.MULTILINE)


@pytest.mark.slow
def test_several_candidates_stand_side_by_side(here: Path) -> None:
    (here / "off.py").write_text(
        "from subgraph.runtime.backends import ort\n"
        "def load(model, options):\n"
        "    run = ort.load(model, {})\n"
        "    return lambda feeds: {n: v + (n != 'z') for n, v in run(feeds).items()}\n"
    )
    wrong = "off.py"
    right = "onnx-reference"
    done = compare("m.onnx", "-c", wrong, "-c", right, "--csv", "table.csv", cwd=here)
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[1].startswith(f"{right}: right")
    head = next(line for line in lines if line.split()[:1] == ["node"])
    assert head.split()[-1] == right
    whole = next(line for line in lines if "whole model" in line)
    assert whole.split()[-2:] == ["FAIL", "agree"]
    rows = list(csv.reader((here / "table.csv").read_text().splitlines()))
    assert rows[0][0] == "candidate"
    assert {row[0] for row in rows[1:]} == {wrong, right}
    document = compare("m.onnx", "-c", wrong, "-c", right, "--json", cwd=here).document
    assert [c["exit_code"] for c in document["comparisons"]] == [1, 0]
    assert document["exit_code"] == 1
    pages = [(here / one["report"]).read_text(encoding="utf-8") for one in document["comparisons"]]
    assert [bool(re.search(r"bisect m\.onnx .*-c off\.py", page)) for page in pages] == [
        True,
        False,
    ]
    done = compare("m.onnx", "-c", wrong, "-c", right, "--at", "b", "--save", "d", cwd=here)
    # the values of each
    assert sorted(p.name for p in (here / "d").iterdir()) == ["0-off.py", "1-onnx-reference"]
    one, other = (
        np.load(here / "d" / name / "t0/0.given.npy") for name in ("0-off.py", "1-onnx-reference")
    )
    assert (one != other).any()


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("at", "tensors"),
    [
        (("t1",), ["t1"]),
        (("b",), ["t1"]),
        (("node:b", "tensor:t2"), ["t1", "t2"]),
        (("#3", "Abs@1"), ["t0", "out"]),
        (("t*",), ["t0", "t1", "t2"]),
        (("[cd]",), ["t2", "out"]),
        (("t[12]", "t2", "a"), ["t0", "t1", "t2"]),
        (("*",), ["t0", "t1", "t2", "out"]),
    ],
)
def test_only_some(at: tuple[str, ...], tensors: list[str], here: Path) -> None:
    words = [word for name in at for word in ("--at", name)]
    done = compare(*words, "--json", cwd=here)
    assert list(statuses(done)) == tensors
    assert not done.document["stopped"]


def test_only_between_two_nodes_and_only_in_place(here: Path) -> None:
    done = compare(*doubted(add="b:9"), "--start", "b", "-e", "c", "--json", cwd=here)
    assert statuses(done) == {"t1": BAD, "t2": ("fail", "agree")}
    assert list(statuses(compare("-s", "c", "--json", cwd=here))) == ["t2", "out"]
    done = compare(*doubted(add="b:9"), "--in-place", "--json", cwd=here)
    assert statuses(done) == {
        "t0": ("agree", None),
        **dict.fromkeys(("t1", "t2", "out"), ("fail", None)),
    }
    assert done.code == 1 and done.document["notes"]
    refused(compare("-s", "c", "-e", "b", cwd=here))
    refused(compare("-s", "c", "--at", "b", cwd=here))


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_stop_at_the_first(jobs: str, here: Path) -> None:
    done = compare(*doubted(add="b:9+d:9"), "--fail-fast", "--jobs", jobs, "--json", cwd=here)
    assert list(statuses(done).items()) == [("t0", GOOD), ("t1", BAD)]
    assert (done.code, done.document["stopped"]) == (1, True)
    assert not compare("--fail-fast", "--json", cwd=here).document["stopped"]


# ------------------------------------------------------------ slips


@pytest.mark.parametrize(
    "words", [("-c", "orx"), ("--custom-ops", "lib.so"), ("--at", "in"), ("-i", "gone.npy")]
)
def test_slip_writes_nothing(words: tuple[str, ...], here: Path) -> None:
    refused(subcut("compare", *words, cwd=here))
    assert [p.name for p in here.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "words", [(), ("-c", "orx"), ("--at", "t9"), ("--criterion", "noize"), ("--csv", "no/x")]
)
def test_errors_as_json_are_one_document(words: tuple[str, ...], here: Path) -> None:
    if not words:
        (here / "m.onnx").unlink()
    done = subcut("compare", *words, "--json", cwd=here)
    assert done.document["exit_code"] == done.code > 0
    assert done.document["error"]["what"]
    assert "error:" not in done.err


def test_no_model_and_several(here: Path) -> None:
    (here / "n.onnx").write_bytes(b"")
    assert "m.onnx, n.onnx" in refused(subcut("compare", cwd=here))
    assert "n.onnx" in refused(subcut("compare", "n.onnx", cwd=here), 3)
    (here / "n.onnx").unlink()
    (here / "m.onnx").unlink()
    refused(subcut("compare", cwd=here))


def test_folder_of_results_that_is_a_file(here: Path) -> None:
    (here / "out").write_text("mine")
    assert f"{here}/out" in refused(compare("-o", "out", cwd=here), 74)
    assert (here / "out").read_text() == "mine"


# ------------------------------------------------------------ CSV and JSON


def odd_names(folder: Path) -> None:
    chain(folder / "m.onnx", ODD, [f"t {name}" for name in ODD[:-1]], source="=in", sink="@out")


@pytest.mark.slow
def test_spreadsheet_takes_no_name_for_a_formula(here: Path) -> None:
    odd_names(here)
    done = compare("--csv", "table.csv", cwd=here)
    assert done.code == 0, done
    assert "15 tensors" in done.out
    with (here / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["column"] for row in rows] == ["in place", "alone"] * len(ODD)
    assert [row["node"].lstrip("'") for row in rows[::2]] == [
        cleaned(name).lstrip("'") for name in ODD
    ]
    assert [row["index"] for row in rows[1::2]] == [str(i) for i in range(len(ODD))]
    assert all(row["status"] == "agree" for row in rows)
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert not [cell for cell in cells if re.search(r"[\x00-\x1f\x7f\u202e]", cell)]
    assert rows[-1]["tensor"] == "'@out"
    printed = compare("--csv", "-", cwd=here)
    assert list(csv.DictReader(printed.out.splitlines())) == rows
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "subcut_out", "table.csv"]


def cleaned(name: str) -> str:
    return re.sub(r"\x1b\[31m|[\x00-\x1f\u202e]", "", name)


def test_names_are_shown_without_tricks(here: Path) -> None:
    odd_names(here)
    done = compare("--at", "x[bold]y", "--at", "red\x1b[31m", "--at", "two, words", cwd=here)
    assert done.code == 0, done
    assert re.search(r"^#8  red +Elu +t red ", done.out, re.MULTILINE)
    assert re.search(r"^#9  x\[bold\]y +Abs +t x\[bold\]y ", done.out, re.MULTILINE)
    assert "\x1b" not in done.out + done.err
    assert [row["node"] for row in compare("--json", cwd=here).document["rows"]][8] == "red\x1b[31m"


@pytest.mark.slow
def test_each_way_has_the_sample_that_is_worst(here: Path) -> None:
    """In the first sample `c` is wrong in place only, in the second alone only."""
    model(
        here, "g (float[2] x) => (float[2] y) { [a] p = Abs(x) [b] q = Neg(p) [c] y = Identity(q) }"
    )
    (here / "samples").mkdir()
    for k, value in enumerate((1.0, 2.0)):
        np.save(here / f"samples/s{k}.npy", np.full(2, value, np.float32))
    wrong = "float(abs(next(iter(feeds.values()))[0])) == (1 if len(names) > 1 else 2)"
    (here / "odd.py").write_text(
        planted(answer=f"found = {{n: v + ({wrong}) for n, v in found.items()}}")
    )
    done = compare("-c", "odd.py", "-i", "samples", "--csv", "-", cwd=here)
    rows = list(csv.DictReader(done.out.splitlines()))
    assert done.code == 1
    told = [(row["column"], row["sample"], row["status"]) for row in rows]
    assert told == [("in place", "s0", "fail"), ("alone", "s1", "fail")] * 3


@pytest.mark.parametrize("place", ["no/such/folder.csv", "subcut_out", "m.onnx/x.csv"])
def test_table_that_cannot_be_written_is_told_before_anything_runs(place: str, here: Path) -> None:
    (here / "subcut_out").mkdir()
    done = compare(*doubted(log=str(here)), "--csv", place, cwd=here)
    assert place in refused(done, 74)
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "subcut_out"]


def test_table_replaces_a_file_but_no_device(here: Path) -> None:
    (here / "t.csv").write_text("old")
    assert compare("--csv", "t.csv", cwd=here).code == 0
    assert (here / "t.csv").read_text().startswith("row,index,node,op,tensor,column,status,")
    os.mkfifo(here / "pipe")
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert compare("--csv", "pipe", cwd=here).code == 0
    assert os.read(reader, 1 << 16).startswith(b"row,index,node,op,tensor,")
    os.close(reader)
    assert (here / "pipe").is_fifo()


@pytest.mark.parametrize("fault", ["nan", "inf"])
def test_json_has_neither_nan_nor_infinity(fault: str, here: Path) -> None:
    """`document` reads it strictly."""
    found = compare(*doubted(op="Neg", fault=fault), "--json", cwd=here).document
    assert found["exit_code"] == 1
    neg = next(row for row in found["rows"] if row["node"] == "b")
    assert neg["alone"]["signature"] == "nan"
    assert json.dumps(found, allow_nan=False)


@pytest.mark.slow
def test_the_reason_is_the_signatures(here: Path) -> None:
    """Of two wrong outputs the one that says more is named."""
    model(here, "g (float[2] x) => (float[2] y, float[2] z) { [a] y = Neg(x) [b] z = Exp(x) }")
    wrong = "found = {n: v * 0 + np.float32({'y': 1e9, 'z': np.nan}[n]) for n, v in found.items()}"
    (here / "two.py").write_text(planted(answer=f"if inputs[0].shape == [2]: {wrong}"))
    done = compare("-c", "two.py", "--at", "a", cwd=here)
    assert re.search(r"^whole model  FAIL \(nan\)   z: ", done.out, re.MULTILINE), done.out


# ------------------------------------------------------------ samples


@pytest.mark.slow
def test_the_one_sample_that_fails_is_named(here: Path) -> None:
    model(here, "g (float[N,4] x) => (float[N,4] y) { [a] p = Abs(x) [b] y = Neg(p) }")
    (here / "samples").mkdir()
    for k in range(4):
        np.save(here / f"samples/s {k}.npy", np.full((k % 2 + 1, 4), k + 1, np.float32))
    wrong = "found = {n: v + (abs(v.flat[0]) == 3) for n, v in found.items()}"
    (here / "odd.py").write_text(planted(answer=wrong))
    done = compare("-c", "odd.py", "-i", "samples", "--json", cwd=here)
    found = done.document
    assert (done.code, found["samples"]) == (1, ["s 0", "s 1", "s 2", "s 3"])
    assert [(j["sample"], j["status"]) for j in found["whole"]["outputs"]] == [
        ("s 0", "agree"),
        ("s 1", "agree"),
        ("s 2", "fail"),
        ("s 3", "agree"),
    ]
    assert {row["tensor"]: row["alone"]["sample"] for row in found["rows"]} == {
        "p": "s 2",
        "y": "s 2",
    }
    text = compare("-c", "odd.py", "-i", "samples", cwd=here).out
    assert re.search(r"^whole model  FAIL   y: .*, sample s 2$", text, re.MULTILINE), text


# ------------------------------------------------------------ kinds of models

# "KIND: its tensors that are compared", then the model.
TABLE = """
sequence: s c y
    g (float[2,3] x) => (seq(float[1,3]) s, float[2,3] y) { s = SplitToSequence<axis=0>(x) c = ConcatFromSequence<axis=0>(s) y = Relu(c) }
if: y
    g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a) { a = Relu(x) }, else_branch = e () => (float[2] b) { b = Neg(x) }> }
loop: y
    g (int64 n, float[2] x) => (float[2] y) { t = Constant<value=bool {1}>() y = Loop (n, t, x) <body = b (int64 i, bool k, float[2] v) => (bool k2, float[2] w) { k2 = Identity(k)  w = Neg(v) }> }
integers: y z
    g (int64[4] x) => (int64[4] y, bool[4] z) { y = Add(x, x) z = Greater(y, x) }
texts: y
    g (float[2] x) => (string[2] y) { y = Cast<to=8>(x) }
optional: y
    g (float[2] x) => (optional(float[2]) y) { y = Optional(x) }
topk: v i
    g (float[1,16] x) => (float[1,3] v, int64[1,3] i) { k = Constant<value=int64[1] {3}>() v, i = TopK(x, k) }
random: a b y
    g (float[8] x) => (float[8] y) { a = Relu(x) r = RandomNormalLike(x) q = RandomUniformLike(x) b = Add(a, r) y = Add(b, q) }
constants: z
    g (float[2] x) => (float[2] y, float[2] z) { c = Constant<value=float[2] {1,2}>() y = Relu(c) z = Neg(x) }
dead: y
    g (float[2] x) => (float[2] y) { d = Exp(x) e = Log(d) y = Relu(x) }
input as output: y
    g (float[2] x) => (float[2] y, float[2] x) { y = Relu(x) }
omitted: y
    g (float[2] x) => (float[2] y) { y, m = Dropout(x) }
shapes: r y
    g (float[N,4] x) => (float[N,2,2] y) { s = Shape(x) z = Constant<value=int64[1] {0}>() n = Gather(s, z) t = Constant<value=int64[2] {2,2}>() u = Concat<axis=0>(n, t) r = Reshape(x, u) y = Relu(r) }
"""  # noqa: E501
ROWS = [entry.split("\n") for entry in re.split(r"\n(?=\S)", TABLE.strip())]
MODELS = {
    head.partition(":")[0]: (text.strip(), head.partition(": ")[2].split()) for head, text in ROWS
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", MODELS)
def test_kinds_of_models(kind: str, here: Path) -> None:
    text, tensors = MODELS[kind]
    model(here, text)
    done = compare("--json", cwd=here)
    assert done.code == 0, done
    assert statuses(done) == dict.fromkeys(tensors, GOOD)


def test_nothing_to_compare_is_said(here: Path) -> None:
    model(
        here,
        "g (float[2] x) => (float[2] y) { c = Constant<value=float[2] {1.0,2.0}>()  y = Relu(c) }",
    )
    done = compare(cwd=here)
    assert done.code == 5
    model(here, "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    done = compare("--shape", "x=0x4", cwd=here)
    assert done.code == 5


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [(), ("--no-freeze",)])
def test_shape_chains(freeze: tuple[str, ...], here: Path) -> None:
    """Frozen or fed, the answer is the same; the candidate sees the difference."""
    model(here, MODELS["shapes"][0])
    log = """
        with Path(__file__).with_name("log").open("a") as file:
            file.write("+".join(names) + " of " + "+".join(sorted(feeds)) + "\\n")
    """
    (here / "seen.py").write_text(planted(answer=log))
    assert compare("-c", "seen.py", "--shape", "x=3x4", *freeze, cwd=here).code == 0
    seen = (here / "log").read_text().splitlines()
    assert ("r of u+x" in seen) == bool(freeze)
    assert ("r of x" in seen) != bool(freeze)


def test_bfloat16(here: Path) -> None:
    """Plain onnxruntime lacks kernels for it: another reference serves."""
    model(here, "g (float[4] x) => (bfloat16[4] y) { h = Cast<to=16>(x)  y = Add(h, h) }")
    assert "reference" in refused(compare(cwd=here), 3)
    words = ("--reference", "onnx-reference", "-c", "onnx-reference")
    assert statuses(compare(*words, "--json", cwd=here)) == {"h": GOOD, "y": GOOD}


@pytest.mark.slow
def test_external_weights(here: Path) -> None:
    text = (
        "g (float[2,64] x) => (float[2,64] y) { [a] p = Relu(x) [b] q = MatMul(p, w) [c] y ="
        " Tanh(q) }"
    )
    made = text_models.model(text, w=np.random.default_rng(0).standard_normal((64, 64), np.float32))
    onnx.save(
        made, here / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0
    )
    np.save(here / "x.npy", np.ones((2, 64), np.float32))
    words = (*doubted(log=str(here)), "-i", "x.npy")
    assert compare(*words, cwd=here).code == 0
    loads = (here / "log").read_text().count(" load ")
    assert compare(*words, cwd=here).code == 0
    before = (here / "log").read_text()
    assert before.count(" load ") == loads + 1  # one run of the whole is repeated
    data = bytearray((here / "weights").read_bytes())
    data[:4] = np.float32(7).tobytes()
    (here / "weights").write_bytes(data)
    assert compare(*words, cwd=here).code == 0
    again = (here / "log").read_text().removeprefix(before).splitlines()
    # all but the node above the weight; the full model twice
    assert len([line for line in again if line.endswith("run")]) == 5


@pytest.mark.slow
def test_many_nodes_are_not_many_lines(here: Path) -> None:
    chain(here / "m.onnx", [f"n{i}" for i in range(60)])
    done = compare(cwd=here)
    assert done.code == 0
    steps = [line for line in done.err.splitlines() if line.endswith(" nodes alone")]
    assert len(steps) <= 11
    assert steps[-1].startswith("60 of 60 ")
    assert len(done.err.splitlines()) <= 15
    assert compare("--fresh", "-q", cwd=here).err == ""


# ------------------------------------------------------------ settings


def test_the_file_and_the_environment_mean_the_same(here: Path) -> None:
    settings = {
        "candidate": "soft",
        "criterion": "cosine>0.5",
        "reference": "onnx-reference",
        "jobs": 2,
        "memory_limit": "4G",
    }
    table = '[candidates.soft]\nspec = "ort:opt=basic"\n'
    (here / "subcut.toml").write_text(
        "".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()) + table
    )
    from_file = subcut("compare", "--at", "a", "--json", cwd=here).document
    (here / "subcut.toml").write_text(table)
    env = {f"SUBCUT_{k.upper()}": str(v) for k, v in settings.items()}
    from_env = subcut("compare", "--at", "a", "--json", cwd=here, env=env).document
    assert (from_file["candidate"]["options"], from_file["criterion"]) == (
        {"opt": "basic"},
        "cosine>0.5",
    )
    assert timeless(from_file) == timeless(from_env)


def timeless(value: Any) -> Any:
    """Without what differs between two runs of the same."""
    if isinstance(value, dict):
        return {
            k: timeless(v)
            for k, v in value.items()
            if k not in ("build_seconds", "run_seconds", "stored", "why")
        }
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_limits_of_the_file_and_such_that_were_typed(here: Path) -> None:
    slow = (
        'import time\ndef load(model, options):\n    held = b"x" * (300 << 20)\n   '
        " time.sleep(600)\n"
    )
    (here / "slow.py").write_text(slow)
    (here / "subcut.toml").write_text('timeout = 0.2\nmemory_limit = "8G"\n')
    done = compare("-c", "slow.py", "--at", "a", cwd=here)
    assert done.code == 4 and "after 0.2 s" in done.err
    words = ("--timeout", "100", "--at", "a")
    for env, more in (({"SUBCUT_MEMORY_LIMIT": "200M"}, ()), ({}, ("--memory-limit", "200M"))):
        done = compare("-c", "slow.py", *words, *more, cwd=here, env=env)
        assert re.search(r"at \d+ MiB, above 200$", done.err, re.MULTILINE)
    done = compare(
        "-c", "slow.py", "--at", "a", "--timeout", "0.3", cwd=here, env={"SUBCUT_TIMEOUT": "0.1"}
    )
    assert "after 0.3 s" in done.err


@pytest.mark.slow
def test_candidate_of_the_project_runs_in_its_folder_from_anywhere_below(
    here: Path, tmp_path: Path
) -> None:
    (here / "run.sh").write_text("#!/bin/sh\nls run.sh && exit 3\n")
    (here / "run.sh").chmod(0o755)
    text = 'candidate = "npu"\n[candidates.npu]\nrun = "./run.sh {outputs}"\nprecision = "fp16"\n'
    (here / "subcut.toml").write_text(text)
    (here / "below").mkdir()
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert "./run.sh" in refused(subcut("compare", "../m.onnx", cwd=here / "below", env=env))
    first = compare("../m.onnx", "--at", "a", "--trust", cwd=here / "below", env=env)
    assert first.code == 4
    assert has_line(first.err, "words: run.sh")
    again = compare("../m.onnx", "--at", "a", cwd=here / "below", env=env)
    assert (again.code, has_line(again.err, "words: run.sh")) == (4, True)


def test_claimed_precision_changes_what_agrees(here: Path) -> None:
    words = doubted(add="a:0.004")
    verdicts = {
        p: subcut("compare", *words, "--precision", p, "--json", cwd=here) for p in ("fp32", "int8")
    }
    assert {
        p: (done.code, done.document["candidate"]["precision"]) for p, done in verdicts.items()
    } == {"fp32": (1, "fp32"), "int8": (0, "int8")}


# ------------------------------------------------------------ backends and doctor

OURS = [
    *"cmd litert mnn ncnn onnx-reference opencv openvino ort torch tract web".split(),
    *devices.DEVICES,
]
PROJECT = """
[candidates.npu]
run = "./run.sh {inputs} {outputs}"
[candidates.gone]
convert = "no-such-converter {model}"
run = "./gone.sh {inputs} {outputs}"
[candidates.soft]
spec = "ort:opt=basic"
[candidates.odd]
rnu = "x"
"""


def test_backends_lists_runtimes_and_the_projects(here: Path) -> None:
    plain = subcut("backends", cwd=here)
    assert plain.code == 0
    assert [line.split()[0] for line in plain.out.splitlines()[:-1] if line[0] != " "] == OURS
    (here / "subcut.toml").write_text(PROJECT)
    done = subcut("backends", cwd=here)
    assert has_line(done.out, "npu", "./run.sh {inputs} {outputs}", f"{here}/subcut.toml")
    rows = subcut("backends", "--json", cwd=here).document["backends"]
    assert [row["name"] for row in rows] == [*OURS, "npu", "gone", "soft", "odd"]
    assert has_line(
        rows[len(OURS) + 1]["help"], "no-such-converter {model}", "./gone.sh {inputs} {outputs}"
    )


@pytest.mark.slow
def test_doctor(here: Path) -> None:
    (here / "run.sh").write_text("#!/bin/sh\ntouch ran\n")
    (here / "run.sh").chmod(0o755)
    (here / "subcut.toml").write_text(PROJECT)
    done = subcut("doctor", cwd=here)
    assert done.code == 0
    assert done.out.startswith("python 3.")
    assert re.search(r"^ort +ok +\d+\.\d+", done.out, re.MULTILINE)
    lines = {" ".join(line.split()) for line in done.out.splitlines()}
    assert has_line(lines, "npu", "ok", "cmd")
    gone = "cannot run no-such-converter, ./gone.sh: check its path, and that it may be executed"
    assert f"gone fails {gone}" in lines
    assert re.search(r"^odd +fails  ", done.out, re.MULTILINE)
    assert "'rnu'" in done.out
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "run.sh", "subcut.toml"]
    found = subcut("doctor", "--json", cwd=here).document
    usable = dict.fromkeys(OURS, True) | {
        "torch": find_spec("torch") is not None,
        "litert": find_spec("ai_edge_litert") is not None,
        "ncnn": find_spec("ncnn") is not None,
        "npu": True,
        "gone": False,
        "soft": True,
        "odd": False,
    }
    states = {row["name"]: row["state"] for row in found["backends"]}
    assert states["gone"] == "fails" and states["ort"] == "ok"
    assert usable["torch"] or states["torch"] == "not installed"
    processors = {f"arch={name}" for name in PROCESSORS}
    # whether these are there depends on the machine
    of_machine = {*devices.DEVICES, *processors, "web"}
    usable = {name: there for name, there in usable.items() if name not in of_machine}
    assert {
        row["name"]: row["usable"] for row in found["backends"] if row["name"] not in of_machine
    } == usable
    assert found["versions"]["onnxruntime"] == onnx_version()


@pytest.mark.slow
def test_doctor_where_things_are_broken(here: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no such library')")
    (here / "subcut.toml").write_text("x = ")
    done = subcut("doctor", cwd=here, env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 4
    assert has_line(done.out, "ort", "fails", "no such library")
    assert has_line(done.out, "onnx-reference", "ok")
    assert re.search(
        rf"^project file +fails +cannot read {re.escape(str(here))}/subcut.toml: ",
        done.out,
        re.MULTILINE,
    )


# ------------------------------------------------------------ streams


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    import pty

    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


@pytest.mark.slow
def test_bar_on_a_terminal_leaves_nothing_behind(here: Path) -> None:
    chain(here / "m.onnx", [f"n{i}" for i in range(12)])
    with terminal() as (ours, theirs):
        run = subprocess.Popen(
            [SUBCUT, "compare", "m.onnx", *QUICK],
            cwd=here,
            env=environment({"TERM": "xterm"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                said += chunk
        except OSError:  # Linux's way to say that the other end is closed
            pass
        out, _ = run.communicate()
    assert run.returncode == 0
    assert b"\ncandidate    ort" in out
    assert b"\x1b" not in out
    assert said.count(b"nodes alone\r\n") == 0
    left = said.partition(b"report: ")[0]
    assert left.rstrip().endswith((b"\x1b[2K", b"\x1b[?25h"))


@pytest.mark.slow
def test_nobody_reads_the_result(here: Path) -> None:
    """Standard output closed early is not an error of ours."""
    run = subprocess.Popen(
        [SUBCUT, "compare", "m.onnx", *QUICK],
        cwd=here,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout
    run.stdout.close()
    _, err = run.communicate()
    assert b"Traceback" not in err
    assert run.returncode == 0


@pytest.mark.slow
def test_align_as_tnns_converter(here: Path) -> None:
    """`output`: the model's outputs alone; `all`: up to the first tensor that is not aligned."""
    model(
        here,
        "g (float[1,3] x) => (float[1,3] out) { [a] t0 = Abs(x) [b] t1 = Neg(t0) [c] t2 = Relu(t1)"
        " out = Add(t2, x) }",
    )
    outputs = compare(*doubted(add="b:-9"), "--align", "output", "--json", cwd=here)
    assert [row["tensor"] for row in outputs.document["rows"]] == ["out"]
    assert outputs.code == 0
    every = compare(*doubted(add="b:-9"), "--align", "all", "--json", cwd=here)
    assert [row["tensor"] for row in every.document["rows"]] == ["t0", "t1"]
    assert every.code == 1
    assert every.document["stopped"]


def test_comparison_on_a_device_that_lacks_a_feature_accuses_no_node(tmp_path: Path) -> None:
    chain(tmp_path / "m.onnx", ["a", "b"])
    top = "from subgraph.runtime.backends import WEBGPU_LACKS as DEVICE_LACKS"
    says = "Program MatMul requires f16 but the device does not support it."
    file = backend(tmp_path, top=top, run=f"raise RuntimeError({says!r})", name="gpu")
    done = subcut("compare", "m.onnx", "-c", file, "--at", "*", cwd=tmp_path)
    assert done.code == BackendError.exit_code
    assert has_line(done.err, "shader-f16") and "wrong" not in done.out + done.err


APP: Any = typer.main.get_command(cli.app)


def parse(name: str, *words: str) -> dict[str, Any]:
    """Return the parameters that a command reads from these words."""
    context = typer.Context(APP, info_name="subcut")
    parameters: dict[str, Any] = (
        APP.get_command(context, name).make_context(name, list(words), parent=context).params
    )
    return parameters


def compare_flags() -> list[tuple[str, bool]]:
    """Return each flag of `compare`, and whether a value follows it."""
    parameters = APP.get_command(typer.Context(APP, info_name="subcut"), "compare").params
    return [
        (flag, not one.is_flag)
        for one in parameters
        for flag in one.opts
        if flag[0] == "-" and one.name != "help"
    ]


@pytest.mark.parametrize(("flag", "takes_value"), compare_flags())
@pytest.mark.parametrize("is_joined", [False, True])
def test_the_next_command_of_a_comparison_can_be_read(
    flag: str, takes_value: bool, is_joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "all" if flag == "--align" else "7"
    words = [flag, value] if takes_value else [flag]
    if takes_value and is_joined:
        words = [f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}"]
    monkeypatch.setattr(
        sys, "argv", ["subcut", "--color", "never", "compare", "m.onnx", *words, "-c", "ort"]
    )
    _, command, *proposed = make_bisect_command("").argv
    read = parse(command, *proposed)
    given = parse("compare", *sys.argv[4:])
    assert {
        name: value for name, value in given.items() if name in read and name != "candidate"
    }.items() <= read.items()
    assert (read["model"], read["spec"]) == ("m.onnx", given["candidate"][-1])


def test_of_several_candidates_each_comparison_proposes_its_own(here: Path) -> None:
    done = compare("m.onnx", "-c", "ort", *doubted(add="b:-9"), "--at=b", "--json", cwd=here)
    right, wrong = done.document["comparisons"]
    words = wrong["next"][0]["argv"]
    assert not right["next"] and words.count("-c") == 1
    assert parse(*words[1:])["rtol"] == "1e-3"


def test_second_model_is_the_candidates(here: Path) -> None:
    done = subcut("compare", "a.tflite", "b.tflite", "--json", cwd=here)
    assert (done.code, done.document["error"]["code"]) == (2, "usage.second-model")
    assert "a.tflite -c b.tflite" in done.document["error"]["hint"]
