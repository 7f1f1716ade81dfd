"""The release that broke it, and the one that mended it: a bisection over releases, both ways from
the one that is used.

Releases that cannot be tried (they are not installed, or refuse the model) are passed over, as `git
bisect skip` does. A history may change more than once. So the next release after the two changes is
the middle of the widest gap, and a gap is closed if its middle differs. Nothing is claimed about
releases that are not tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from subgraph.results.blame import ReleaseOutcomes, ReleaseState, TriedRelease

MAX_RELEASES_TRIED_EACH = 7  # releases of which each is tried


def search(
    releases: Sequence[str], used: int, ask: Callable[[str], TriedRelease], most: int | None = None
) -> tuple[ReleaseOutcomes, list[str]]:
    """Try releases, the oldest first, around the one that is used, whose answer costs nothing.

    `ask` is called once per release; `most`: how often, but for changes that were found: log₂ of
    the releases + 1. The first release that is wrong and the first that is right are of those that
    were tried: where the wrong ones around the release that is used begin, and where they end;
    around one that is right, the nearest ones.

    Returns:
        The states of the releases, and notes.
    """
    asked = _Asked(releases, ask)
    asked[used]
    number = len(releases)
    most = most or (number if number <= MAX_RELEASES_TRIED_EACH else (number - 1).bit_length() + 1)
    for end in (number - 1, 0):
        asked[end]
    for end in (number - 1, 0):
        asked.close(used, end)
    while len(asked.states) - 1 < most and (gap := asked.widest_gap()) is not None:
        low, high = gap
        middle = (low + high) // 2
        if asked[middle] not in (asked[low], asked[high]) or asked[low] is not asked[high]:
            asked.close(low, middle)
            asked.close(middle, high)
    return _list_history(asked, used)


class _Asked:
    """The known answers, by the position of a release."""

    def __init__(self, releases: Sequence[str], ask: Callable[[str], TriedRelease]) -> None:
        self.releases = releases
        self._ask = ask
        self.states: dict[int, TriedRelease] = {}

    def __getitem__(self, k: int) -> ReleaseState:
        if k not in self.states:
            self.states[k] = self._ask(self.releases[k])
        return self.states[k].state

    def close(self, one: int, other: int) -> None:
        """Halve the releases between two whose answers differ until those of neighbors do.

        If unknown ones are on the way, the change to them is found, then the one after them.
        """
        low, high = sorted((one, other))
        while high - low > 1 and self[low] is not self[high]:
            middle = (low + high) // 2
            if self[middle] is self[low]:
                low = middle
            elif self[middle] is self[high]:
                high = middle
            else:  # three kinds: two changes
                self.close(low, middle)
                low = middle

    def widest_gap(self) -> tuple[int, int] | None:
        """Return two tried releases with the most untried ones between them; None without such."""
        known = sorted(self.states)
        gaps = [(low, high) for low, high in itertools.pairwise(known) if high - low > 1]
        return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)


def _list_history(asked: _Asked, used: int) -> tuple[ReleaseOutcomes, list[str]]:
    tried = [asked.states[k] for k in sorted(asked.states)]
    own = next(k for k, t in enumerate(tried) if t.version == asked.releases[used])
    state = tried[own].state
    notes = []
    other = ReleaseState.RIGHT if state is ReleaseState.WRONG else ReleaseState.WRONG
    # the first of the releases in this state that lead up to the one that is used
    first_same = None
    for one in itertools.takewhile(lambda t: t.state is not other, reversed(tried[: own + 1])):
        if one.state is state:
            first_same = one.version
    first_other = next((t.version for t in tried[own:] if t.state is other), None)
    if state is ReleaseState.WRONG and not any(t.state is other for t in tried[:own]):
        notes.append(f"none before {first_same} is known to be right")
    elif state is ReleaseState.RIGHT and not any(t.state is other for t in tried[:own]):
        first_same = None
    first_wrong, first_right = (
        (first_same, first_other) if state is ReleaseState.WRONG else (first_other, first_same)
    )
    known = [t.state for t in tried if t.state is not ReleaseState.UNKNOWN]
    changes = sum(before is not after for before, after in itertools.pairwise(known))
    if changes > 2:
        notes.append(f"the history changes {changes} times: what was not tried may be otherwise")
    wrong, right = (
        [t.version for t in tried if t.state is kind]
        for kind in (ReleaseState.WRONG, ReleaseState.RIGHT)
    )
    unknown = {t.version: t.why for t in tried if t.state is ReleaseState.UNKNOWN}
    releases = len(asked.releases)
    return ReleaseOutcomes(wrong, right, unknown, first_wrong, first_right, releases, tried), notes
