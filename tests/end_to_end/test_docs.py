"""The pages of docs/ are correct: their commands print what is shown, each command line exists,
each link leads on."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import typer

import subgraph
from docs import command_pages
from fixtures import ROOT, board, device, drawn, recordings
from subgraph import cli
from subgraph.project import load
from subgraph.runtime.candidate import parse
from tests.helpers.facts import has_line
from tests.helpers.pages import DOCS, PAGES, Command, blocks, console, files, run_page, written
from tests.helpers.run_command import in_process, subcut

pytestmark = pytest.mark.small_inputs
# Pages whose commands need libraries that may not be installed.
NEEDS = {
    DOCS / "from-pytorch.md": ("torch", "onnxscript"),
    DOCS / "from-tflite.md": ("ai_edge_litert",),
    DOCS / "from-tensorflow.md": ("tensorflow",),  # what it shows is run by `make recipes`
}
FROM_OTHER_TOOLS = sorted(page for page in DOCS.glob("from-*.md") if page not in NEEDS)
# Command lines that no test runs: they install something, or need what only their reader has.
NOT_RUN = re.compile(
    r"pip install|cp -r docs/candidates/|python3\.1[12] -m venv|\.venv/bin/pip|ssh |make |adb "
    r"|unzip |aarch64-|#|$"
)
ALL_TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "AGENTS", "CONTRIBUTING"))]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m fixtures.recordings` writes."""
    place = tmp_path_factory.mktemp("recordings")
    recordings.write(place)
    return place


def _prepare(page: Path, folder: Path, operator_tests: Path) -> None:
    """What a page's reader has before the first command, besides the files that the page shows."""
    text = page.read_text(encoding="utf-8")
    if "board/" in text:
        device.board(folder / "board")
    elif page.stem != "start" and page not in NEEDS:
        in_process("demo", folder)
    if page.stem == "from-tflite":
        shutil.copytree(ROOT / "fixtures" / "tflite", folder, dirs_exist_ok=True)
    if "optimized.onnx" in text:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        onnxruntime.InferenceSession(
            folder / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
    if "subcut sweep" in text:
        shutil.copytree(operator_tests, folder / "subcut_out" / ".store", copy_function=os.link)
    if "logits.csv" in text:
        (folder / "column").mkdir()
        (folder / "column" / "logits.csv").write_text("1,3\n0.5\n2\n-1\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if console(p.read_text(encoding="utf-8"))], ids=lambda p: p.stem
)
def test_each_command_of_a_page_prints_what_is_shown(
    page: Path, recorded: Path, operator_tests: Path, tmp_path: Path
) -> None:
    if missing := [name for name in NEEDS.get(page, ()) if not find_spec(name)]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    if page in FROM_OTHER_TOOLS:
        folder = recorded / page.stem.removeprefix("from-")
    else:
        folder = tmp_path
        _prepare(page, folder, operator_tests)
    run_page(page.read_text(encoding="utf-8"), folder)


# What the words of the tables are in the folders that `fixtures.recordings` writes.
WALKS = {
    "mindstudio": {"MODEL": "resnet50.onnx", "A": "res3c_branch2b", "B": "res3c_branch2b_relu"},
    "tnn": {"MODEL": "net.onnx", "A": "/block6/conv30", "B": "/block6/relu31"},
    "horizon": {"MODEL": "net.onnx"},
    "tpu-mlir": {"MODEL": "net.onnx", "NET_tpu_outputs.npz": "net_int8_tpu_outputs.npz"},
}


# How `compare` reads the recording, if a page shows nothing but an option of it.
RECORDED = {
    "mindstudio": "compare MODEL --recorded DUMP -i INPUT",
    "tnn": "compare MODEL --recorded DUMP",
    "horizon": "compare MODEL --recorded DUMP -i INPUT",
    "tpu-mlir": "compare MODEL --recorded NET_tpu_outputs.npz -i in.npz",
}
LINE = re.compile(r"subcut .*|--(?:criterion|precision|align) \S.*", re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("tool", WALKS)
def test_each_command_of_a_table_or_sentence_runs(
    tool: str, recorded: Path, tmp_path: Path
) -> None:
    """What those who come from another tool paste; the console blocks run elsewhere."""
    shutil.copytree(recorded / tool, tmp_path, dirs_exist_ok=True)
    page = (DOCS / f"from-{tool}.md").read_text(encoding="utf-8")
    texts = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    lines = [text for text in texts if LINE.fullmatch(text) and not re.search("…|samples/", text)]
    files = sorted(f for f in tmp_path.glob("dump/*") if f.suffix != ".json")
    for number, line in enumerate(lines):
        is_option = line.startswith("--")
        words = shlex.split(f"{RECORDED[tool]} {line}" if is_option else line.partition(" ")[2])
        known = {"DUMP": "dump", "INPUT": "data.bin", "DIR": f"exported-{number}", **WALKS[tool]}
        known["FILE"] = str(files[0]) if "export" in words else "rows.csv"
        known |= {"digits:N": "digits:2", "cmd:./run.sh {model} {inputs} {outputs}": "board.py"}
        ended = subcut(*(known.get(word, word) for word in words), cwd=tmp_path)
        assert ended.code in (0, 1), (words, ended.err)
    assert len(lines) >= 2


@pytest.mark.turns(3)
@pytest.mark.parametrize("page", ALL_TEXTS, ids=lambda p: p.stem)
def test_each_command_line_of_a_page_exists(page: Path) -> None:
    """Options and arguments, as the command line itself reads them; nothing is run."""
    for command in written(page.read_text(encoding="utf-8")):
        _read(command)


def _read(command: Command) -> None:
    line = re.sub(r"[\[\]…]", " ", command.line.replace("MODEL ", "m.onnx "))
    words = shlex.split(re.sub(r" N\b", " 1", line), comments=True)[1:]
    if not words or {"COMMAND", "--help", "--version", "--install-completion", "--skill"} & {
        *words
    }:
        return
    group = typer.main.get_command(cli.app)
    assert isinstance(group, cli.Group)
    try:
        context = group.make_context("subcut", words)
        while isinstance(context.command, typer.core.TyperGroup) and (
            given := [*context._protected_args, *context.args]
        ):
            name, inner, rest = context.command.resolve_command(context, given)
            assert inner is not None
            context = inner.make_context(name, rest, parent=context)
    except (typer.TyperException, subgraph.SubcutError) as e:
        # a command's name alone, in a sentence
        assert str(e).startswith("Missing parameter"), f"{command.line}: {e}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_command_lines_that_do_not_run_are_of_known_kinds(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "sh"):
        for line in block.splitlines():
            assert line.startswith("subcut ") or NOT_RUN.match(line), line


@pytest.mark.parametrize("page", ALL_TEXTS, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Also where a page is read as a file, without the site; `make docs` checks links to
    headings."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#]+)", text):
        if link.startswith("https://"):
            continue
        target = (page.parent / link).resolve()
        if target.parent == DOCS / "commands":
            assert target.stem in {*cli.COMMANDS, "index"}, link
        else:
            assert target.exists(), link
            assert page.parent == ROOT or DOCS in target.parents, f"{link} leaves the site"


def test_there_is_a_page_per_command_with_all_its_options() -> None:
    pages = command_pages.pages()
    assert pages.keys() == {f"{name}.md" for name in (*cli.COMMANDS, "index")}
    for option in ("--candidate SPEC", "--recorded [LABEL[:int8]=]DIR", "--max-time 2h"):
        assert f"{option}`\n: " in pages["bisect.md"], option
    assert "## subcut manual take" in pages["manual.md"]
    assert all(f"({name}.md)" in pages["index.md"] for name in cli.COMMANDS)


def test_the_api_reference_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in set(subgraph.__all__) - {"__version__"}:
        is_error = (
            issubclass(kind, Exception)
            if isinstance(kind := getattr(subgraph, name), type)
            else False
        )
        assert is_error or f"subgraph.{name}\n" in page, name


def test_the_project_file_of_the_page_on_candidates_is_understood(tmp_path: Path) -> None:
    (block,) = blocks((DOCS / "candidates.md").read_text(encoding="utf-8"), "toml")
    (tmp_path / "subcut.toml").write_text(block)
    npu = parse("npu", load(tmp_path))
    assert (npu.precision, npu.multi, npu.timeout, npu.memory) == ("fp16", True, 900.0, 8 << 30)


@pytest.mark.slow
def test_the_workflow_of_the_page_on_ci_runs(tmp_path: Path) -> None:
    """Its `run:` lines as a script, where the page's reader has the demo; what it uploads is there
    then."""
    page = (DOCS / "scripts.md").read_text(encoding="utf-8")
    (workflow,) = blocks(page, "yaml")
    if find_spec("yaml"):  # of the documentation's libraries
        steps = import_module("yaml").safe_load(workflow)["jobs"]["agree"]["steps"]
        assert [step["run"] for step in steps if "run" in step] == re.findall(
            r"- run: (.*)", workflow
        )
    uses = re.findall(r"uses: (.*)", workflow)
    assert uses
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in uses)
    assert "permissions:\n  contents: read\n" in workflow
    in_process("demo", tmp_path / "demo")
    settings = next(block for block in blocks(page, "toml") if block.startswith("# subcut.toml"))
    commands = [line for line in re.findall(r"- run: (.*)", workflow) if not NOT_RUN.match(line)]
    shown = (
        "…\nwrong: 2 of 28 nodes: stem/pad, stem/pool (Pad, AveragePool)\n…\nFAILED"
        " subcut.toml::model.onnx[wrong.py] …"
    )
    script = "".join(f"```console\n$ {command}\n{shown}\n```\n" for command in commands)
    run_page(f"```toml\n{settings}```\n{script}", tmp_path / "demo")
    (upload,) = re.findall(r"path: \|\n((?: {12}.*\n)+)", workflow)
    assert all(list((tmp_path / "demo").glob(pattern)) for pattern in upload.split())


def test_the_example_of_a_command_is_short() -> None:
    script = files((DOCS / "candidates.md").read_text(encoding="utf-8"))["run.py"]
    assert len(script.splitlines()) <= 25


@pytest.mark.parametrize("page", FROM_OTHER_TOOLS, ids=lambda p: p.stem)
def test_page_for_another_tools_users_has_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.splitlines()[2] == "| you do today | with subcut |"
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "An example",
        "What differs",
        "What is not covered",
    ]
    assert "not run" in text.lower() or has_line(text, "a board")
    assert 50 <= len(text.splitlines()) <= 110
    assert len(console(text)) >= 3


def test_the_board_is_right_up_to_its_fault() -> None:
    """So that what the pages find is what was put there."""
    model = device.net()
    fed = {"data": device.fed()}
    names = [node.output[0] for node in model.graph.node]
    right = board.results(recordings.all_outputs(model, names), fed)
    wrong = board.results(
        recordings.all_outputs(board.altered(model, {"pads": "/block6/conv30"}), names), fed
    )
    first = next(n for n in names if not np.array_equal(right[n], wrong[n]))
    assert first == "/block6/conv30_output_0"
    untouched = board.results(
        recordings.all_outputs(board.altered(model, {"pads": "elsewhere"}), names), fed
    )
    assert all(np.array_equal(right[n], untouched[n]) for n in names)


def test_pictures_show_the_text_of_now() -> None:
    stored = json.loads(drawn.DIGESTS.read_text(encoding="utf-8"))
    assert stored == drawn.digests(), "take the pictures again: make picture"
