"""`--memory` with a model of five times as much: real commands on 2 GB of weights, which take no
disk.

The weights are holes in their files, that is, zeros: what is read and held is as much as of any
others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fixtures import ROOT, decoder
from tests.helpers.run_command import environment, subcut

MEMORY = 400 << 20
WORDS = ("m/model.onnx", "--shape", "h0=1x4x1280", "--memory", "400M", "-o", "out")
# The largest sizes that the system has recorded of a process that ran the command, and of those
# that it started.
PEAKS = r"""
import json, pathlib, re, resource, sys
from tests.helpers.run_command import in_process
in_process(*sys.argv[1:])
own = re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]
print(json.dumps({"subcut": int(own) << 10, "reference": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10}))
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.linux("reads /proc")
def test_two_gigabytes_in_four_hundred_megabytes(tmp_path: Path) -> None:
    decoder.write(tmp_path / "m", 40, 1280, 5120, sparse=True)
    assert sum(file.stat().st_size for file in (tmp_path / "m").iterdir()) > 5 * MEMORY
    line = [sys.executable, "-c", PEAKS, "dump", *WORDS, "h0", "h20", "h40"]
    env = environment({"PYTHONPATH": str(ROOT)})
    done = subprocess.run(line, cwd=tmp_path, env=env, stdout=subprocess.PIPE, check=True)
    peaks = json.loads(done.stdout)
    assert max(peaks.values()) < 1.1 * MEMORY, peaks
    assert peaks["reference"] > MEMORY / 2, "it could take more at once"
    files = sorted((tmp_path / "out").rglob("*.npy"))
    # zeros add nothing to h0
    assert len(files) == 3 and np.array_equal(np.load(files[0]), np.load(files[2]))


@pytest.mark.slow
def test_candidate_over_the_memory_limit_is_compared_node_by_node(tmp_path: Path) -> None:
    decoder.write(tmp_path / "m", 3, 1280, 5120, sparse=True)
    shape = ("--shape", "h0=1x4x1280", "--criterion", "numpy:rtol=1e-2", "--at", "g*")
    done = subcut(
        "compare", "m/model.onnx", "-c", "ort", *shape, "--memory", "400M", "--json", cwd=tmp_path
    )
    document = done.document
    assert document["whole"]["status"] == "unresolved" and "400" in document["whole"]["why"]
    assert {row["alone"]["status"] for row in document["rows"]} == {"agree"}
    assert not document["agree"]
