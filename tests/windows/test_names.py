"""Names that Windows cannot have, `a:b` or `CON`: files get safe names, and are found again by the
real ones.

Runs on every system, since a folder that one writes is read on another.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from subgraph.cases.zip_archive import require_names
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.run_command import COMMAND, PATIENCE, environment, in_process, subcut, tree

ODD = [
    *"a:b what? * CON nul.txt trailing.".split(),
    "blank ",
    "Same",
    "same",
    "x" * 300,
    r"C:\x",
    r"\\host\share",
    r"..\up",
    "file:stream",
    "/abs",
    "<|>",
    '"',
]
CANDIDATE = """
import onnx, onnxruntime

def load(model, options):
    network = onnx.load(model)
    for node in network.graph.node:
        if node.name == "nul.txt":
            node.op_type = "Exp"
    session = onnxruntime.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds)))
"""  # noqa: E501


@pytest.fixture(params=["short", "long"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model whose nodes and tensors are named so; `long`: its path, too long to
    stand in on Windows."""
    folder = tmp_path.joinpath(*(["d" * 60] * 5 if request.param == "long" else ["d"]))
    folder.mkdir(parents=True)
    try:
        folder.resolve()
    except OSError:
        pytest.skip("wine 8 resolves no path of more than 260 characters")
    network = onnx.load(chain(tmp_path / "chain.onnx", [*ODD, "last"], ODD, "in:0", "out*"))
    for node in network.graph.node:
        node.op_type = "Softplus"
    onnx.save(network, folder / "odd.onnx")
    np.save(folder / "x.npy", np.array([[0.1, 0.2, 0.3]], np.float32))
    (folder / "wrong.py").write_text(CANDIDATE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
def test_search_and_what_is_made_of_it(place: Path) -> None:
    model = (place / "odd.onnx", "-i", place / "x.npy")
    candidate = ("-c", place / "wrong.py", "-q")
    found = in_process("bisect", *model, *candidate, "-o", place / "out")
    assert found.exit_code == 1
    (finding,) = found.document["findings"]
    assert finding["nodes"] == ["nul.txt"]
    assert in_process("replay", finding["case"], *candidate).exit_code == 1
    outcome = in_process("bundle", Path(finding["case"]).parent, "-o", place / "bundle.zip", "-q")
    assert outcome.exit_code == 0
    outcome = in_process("replay", place / "bundle.zip", *candidate, "-o", place / "unpacked")
    assert outcome.exit_code == 1
    require_names(list(tree(place)), "the folder")


def test_every_tensor_is_found_again(place: Path) -> None:
    model = (place / "odd.onnx", "-i", place / "x.npy")
    out = ("-o", place / "out")
    found = in_process("cut", *model, "-s", "CON", "-e", "trailing.", "--dump", "all", *out)
    assert found.exit_code == 0
    (case,) = (path.parent for path in place.glob("out/*/manifest.json"))
    assert in_process("export", case, "-o", place / "exported", "--format", "npy").exit_code == 0
    # the input, and a tensor per node
    assert len({path.stem for path in place.glob("exported/**/*.npy")}) == 4
    assert in_process("dump", *model, "--all", "-o", place / "dumped").exit_code == 0
    compared = in_process("compare", *model, "--recorded", place / "dumped", *out)
    assert compared.exit_code == 0 and "not seen" not in compared.text, compared.text
    require_names(list(tree(place)), "the folder")


@pytest.mark.skipif(sys.platform != "win32", reason="other systems take paths of 4,096 characters")
def test_path_that_is_too_long(tmp_path: Path) -> None:
    """Where LongPathsEnabled is not set, as under wine 8, which knows no such paths."""
    model = chain(tmp_path / "chain.onnx", ["a", "b"])
    long = tmp_path.joinpath(*["d" * 60] * 5)
    done = subcut("cut", model, "-s", "a", "-e", "a", "-o", long, cwd=tmp_path)
    assert done.code == 0 or has_line(done.err, f"{len(str(long))}", "characters"), done.err


@pytest.mark.turns(3)
@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "ascii"])
@pytest.mark.parametrize("words", [("--help",), ("-s", "卷积→1", "-e", "last", "--dry-run")])
def test_terminal_without_the_characters(
    encoding: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    chain(tmp_path / "m.onnx", ["卷积→1", "last"])
    plain = environment({"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=tmp_path,
        env=plain,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done
    said = (done.stdout + done.stderr).decode(encoding)
    assert words == ("--help",) or "??->1" in said, said
