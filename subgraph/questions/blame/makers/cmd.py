"""A command with {model}, {made}, and the steps that it can omit: {skip:A,B}.

The omitted steps are filled in, separated by commas, or an empty text if none is omitted. There is
no shell.
"""

from __future__ import annotations

import re

from subgraph import children, system
from subgraph.errors import Refused, UsageError, explain_os_error
from subgraph.questions.blame.makers import Making
from subgraph.runtime.command_line import fill

SECONDS = 3600.0  # the process that runs this has a limit, too
PLACE = re.compile(r"\{skip:([^{}]+)\}")


def steps(making: Making, command: str) -> list[str]:
    """Return the steps that the command can omit."""
    places = PLACE.findall(command)
    if len(places) != 1 or "{model}" not in command:
        raise UsageError(
            "--made-by: a command needs {model}, {made} and one {skip:A,B}",
            "'./make.sh {model} {made} {skip:fuse_bn,fuse_pad}'",
            code="command.lacks-place",
        )
    return [name.strip() for name in places[0].split(",")]


def make(making: Making, command: str) -> None:
    """Run the command."""
    skip = ",".join(name for name in steps(making, command) if name in making.skip)
    places = {"model": str(making.model), "made": str(making.made)}
    words = [fill(PLACE.sub(lambda _: skip, word), places) for word in system.split(command)]
    what = f"cannot run {words[0]}"
    with explain_os_error(UsageError, what, "check its path", code="command.not-runnable"):
        done = children.run(words, timeout=SECONDS)
    if done.code:
        said = " ".join(done.list_last_lines(1))
        raise Refused(f"{words[0]} ended with exit code {done.code}: {said}", code="command.failed")
