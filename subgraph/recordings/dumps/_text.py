"""Numbers as text, one or several per line -> an array; read in pieces, so a false shape takes no
memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from subgraph.recordings.dump_files import HEAD_BYTES, Files
from subgraph.recordings.dumps import NO_SHAPE, DumpEntry, TensorSpec
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array, Shape

PIECE_BYTES = 1 << 20  # read at a time
MAX_WORD = 64  # characters of a number; "%.18e" has 26
MIN_WORDS = 4  # numbers that show to how many digits a tool prints
_NAMES = "float16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool"
HOLDS = tuple(_NAMES.split())
# Lines of numpy.savetxt and those who use it, and Tengine's titles of blobs.
_COMMENT = re.compile(rb"^(?:#|Shape is |\t*(?:Batch|Channel) ).*$", re.M)
_FIXED = re.compile(rb"[-+]?\d+\.(\d+)")
# Characters of numbers, nan, inf and the forms that Windows prints.
_LETTERS = b"0123456789+-.eEnNaAiIfFtTyYdDqQsS#() \t\r\n,"


def read_values(files: Files, name: str, dtype: str, skip: int = 0) -> Array:
    """Read all numbers after the first `skip` lines, flat.

    Raises:
        InputError: a word that is not a number of this type.
    """
    pieces = []
    rest = b""
    head = files.head(name)
    lines = head.split(b"\n", skip)
    size = files.sizes[name]
    start = len(head) - len(lines[-1]) if len(lines) > skip else size
    for at in range(start, size, PIECE_BYTES):
        block = rest + files.bytes(name, at, min(PIECE_BYTES, size - at))
        cut = _find_last_separator(block) + 1
        rest = block[cut:]
        pieces.append(parse_numbers(files, name, block[:cut], dtype))
        if not cut:
            raise files.make_error(name, "a word of it is not a number")
    pieces.append(parse_numbers(files, name, rest, dtype))
    return np.concatenate(pieces)


def _find_last_separator(block: bytes) -> int:
    """Find the end of the last line, else of the last word; -1 if it is one word."""
    line = block.rfind(b"\n")
    if line >= 0:
        return line
    return max(block.rfind(b" "), block.rfind(b"\t"), block.rfind(b","))


def parse_numbers(files: Files, name: str, block: bytes, dtype: str) -> Array:
    """Return the numbers of a piece of text, flat, without comments.

    Raises:
        InputError: a word that is not a number of this type.
    """
    wanted_dtype = find_dtype(dtype)
    block = _COMMENT.sub(b"", block)
    words = block.replace(b",", b" ").split()
    if not words:
        return np.empty(0, wanted_dtype)
    if block.translate(None, _LETTERS) or max(map(len, words)) > MAX_WORD:
        raise files.make_error(name, "a word of it is not a number")
    with files.reading(name, f"a word of it is not {dtype}: "):
        if wanted_dtype.kind in "iu":
            whole = np.array([int(w) for w in words], object)
            info = np.iinfo(wanted_dtype)
            if whole.min() < info.min or whole.max() > info.max:
                raise ValueError(f"{whole.min()} to {whole.max()}")
            return whole.astype(wanted_dtype)
        with np.errstate(over="ignore"):
            return np.array([_parse_float(w) for w in words], np.float64).astype(wanted_dtype)


def _parse_float(word: bytes) -> float:
    """Return a number; Windows prints `1.#IND`, `-1.#INF`, `-nan(ind)` and `nan(snan)`."""
    if b"#" in word or word.lower().startswith((b"nan(", b"-nan(")):
        inf = b"inf" in word.lower()
        if not inf:
            return math.nan
        if word.startswith(b"-"):
            return -math.inf
        return math.inf
    return float(word)


def _read_beginning(files: Files, name: str, skip: int) -> bytes:
    """Return the first whole lines, or the first words of a line that is longer, without
    comments."""
    head = _COMMENT.sub(b"", b"\n".join(files.head(name).split(b"\n")[skip:])).lstrip()
    if files.sizes[name] > HEAD_BYTES:
        return head[: _find_last_separator(head)]
    return head


def is_numeric(files: Files, name: str, skip: int = 0) -> bool:
    """Return whether the beginning of a file holds numbers and nothing else."""
    head = _read_beginning(files, name, skip)
    words = head.replace(b",", b" ").split()
    if not words or head.translate(None, _LETTERS):
        return False
    try:
        return all(isinstance(_parse_float(w), float) for w in words)
    except ValueError:
        return False


def is_whole(files: Files, name: str, skip: int = 0) -> bool:
    """Return whether a file begins with whole numbers: without point and exponent."""
    return not any(c in b".eEnNaAiI" for c in _read_beginning(files, name, skip))


def measure_step(files: Files, name: str, skip: int) -> float:
    """Return the value of one unit of the last digit, if all first numbers have equally many digits
    after the point.

    Returns 0 for other numbers (with an exponent, of different lengths): they may be exact.
    """
    words = _read_beginning(files, name, skip).replace(b",", b" ").split()
    found = [_FIXED.fullmatch(word) for word in words]
    lengths = {len(m[1]) for m in found if m}
    is_fixed = len(lengths) == 1 and len(words) >= MIN_WORDS and all(found)
    return 10.0 ** -lengths.pop() if is_fixed else 0.0


def make_loader(
    files: Files, name: str, dtype: str, shape: Shape | None, skip: int = 0
) -> Callable[[], Array]:
    """Return a function that reads a file's numbers, in this shape or flat."""

    def load() -> Array:
        size = files.sizes[name]
        if shape is not None and math.prod(shape) > size:  # a value takes a digit at least
            raise files.make_error(name, f"{size} bytes do not fill {list(shape)} values")
        flat = read_values(files, name, dtype, skip)
        if shape is None:
            return flat
        return files.reshape(name, flat, shape)

    return load


def make_entry(
    files: Files, name: str, dtype: str, spec: TensorSpec, skip: int = 0, **fields: Any
) -> DumpEntry:
    """Return the entry of a file of numbers; flat unless `spec` has a closed shape.

    `fields`: of the entry, such as its names.
    """
    shape = spec.closed_shape
    note = NO_SHAPE if shape is None else ""
    load = make_loader(files, name, dtype, shape, skip)
    return DumpEntry(name, load, dtype, shape, guessed=spec.guessed, **{"note": note} | fields)
