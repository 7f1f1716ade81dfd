"""Numbers as text, one or several per line -> an array; read in pieces, so that no memory is taken for a promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from subgraph.recordings.files import Files
from subgraph.storage.tensors import np_dtype

if TYPE_CHECKING:
    import numpy as np

    from subgraph.types import Array

PIECE = 1 << 20  # bytes read at a time
MAX_WORD = 64  # characters of a number; "%.18e" has 26
_LETTERS = b"0123456789+-.eEnNaAiIfFtTyYdDqQsS#() \t\r\n,"  # of numbers, nan, inf and what Windows prints for them


def values(files: Files, name: str, dtype: str, skip: int = 0) -> Array:
    """All numbers behind the first `skip` lines, flat.

    Raises:
        InputError: a word that is no number of this type.
    """
    import numpy as np

    pieces: list[Array] = []
    rest, start = b"", _behind(files, name, skip)
    for at in range(start, files.sizes[name], PIECE):
        block = rest + files.bytes(name, at, min(PIECE, files.sizes[name] - at))
        cut = max(block.rfind(b"\n"), block.rfind(b" "), block.rfind(b"\t"), block.rfind(b",")) + 1
        rest = block[cut:]
        pieces.append(numbers(files, name, block[:cut], dtype))
        if len(rest) > MAX_WORD:
            raise files.damaged(name, "a word of it is no number")
    pieces.append(numbers(files, name, rest, dtype))
    return np.concatenate(pieces)


def _behind(files: Files, name: str, skip: int) -> int:
    """The offset behind so many lines."""
    head, at = files.head(name), 0
    for _ in range(skip):
        end = head.find(b"\n", at)
        if end < 0:
            return files.sizes[name]
        at = end + 1
    return at


def numbers(files: Files, name: str, block: bytes, dtype: str) -> Array:
    """The numbers of a piece of text, flat.

    Raises:
        InputError: a word that is no number of this type.
    """
    import numpy as np

    want = np_dtype(dtype)
    words = block.replace(b",", b" ").split()
    if not words:
        return np.empty(0, want)
    if block.translate(None, _LETTERS) or max(map(len, words)) > MAX_WORD:
        raise files.damaged(name, "a word of it is no number")
    try:
        return _parsed(words, want)
    except (ValueError, OverflowError) as e:
        raise files.damaged(name, f"a word of it is no {dtype}: {e}") from e


def _parsed(words: list[bytes], want: np.dtype[Any]) -> Array:
    import numpy as np

    if want.kind in "iu":
        whole = np.array([int(w) for w in words], object)
        info = np.iinfo(want)
        if whole.min() < info.min or whole.max() > info.max:
            raise ValueError(f"{whole.min()} to {whole.max()}")
        return whole.astype(want)
    with np.errstate(over="ignore"):
        return np.array([_float(w) for w in words], np.float64).astype(want)


def _float(word: bytes) -> float:
    """A number; `1.#IND`, `-1.#INF`, `-nan(ind)` and `nan(snan)` as Windows prints them."""
    if b"#" in word or word.lower().startswith((b"nan(", b"-nan(")):
        inf = b"inf" in word.lower()
        return (float("-inf") if word.startswith(b"-") else float("inf")) if inf else float("nan")
    return float(word)


def is_numeric(files: Files, name: str, skip: int = 0) -> bool:
    """Whether the beginning of a file is numbers and nothing else."""
    head = files.head(name)
    whole = len(head) == files.sizes[name]
    lines = head.split(b"\n")[skip : None if whole else -1]
    words = b" ".join(lines).replace(b",", b" ").split()
    if not words or b" ".join(lines).translate(None, _LETTERS):
        return False
    try:
        return all(isinstance(_float(w), float) for w in words)
    except ValueError:
        return False


def is_whole(files: Files, name: str, skip: int = 0) -> bool:
    """Whether the beginning of a file is whole numbers: printed floats have a point or an exponent."""
    return not any(c in b".eEnNaAiI" for line in files.head(name).split(b"\n")[skip:] for c in line)


def loader(files: Files, name: str, dtype: str, shape: tuple[int, ...] | None, skip: int = 0) -> Callable[[], Array]:
    """What reads a file's numbers in this shape; flat without one."""

    def load() -> Array:
        import math

        if shape is not None and math.prod(shape) > files.sizes[name]:  # a value takes a digit at least
            raise files.damaged(name, f"{files.sizes[name]} bytes are no {list(shape)} values")
        found = values(files, name, dtype, skip)
        if shape is None:
            return found
        if found.size != math.prod(shape):
            raise files.damaged(name, f"{found.size} values are no {list(shape)}")
        return files.shaped(name, found, shape)

    return load


def lines(array: Array, form: str) -> str:
    """One value per line: `%.9f`, `%d`."""
    return "".join(f"{form % v}\n" for v in array.reshape(-1).tolist())
