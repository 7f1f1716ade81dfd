"""The tool that wrote the candidate's model: it is run again without some of its steps.

A tool is an optimizer or a quantizer (`questions.blame.makers`), the user's Python file or command.
The minimal sets of steps without which its model is right are found as those of a runtime's passes
(`trials.diagnosis.passes`). Each answer is a run of the full model, on the samples and on inputs
drawn like them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from subgraph import plugins
from subgraph.documents import to_json
from subgraph.errors import Refused, SubcutError, WorkerDied
from subgraph.graph.graph import load
from subgraph.log import log
from subgraph.questions.blame import maker_backend
from subgraph.questions.blame.cures import Prover
from subgraph.runtime import candidate as candidates
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.command_line import digest_contents
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.folders import make_safe_name, make_scratch
from subgraph.text import clean, count
from subgraph.trials.diagnosis.passes import Ablation
from subgraph.types import Strings, frozen
from subgraph.verdict import Status, Verdict

BACKEND = str(Path(str(maker_backend.__file__)))


@frozen
class Maker:
    """A tool that writes models, in separate processes.

    Attributes:
        title: The name of the tool and its version, or the command line.
        workers: The processes.
    """

    title: str
    workers: Workers

    def steps(self, model: Path) -> Strings:
        """Return the names of the steps that it can omit.

        Raises:
            SubcutError: It does not run here.
        """
        with self.workers.borrow() as worker:
            return worker.names("passes", model, self.workers.candidate.options)

    def make(self, model: Path, made: Path, skip: Iterable[str] = ()) -> None:
        """Make a model without some steps.

        Raises:
            SubcutError: It fails, or writes no model.
        """
        made.unlink(missing_ok=True)
        options = {**self.workers.candidate.options, "made": str(made), "skip": sorted(skip)}
        with self.workers.borrow(loads=1) as worker:
            worker.load("made", model.resolve(), options)

    def can_make(self, model: Path, made: Path, skip: Iterable[str]) -> bool:
        """Return whether a model can be made without some steps."""
        try:
            self.make(model, made, skip)
        except (Refused, WorkerDied):
            return False
        return True


def parse_maker(text: str) -> Candidate:
    """Return the tool that `--made-by` names, as a candidate whose backend runs it.

    Raises:
        UnknownName: No tool has this name. UsageError: A setting cannot be read.
    """
    if "{made}" in text:
        options = {"maker": "cmd", "command": text.removeprefix("cmd:")}
        named = Candidate("the command", BACKEND, options)
    else:
        maker, _, words = text.partition(":")
        if not maker.endswith(".py"):
            plugins.load("makers", maker)
        named = replace(candidates.parse(f"{BACKEND}:{words},maker={maker}"), name=maker)
    settings = dict(named.options)
    python = str(settings.pop("python", ""))
    given = {"maker": settings.pop("maker"), "settings": settings}
    return replace(named, options={**given, "made": "", "skip": (), "samples": ()}, python=python)


@contextmanager
def open_maker(
    text: str, limits: Candidate, model: Path, feeding: Feeding, output: Path
) -> Iterator[tuple[Maker, Path]]:
    """Provide a tool until the block ends, and the model that it writes with all its steps.

    Args:
        text: The tool as `--made-by` names it.
        limits: The candidate, whose limits the tool has.
        model: The file of the reference's model.
        feeding: The samples, with which a quantizer is calibrated.
        output: The folder for files that end with the block.

    Raises:
        UsageError: No tool is named so.
        SubcutError: It does not run here, or makes no model.
    """
    graph = load(model)
    samples = to_json(feeding.plan(graph, graph.inputs))
    named = replace(parse_maker(text), timeout=limits.timeout, memory=limits.memory)
    named = replace(named, options={**named.options, "samples": samples})
    with make_scratch(output.absolute()) as folder, Workers(named) as workers:
        maker = Maker(f"{named.name} {workers.about().version}".strip(), workers)
        title = make_safe_name(maker.title.replace(" ", "-"))
        made = folder / f"{model.stem}-by-{title}.onnx"
        try:
            maker.make(model, made)
        except (Refused, WorkerDied) as e:
            steps = (step for step in maker.steps(model) if maker.can_make(model, made, [step]))
            if step := next(steps, ""):
                e.hint = f"without its step {clean(step)} it makes a model"
            raise
        log.info("%s made %s", clean(maker.title), clean(made.name))
        yield maker, made


@dataclass(kw_only=True)
class Remade(Ablation):
    """The models that a tool writes without some of its steps, run as full models.

    Attributes:
        prover: The prover that runs them.
        maker: The tool.
        made: The file of the model that was made last.
    """

    prover: Prover
    maker: Maker
    made: Path
    tries_pairs: bool = False  # each pair takes as many models as there are steps
    _digests: dict[frozenset[str], str] = field(default_factory=dict)

    def names(self, omitted: Iterable[str] = ()) -> Sequence[str]:
        """Return the steps without which the model is another one; the steps `omitted` are out."""
        left_out = frozenset(omitted)
        steps = self.maker.steps(self.trials.graph.path)
        log.info("%s: %s", clean(self.maker.title), count(steps, "step"))
        usual = self._digest(left_out)
        return [s for s in steps if self._digest(left_out | {s}) != usual]

    def every(self, names: Sequence[str]) -> Sequence[str]:
        """Return all steps: one can do what another one does in its absence."""
        return self.maker.steps(self.trials.graph.path)

    def verdict(self, omitted: Iterable[str]) -> Verdict:
        """Return the verdict on the full model without these steps."""
        digest = self._digest(frozenset(omitted))
        if digest not in self._known:
            self.runs += 1
            try:
                self.make(omitted)
                self._known[digest] = self.prover.verdict(self.made)
            except SubcutError as e:
                self._known[digest] = Verdict(Status.UNRESOLVED, why=e.what)
        return self._known[digest]

    def make(self, omitted: Iterable[str]) -> Path:
        """Make the model without these steps.

        Raises:
            SubcutError: It cannot be made.
        """
        self.maker.make(self.trials.graph.path, self.made, omitted)
        return self.made

    def _digest(self, omitted: frozenset[str]) -> str:
        """Return a digest of the model without these steps, or why it cannot be written."""
        if omitted not in self._digests:
            try:
                self._digests[omitted] = digest_contents(self.make(omitted))
            except SubcutError as e:
                log.debug("%s without %s: %s", self.maker.title, sorted(omitted), e.what)
                self._digests[omitted] = e.what
        return self._digests[omitted]
