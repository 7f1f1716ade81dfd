"""A run result becomes JSON for the store and comes back; results of groups of samples become
one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from subgraph.documents import to_json
from subgraph.errors import OutputError
from subgraph.runtime.command_line import digest_contents
from subgraph.runtime.protocol import describe_process_end
from subgraph.runtime.run_result import RunResult, from_entry, list_keys, load_or_run, merge
from subgraph.storage.digest import digest
from subgraph.storage.store import Store, StoreEntry
from subgraph.storage.tensors import Record
from subgraph.verdict import Signature, Status, Verdict


def record(name: str, file: str) -> Record:
    return Record(name, "tensor", "float32", ((2, 3),), (file,))


def result(*files: str) -> RunResult:
    return RunResult(
        tuple({"y": record("y", f)} for f in files), (("other",),) * len(files), None, 0.5, 0.25
    )


def test_result_comes_back_with_absolute_paths(tmp_path: Path) -> None:
    document = json.loads(json.dumps(to_json(result("s0-o0.npy").to_stored())))
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
    verdict = Verdict(
        status, signature, "why", (), describe_process_end(["last line"], "SIGABRT"), 0.5, 0.0
    )
    failed = RunResult(failure=verdict, build=0.5)
    document = json.loads(json.dumps(to_json(failed.to_stored())))
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


USED = digest("used")
FRESH = digest("fresh")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as store:
        yield store


def never(folder: Path) -> RunResult:
    raise AssertionError(folder)


def test_result_is_stored_under_the_first_key(store: Store) -> None:
    result, key = load_or_run(store, [USED, FRESH], lambda folder: RunResult(build=1.0))
    assert (result.build, result.stored, key) == (1.0, False, USED)
    result, key = load_or_run(store, [USED, FRESH], never)
    assert (result.build, result.stored, key) == (1.0, True, USED)


def test_the_result_of_a_fresh_process_serves_all_and_not_the_other_way_round(store: Store) -> None:
    keys = {
        fresh: list_keys(lambda fresh: FRESH if fresh else USED, fresh=fresh)
        for fresh in (False, True)
    }
    load_or_run(store, keys[False], lambda folder: RunResult(build=1.0))
    assert load_or_run(store, keys[True], lambda folder: RunResult(build=2.0))[0].build == 2.0
    assert load_or_run(store, keys[False], never)[0].build == 1.0
    other = [digest("other"), FRESH]
    assert load_or_run(store, other, never)[0].build == 2.0


def test_result_is_not_used_after_a_file_that_was_imported_has_changed(
    store: Store, tmp_path: Path
) -> None:
    """Nor lost: for the old contents it is used again."""
    helper = tmp_path / "helper.py"

    def ask(text: str, build: float) -> float:
        helper.write_text(text)
        run = RunResult(build=build, sources={str(helper): digest_contents(helper)})
        return load_or_run(store, [USED], lambda folder: run)[0].build

    assert [ask("ERR = 0", 1.0), ask("ERR = 0", 2.0)] == [1.0, 1.0]
    assert [ask("ERR = 1", 3.0), ask("ERR = 1", 4.0)] == [3.0, 3.0]
    assert [ask("ERR = 2", 5.0), ask("ERR = 0", 6.0), ask("ERR = 2", 7.0)] == [5.0, 1.0, 5.0]
    helper.unlink()
    assert load_or_run(store, [USED], lambda folder: RunResult(build=8.0))[0].build == 8.0


def test_where_the_disk_is_full_it_runs_again_in_a_temporary_folder(store: Store) -> None:
    folders = []

    def run(folder: Path) -> RunResult:
        folders.append(folder)
        if len(folders) == 1:
            raise OutputError("No space left on device")
        return RunResult(build=1.0)

    result, _ = load_or_run(store, [USED], run)
    assert result.build == 1.0
    assert store.root in folders[0].parents and store.root not in folders[1].parents
