"""Facts in texts for users: names, numbers and states, without the sentence around them.

The sentences are in the transcripts of tests/said/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

CONTINUED = re.compile(r"\n {11}(?=\S)")  # of an answer, below a label


def has_line(text: str | Iterable[str], *facts: str) -> bool:
    """Return whether one line has all these facts, in this order; a wrapped line is one line.

    Args:
        text: A text, or several: notes, for example.
        facts: Names, numbers or states.
    """
    texts = [text] if isinstance(text, str) else text
    whole = (CONTINUED.sub(" ", each).splitlines() or [""] for each in texts)
    lines = chain.from_iterable(whole)
    pattern = re.compile(".*".join(re.escape(fact) for fact in facts))
    return any(pattern.search(line) for line in lines)
