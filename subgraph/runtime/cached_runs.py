"""A run's result: loaded from the store, or run now and stored."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.errors import OutputError, Unreachable
from subgraph.runtime.command_line import contents
from subgraph.runtime.run_result import RunResult, from_entry, unresolved
from subgraph.storage.digest import digest
from subgraph.storage.store import Store, StoreEntry


def load_or_run(
    store: Store, keys: Sequence[str], run: Callable[[Path], RunResult]
) -> tuple[RunResult, str]:
    """The result under the first of `keys` that the store has, else that of a new run; and the key
    that it has.

    A new result is stored under `keys[0]`, or the key that follows from it where files have changed
    since. `run(folder)` writes tensors into `folder` and returns what `run_model` does. Where the
    store's disk is full, it is called again with another folder: a result that cannot be stored is
    still a result. Where the machine that runs the candidate does not answer, the result is
    unresolved and not stored.

    Raises:
        OutputError: not even a temporary folder can be written. What `run` raises.
    """
    places = []
    for key in keys:
        entry, place = _find(store, key)
        if entry is not None:
            return from_entry(entry), place
        places.append(place)
    folder = store.new_folder()
    try:
        try:
            result = run(folder)
        except OutputError:
            folder = store.new_folder(after=OSError(errno.ENOSPC, "No space left on device"))
            result = run(folder)
    except Unreachable as e:  # nothing is known, so nothing is stored
        return unresolved(e.what), places[0]
    return replace(
        from_entry(store.put(places[0], result.to_json(), folder)), stored=False
    ), places[0]


def _find(store: Store, key: str) -> tuple[StoreEntry | None, str]:
    """The entry under a key that is good still, and its key; without one, the key under which a new
    one belongs.

    An entry is not good once a file that the candidate had imported has changed; the result for the
    new contents stands under a key that follows from the old key and these contents.
    """
    while (entry := store.get(key)) is not None:
        sources = entry.document.get("sources", {})
        now = {path: contents(Path(path)) for path in sources}
        if now == sources:
            return entry, key
        key = digest(key, now)
    return None, key


def keys_to_try(key: Callable[[bool], str], *, fresh: bool) -> list[str]:
    """Keys for `load_or_run`, where `key(fresh)` names a result by whether its process had run
    nothing before.

    A result of a fresh process serves every caller; that of a used process serves only callers who
    do not ask for a fresh one.
    """
    return [key(True)] if fresh else [key(False), key(True)]
