"""SPEC -> Candidate: what is doubted, with its settings and limits.

A SPEC is `BACKEND[:key=value,…]`, `cmd:COMMAND LINE`, `path/to/backend.py[:key=value,…]`, or a name from the project
file, whose table has either `spec` or `run` (and `convert`), and the settings below.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.errors import UnknownName, UsageError
from subgraph.project import Project
from subgraph.text import nearest

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
TIMEOUT = 600.0  # seconds for one convert or one run, where none is given: slow converters take minutes
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SETTINGS = {
    "spec": str,
    "run": str,
    "convert": str,
    "precision": str,
    "multi": bool,
    "timeout": float,
    "memory_limit": str,
}
COMMANDS = ("run", "convert")


@dataclass(frozen=True)
class Candidate:
    """What is doubted.

    Attributes:
        name: as the user named it; shown in reports.
        backend: a backend's name, or the path of a Python file.
        options: what the backend's `load` is given.
        precision, multi: None where the backend itself says it.
        timeout: seconds for one load or one run; memory: bytes of the process tree, None without a limit.
        origin: the project file that it comes from; "" where it was typed.
    """

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    multi: bool | None = None
    timeout: float = TIMEOUT
    memory: int | None = None
    origin: str = ""

    @property
    def commands(self) -> list[str]:
        """What of it runs that is no part of subcut: command lines, or a Python file."""
        if self.backend == "cmd":
            return [str(self.options[step]) for step in ("convert", "run") if self.options.get(step)]
        return [self.backend] if self.backend.endswith(".py") else []

    def identity(self, version: str) -> dict[str, Any]:
        """All that its answers depend on: settings, limits, version, and the contents of local scripts."""
        files = {word: _contents(word) for command in self.commands for word in _words(command)}
        return {
            "backend": self.backend,
            "options": dict(self.options),
            "precision": self.precision,
            "timeout": self.timeout,
            "memory": self.memory,
            "version": version,
            "files": {word: digest for word, digest in files.items() if digest},
        }


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _contents(word: str) -> str:
    """The digest of a file's contents, "" of what is no file."""
    try:
        return hashlib.sha256(Path(word).read_bytes()).hexdigest() if Path(word).is_file() else ""
    except OSError:
        return ""


def parse(spec: str, project: Project | None = None) -> Candidate:
    """The candidate that a SPEC means.

    >>> parse("ort:opt=basic,threads=2").options
    {'opt': 'basic', 'threads': '2'}

    Raises:
        UnknownName: no such backend or candidate; carries the nearest names. UsageError: a setting does not fit.
    """
    table = project.values.get("candidates", {}) if project else {}
    if spec in table:
        return _named(spec, table[spec], str(project.file) if project else "")
    if spec.startswith("cmd:"):
        return Candidate(spec, "cmd", {"run": spec.removeprefix("cmd:")})
    m = re.fullmatch(r"(.*?\.py|[^:]*)(?::(.*))?", spec, re.DOTALL)
    assert m is not None
    backend, options = m[1], _options(spec, m[2] or "")
    if backend.endswith(".py"):
        if not Path(backend).is_file():
            raise UsageError(f"no file {backend}", "a candidate can be a Python file with load(model, options)")
        return Candidate(spec, str(Path(backend).resolve()), options)
    known = plugins.names("backends")
    if backend not in known:
        names = [*known, *table]
        hint = f"one of {', '.join(names)}, cmd:COMMAND, or a Python file"
        close = [n for n in nearest(backend, names)[:1] if len(backend) > 2]
        raise UnknownName(f"no candidate '{backend}'", f"did you mean '{close[0]}'? {hint}" if close else hint, close)
    return Candidate(spec, backend, options)


def _options(spec: str, text: str) -> dict[str, str]:
    options = {}
    for word in filter(None, text.split(",")):
        key, sep, value = word.partition("=")
        if not sep or not key:
            raise UsageError(f"candidate {spec}: '{word}' is no setting", "BACKEND:key=value,key=value")
        options[key] = value
    return options


def _named(name: str, table: Any, origin: str) -> Candidate:
    """A candidate from the project file; commands in it are relative to nothing: they run where subcut runs."""
    where = f"{origin}: candidate '{name}'"
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table", f"[candidates.{name}]")
    for key, value in table.items():
        if key == "memory_limit":
            continue
        if key not in SETTINGS:
            raise UnknownName(
                f"{where} has an unknown key '{key}'", nearest=nearest(key, (*SETTINGS, "memory_limit"))[:1]
            )
        kind = SETTINGS[key]
        if not isinstance(value, kind) and not (kind is float and type(value) is int):
            raise UsageError(f"{where}: '{key}' cannot be {value!r}")
    if ("spec" in table) == ("run" in table):
        raise UsageError(f"{where} needs either 'spec' or 'run'", 'run = "./run.sh {model} {inputs} {outputs}"')
    if "spec" in table:
        base = replace(parse(table["spec"]), name=name)
    else:
        base = Candidate(name, "cmd", {step: table[step] for step in COMMANDS if step in table})
    return replace(
        base,
        precision=precision(where, table.get("precision")),
        multi=table.get("multi"),
        timeout=float(table.get("timeout", TIMEOUT)),
        memory=memory(table["memory_limit"]) if "memory_limit" in table else None,
        origin=origin,
    )


def precision(where: str, text: str | None) -> str | None:
    """A claimed precision.

    Raises:
        UsageError: none that the criterion knows.
    """
    if text is not None and text not in PRECISIONS:
        raise UsageError(f"{where}: precision '{text}' is unknown", f"one of {', '.join(PRECISIONS)}")
    return text


def memory(text: str) -> int:
    """Bytes of `8G`, `500M`, `1.5GiB` …

    >>> memory("1.5G") == 3 << 29
    True

    Raises:
        UsageError: something else.
    """
    m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if m is None or not float(m[1]):
        raise UsageError(f"memory limit {text}: expected a size", "8G, 500M")
    return int(float(m[1]) * UNITS[m[2]])


# ---------------------------------------------------------------------------------------------------- trust


def require_trust(candidate: Candidate, given: bool) -> str:
    """May this candidate's commands run? Returns what is said about them; "" where there is nothing to say.

    Commands that were typed are the user's own. Those from a project file may be somebody else's: they run only with
    `--trust`, which is remembered for exactly these commands.

    Raises:
        UsageError: they come from a file and are not trusted.
    """
    if not candidate.origin or not candidate.commands:
        return ""
    shown = "; ".join(candidate.commands)
    digest = hashlib.sha256(json.dumps([candidate.origin, candidate.identity("")]).encode()).hexdigest()
    if given:
        _remember(digest)
    elif digest not in _remembered():
        raise UsageError(
            f"candidate {candidate.name} would run commands from {candidate.origin}: {shown}",
            "if you know them, say --trust once; they are asked about again when they change",
        )
    return shown


def _trusted_file() -> Path | None:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - may stay a tilde
    return Path(home) / "subcut" / "trusted" if home.startswith("/") else None


def _remembered() -> set[str]:
    file = _trusted_file()
    try:
        return set(file.read_text(encoding="ascii").split()) if file else set()
    except (OSError, ValueError):
        return set()


def _remember(digest: str) -> None:
    """Where the file cannot be written, `--trust` is needed each time: no reason to stop."""
    file = _trusted_file()
    if file is None or digest in _remembered():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="ascii") as out:
            out.write(f"{digest}\n")
    except OSError:
        return
