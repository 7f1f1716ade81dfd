"""Before a search blames nodes: can the candidate run anything, and does the user's code around it
return what it must?

The answer comes from one model of two operators, whose right outputs are known. It is run if the
full model returned no output; and if its outputs are wrong and code of the user returned them. A
mistake of that code shows in every output of every model, so a search would blame each node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import defs, numpy_helper, parser, save_model

from subgraph.comparison import ROUNDING_ALONE
from subgraph.comparison.contract import (
    describe_worst,
    explain_breach,
    explain_form,
    explain_misread,
    is_right,
    keeps_answer,
)
from subgraph.comparison.similarity.explanations import find_grid
from subgraph.errors import BackendError, OutputError, Refused
from subgraph.graph.region import Region
from subgraph.graph.walks import find_producer_label
from subgraph.inspection.validate import explain_refusal
from subgraph.iterables import flatten, restrict
from subgraph.log import log
from subgraph.precision import Precision
from subgraph.runtime.python_objects import FULL_MODEL_ONLY
from subgraph.runtime.run_result import Job, RunResult, from_stored
from subgraph.storage import tensors
from subgraph.storage.digest import digest
from subgraph.storage.file_kinds import is_of_tflite
from subgraph.storage.tensors import Record, Tensors, Value
from subgraph.text import clean
from subgraph.trials.candidate_runtime import CandidateRuntime, Form
from subgraph.trials.doubt import is_beyond_rounding
from subgraph.trials.judge import Judge
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.similar_outputs import MisreadInput, WrongOutput, feed_misread
from subgraph.trials.trial import Trials
from subgraph.types import Array, Arrays, frozen
from subgraph.verdict import Signature, Verdict

# Bodies of the models that are tried in turn: the outputs of each are `y` and, of the first, `z`.
# The constant `c` distinguishes an input whose axes are exchanged from such an output.
PROBES = ("y = Relu(x)  z = Add(w, c)", "y = Relu(x)", "y = Add(x, x)", "y = Identity(x)")
EXCHANGED_PROBE = "y = Add(w, c)  z = Relu(x)"
SHAPE = (1, 3, 8, 8)
TYPES = ("float32", "float16", "float64")
PROBE_PASSES = 3  # of the probe in one session: do its outputs repeat themselves?
SEEN_IN = "(seen in a test model: one Relu, one Add)"
MAX_SHOWN_LINES = 3  # of the last words
RETURN = (
    "return {name: numpy.ndarray} of the declared types and shapes, the same each time:"
    " docs/candidates.md"
)


def require_usable(trials: Trials, whole: RunResult) -> None:
    """Run the probe if the full model has no output, or if code of the user returned wrong ones.

    A Python file of the user that is right runs the full model again, with another input in
    between. Otherwise this costs nothing if the full model is right, and one to four small runs
    in a fresh process if it is not.

    Raises:
        BackendError: The candidate runs nothing, with its last words; or its outputs break the
            contract.
        Refused: The candidate's file does not load, and its nodes do.
    """
    own_model = trials.runtime.own_model
    model = own_model.graph if own_model else trials.graph
    if trials.runtime.is_manual or not trials.runtime.candidate.has_process:
        return
    if any(whole.tensors):
        if trials.runtime.runs_user_code and not is_of_tflite(model.path):
            require_contract(trials, trials.full_model, whole)
        return
    if not is_of_tflite(model.path):
        _require_one_operator(trials.judge, whole)
    shipped = trials.runner.forms.verdicts.get(Form.SHIPPED)
    if not shipped or shipped.signature is not Signature.REFUSED:
        return
    name = model.path.name
    region = trials.full_model
    declares_nothing = trials.run_extra(region, [{} for _ in trials.values.samples])
    if any(declares_nothing.tensors):
        hint = f"all nodes of {name} load without the declared tensors: correct or remove those"
        hint = "; ".join(filter(None, (explain_refusal(model), hint)))
        for output in sorted({*model.outputs} - {*model.maker, *model.inputs, *model.weights}):
            hint = (
                f"no node of {name} computes its output '{clean(output)}',"
                f" as '{find_producer_label(trials.graph, output)}' does"
            )
        what = f"the file as shipped does not load: {shipped.why}"
        refusal = Refused(what, hint, code="candidate.file-refused")
        refusal.exit_code = 1  # the reference reads the file
        raise refusal


def _require_one_operator(judge: Judge, whole: RunResult) -> None:
    """Raise BackendError if the candidate runs none of the probes.

    Args:
        judge: The judge.
        whole: The failed run of the full model.
    """
    name = judge.runtime.candidate.name
    # a runtime without the model's type is refused node by node
    dtypes = dict.fromkeys((_probe_type(judge.model), TYPES[0]))
    for dtype, body in product(dtypes, PROBES[1:]):
        result = _run_probe(judge, body, dtype)
        if any(result.tensors):
            return
        if result.failure and result.failure.why == FULL_MODEL_ONLY:
            raise BackendError(
                f"candidate {name} does not run the model: {_explain(whole)[0]}",
                "call it with the inputs of the model by hand",
                code="candidate.runs-nothing",
            )
        if result.failure and result.failure.signature is Signature.TIMEOUT:
            break  # each further one would take as long
    why, lines = _explain(result)
    hint = (
        "try the candidate by hand on a model of one node; a command writes NAME.npy or NAME.bin"
        " into {outputs}"
    )
    raise BackendError(
        f"candidate {name} runs nothing, not even one Relu of {dtype}: {why}",
        f"its last words: {' | '.join(lines)}" if lines else hint,
        code="candidate.runs-nothing",
    )


def require_contract(trials: Trials, region: Region, result: RunResult) -> None:
    """Raise BackendError if code of the user changes what its runtime returns, or returns an
    earlier answer again.

    Args:
        trials: The trials.
        region: The full model, perhaps with further outputs.
        result: The candidate's result for it.
    """
    verdict = trials.judge.verdict(region, result)
    breach = NO_BREACH
    if verdict.fails:
        breach = _ask_probe(trials, verdict)
        if breach.also == ONE_MODEL:
            wrong = WrongOutput(trials, region, verdict.worst) if verdict.worst else None
            misread = wrong.wrong_input if wrong else ""
            breach = Breach("candidate.wrong-input", misread and f": {misread}")
        elif breach.also == WIDE and verdict.signature is Signature.SHAPE and verdict.worst:
            what = f": '{clean(verdict.worst.name)}' is {verdict.worst.why}"
            breach = Breach(code="candidate.breaks-contract", clause=what)
    elif verdict.agrees and trials.runtime.candidate.script and not trials.runtime.own_model:
        find = partial(_find_wrong_use, trials, region)
        breach = _remember(trials, trials.processes.key(region, trials.values.records), find)
    if breach.clause:
        what = f"candidate {trials.runtime.candidate.name}{breach.clause}"
        raise BackendError(what, _make_hint(trials.runtime, breach.clause), code=breach.code)


ONE_MODEL = "one model"  # the code returns other outputs than those of the probe
WIDE = "float64"  # floats come as float64, which is harmless


@frozen
class Breach:
    """A behavior that no candidate is allowed to have.

    Attributes:
        code: The code of the error.
        clause: The predicate of a sentence about the candidate, or a colon and a sentence; "" for
            no breach.
        also: Another fact that the probe shows, if nothing is wrong with it: `ONE_MODEL`, `WIDE`,
            or the precision of which all its values are numbers.
    """

    code: str = ""
    clause: str = ""
    also: str = ""


NO_BREACH = Breach()


def _remember(trials: Trials, about: str, find: Callable[[], Breach]) -> Breach:
    """Return what was found of this candidate in an earlier session, or find it now."""
    key = digest(
        "contract/4", trials.processes.runs.candidate_key.text, _probe_type(trials.model), about
    )
    try:
        document, _ = trials.model.store.memo(key, lambda _: asdict(find()))
    except (OSError, OutputError) as e:  # a full disk shows nothing about the candidate
        log.debug("the contract of the candidate was not looked at: %s", e)
        return NO_BREACH
    return Breach(**document)


def _find_wrong_use(trials: Trials, region: Region) -> Breach:
    """Find a mistake of code whose outputs agree: it rounds its inputs, changes them, or returns
    the outputs of the first input again for another one, in the same session."""
    if is_beyond_rounding(trials, region) and (breach := _find_rounded_input(trials, region)):
        return breach
    model = trials.model
    others = model.others.outputs_without(0)
    if not others:
        return NO_BREACH
    sample = {**model.values.records[0]}
    records = [sample, others[0], sample]
    given = {name: sample[name].value() for name in region.inputs}
    fed = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    with model.make_temporary_folder() as folder:
        feeds, outputs = trials.writer.write(trials.runner.form_of(region), region, records, folder)
        # inputs come back as the candidate left them
        result = _run_here(trials.judge, folder, feeds, [*outputs, *fed])
    if result.failure:
        return NO_BREACH
    first, other, again = (
        {name: record.value() for name, record in of.items()} for of in result.tensors
    )
    if changed := _find_changed_input(fed, first):
        return Breach(code="candidate.breaks-contract", clause=f": {changed}")
    arrays = [name for name in outputs if isinstance(others[0][name].value(), np.ndarray)]
    expected, right = ({name: of[name].array() for name in arrays} for of in (others[0], sample))
    if keeps_answer(expected, right, other):
        return Breach(
            code="candidate.repeats-outputs",
            clause=" returns its first outputs again for another input",
        )
    if any(
        isinstance(value := first.get(n), np.ndarray) and not is_right(value, again.get(n))
        for n in arrays
    ):
        clause = " is flaky: for the same input again, after another one, it returns other outputs"
        return Breach(code="candidate.flaky", clause=clause)
    return NO_BREACH


def _find_rounded_input(trials: Trials, region: Region) -> Breach | None:
    """Find whether the outputs are right, up to rounding, for inputs rounded to float16."""
    judge = trials.judge.ignore_evidence().with_criterion(ROUNDING_ALONE)
    rounded: MisreadInput | None = None
    records = judge.model.values.records
    for name in (n for n in region.inputs if records[0][n].dtype == "float32"):
        values = [_round(sample[name].array()) for sample in records]
        feeds = [
            {name: tensors.write_value(name, v, judge.model.new_folder(), "x")} for v in values
        ]
        rounded = MisreadInput(name, "rounded to float16", feeds)
        judge = feed_misread(judge, rounded)
    result = trials.run(region)
    values = [value for value in _read_values(result).values() if isinstance(value, np.ndarray)]
    # Outputs that float16 holds can as well come from a runtime that computes in it.
    if rounded is None or all(np.array_equal(value, _round(value)) for value in values):
        return None
    judge.model.capture(region)
    if not judge.verdict(region, result).agrees:
        return None
    sentence = rounded.sentence(trials.model)
    return Breach(code="candidate.wrong-input", clause=f": {sentence} before it runs")


def _round(value: Array) -> Array:
    """Return the nearest values of float16, as float32."""
    return value.astype(np.float16).astype(np.float32)


def _ask_probe(trials: Trials, verdict: Verdict) -> Breach:
    """Return what the probe shows; of an earlier session, if it was run there.

    Args:
        trials: The trials.
        verdict: The verdict on outputs of the full model that fail.
    """
    lacks_output = any(j.signature is Signature.MISSING for j in verdict.outputs)
    find = partial(_find_wrong_probe, trials, lacks_output)
    return _remember(trials, f"probe{', missing' * lacks_output}", find)


def find_narrow_type(trials: Trials, verdict: Verdict) -> Precision | None:
    """Return the precision that code of the user computes in, as all values of the probe show; None
    if they are those of the declared type, or no code of the user runs."""
    if not trials.runtime.runs_user_code or is_of_tflite(trials.graph.path):
        return None
    also = _ask_probe(trials, verdict).also
    if also in (Precision.FP16, Precision.BF16):
        return Precision(also)
    return None


def _find_wrong_probe(trials: Trials, lacks_output: bool) -> Breach:
    """Find whether the probe is wrong as well, in each of its outputs or in the form of one.

    `lacks_output`: whether an output of the model is missing, too.
    """
    dtype = _probe_type(trials.model)
    result = _run_probe(trials.judge, PROBES[0], dtype)
    inputs = _probe_inputs(dtype)
    given = _read_values(result)
    fed = {name: given.pop(name) for name in inputs if name in given}
    if given.keys() != {"y", "z"} and not (given and lacks_output):
        return Breach(also=ONE_MODEL)
    if result.later:
        return Breach(
            code="candidate.flaky",
            clause=" is flaky: the values of one Relu differ from run to run",
        )
    expected = _compute_probe(inputs)
    breach = _find_form(expected, given)
    if breach and "z" in given:  # the wrapper changes an output, whichever operator computes it
        relu, add = expected.values()
        exchanged = _run_probe(trials.judge, EXCHANGED_PROBE, dtype)
        if _find_form({"y": add, "z": relu}, _read_values(exchanged)) != breach:
            return NO_BREACH
    if not breach and not any(is_right(one, given.get(of)) for of, one in expected.items()):
        breach = (
            _find_changed_input(inputs, fed)
            or explain_misread(_compute_probe, inputs, given)
            or explain_breach(expected, given)
            or describe_worst(expected, given)
        )
    if breach:
        return Breach(code="candidate.breaks-contract", clause=f": {breach} {SEEN_IN}")
    right = {of: one for of, one in expected.items() if is_right(one, given.get(of))}
    pairs = [(one, np.asarray(given[of])) for of, one in right.items()]
    if any(one.dtype != other.dtype for one, other in pairs):
        return Breach(also=WIDE)
    grids = {find_grid(*pair) for pair in pairs}
    grid = grids.pop()
    return Breach(also=str(grid[0]) if grid and not grids else "")


def _find_changed_input(fed: Arrays, left: Tensors) -> str:
    """Return which input the candidate left with other values; "" if none."""
    changed = (
        name for name, value in left.items() if name in fed and not is_right(fed[name], value)
    )
    return next((f"it changes its input '{clean(name)}' in place" for name in changed), "")


def _read_values(result: RunResult) -> dict[str, Value]:
    return {
        of: record.value() for of, record in flatten(tensors.items() for tensors in result.tensors)
    }


def _compute_probe(fed: Arrays) -> Arrays:
    return {"y": np.maximum(fed["x"], 0), "z": fed["w"] + _make_constant(fed["w"].dtype)}


def _find_form(expected: Arrays, given: Tensors) -> str:
    """Return the form of one output of a probe that the wrapper changed; "" if both outputs are
    wrong, or none."""
    wrong = {of: value for of, value in expected.items() if not is_right(value, given.get(of))}
    if len(wrong) == len(expected):
        return ""
    return explain_form(wrong, restrict(given, wrong))


def _make_hint(runtime: CandidateRuntime, breach: str) -> str:
    """Return what to do: a command declares the layout or byte order of its outputs."""
    if "in place" in breach:
        return "give the runtime a copy: numpy.array(value)"
    form = "big" if "big-endian" in breach else ""
    if "NHWC" in breach and "outputs" in breach:
        form = form or "NHWC"
    if form and runtime.candidate.runs_commands:
        return f"declare it: -c 'cmd[outputs={form}]:…', or outputs = \"{form}\" in subcut.toml"
    return RETURN


def _probe_type(model: ReferenceModel) -> str:
    """Return the first float type among the model's inputs."""
    inputs = [model.values.records[0][name].dtype for name in model.whole().inputs]
    return next((dtype for dtype in inputs if dtype in TYPES), TYPES[0])


def _probe_inputs(dtype: str) -> Arrays:
    """Return two inputs of which all values differ."""
    ramp = np.linspace(-1, 1, int(np.prod(SHAPE)))
    return {
        "x": ramp.astype(dtype).reshape(SHAPE),
        "w": (1.25 - ramp[::-1] ** 3 / 4).astype(dtype).reshape(SHAPE),
    }


def _make_constant(dtype: npt.DTypeLike) -> Array:
    """Return a constant whose sum with a `w` of float16 or bfloat16 is one of that type, too."""
    return (np.arange(np.prod(SHAPE)) % 3 / 8).astype(dtype).reshape(SHAPE)


def _run_probe(judge: Judge, body: str, dtype: str) -> RunResult:
    """Run a model of these operators, of the opset of the model in question, in a fresh process."""
    source = judge.model.graph.model
    kind = tensors.PROTO_NAMES.get(dtype, dtype)
    opset = next(
        (o.version for o in source.opset_import if o.domain in ("", "ai.onnx")),
        defs.onnx_opset_version(),
    )
    names = ["x", "w"] if "w" in body else ["x"]
    outputs = ["y", "z"] if "z =" in body else ["y"]
    declared = [", ".join(f"{kind}[1,3,8,8] {name}" for name in some) for some in (names, outputs)]
    model = parser.parse_model(f"""
        <ir_version: {source.ir_version}, opset_import: ["": {opset}]>
        preflight ({declared[0]}) => ({declared[1]}) {{ {body} }}
    """)
    for node in model.graph.node:
        node.name = node.op_type
    if "c)" in body:
        model.graph.initializer.append(numpy_helper.from_array(_make_constant(dtype), "c"))
    with judge.model.make_temporary_folder() as folder:
        save_model(model, folder / "model.onnx")
        values = _probe_inputs(dtype)
        fed = [
            tensors.save(name, values[name], tensors.format_tensor_type(dtype), folder, name)
            for name in names
        ]
        feeds = [[record.rebase(str(folder)) for record in fed]]
        wanted = outputs + names * ("w" in names)  # inputs come back as the candidate left them
        passes = 1 if judge.runtime.candidate.runs_commands else PROBE_PASSES
        return _run_here(judge, folder, feeds, wanted, passes)


def _run_here(
    judge: Judge,
    folder: Path,
    feeds: Sequence[Sequence[Record]],
    outputs: Sequence[str],
    passes: int = 1,
) -> RunResult:
    """Run the model of a folder in a fresh process."""
    model = folder / "model.onnx"
    into = judge.model.new_folder()
    options = judge.runtime.candidate.options
    job = Job(model, feeds, outputs, into, fresh=True, options=options, passes=passes)
    return from_stored(judge.runtime.workers.run(job).to_stored(), into.resolve())


def _explain(result: RunResult) -> tuple[str, list[str]]:
    """Return the reason why there is no output, and the last words."""
    if result.failure:
        return result.failure.why, list(result.failure.process.get("stderr") or ())[
            -MAX_SHOWN_LINES:
        ]
    others = ", ".join(map(clean, result.others[0]))
    return f"expected the output 'y', got {others or 'no output'}", []
