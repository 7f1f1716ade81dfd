"""A region that a candidate gets wrong -> which pass, option and release is to blame, and what is
proven to cure it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from subgraph.environments import releases
from subgraph.errors import BackendError, SubcutError, UsageError
from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.questions.blame import versions
from subgraph.questions.blame.attributes import Attributes
from subgraph.questions.blame.cures import Prover, open_prover
from subgraph.questions.blame.maker import Maker, Remade
from subgraph.questions.blame.rewritten import Rewriter
from subgraph.results.bisect import Healing
from subgraph.results.blame import Cure, ReleaseOutcomes, ReleaseState, TriedRelease
from subgraph.runtime.reference import Reference
from subgraph.text import clean, count
from subgraph.trials.candidate_runtime import describe_changed_options
from subgraph.trials.diagnosis.conclusions import Fact
from subgraph.trials.diagnosis.diagnosis import diagnose_model
from subgraph.trials.diagnosis.passes import Ablation, describe_sets, find_minimal_sets, switch_off
from subgraph.trials.open_trials import Setup, with_candidate
from subgraph.trials.trial import Trials
from subgraph.types import StringMap, Strings, frozen
from subgraph.verdict import Signature, Status, Verdict

MAX_SETS = 4  # minimal sets of passes that are tried as cures
ALL_AT_ONCE = "all that costs accuracy"  # optimizations, or a lower precision


@frozen
class ReleasesAsked:
    """The releases that are tried.

    Attributes:
        span: "" for all, `1.19..1.22` (either may be left out), or names with commas, each of which
            is tried.
        sources: options for pip.
    """

    span: str = ""
    sources: Strings = ()

    @property
    def names(self) -> list[str]:
        """Releases that are named one by one; none if a span is."""
        listed = self.span.split(",") if "," in self.span else []
        return [name.strip() for name in listed if name.strip()]

    def check(self, backend: str) -> None:
        """Check before a long search whether the request can be answered.

        Raises:
            UsageError: it cannot, or the backend has no releases.
        """
        if "," in self.span and not self.names:
            raise UsageError(
                f"--versions {self.span}: which versions?",
                "--versions a,b,c, the oldest first",
                code="blame.no-versions",
            )
        releases.find_package(backend)
        first, _, last = self.span.partition("..")
        known = [releases.parse(name) for name in self.names or (first, last) if name]
        is_span = not self.names and len(known) > 1
        if is_span and known[0] > known[1] and not first.startswith(f"{last}."):
            raise UsageError(
                f"--versions {self.span}: the first is newer than the last",
                f"--versions {last}..{first}",
                code="blame.version-order",
            )


@dataclass
class Blame:
    """The findings about one region; each method runs once.

    Attributes:
        trials: The trials.
        region: The region.
        setup: The setup of the trials.
        healing: The cure that the search found, if no cut shows the fault; else None.
        runs: Number of runs of the candidate.
        installs: Number of environments that were installed.
    """

    trials: Trials
    region: Region
    setup: Setup
    healing: Healing | None = None
    runs: int = 0
    installs: int = 0
    notes: list[str] = field(default_factory=list)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on the region alone.

        Raises:
            SubcutError: the candidate cannot be used.
        """
        return self.trials.verdict(self.region)

    @property
    def is_wrong(self) -> bool:
        """Whether the candidate computes the region wrong, or refuses it while the reference runs
        it."""
        return self.verdict.fails or self.verdict.signature is Signature.REFUSED

    @cached_property
    def is_model_wrong(self) -> bool:
        """Whether the candidate's own model is wrong, and not its runtime."""
        evidence = diagnose_model(self.trials, self.region, self.verdict)
        return self.is_wrong and any(item.fact is Fact.MODEL for item in evidence)

    def find_passes(self) -> list[Strings]:
        """Return the minimal sets of passes without which the region is right."""
        ablation = Ablation(self.trials, self.region)
        try:
            if self.is_model_wrong:
                return []
            return self._find_minimal_sets(ablation)
        except SubcutError as e:
            self.notes.append(f"passes are not known: {e.what}")
            return []

    def _find_minimal_sets(self, ablation: Ablation) -> list[Strings]:
        try:
            found = find_minimal_sets(ablation)
        finally:
            self.runs += ablation.runs
        if found:
            log.info("passes: right without %s", describe_sets(found))
        return found

    def steps(self, maker: Maker, work: Path, place: Path) -> tuple[list[Strings], list[Cure]]:
        """Return the minimal sets of steps without which the tool's model is right, and the models
        that it writes then; these go to the folder `work`, which becomes `place`.

        Raises:
            SubcutError: the reference cannot run the model, or the tool does not run.
        """
        cures = []
        maker.workers.deadline = self.trials.runtime.workers.deadline
        with open_prover(self.trials, self.setup, self.notes) as prover:
            whole = prover.trials.model.whole()
            remade = Remade(prover.trials, whole, prover=prover, maker=maker, made=work / "m.onnx")
            found = self._find_minimal_sets(remade)
            for k, names in enumerate(found[:MAX_SETS]):
                made = remade.make(names).replace(work / f"made-{k + 1}.onnx")
                cure = prover.try_model(f"made without {' and '.join(names)}", made, "pass")
                cures.append(replace(cure, model=str(place / made.name)))
            self.runs += prover.runs
        remade.made.unlink(missing_ok=True)
        return found, cures

    def find_attributes(self) -> list[str]:
        """Return the attributes without each of which the candidate is right: `ceil_mode=1 of
        'pool'`."""
        # A side runs the module that the model was exported from, or each side runs its own model.
        if self.trials.model.shared_tensors is not None or self.trials.runtime.own_model:
            return []
        original = self.trials.model.reference
        with Reference(
            original.backend, original.options, restart=True, python=original.python
        ) as reference:
            reference.share(original.deadline)
            attributes = Attributes(
                self.trials, self.region, self.setup, reference, notes=self.notes
            )
            try:
                return list(attributes.deciding())
            except SubcutError as e:
                self.notes.append(f"no attribute was left out: {e.what}")
                return []
            finally:
                self.runs += attributes.tried

    def find_switches(self, *, exact: bool) -> tuple[dict[str, StringMap], bool | None]:
        """Return the options that cure the region alone, and whether optimizations cause the error.

        The first is name → all options with that one. The second is whether the candidate is as
        wrong without any optimization, in full precision.

        It is None without `exact`, which runs that, or if the candidate has no such options.
        """
        about = self.trials.runtime.about
        tried = dict(about.switches)
        if exact and about.exact:
            tried[ALL_AT_ONCE] = about.exact
        cures = {}
        kernels = None
        for name, options in () if self.is_model_wrong else tried.items():
            self.runs += 1
            candidate = self.trials.runtime.candidate
            changed = self.trials.with_candidate(replace(candidate, options=dict(options)))
            try:
                verdict = changed.verdict(self.region)
            except SubcutError as e:
                self.notes.append(f"{describe_changed_options(candidate, options)}: {e.what}")
                continue
            if verdict.is_unresolved:
                continue
            if name == ALL_AT_ONCE:
                kernels = verdict.fails
            if verdict.agrees:
                log.info("switches: right with %s off", name)
                cures[name] = options
        return cures, kernels

    # ------------------------------------------------------------ releases

    def history(self, requested: ReleasesAsked) -> ReleaseOutcomes:
        """Return the releases with their results for the region.

        Raises:
            UsageError: The releases cannot be read, or none are named.
            BackendError: No release is available.
        """
        own = _find_own_release(self)
        names = self.find_releases(requested)
        if own and own not in names:
            names = sorted([*names, own], key=releases.parse)
        used = names.index(own) if own else len(names) - 1
        log.info("releases: %s, from %s to %s", count(names, "release"), names[0], names[-1])
        most_tries = len(names) if requested.names else None
        outcomes, notes = versions.search(names, used, partial(self._ask, requested), most_tries)
        self.notes += notes
        return outcomes

    def find_releases(self, requested: ReleasesAsked) -> list[str]:
        """Find the releases of the candidate's runtime that are right, among those of `requested`.

        Raises:
            UsageError, BackendError: as `history`.
        """
        if requested.names:
            return sorted(requested.names, key=releases.parse)
        candidate = self.trials.runtime.candidate
        backend = candidate.backend
        package = candidate.package
        try:
            known = releases.find_published(backend, requested.sources, package)
        except BackendError as e:
            known = releases.find_installed(backend, package) or [
                release for release in [_find_own_release(self)] if release
            ]
            if not known:
                raise
            self.notes.append(f"{e.what}: only releases that are installed already were tried")
        first, dots, last = requested.span.partition("..")
        in_span = [v for v in known if is_between(v, first, last if dots else first)]
        if not in_span:
            raise UsageError(
                f"--versions {requested.span}: no such release",
                f"{known[0]}..{known[-1]}",
                code="blame.no-release",
            )
        return in_span

    def _ask(self, requested: ReleasesAsked, version: str) -> TriedRelease:
        """Run one release on the region."""
        if version == _find_own_release(self):
            return self._make_tried_release(version, self.verdict)
        candidate = self.trials.runtime.candidate.set_release(version, requested.sources)
        try:
            if candidate.installation and not candidate.installation.is_ready:
                self.installs += 1
            self.runs += 1
            with with_candidate(self.trials, candidate, f"release-{self.runs}") as release_trials:
                tried = self._make_tried_release(version, release_trials.verdict(self.region))
        except SubcutError as e:
            tried = TriedRelease(version, ReleaseState.UNKNOWN, e.what)
        why = f": {clean(tried.why)}" if tried.state is ReleaseState.UNKNOWN else ""
        log.info("  %s  %s%s", version, tried.state, why)
        return tried

    def _make_tried_release(self, version: str, verdict: Verdict) -> TriedRelease:
        """Return a release with its state.

        A refusal is wrong if it is the fault; otherwise the state is unknown.
        """
        states = {Status.AGREE: ReleaseState.RIGHT, Status.FAIL: ReleaseState.WRONG}
        state = states.get(verdict.status, ReleaseState.UNKNOWN)
        refuses = verdict.signature is self.verdict.signature is Signature.REFUSED
        return TriedRelease(version, ReleaseState.WRONG if refuses else state, verdict.why)

    # ------------------------------------------------------------ cures

    def cures(
        self,
        passes: Sequence[Sequence[str]],
        switches: Mapping[str, StringMap],
        history: ReleaseOutcomes | None,
        requested: ReleasesAsked | None,
        work: Path,
        place: Path,
    ) -> list[Cure]:
        """Return everything that heals the region, tried on the full model.

        Proven cures come first, then the quickest.

        Rewritten models go to the folder `work`, which becomes `place`.

        Raises:
            SubcutError: the reference cannot run the model.
        """
        if self.is_model_wrong and not (passes or history):
            return []
        with open_prover(self.trials, self.setup, self.notes) as prover:
            options_and_releases = list(
                _iter_candidates(self, prover, passes, switches, history, requested)
            )
            healed = [prover.try_healing(self.healing)] if self.healing else []
            is_done = self.trials.runtime.own_model or any(cure.proven for cure in healed)
            rewriter = Rewriter(prover, self.trials, self.region, work, place)
            try:
                if not is_done:
                    healed += rewriter.cures()
            except SubcutError as e:
                self.notes.append(f"the region was not rewritten: {e.what}")
            self.runs += prover.runs + rewriter.tried
        cures = [*options_and_releases, *healed]
        # A difference of a tenth is noise.
        return sorted(cures, key=lambda cure: (not cure.proven, round(cure.slowdown or 1.0, 1)))

    def name_runtime(self) -> tuple[str, str]:
        """Return the runtime's package and its release, as people name them; the candidate's name
        if it has none."""
        candidate = self.trials.runtime.candidate
        try:
            package = releases.find_package(candidate.backend)[0]
        except UsageError:
            return candidate.name, self.trials.runtime.about.version
        return candidate.package or package, _find_own_release(self)


def _find_own_release(blame: Blame) -> str:
    """Return the release that the candidate runs; "" if it is not known."""
    candidate = blame.trials.runtime.candidate
    if candidate.release:
        return candidate.release
    has_own = candidate.package or candidate.python or candidate.processor
    if has_own:
        return blame.trials.runtime.about.version
    return releases.find_own_release(candidate.backend)


def _iter_candidates(
    blame: Blame,
    prover: Prover,
    passes: Sequence[Sequence[str]],
    switches: Mapping[str, StringMap],
    history: ReleaseOutcomes | None,
    requested: ReleasesAsked | None,
) -> Iterator[Cure]:
    candidate = blame.trials.runtime.candidate
    for names in passes[:MAX_SETS]:
        cured = switch_off(blame.trials, names).runtime.candidate
        noun = "passes" if len(names) > 1 else "pass"
        what = f"without the {noun} {' and '.join(names)}"
        how = describe_changed_options(candidate, cured.options)
        yield prover.try_candidate("pass", what, how, cured)
    for name, options in switches.items():
        cured_candidate = replace(candidate, options=dict(options))
        how = describe_changed_options(candidate, options)
        yield prover.try_candidate("switch", f"{name} off", how, cured_candidate)
    if history and requested:
        package = candidate.package or releases.find_package(candidate.backend)[0]
        # The cures are the nearest releases that are right, after and before the wrong ones.
        known = [release.version for release in history.tried]
        before = known[: known.index(history.first_wrong)] if history.first_wrong else []
        right_before = [version for version in reversed(before) if version in history.right]
        for version in filter(None, (history.first_right, *right_before[:1])):
            cured_candidate = candidate.set_release(version, requested.sources)
            npm = f"npm install {package}@{version}"
            install = npm if cured_candidate.can.npm else f"pip install {package}=={version}"
            yield prover.try_candidate("version", f"{package} {version}", install, cured_candidate)


def is_between(version: str, first: str, last: str) -> bool:
    """Return whether a version is between these two, either of which may be "". The last one,
    `1.22`, includes its patches."""
    known = releases.parse(version)
    low = not first or known >= releases.parse(first)
    return low and (not last or known <= releases.parse(last) or version.startswith(f"{last}."))
