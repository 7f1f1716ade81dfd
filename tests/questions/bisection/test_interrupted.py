"""Ctrl-C in a search from Python: the result so far is written, and then the interruption goes on.

Covers `questions.bisection.bisection`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from subgraph import results
from tests.helpers.run_command import subcut

SEARCH = """
import subgraph
if __name__ == "__main__":
    search = subgraph.bisect("model.onnx", "slow.py", "input.npy")
    try:
        for step in search:
            print(step.number, flush=True)
    except KeyboardInterrupt:
        print("then", search.result.says)
"""


@pytest.mark.slow
@pytest.mark.posix("a signal to one process")
def test_an_interrupted_search_leaves_its_result(tmp_path: Path) -> None:
    subcut("demo", ".", cwd=tmp_path)
    slow = (tmp_path / "wrong.py").read_text().replace("    network =", "    sleep(0.5); network =")
    (tmp_path / "slow.py").write_text(
        slow.replace("import onnx\n", "import onnx\nfrom time import sleep\n", 1)
    )
    (tmp_path / "search.py").write_text(SEARCH)
    process = subprocess.Popen(
        [sys.executable, "search.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    while process.stdout.readline().strip() != "2":
        assert process.poll() is None
    time.sleep(0.25)  # in the next run
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-1].startswith("then ") and process.returncode == 0, out
    document = results.read(tmp_path / "subcut_out" / "bisect-slow.py" / "run.json", "")
    assert document.exit_code == 1 and len(document.search.steps) < 10  # type: ignore[union-attr]
