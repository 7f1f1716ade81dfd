"""What is inside of a node, branches of an If for example -> a drawing in the node's frame, in the
place of its box.

Each body is a network of its own, in a frame with its name; they stand beside each other where
there is room, else one below the other. Its nodes are numbered on from those around it, and its
names begin with the node's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from subgraph.drawing.layered import Placed
from subgraph.drawing.level import ADVANCE, HEADER, PAD, Level
from subgraph.drawing.network import Network
from subgraph.text import clean, columns


@dataclass(frozen=True)
class Inner:
    """A body of a node.

    Attributes:
        word: its name at the node, `then_branch`.
        prefix: what stands before its names in the drawing around it, `if1/then_branch/`.
        first: the number there of its first node. size: how many nodes it holds, those in its own
            bodies included.
        bodies: of its nodes, by their numbers in `network`.
        notes: what stands behind their operators.
    """

    word: str
    prefix: str
    first: int
    size: int
    network: Network
    bodies: Mapping[int, Sequence[Inner]]
    notes: Mapping[int, str] = field(default_factory=dict)

    def outer(self, key: str) -> str:
        """A key of a box inside, as the drawing around calls it."""
        number = node_of(key)
        return f"{self.prefix}{key}" if number is None else f"#{self.first + number}"


def share_keys(
    keys: Iterable[str], bodies: Sequence[Inner]
) -> tuple[set[str], dict[str, frozenset[str]]]:
    """Keys of the drawing around, and by the prefix of each body those inside, as it calls them.

    `bodies`: ascending by `first`. Linear in the keys.
    """
    firsts = [body.first for body in bodies]
    by_prefix = {body.prefix: body for body in bodies}
    own: set[str] = set()
    inside: dict[str, set[str]] = {}
    for key in keys:
        number = node_of(key)
        body = None
        if number is not None:
            place = bisect_right(firsts, number) - 1
            body = (
                bodies[place]
                if place >= 0 and number < firsts[place] + bodies[place].size
                else None
            )
        else:
            ends = (k + 1 for k, letter in enumerate(key) if letter == "/")
            body = next((by_prefix[key[:end]] for end in ends if key[:end] in by_prefix), None)
        if body is None:
            own.add(key)
        else:
            name = key[len(body.prefix) :] if number is None else f"#{number - body.first}"
            inside.setdefault(body.prefix, set()).add(name)
    return own, {prefix: frozenset(found) for prefix, found in inside.items()}


def node_of(key: str) -> int | None:
    """The number of the node that a box of this key stands for; None for another box.

    >>> node_of("#17"), node_of("#3-17"), node_of("stem")
    (17, None, None)
    """
    return int(key[1:]) if key[:1] == "#" and key[1:].isdecimal() and key[1:].isascii() else None


def frame_bodies(
    sizes: Sequence[tuple[float, float]],
    words: Sequence[str],
    tensors: tuple[Collection[str], Collection[str]],
    label: str,
    room: float,
) -> tuple[Level, list[tuple[float, float, float, float]]]:
    """The frame of a node whose bodies are drawings of these sizes, and per body: x, y, width and
    height of its frame.

    `tensors`: that enter and leave the node.
    """
    wide = [
        max(width, columns(word) * ADVANCE + 14)
        for (width, _), word in zip(sizes, words, strict=True)
    ]
    beside = sum(wide) + PAD * (len(wide) + 1) <= room
    frames: list[tuple[float, float, float, float]] = []
    x = PAD
    y = HEADER + PAD
    for (_, height), width in zip(sizes, wide, strict=True):
        frames.append((x, y, width, height + HEADER))
        x, y = (x + width + PAD, y) if beside else (x, y + height + HEADER + PAD)
    whole = max(max(x + w for x, _, w, _ in frames) + PAD, columns(clean(label)) * ADVANCE + 30)
    bottom = max(y + h for _, y, _, h in frames) + PAD
    enter, leave = (dict.fromkeys(names, whole / 2) for names in tensors)
    nothing = Placed(whole, bottom, [], [], [], whole / 2, [])
    return Level(whole, bottom, whole / 2, enter, leave, (), (), nothing, (0.0, 0.0)), frames
