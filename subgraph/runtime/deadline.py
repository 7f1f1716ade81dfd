"""The time limit of a command: one object, on which all timeouts of its runs depend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from subgraph.errors import OutOfTime

T = TypeVar("T")


@dataclass
class Deadline:
    """When the last run of a command must have ended; its processes share the object.

    Attributes:
        at: The time, by `time.monotonic`; infinite without a limit.
    """

    at: float = math.inf

    def limit(self, began: float, seconds: float | None) -> None:
        """Set the end to a number of seconds after a time; None for no limit."""
        self.at = began + (math.inf if seconds is None else seconds)

    @property
    def has_passed(self) -> bool:
        """Whether nothing more may run."""
        return time.monotonic() >= self.at

    def timeout(self, most: float) -> float:
        """Return the seconds until the end, at most `most`; 0 after the end."""
        return min(most, max(self.at - time.monotonic(), 0.0))

    def require(self) -> None:
        """Raise an error once the time is used up.

        Raises:
            OutOfTime: It is.
        """
        if self.has_passed:
            raise OutOfTime(
                "the time is used up",
                "the same command with more time goes on",
                code="time.used-up",
            )


def if_time(explain: Callable[[], T], otherwise: T) -> T:
    """Return an optional explanation, or `otherwise` if the time is used up before it is known."""
    try:
        return explain()
    except OutOfTime:
        return otherwise
