"""A run's result: loaded from the store, or run now and stored."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.errors import OutputError
from subgraph.runtime.run_result import RunResult, from_entry
from subgraph.storage.store import Store


def load_or_run(store: Store, keys: Sequence[str], run: Callable[[Path], RunResult]) -> tuple[RunResult, str]:
    """The result under the first of `keys` that the store has, else that of a new run; and the key that it has.

    A new result is stored under `keys[0]`. `run(folder)` writes tensors into `folder` and returns what
    `run_model` does. Where the store's disk is full, it is called again with a temporary folder: a result that cannot
    be stored is still a result.

    Raises:
        OutputError: not even a temporary folder can be written. What `run` raises.
    """
    for key in keys:
        if (entry := store.get(key)) is not None:
            return from_entry(entry), key
    folder = store.new_folder()
    try:
        result = run(folder)
    except OutputError:
        folder = store.new_folder(after=OSError(errno.ENOSPC, "No space left on device"))
        result = run(folder)
    return replace(from_entry(store.put(keys[0], result.to_json(), folder)), stored=False), keys[0]


def keys_to_try(key: Callable[[bool], str], *, fresh: bool) -> list[str]:
    """Keys for `load_or_run`, where `key(fresh)` names a result by whether its process had run nothing before.

    A result of a fresh process serves every caller; that of a used process serves only callers who do not ask for a
    fresh one.
    """
    return [key(True)] if fresh else [key(False), key(True)]
