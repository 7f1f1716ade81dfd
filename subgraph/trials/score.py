"""A score of the task that judges the outputs of the full model, by the limit of its drop.

A score runs in a separate process (`score_backend`), a user's with the limits of a candidate.
The verdict holds for all samples. The paired bootstrap shows whether it would hold for others: it
takes the same draws of samples, with repetition, of both sides.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np

from subgraph import plugins
from subgraph.errors import InputError, NotInstalled, OutOfTime, SubcutError, UsageError
from subgraph.iterables import flatten, ungroup
from subgraph.results.common import ScoreDocument
from subgraph.results.plan import PlanScore
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.runtime.worker import Worker
from subgraph.storage.folders import make_numbered_folder
from subgraph.storage.tensors import Record, read_npy, write_value
from subgraph.text import clean, count
from subgraph.trials import score_backend
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import Array, StringMap, Strings, frozen
from subgraph.verdict import Graded, Judgement, Signature, Status, Verdict

MAX_SCORE_SECONDS = 600.0  # seconds for one call of a user's score
SAMPLE_DRAWS = 200  # of samples, with repetition, each of which has a score: the paired bootstrap
HOW = "it takes a list of dictionaries, name → array, and returns a number"
INTERVAL = (2.5, 97.5)  # percentiles of the drop


@frozen
class ModelJudgement(Graded):
    """The judgement on one model.

    Attributes:
        status: AGREE if it is accepted, FAIL if it was run and is not, else UNRESOLVED.
        score: if a score decides.
    """

    status: Status
    why: str
    score: float | None = None


def judge_not_run(why: str) -> ModelJudgement:
    """Return the judgement on a model that the candidate does not run.

    That shows nothing about its precision.
    """
    return ModelJudgement(Status.UNRESOLVED, f"it does not run: {why}")


@frozen
class ScoreGoal:
    """A score, and the limit that it must reach.

    Attributes:
        words: The argument of the user: `top1`, `score.py:f1`.
        drop: The accepted drop; None without one.
        relative: Whether the drop is a share of the float model's score.
        at_least: Its least value; None without one.
        labels: A file with the truth of each sample; None for the float model's outputs.
    """

    words: str
    drop: float | None = None
    relative: bool = False
    at_least: float | None = None
    labels: Path | None = None

    def limit(self, score: float) -> float:
        """Return the least score that is accepted, if the float model has this one."""
        if self.at_least is not None:
            return self.at_least
        drop = self.drop or 0.0
        return score - (abs(score) * drop if self.relative else drop)


def parse_drop(text: str) -> tuple[float, bool]:
    """Parse `0.5%` into (0.005, True), a share of the score, and `0.01` into (0.01, False).

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    if not match:
        raise UsageError(
            f"--drop {text}: expected a drop of the score",
            "--drop 0.5% or --drop 0.01",
            code="option.malformed",
        )
    return float(match[1]) / (100 if match[2] else 1), bool(match[2])


def make_score_goal(
    score: str | None,
    drop: str | None,
    at_least: float | None,
    labels: str | Path | None,
) -> ScoreGoal | None:
    """Return the score that judges, with its limit; None if the criterion judges.

    Raises:
        UsageError: There is no limit, or two; a limit cannot be read, or has no score.
    """
    if score is None:
        options = {"--drop": drop, "--at-least": at_least, "--labels": labels}
        if names := [name for name, value in options.items() if value]:
            raise UsageError(
                f"{names[0]} goes with --score",
                "--score top1, or FILE.py:FUNCTION",
                code="option.requires",
            )
        return None
    if bool(drop) == (at_least is not None):
        raise UsageError(
            "which score is good enough?", "--drop 0.5% or --at-least 0.9", code="option.requires"
        )
    amount, relative = parse_drop(drop) if drop else (None, False)
    return ScoreGoal(score, amount, relative, at_least, Path(labels) if labels else None)


@dataclass
class ByScore:
    """A score that must reach a limit. Several threads may use it at once.

    Attributes:
        goal: The score and its limit.
        worker: The process that runs it.
        float_outputs: The reference's outputs, per sample.
        fixed: The other tensors that the function is given.
        scratch: A folder for its files.
        identity: Function that returns the identity of outputs, by their contents.
        float_score: The score of `float_outputs`.
    """

    goal: ScoreGoal
    worker: Worker
    float_outputs: Feeds
    fixed: Sequence[Record]
    scratch: Path
    identity: Callable[[Sequence[Record]], Sequence[str]]
    float_score: float = math.nan
    _known: dict[Strings, ScoreDocument] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        return self.goal.limit(self.float_score)

    def judge(self, result: RunResult) -> ModelJudgement:
        if result.failure:
            return judge_not_run(result.failure.why)
        names = [
            name
            for name in self.float_outputs[0]
            if any(name not in sample for sample in result.tensors)
        ]
        if names:
            return judge_not_run(f"it returns no output {clean(names[0])}")
        score = self.compute(result.tensors)[0]
        status = Status.AGREE if score >= self.limit else Status.FAIL
        return ModelJudgement(status, f"{score:.6g}, wanted {self.limit:.6g}", score)

    def compute(self, outputs: Feeds, draws: Array | None = None) -> list[float]:
        """Return the score of these outputs, or that of each draw of the samples.

        Args:
            outputs: The outputs, per sample.
            draws: Indices of samples, a row per draw. None for one score of all samples.

        Raises:
            UsageError: The function fails, or returns no number.
            NotInstalled: A package that it needs is not installed.
        """
        rows = np.arange(len(outputs))[None, :] if draws is None else draws
        folder = make_numbered_folder(self.scratch, "score")
        names = self.float_outputs[0]
        fed = [
            replace(sample[n], name=f"o/{k}/{n}")
            for (k, sample), n in product(enumerate(outputs), names)
        ]
        fed += [*self.fixed, write_value("draws", rows.astype(np.int64), folder, "draws")]
        try:
            run = self.worker.run("score", folder, {"score": "score"}, fed)
        except (NotInstalled, OutOfTime):
            raise
        except SubcutError as e:
            raise UsageError(
                f"--score {self.goal.words} failed: {e.what}", HOW, code="score.failed"
            ) from e
        scores = run.by_name["score"].rebase(str(folder)).array()
        if not np.all(np.isfinite(scores)):
            raise UsageError(
                f"--score {self.goal.words} gave {scores.reshape(-1)[0]}",
                "it must return a number",
                code="score.not-number",
            )
        return [float(score) for score in scores]

    def compute_interval(self, outputs: Feeds) -> tuple[float, float] | None:
        """Return the range of the drop over draws of the samples, or of the score if its least
        value is set; None of a single sample."""
        samples = len(outputs)
        if samples < 2:
            return None
        draws = np.random.default_rng(0).integers(0, samples, (SAMPLE_DRAWS, samples))
        values = np.asarray(self.compute(outputs, draws))
        if self.goal.at_least is None:
            values = np.asarray(self.compute(self.float_outputs, draws)) - values
        low, high = np.percentile(values, INTERVAL)
        return float(low), float(high)

    def is_sure(self, interval: tuple[float, float] | None) -> bool:
        """Return whether nearly all draws of the samples are within the limit."""
        if interval is None:
            return False
        if self.goal.at_least is not None:
            return interval[0] >= self.limit
        return interval[1] <= self.float_score - self.limit

    # ------------------------------------------------------------ as a verdict

    def verdict(self, result: RunResult, judgements: Sequence[Judgement]) -> Verdict:
        """Return the verdict on outputs of the whole model. Their errors stay in it; their status
        is the score's.

        Unresolved if other draws of the samples may be refused.
        """
        found = self.document(result.tensors)
        accepted = found.candidate >= found.limit
        status = Status.AGREE if accepted and found.sure else Status.UNRESOLVED
        status = status if accepted else Status.FAIL
        signature = None if accepted else Signature.MISMATCH
        outputs = tuple(
            replace(j, status=status, signature=signature, label="", why="") for j in judgements
        )
        return Verdict(
            status, signature, found.says, outputs, {}, result.build, result.run, result.stored
        )

    def document(self, outputs: Feeds) -> ScoreDocument:
        """Return the score of these outputs of the full model, and whether it holds for other draws
        of the samples."""
        key = tuple(
            self.identity([sample[n] for sample, n in product(outputs, self.float_outputs[0])])
        )
        if key not in self._known:
            score = self.compute(outputs)[0]
            interval = self.compute_interval(outputs)
            self._known[key] = ScoreDocument(
                words=self.goal.words,
                limit=self.limit,
                candidate=score,
                reference=self.float_score,
                samples=len(outputs),
                interval=interval,
                of="drop" if self.goal.at_least is None else "score",
                sure=self.is_sure(interval),
                says="",
            )
            self._known[key] = replace(self._known[key], says=describe_score(self._known[key]))
        return self._known[key]


def describe_score(score: ScoreDocument) -> str:
    """Return `top1 0.93, drops by 0.001 (allowed 0.005; 200 samples: 0 to 0.003)`."""
    text = f"{clean(score.words)} {score.candidate:.4g}"
    samples = count(score.samples, "sample")
    if score.of == "drop":
        drop = score.reference - score.candidate
        dropped = f"drops by {drop:.3g}" if drop > 0 else "does not drop"
        text += f" of {score.reference:.4g}, {dropped}"
    limit = score.reference - score.limit if score.of == "drop" else score.limit
    bound = "allowed" if score.of == "drop" else "at least"
    allowed = f"{bound} {limit:.3g}"
    if score.interval is None:
        return f"{text} ({allowed}); {describe_uncertainty(score)}"
    low, high = score.interval
    if score.candidate >= score.limit and not score.sure:
        return f"{text} ({allowed}); {describe_uncertainty(score)}"
    return f"{text} ({allowed}; {samples}: {low:.3g} to {high:.3g})"


def describe_uncertainty(score: ScoreDocument | PlanScore) -> str:
    """Return why the samples do not show the score of others."""
    if score.interval is None:
        return "one sample shows nothing about others"
    low, high = score.interval
    verb = "drop by" if score.of == "drop" else "score"
    samples = count(score.samples, "sample")
    return f"{samples} are few: other draws of them {verb} {low:.3g} to {high:.3g}"


@contextmanager
def open_score(
    goal: ScoreGoal, model: ReferenceModel, outputs: Sequence[str], memory: int | None
) -> Iterator[ByScore]:
    """Open a score with its process, until the block ends; the reference is scored first.

    Args:
        goal: The score and its limit.
        model: The reference's model.
        outputs: The outputs that the function is given.
        memory: Bytes that the process may use; None for no limit.

    Raises:
        UnknownName: No score has this name.
        UsageError: Its file does not exist or fails.
        InputError: The labels do not fit.
    """
    file, function, is_own = _find_function(goal.words)
    model.values.need(outputs)
    records = model.values.records
    float_outputs = [{name: sample[name] for name in outputs} for sample in records]
    truth = enumerate(_find_truth(goal, model, float_outputs, is_own))
    fixed = [
        replace(r, name=f"t/{k}/{n}") for k, (n, r) in ungroup((k, s.items()) for k, s in truth)
    ]
    fixed += [
        replace(s[n], name=f"i/{k}/{n}")
        for (k, s), n in product(enumerate(records), model.graph.inputs)
    ]
    scratch = model.scratch / "scores"
    scratch.mkdir()
    with Worker(
        str(Path(score_backend.__file__)), timeout=MAX_SCORE_SECONDS, memory=memory
    ) as worker:
        worker.deadline = model.reference.deadline
        try:
            worker.load("score", file, {"function": function, "truth": is_own})
        except OutOfTime:
            raise
        except SubcutError as e:
            raise UsageError(
                f"--score {goal.words}: {e.what}",
                "--score FILE.py:FUNCTION",
                code="score.not-loadable",
            ) from e
        score = ByScore(goal, worker, float_outputs, fixed, scratch, model.values.digest)
        (score.float_score,) = score.compute(float_outputs)
        yield score


def _find_function(words: str) -> tuple[Path, str, bool]:
    """Return the file of a score, its function, and whether it is built in."""
    path, sep, function = words.rpartition(".py:")
    if sep or words.endswith(".py"):
        file = Path(f"{path}.py" if sep else words)
        if not file.is_file():
            raise UsageError(
                f"--score {words}: no file {file}",
                "--score FILE.py:FUNCTION",
                code="file.not-found",
            )
        return file.resolve(), function if sep else "score", False
    return Path(str(plugins.load("scores", words).__file__)), "score", True


def _find_truth(goal: ScoreGoal, model: ReferenceModel, outputs: Feeds, is_own: bool) -> Feeds:
    """Return the label of each sample; the outputs of the float model if there are no labels.

    Args:
        goal: The score.
        model: The reference's model.
        outputs: The outputs of the float model, per sample.
        is_own: Whether the score is built in.

    Raises:
        InputError: The labels do not fit.
    """
    if goal.labels is None:
        return outputs
    names = model.values.labels
    labels = read_labels(goal.labels, names)
    text = next((label for label in labels if label.dtype.kind == "O"), None)
    if text is not None and is_own and not hasattr(plugins.load("scores", goal.words), "TEXT"):
        raise InputError(
            f"--labels {goal.labels.name} holds '{text}'",
            f"{goal.words} takes numbers",
            code="labels.not-numbers",
        )
    folder = model.scratch / "labels"
    folder.mkdir()
    return [
        {"label": write_value("label", np.asarray(label), folder, f"label{k}")}
        for k, label in enumerate(labels)
    ]


def read_labels(file: Path, names: Sequence[str]) -> list[Array]:
    """Read the label of each sample: rows of an .npy, lines of a .csv, `LABEL` or `SAMPLE,LABEL`,
    or a folder per class.

    Raises:
        InputError: it cannot be read, or has not as many as there are samples.
    """
    if file.is_dir():
        return _read_folders(file, names)
    if not file.is_file():
        raise InputError(
            f"--labels {file}: no such file",
            "an .npy with a row per sample, or a .csv",
            code="file.not-found",
        )
    if file.suffix == ".npy":
        labels = list(np.atleast_1d(read_npy(file)))
    else:
        labels = _read_lines(file, names)
    if len(labels) != len(names):
        have = count(labels, "label")
        want = count(names, "sample")
        raise InputError(
            f"--labels {file.name} has {have}, the inputs are {want}",
            "one for each sample, in their order",
            code="labels.wrong-count",
        )
    return [np.asarray(label) for label in labels]


def _read_folders(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return the class of each sample: the folder that has a file of its name.

    Classes count from 0 in the order of their names, as torchvision's ImageFolder counts them;
    a folder whose name is a number has this number.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    numbered = all(path.name.isdecimal() for path in classes)
    classes_by_name: dict[str, set[int]] = {}
    for k, path in enumerate(classes):
        for name in flatten((file.name, file.stem) for file in path.iterdir()):
            classes_by_name.setdefault(name, set()).add(int(path.name) if numbered else k)
    if unclear := next((name for name in names if len(classes_by_name.get(name, ())) != 1), None):
        has = "several folders in it have" if unclear in classes_by_name else "no folder in it has"
        raise InputError(
            f"--labels {folder.name}: {has} a file '{unclear}'",
            "a folder per class, with files that are named as the samples",
            code="labels.unclear-folder",
        )
    return [np.asarray(min(classes_by_name[name])) for name in names]


def _read_lines(file: Path, names: Sequence[str]) -> list[Array]:
    try:
        rows = [row for row in csv.reader(file.read_text(encoding="utf-8").splitlines()) if row]
        by_name: StringMap = {row[0]: row[-1] for row in rows if len(row) > 1}
        if names and {*names} <= by_name.keys():
            words = [by_name[name] for name in names]
        else:
            words = [row[-1] for row in rows]
        return [
            np.asarray(value, object if isinstance(value, str) else None)
            for value in map(_parse_label, words)
        ]
    except (OSError, UnicodeError, ValueError) as e:
        raise InputError(
            f"--labels {file.name} cannot be read: {e}",
            "lines LABEL, or SAMPLE,LABEL",
            code="labels.unreadable",
        ) from e


def _parse_label(word: str) -> int | float | str:
    """Read a label: a number, else a text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word
