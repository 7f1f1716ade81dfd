"""Options of a command line and the project's settings -> model, inputs, criterion, candidate and
reference.

A command makes one `Asked` of its options and reads its values in the order in which mistakes are
reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from subgraph import plugins, project, trust
from subgraph.cases.layout import INPUTS, MODEL
from subgraph.commands.options import (
    CandidateOptions,
    CriterionOptions,
    FormatOptions,
    InputOptions,
    ResultOptions,
    RuntimeOptions,
    ScoreOptions,
)
from subgraph.comparison import ROUNDING_ALONE
from subgraph.errors import UsageError, name_setting
from subgraph.log import log
from subgraph.project import Project
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.runtime.reference import LITERT, PLAIN, Reference, parse_limit
from subgraph.storage import convert
from subgraph.storage.convert import TensorFormat
from subgraph.storage.file_kinds import (
    Family,
    find_family,
    is_named_as_model,
    is_of_tflite,
    recognize_folder,
)
from subgraph.text import clean, split_signature
from subgraph.trust import NamedCode
from subgraph.types import JsonObject, Strings, frozen

if TYPE_CHECKING:
    from subgraph.runtime.candidate import Candidate
    from subgraph.trials.candidate_runtime import CandidateRuntime
    from subgraph.trials.open_trials import Setup
    from subgraph.trials.score import ScoreGoal

T = TypeVar("T")
MODULE = "torch:"  # how the SPEC of a PyTorch module begins


@frozen
class ResolvedOptions:
    """Options from the command line, with the project file as fallback. Each value is computed at
    its first use.

    Attributes:
        settings: The project file.
        model: The model as it was named.
        weights: The weights of a model of Caffe.
        inputs: The options for the inputs.
        comparison: The options for the criterion.
        runtime: The options for candidate and reference.
        result: The options for the result.
        path: The model's file if it is known.
        origin: The file that holds these options, "" if they are typed.
        translated: Whether the command compares an exported or converted model with its source.
    """

    settings: Project = field(default_factory=project.load)
    model: str | None = None
    weights: str | None = None
    inputs: InputOptions = field(default_factory=InputOptions)
    comparison: CriterionOptions = field(default_factory=CriterionOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    result: ResultOptions = field(default_factory=ResultOptions)
    path: Path | None = None
    origin: str = ""
    translated: bool = False

    # ------------------------------------------------------------ model and inputs

    @cached_property
    def case(self) -> Path | None:
        """The folder of the case that is named as the model; None if a file is named."""
        word = self.settings.get("model", self.model)
        if not word or not os.path.isdir(word):  # noqa: PTH112
            return None
        from subgraph.cases.case import MANIFEST
        from subgraph.cases.find_case import find_case, find_result

        folder = find_result(Path(word))
        if (folder / MANIFEST).is_file():
            return find_case(folder).place
        return None

    @cached_property
    def model_path(self) -> Path:
        """The model to work on, which may be that of a case's folder, or made from Caffe's or
        PyTorch's; logs how.

        Raises:
            UsageError: There is no model, or several, or it is a `.pt2` that is not trusted.
            ModelError: it is of another kind and cannot be converted.
        """
        if self.path or self.case:
            return self.path or (self.case or Path()) / MODEL
        word = self.settings.get("model", self.model)
        if word and (kind := recognize_folder(Path(word))):
            raise UsageError(
                f"{word} is {kind.name}, not an ONNX model",
                kind.advice,
                code="model.not-onnx",
            )
        path, how = project.find_model(self.model, self.settings)
        if how:
            log.info("model: %s (%s)", path.name, how)
        path = _find_onnx_file(path, self.weights, self.settings, self.result.trust)
        named = {word.partition("=")[0] for word in self.feeding.inputs if "=" in word}
        if not named:
            return path
        from subgraph.origins.converted import move_weights_to_inputs

        return move_weights_to_inputs(path, named)

    @cached_property
    def feeding(self) -> Feeding:
        """The inputs of the model; of a case's folder those of the case, unless inputs are named.

        Raises:
            UsageError: a shape, mean or scale cannot be read.
        """
        settings = self.settings
        inputs = self.inputs
        files = inputs.inputs
        if not files and self.case:  # what a project file names is for its model
            files = [str(self.case / INPUTS)]
            log.info("inputs: those of the case, %s", clean(files[0]))
        return Feeding(
            inputs=tuple(settings.get("input", files, [])),
            shapes=self._read("shape", inputs.shape, parse_shapes, []),
            seed=settings.get("seed", inputs.seed, 0),
            picture=ImageOptions(
                self._read("mean", inputs.mean, partial(_parse_channel_numbers, "--mean", 0.0)),
                self._read("scale", inputs.scale, partial(_parse_channel_numbers, "--scale", 1.0)),
                settings.get("bgr", inputs.bgr or None, False),
            ),
            setting=settings.describe_settings(
                input=files, shape=inputs.shape, mean=inputs.mean, scale=inputs.scale
            ),
        )

    def _read(self, key: str, typed: Any, convert: Callable[[Any], T], default: Any = None) -> T:
        """Return a setting's value, converted; an error names the project file if the value is from
        there."""
        with name_setting(self.settings.describe_settings(**{key: typed})):
            return convert(self.settings.get(key, typed, default))

    @property
    def output(self) -> Path:
        """The folder that the result's folder goes into."""
        return Path(self.settings.get("output", self.result.output, "subcut_out"))

    @property
    def stored(self) -> bool:
        """Whether cached results of earlier runs may be used."""
        return not self.result.fresh

    # ------------------------------------------------------------ what judges

    @cached_property
    def criterion(self) -> str:
        """The words of the criterion, which is built once to report a typo before any run.

        Raises:
            UsageError: As `find_criterion_words`, or the criterion cannot be read.
        """
        from subgraph.comparison import judge

        with name_setting(self.settings.describe_settings(criterion=self.comparison.criterion)):
            words = find_criterion_words(self)
            judge.parse_criterion(words)
        return words

    def start_reference(self) -> Reference:
        """Start the reference's process.

        Raises:
            UsageError: the SPEC cannot be read, the library does not exist, or what would run is
                not trusted.
        """
        reference = self.choose_reference()
        limit = self._read("memory", self.runtime.memory, parse_limit)
        if reference is None:
            return Reference(limit=limit)
        require_trust(reference.code, self.result.trust)
        from subgraph.runtime.worker_pool import install

        limits: JsonObject = {
            "timeout": reference.timeout,
            "memory": reference.memory,
            "limit": limit,
        }
        return Reference(reference.backend, reference.options, python=install(reference), **limits)

    def choose_reference(self) -> Candidate | None:
        """Return the reference; None for plain onnxruntime. LiteRT runs TensorFlow Lite's models.

        Raises:
            UsageError: the SPEC cannot be read, or the library does not exist.
        """
        spec = self.settings.get(
            "reference", self.runtime.reference, choose_usual_reference(self.model_path)
        )
        library, _ = _find_custom_ops(self)
        if spec == PLAIN and not library:
            return None
        from subgraph.runtime import candidate as candidates

        with name_setting(self.settings.describe_settings(reference=self.runtime.reference)):
            reference = candidates.parse(spec, self.settings)
        if library and not reference.can.custom_ops:
            raise UsageError(
                "--custom-ops is for onnxruntime only",
                f"give {reference.backend} its own setting for that",
                code="option.conflict",
            )
        reference = _add_custom_ops(self, reference)
        return replace(reference, origin=reference.origin or self.origin)

    # ------------------------------------------------------------ what is judged

    def make_candidate(self, spec: str | None, model: Path | None = None) -> Candidate:
        """Return `choose_candidate` for a process of subcut, which ends the candidate's orphans."""
        from subgraph.system import adopt_orphans

        adopt_orphans()
        return self.choose_candidate(spec, model)

    def choose_candidate(self, spec: str | None, model: Path | None = None) -> Candidate:
        """Return the candidate with its limits, and log the code that will run.

        The default is onnxruntime with its optimizations; LiteRT for TensorFlow Lite's models.

        Raises:
            UnknownName, UsageError: the SPEC or a limit cannot be read, or its commands are not
                trusted.
        """
        from subgraph.runtime import candidate as candidates
        from subgraph.runtime.executors import check as check_executor

        settings = self.settings
        runtime = self.runtime
        typed = spec
        spec = settings.get("candidate", spec)
        usual = "litert" if model and is_of_tflite(model) else PLAIN
        with name_setting(settings.describe_settings(candidate=typed)):
            candidate = _add_custom_ops(self, candidates.parse(spec or usual, settings))
        timeout = self._read(
            "timeout", runtime.timeout, partial(require_positive_number, "--timeout")
        )
        if timeout == 0:
            raise UsageError(
                "--timeout 0: the time must be more than 0",
                "leave it out for 600 seconds",
                code="option.out-of-range",
            )
        parse = candidates.parse_memory
        memory_limit = self._read(
            "memory_limit", runtime.memory_limit, lambda text: None if text is None else parse(text)
        )
        own = None
        if not candidate.runs_commands:
            own = self._read("memory", runtime.memory, parse_limit)
        candidate = replace(
            candidate,
            timeout=timeout or candidate.timeout,
            memory=memory_limit or candidate.memory or own,
            precision=candidates.parse_precision("--precision", runtime.precision)
            or candidate.precision,
            executor=check_executor(
                settings.get("executor", runtime.executor) or candidate.executor
            ),
        )
        takes_tflite = candidate.can.tflite_operators or candidate.runs_commands
        # another backend finds model.tflite next to the model
        is_own = candidate.backend in plugins.list_own_names("backends")
        if model and is_of_tflite(model) and is_own and not takes_tflite:
            raise UsageError(
                f"{candidate.backend} takes ONNX; {model.name} has TensorFlow Lite's operators",
                "leave -c out: LiteRT runs it; or a command, which finds model.tflite in the"
                " folder of {model}",
                code="candidate.other-format",
            )
        require_trust(candidate.code, self.result.trust)
        if not spec:
            told = {PLAIN: "ort, onnxruntime", "litert": "litert, LiteRT"}[usual]
            log.info(
                "candidate: %s with its default optimizations (--candidate names another)", told
            )
        return candidate

    def make_setup(self, options: CandidateOptions, *, freeze: bool = True) -> Setup:
        """Return everything that trials on a candidate depend on in addition to the model.

        A SPEC that is the file of a model is the candidate's model.

        Raises:
            UnknownName, UsageError: as `candidate`, `feeding` and `find_other_model`.
        """
        from subgraph.trials.open_trials import Setup

        if not options.other_model and is_named_as_model(options.spec or ""):
            options = replace(options, spec=None, other_model=options.spec)
        other, tensor_map = find_other_model(options)
        candidate = self.make_candidate(options.spec, other or self.model_path)
        return Setup(
            candidate,
            self.feeding,
            self.output,
            self.criterion,
            freeze,
            self.stored,
            other,
            tensor_map,
        )

    # ------------------------------------------------------------ further options

    def count_jobs(self, typed: int | None, candidate: Candidate | None = None) -> int:
        """Return the number of candidates that run at once; by default as many as this one's hosts
        or executor take.

        Raises:
            UsageError: less than one. BackendError: the executor is not reached.
        """
        from subgraph.runtime.remote.remote_pool import runs_at_once

        if (count := self.settings.get("jobs", typed)) is not None and int(count) < 1:
            raise UsageError(f"--jobs {count}: at least one must run", code="option.out-of-range")
        return int(count or (runs_at_once(candidate) if candidate else 1))


def find_criterion_words(resolved: ResolvedOptions) -> str:
    """Return the criterion as `comparison.judge` reads it: `noise`, `numpy:rtol=0.001` …

    Raises:
        UsageError: several at once, no number, or a project file names code that is not
            trusted.
    """
    comparison = resolved.comparison
    rtol = comparison.rtol
    atol = comparison.atol
    metric = comparison.metric
    typed = {
        "--criterion": comparison.criterion,
        "--rtol/--atol": rtol or atol,
        "--metric": metric,
    }
    names = [name for name, value in typed.items() if value]
    if len(names) > 1:
        raise UsageError(
            f"{' and '.join(names)}: which?", "give one criterion", code="option.conflict"
        )
    if rtol or atol:
        limits = {
            "rtol": require_positive_number("--rtol", rtol),
            "atol": require_positive_number("--atol", atol),
        }
        return "numpy:" + ",".join(f"{k}={v:g}" for k, v in limits.items() if v is not None)
    if metric:
        return f"threshold:{metric}"
    module = str(resolved.settings.get("reference", resolved.runtime.reference, "")).startswith(
        MODULE
    )
    # Nobody translates a model by approximate kernels.
    usual = ROUNDING_ALONE if module or resolved.translated else "noise"
    words = str(resolved.settings.get("criterion", comparison.criterion, usual))
    origin = resolved.settings.find_origin("criterion", comparison.criterion)
    require_trust(find_criterion_code(words, origin), resolved.result.trust)
    return words


def read_formats(
    resolved: ResolvedOptions, form: FormatOptions, default: str
) -> tuple[Strings, TensorFormat]:
    """Return the formats of tensor files (`npy`, `bin`), and the element type and layout of the
    `.bin` ones.

    Raises:
        UsageError: one of them is unknown.
    """
    settings = resolved.settings
    words = convert.parse_formats(settings.get("format", form.formats, default))
    layout = settings.get("layout", form.layout, "").upper()
    return words, TensorFormat(settings.get("dtype", form.dtype, ""), layout)


def parse_candidate(resolved: ResolvedOptions, spec: str) -> Candidate:
    """Return the candidate that a SPEC describes; its code is not run and needs no trust.

    Raises:
        UnknownName, UsageError: the SPEC cannot be read.
    """
    from subgraph.runtime import candidate as candidates

    return candidates.parse(spec, resolved.settings)


def _add_custom_ops(resolved: ResolvedOptions, candidate: Candidate) -> Candidate:
    """Return the candidate with the library of custom operators, if it is onnxruntime."""
    library, origin = _find_custom_ops(resolved)
    if not library or not candidate.can.custom_ops:
        return candidate
    options = {**candidate.options, "custom_ops": library}
    return replace(candidate, options=options, origin=candidate.origin or origin)


def _find_custom_ops(resolved: ResolvedOptions) -> tuple[str, str]:
    """Return the library of custom operators as an absolute path ("" for none), and the project
    file if that names it.

    Raises:
        UsageError: there is no such file.
    """
    library = resolved.settings.get("custom_ops", resolved.runtime.custom_ops, "")
    if not library:
        return "", ""
    if not os.path.isfile(library):  # noqa: PTH113
        raise UsageError(
            f"no library {library}",
            "--custom-ops wants the file that registers the operators",
            code="file.not-found",
        )
    return str(Path(library).resolve()), resolved.settings.find_origin(
        "custom_ops", resolved.runtime.custom_ops
    )


def _find_onnx_file(
    path: Path, weights: str | None = None, settings: Project | None = None, trust: bool = False
) -> Path:
    """Return the file, or the ONNX file that it was converted to."""
    family = find_family(path)
    if not weights and family is None:
        return path
    from subgraph.origins.load import find_onnx_file

    if settings and family is not Family.TORCH_PROGRAM:
        weights = settings.get("weights", weights)
    return find_onnx_file(path, weights, trust)


def log_random_inputs(feeding: Feeding) -> list[str]:
    """Log that the inputs are random, if they are; return the note for the document, if any."""
    if feeding.inputs:
        return []
    note = f"the inputs are random values, seed {feeding.seed}; real ones show more"
    log.info("%s (-i FILE)", note)
    return [note]


def find_criterion_code(words: str, origin: str) -> NamedCode:
    """Return the Python files that a criterion runs; `origin`: its file, "" if the user typed it.

    Raises:
        UnknownName, UsageError: it cannot be read.
    """
    if not origin or ".py" not in words:
        return NamedCode("criterion", (), origin)
    from subgraph.comparison import judge
    from subgraph.runtime.command_line import Code, list_python_code

    files = [Path(file).resolve() for file in judge.list_files(words)]
    code = sum(map(list_python_code, files), Code())
    return NamedCode("criterion", tuple(map(str, files)), origin, code.files, words, code.complete)


def require_trust(code: NamedCode, trusted: bool) -> None:
    """Log what code that a file names will run.

    Raises:
        UsageError: it is not trusted.
    """
    if shown := trust.require(code, trusted):
        log.info("%s runs: %s", code.role, shown)
    if not code.complete:
        log.info(
            "%s: not all code around it is watched for changes, there is too much: --fresh after a"
            " change",
            code.role,
        )


def find_other_model(candidate: CandidateOptions) -> tuple[Path | None, Path | None]:
    """Return the candidate's own model, and the file that maps its tensors to those of the model.

    Raises:
        UsageError: one of them does not exist, or only the second is given.
    """
    model = candidate.other_model
    tensor_map = candidate.tensor_map
    if tensor_map and not model:
        raise UsageError(
            "--map goes with --candidate-model or --recorded",
            "it maps tensors there to those of MODEL",
            code="option.requires",
        )
    for option, path in (("--candidate-model", model), ("--map", tensor_map)):
        if path and not os.path.isfile(split_signature(Path(path))[0]):  # noqa: PTH113
            raise UsageError(f"{option} {path}: no such file", "name a file", code="file.not-found")
    return _find_onnx_file(Path(model)) if model else None, Path(tensor_map) if tensor_map else None


def choose_usual_reference(model: Path | None) -> str:
    """Return the reference if none is named: onnxruntime, or LiteRT without delegates for
    operators of TensorFlow Lite."""
    if model and is_of_tflite(model):
        return LITERT
    return PLAIN


def log_caveat(runtime: CandidateRuntime) -> None:
    """Log the caveat of the candidate's backend before any run: a low precision, for example.

    Raises:
        BackendError: it cannot be used.
    """
    if runtime.about.caveat:
        log.warning("%s", clean(runtime.about.caveat))


def require_positive_number(option: str, text: str | float | None) -> float | None:
    """Return a number, zero or more; None for None.

    Raises:
        UsageError: the text is something else.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(
            f"{option} {text}: expected a number, zero or more", code="option.malformed"
        )
    return value


def read_score(options: ScoreOptions) -> ScoreGoal | None:
    """Return the score that judges, with its limit; None if the criterion does.

    Raises:
        UsageError: as `make_score_goal`; a number cannot be read.
    """
    from subgraph.trials.score import make_score_goal

    least = require_positive_number("--at-least", options.at_least)
    return make_score_goal(options.score, options.drop, least, options.labels)


def parse_shapes(words: Sequence[str]) -> dict[str, list[int]]:
    """Parse `NAME=1x3x224x224` into {"NAME": [1, 3, 224, 224]}; `×`, `,` and `*` separate, too.

    Raises:
        UsageError: something else.
    """
    out = {}
    for word in words:
        name, sep, text = word.rpartition("=")
        sizes = re.split(r"[x×,*]", text) if text else []
        if not sep or not name or not all(re.fullmatch("[0-9]{1,9}", s) for s in sizes):
            raise UsageError(f"--shape {word}: expected NAME=1x3x224x224", code="option.malformed")
        out[name] = [int(s) for s in sizes]
    return out


def _parse_channel_numbers(option: str, default: float, text: str | None) -> tuple[float, ...]:
    if text is None:
        return (default,)
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text}: expected a number, or one per channel: 123.7,116.3,103.5",
            code="option.malformed",
        ) from None
