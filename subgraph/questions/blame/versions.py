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
    history = _History(releases, ask)
    history[used]
    number = len(releases)
    most = most or (number if number <= MAX_RELEASES_TRIED_EACH else (number - 1).bit_length() + 1)
    for end in (number - 1, 0):
        history[end]
    for end in (number - 1, 0):
        history.close(used, end)
    while len(history.states) - 1 < most and (gap := history.widest_gap()) is not None:
        low, high = gap
        middle = (low + high) // 2
        if (
            history[middle] not in (history[low], history[high])
            or history[low] is not history[high]
        ):
            history.close(low, middle)
            history.close(middle, high)
    return _summarize_history(history, used)


class _History:
    """The releases that were tried, by their position."""

    def __init__(self, releases: Sequence[str], ask: Callable[[str], TriedRelease]) -> None:
        self.releases = releases
        self._ask = ask
        self.states: dict[int, TriedRelease] = {}

    def __getitem__(self, position: int) -> ReleaseState:
        if position not in self.states:
            self.states[position] = self._ask(self.releases[position])
        return self.states[position].state

    def close(self, begin: int, end: int) -> None:
        """Halve the releases between two whose answers differ until those of neighbors do.

        If unknown ones are on the way, the change to them is found, then the one after them.
        """
        low, high = sorted((begin, end))
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


def _summarize_history(history: _History, used: int) -> tuple[ReleaseOutcomes, list[str]]:
    """Return the states of the releases, and notes."""
    positions = sorted(history.states)
    tried = [history.states[k] for k in positions]
    until_used = tried[: positions.index(used) + 1]
    state = history[used]
    notes = []
    opposite = ReleaseState.RIGHT if state is ReleaseState.WRONG else ReleaseState.WRONG
    until_change = itertools.takewhile(lambda t: t.state is not opposite, reversed(until_used))
    *_, first_same = (release.version for release in until_change if release.state is state)
    after = tried[len(until_used) :]
    first_opposite = next((t.version for t in after if t.state is opposite), None)
    has_change = any(release.state is opposite for release in until_used)
    first_wrong: str | None = first_opposite
    first_right: str | None = first_same
    if state is ReleaseState.WRONG:
        first_wrong = first_same
        first_right = first_opposite
        if not has_change:
            notes.append(f"none before {first_same} is known to be right")
    elif state is ReleaseState.RIGHT and not has_change:
        first_right = None
    known = [release.state for release in tried if release.state is not ReleaseState.UNKNOWN]
    changes = sum(before is not after for before, after in itertools.pairwise(known))
    if changes > 2:
        notes.append(f"the history changes {changes} times: what was not tried may be otherwise")
    wrong, right = (
        [release.version for release in tried if release.state is kind]
        for kind in (ReleaseState.WRONG, ReleaseState.RIGHT)
    )
    unknown = {
        release.version: release.why for release in tried if release.state is ReleaseState.UNKNOWN
    }
    releases = len(history.releases)
    return ReleaseOutcomes(wrong, right, unknown, first_wrong, first_right, releases, tried), notes
