"""A run result becomes JSON for the store and comes back; results of groups of samples become
one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from subgraph.documents import to_json
from subgraph.runtime.protocol import process_end
from subgraph.runtime.run_result import RunResult, from_entry, merge
from subgraph.storage.store import StoreEntry
from subgraph.storage.tensors import Record
from subgraph.verdict import Signature, Status, Verdict


def record(name: str, file: str) -> Record:
    return Record(name, "tensor", "float32", ((2, 3),), (file,))


def result(*files: str) -> RunResult:
    return RunResult(
        tuple({"y": record("y", f)} for f in files), (("other",),) * len(files), None, 0.5, 0.25
    )


def test_result_comes_back_with_absolute_paths(tmp_path: Path) -> None:
    document = json.loads(json.dumps(result("s0-o0.npy").to_json()))
    assert document == {
        "build": 0.5,
        "run": 0.25,
        "samples": [
            {
                "tensors": [
                    to_json(record("y", "s0-o0.npy")) | {"shapes": [[2, 3]], "files": ["s0-o0.npy"]}
                ],
                "others": ["other"],
            }
        ],
        "failure": None,
        "made": 0.0,
        "sources": {},
    }
    stored = from_entry(StoreEntry(document, tmp_path))
    assert stored == replace(result((tmp_path / "s0-o0.npy").as_posix()), stored=True)


@pytest.mark.parametrize("signature", [Signature.CRASH, Signature.TIMEOUT, Signature.REFUSED])
def test_failure_comes_back(signature: Signature, tmp_path: Path) -> None:
    status = Status.UNRESOLVED if signature is Signature.REFUSED else Status.FAIL
    verdict = Verdict(status, signature, "why", (), process_end(["last line"], "SIGABRT"), 0.5, 0.0)
    failed = RunResult(failure=verdict, build=0.5)
    document = json.loads(json.dumps(failed.to_json()))
    assert (
        list(document["failure"]) == ["status", "signature", "why", "process"]
        and document["samples"] == []
    )
    assert from_entry(StoreEntry(document, tmp_path)) == replace(failed, stored=True)


def test_groups_of_samples_become_one_result() -> None:
    merged = merge(
        [([2, 0], result("c.npy", "a.npy")), ([1], replace(result("b.npy"), stored=True))], 3
    )
    assert [sample["y"].files for sample in merged.tensors] == [("a.npy",), ("b.npy",), ("c.npy",)]
    assert (merged.build, merged.run, merged.stored) == (1.0, 0.5, False)
