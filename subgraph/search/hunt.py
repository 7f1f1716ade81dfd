"""What is known while culprits are looked for: one state, that its parts read and change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from subgraph.search.findings import Finding
from subgraph.search.oracle import Items
from subgraph.search.passes import profile
from subgraph.search.passes.confirm import Belief
from subgraph.search.state import Search, SearchState


@dataclass
class Progress:
    """Attributes:
    scope: places that are still in question, ascending. clean: so many of its first ones were searched.
    shown: the profile of the scope; None where none is to be had.
    led: the last profile led to a culprit.
    pooled: single items that failed alone, found in a pool and not reported yet.
    complete: the rest agrees. claimed: so does everything, as well as the claimed precision lets it.
    """

    book: SearchState
    belief: Belief
    scope: Items
    labels: tuple[object, ...] | None = None
    clean: int = 0
    led: bool = False
    shown: profile.Profile | None = None
    pooled: list[Items] = field(default_factory=list)
    tried_pool: bool = False
    complete: bool = False
    claimed: bool = False
    probe_sensitive: bool = False
    findings: list[Finding] = field(default_factory=list)

    def without(self, places: Iterable[int]) -> None:
        """Leave these out from now on."""
        gone = set(places)
        self.scope = tuple(k for k in self.scope if k not in gone)
        self.pooled = [p for p in self.pooled if not gone.intersection(p)]

    def look(self) -> Search[None]:
        """A profile of the scope, where that can show something. Says whether it made the fault vanish."""
        if self.book.silent:
            return
        self.shown = yield from profile.profile(self.book, self.scope)
        if self.shown.seen is profile.Seen.VANISHED and not self.findings:
            self.probe_sensitive = True
