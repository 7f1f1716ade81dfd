"""The provider of a runtime that computes each node: the device, or the processor that it fell back
to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from subgraph import plugins
from subgraph.errors import SubcutError
from subgraph.graph.region import Region
from subgraph.iterables import drop_repeats, restrict
from subgraph.log import log
from subgraph.text import clean, count
from subgraph.trials.candidate_runtime import CandidateRuntime
from subgraph.trials.judge import Judge
from subgraph.trials.trial import Trials

FUNCTION = "computed_by"


def find_providers(judge: Judge) -> Mapping[int, str]:
    """Return the provider of each node of the full model, as the candidate runs it: `CUDA`, `CPU`.

    Nodes with an unknown provider are omitted.
    """
    return _map_to_nodes(judge, judge.model.graph.path)


def find_region_providers(trials: Trials, region: Region) -> Mapping[int, str]:
    """Return the provider of each node of a region that runs alone, as `find_providers` does."""
    if not _reports_providers(trials.runtime):
        return {}
    with trials.model.make_temporary_folder() as folder:
        trials.writer.write_cut(region, trials.model.sample_groups(region)[0][1], folder)
        found = _map_to_nodes(trials.judge, folder / "model.onnx")
    return restrict(found, region.nodes)


def share(judge: Judge, found: Mapping[int, str]) -> str:
    """Return `31 of 229 nodes fell back to CPU`, a provider that the user did not request.

    Returns:
        "" if no such node is known.
    """
    others = [name for name in found.values() if _is_elsewhere(judge.runtime, name)]
    by = " and ".join(map(clean, dict.fromkeys(others)))
    if others:
        return f"{len(others)} of {count(judge.model.graph.nodes, 'node')} fell back to {by}"
    return ""


def name_provider(trials: Trials, region: Region) -> str:
    """Return the provider that computed a region that is wrong alone; "" if it is unknown."""
    providers = find_region_providers(trials, region)
    names = drop_repeats(providers.values())
    joined_names = " and ".join(map(clean, names))
    if len(providers) == len(region.nodes):
        if all(_is_elsewhere(trials.runtime, name) for name in names):
            runtime = clean(trials.runtime.candidate.name)
            return f"computed by {joined_names}: the fault is not that of {runtime}"
        if len(names) == 1:
            return f"computed by {joined_names}"
    parts = []
    for name in names:
        labels = (trials.graph.label(n) for n in providers if providers[n] == name)
        parts.append(f"{', '.join(labels)} by {clean(name)}")
    return f"computed: {'; '.join(parts)}" if providers else ""


def _is_elsewhere(runtime: CandidateRuntime, name: str) -> bool:
    """Return whether this is a provider that was not requested."""
    requested = (str(runtime.candidate.options.get(key, "")) for key in ("providers", "ep"))
    return not any(name in option for option in requested)


def _reports_providers(runtime: CandidateRuntime) -> bool:
    """Return whether the candidate reports its providers. One that runs another model has other
    nodes."""
    candidate = runtime.candidate
    if runtime.own_model or candidate.executor or not candidate.has_process or runtime.is_manual:
        return False
    return plugins.defines("backends", candidate.backend, FUNCTION)


def _map_to_nodes(judge: Judge, model: Path) -> Mapping[int, str]:
    if not _reports_providers(judge.runtime):
        return {}
    try:
        with judge.runtime.workers.borrow(loads=1) as worker:
            lines = worker.names(FUNCTION, model, judge.runtime.candidate.options)
    except SubcutError as e:
        log.info("who computes each node is not known: %s", e.what)
        return {}
    named = (line.split(" ", 1) for line in lines)
    return {
        judge.model.graph.maker[tensor]: name
        for name, tensor in named
        if tensor in judge.model.graph.maker
    }
