"""The passes of a candidate's optimizer that a failure takes: the minimal sets of names without
which it is right.

A name counts only if the optimized graph is another one without it: runtimes accept unknown names
in silence. Each set is proven by a run without all of it, which agrees, and by one for each of its
members left in, which does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.trials.candidate_runtime import Form
from subgraph.trials.trial import Trials
from subgraph.types import Strings
from subgraph.verdict import Verdict

MAX_RUNS = 80  # of the region
MAX_TOGETHER = 2  # names that are tried together before names are left out one by one


@dataclass
class Ablation:
    """A candidate without some passes of its optimizer, on one region that it gets wrong.

    Attributes:
        trials: The candidate with all passes.
        region: The region.
        most_runs: Number of runs of the region after which no further pairs are tried.
        runs: Number of runs of the region.
        tries_pairs: Whether pairs are tried in addition to single names.
    """

    trials: Trials
    region: Region
    most_runs: int = MAX_RUNS
    runs: int = 0
    tries_pairs: bool = True
    _known: dict[object, Verdict] = field(default_factory=dict)

    def names(self, omitted: Iterable[str] = ()) -> Sequence[str]:
        """Return the passes that change the candidate's form of the region, except `omitted`.

        Raises:
            BackendError: The candidate cannot be used.
            WorkerDied: The candidate crashed.
        """
        if not self.trials.runtime.about.passes:
            return ()
        trials = switch_off(self.trials, omitted)
        with (
            trials.model.make_temporary_folder() as folder,
            trials.runtime.workers.borrow(loads=1) as worker,
        ):
            path = trials.graph.path
            form = trials.runner.form_of(self.region)
            if form is not Form.SHIPPED:
                records = trials.model.sample_groups(self.region)[0][1]
                trials.writer.write(form, self.region, records, folder)
                path = folder / "model.onnx"
            return worker.names("passes", path, trials.runtime.candidate.options)

    def every(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names that are left out together if none of `names` cures alone."""
        return names

    def is_right(self, omitted: Iterable[str]) -> bool:
        """Return whether the region agrees without these passes."""
        return self.verdict(omitted).agrees

    def verdict(self, omitted: Iterable[str]) -> Verdict:
        """Return the verdict on the region without these passes."""
        key = frozenset(omitted)
        if key not in self._known:
            self.runs += 1
            self._known[key] = switch_off(self.trials, key).verdict(self.region)
        return self._known[key]


def switch_off(trials: Trials, omitted: Iterable[str]) -> Trials:
    """Return trials of the same candidate, in the same processes, without these passes as well."""
    option = trials.runtime.about.passes
    options = dict(trials.runtime.candidate.options)
    names = dict.fromkeys(
        [*filter(None, str(options.get(option, "")).split("+")), *sorted(omitted)]
    )
    if names:
        options[option] = "+".join(names)
    return trials.with_candidate(replace(trials.runtime.candidate, options=options))


def find_minimal_sets(ablation: Ablation) -> list[Strings]:
    """Return the minimal sets of passes without which the region is right: of one name, of two,
    else one larger set.

    Empty if the region stays wrong without any of them, or the optimizer has no passes with
    names.

    Raises:
        SubcutError: the candidate cannot be used.
    """
    names = ablation.names()
    found: list[Strings] = [(name,) for name in names if ablation.is_right([name])]
    rest = [name for name in names if (name,) not in found]
    pairs = _iter_pairs(ablation, rest, {name for (name,) in found}) if ablation.tries_pairs else ()
    found += [pair for pair in pairs if ablation.is_right(pair)]
    every = ablation.every(names)
    tried = MAX_TOGETHER if ablation.tries_pairs else 1
    if not found and len(every) > tried and ablation.is_right(every):
        # One name after the other is left in, so that each name of the set is needed.
        needed = list(every)
        for name in every:
            fewer = [n for n in needed if n != name]
            if ablation.is_right(fewer):
                needed = fewer
        found = [tuple(needed)]
    return found


def _iter_pairs(ablation: Ablation, names: Sequence[str], cures: Set[str]) -> Iterator[Strings]:
    """Yield pairs of names of which none cures alone.

    With each, those that change something only if that one is omitted.
    """
    seen = set()
    for name in names:
        others = {*names, *ablation.names([name])} - {name} - cures
        for pair in (tuple(sorted((name, other))) for other in sorted(others)):
            if ablation.runs >= ablation.most_runs:
                log.info("%d runs without passes: no more pairs are tried", ablation.runs)
                return
            is_settled = pair in seen or any(ablation.is_right([member]) for member in pair)
            if not is_settled:
                seen.add(pair)
                yield pair


def describe_sets(sets: Sequence[Sequence[str]]) -> str:
    """Describe minimal sets of passes: `Pad_Fusion`, `CastElimination or DivMulFusion`, `A and B
    …`."""
    return " or ".join(" and ".join(names) + " together" * (len(names) > 1) for names in sets)
