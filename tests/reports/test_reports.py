"""Reports: every form of every sample document; no name becomes a tag, a formula, a link or a line
of its own.

Covers `reports.html`, `reports.md`, `reports.csv`, `reports.junit`, `reports.text`,
`reports.model_explorer`, `results`, `results.bisect`, `results.common`, `results.compare`,
`results.compare`, `results.sweep` and `commands.report`.
"""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import html
import io
import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from fixtures import compared, runs
from fixtures.compared import COMPARED
from fixtures.runs import EVIDENCE, HOSTILE, NODES, RUNS, hostile
from subgraph import plugins
from subgraph.commands import load_module, options
from subgraph.commands.report import read, report
from subgraph.documents import from_json, make_schema, to_json
from subgraph.errors import OutputError, UnknownName, UsageError
from subgraph.reports import add_answer, answer, cleaned, render_document, text as text_form
from subgraph.reports._answer import SEARCH_OPTIONS
from subgraph.reports.text import list_first_lines
from subgraph.results import find_type, parse
from subgraph.results.bisect import BisectDocument
from subgraph.system import quote
from subgraph.text import FORMULA, describe_prediction
from tests.helpers.documents import problem
from tests.helpers.examples import examples
from tests.helpers.facts import has_line

QUOTED = quote("a b.npy")
FORMS = plugins.list_names("reports")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202a-\u202e\ufeff\ufffe\uffff]")
SCRIPT = resources.files("subgraph.reports").joinpath("page.js").read_text(encoding="utf-8")
PLAIN = [f"node{i}" for i in range(len(HOSTILE))]


ALL = RUNS | COMPARED


def render(form: str, document: dict[str, Any]) -> str:
    return render_document(plugins.load("reports", form), parse(document))


# ------------------------------------------------------------ contract


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_renders_every_document(form: str, name: str) -> None:
    document = ALL[name]()
    text = render(form, document)
    assert document == ALL[name](), "a report changes nothing"
    # the same again, also once it was a file
    assert text == render(form, json.loads(json.dumps(document)))
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert not CONTROL.search(text)
    text.encode()


@pytest.mark.slow
@settings(max_examples=15)
@given(names=st.lists(st.text(), min_size=1, max_size=6))
def test_names_of_any_kind_reach_no_markup(names: list[str]) -> None:
    for build in (hostile, compared.hostile):
        document = build(names)
        ET.fromstring(render("junit", document))
        for form in FORMS:
            assert not CONTROL.search(render(form, document))
        # equal names make one tensor with many readers
        stubs = {("text", ("x", "y")), ("text", ("class", "x", "y"))}
        assert tags(render("html", document)) <= tags(render("html", build(PLAIN))) | stubs


def test_every_form_names_a_file_of_its_own() -> None:
    files = [plugins.load("reports", form).FILE for form in FORMS]
    assert len(set(files)) == len(files) and all(re.fullmatch(r"\w+\.\w+", file) for file in files)
    assert {"html", "md", "csv", "junit", "model-explorer", "text"} <= set(FORMS)


# ------------------------------------------------------------ schema


@cache
def validator(kind: type) -> Any:
    """A full validator of the schema of a kind of document."""
    rule = make_schema(kind)
    of = pytest.importorskip("jsonschema").Draft202012Validator
    of.check_schema(rule)
    return of(rule)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ALL)
def test_samples_are_of_the_schema(name: str) -> None:
    document = ALL[name]()
    assert problem(document) == ""
    validator(find_type(document["schema"])).validate(document)


def changed(value: Any, change: Any) -> Iterator[Any]:
    """The document with one place changed, for every place of it."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: one} for one in [change, *changed(value[key], change)])
    elif isinstance(value, list):
        for k, one in enumerate(value[:2]):
            yield from (
                [*value[:k], other, *value[k + 1 :]] for other in [change, *changed(one, change)]
            )


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "change", [None, "text", [], *(pytest.param(c, marks=pytest.mark.rare) for c in (-1.5, True))]
)
@pytest.mark.parametrize("name", ["accumulated", "unresolved", "flaky", "compared", "interval"])
def test_departure_is_the_one_of_a_full_validator(name: str, change: Any) -> None:
    document = ALL[name]()
    valid = validator(find_type(document["schema"])).is_valid
    document |= {
        key: (document[key] or [])[:2] for key in ("profile", "steps", "rows") if key in document
    }
    others = list(changed(document, change))
    step = max(1, len(others) // examples(100))
    for other in others[:: step + 1 - step % 2]:  # odd: of each kind of place some
        assert (problem(other) == "") == valid(other), problem(other)


def test_document_from_before_the_noise_was_kept_is_rendered() -> None:
    document = RUNS["culprit"]()
    for output in document["findings"][0]["verdict"]["outputs"]:
        output.pop("noise", None)
    assert problem(document) == ""
    assert render("html", document)


def test_departure_is_named() -> None:
    document = RUNS["culprit"]()
    del document["findings"][0]["nodes"]
    assert problem(document).startswith("findings[0].nodes: ")
    assert problem({**RUNS["agree"](), "trials": True}).startswith("trials: ")


# ------------------------------------------------------------ text


@pytest.mark.parametrize("name", ALL)
def test_the_first_lines_on_a_page_are_those_of_the_terminal(name: str) -> None:
    """A finding's reason, and what to do next; of a comparison the totals as well."""
    document = ALL[name]()
    found = list_first_lines(parse(document))
    printed = " ".join(render("text", document).split())
    assert found is not None
    headline = " ".join(str(found["headline"]).split())
    assert all(part in printed for part in headline.split(": ", 2))
    rows: Any = found["findings"]
    searched = document["schema"] == "subcut.bisect/1"
    assert len(rows) == max(len(document.get("findings", ())), searched)
    whole = [] if name == "hostile" else rows[:1]  # its lines do not fit one screen
    for line in chain.from_iterable(whole if searched else rows):
        assert line.partition(": ")[2] in printed if searched else line.strip() in printed, line


@pytest.mark.parametrize(("more", "plans"), [("", 1), (" --inside", 0)])
def test_error_that_adds_up_in_a_quantized_model_leads_to_a_plan(more: str, plans: int) -> None:
    piece = {"node": "a", "nodes": ["a"], "op": "Add", "index": 0, "error": 1, "explains": 1}
    other = {"file": "q.onnx", "matched": "", "nodes": [piece]}
    typed = f"subcut bisect m.onnx --candidate-model q.onnx -i x.npy{more}"
    changes = {"other_model": other, "command": typed}
    document = from_json(BisectDocument, RUNS["accumulated"]() | changes)
    following = [" ".join(one.argv) for one in answer(document).next]
    assert following == [typed.replace("bisect", "plan")] * plans


def test_options_without_a_plan_are_those_that_plan_does_not_have() -> None:
    searching, planning = (
        options.list_flags(getattr(load_module(name), name)).keys() for name in ("bisect", "plan")
    )
    assert searching - planning == SEARCH_OPTIONS


def test_the_terminal_shows_the_conclusion_and_the_reports_the_evidence() -> None:
    text = " ".join(render("text", RUNS["culprit"]()).split())
    kinds = {kind: says for kind, says in EVIDENCE if says in text}
    assert set(kinds) == {"conclusion"}


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("name", RUNS)
def test_answer_fits_a_terminal(name: str, columns: int) -> None:
    """No line but a command or a long word is wider, and no answer has more lines than a screen."""
    text = text_form.render(from_json(BisectDocument, RUNS[name]()), columns)
    lines = text.splitlines()
    assert len(lines) <= text_form.MAX_LINES or name == "hostile" or columns < 100
    for line in lines:
        is_whole = "subcut " in line or "  report" in line or len(line.split()) < 3
        assert len(line) <= columns or is_whole or name == "hostile", line


@pytest.mark.parametrize("name", RUNS)
def test_headline_and_commands_of_a_document_are_those_of_its_answer(name: str) -> None:
    document = parse(RUNS[name]())
    assert isinstance(document, BisectDocument)
    told = to_json(add_answer(document))
    found = answer(document)
    assert told["says"] == found.says and problem(told) == ""
    assert [one["argv"] for one in told["next"]] == [list(one.argv) for one in found.next]


@pytest.mark.parametrize("form", ["html", "md"])
def test_precision_or_bug_is_told_wherever_it_is_known(form: str) -> None:
    text = flat(form, RUNS["culprit"]())
    assert not [says for _, says in EVIDENCE if says not in text]
    document = RUNS["culprit"]()
    del document["findings"][0]["evidence"]
    assert problem(document) == "", "documents of before have none"
    assert not [says for _, says in EVIDENCE if says in flat(form, document)]
    assert not has_line(render(form, document), "Precision or")


def flat(form: str, document: dict[str, Any]) -> str:
    return " ".join(html.unescape(render(form, document)).split())


# ------------------------------------------------------------ HTML


class Page(HTMLParser):
    """Tags with the names of their attributes, attribute values, and the text of each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, tuple[str, ...]]] = set()
        self.values: list[tuple[str, str]] = []
        self.said: list[tuple[str, str]] = []
        self.tag = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        # only a shortened name has one
        self.tags.add((tag, tuple(name for name, _ in attrs if name != "title")))
        self.values += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.said.append((self.tag, data))


def tags(text: str) -> set[tuple[str, tuple[str, ...]]]:
    return Page(text).tags


def test_no_tag_and_no_attribute_comes_from_a_name() -> None:
    other = Page(render("html", compared.hostile()))
    assert other.tags <= tags(render("html", compared.hostile(PLAIN)))
    page = Page(render("html", RUNS["hostile"]()))
    assert page.tags <= tags(render("html", hostile(PLAIN)))
    for values in (other.values, page.values):
        assert not {name for name, _ in values if name.startswith("on") or name in ("src", "style")}
        links = {value for name, value in values if name == "href"}
        assert links and all(re.fullmatch("#[a-z]+(-[0-9]+)?", link) for link in links)
    assert all(
        "javascript:" not in value
        for name, value in page.values
        if name not in ("title", "aria-label", "data-key")
    )
    text = render("html", RUNS["hostile"]())
    assert text.lower().count("<script") == 1 and f"<script>{SCRIPT}</script>" in text
    assert ("span", "{{ 7 * 7 }}{% for %}") in page.said


def test_the_page_needs_nothing_from_elsewhere_and_its_links_lead_to_places_of_it() -> None:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for build in ALL.values():
        page = Page(render("html", build()))
        places = [value for name, value in page.values if name == "id"]
        assert len(places) == len(set(places))
        assert {value[1:] for name, value in page.values if name == "href"} <= set(places)
        loads = [
            value
            for name, value in page.values
            if name in ("href", "src", "data", "action", "xlink:href")
        ]
        assert all(value.startswith("#") for value in loads)
        assert not {"link", "img", "iframe", "object", "form"} & {tag for tag, _ in page.tags}
        assert ("content", policy) in page.values and {tag for tag, _ in page.tags} >= {"script"}


@pytest.mark.parametrize(
    "name", ["culprit", "compared", "interval-several", "recorded-several", "agree"]
)
def test_the_whole_network_is_drawn_and_leads_to_its_tensors(name: str) -> None:
    """Once for a screen and once for a phone; the groups of what was found are open, errors are
    bars and numbers."""
    values = Page(text := render("html", ALL[name]())).values
    assert {value for name, value in values if name == "href" and value.startswith("#tensor-")}
    assert text.count('class="wide screen"') and text.count('class="wide screen"') == text.count(
        'class="wide phone"'
    )
    keys = [value for name, value in values if name == "data-key"]
    assert ("#4" in keys and "down" in keys) or not ALL[name]().get("findings")
    document = ALL[name]()
    del document["model"]["network"]
    # documents of before
    assert problem(document) == "" and 'id="network"' not in render("html", document)
    document["model"]["network"] = {**ALL[name]()["model"]["network"], "ops": ["Conv"]}
    assert 'id="network"' not in render("html", document), "lists that do not belong together"


def test_fault_that_reading_hides_is_said_in_the_chart() -> None:
    document = RUNS["culprit"]()
    before = render("html", document)
    for row in document["profile"]:
        row |= {"error": 1e-7, "status": "agree"}
    hidden = "hid the fault</text>"
    assert hidden in render("html", document) and hidden not in before
    document["profile"][20]["status"] = "fail"
    assert has_line(render("html", document), "nothing wrong", "1")


def test_page_of_a_large_network_stays_small() -> None:
    """1,000 nodes with long names, all wrong: under 2 MB."""
    nodes = [
        runs.Node(
            f"/encoder/layer.{i // 20}/attention/self/MatMul_{i}", "MatMul", (f"t{i}",), f"t{i + 1}"
        )
        for i in range(1000)
    ]
    rows = runs.profile(lambda i: 0.1, nodes)
    text = render(
        "html", runs.run([runs.finding("culprit", [500, 501], nodes)], nodes, profile=rows)
    )
    assert len(text.encode()) < 2_000_000 and "#tensor-501" in text


def test_the_page_begins_with_the_verdict_and_draws_the_region() -> None:
    document = RUNS["culprit"]()
    del document["model"]["network"]
    page = Page(render("html", document))
    said = [
        text.strip() for tag, text in page.said if text.strip() and tag not in ("title", "style")
    ]
    assert said[0] == f"✗ {answer(from_json(BisectDocument, document)).says}"
    boxes = [value for name, value in page.values if name == "class" and value.startswith("box")]
    assert sum("found" in box for box in boxes) == 2 and len(boxes) > 4
    assert {("text", word) for word in ("MaxPool", "#5", "pad/Pad", "✗")} <= set(page.said)


# ------------------------------------------------------------ Markdown


@pytest.mark.parametrize("build", [hostile, compared.hostile])
def test_markdown_holds_names_in_code(build: Any) -> None:
    """Read by another's parser: what is not code has no link, no picture and no HTML."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(render("md", build()))
    kinds = {t.type for t in tokens} | {t.type for t in inline_tokens(tokens)}
    blocks = {f"{kind}_{end}" for kind in ("heading", "paragraph") for end in ("open", "close")}
    assert kinds <= {"inline", "text", "code_inline", "fence", *blocks}
    told = [t.content for t in inline_tokens(tokens) if t.type == "text"]
    assert not re.search("@someone|alert|HYPERLINK", "".join(told))


def inline_tokens(tokens: list[Any]) -> list[Any]:
    return list(chain.from_iterable(token.children or () for token in tokens))


# ------------------------------------------------------------ other forms


@pytest.mark.parametrize("name", ALL)
def test_csv_is_a_table_without_formulas(name: str) -> None:
    document = ALL[name]()
    rows = list(csv.DictReader(io.StringIO(render("csv", document), newline="")))
    kinds = [row["row"] for row in rows]
    if name in RUNS:
        assert [kinds.count(k) for k in ("step", "finding", "alone")] == [
            len(document[key]) for key in ("steps", "findings", "alone")
        ]
    assert all(
        None not in row and not cell.startswith(FORMULA) for row in rows for cell in row.values()
    )


@pytest.mark.parametrize(
    ("name", "tests", "failures", "errors"),
    [("culprit", 2, 2, 0), ("culprits", 4, 4, 0), ("unresolved", 2, 1, 1), ("agree", 1, 0, 0)],
)
def test_junit_counts_tests_and_failures(name: str, tests: int, failures: int, errors: int) -> None:
    root = ET.fromstring(render("junit", RUNS[name]()).encode())
    wanted = {"tests": tests, "failures": failures, "errors": errors}
    assert {key: int(root[0].attrib[key]) for key in wanted} == wanted
    assert len(root[0].findall("testcase")) == tests


def test_model_explorer_has_the_profile() -> None:
    document = RUNS["culprits"]()
    graph = json.loads(render("model-explorer", document))["main_graph"]
    results = graph["results"]
    values = [t["value"] for t in graph["thresholds"]]
    assert set(results) == {node.label for node in NODES} and values == sorted(values)
    assert results[NODES[9].label] == {"value": 0.02}
    # what is not finite
    assert results[NODES[13].label] == results[NODES[15].label] == {"value": values[-1]}


def test_model_explorer_goes_by_tensor_where_a_node_has_no_name() -> None:
    document = RUNS["agree"]()
    document["profile"] = [
        {"index": 3, "node": "#3", "op": "Abs", "tensor": "t3", "error": 0.5, "status": "agree"}
    ]
    document["profile"].append({**document["profile"][0], "node": "many", "tensor": "a"})
    document["profile"].append(
        {**document["profile"][0], "node": "many", "tensor": "b", "error": 0.7}
    )
    document["profile"].append({**document["profile"][0], "node": "no value", "error": None})
    document["model"]["graph"] = ""
    results = json.loads(render("model-explorer", document))["<main>"]["results"]
    assert results == {"t3": {"value": 0.5}, "many": {"value": 0.7}}


# ------------------------------------------------------------ compared


def test_recording_is_shown_with_how_it_was_matched_and_what_was_left_out() -> None:
    for form in ("html", "csv"):
        text = html.unescape(render(form, COMPARED["recorded"]()))
        assert (
            f"{NODES[0].makes}-rs" in text
            and "transposed (0, 2, 1)" in text
            and has_line(text, "nothing")
        ), form


def test_next_step_of_a_comparison_is_that_of_its_document() -> None:
    document = COMPARED["compared"]() | {"exit_code": 1}
    argv = ["subcut", "bisect", "m.onnx", "-i", *shlex.split(QUOTED)]
    following = [{"why": "find the smallest region", "argv": argv}]
    page = html.unescape(render("html", document | {"next": following}))
    assert f"subcut bisect m.onnx -i {QUOTED}" in page


def test_a_next_command_with_an_open_quote_is_shown() -> None:
    document = COMPARED["compared"]() | {"exit_code": 1, "next": ["subcut bisect it's.onnx"]}
    assert "subcut bisect" in html.unescape(render("html", document))


def test_interval_is_drawn_and_says_what_to_do_next() -> None:
    argv = ["subcut", "manual", "start", "m.onnx"]
    document = COMPARED["interval-several"]() | {"next": [{"why": "by hand", "argv": argv}]}
    del document["model"]["network"]
    page = Page(render("html", document))
    said = [
        text.strip() for tag, text in page.said if text.strip() and tag not in ("title", "style")
    ]
    assert said[0] == "✗ float says"
    boxes = [value for name, value in page.values if name == "class" and value.startswith("box")]
    assert sum("suspect" in box for box in boxes) == 4, "two nodes in each of two places"
    assert any(has_line(text, "manual start") for text in said)


def test_unseen_is_never_right() -> None:
    rows = list(
        csv.DictReader(io.StringIO(render("csv", COMPARED["recorded-several"]()), newline=""))
    )
    missing = [row["status"] for row in rows if row["column"] == "quant"]
    assert len(missing) == len(NODES) and set(missing) == {"not seen"}


def test_model_explorer_takes_the_worst_recording() -> None:
    results = json.loads(render("model-explorer", COMPARED["recorded-several"]()))["main_graph"][
        "results"
    ]
    assert results[NODES[4].label] == {"value": 0.6} and results[NODES[0].label] == {"value": 4e-3}
    assert NODES[2].label not in results, "not seen"


def test_form_that_shows_bisections_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(COMPARED["recorded"]()), encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "def render(document):\n    return 'mine\\n'\n", encoding="utf-8"
    )
    with pytest.raises(UsageError):
        report(str(tmp_path / "run.json"), str(tmp_path / "mine.py"))
    assert report(str(tmp_path)).text.startswith("float says"), "a folder as well"


# ------------------------------------------------------------ command


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUNS["culprit"]()), encoding="utf-8")
    return path


def test_unknown_kind_shows_its_text(run: Path) -> None:
    done = report(str(run))
    assert (done.text + "\n", done.exit_code) == (render("text", RUNS["culprit"]()), 0)
    assert report(str(run), "md", "-").text.startswith("# ")
    assert sorted(p.name for p in run.parent.iterdir()) == ["run.json"]


def test_files_are_written(run: Path, tmp_path: Path) -> None:
    done = report(str(run), "html, md,html,model-explorer", str(tmp_path / "new" / "folder"))
    names = ["report.html", "report.md", "model_explorer.json"]
    assert done.document["files"] == [str(tmp_path / "new" / "folder" / name) for name in names]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted(names)
    page = (tmp_path / "new" / "folder" / "report.html").read_text(encoding="utf-8")
    assert page == render("html", RUNS["culprit"]())
    report(str(run), "md")
    assert (run.parent / "report.md").is_file(), "beside the run, where no folder is named"


def test_form_of_a_plugin_is_used(run: Path, tmp_path: Path) -> None:
    (tmp_path / "my-form.py").write_text(
        '"""Mine."""\n\n\ndef render(document):\n    return "mine\\n"\n'
    )
    report(str(run), str(tmp_path / "my-form.py"), str(tmp_path))
    assert (tmp_path / "report_my_form.txt").read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"schema": "subcut.compare/1"}',
        '{"schema": "subcut.sweep/1"}',
        '{"schema": "subcut.cut/1"}',
        '{"schema": "subcut.bisect/1"}',
        '{"schema": NaN}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_broken_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError):
        read(path)


def test_words_that_cannot_be_followed_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnknownName):
        report(str(run), "md,htm")
    with pytest.raises(UsageError):
        report(str(run), " ,")
    with pytest.raises(UsageError):
        report(str(run), "md,text", "-")
    with pytest.raises(UsageError):
        report(str(tmp_path / "none.json"))
    with pytest.raises(OutputError):
        report(str(run), "md", str(tmp_path / "file"))


def test_document_is_cleaned_and_not_changed() -> None:
    parsed = from_json(BisectDocument, RUNS["hostile"]())
    cleaned(parsed)
    assert to_json(parsed) == to_json(from_json(BisectDocument, RUNS["hostile"]()))
    assert answer(cleaned(parsed)).says.isprintable()


# ------------------------------------------------------------ phrases


def test_evidence_of_a_switch_is_of_the_schema() -> None:
    document = RUNS["culprit"]()
    document["findings"][0]["evidence"].append(
        {"kind": "switch", "says": "right with winograd off (winograd=0)"}
    )
    assert problem(document) == "" and "winograd=0" in render("md", document)


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_all_reports_give_one_number_of_runs(form: str) -> None:
    document = RUNS["culprit"]() | {"trials": 11, "runs": {"baseline": 1, "halve": 7, "explain": 3}}
    assert "11 runs, 37.4 s" in render(form, document)


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_where_all_findings_are_rounding_none_is_a_culprit(form: str) -> None:
    """Seven MatMul, each "rounding, not a bug", were "wrong: 1 of 27 nodes …; 6 more findings"."""
    document = RUNS["culprits"]()
    for finding in document["findings"]:
        finding["rounding"] = True
    nodes = [node for finding in document["findings"] for node in finding["nodes"]]
    assert problem(document) == ""
    text = " ".join(html.unescape(render(form, document)).replace("`", "").split())
    assert "not a bug" in text and ", ".join(nodes) in text
    assert "smallest failing" not in text
    document["findings"][1]["rounding"] = False
    assert "smallest failing" in render(form, document)


def test_nan_comes_before_a_relative_error() -> None:
    document = RUNS["culprits"]()
    document["findings"][1]["verdict"]["outputs"][0]["errors"]["max_rel"] = 1.8e-7
    assert "1.8e-07" not in render("html", document) and "NaN" in render("html", document)


def test_prediction_is_called_unchanged_or_changed() -> None:
    assert describe_prediction(1.0, 1.0) == "prediction unchanged"
    assert describe_prediction(0.5, 1.0).startswith("prediction changed: ")


def inner(label: str, says: str, **more: Any) -> dict[str, Any]:
    evidence = [{"kind": "conclusion", "says": says}]
    told = {
        "kind": "culprit",
        "signature": "mismatch",
        "certified": True,
        "case": None,
        "evidence": evidence,
    }
    return {"nodes": [label], "ops": ["Tanh"], **told, **more}


def body(name: str, *findings: dict[str, Any]) -> dict[str, Any]:
    told = {"iteration": None, "iterations": None, "outcome": "disagree", "report": None, "why": ""}
    return {"body": name, "findings": list(findings), **told}


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_the_innermost_certified_findings_give_the_headline_and_the_conclusion(form: str) -> None:
    """What goes wrong is diluted on its way out of a body, where rounding may seem to explain
    it."""
    document = RUNS["culprit"]()
    (finding,) = document["findings"]
    deep = body("if1/then_branch", inner("if1/then_branch/tanh", "full precision is as wrong"))
    found = body(
        "loop1/body@3",
        inner("if1", "probably rounding", inside=deep),
        inner("loop1/body@3/n", "another"),
    )
    finding["inside"] = found
    assert problem(document) == ""
    text = " ".join(html.unescape(render(form, document)).replace("`", "").split())
    assert has_line(text, "in it", "if1/then_branch/tanh (Tanh)", "loop1/body@3/n (Tanh)")
    assert deep["findings"][0]["evidence"][0]["says"] in text and "probably rounding" not in text
    finding["inside"] = body("loop1/body@3", inner("if1", "probably rounding", certified=False))
    assert not has_line(render(form, document).replace("`", ""), "in it loop1")


@pytest.mark.parametrize("status", ["fail", "unresolved"])
def test_outputs_agree_is_not_said_of_a_wrong_output_beside_an_empty_one(status: str) -> None:
    document = RUNS["culprit"]()
    document["whole"].update(status=status, mute={"e": "the shape is 1×0"})
    says = answer(from_json(BisectDocument, document)).says
    assert says.endswith("; the outputs agree") == (status == "unresolved")


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_empty_text_of_a_document_is_no_name(form: str) -> None:
    document = RUNS["culprit"]()
    document["samples"] = [""]
    document["findings"][0]["inside"] = body("if1/then_branch")
    assert problem(document) == ""
    text = html.unescape(render(form, document)).replace("`", "")
    assert has_line(text, "if1/then_branch: nothing")
    assert "(no name)" not in text and "samples" not in text


def test_findings_inside_are_read_from_older_documents() -> None:
    document = RUNS["culprit"]()
    before = {**body("loop1/body@3"), **inner("loop1/body@3/n", "")}
    del before["findings"]
    document["findings"][0]["inside"] = before
    assert has_line(render("text", document), "inside", "loop1/body@3", "loop1/body@3/n (Tanh)")


def test_the_output_whose_shape_is_wrong_is_named() -> None:
    """The largest error may be another output's."""
    document = RUNS["culprit"]()
    (finding,) = document["findings"]
    verdict = finding["verdict"]
    shape = {
        **verdict["outputs"][0],
        "name": "present",
        "why": "1×4 where 4×4 was expected",
        "signature": "shape",
    }
    verdict |= {"why": shape["why"], "outputs": [*verdict["outputs"], shape]}
    assert f"present: {shape['why']}\n" in render("text", document)


@pytest.mark.parametrize("share", [-1.79, 6.59])
def test_no_share_is_negative_or_beyond_all(share: float) -> None:
    document = RUNS["culprit"]()
    document["findings"][0]["explains"] = share
    assert f"{share:.0%}".replace("%", " %") not in render("text", document)
    assert "errors cancel" in render("text", document)


def test_refusal_is_not_called_wrong() -> None:
    document = RUNS["culprit"]()
    document["findings"][0]["signature"] = "refused"
    assert answer(from_json(BisectDocument, document)).says.startswith("refused: ")
    document["findings"] = [document["findings"][0], copy.deepcopy(document["findings"][0])]
    assert has_line(answer(from_json(BisectDocument, document)).says, "2 of 27", "2")
    document["findings"][1]["signature"] = "throws"
    for signature, word in (("mismatch", "wrong"), ("refused", "refused")):
        document["whole"]["signature"] = signature
        assert answer(from_json(BisectDocument, document)).says.startswith(f"{word}: "), signature
