"""One entry of the store on disk: a document and files in a folder, with checksums of every
byte."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path

from subgraph.lazy import np
from subgraph.types import JsonObject

NAME = "entry.json"
# It holds the hash of everything after it.
HEAD = '{"subcut store": 1, "sha256": "%s", "entry": '
TAIL = "}\n"
# `make_safe_names` with an extension.
PLAIN = re.compile(r"[A-Za-z0-9_@+~-]([A-Za-z0-9._@+~#-]*[A-Za-z0-9_@+~#-])?")
# Checksums are a hash over the sums of pages. 100 MB from the page cache of an EPYC: np.save 21 ms,
# np.load 10; this checksum 6 (4 of them for reading), zlib.crc32 19, zlib.adler32 30, SHA-1 57,
# SHA-256 57, blake2b 84. For disk faults and truncated files, not against an adversary. mmap would
# save 2 ms, but a bad sector, or another process that truncates the file, would end ours with
# SIGBUS.
PAGE_BYTES = 4096  # bytes
WINDOW_BYTES = 1 << 18  # fits into the second-level cache


class DamagedEntryError(Exception):
    """The reason for which an entry cannot be used."""


def list_names(folder: Path) -> list[str]:
    """Return the files in a folder that becomes an entry.

    Raises:
        ValueError: it holds anything but plain files with plain names.
    """
    with os.scandir(folder) as items:
        files = sorted(items, key=lambda item: item.name)
    for item in files:
        if (
            item.name == NAME
            or not PLAIN.fullmatch(item.name)
            or not item.is_file(follow_symlinks=False)
        ):
            raise ValueError(f"{item.path!r} is not a plain file with a plain name")
    return [item.name for item in files]


def write(folder: Path, key: str, files: dict[str, tuple[int, str]], document: str) -> int:
    """Make a folder an entry; `document` is JSON, `files` are checksums by name. Returns the
    entry's bytes."""
    body = (
        f'{{"key": "{key}", "files": {json.dumps(files)}, "document": {document}}}{TAIL}'.encode()
    )
    return (folder / NAME).write_bytes(_make_head(body) + body) + sum(
        size for size, _ in files.values()
    )


def _make_head(body: bytes) -> bytes:
    return (HEAD % hashlib.sha256(body).hexdigest()).encode()


def read_verified(place: Path, key: str) -> JsonObject:
    """Return the document of an entry, after every byte was checked.

    Raises:
        DamagedEntryError: A byte is wrong, a file is missing, or a file is not ours.
        OSError: The entry cannot be read, or is gone.
    """
    if not stat.S_ISDIR(place.lstat().st_mode):
        raise DamagedEntryError("it is not a folder")
    with os.scandir(place) as items:
        is_plain = {item.name: item.is_file(follow_symlinks=False) for item in items}
    if not is_plain.get(NAME):
        raise DamagedEntryError(f"no {NAME}")
    text = (place / NAME).read_bytes()
    body = text[len(_make_head(b"")) :]
    if text != _make_head(body) + body:
        raise DamagedEntryError(f"{NAME} is not what was written")
    entry = json.loads(body[: -len(TAIL)])
    if entry["key"] != key:
        raise DamagedEntryError("it belongs to another key")
    for name in sorted({*is_plain, *entry["files"]} - {NAME}):
        if name not in is_plain:
            raise DamagedEntryError(f"no {name}")
        if not is_plain[name] or name not in entry["files"]:
            raise DamagedEntryError(f"{name!r} does not belong there")
        if entry["files"][name] != [*compute_checksum(place / name)]:
            raise DamagedEntryError(f"{name} is not what was written")
    return dict(entry["document"])


def compute_checksum(path: Path) -> tuple[int, str]:
    """Size in bytes and checksum of a file: a hash over the sums of its pages, as words of 64
    bits."""
    words = np.zeros(WINDOW_BYTES // 8, "<u8")
    window = words.data.cast("B")
    pages = words.reshape(-1, PAGE_BYTES // 8)
    size = 0
    total = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while count := file.readinto(window):
            size += count
            window[count:] = bytes(WINDOW_BYTES - count)
            total.update(pages[: -(-count // PAGE_BYTES)].sum(axis=1, dtype="<u8").tobytes())
    return size, total.hexdigest()
