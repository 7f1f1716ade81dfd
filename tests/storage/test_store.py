"""Entries are got as they were put, or not at all: after damage, kills, evictions, full disks, with
other processes.

Covers `storage.store` and `storage.store_entry`.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import subgraph
from subgraph.errors import OutputError
from subgraph.storage import store_entry
from subgraph.storage.digest import digest
from subgraph.storage.folders import NEW, make_safe_names
from subgraph.storage.store import Store, StoreEntry
from subgraph.storage.store_entry import NAME
from subgraph.system import Lock
from tests.helpers.disks import limit_files
from tests.helpers.facts import has_line
from tests.helpers.process_backends import until
from tests.helpers.run_command import PATIENCE, environment, tree

NOT_THERE = pytest.mark.posix("Windows has no such names, and no links or pipes for everybody")
PACKAGE = Path(subgraph.__file__).parent.parent
KEY = digest("key")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text(), JSON, max_size=4)
FILES = st.dictionaries(st.text(), st.binary()).map(
    lambda f: dict(zip(make_safe_names(f).values(), f.values(), strict=True))
)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The warnings."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log = logging.getLogger("subcut")
    handler = Lines(logging.WARNING)
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out/.store"


def put(
    store: Store, key: str, document: Mapping[str, Any] | None = None, **files: bytes
) -> StoreEntry:
    folder = store.new_folder()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return store.put(key, document or {}, folder)


def whole(entry: StoreEntry | None) -> dict[str, bytes]:
    """The files of an entry without the store's own."""
    assert entry is not None
    return {name: data for name, data in tree(entry.folder).items() if name != NAME}


def keys(root: Path) -> set[str]:
    return {place.name for place in root.glob("??/*")}


def tick(root: Path) -> None:
    """Wait until the clock that gives files their times has moved on: what is made from now on is
    newer."""
    clock = root.parents[1] / "clock"
    clock.touch()
    before = clock.stat().st_mtime_ns

    def moved() -> bool:
        os.utime(clock)
        return clock.stat().st_mtime_ns != before

    until(moved)
    clock.unlink()


def hidden(root: Path) -> list[Path]:
    return list(root.glob(f".*{NEW}"))


# ------------------------------------------------------------ put and get


@settings(max_examples=40)
@given(DOCUMENTS, FILES)
def test_entry_that_is_put_is_returned(document: dict[str, Any], files: dict[str, bytes]) -> None:
    assume(NAME not in files)
    with tempfile.TemporaryDirectory() as place:
        with Store(Path(place) / "store") as store:
            mine = put(store, KEY, document, **files)
            assert (mine.document, whole(mine)) == (document, files)
            assert store.get(KEY) == mine
        with Store(Path(place) / "store") as store:
            assert store.get(KEY) == mine
            assert whole(mine) == files


@pytest.mark.parametrize(
    "size", [0, 1, 4095, 4096, 4097, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1_000_001]
)
def test_files_of_any_size(size: int, root: Path) -> None:
    data = random.Random(size).randbytes(size)
    with Store(root) as store:
        put(store, KEY, a=data)
        assert whole(store.get(KEY)) == {"a": data}


def test_nothing_is_there_and_nothing_is_made(root: Path) -> None:
    with Store(root) as store:
        assert store.get(KEY) is None
    assert not root.parent.exists()


def test_the_folder_tells_others_that_it_is_a_cache(root: Path) -> None:
    with Store(root) as store:
        put(store, KEY)
    assert (
        (root / "CACHEDIR.TAG")
        .read_bytes()
        .startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    )
    assert (root / ".gitignore").read_text().splitlines()[-1] == "*"
    assert sorted(path.name for path in root.iterdir()) == sorted(
        [".gitignore", "CACHEDIR.TAG", KEY[:2]]
    )


def test_rooms_that_were_never_put_go(root: Path) -> None:
    with Store(root) as store:
        left = store.new_folder()
        empty = store.new_folder()
        assert left != empty
        (left / "a").write_bytes(b"x")
        assert len(hidden(root)) == 1
    assert hidden(root) == []
    assert not keys(root)


def test_closed_store_begins_anew(root: Path) -> None:
    store = Store(root)
    put(store, KEY, a=b"x")
    store.close()
    store.close()
    put(store, digest("other"))
    assert whole(store.get(KEY)) == {"a": b"x"}
    store.close()
    assert hidden(root) == []


def test_documents_are_copies(root: Path) -> None:
    given_: dict[str, Any] = {"list": [1]}
    with Store(root) as store:
        put(store, KEY, given_).document["list"].append(2)
        first = store.get(KEY)
        assert first is not None
        first.document["list"].append(3)
        assert store.get(KEY) == StoreEntry({"list": [1]}, first.folder)
    assert given_ == {"list": [1]}


def test_who_is_first_stays(root: Path) -> None:
    with Store(root) as one, Store(root) as two:
        first = put(one, KEY, {"who": 1}, a=b"1")
        assert put(two, KEY, {"who": 2}, b=b"2") == first
        assert whole(two.get(KEY)) == {"a": b"1"}
        assert [list((path / "rooms").iterdir()) for path in hidden(root)] == [[], []]


@pytest.mark.parametrize(
    "key", ["", "abc", "A" * 64, "../" * 8 + "a" * 40, KEY + "\n", KEY[:-1] + "g", "a" * 129]
)
def test_key_is_a_hash(key: str, root: Path) -> None:
    with Store(root) as store:
        for ask in (
            lambda: store.get(key),
            lambda: put(store, key),
            lambda: store.memo(key, lambda folder: {}),
        ):
            with pytest.raises(ValueError, match="key"):
                ask()


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"a": math.nan}, ValueError),
        ({"a": [math.inf]}, ValueError),
        ({"a": {1, 2}}, TypeError),
        ({"a": Path()}, TypeError),
        ({"a": np.float32(1)}, TypeError),
        ({(1, 2): 1}, TypeError),
    ],
)
def test_document_is_plain_json(
    document: dict[str, Any], error: type[Exception], root: Path
) -> None:
    with Store(root) as store:
        folder = store.new_folder()
        with pytest.raises(error):
            store.put(KEY, document, folder)
        assert store.put(KEY, {"a": (1, 2)}, folder).document == {"a": [1, 2]}  # nothing was lost


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        ".hidden",
        "a b",
        "ü",
        "folder/",
        *(pytest.param(name, marks=NOT_THERE) for name in ("a\n", "a:b", "link", "fifo")),
    ],
)
def test_folder_holds_plain_files_with_plain_names(
    name: str, root: Path, tmp_path: Path, said: list[str]
) -> None:
    with Store(root) as store:
        folder = store.new_folder()
        if name == "link":
            (folder / name).symlink_to("/etc/passwd")
        elif name == "fifo":
            os.mkfifo(folder / name)
        elif name.endswith("/"):
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(b"")
        with pytest.raises(ValueError, match="plain file"):
            store.put(KEY, {}, folder)
        with pytest.raises(ValueError, match="this store"):
            store.put(KEY, {}, tmp_path)
        folder = store.new_folder()
        store.put(KEY, {}, folder)
        with pytest.raises(ValueError, match="put before"):
            store.put(KEY, {}, folder)
    assert said == []


# ------------------------------------------------------------ damage

TENSOR = np.arange(3000, dtype=np.float32)


def with_tensor(root: Path) -> Path:
    """The place of an entry with two files."""
    with Store(root) as store:
        folder = store.new_folder()
        np.save(folder / "out.npy", TENSOR)
        (folder / "empty").touch()
        return store.put(KEY, {"took": 1.5, "name": "ü"}, folder).folder


def dropped(root: Path, why: str, said: list[str]) -> None:
    """It is noticed, said once, removed, and can be put again."""
    said.clear()
    with Store(root) as store:
        assert store.get(KEY) is None
        assert len(said) == 1 and "is damaged" in said[0] and why in said[0], said
        assert keys(root) == set()
        assert store.get(KEY) is None
        assert len(said) == 1
        assert whole(put(store, KEY, a=b"new")) == whole(store.get(KEY)) == {"a": b"new"}


def flip(path: Path, index: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1 << bit
    path.write_bytes(data)


def instead(path: Path, make: Callable[[Path], object]) -> None:
    """Something else stands there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


def linked(path: Path) -> None:
    """A link to the same, elsewhere."""
    away = next(parent for parent in path.parents if parent.name == ".store").with_name("away")
    path.rename(away)
    path.symlink_to(away)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "JSON missing": (lambda e: (e / NAME).unlink(), f"no {NAME}"),
    "JSON empty": (lambda e: os.truncate(e / NAME, 0), f"{NAME} is not what was written"),
    "JSON longer": (lambda e: append(e / NAME, b"\n"), f"{NAME} is not what was written"),
    "JSON a folder": (lambda e: instead(e / NAME, Path.mkdir), f"no {NAME}"),
    "JSON a link": (lambda e: linked(e / NAME), f"no {NAME}"),
    "JSON another's": (lambda e: (e / NAME).write_bytes(other(e.parents[1])), "another key"),
    "a file missing": (lambda e: (e / "out.npy").unlink(), "no out.npy"),
    "an empty file missing": (lambda e: (e / "empty").unlink(), "no empty"),
    "a file empty": (lambda e: os.truncate(e / "out.npy", 0), "out.npy is"),
    "a file longer": (lambda e: append(e / "out.npy", b"\0"), "out.npy is"),
    "an empty file longer": (lambda e: append(e / "empty", b"\0"), "empty is"),
    "a file more": (lambda e: (e / "more\x1b").touch(), r"'more\x1b'"),
    "a folder more": (lambda e: (e / "more").mkdir(), "'more'"),
    "a link more": (lambda e: (e / "more").symlink_to("out.npy"), "'more'"),
    "a link": (lambda e: linked(e / "out.npy"), "'out.npy'"),
    "a fifo": (lambda e: instead(e / "empty", lambda path: os.mkfifo(path)), "'empty'"),
    "all files missing": (lambda e: instead(e, Path.mkdir), f"no {NAME}"),
    "a file instead": (lambda e: instead(e, Path.touch), "not a folder"),
    "a fifo instead": (lambda e: instead(e, lambda path: os.mkfifo(path)), "not a folder"),
    "a link instead": (linked, "not a folder"),
    "a dead link instead": (
        lambda e: instead(e, lambda path: path.symlink_to("nowhere")),
        "not a folder",
    ),
}


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def other(root: Path) -> bytes:
    """The JSON of another entry, which then goes."""
    with Store(root) as store:
        place = put(store, digest("other")).folder
    text = (place / NAME).read_bytes()
    shutil.rmtree(place.parent)
    return text


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.posix("half of the damages are links, pipes and odd names")
def test_damage_is_noticed(damage: str, root: Path, said: list[str]) -> None:
    do, why = DAMAGES[damage]
    do(with_tensor(root))
    dropped(root, why, said)


def test_every_byte_of_the_json_counts(root: Path, said: list[str]) -> None:
    place = with_tensor(root)
    keep = place.parent / "keep"
    shutil.copytree(place, keep)
    with Store(root) as store:
        size = (place / NAME).stat().st_size
        assert store.get(KEY) is not None
        for index in range(size):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(keep, place)
            if index % 4:
                flip(place / NAME, index, index % 8)
            else:
                os.truncate(place / NAME, index)
            assert store.get(KEY) is None, index
            assert not place.exists()
        assert len(said) == size


@settings(deadline=None, max_examples=60)  # so many files are written and read in a run
@given(st.data())
def test_every_bit_of_a_tensor_counts(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = with_tensor(Path(folder))
        size = (place / "out.npy").stat().st_size
        index = data.draw(st.integers(0, size - 1))
        if data.draw(st.booleans()):
            flip(place / "out.npy", index, data.draw(st.integers(0, 7)))
        else:
            os.truncate(place / "out.npy", index)
        logging.disable(logging.WARNING)
        try:
            with Store(Path(folder)) as store:
                assert store.get(KEY) is None
        finally:
            logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("page", "by"), [(4096, 4096), (4096, 1 << 18), (1 << 18, 1 << 18)])
def test_pages_that_changed_places_are_noticed(
    page: int, by: int, root: Path, said: list[str]
) -> None:
    data = random.Random(1).randbytes(1 << 20)
    with Store(root) as store:
        place = put(store, KEY, a=data).folder
    moved = data[by : by + page] + data[page:by] + data[:page] + data[by + page :]
    assert sorted(moved) == sorted(data) and moved != data
    (place / "a").write_bytes(moved)
    dropped(root, "a is not what was written", said)


def test_the_last_page_ends_where_it_ends(root: Path, said: list[str]) -> None:
    """Zeros fill a window for the sum: they must not stand for zeros of the file."""
    with Store(root) as store:
        place = put(store, KEY, a=bytes(5000)).folder
    (place / "a").write_bytes(bytes(5001))
    dropped(root, "a is not what was written", said)


@pytest.mark.posix("symbolic links need a privilege on Windows")
def test_nothing_outside_is_touched(root: Path, tmp_path: Path, said: list[str]) -> None:
    """A store that came with somebody's folder may be full of links."""
    place = with_tensor(root)
    place.parent.rename(tmp_path / "outside")
    place.parent.symlink_to(tmp_path / "outside")
    before = tree(tmp_path / "outside")
    dropped(root, "not a folder", said)
    assert tree(tmp_path / "outside") == before
    shutil.rmtree(root / KEY[:2])
    place.parent.symlink_to(tmp_path / "outside")
    with Store(root) as store:
        assert whole(put(store, KEY[:2] + KEY[2:][::-1], a=b"x")) == {"a": b"x"}
    assert tree(tmp_path / "outside") == before


def test_damage_in_the_way_of_a_put(root: Path, said: list[str]) -> None:
    place = with_tensor(root)
    flip(place / "out.npy", 200)
    with Store(root) as store:
        assert put(store, KEY, a=b"new").folder == place
        assert whole(store.get(KEY)) == {"a": b"new"}
    assert len(said) == 1


# ------------------------------------------------------------ the limit


def fill(root: Path, count: int, size: int = 1000, limit: int = 1 << 40) -> list[str]:
    """Entries of about 1.2 times `size` bytes each; the first was used longest ago."""
    made = [digest(n) for n in range(count)]
    with Store(root, limit) as store:
        places = [put(store, key, a=bytes(size)).folder for key in made]
    for age, place in enumerate(reversed(places), 1):
        os.utime(place, (time.time() - age * 10,) * 2)
    return made


def held(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("??/*/*"))


def test_the_longest_unused_go_first(root: Path, said: list[str]) -> None:
    made = fill(root, 20)
    with Store(root) as store:
        for key in (made[0], made[3]):
            assert store.get(key)
    os.utime(root / made[0][:2] / made[0], (time.time() - 5,) * 2)
    os.utime(root / made[3][:2] / made[3], (time.time() - 4,) * 2)
    with Store(root, 10_000) as store:
        put(store, KEY, a=bytes(1000))
        left = keys(root)
        assert held(root) <= 10_000 * 15 / 16
        assert left == {KEY, made[0], made[3], *made[20 - (len(left) - 3) :]}
        assert len(left) >= 5
    assert said == []


def test_the_limit_holds_all_the_time(root: Path) -> None:
    limit = 50_000
    for begin in range(0, 200, 10):
        with Store(root, limit) as store:
            for n in range(begin, begin + 10):
                put(store, digest(n), a=bytes(1000))
                assert held(root) <= limit
        tick(root)
    assert held(root) > limit / 2
    assert {digest(n) for n in range(180, 200)} <= keys(root)


def test_entry_in_use_stays_beyond_the_limit(root: Path) -> None:
    made = fill(root, 5)
    tick(root)
    with Store(root, 3000) as store:
        assert store.get(made[0])
        mine = [digest("mine", n) for n in range(10)]
        for key in mine:
            put(store, key, a=bytes(1000))
        assert keys(root) == {made[0], *mine}
    tick(root)
    with Store(root, 3000) as store:
        put(store, KEY)
        assert held(root) <= 3000


def test_entry_of_a_living_process_stays(root: Path) -> None:
    made = fill(root, 5)
    tick(root)
    with Store(root) as theirs:
        used = theirs.get(made[0])
        assert used
        tick(root)
        with Store(root, 1500) as store:
            put(store, KEY)
            assert keys(root) == {KEY, made[0]}
            assert whole(used)
    with Store(root, 1500) as store:
        put(store, digest("more"), a=bytes(1500))
    assert made[0] not in keys(root)


@pytest.mark.posix("the lock is a file beside, which it lists")
def test_entry_that_is_read_stays(root: Path) -> None:
    made = fill(root, 5)
    with Lock(root / made[1][:2] / made[1], shared=True), Store(root, 1500) as store:
        put(store, KEY)
        assert keys(root) == {KEY, made[1]}
        assert store.get(made[1])  # many may read at once


def test_entry_returned_during_removal_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.find_oldest_start
    made = fill(root, 5)

    with Store(root) as theirs, Store(root, 1500) as store:

        def late(self: Store) -> int:
            """Others come after the store was measured."""
            assert theirs.get(made[1])
            return real(self)

        monkeypatch.setattr(Store, "find_oldest_start", late)
        put(store, KEY)
        assert keys(root) == {KEY, made[1]}


def test_nobody_takes_away_what_we_look_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store_entry.compute_checksum
    place = with_tensor(root)

    def checked(path: Path) -> tuple[int, str]:
        with pytest.raises(BlockingIOError):
            Lock(place, wait=False)
        return real(path)

    with Store(root) as store:
        monkeypatch.setattr(store_entry, "compute_checksum", checked)
        assert store.get(KEY)


def test_entry_removed_during_a_look_is_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    real = store_entry.compute_checksum
    place = with_tensor(root)

    def late(path: Path) -> tuple[int, str]:
        shutil.rmtree(place)
        return real(path)

    with Store(root) as store:
        monkeypatch.setattr(store_entry, "compute_checksum", late)
        assert store.get(KEY) is None
    assert said == []


@pytest.mark.posix("it takes flock away")
def test_without_locks_it_works(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def flock(handle: int, what: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    made = fill(root, 5)
    tick(root)
    monkeypatch.setattr("fcntl.flock", flock)
    with Store(root, 1000) as store:
        assert store.get(made[1])
        put(store, KEY)
        put(store, digest("more"))
        assert keys(root) == {KEY, digest("more"), made[1]}
    assert said == []


# ------------------------------------------------------------ memo


def test_memo_makes_once(root: Path) -> None:
    calls = []

    def make(room: Path) -> dict[str, Any]:
        calls.append(room)
        (room / "a").write_bytes(b"x")
        return {"n": len(calls)}

    for _ in range(2):
        with Store(root) as store:
            for _ in range(2):
                document, folder = store.memo(KEY, make)
                assert (document, (folder / "a").read_bytes()) == ({"n": 1}, b"x")
    assert len(calls) == 1


@pytest.mark.parametrize(
    "fails", [KeyError("x"), OSError(errno.ENOENT, "no model"), KeyboardInterrupt()]
)
def test_failed_entry_is_not_kept(fails: BaseException, root: Path, said: list[str]) -> None:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "a").write_bytes(b"x")
        raise fails

    with Store(root) as store:
        with pytest.raises(type(fails)):
            store.memo(KEY, make)
        assert store.memo(KEY, lambda folder: {"a": 1})[0] == {"a": 1}
    assert said == [] and hidden(root) == []


# ------------------------------------------------------------ threads


@pytest.mark.slow
def test_threads_share_a_store(root: Path, said: list[str]) -> None:
    made: list[int] = []
    begin = threading.Barrier(8)

    def make(number: int) -> Callable[[Path], dict[str, Any]]:
        def fresh(room: Path) -> dict[str, Any]:
            made.append(number)
            np.save(room / "a.npy", np.full(2000, number))
            return {"number": number}

        return fresh

    def work(thread: int) -> None:
        begin.wait()
        order = list(range(30))
        random.Random(thread).shuffle(order)
        for number in order:
            document, folder = store.memo(digest(number), make(number))
            assert document == {"number": number}
            assert (np.load(folder / "a.npy") == number).all()
            mine = put(store, digest(thread, number), {"number": number}, a=bytes(100))
            assert store.get(digest(thread, number)) == mine
            assert put(store, digest("same", number), {"number": number}).document == {
                "number": number
            }

    with Store(root, 30_000) as store, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, thread) for thread in range(8)]:
            done.result()
        assert sorted(made) == list(range(30))
        assert [list((path / "rooms").iterdir()) for path in hidden(root)] == [[]]
    assert said == []


# ------------------------------------------------------------ processes


def start(program: str, *words: str | Path | int, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, *map(str, words)],
        env=environment({"PYTHONPATH": str(PACKAGE)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed; it must have ended well and without a warning."""
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    return out


HAMMER = """
import random, sys
from pathlib import Path
import numpy as np
from subgraph.storage.digest import digest
from subgraph.storage.store import Store

root, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
hits = 0
for _ in range(rounds):
    with Store(root, 100_000) as store:
        for _ in range(20):
            number = dice.randrange(60)
            want = np.random.default_rng(number).integers(0, 9, 200 + number * 10)
            entry = store.get(digest(number))
            if entry is None:
                folder = store.new_folder()
                np.save(folder / "a.npy", want)
                entry = store.put(digest(number), {"number": number}, folder)
            else:
                hits += 1
            assert entry.document == {"number": number}
            assert (np.load(entry.folder / "a.npy") == want).all()
print(hits)
"""


@pytest.mark.slow
def test_processes_share_a_store(root: Path, said: list[str]) -> None:
    """Both put, get and evict the same keys; what one got it can read."""
    hits = [int(finish(run)) for run in [start(HAMMER, root, seed, 60) for seed in range(2)]]
    assert all(0 < hit < 1200 - 60 for hit in hits)  # there are 60 keys: some were evicted
    assert hidden(root) == []
    tick(root)
    with Store(root, 100_000) as store:
        put(store, KEY)
        assert held(root) <= 100_000
        for key in keys(root):
            assert store.get(key)
    assert said == []


ENDLESS = """
import sys
from pathlib import Path
import numpy as np
from subgraph.storage.digest import digest
from subgraph.storage.store import Store

store = Store(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    folder = store.new_folder()
    for name in "ab":
        np.save(folder / f"{name}.npy", np.full(30_000, number))
    store.put(digest(sys.argv[2], number), {"number": number}, folder)
"""


@pytest.mark.slow
def test_kill_leaves_whole_entries_and_a_folder_to_sweep(root: Path, said: list[str]) -> None:
    seen: set[str] = set()
    left = 0
    for turn in range(8):
        run = start(ENDLESS, root, turn)
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        until(lambda: len(keys(root)) >= len(seen) + 3)  # noqa: B023
        time.sleep(0.003 * turn)
        run.kill()
        run.communicate()
        assert len(hidden(root)) <= 1  # each begins by sweeping
        left += len(hidden(root))
        found = keys(root)
        assert seen <= found
        seen = found
    assert left
    with Store(root) as store:
        for key in seen:
            entry = store.get(key)
            assert entry is not None
            for name in ("a.npy", "b.npy"):
                assert (np.load(entry.folder / name) == entry.document["number"]).all()
        assert len(hidden(root)) == 1
    assert len(seen) > 20
    assert hidden(root) == []
    assert said == []


# ------------------------------------------------------------ where it cannot be


def works_on(store: Store, root: Path, said: list[str], why: str) -> None:
    """The run goes on with what it has, and hears once why nothing is stored."""
    room = store.new_folder()
    np.save(room / "a.npy", TENSOR)
    entry = store.put(KEY, {"n": 1}, room)
    assert (entry.document, np.load(entry.folder / "a.npy").tolist()) == ({"n": 1}, TENSOR.tolist())
    assert store.get(KEY) is None
    assert set(whole(entry)) == {"a.npy"}
    for _ in range(2):
        document, folder = store.memo(
            digest("memo"), lambda room: {"wrote": (room / "b").write_bytes(b"xy")}
        )
        assert (document, (folder / "b").read_bytes()) == ({"wrote": 2}, b"xy")
    assert len(said) == 1, said
    assert has_line(said[0], "write", f"{root}") and why in said[0], said
    temporary = folder.parents[1]
    store.close()
    assert len(said) == 1
    assert not temporary.exists()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("file", "not a folder; this"),
        ("file/below", "not a folder"),
        ("/proc/nowhere", "let this user"),
        ("x" * 300, "name too long"),
        ("dead", "not a folder"),
    ],
)
@pytest.mark.posix("places in /proc, and Linux's words")
def test_place_that_cannot_be(place: str, why: str, tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dead").symlink_to("/nowhere/at/all")
    before = tree(tmp_path)
    store = Store(tmp_path / place)
    assert store.get(KEY) is None
    assert said == []
    works_on(store, tmp_path / place, said, why if place != "dead" else "")
    assert tree(tmp_path) == before


def test_file_in_the_way_of_an_entry(root: Path, said: list[str]) -> None:
    root.mkdir(parents=True)
    (root / KEY[:2]).write_text("mine")
    works_on(Store(root), root, said, "not a folder")
    assert (root / KEY[:2]).read_text() == "mine"


def test_read_only_folder(
    disk: Callable[[str], Path], tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = disk("size=1m") / "store"
    old = digest("old")
    with Store(root) as store:
        put(store, old, a=b"x")
        damaged = put(store, digest("damaged"), a=b"x")
        flip(damaged.folder / "a", 0)
    disk("ro")
    store = Store(root)
    assert whole(store.get(old)) == {"a": b"x"}
    assert said == []
    for _ in range(2):
        assert store.get(digest("damaged")) is None
    assert len(said) == 1 and "is damaged" in said.pop()
    works_on(store, root, said, "Read-only file system")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert whole(store.get(old)) == {"a": b"x"}
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


@pytest.mark.parametrize("size", [4, 16, 28, 64])
def test_full_disk(size: int, disk: Callable[[str], Path], said: list[str]) -> None:
    """KiB; the tensor has 12."""
    root = disk(f"size={size}k") / "store"
    store = Store(root)

    def make(room: Path) -> dict[str, Any]:
        np.save(room / "a.npy", TENSOR)
        return {"n": 1}

    for key in map(digest, range(4)):
        document, folder = store.memo(key, make)
        assert document == {"n": 1}
        assert np.load(folder / "a.npy").tolist() == TENSOR.tolist()
    assert len(said) == 1
    assert has_line(said[0], "free some")
    store.close()
    assert hidden(root) == []
    with Store(root) as store:
        for key in keys(root):
            assert store.get(key)
    assert len(said) == 1


def test_writer_gets_another_folder_after_an_error(root: Path, said: list[str]) -> None:
    with Store(root) as store:
        first = store.new_folder()
        other = store.new_folder()
        assert root in first.parents
        second = store.new_folder(after=OSError(errno.ENOSPC, "No space left on device"))
        assert root not in second.parents
        assert (
            root
            not in store.new_folder(after=OSError(errno.ENOSPC, "No space left on device")).parents
        )
        assert store.put(KEY, {}, second).folder == second
        assert store.put(digest("other"), {}, other).folder == other
    assert len(said) == 1 and has_line(said[0], "No space", "not stored")
    assert not first.exists() and not second.exists() and not other.exists()


LIMITED = """
import logging, sys
sys.dont_write_bytecode = True  # the limit would leave files that end early, and all that import them later fail
from pathlib import Path
from subgraph.storage.digest import digest
from subgraph.storage.store import Store

logging.basicConfig(format="%(message)s", stream=sys.stdout)
with Store(Path(sys.argv[1])) as store:
    for number in range(3):
        folder = store.new_folder()
        (folder / "empty").touch()
        entry = store.put(digest(number), {"number": number}, folder)
        assert entry.document == {"number": number} and (entry.folder / "empty").exists()
        assert store.get(digest(number)) is None
"""  # noqa: E501


@pytest.mark.posix("Windows has no limit on the size of files")
def test_files_that_may_not_grow(root: Path) -> None:
    """A quota, played by a limit on the size of files."""

    told = finish(start(LIMITED, root, preexec_fn=limit_files(100)))
    assert has_line(told, f"{root}", "File too large") and told.count("\n") == 1
    assert hidden(root) == []
    assert keys(root) == set()


@pytest.mark.posix("Linux's words")
def test_no_place_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with Store(tmp_path / "file") as store, pytest.raises(OutputError) as e:
        store.new_folder()
    assert has_line(e.value.what, "/file", "File exists")
    assert "TMPDIR" in e.value.hint
    assert len(said) == 1


def test_disk_that_cannot_be_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """It is not taken for damage: it may come back. Only a broken disk gives this error, so it is
    played."""
    place = with_tensor(root)

    def broken(path: Path) -> tuple[int, str]:
        raise OSError(errno.EIO, "Input/output error")

    with Store(root) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store_entry, "compute_checksum", broken)
            assert store.get(KEY) is store.get(KEY) is None
        assert len(said) == 1
        assert has_line(said[0], f"{place}", "Input/output")
        assert store.get(KEY)


@pytest.mark.posix("an open file keeps its folder on Windows")
def test_store_that_is_removed_meanwhile(root: Path, said: list[str]) -> None:
    with Store(root) as store:
        put(store, KEY, a=b"x")
        shutil.rmtree(root)
        assert store.get(KEY) is None
        put(store, KEY, a=b"y")
        assert whole(store.get(KEY)) == {"a": b"y"}
        lost = store.new_folder()
        shutil.rmtree(root)
        assert store.put(digest("lost"), {"n": 1}, lost).document == {"n": 1}
        assert len(said) == 1
