"""The runtime under test, as the trials of one session share it: settings, processes, own model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.trials.candidate_model import CandidateModel
from subgraph.types import Fields, JsonObject


@dataclass(frozen=True, kw_only=True)
class CandidateRuntime:
    """The runtime under test.

    Attributes:
        candidate: settings of the runtime.
        workers: processes that run it.
        own_model: the model file that the candidate runs (int8, fp16, ...); None if it runs the
            reference's file.
        is_manual: whether a person runs the candidate, so that no process is ever started.
    """

    candidate: Candidate
    workers: Workers
    own_model: CandidateModel | None = None
    is_manual: bool = False

    @cached_property
    def about(self) -> BackendInfo:
        """Version, precision and capabilities that the backend reports with the candidate's
        options."""
        return self.workers.about()

    @property
    def runs_user_code(self) -> bool:
        """Whether user code computes the outputs; it may depend on the names of nodes."""
        return bool(self.candidate.runs_commands or self.candidate.script or self.is_manual)

    @property
    def runs_plain_cuts(self) -> bool:
        """Whether the candidate is given a cut unchanged; only plain cuts can be merged into one
        model."""
        return not self.own_model


def find_changed_options(candidate: Candidate, options: Fields) -> JsonObject:
    """Return the options that a candidate does not have yet."""
    present = {name: str(value) for name, value in candidate.options.items()}
    return {name: value for name, value in options.items() if present.get(name) != str(value)}


def describe_changed_options(candidate: Candidate, options: Fields) -> str:
    """Return the options that a candidate does not have yet, as in its specification."""
    changed = find_changed_options(candidate, options)
    return ",".join(f"{name}={value}" for name, value in changed.items())


@dataclass(frozen=True)
class CandidateKey:
    """Cache key of a candidate, combined with the key of a region.

    It contains all that is known of the candidate without running it, and how often its results
    were discarded. Each time left an entry in the store.

    Attributes:
        store: the store of the results.
        identity: what is known of the candidate.
    """

    store: Store
    identity: Fields

    @property
    def _generation(self) -> int:
        return next(n for n in itertools.count() if self.store.get(self._entry(n)) is None)

    def _entry(self, generation: int) -> str:
        return digest("dropped", self.identity, generation)

    @property
    def text(self) -> str:
        """The key; it changes with `discard_results`."""
        return digest("candidate", self.identity, self._generation)

    def discard_results(self) -> None:
        """Ignore all results of the candidate that are stored so far, for any model."""
        self.store.put(self._entry(self._generation), {}, self.store.new_folder())
