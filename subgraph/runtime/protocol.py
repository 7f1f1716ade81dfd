"""What a worker's process replies to its parent, as dataclasses; on the pipe they are sealed JSON lines.

A backend's code runs in the worker's process and can write into every descriptor of it. So each reply carries a keyed
hash of its number and its text. The key is random, and goes through the pipe before the backend is imported. A line
without the right hash is not believed: neither one made up nor one written again. This protects from faults and from
code that writes blindly. Code that searches the process's memory for the key can still forge a reply; the limits of a
process are no limits to what it says about itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from subgraph.runtime.inputs import Origin
from subgraph.storage.tensors import Record

KEY_BYTES = 32
SEAL_BYTES = 16
SCRATCH = "SUBCUT_SCRATCH"  # in a worker's environment: a folder for its temporary files, removed when it ends
CHANNEL_LOST = 76  # exit code of a worker whose pipe to subcut was closed by the backend's code; EX_PROTOCOL


def sealed(key: bytes, number: int, text: bytes) -> bytes:
    """A reply, the `number`th of its process, as a line of the pipe: the seal in hexadecimal, a blank, the text."""
    seal = blake2b(number.to_bytes(8, "big") + text, key=key, digest_size=SEAL_BYTES)
    return seal.hexdigest().encode() + b" " + text


def opened(key: bytes, number: int, line: bytes) -> bytes | None:
    """The text of a sealed line; None if the seal is another one."""
    from hmac import compare_digest

    text = line[2 * SEAL_BYTES + 1 :]
    return text if compare_digest(sealed(key, number, text), line) else None


def process_end(lines: Sequence[str], signal: str | None = None, code: int | None = None) -> dict[str, object]:
    """`process` of `WorkerDied` and of a verdict: always these three keys. `lines`: the last of standard error."""
    return {"signal": signal, "exit_code": code, "stderr": list(lines)}


@dataclass(frozen=True)
class BackendInfo:
    """What a backend says about itself, for some options.

    Attributes:
        precision: what it computes in: fp32, fp16, bf16 or int8.
        multi: it takes several disconnected pieces in one model.
        caveat: what a user must know before anything runs; "" if nothing.
        exact: the options with which it computes in full precision, or without optimisations; empty where these do.
        switches: by name, what it does that may make a difference -> the options with which it does not.
        passes: the option that turns passes of its optimiser off, `A+B`; "" if there is none.
    """

    version: str = ""
    precision: str = "fp32"
    multi: bool = False
    caveat: str = ""
    exact: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    passes: str = ""


def not_thrown(switches: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The switches that change something: without those that the options have thrown already."""
    named = {str(name): _texts(changed) for name, changed in switches.items()}
    return {name: changed for name, changed in named.items() if changed != _texts(options)}


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in options.items()}


@dataclass(frozen=True)
class ModelRun:
    """One run of a loaded model.

    Attributes:
        tensors: the requested outputs that it gave, with files relative to the folder that was written into.
        fed: the inputs, without files; origins: by input, where its value came from, if a sample was fed.
        others: names of outputs that it gave and nobody requested.
        seconds: for the run alone, without reading the inputs and writing the outputs.
    """

    tensors: tuple[Record, ...]
    fed: tuple[Record, ...]
    origins: Mapping[str, Origin]
    others: tuple[str, ...]
    seconds: float

    @property
    def by_name(self) -> dict[str, Record]:
        """`tensors`, by name."""
        return {record.name: record for record in self.tensors}
