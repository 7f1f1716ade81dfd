"""What runtimes are known to compute wrongly: entries, hints, tries, and how entries are made.

Covers `inspection.known`, `commands.lint` and `inspection.lint.known`.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks import known_case
from benchmarks.known import render
from fixtures import ROOT
from subgraph import plugins
from subgraph.documents import MAX_TEXT_BYTES
from subgraph.errors import InputError, UnknownName
from subgraph.graph.graph import load
from subgraph.graph.shape_inference import infer_types
from subgraph.inspection import known
from subgraph.inspection.lint import LintContext, run_rules
from subgraph.runtime import devices
from subgraph.runtime.worker import Worker
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut

ENTRIES = known.list_entries()
LSTM = """
g (float[5, 1, 4] x) => (float[5, 1, 1, 3] y) {{
    [back] y, h, c = LSTM <hidden_size = 3 {}> (x, w, r)
}}
"""


def lstm(folder: Path, attribute: str = "") -> Path:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: rng.normal(size=(1, 12, size)).astype(np.float32)
        for name, size in (("w", 4), ("r", 3))
    }
    text_models.save(folder / "lstm.onnx", LSTM.format(attribute), **weights)
    return folder / "lstm.onnx"


def hints(model: Path, runtime: str, folders: list[Path] | None = None) -> list[str]:
    context = LintContext(load(model), runtime=runtime, known=folders or [])
    return [
        f"{issue.node.label if issue.node else ''}: {issue.reason}"
        for issue in run_rules(context, ["known"])
    ]


# ------------------------------------------------------------ entries


def test_there_are_entries_and_each_says_what_it_must() -> None:
    assert len(ENTRIES) >= 110
    assert len({e.path for e in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert entry.runtime in (*plugins.list_names("backends"), *devices.DEVICES), entry.path
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry.date), entry.path
        assert entry.off and entry.says[0].islower() and not entry.says.endswith("."), entry.path
        assert onnx.defs.has(entry.operator), entry.path
        assert bool(entry.tests) != bool(entry.case), entry.path
        assert not {*entry.wrong} & {*entry.right}, entry.path


def test_entry_is_written_as_it_is_read(tmp_path: Path) -> None:
    for entry in ENTRIES:
        file = tmp_path / entry.runtime / f"{entry.name}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(render(entry), encoding="utf-8")
        assert known.read(file) == entry


ENTRY = 'operator = "MaxPool"\nsays = "x"\ntests = ["t"]\nwrong = ["1"]\ndate = "2026-01-01"\n'


@pytest.mark.parametrize(
    ("text", "code", "about"),
    [
        ("says = ", "known.unreadable", "Invalid value"),
        ('operator = "Relu"\ncolor = "red"\n', "known.unknown-key", "'color'"),
        (ENTRY.replace('["t"]', "[]"), "known.no-evidence", ""),
        ("x = " + "[" * 5000, "known.unreadable", "too deeply"),
        ("#" * (MAX_TEXT_BYTES + 1), "known.unreadable", "1 MiB"),
        (ENTRY.replace('"MaxPool"', "5"), "document.damaged", "operator"),
    ],
)
def test_broken_entry_is_named_and_left_out(
    text: str, code: str, about: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "bad.toml").write_text(text, encoding="utf-8")
    with raises(InputError, code, about):
        known.read(tmp_path / "toy" / "bad.toml")
    assert known.list_entries([tmp_path], "toy") == []
    assert has_line(caplog.text, "bad.toml")


@pytest.mark.parametrize("table", ["when", "unless"])
@pytest.mark.parametrize(
    ("condition", "is_possible"),
    [
        ('"opset below 13" = "yes"', True),
        ('"opset below 13.0" = "yes"', False),
        ('"opset below 13" = "true"', False),
        ('"type 0" = "float32"', True),
        ('"type 0" = "float"', False),
        ('"type x" = "float32"', False),
        ('"rank zero" = "4"', False),
        ('"output z" = "none"', False),
        ('"outputs" = "two"', False),
        ('"set " = "yes"', False),
        ('"set ceil_mode" = "yes"', True),
        ('"set ceil_mod" = "yes"', False),
        ('"ceil_mod" = "1"', False),
        ('"of 0 mode" = "constant"', True),
        ('"of 0 type x" = "float32"', False),
    ],
)
def test_entry_with_a_condition_that_no_node_satisfies_is_left_out(
    condition: str, is_possible: bool, table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy").mkdir()
    text = f"{ENTRY}[{table}]\n{condition}\n"
    (tmp_path / "toy" / "entry.toml").write_text(text, encoding="utf-8")
    assert bool(known.list_entries([tmp_path], "toy")) == is_possible
    assert (has_line(caplog.text, "entry.toml")) != is_possible


@pytest.mark.posix("FIFOs and devices are not among the files of Windows")
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_entry_that_is_not_a_regular_file_is_left_out(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy").mkdir()
    file = tmp_path / "toy" / "bad.toml"
    if kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    assert known.list_entries([tmp_path], "toy") == []
    assert has_line(caplog.text, "bad.toml")


def test_name_is_found_also_where_several_runtimes_have_it() -> None:
    assert known.find("tract/lstm-direction-reverse", ENTRIES).runtime == "tract"
    with raises(UnknownName, "known.ambiguous", "'lstm-direction-reverse'"):
        known.find("lstm-direction-reverse", ENTRIES)
    with raises(UnknownName, "known.no-entry", "'lstm-directon-reverse'"):
        known.find("lstm-directon-reverse", ENTRIES)


def test_the_runtime_decides_between_entries_of_one_name(tmp_path: Path) -> None:
    done = subcut("known", "gru-direction-reverse", "--runtime", "tract", cwd=tmp_path)
    assert done.out.startswith("tract: GRU")


@pytest.mark.parametrize(
    ("release", "over"),
    [
        ("", False),
        ("1.20.1", False),
        ("1.20.1.3", False),
        ("1.19.2", True),
        ("1.9", True),
        ("1.20.0", False),
        ("1.21", False),
        ("1.22.1", True),
        ("1.22.1.7", True),
        ("1.30", True),
    ],
)
def test_release_between_right_ones_is_taken_for_right(release: str, over: bool) -> None:
    entry = known.Entry("Relu", "x", ["1.20.1"], "2026-01-01", ["t"], right=["1.19.2", "1.22.1"])
    assert entry.is_over(release) == over
    # nothing is known to be right
    assert not known.Entry("Relu", "x", ["1.20.1"], "2026-01-01", ["t"]).is_over(release)


def test_package_of_a_tried_release_is_tried() -> None:
    entry = known.Entry("Relu", "x", ["5.0.0"], "2026-01-01", ["t"], right=["4.13.0"])
    assert (
        entry.was_tried("5.0.0.93")
        and entry.was_tried("4.13.0")
        and not entry.was_tried("4.12.0.88")
    )
    assert has_line(entry.format_releases("5.0.0.93"), "wrong in 5.0.0", "right in 4.13.0")
    assert has_line(entry.format_releases("4.12.0.88"), "4.12.0.88", "not tried")


def test_threads_are_public_addresses_and_at_least_25() -> None:
    """Several entries may name one: an operator each, or an opset."""
    threads = {entry.thread for entry in ENTRIES if entry.thread}
    assert len(threads) >= 25
    assert all(
        re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", thread)
        for thread in threads
    )


# ------------------------------------------------------------ hints


def test_the_thread_of_an_entry_is_shown(tmp_path: Path) -> None:
    net = "g (float16[3] x, float16 low) => (float16[3] y) { [clip] y = Clip (x, low) }"
    text_models.save(tmp_path / "m.onnx", net)
    thread = "https://github.com/microsoft/onnxruntime/issues/21957"
    done = subcut("lint", "m.onnx", "-c", "ort==1.19.2", "--only", "known", cwd=tmp_path)
    assert has_line(done.out, "how it was found", f"{thread}"), done
    assert "notes" in done.out or "note" in done.out
    assert thread in subcut("known", "clip-float16-without-max", cwd=tmp_path).out
    assert (
        thread
        not in subcut("lint", "m.onnx", "-c", "ort==1.21.0", "--only", "known", cwd=tmp_path).out
    )


def test_node_that_fits_is_named_with_the_releases(tmp_path: Path) -> None:
    model = lstm(tmp_path, ', direction = "reverse"')
    (hint,) = hints(model, "tract")
    assert has_line(hint, "back", "direction=reverse", "tract, wrong")
    assert "0.23.9" in hint
    assert hints(model, "ort") == [] and hints(lstm(tmp_path), "tract") == []
    lstm(tmp_path, ', direction = "reverse"')
    done = subcut("lint", "lstm.onnx", "-c", "tract==0.22.0", "--only", "known", cwd=tmp_path)
    assert has_line(done.out, "0.23.9", "0.22.0", "not tried")
    assert has_line(done.out, "`subcut known tract/lstm-direction-reverse`")
    assert done.code == 0, "a hint is no warning"


def test_inspect_of_a_node_says_what_its_runtime_is_known_for(tmp_path: Path) -> None:
    lstm(tmp_path, ', direction = "reverse"')
    said = "  perhaps with direction=reverse gives other values: known of tract, wrong in "
    words = ("inspect", "lstm.onnx", "back", "--no-run")
    assert said in subcut(*words, "-c", "tract", cwd=tmp_path).out
    assert subcut(*words, "-c", "ort", "--json", cwd=tmp_path).document["nodes"][0]["known"] == []
    assert "known" not in subcut(*words, "--json", cwd=tmp_path).document["nodes"][0]
    wrong = subcut("inspect", "lstm.onnx", "-c", "tract", cwd=tmp_path)
    assert (wrong.code, has_line(wrong.err, "-c", "node")) == (2, True), wrong
    (tmp_path / "subcut.toml").write_text('candidate = "tract"\n', encoding="utf-8")
    assert said in subcut(*words, cwd=tmp_path).out


@pytest.mark.parametrize("spec", ["trakt", "gone.py"])
def test_project_whose_candidate_cannot_be_read_has_its_nodes_described(
    spec: str, tmp_path: Path
) -> None:
    lstm(tmp_path)
    (tmp_path / "subcut.toml").write_text(f'candidate = "{spec}"\n', encoding="utf-8")
    done = subcut("inspect", "lstm.onnx", "back", "--no-run", cwd=tmp_path)
    (line,) = (said for said in done.err.splitlines() if spec in said)
    assert has_line(line, "warning", spec), line
    assert has_line(line, "subcut.toml", "-c SPEC"), line
    assert (done.code, "back (LSTM)" in done.out, "perhaps" in done.out) == (0, True, False), done
    typed = subcut("inspect", "lstm.onnx", "back", "--no-run", "-c", spec, cwd=tmp_path)
    assert (typed.code, typed.out) == (2, ""), typed


def test_inspect_of_a_node_in_a_body_says_what_its_runtime_is_known_for(tmp_path: Path) -> None:
    loop = """
    g (int64 n, bool go, float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y) {
        [turns] y = Loop (n, go, x) <body = step (int64 i, bool on, float[1, 2, 6, 6] v)
            => (bool still, float[1, 2, 6, 6] w) <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}> {
            still = Identity (on) p = Pad (v, pads) [pool] w = MaxPool <kernel_shape = [3, 3]> (p) }>
    }"""  # noqa: E501
    text_models.save(tmp_path / "m.onnx", loop)
    said = {
        c: subcut("inspect", "m.onnx", "turns/body/pool", "-c", c, cwd=tmp_path)
        for c in ("ort", "ort==1.32.0")
    }
    assert {done.code for done in said.values()} == {0}, said
    assert has_line(said["ort"].out, "perhaps", "Pad")
    assert "perhaps" not in said["ort==1.32.0"].out, "that release is right"


@pytest.mark.slow
def test_search_names_them_before_its_first_run(tmp_path: Path) -> None:
    pytest.importorskip("tract", reason="tract is missing")
    lstm(tmp_path, ', direction = "reverse"')
    done = subcut("bisect", "lstm.onnx", "-c", "tract", cwd=tmp_path)
    before, _, after = done.err.partition(
        "perhaps back (LSTM) with direction=reverse gives other values"
    )
    assert after and "whole model" not in before
    assert (done.code, has_line(done.out, "wrong", "back (LSTM)", "1 of 1")) == (1, True), done.out


def test_input_that_is_a_weight_is_not_one_that_is_computed(tmp_path: Path) -> None:
    """MNN's batch normalization crashes where its parameters are no constants, as in onnx's tests
    and in no model."""
    net = (
        "g (float[1, 2, 3] x{}) => (float[1, 2, 3] y) {{ [bn] y = BatchNormalization (x, s, b, m,"
        " v) }}"
    )
    values: dict[str, Any] = {n: np.ones(2, np.float32) for n in "sbmv"}
    text_models.save(tmp_path / "weights.onnx", net.format(""), **values)
    fed = "".join(f", float[2] {n}" for n in "sbmv")
    text_models.save(tmp_path / "fed.onnx", net.format(fed))
    assert hints(tmp_path / "weights.onnx", "mnn") == []
    behind = net.replace(
        "[bn] y = BatchNormalization (x,", "r = Relu (x) [bn] y = BatchNormalization (r,"
    )
    assert [h.split(":")[0] for h in hints(tmp_path / "fed.onnx", "mnn")] == ["bn"]
    text_models.save(tmp_path / "behind.onnx", behind.format(fed))
    assert hints(tmp_path / "behind.onnx", "mnn") == [], "it crashes where a model begins with it"


def test_list_of_what_holds_anyway_along_each_axis_is_not_set(tmp_path: Path) -> None:
    """Exporters write dilations of 1; MNN is wrong about others."""
    for size, found in ((1, 0), (2, 1)):
        pool = (
            f"MaxPool <kernel_shape = [2, 2], dilations = [{size}, {size}], strides = [1, 1]> (r)"
        )
        net = (
            f"g (float[1, 1, 9, 9] x) => (float[1, 1, n, m] y) {{ r = Relu (x) [pool] y = {pool} }}"
        )
        text_models.save(tmp_path / "m.onnx", net)
        assert len(hints(tmp_path / "m.onnx", "mnn")) == found


def test_output_that_nobody_reads_is_none(tmp_path: Path) -> None:
    for outputs, found in (("", 0), (", bool[4] m", 1)):
        net = f"g (float[4] x) => (float[4] y{outputs}) {{ [drop] y, m = Dropout (x) }}"
        text_models.save(tmp_path / "m.onnx", net)
        assert len(hints(tmp_path / "m.onnx", "opencv")) == found


@pytest.mark.parametrize(
    "path",
    sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")),
    ids=lambda p: p.stem,
)
def test_networks_that_agree_as_wholes_get_no_hint(path: Path) -> None:
    found = {
        runtime: hints(path, runtime) for runtime in ("ort", "openvino", "opencv", "tract", "mnn")
    }
    is_known = path.stem == "light_squeezenet"  # MNN's Softmax is wrong there
    assert {runtime: len(said) for runtime, said in found.items() if said} == (
        {"mnn": 1} if is_known else {}
    )


def test_node_behind_another_one_is_named_and_right_releases_are_not(tmp_path: Path) -> None:
    body = "p = Pad (x, w) [pool] y = MaxPool<kernel_shape=[3, 3]> (p)"
    net = f"g (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y) {{ {body} }}"
    weights: dict[str, Any] = {"w": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    text_models.save(tmp_path / "m.onnx", net, **weights)
    (hint,) = hints(tmp_path / "m.onnx", "ort")
    assert has_line(hint, "pool", "Pad")
    (tmp_path / "own" / "toy").mkdir(parents=True)
    entry = known.Entry(
        "MaxPool", "is slow", ["1"], "2026-01-01", ["test_maxpool_2d_default"], right=["2"]
    )
    (tmp_path / "own" / "toy" / "slow.toml").write_text(render(entry), encoding="utf-8")
    for release, found in (("1", 1), ("2", 0), ("1.5", 1), ("3", 0), ("0.9", 1)):
        context = LintContext(
            load(tmp_path / "m.onnx"), runtime="toy", release=release, known=[tmp_path / "own"]
        )
        assert len(list(run_rules(context, ["known"]))) == found


def test_harmless_condition_gives_no_hint(tmp_path: Path) -> None:
    """Zeros behind a Relu are the least values, as MaxPool's own padding is; and of edges nothing
    is folded."""
    weights: dict[str, Any] = {"w": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    for first, mode, found in (("Neg", "constant", 1), ("Relu", "constant", 0), ("Neg", "edge", 0)):
        body = (
            f'r = {first} (x) p = Pad<mode = "{mode}"> (r, w) [pool] y = MaxPool<kernel_shape = [3,'
            " 3]> (p)"
        )
        net = f"g (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y) {{ {body} }}"
        text_models.save(tmp_path / "m.onnx", net, **weights)
        assert len(hints(tmp_path / "m.onnx", "ort")) == found, (first, mode)
    page = subcut("known", "pad-maxpool", cwd=tmp_path).out
    assert has_line(page, "0 mode=constant") and has_line(page, "0 maker 0=Relu")


def test_output_without_a_name_is_not_one_that_nobody_reads(tmp_path: Path) -> None:
    """MNN is wrong about an RNN whose first output has no name; exporters give it one."""
    weights: dict[str, Any] = {
        "w": np.ones((1, 3, 4), np.float32),
        "r": np.ones((1, 3, 3), np.float32),
    }
    for named, found in (("", 1), ("y", 0)):
        net = (
            "g (float[5, 1, 4] x) => (float[1, 1, 3] h) { y, h = RNN <hidden_size = 3> (x, w, r) }"
        )
        model = text_models.model(net, **weights)
        model.graph.node[0].output[0] = named
        onnx.save(model, tmp_path / "m.onnx")
        assert len(hints(tmp_path / "m.onnx", "mnn")) == found


@pytest.mark.parametrize(
    ("attributes", "hinted"), [("kernel_shape=[2]", True), ("kernel_shape=[2], strides=[2]", False)]
)
def test_pooling_fits_mnns_entry_by_its_missing_strides(
    attributes: str, hinted: bool, tmp_path: Path
) -> None:
    pooled = text_models.model(
        f"g (float[1,3,8] x) => (float[1,3,n] y) {{ y = MaxPool <{attributes}> (x) }}"
    )
    onnx.save(pooled, tmp_path / "m.onnx")
    assert any("without strides" in hint for hint in hints(tmp_path / "m.onnx", "mnn")) == hinted


def test_fault_that_only_values_show_is_listed_without_a_hint(tmp_path: Path) -> None:
    text_models.save(tmp_path / "m.onnx", "g (float[4] x) => (float[4] y) { y = Tanh (x) }")
    assert hints(tmp_path / "m.onnx", "opencv") == []
    assert has_line(subcut("known", "tanh-large", cwd=tmp_path).out, "opencv: Tanh", "NaN")


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Worker]:
    """The process of all cases that run: its start takes longer than a case."""
    with known_case.open_evaluator() as worker:
        yield worker


@pytest.mark.turns(3)
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.case], ids=lambda e: e.path)
def test_case_of_its_own_fits_its_entry_and_runs_on_onnxs_evaluator(
    entry: known.Entry, tmp_path: Path, evaluator: Worker
) -> None:
    assert entry.case
    example = known_case.example_of(evaluator, entry, entry.case, tmp_path / "case")
    assert all(np.isfinite(record.array()).all() for record in example.outputs)
    fitting = [hint for hint in hints(example.model, entry.runtime) if entry.says in hint]
    assert bool(fitting) != ("values" in entry.when)


def test_case_with_quantizers_of_an_older_opset_runs(tmp_path: Path, evaluator: Worker) -> None:
    """The evaluator has them from opset 19 on."""
    text = """g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}>
        { c = QuantizeLinear (x, s, z) y = DequantizeLinear (c, s, z) }"""
    case = known.KnownCase(f'<ir_version: 8, opset_import: ["": 13]> {text}')
    entry = known.Entry("Relu", "x", ["1"], "2026-01-01", case=case, name="old", runtime="toy")
    example = known_case.example_of(evaluator, entry, case, tmp_path / "case")
    assert not (2 * example.outputs[0].array() % 1).any()


VAST = "g (float[99999999999999] x) => (float[99999999999999] y) { y = Relu (x) }"
OPEN = "g (float[N] x) => (float[N] y) { y = Relu (x) }"
GROWN = """g (float[1] x) => (float[9] y) {
    s = Constant <value_ints = [99999999999999]> () y = Expand (x, s)
}"""


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("g (float[1] x) => { }", "backend.refused-model"),
        (VAST, "known.open-size"),
        (OPEN, "known.open-size"),
        (GROWN, "memory.exceeded"),
    ],
)
def test_case_that_does_not_run_is_a_clear_error(model: str, code: str, tmp_path: Path) -> None:
    case = known.KnownCase(f'<ir_version: 8, opset_import: ["": 17]> {model}')
    entry = known.Entry("Relu", "x", ["1"], "2026-01-01", case=case, name="bad", runtime="toy")
    with raises(InputError, code, "toy/bad"):
        list(known_case.examples([entry], tmp_path))


@pytest.mark.slow
def test_case_is_somebodys_model_and_does_not_run_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("in this process")

    monkeypatch.setattr(onnx.parser, "parse_model", refused)
    monkeypatch.setattr(ReferenceEvaluator, "run", refused)
    entry = next(e for e in ENTRIES if e.case)
    assert len(list(known_case.examples([entry], tmp_path / "here"))) == 1
    monkeypatch.setattr(known_case, "TIMEOUT", 1.0)
    endless = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x, int64 n) => (float[1] y) {
        c = Constant <value_int = 1> () b = Cast <to = 9> (c)
        y = Loop (n, b, x) <body = step (int64 i, bool go, float[1] v) => (bool on, float[1] w) {
            on = Identity (go) w = Relu (v) }> }"""
    case = known.KnownCase(endless, low=1e12, high=2e12)
    bad = known.Entry("Loop", "x", ["1"], "2026-01-01", case=case, name="endless", runtime="toy")
    with raises(InputError, "worker.died", "toy/endless", "1 s"):
        list(known_case.examples([bad], tmp_path / "there"))


def test_entries_of_the_users_are_read_like_ours(tmp_path: Path) -> None:
    (tmp_path / "own" / "tract").mkdir(parents=True)
    entry = known.Entry(
        "LSTM", "forgets its state", ["1.0"], "2026-01-01", ["test_lstm_defaults"], cure="unroll it"
    )
    (tmp_path / "own" / "tract" / "forgets.toml").write_text(render(entry), encoding="utf-8")
    lstm(tmp_path)
    (tmp_path / "subcut.toml").write_text('known = ["own"]\n', encoding="utf-8")
    done = subcut("lint", "lstm.onnx", "-c", "tract", "--only", "known", cwd=tmp_path)
    assert has_line(done.out, "back (LSTM)", "tract, wrong", "1.0")
    assert has_line(done.out, "fix: unroll", "tract/forgets")
    assert has_line(subcut("known", "forgets", cwd=tmp_path).out, "forgets")
    (tmp_path / "own" / "tract" / "lstm-direction-reverse.toml").write_text(
        render(entry), encoding="utf-8"
    )
    assert (
        len(known.list_entries([tmp_path / "own"], "tract"))
        == len(known.list_entries(runtime="tract")) + 1
    ), "theirs stands for ours"


def test_large_model_is_held_against_all_entries_at_once(tmp_path: Path) -> None:
    """50 ms for 3,000 nodes, 200 entries and 2,000 hits is asked for; ten times that is a fault of
    complexity."""
    (tmp_path / "own" / "toy").mkdir(parents=True)
    for k in range(200):
        when = (
            {"alpha": f"{k / 100:g}", "outputs": "1", "input 0": "variable"}
            if k % 2
            else {"type 0": "float32"}
        )
        entry = known.Entry(
            "Relu" if k == 0 else "Elu" if k % 2 else "Tanh",
            "x",
            ["1"],
            "2026-01-01",
            ["t"],
            when=when,
        )
        (tmp_path / "own" / "toy" / f"e{k}.toml").write_text(render(entry), encoding="utf-8")
    pairs = "".join(
        f"e{k} = Elu<alpha = 1.01> (t{k}) r{k} = Relu (e{k}) t{k + 1} = Abs (r{k}) "
        for k in range(1000)
    )
    text_models.save(tmp_path / "m.onnx", f"g (float[4] t0) => (float[4] t1000) {{ {pairs} }}")
    context = LintContext(load(tmp_path / "m.onnx"), runtime="toy", known=[tmp_path / "own"])
    assert (len(context.all_nodes), len(context.types.inferred) > 2000) == (3000, True)
    begin = time.process_time()
    assert len(list(run_rules(context, ["known"]))) == 2000
    assert time.process_time() - begin < 0.5


def test_fact_that_no_entry_needs_is_not_asked_for(tmp_path: Path) -> None:
    """Types take a shape inference, of a whole model."""
    asked: list[str] = []

    class Watched(LintContext):
        @property
        def types(self) -> Any:
            asked.append("types")
            return infer_types(self.graph)

    (tmp_path / "own" / "toy").mkdir(parents=True)
    when = {"type 0": "float32", "alpha": "2"}
    entry = known.Entry("Elu", "x", ["1"], "2026-01-01", ["t"], when=when)
    (tmp_path / "own" / "toy" / "e.toml").write_text(render(entry), encoding="utf-8")
    for alpha, found in ((1, 0), (2, 1)):
        net = f"g (float[4] x) => (float[4] y) {{ y = Elu<alpha = {alpha}.0> (x) }}"
        text_models.save(tmp_path / "m.onnx", net)
        context = Watched(load(tmp_path / "m.onnx"), runtime="toy", known=[tmp_path / "own"])
        assert (len(list(run_rules(context, ["known"]))), len(asked) > 0) == (found, bool(found))


# ------------------------------------------------------------ the command


def test_the_list_and_one_entry(tmp_path: Path) -> None:
    done = subcut("known", "--runtime", "tract", "--operator", "LSTM", cwd=tmp_path)
    assert len([line for line in done.out.splitlines() if line.startswith("tract ")]) == 1
    page = subcut("known", "tract/lstm-direction-reverse", cwd=tmp_path).out
    assert "test_lstm_reverse" in page and "0.23.9" in page
    assert len(subcut("known", "--json", cwd=tmp_path).document["entries"]) == len(ENTRIES)
    for asked in ("--runtime tracte", "nothing-like-it"):
        assert subcut("known", *asked.split(), cwd=tmp_path).code == 2


def test_weights_are_drawn_and_values_are_taken(tmp_path: Path, evaluator: Worker) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x, float[2, 4] z) => (float[2, 4] y) <float[3, 4] w> { p = MatMul (x, w) y = Add (p, z) }"""  # noqa: E501
    case = known.KnownCase(text, ranges={"w": (5.0, 6.0)}, values={"x": (1, 2, 3, 4, 5, 6.5)})
    entry = known.Entry("MatMul", "x", ("1",), "2026-01-01", case=case, name="own", runtime="toy")
    example = known_case.example_of(evaluator, entry, case, tmp_path / "case")
    x, z = (record.array() for record in example.inputs)
    assert x.tolist() == [[1, 2, 3], [4, 5, 6.5]] and (abs(z) <= 1).all()
    (weight,) = onnx.load(example.model).graph.initializer
    w = onnx.numpy_helper.to_array(weight)
    assert w.shape == (3, 4) and ((w >= 5) & (w <= 6)).all() and len({*w.flat}) == 12
    assert np.allclose(example.outputs[0].array(), x @ w + z)
    (tmp_path / "toy").mkdir(exist_ok=True)
    (tmp_path / "toy" / "own.toml").write_text(render(entry), encoding="utf-8")
    assert known.read(tmp_path / "toy" / "own.toml") == entry


def test_the_pages_name_each_entry() -> None:
    pages = sorted((ROOT / "docs" / "known").glob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    rows = re.findall(r"^\| `(\S+)` \|", text, re.MULTILINE)
    assert rows == [e.path for e in ENTRIES], "python -m benchmarks.known writes them"


def test_the_index_counts_the_entries_of_each_runtime() -> None:
    index = (ROOT / "docs" / "known.md").read_text(encoding="utf-8")
    counts = dict(re.findall(r"^\| \[(\S+)\]\(known/\S+\.md\) \| (\d+) \|", index, re.MULTILINE))
    assert counts == {name: str(n) for name, n in Counter(e.runtime for e in ENTRIES).items()}
