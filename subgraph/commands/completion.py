"""TAB in bash: words as bash splits them -> words as typed; names -> text that bash may insert.

bash also splits words at `=`, `:` and `@`, and inserts a reply unchanged. So a name with such
characters is joined again, only its last part is replied, and characters that the shell acts on
(blanks, `;`, `$(…)`) are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

BREAKS = frozenset(
    "=:@"
)  # the characters of bash's COMP_WORDBREAKS that occur in names without quotes


def joined(words: Sequence[str], at: int) -> tuple[list[str], int, int]:
    """The words as typed, the index of the current word, and how many of its first characters bash keeps.

    `--start=pool1` comes out as two words.

    >>> joined(["subcut", "--end", "layer", ":", "0"], 4)
    (['subcut', '--end', 'layer:0'], 2, 6)
    >>> joined(["subcut", "--end", "=", "layer"], 3)
    (['subcut', '--end', 'layer'], 2, 0)
    """  # noqa: E501
    out: list[str] = []
    open_ended = False
    current = max(len(words) - 1, 0)
    kept = 0
    for i, word in enumerate(words):
        breaks = bool(word) and BREAKS.issuperset(word)
        if word == "=" and out and out[-1].startswith("--"):
            out.append("")
        elif out and (breaks or open_ended):
            out[-1] += word
        else:
            out += word.split("=", 1) if re.match(r"--[\w-]+=", word) else [word]
        open_ended = breaks
        if i == at:
            current = len(out) - 1
            kept = 0
            if out[-1].endswith(word):
                kept = len(out[-1]) - len(word) * (not breaks)
    return out, current, kept


def replies(names: Iterable[str], word: str, kept: int) -> list[str]:
    """The replies for `names`, if the current word is `word` and bash keeps its first `kept` characters.

    >>> replies(["layer:0", "layer:a b"], "layer:", 6)
    ['0', 'a\\\\ b']
    """  # noqa: E501
    if word.startswith("'"):
        return [name for name in names if "'" not in name]
    if word.startswith('"'):
        return [re.sub(r'([\\"$`])', r"\\\1", name) for name in names]
    return [re.sub(r"([^\w@%+=:,./-])", r"\\\1", name[kept:]) for name in names]
