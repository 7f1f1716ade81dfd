"""What is to blame, and what cures it, for faults that are planted.

Covers `questions.blame.blame`, `questions.blame.cures`, `results.blame`, `questions.blame.answer`,
`questions.blame.rewritten` and `commands.blame`.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures import passes_wrong, threads, toy_releases
from subgraph.environments import releases
from subgraph.errors import BackendError, UsageError
from subgraph.questions.blame.blame import Blame, ReleasesAsked, is_between
from subgraph.questions.blame.cures import draw_samples
from subgraph.runtime.candidate import Candidate
from subgraph.storage.tensors import load, save
from tests.helpers import fake_candidate, text_models
from tests.helpers.documents import problem
from tests.helpers.facts import has_line
from tests.helpers.run_command import Done, in_process, subcut
from tests.helpers.versions import RUNTIME

NET = "g (float[2,3] x) => (float[2,3] y) { [exp] y = Exp(x) }"
TOY = "g (float[2,3] x) => (float[2,3] y) { [one] y = Add(x, one) }"
PASSES = str(Path(passes_wrong.__file__))


def model(folder: Path, text: str = NET) -> Path:
    """A small network, and an input beside it."""
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, 3), np.float32))
    one = np.ones((2, 3), np.float32)
    return (
        text_models.load(folder, text, one=one).path
        if text is TOY
        else text_models.load(folder, text).path
    )


def blamed(folder: Path, *words: str) -> tuple[Done, dict[str, Any]]:
    """`subcut blame --json` in a folder."""
    done = subcut("blame", "--json", *words, cwd=folder)
    return done, json.loads(done.out)


# ------------------------------------------------------------ passes


@pytest.mark.slow
def test_pass_is_named_and_its_cure_is_proven_on_the_whole(tmp_path: Path) -> None:
    path = model(tmp_path)
    done, document = blamed(
        tmp_path, path.name, "-i", "x.npy", "-c", f"{PASSES}:names=A+B+C,cures=B|A+C"
    )
    assert done.code == document["exit_code"] == 1
    assert document["passes"] == [["B"], ["A", "C"]]
    cures = {cure["what"]: cure for cure in document["cures"]}
    assert cures.keys() == {"without the pass B", "without the passes A and C"}
    for cure in cures.values():
        assert cure["proven"]
        assert cure["heals"] == "whole"
        assert 0.1 < cure["slowdown"] < 10
    assert cures["without the pass B"]["how"] == "off=B"
    assert document["versions"] is None
    folder = tmp_path / document["folder"]
    assert (folder / "blame.md").read_text().strip() == document["answer"]
    assert has_line(document["answer"], "right", "`B or A and C together`")


@pytest.mark.slow
@pytest.mark.skipif(RUNTIME > (1, 32), reason="seen in onnxruntime up to 1.32")
def test_model_that_onnxruntime_refuses_for_two_passes(tmp_path: Path) -> None:
    threads.write(tmp_path)
    done, document = blamed(tmp_path, "cast_div_mul.onnx", "-c", "ort")
    assert done.code == 1
    assert document["signature"] == "refused"
    assert document["passes"] == [["CastElimination"], ["DivMulFusion"]], document["notes"]
    proven = {cure["kind"] for cure in document["cures"] if cure["proven"]}
    assert proven == {"pass", "rewrite"}
    assert has_line(document["answer"], "refuses `cast`", "`div`", "`mul`")


@pytest.mark.slow
def test_report_and_bundle_tell_it_and_a_bundle_is_blamed_again(tmp_path: Path) -> None:
    path = model(tmp_path)
    code = Path(PASSES).read_text()  # without options, which a bundle does not tell
    code = code.replace('options["names"]', '"Abc_Fusion+B"').replace(
        'options["cures"]', '"Abc_Fusion"'
    )
    (tmp_path / "wrong.py").write_text(code)
    _, document = blamed(tmp_path, path.name, "-i", "x.npy", "-c", "wrong.py")
    case = tmp_path / document["case"]
    for report in ("report.html", "report.md", "run.json"):
        assert has_line((case.parent / report).read_text(), "right", "Abc_Fusion")
    assert problem(json.loads((case.parent / "run.json").read_text())) == ""
    (case / "blame" / "whole.onnx").write_bytes(b"a model that stays here")
    words = ("--candidate-files", "wrong.py", "--keep", "blame.md")
    assert subcut("bundle", case, "-o", "fault.zip", *words, cwd=tmp_path).code == 0
    with zipfile.ZipFile(tmp_path / "fault.zip") as packed:
        names = [name.partition("/")[2] for name in packed.namelist()]
        assert {"blame/blame.json", "blame/blame.md"} <= set(names)
        assert "blame/whole.onnx" not in names
        assert packed.read("fault/blame/blame.md").decode().strip() == document["answer"]
    again, second = blamed(tmp_path, "fault.zip", "--trust")
    assert second["passes"] == [["Abc_Fusion"]], again.err


@pytest.mark.slow
def test_where_no_pass_cures_it_that_is_said(tmp_path: Path) -> None:
    path = model(tmp_path)
    _, document = blamed(tmp_path, path.name, "-i", "x.npy", "-c", f"{PASSES}:names=A+B,cures=Z")
    assert document["passes"] == []
    assert document["kernels"] is True
    assert has_line(document["answer"], "as wrong")
    assert not any(cure["kind"] == "pass" for cure in document["cures"])


@pytest.mark.slow
def test_model_that_agrees_is_not_blamed(tmp_path: Path) -> None:
    path = model(tmp_path)
    done, document = blamed(tmp_path, path.name, "-i", "x.npy", "-c", "ort")
    assert done.code == 0
    assert (document["outcome"], document["cures"], document["folder"]) == ("agree", [], None)
    assert "agrees on" in document["answer"]


SURROUNDED = """
import onnx, onnxruntime
PASSES = "off"

def passes(model, options):
    return sorted({"Fuse", "Other"} - set(options.get("off", "").split("+")))

def load(model, options):
    kinds = {node.op_type for node in onnx.load(model).graph.node}
    fused = kinds == {"Exp", "Neg", "Abs"} and "Fuse" in passes(model, options)
    factor = 1.1 if fused else 1 + 2**-23  # rounding: of another kernel than the reference's
    session = onnxruntime.InferenceSession(str(model))
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: {n: v * v.dtype.type(factor) for n, v in zip(names, session.run(names, feeds))}
"""  # noqa: E501
SURROUNDINGS = (
    "g (float[2,3] x) => (float[2,3] y) { [exp] a = Exp(x) [neg] b = Neg(a) [abs] y = Abs(b) }"
)


@pytest.mark.slow
def test_fusion_that_needs_the_surroundings_has_its_pass(tmp_path: Path) -> None:
    path = model(tmp_path, SURROUNDINGS)
    (tmp_path / "fuses.py").write_text(SURROUNDED)
    _, document = blamed(tmp_path, path.name, "-i", "x.npy", "-c", "fuses.py")
    assert (document["passes"], document["whole"]) == ([["Fuse"]], True)


@pytest.mark.slow
def test_each_finding_is_explained(tmp_path: Path) -> None:
    path = model(tmp_path, SURROUNDINGS)
    spec = f"{fake_candidate.HERE}:op=Exp+Abs,fault=wrong"
    done, document = blamed(tmp_path, path.name, "-i", "x.npy", "-c", spec)
    folder = (tmp_path / document["case"]).parent
    findings = json.loads((folder / "run.json").read_text())["findings"]
    assert len(findings) == 2 and all(finding["blame"] for finding in findings), done.err
    answers = [
        json.loads((tmp_path / f["case"] / "blame/blame.json").read_text()) for f in findings
    ]
    assert [answer["region"] for answer in answers] == [finding["nodes"] for finding in findings]
    assert answers[0]["answer"] == document["answer"]


def test_draws_are_like_the_samples(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "f": np.linspace(0, 1, 60, dtype=np.float32).reshape(3, 4, 5),
        "i": np.arange(7, dtype=np.int64),
        "b": np.array([True, False, True]),
        "s": np.array(["a", "b"], dtype=object),
    }
    types = {"f": "tensor(float)", "i": "tensor(int64)", "b": "tensor(bool)", "s": "tensor(string)"}
    sample = {n: save(n, v, types[n], tmp_path, n).rebase(str(tmp_path)) for n, v in values.items()}
    draws = [
        {n: load(r, Path("/")) for n, r in draw.items()}
        for draw in draw_samples([sample], 3, tmp_path)
    ]
    assert len({np.asarray(draw["f"]).tobytes() for draw in draws} | {values["f"].tobytes()}) == 4
    for draw in draws:
        got = np.asarray(draw["f"])
        assert (str(got.dtype), got.shape) == ("float32", (3, 4, 5))
        assert abs(float(got.mean()) - 0.5) < 0.1
        assert sorted(np.asarray(draw["i"])) == list(range(7))
        assert sorted(np.asarray(draw["b"])) == [False, True, True]
        assert list(np.asarray(draw["s"])) == ["a", "b"]


# ------------------------------------------------------------ releases


def test_span_of_releases() -> None:
    assert is_between("1.22.1", "1.19", "1.22")
    assert is_between("1.22.1", "", "")
    assert not is_between("1.9.0", "1.19", "")
    assert not is_between("1.23.0", "1.19", "1.22")


@pytest.mark.parametrize("words", [["--index-url", "https://me:secret@host/simple"]])
def test_impossible_request_is_an_error(words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        in_process("blame", "model.onnx", *words)
    assert "secret" not in error.value.what


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        (ReleasesAsked("foo"), "ort"),
        (ReleasesAsked("1.19,1.x"), "ort"),
        (ReleasesAsked(","), "ort"),
        (ReleasesAsked("1.22..1.20"), "ort"),
        (ReleasesAsked(""), "cmd"),
    ],
)
def test_releases_that_cannot_be_meant_are_an_error_before_the_search(
    asked: ReleasesAsked, backend: str
) -> None:
    with pytest.raises(UsageError):
        asked.check(backend)


def test_releases_that_can_be_meant() -> None:
    for span in ("", "1.19..", "..1.22", "1.22", "1.22.1..1.22", "1.9..1.19", "1.20,1.19"):
        ReleasesAsked(span).check("ort")


def test_without_a_network_the_release_in_use_is_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(backend: str, *_: object) -> list[str]:
        raise BackendError(f"no index for {backend}")

    monkeypatch.setattr(releases, "find_published", unreachable)
    monkeypatch.setattr(releases, "find_installed", lambda *_: [])
    monkeypatch.setattr(releases, "find_own_release", lambda backend: "1.31.1")
    trials: Any = SimpleNamespace(runtime=SimpleNamespace(candidate=Candidate("ort", "ort")))
    nothing: Any = None
    blame = Blame(trials, nothing, nothing)
    assert blame.find_releases(ReleasesAsked()) == ["1.31.1"]
    (note,) = blame.notes
    assert has_line(note, "no index for ort")
    monkeypatch.setattr(releases, "find_own_release", lambda backend: "")
    with pytest.raises(BackendError, match="no index"):
        blame.find_releases(ReleasesAsked())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right between"])
def test_histories_that_are_planted_are_told_rightly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Histories of a toy runtime, from a folder of wheels; `benchmarks.blame` has ten of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    planted = toy_releases.HISTORIES[name]
    wheels = tmp_path / "wheels"
    toy_releases.releases(wheels, planted.releases)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(wheels))
    candidate = f"{wheels}/toy.py=={planted.used}"
    done, document = blamed(
        tmp_path, model(tmp_path, TOY).name, "-i", "x.npy", "-c", candidate, "--versions", ".."
    )
    assert planted.problem(document) == "", done.err


@pytest.mark.slow
def test_release_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path, TOY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    toy_releases.releases(tmp_path / "wheels", {"1.0": "w", "1.1": "r"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    done = subcut("compare", path.name, "-i", "x.npy", "-c", "wheels/toy.py==1.1", cwd=tmp_path)
    assert done.code == 0
    assert has_line(done.err, "toyruntime==1.1", "once")
    again = subcut("compare", path.name, "-i", "x.npy", "-c", "wheels/toy.py==1.1", cwd=tmp_path)
    assert not has_line(again.err, "toyruntime==1.1", "once")


def test_the_time_ends_what_explains_a_fault(tmp_path: Path) -> None:
    """The search is over by then; options and cures are not tried, and that is noted."""
    model(tmp_path)
    (tmp_path / "log").mkdir()
    spec = f"{fake_candidate.HERE}:nodes=exp,log={tmp_path / 'log'},after=3,then=hangs"
    words = ("model.onnx", "-i", "x.npy", "-c", spec, "--max-time", "10s", "--fresh")
    done, document = blamed(tmp_path, *words)
    assert done.code == 1 and document["region"] == ["exp"] and not document["cures"], done
    assert has_line(document["notes"], "time")
