"""Files come out of a zip as they went in; a zip that is damaged or hostile writes nothing.

Covers `cases.zip_archive`, and how `cases.bundle` unpacks.
"""

from __future__ import annotations

import io
import json
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from subgraph.cases import bundle, zip_archive
from subgraph.cases.layout import BUNDLE_LIST
from subgraph.cases.zip_archive import Checksum
from subgraph.errors import InputError, OutputError, ResultExists, SubcutError, UsageError
from tests.helpers.examples import examples
from tests.helpers.refusals import raises
from tests.helpers.run_command import tree


def listing(files: Mapping[str, bytes]) -> dict[str, Checksum]:
    return {name: zip_archive.compute_checksum(data) for name, data in files.items()}


SAFE = st.text(st.sampled_from("abAB01._-@+ éß漢"), min_size=1, max_size=12).filter(
    lambda n: not zip_archive.name_problem(n)
)
PATHS = st.lists(SAFE, min_size=1, max_size=3).map("/".join)


def allowed(names: list[str]) -> bool:
    try:
        zip_archive.require_names(names, "here")
    except InputError:
        return False
    return True


FILESETS = st.dictionaries(
    PATHS, st.binary(max_size=200) | st.just(bytes(500_000)), min_size=1, max_size=6
).filter(lambda files: allowed(sorted(files)))
ROOMY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40)
)


@ROOMY
@given(FILESETS)
def test_files_come_out_as_they_went_in(tmp_path: Path, files: dict[str, bytes]) -> None:
    path = tmp_path / "x.zip"
    into = tmp_path / "into"
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    zip_archive.write(files, "top", path)
    first = path.read_bytes()
    with zip_archive.open_archive(path) as there:
        there.unpack(into, listing(files), {})
    assert tree(into) == files
    zip_archive.write(dict(reversed(files.items())), "top", path)
    assert path.read_bytes() == first


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bundle."""
    return sealed(
        tmp_path_factory.mktemp("small") / "small.zip",
        {"a.txt": b"text" * 20, "in/b.npy": bytes(range(200))},
    )


def sealed(path: Path, files: Mapping[str, bytes]) -> Path:
    """A zip with a list, as a bundle has it."""
    told = {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in listing(files).items()}
    document = {"schema": "subcut.bundle/1", "files": told}
    zip_archive.write({**files, BUNDLE_LIST: json.dumps(document).encode()}, "top", path)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150))
@given(st.data())
def test_damaged_zips_end_in_an_error_of_ours(
    small: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Any bytes changed, cut off or put in: the very files come out, or nothing does."""
    whole = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.sampled_from(("flip", "cut", "put", "number"))):
            case "flip":
                whole[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del whole[at : at + data.draw(st.integers(1, 40))]
            case "put":
                whole[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            case "number":
                whole[at : at + 4] = struct.pack(
                    "<I", data.draw(st.sampled_from((0, 1, 0xFFFF, 0xFFFFFFFF, 1 << 31)))
                )
        whole = whole or bytearray(b"x")
    path = tmp_path / "damaged.zip"
    path.write_bytes(bytes(whole))
    place = tmp_path / "place"
    shutil.rmtree(place, ignore_errors=True)
    try:
        bundle.unpack(path, place)
    except SubcutError as e:
        assert e.exit_code in (1, 2) and not place.exists()
    else:
        with zipfile.ZipFile(small) as file:
            assert tree(place) == {n.removeprefix("top/"): file.read(n) for n in file.namelist()}
    assert {p.name for p in tmp_path.iterdir()} <= {"damaged.zip", "place"}


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    info.filename = name  # as it is
    info.external_attr = mode << 16
    info.create_system = 3
    return info


EVIL_NAMES = [
    *("/etc/passwd", "../x", "top/../../x", "top/./x", "top//x", "C:/x", "top/C:x", "top\\x"),
    *("top/a\\..\\x", "top/a\x1b[2J", "top/a\nb", "top/a\u202eb", "top/con", "top/AUX.txt"),
    *("top/a.", "top/a ", "top/ a", "top/" + "a" * 300, "top/" + "a/" * 40 + "b", "other/x", "x"),
    *("", "top/A.TXT", "top/a\x00b", "top/a*", "top/a.txt/b"),
]
SPECIAL = [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK]


@pytest.mark.parametrize(
    "bad", [*map(entry, EVIL_NAMES), *(entry("top/link", kind | 0o777) for kind in SPECIAL)]
)
def test_entry_with_an_unsafe_name_or_kind_is_refused(
    bad: zipfile.ZipInfo, small: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(small, tmp_path / "evil.zip"))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(bad, b"/etc/passwd")
    with pytest.raises(InputError):
        bundle.unpack(path, tmp_path / "in" / "place")
    assert [p.name for p in tmp_path.iterdir()] == ["evil.zip"]


def test_twice_the_same_name(small: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(small, tmp_path / "evil.zip"))
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as file:
        file.writestr(entry("top/a.txt"), b"evil")
    with raises(InputError, "bundle.same-name"):
        bundle.unpack(path, tmp_path / "place")


def test_encrypted_entry_is_refused(small: Path, tmp_path: Path) -> None:
    data = bytearray(small.read_bytes())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(magic) + at] |= 1
    path = tmp_path / "evil.zip"
    path.write_bytes(bytes(data))
    with raises(InputError, "bundle.damaged"):
        bundle.unpack(path, tmp_path / "place")


def test_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for k in range(3):
            file.writestr(f"top/{k}", bytes(30 << 20))
    with raises(InputError, "bundle.unsafe"):
        bundle.unpack(path, tmp_path / "place")
    monkeypatch.setattr(zip_archive, "MAX_ENTRIES", 2)
    with raises(InputError, "bundle.unsafe"):
        bundle.unpack(path, tmp_path / "place")


def test_wrong_size_is_refused(tmp_path: Path) -> None:
    """The list says what there is; the zip says less: what comes is cut off there, and noticed."""
    path = sealed(tmp_path / "x.zip", {"a": b"1234" * 100})
    data = bytearray(path.read_bytes())
    for at in (i for i in range(len(data)) if data[i : i + 4] == struct.pack("<I", 400)):
        data[at : at + 4] = struct.pack("<I", 100)
    path.write_bytes(bytes(data))
    with raises(InputError, "bundle.damaged"):
        bundle.unpack(path, tmp_path / "place")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(schema="subcut.other/1"),
        lambda d: d["files"].pop("a.txt"),
        lambda d: d["files"].update(more={"bytes": 0, "sha256": ""}),
        lambda d: d["files"]["a.txt"].update(bytes=1),
        lambda d: d["files"]["a.txt"].update(bytes="x"),
        lambda d: d["files"]["a.txt"].update(sha256="0" * 64),
        lambda d: d.update(files=[]),
        lambda d: d.clear(),
    ],
)
def test_wrong_list_of_files_is_refused(
    change: Callable[[dict[str, Any]], Any], small: Path, tmp_path: Path
) -> None:
    out = io.BytesIO()
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(small) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == f"top/{BUNDLE_LIST}":
                document = json.loads(data)
                change(document)
                data = json.dumps(document).encode()
            new.writestr(info, data)
    path.write_bytes(out.getvalue())
    with pytest.raises(InputError):
        bundle.unpack(path, tmp_path / "place")
    assert [p.name for p in tmp_path.iterdir()] == ["x.zip"]


def test_bundle_is_unpacked_once(small: Path, tmp_path: Path) -> None:
    place = tmp_path / "a" / "place"
    assert bundle.unpack(small, place) and not bundle.unpack(small, place)
    (place / "notes.txt").write_text("mine")
    assert not bundle.unpack(small, place), "what a user put there is no change of the bundle"
    (place / "a.txt").write_text("other")
    with raises(ResultExists, "output.exists"):
        bundle.unpack(small, place)


def test_interrupted_it_leaves_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zip_archive.Archive, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bundle.unpack(small, tmp_path / "place")
    assert not list(tmp_path.iterdir())


def test_full_disk_while_unpacking_is_an_error(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with raises(OutputError, "output.disk-full"):
        bundle.unpack(small, tmp_path / "place")


def test_rezipped_bundle_is_read(small: Path, tmp_path: Path) -> None:
    """Unpacked by hand and zipped again, with entries for folders: the same files, so the same
    bundle."""
    assert bundle.unpack(small, tmp_path / "top")
    shutil.make_archive(str(tmp_path / "again"), "zip", tmp_path, "top")
    assert bundle.unpack(tmp_path / "again.zip", tmp_path / "place")
    assert tree(tmp_path / "place") == tree(tmp_path / "top")


def test_bundle_is_a_zip() -> None:
    with raises(UsageError, "bundle.output-not-zip"):
        bundle.require_free(Path("x.tar"), "x")
