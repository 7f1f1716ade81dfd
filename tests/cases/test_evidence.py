"""What folders around cases share; the folders themselves are covered by the tests of bisect, sweep
and recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from subgraph.cases import evidence
from subgraph.storage.tensors import save


def test_folder_per_sample_where_there_are_several() -> None:
    parent = Path("case/candidate")
    assert evidence.list_sample_folders(parent, ["cat"]) == [parent]
    assert evidence.list_sample_folders(parent, ["cat", "a/b"]) == [parent / "cat", parent / "a_b"]


def test_candidate_tensors_are_named_as_the_outputs_are(tmp_path: Path) -> None:
    """A sequence of one tensor keeps its number, as in `outputs/`, or repro.py would not find
    it."""
    one = np.ones(2, np.float32)
    records = [save("t", one, "tensor(float)", tmp_path, "t")]
    records += [
        save(n, [one] * k, "seq(tensor(float))", tmp_path, n) for n, k in (("s", 1), ("m", 2))
    ]
    tensors = {r.name: r.rebase(str(tmp_path)) for r in records}
    stems = {r.name: f"{r.name}-stem" for r in records}
    evidence.copy_tensors(tensors, stems, tmp_path / "candidate")
    files = sorted(p.name for p in (tmp_path / "candidate").iterdir())
    assert files == ["m-stem#0.npy", "m-stem#1.npy", "s-stem#0.npy", "t-stem.npy"]
