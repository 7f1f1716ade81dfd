"""ncnn: a text file per blob, as the `pretty_print` of its documentation prints one.

Source: docs/Home.md of Tencent/ncnn (three dimensions), and the later form with `m.d`, four
dimensions and an empty line after each slice. A blob has no batch; ncnn itself prints six digits
after the point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from subgraph.iterables import flatten
from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy, _text
from subgraph.types import Array, Shape

ENDS = (".txt", ".log")
TEXT_STEP = 1e-6  # of `%f`
_RULE = b"-" * 24  # after each channel
_ROW = re.compile(rb"(?:[-+]?(?:\d+\.\d{6}|nan|inf) )+")
plain = _npy.plain


def detect(files: Files) -> int:
    """Detect the format by lines of 24 dashes between rows of numbers."""
    if any(_is_printed(files, name) for name in files.ending(*ENDS)):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per file that holds a blob; channels × rows × columns, with any slices second."""
    for name in filter(partial(_is_printed, files), files.ending(*ENDS)):
        side, _, base = name.rpartition(".")[0].rpartition("/")
        shape = _find_shape(files, name)
        load = partial(_read, files, name, shape)
        yield DumpEntry(name, load, "float32", shape, tensor=base, side=side, step=TEXT_STEP)


def _is_printed(files: Files, name: str) -> bool:
    """Return whether a file begins with a row of numbers, and ends with a rule."""
    first = files.head(name).lstrip().split(b"\n", 1)[0].rstrip(b"\r")
    row = _ROW.fullmatch(first) or (len(first) >= 64 and _ROW.match(first))
    last = min(64, files.sizes[name])
    return bool(row) and _RULE in files.bytes(name, files.sizes[name] - last, last)


def _split_channels(files: Files, name: str) -> list[bytes]:
    """Return the text of each channel.

    Raises:
        InputError: there is text after the last rule.
    """
    *channels, rest = files.text(name).encode().replace(b"\r", b"").split(_RULE + b"\n")
    if rest.strip():
        raise files.make_error(name, "its last channel has no end")
    return channels


def _find_shape(files: Files, name: str) -> Shape:
    """Return (channels, rows, columns), or (channels, slices, rows, columns).

    Raises:
        InputError: channels, slices or rows are of different sizes.
    """
    channels = _split_channels(files, name)
    sizes = {
        tuple(tuple(_count_columns(part)) for part in re.split(rb"\n\n", text.strip(b"\n")))
        for text in channels
    }
    slices = next(iter(sizes), ())
    columns = set(flatten(slices))
    heights = {len(rows) for rows in slices}
    if len(sizes) != 1 or len(columns) != 1 or len(heights) != 1:
        raise files.make_error(name, "its channels or rows are of different sizes")
    depth = [len(slices)] if len(slices) > 1 else []
    return (len(channels), *depth, heights.pop(), columns.pop())


def _count_columns(slice_: bytes) -> Iterator[int]:
    return (len(row.split()) for row in slice_.split(b"\n"))


def _read(files: Files, name: str, shape: Shape) -> Array:
    flat = _text.parse_numbers(files, name, b"".join(_split_channels(files, name)), "float32")
    return files.reshape(name, flat, shape)
