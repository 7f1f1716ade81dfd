"""Files <-> one zip: the same files give the same bytes, and unpacking a zip from anywhere is safe.

All names are in one folder, `TOP/`. Python's zipfile reads; names, kinds and sizes are checked
before the first byte is written, sizes and digests again while bytes are read, and the folder is
put in its place only when everything fits. The caller supplies the digests, from a list that is
itself in the zip.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from subgraph.errors import InputError, OutputError, explain_os_error
from subgraph.storage import folders
from subgraph.text import clean
from subgraph.types import frozen

MAX_ENTRIES = 50_000  # a sweep where every test fails leaves 20,000 files
MAX_NAME = 1000  # bytes
MAX_PART = 240  # bytes of one part of a path
MAX_PARTS = 32
MAX_TOTAL = 1 << 40  # bytes unpacked
MAX_RATIO = 100  # of the bytes of an unpacked zip and its own
MAX_UNCHECKED_BYTES = 64 << 20  # bytes that an unpacked zip may have with any ratio
CHUNK_BYTES = 1 << 20
COMPRESSION_LEVEL = 1  # of compression: tensors shrink no further at 9
# Bytes from which a file is not compressed, nor held in memory: weights shrink by 8 %.
MIN_STORED_BYTES = 64 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can have
FORBIDDEN = frozenset('\\:*?"<>|')  # not in a file's name on every system
EXECUTABLE = 0o111
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)


@frozen
class Checksum:
    """Size of one file in bytes, and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


def name_problem(name: str) -> str:
    """Return the reason why a file in a bundle may not have this name; "" if it may.

    >>> name_problem("inputs/x.npy"), name_problem("../x"), name_problem("C:/x")
    ('', 'it leads elsewhere', 'a character that not every system takes')
    """
    parts = name.split("/")
    if clean(name) != name or not name.isprintable():
        return "it has control characters"
    if FORBIDDEN.intersection(name):
        return "a character that not every system takes"
    if not name or any(part in ("", ".", "..") for part in parts):
        return "it leads elsewhere"
    if (
        len(name.encode()) > MAX_NAME
        or len(parts) > MAX_PARTS
        or any(len(part.encode()) > MAX_PART for part in parts)
    ):
        return "it is too long"
    if any(part[-1] in ". " or part[0] == " " for part in parts):
        return "a space or a dot at an end, which not every system keeps"
    if any(map(folders.is_device, parts)):
        return "some systems keep that name for a device"
    return ""


def require_names(names: list[str], where: str) -> None:
    """Check the names of all files in a zip.

    Raises:
        InputError: a name may not be used, or occurs twice, in any case or normal form, or is a
            folder of another.
    """
    names_by_key: dict[str, str] = {}
    for name in names:
        if why := name_problem(name):
            raise InputError(
                f"{where}: the name '{name[:200]}' cannot be used: {why}",
                "rename it",
                code="bundle.unsafe-name",
            )
        key = _fold(name)
        if key in names_by_key:
            fact = f"'{names_by_key[key]}' and '{name}' would be one file"
            raise InputError(f"{where}: {fact}", "rename one", code="bundle.same-name")
        names_by_key[key] = name
    for name in names:
        for end in (k for k, letter in enumerate(name) if letter == "/"):
            if file := names_by_key.get(_fold(name[:end])):
                fact = f"'{file}' would be a file, and a folder of '{name}'"
                raise InputError(f"{where}: {fact}", "rename one", code="bundle.same-name")


def _fold(name: str) -> str:
    """Return a name in a form that is equal for names of the same file on some file system."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


# ------------------------------------------------------------ writing


def write(files: Mapping[str, Path | bytes], top: str, target: Path) -> None:
    """Write all files below `top/` into one zip at `target`.

    It is written aside and renamed. Times are fixed, and names are in order.

    Raises:
        InputError: a name cannot be used, or a file cannot be read. OutputError: it cannot be
            written.
    """
    require_names(sorted(files), target.name)
    with folders.make_scratch(target.parent, target.name) as work:
        aside = work / "new.zip"
        with zipfile.ZipFile(aside, "w") as out:
            for name in sorted(files):
                _add(out, f"{top}/{name}", files[name])
        if target.is_dir():
            raise OutputError(
                f"cannot write {target}: it is a folder",
                "choose another -o FILE.zip",
                code="output.unwritable",
            )
        aside.replace(target)


def _add(out: zipfile.ZipFile, name: str, source: Path | bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.create_system = 3  # Unix, whatever system writes it
    runs = isinstance(source, Path) and source.stat().st_mode & EXECUTABLE
    info.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
    with _open(source) as file:
        data = file.read(MIN_STORED_BYTES)
        if len(data) < MIN_STORED_BYTES:
            # If it shrinks so much that `Archive` would take it for a bomb, it is not compressed.
            shrunk = len(zlib.compress(data, COMPRESSION_LEVEL))
            is_safe = len(data) < MAX_RATIO * shrunk
            kind = zipfile.ZIP_DEFLATED if is_safe else zipfile.ZIP_STORED
            out.writestr(info, data, kind, COMPRESSION_LEVEL)
            return
        with out.open(info, "w", force_zip64=True) as into:
            into.write(data)
            shutil.copyfileobj(file, into, CHUNK_BYTES)


def _open(source: Path | bytes) -> IO[bytes]:
    """Open a file to read its bytes.

    Raises:
        InputError: it cannot be read.
    """
    if isinstance(source, bytes):
        return io.BytesIO(source)
    fact = f"cannot read {source}"
    with explain_os_error(InputError, fact, "make it readable", code="file.unreadable"):
        return source.open("rb")


def compute_checksum(source: Path | bytes) -> Checksum:
    """Return the size and digest of a file."""
    if isinstance(source, bytes):
        return Checksum(len(source), hashlib.sha256(source).hexdigest())
    with _open(source) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return Checksum(file.tell(), sha256)


# ------------------------------------------------------------ reading


class Archive:
    """An open zip whose names, kinds and sizes were checked; names are relative to its one
    folder."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path = path
        self._zip = file
        entries = file.infolist()
        if len(entries) > MAX_ENTRIES:
            raise make_refusal(path, f"it has {len(entries):,} entries")
        files = []
        for info in entries:
            name = info.orig_filename  # unlike `filename` not cut at a NUL
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise make_refusal(path, f"'{name[:200]}' is a link or a special file")
            if why := name_problem(name.removesuffix("/")):
                raise make_refusal(path, f"the name '{name[:200]}': {why}")
            if not name.endswith("/"):
                files.append((name, info))
        require_names([name for name, _ in files], str(path))
        if len({name.partition("/")[0] for name, _ in files}) != 1 or any(
            "/" not in name for name, _ in files
        ):
            raise make_kind_error(path, "its files are not in one folder")
        self._infos = {name.partition("/")[2]: info for name, info in files}
        own = path.stat().st_size
        if self.total > min(MAX_TOTAL, max(MAX_UNCHECKED_BYTES, MAX_RATIO * own)):
            raise make_refusal(path, f"its {own:,} bytes would become {self.total:,}")

    @property
    def total(self) -> int:
        """Bytes unpacked."""
        return sum(info.file_size for info in self._infos.values())

    def read(self, name: str, limit: int) -> bytes:
        """Read a small file.

        Raises:
            InputError: it is not there, larger than `limit` bytes, or damaged.
        """
        info = self._infos.get(name)
        if info is None:
            raise make_kind_error(self.path, f"it has no {name}")
        if info.file_size > limit:
            raise make_damage_error(self.path, f"its {name} has {info.file_size:,} bytes")
        return b"".join(self._iter_chunks(name))

    def unpack(
        self, folder: Path, checksums: Mapping[str, Checksum], read: Mapping[str, bytes]
    ) -> None:
        """Write all files into an empty folder, each checked against its size and digest while it
        is read.

        `read`: files without a checksum, which were read before.

        Raises:
            InputError: one is damaged, missing, or not in the list. OSError: it cannot be written.
        """
        if differing := sorted(set(self._infos) ^ {*checksums, *read}):
            name = differing[0]
            if name in self._infos:
                fact = "holds {}, which is not in its list"
            else:
                fact = "lacks {}, which its list has"
            raise make_damage_error(self.path, fact.format(name))
        for name, data in read.items():
            (folder / name).write_bytes(data)
        for name in sorted(checksums):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                self._copy(name, checksums[name], out)
            if self._infos[name].external_attr >> 16 & EXECUTABLE:
                target.chmod(0o755)

    def _copy(self, name: str, checksum: Checksum, out: IO[bytes]) -> None:
        """Write the bytes of a file, at most as many as in its checksum."""
        hashed = hashlib.sha256()
        size = 0
        for chunk in self._iter_chunks(name):
            size += len(chunk)
            if size > checksum.bytes:
                raise make_damage_error(self.path, f"{name} is larger than in its list")
            hashed.update(chunk)
            out.write(chunk)
        if Checksum(size, hashed.hexdigest()) != checksum:
            raise make_damage_error(self.path, f"{name} differs from its entry in the list")

    def _iter_chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(self._infos[name]) as file:  # never more than its `file_size`
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except (OSError, *DAMAGE) as e:
            raise make_damage_error(self.path, _format_reason(e)) from e


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a zip for reading.

    Raises:
        InputError: it cannot be read, is no zip, or has entries that are refused.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise make_kind_error(path, "it is not a zip, or its end is missing")
        file = zipfile.ZipFile(path)
    except (OSError, *DAMAGE) as e:
        raise make_damage_error(path, _format_reason(e)) from e
    with file:
        yield Archive(path, file)


def _format_reason(e: BaseException) -> str:
    return clean(" ".join(str(getattr(e, "strerror", None) or e).split()))[:200] or type(e).__name__


def make_damage_error(path: Path, why: str) -> InputError:
    """Return the error for a bundle whose contents are not those that it lists."""
    return InputError(
        f"{clean(str(path))} is damaged: {why}",
        "get it again; nothing was unpacked",
        code="bundle.damaged",
    )


def make_kind_error(path: Path, why: str) -> InputError:
    """Return the error for another zip or file."""
    return InputError(
        f"{clean(str(path))} is not a bundle: {why}",
        "name one that `subcut bundle` made",
        code="bundle.not-a-bundle",
    )


def make_refusal(path: Path, why: str) -> InputError:
    """Return the error for a zip that subcut never writes."""
    return InputError(
        f"{clean(str(path))} is refused: {why}",
        "no bundle of subcut is so; nothing was unpacked",
        code="bundle.unsafe",
    )
