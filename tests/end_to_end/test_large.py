"""`--memory` with a model of five times as much: real commands on 2 GB of weights, which take no disk.

The weights are holes in their files, that is, zeros: what is read and held is as much as of any others.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.large import Command
from fixtures import decoder
from tests.helpers.run_command import SUBCUT, environment, subcut

MEMORY = 400 << 20
WORDS = ("m/model.onnx", "--shape", "h0=1x4x1280", "--memory", "400M", "-o", "out")


@pytest.mark.slow
def test_two_gigabytes_in_four_hundred_megabytes(tmp_path: Path) -> None:
    decoder.write(tmp_path / "m", 40, 1280, 5120, sparse=True)
    assert sum(file.stat().st_size for file in (tmp_path / "m").iterdir()) > 5 * MEMORY
    seen = Command()
    with subprocess.Popen([SUBCUT, "dump", *WORDS, "h0", "h20", "h40"], cwd=tmp_path, env=environment()) as running:
        while running.poll() is None:
            seen.watch(running.pid)
            time.sleep(0.01)
    assert running.returncode == 0
    sizes = {role: resident for role, (resident, _) in seen.peaks.items()}
    assert sizes.keys() == {"subcut", "reference"} and max(sizes.values()) < 1.1 * MEMORY, sizes
    assert sizes["reference"] > MEMORY / 2, "it could take more at once"
    files = sorted((tmp_path / "out").rglob("*.npy"))
    assert len(files) == 3 and np.array_equal(np.load(files[0]), np.load(files[2]))  # zeros add nothing to h0


@pytest.mark.slow
def test_a_candidate_that_cannot_take_it_is_compared_node_by_node(tmp_path: Path) -> None:
    decoder.write(tmp_path / "m", 3, 1280, 5120, sparse=True)
    shape = ("--shape", "h0=1x4x1280", "--criterion", "numpy:rtol=1e-2", "--at", "g*")
    done = subcut("compare", "m/model.onnx", "-c", "ort", *shape, "--memory", "400M", "--json", cwd=tmp_path)
    document = done.document
    assert "the candidate may use 400: it was not run" in document["whole"]["why"]
    assert {row["alone"]["status"] for row in document["rows"]} == {"agree"}
    assert not document["agree"]
