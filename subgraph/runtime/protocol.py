"""What a worker's process replies to its parent, as dataclasses; on the pipe they are JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subgraph.storage.tensors import Record


@dataclass(frozen=True)
class BackendInfo:
    """What a backend says about itself, for some options.

    Attributes:
        precision: what it computes in: fp32, fp16, bf16 or int8.
        multi: it takes several disconnected pieces in one model.
        caveat: what a user must know before anything runs; "" if nothing.
        exact: the options with which it computes in full precision, or without optimisations; empty where these do.
    """

    version: str = ""
    precision: str = "fp32"
    multi: bool = False
    caveat: str = ""
    exact: Mapping[str, str] = field(default_factory=dict)


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
    origins: Mapping[str, str]
    others: tuple[str, ...]
    seconds: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelRun:
        """The reply as it was before it became JSON."""
        tensors, fed = (tuple(map(Record.from_json, data[key])) for key in ("tensors", "fed"))
        return cls(tensors, fed, data["origins"], tuple(data["others"]), data["seconds"])

    @property
    def by_name(self) -> dict[str, Record]:
        """`tensors`, by name."""
        return {record.name: record for record in self.tensors}
