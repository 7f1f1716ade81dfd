"""Texts for terminals and reports: safe names, short names, numbers, lists, columns.

A name from a model may have control characters or terminal escapes, which `clean` removes.
`find_nearest` returns the names that are similar to a typo.
"""

from __future__ import annotations

import heapq
import math
import os
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Sequence, Sized
from functools import lru_cache
from pathlib import Path

from subgraph.lazy import difflib
from subgraph.types import StringMap

# The sequences that color a terminal, C0 and C1 controls, the Unicode line and paragraph
# separators, and the marks that reverse the direction of text.
_UNSAFE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|"
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_UNSAFE_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))

_LOGIN = re.compile(r"(?<=://)[^\s/?#'\"]+@")  # user and password, or a token, in a URL
MASK = "****@"  # the text instead of a login, as in pip
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell that starts with one of these is a formula
MAX_WORD_CHARACTERS = 600  # a word of more characters loses its middle
_LONG_WORD = re.compile(r"(\S{300})\S{200,}(\S{100})")
# A name that no sentence shows in full, unless it is the folder of a case, which users copy.
LONG_NAME = r"(?<![^\s(),'\"])(?![^\s(),'\"]*/culprit)[^\s(),'\"]{81,}"
MIN_LABEL = 6  # columns of a label that still distinguishes names
MAX_SHORTLIST = 200  # names that `find_nearest` compares in full


def clean(name: str) -> str:
    """Return a name for one line of a terminal, without control characters, and without the middle
    of a word of `MAX_WORD_CHARACTERS` characters.

    >>> clean("a\\x1b[31mb\\n"), len(clean("x" * 10_000))
    ('ab', 401)
    """
    text = _UNSAFE.sub("", name)
    if len(text) < MAX_WORD_CHARACTERS:
        return text
    return _LONG_WORD.sub(r"\1…\2", text)


PLAIN = {
    "→": "->",
    "…": "...",
    "·": ".",
    "×": "x",
    "−": "-",
    "–": "-",
    "─": "-",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "±": "+-",
    "├": "|",
    "│": "|",
    "└": "`",
    "✗": "x",
    "✓": "+",
    "≈": "~",
    "∞": "inf",
    "²": "^2",
    "Σ": "sum",
}


def replace_character(e: UnicodeError) -> tuple[str, int]:
    """Return a replacement for a character that a terminal lacks; to be registered as a handler of
    errors (`codecs`).

    >>> import codecs
    >>> codecs.register_error("plain", replace_character)
    >>> "1 → 2 × 3 ☃".encode("ascii", "plain")
    b'1 -> 2 x 3 ?'
    """
    assert isinstance(e, UnicodeEncodeError)
    return "".join(PLAIN.get(c, "?") for c in e.object[e.start : e.end]), e.end


def split_spec(spec: str) -> tuple[str, str, str]:
    r"""Split at the first colon, as `partition(":")`, but not after a drive of Windows.

    >>> split_spec("ort:opt=basic"), split_spec(r"C:\mine.py:a=1")
    (('ort', ':', 'opt=basic'), ('C:\\mine.py', ':', 'a=1'))
    """
    drive = 2 if re.match(r"[A-Za-z]:[\\/]", spec) else 0
    head, colon, rest = spec[drive:].partition(":")
    return spec[:drive] + head, colon, rest


def split_signature(path: Path) -> tuple[Path, str]:
    """Split `FILE.tflite:SIGNATURE` into (FILE, SIGNATURE); another path into (path, "")."""
    file, suffix, signature = str(path).rpartition(".tflite:")
    return (Path(f"{file}.tflite"), signature) if suffix and signature else (path, "")


def format_cell(text: str) -> str:
    """Return a text for a cell of a spreadsheet, without control characters and never a formula.

    >>> format_cell("=1+1\\n")
    "'=1+1"
    """
    shown = clean(text)
    if shown.startswith(FORMULA):
        return f"'{shown}"
    return shown


def clean_lines(text: str) -> str:
    """Return a text of several lines without control characters."""
    return _UNSAFE_LINES.sub("", text)


def mask_logins(text: str) -> str:
    """Return a text without the users and passwords of its URLs.

    >>> mask_logins("pip install --index-url https://me:pw@host/simple/ tool")
    'pip install --index-url https://****@host/simple/ tool'
    """
    return _LOGIN.sub(MASK, text)


def is_text(name: str) -> bool:
    """Return whether a file name or an argument is UTF-8.

    Python turns other bytes into surrogates.
    """
    return not any("\ud800" <= c <= "\udfff" for c in name)


def shorten(text: str, length: int = 120) -> str:
    """Return at most `length` characters of a text: `subcut dump a b …`."""
    if len(text) <= length:
        return text
    return text[: length - 2] + " …"


def omit_middle(name: str, length: int = 56) -> str:
    """Return a long name without its middle, at most `length` columns wide: names differ most at
    their end.

    >>> omit_middle("/encoder/layer.11/attention/output/dense/MatMul", 24)
    '/encode…put/dense/MatMul'
    """
    if count_columns(name) <= length:
        return name
    head = ""
    tail = ""
    for c in name:
        if count_columns(head + c) > (length - 1) // 3:
            break
        head += c
    for c in reversed(name):
        if count_columns(head + c + tail) > length - 1:
            break
        tail = c + tail
    return f"{head}…{tail}"


def shorten_names(text: str) -> str:
    """Shorten the long names in a sentence like `omit_middle`; `selection.select` accepts them."""
    return re.sub(LONG_NAME, lambda name: omit_middle(name[0]), text)


def make_distinct_labels(names: Iterable[str], length: int) -> StringMap:
    """Return a short label for each name: long names are shown where they differ.

    >>> names = ["/model.2/cv1/act/Mul_output_0", "/model.2/cv2/act/Mul_output_0"]
    >>> make_distinct_labels(names, 14).values()
    dict_values(['…cv1/act/Mul_…', '…cv2/act/Mul_…'])
    """
    labels = {name: omit_middle(name, length) for name in names}
    alike: dict[str, list[str]] = {}
    for name, label in labels.items():
        alike.setdefault(label, []).append(name)
    for group in alike.values():
        begin = find_shared_start(group)
        end = find_shared_start([name[begin:][::-1] for name in group])
        room = length - 2
        if len(group) == 1 or not begin + end or room < MIN_LABEL:
            continue
        parts = {name: name[begin : max(len(name) - end, begin + room)] for name in group}
        inner = make_distinct_labels(parts.values(), room)
        for name, part in parts.items():
            tail = "" if name.endswith(part) else "…"
            label = f"{'…' * bool(begin)}{inner[part]}{tail}"
            labels[name] = label.replace("……", "…")
    return labels


def find_shared_start(names: Sequence[str]) -> int:
    """Return how many characters the names share at their start, without a part of a word.

    >>> find_shared_start(["/conv1/Relu", "/conv2/Relu"])
    1
    """
    same = len(os.path.commonprefix(list(names)))  # noqa: RUF071 of characters, not of folders
    while (
        same
        and names[0][same - 1].isalnum()
        and any(name[same : same + 1].isalnum() for name in names)
    ):
        same -= 1
    return same


@lru_cache(maxsize=4096)
def wrap(text: str, width: int, indent: int) -> list[str]:
    """Return a text in lines of at most this width; long words stay whole.

    Args:
        text: The text.
        width: The number of columns.
        indent: The number of blanks before each line but the first one.
    """
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def count_columns(text: str) -> int:
    """Return the columns in a monospace font: wide characters, such as Chinese, take two.

    >>> count_columns("a卷")
    3
    """
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def describe_run(number: int | None) -> str:
    """Return `from the second run of a session on`; "" for None."""
    if number:
        return f"from the {('second', 'third')[number - 2]} run of a session on"
    return ""


def find_free_name(name: str, taken: Collection[str], sign: str) -> str:
    """Return the name; if it is taken, with a sign and the first free number appended.

    >>> find_free_name("conv", {"conv", "conv_2"}, "_")
    'conv_3'
    """
    free = name
    number = 1
    while free in taken:
        number += 1
        free = f"{name}{sign}{number}"
    return free


def list_some(names: Sequence[str], most: int) -> str:
    """Return the first of some names, and how many others there are.

    >>> list_some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    shown = ", ".join(names[:most])
    if len(names) > most:
        return f"{shown} and {len(names) - most} more"
    return shown


def count(counted: int | Sized, noun: str) -> str:
    """Return a number, or the number of some items, with a noun: `1 node`, `17 nodes`."""
    number = len(counted) if isinstance(counted, Sized) else counted
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def describe_prediction(top1: float, top5: float) -> str:
    """Describe the change of the classes that a model ranks highest, from their `top1` and `top5`
    agreement, 0 … 1.

    >>> describe_prediction(top1=1.0, top5=0.8)
    'prediction unchanged, top-5 agrees in 80 %'
    """
    if top1 < 1:
        return f"prediction changed: top-1 agrees in {top1:.0%}, top-5 in {top5:.0%}".replace(
            "%", " %"
        )
    return "prediction unchanged" + (f", top-5 agrees in {top5 * 100:.0f} %" if top5 < 1 else "")


def describe_agreement(
    inner: int | None,
    disturbance: float | None,
    mute: Iterable[str],
    within: str = "",
    where: str = "",
) -> str:
    """Return what was compared, all of which agrees: `outputs and 27 intermediate tensors agree`.

    Args:
        inner: Intermediate tensors that were compared; None if none was.
        disturbance: How far reading them moved the outputs, relative to their largest value.
        mute: Outputs in which the input could not show a fault.
        within: The limit within which the outputs agree.
        where: The conditions of the agreement, appended to the text.
    """
    agree = f"agree {within}" if within else "agree"
    tensors = count(inner or 0, "intermediate tensor")
    if inner is None:
        parts = [f"outputs {agree}{where}", "intermediate tensors were not checked"]
    elif disturbance:
        share = f"{100 * disturbance:.2g} % of their largest value"
        moved = f"{tensors} agree too, but reading them changed the outputs by {share}{where}"
        parts = [f"outputs {agree}", moved]
    else:
        parts = [f"outputs and {tensors} {agree}{where}"]
    silent = list(mute)
    return "; ".join([*parts, explain_mute_outputs(silent)] if silent else parts)


def explain_mute_outputs(names: Sequence[str]) -> str:
    """Return a sentence about outputs that could not show a fault of the candidate.

    >>> explain_mute_outputs(["boxes", "scores"])
    "this input tells nothing about 'boxes', 'scores'"
    """
    quoted = [f"'{name}'" for name in names]
    return f"this input tells nothing about {list_some(quoted, 3)}"


def shorten_path(path: str) -> str:
    """Return a source file as people know it: its path in a package, else its folder and name.

    >>> names = ("/py/site-packages/torchvision/models/resnet.py", "/me/net/model.py")
    >>> tuple(map(shorten_path, names))
    ('torchvision/models/resnet.py', 'net/model.py')
    """
    parts = re.split(r"[/\\]", re.split(r"(?:site|dist)-packages[/\\]", path)[-1])
    return "/".join(parts if "-packages" in path else parts[-2:])


def format_large(number: float) -> str:
    """Return a large number in short: 76.3 k, 25.6 M; below 1,000 in full.

    A number in a damaged file may be beyond the range of a float.

    >>> format_large(76_300), format_large(10**338)
    ('76.3 k', '10^338')
    """
    if number >= 1e18:
        return f"10^{math.log10(number):.0f}"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def format_size(number: int) -> str:
    """Return bytes in the unit in which they have at most four digits.

    >>> format_size(1023), format_size(3 << 19)
    ('1023 bytes', '1.5 MiB')
    """
    if number >= 1 << 60:  # a damaged file may hold any number
        return f"{format_large(number)} bytes"
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift:
            return f"{number / (1 << shift):.1f} {unit}"
    return f"{number} bytes"


def find_nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return the three names most similar to `word`, best first; case does not matter.

    Compared in full (difflib) are the `MAX_SHORTLIST` names that share most pairs of letters.
    Complexity: linear in the names.
    """
    low = word.lower()
    pairs = {low[i : i + 2] for i in range(len(low) - 1)} or {low}

    def distance(name: str) -> tuple[int, int]:
        other = name.lower()
        return -sum(pair in other for pair in pairs), abs(len(name) - len(word))

    matcher = difflib.SequenceMatcher(b=low, autojunk=False)

    def similarity(name: str) -> tuple[bool, float]:
        matcher.set_seq1(name.lower())
        return len(
            low
        ) > 2 and low in name.lower(), matcher.ratio()  # part of a name beats a similar one

    close = heapq.nsmallest(MAX_SHORTLIST, dict.fromkeys(names), key=distance)
    return sorted(close, key=similarity, reverse=True)[:3]


def align_columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Return lines with aligned columns, two spaces apart; the columns `right` are aligned to the
    right."""
    widths = [max(map(count_columns, column)) for column in zip(*rows, strict=True)]
    ends = frozenset(right)
    lines = []
    for row in rows:
        cells = []
        for k, cell in enumerate(row):
            blanks = " " * (widths[k] - count_columns(cell))
            cells.append(blanks + cell if k in ends else cell + blanks)
        lines.append("  ".join(cells).rstrip())
    return lines
