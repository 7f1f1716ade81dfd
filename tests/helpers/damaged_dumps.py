"""Dumps of every format, damaged in content and in name: values or an error of ours, soon, and
little memory.

    python -m tests.helpers.damaged_dumps [COUNT [SEED [FORMAT ...]]]

COUNT damaged folders of each format. Each is read in this process, which may take hardly more
memory than it has, so that a size that was blown up is found where it is believed. Prints what
came; exits with 1 and the folders of what went wrong (an error that is none of ours, a hang, memory
beyond a small factor of the files). A seed does the same damage again.
"""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from subgraph.errors import SubcutError
from subgraph.recordings import recording
from subgraph.recordings.dumps import DumpHints, TensorSpec, WrittenNames
from tests.helpers.made_dumps import FORMATS, MADE, ONE

ENTRIES = 12  # of a recording that are read; damage makes no more of them
SECONDS = 20  # of CPU time for one folder; those seen take a tenth of one
ROOM = 384 << 20  # bytes of addresses that the process may take beside those that it has
# bytes that reading may take: so many (Python's tables grow by 2 MB), and so many per byte
BASE, FACTOR = (4 << 20, 80)
LARGE = 60_000  # bytes of a file that is left whole
HUGE = (
    b"99999999999999999999",
    b"-1",
    b"4294967295",
    b"2147483648",
    b"1e999",
    b"0",
    b"nan",
    b"9" * 5000,
    b"1048576",
)
KINDS = (
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"true",
    b"[" * 5000,
    b"1.5",
    b"-7",
    b'"\\ud800"',
    b"[[1]]",
    b'{"a": {}}',
)
ODD = (
    "..",
    "%s",
    " ",
    "\n",
    "\udcff",
    "²",
    "٣",
    *"- . \x1b[31m 99999999999999999999 0 -1".split(),
    "é",
    "x" * 80,
)


class Hang(BaseException):
    """One folder takes too long."""


@dataclass
class Count:
    """What came of the damaged folders of one format."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most: int = 0
    slowest: float = 0.0


# ------------------------------------------------------------ what is damaged


def more(word: str, folder: Path) -> None:
    """Files beside those of the contract's sample: what else the format may hold."""
    if word == "npy":
        np.savez(folder / "two.npz", a=ONE, b=ONE.astype(np.int8))
        np.savez_compressed(folder / "packed.npz", c=np.zeros(4000, np.float16))
        np.save(folder / "f.npy", np.asfortranarray(ONE[0]))
    if word == "raw":
        np.zeros((2, 3, 8), np.int16).tofile(folder / "rows.bin")
        one = {"file": "rows.bin", "dtype": "int16", "shape": [2, 3, 5]}
        rows = [
            {"name": "r", **one, "aligned": [2, 3, 8]},
            {"name": "s", **one, "strides": [48, 16, 2], "offset": 0},
        ]
        listed = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({"tensors": [*listed["tensors"], *rows]}))
    if word == "text":
        (folder / "long.txt").write_text("0.125\n-3\n1e-9\n" * 3000)


def damaged(data: bytes, other: bytes, dice: random.Random) -> bytes:
    """A file's bytes, hurt in one to three ways."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = dice.choice(WAYS)(data, other, dice)
    return data


def _place(data: bytes, dice: random.Random) -> int:
    """Somewhere in it; mostly near its beginning, where headers are."""
    return dice.randrange(min(len(data), dice.choice((16, 128, 1024, 1 << 30))) or 1)


def _flipped(data: bytes, _: bytes, dice: random.Random) -> bytes:
    out = bytearray(data)
    for _k in range(dice.choice((1, 1, 2, 8))):
        if out:
            out[_place(data, dice)] ^= 1 << dice.randrange(8)
    return bytes(out)


def _short(data: bytes, _: bytes, dice: random.Random) -> bytes:
    return data[
        : dice.choice((_place(data, dice), dice.randrange(len(data) + 1), max(len(data) - 1, 0)))
    ]


def _longer(data: bytes, _: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    given = dice.choice(
        (dice.randbytes(dice.randrange(1, 40)), bytes(dice.randrange(1, 9)), data[at : at + 40])
    )
    return data[:at] + given + data[at:]


def _without(data: bytes, _: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + data[at + dice.randrange(1, 40) :]


def _blown_up(data: bytes, _: bytes, dice: random.Random) -> bytes:
    """A number of the header that says another size."""
    at = _place(data, dice)
    width = dice.choice((1, 2, 4, 8))
    number = dice.choice(
        (
            -1,
            0,
            1,
            1 << (8 * width - 1),
            (1 << (8 * width - 1)) - 1,
            1 << (8 * width - 3),
            len(data),
        )
    )
    return (
        data[:at]
        + (number % (1 << 8 * width)).to_bytes(width, dice.choice(("little", "big")))
        + data[at + width :]
    )


def _varint(data: bytes, _: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + b"\xff" * dice.randrange(1, 10) + b"\x01" + data[at + 1 :]


def _numbered(data: bytes, _: bytes, dice: random.Random) -> bytes:
    """Another number where one stands in text."""
    found = list(re.finditer(rb"\d+", data[: 1 << 16]))
    if not found:
        return data
    one = dice.choice(found[: dice.choice((4, 20, 1 << 20))])
    return data[: one.start()] + dice.choice(HUGE) + data[one.end() :]


def _valued(data: bytes, _: bytes, dice: random.Random) -> bytes:
    """Another kind of value where one stands in JSON."""
    found = list(
        re.finditer(rb'"[^"]{0,200}"|-?\d[\d.e+-]*|\[[^\[\]]{0,80}\]|null|true', data[: 1 << 16])
    )
    if not found:
        return data
    one = dice.choice(found)
    return data[: one.start()] + dice.choice(KINDS) + data[one.end() :]


def _spliced(data: bytes, other: bytes, dice: random.Random) -> bytes:
    return data[: _place(data, dice)] + other[_place(other, dice) :]


def _anything(data: bytes, _: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(300))


WAYS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    _flipped,
    _flipped,
    _short,
    _longer,
    _without,
    _blown_up,
    _blown_up,
    _varint,
    _numbered,
    _numbered,
    _valued,
    _spliced,
    _anything,
)


def renamed(name: str, dice: random.Random) -> str:
    """Another name for a file: numbers blown up, parts lost, characters that are in no name."""
    folder, slash, plain = name.rpartition("/")
    way = dice.randrange(4)
    if way == 0 and (found := list(re.finditer(r"\d+", plain))):
        one = dice.choice(found)
        plain = (
            plain[: one.start()] + dice.choice((*ODD, "4294967296", "9" * 100)) + plain[one.end() :]
        )
    elif way == 1:
        at = dice.randrange(len(plain) + 1)
        plain = plain[:at] + dice.choice(ODD) + plain[at:]
    elif way == 2:
        parts = re.split(r"([._-])", plain)
        del parts[dice.randrange(len(parts))]
        plain = "".join(parts)
    else:
        plain = plain.swapcase() if dice.random() < 0.5 else plain[::-1]
    plain = plain.replace("/", "_")[:120]
    return f"{folder}{slash}{plain if plain not in ('', '.', '..') else 'x'}"


# ------------------------------------------------------------ what comes of it


def read(folder: Path, word: str, known: DumpHints) -> str:
    """Detect, list and read all; what came of it in a word.

    Raises:
        SubcutError: what a user would be told.
    """
    recording.detect(folder)
    found = recording.open(folder, word, known)
    written = WrittenNames([*[e.name for e in found][:ENTRIES], "conv1", ""], found.plain)
    for e in found:
        written.find_meant(e)
    lost = 0
    for e in list(found)[:ENTRIES]:
        assert isinstance(e.target, str) and repr(e)
        try:
            e.read()
        except SubcutError as error:
            assert error.what
            lost += 1
    return "some entries" if lost else "all entries"


def attempt(folder: Path, word: str, known: DumpHints, count: Count, size: int) -> str:
    """Read one damaged folder; what went wrong, "" where nothing did."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    began = time.thread_time()
    try:
        count.outcomes[read(folder, word, known)] += 1
    except SubcutError as e:
        count.outcomes[type(e).__name__] += 1
        if not e.what or "Traceback" in e.what:
            return f"says nothing: {e!r}"
    except (Exception, Hang) as e:  # noqa: BLE001
        trace = e.__traceback__
        places = []
        while trace:
            places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
            trace = trace.tb_next
        return f"{type(e).__name__}: {str(e)[:120]} at {' '.join(places[-4:])}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        taken = tracemalloc.get_traced_memory()[1] - before
        count.most = max(count.most, taken)
        count.slowest = max(count.slowest, time.thread_time() - began)
    return f"takes {taken} bytes for {size}" if taken > BASE + FACTOR * size else ""


def told(name: str, dice: random.Random) -> DumpHints:
    """What a model says of tensors that files say nothing of; at times it does not fit."""
    dtype = dice.choice(
        ("float32", "float16", "int8", "bfloat16", "int4", "string", "int64", "bool")
    )
    shape = dice.choice(
        ((1, 2, 3, 4), (24,), (None, 2, 3, 4), (), (0, 3), (1 << 40, 1 << 40), (1, 17, 2, 2))
    )
    stem = Path(name).stem
    specs = {
        stem: TensorSpec(dtype, shape),
        "x": TensorSpec(dtype, shape),
        "conv1": TensorSpec(dtype, shape),
    }
    return (
        DumpHints(specs, dice.choice(("", "NHWC", "NC1HWC0", "FRACTAL_NZ", "NHWC4", "odd")))
        if shape
        else DumpHints(specs)
    )


def hurt(word: str, good: Path, count: int, seed: str) -> Count:
    """Damage this many folders of one format."""
    dice = random.Random(f"{seed} {word}")
    counted = Count()
    names = [p.relative_to(good).as_posix() for p in sorted(good.rglob("*")) if p.is_file()]
    whole = {name: (good / name).read_bytes() for name in names}
    chosen = [name for name in names if len(whole[name]) <= LARGE]
    with tempfile.TemporaryDirectory() as place:
        for k in range(count):
            folder = Path(place) / "d"
            shutil.rmtree(folder, ignore_errors=True)
            victim = dice.choice(chosen)
            kept = [
                victim,
                *(
                    n
                    for n in names
                    if n != victim and (len(names) < 5 or dice.random() < 4 / len(names))
                ),
            ]
            for name in kept:
                here = folder / (
                    renamed(name, dice) if name == victim and dice.random() < 0.25 else name
                )
                here.parent.mkdir(parents=True, exist_ok=True)
                data = whole[name]
                if name == victim and dice.random() < 0.9:
                    data = damaged(data, whole[dice.choice(chosen)], dice)
                here.write_bytes(data)
            known = told(victim, dice) if dice.random() < 0.5 else DumpHints()
            size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
            if wrong := attempt(folder, word, known, counted, size):
                aside = Path(tempfile.gettempdir()) / f"damage-{word}-{seed}-{k}"
                shutil.copytree(folder, aside, dirs_exist_ok=True)
                counted.wrong.append(f"{aside}: {wrong} ({known})")
    return counted


def _hang(_number: int, _frame: FrameType | None) -> None:
    raise Hang(f"more than {SECONDS} s")


def _bound() -> None:
    """This process may take little more memory than it has."""
    signal.signal(signal.SIGPROF, _hang)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))


def main(count: int = 2000, seed: str = "0", *words: str) -> int:
    """Damage dumps of these formats, all if none is named; the exit code."""
    warnings.simplefilter("error")
    failed = 0
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as place:
        goods = {word: Path(place) / word for word in words or FORMATS}
        for word, good in goods.items():
            good.mkdir()
            MADE[word](good)
            more(word, good)
            read(good, word, DumpHints())  # all that is imported late
        _bound()
        for word, good in goods.items():
            found = hurt(word, good, count, seed)
            came = ", ".join(f"{n} {what}" for what, n in found.outcomes.most_common())
            print(
                f"{word:17} {came}; slowest {found.slowest:.2f} s, at most {found.most >> 10} KiB"
            )
            for line in found.wrong[:20]:
                print(f"  WRONG {line}")
            failed += len(found.wrong)
    print(f"{count * len(goods)} damaged folders, {failed} wrong")
    return int(failed > 0)


if __name__ == "__main__":
    _number, *_rest = sys.argv[1:] or ["2000"]
    sys.exit(main(int(_number), *_rest))
