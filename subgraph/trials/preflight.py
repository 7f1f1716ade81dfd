"""Can a candidate run anything, load its own model, and do its outputs mean what the model says?

Asked where the whole model gave no output or a wrong one, before a search blames nodes: one small model of one operator
tells it.
"""

from __future__ import annotations

from dataclasses import replace

from subgraph.errors import BackendError, Refused
from subgraph.runtime.run_result import Job, RunResult
from subgraph.storage import tensors
from subgraph.storage.file_kinds import is_of_tflite
from subgraph.text import clean
from subgraph.trials.forms import Form
from subgraph.trials.trial import Trials
from subgraph.types import Array
from subgraph.verdict import Signature, Status

OPERATORS = ("Relu", "Add", "Identity")  # one of them is enough: no runtime has none
SHAPE = (1, 3, 8, 8)
TYPES = ("float32", "float16", "float64")
CLOSE = 1e-2  # what a command may round to
BIG_ENDIAN = "big-endian"
SHOWN_LINES = 3  # of the last words


def require_usable(trials: Trials, whole: RunResult) -> None:
    """Where the whole has no output, or is wrong on a command's, run models of one node, of its opset and type.

    A search among nodes would tell nothing of a script that writes nothing, a Python file that always raises, a model
    that does not load, or outputs in another layout. Costs nothing where the whole is right; one to three small runs
    else, in a fresh process.

    Raises:
        BackendError: the candidate does not run any of them, with its last words; or its outputs have another form.
        Refused: the candidate's own model does not load.
    """
    model = trials.runtime.own_model.graph if trials.runtime.own_model else trials.model.graph
    if trials.runtime.is_manual or not trials.runtime.candidate.has_process:
        return
    runs = any(whole.tensors)
    if runs and not (
        trials.runtime.candidate.runs_commands
        and trials.judge.verdict(trials.model.whole(), whole).status is Status.FAIL
    ):
        return
    if not is_of_tflite(model.path):
        _require_one_operator(trials, compares=runs)
    shipped = trials.ask.forms.verdicts.get(Form.SHIPPED)
    if trials.runtime.own_model and not runs and shipped and shipped.signature is Signature.REFUSED:
        what = f"the candidate's model does not load: {shipped.why}"
        raise Refused(what, f"{clean(model.path.name)} is to be made anew: no part of it was compared")


def _require_one_operator(trials: Trials, *, compares: bool) -> None:
    inputs = [trials.model.values.records[0][name].dtype for name in trials.model.whole().inputs]
    dtype = next((d for d in inputs if d in TYPES), TYPES[0])
    for operator in OPERATORS:
        result = _run_one(trials, operator, dtype)
        if any(result.tensors):
            if compares and (other := _other_form(result.tensors[0]["y"].array(), _ramp(operator, dtype))):
                name = clean(trials.runtime.candidate.name)
                what = f"candidate {name}: its outputs are {other}, as one {operator} shows"
                word = "big" if other == BIG_ENDIAN else other
                raise BackendError(
                    what, f"declare it: -c 'cmd[outputs={word}]:…', or outputs = \"{word}\" in subcut.toml"
                )
            return
        if result.failure and result.failure.signature is Signature.TIMEOUT:
            break  # each further one would take as long
    if compares:  # the whole runs: this one is refused for reasons of its own
        return
    why, lines = _why(result)
    what = (
        f"candidate {clean(trials.runtime.candidate.name)} runs nothing, not even one {OPERATORS[0]} of {dtype}: {why}"
    )
    hint = "try the candidate by hand on a model of one node; a command writes NAME.npy or NAME.bin into {outputs}"
    raise BackendError(what, f"its last words: {' | '.join(lines)}" if lines else hint)


def _ramp(operator: str, dtype: str) -> Array:
    """What the operator gives for the values that it is fed."""
    import numpy as np

    x = np.linspace(-1, 1, int(np.prod(SHAPE)), dtype=dtype).reshape(SHAPE)
    return {"Relu": np.maximum(x, 0), "Add": x + x, "Identity": x}[operator]


def _other_form(given: Array, expected: Array) -> str:
    """The form in which values are what was expected: `NHWC`, `big-endian`; "" where it is the model's, or none."""
    import numpy as np

    if given.size != expected.size or given.dtype.kind != "f":
        return ""
    nhwc = expected.transpose(0, 2, 3, 1).reshape(expected.shape)
    for form, value, right in (
        ("", given, expected), ("NHWC", given, nhwc), (BIG_ENDIAN, given.byteswap(), expected),
    ):  # fmt: skip
        if np.allclose(value.reshape(expected.shape), right, rtol=CLOSE, atol=CLOSE):
            return form
    return ""


def _run_one(trials: Trials, operator: str, dtype: str) -> RunResult:
    """The result of a model that has only this operator."""
    from onnx import defs, parser, save_model

    source, kind = trials.model.graph.model, tensors.PROTO_NAMES.get(dtype, dtype)
    opset = next((o.version for o in source.opset_import if o.domain in ("", "ai.onnx")), defs.onnx_opset_version())
    x = "x, x" if operator == "Add" else "x"
    model = parser.parse_model(f"""
        <ir_version: {source.ir_version}, opset_import: ["": {opset}]>
        preflight ({kind}[1,3,8,8] x) => ({kind}[1,3,8,8] y) {{ y = {operator}({x}) }}
    """)
    model.graph.node[0].name = operator
    with trials.model.temporary_folder() as folder:
        save_model(model, folder / "model.onnx")
        value = _ramp("Identity", dtype)
        fed = tensors.save("x", value, tensors.tensor_text(dtype), folder, "x")
        into = trials.model.new_folder()
        feeds = [[fed.within(str(folder))]]
        job = Job(folder / "model.onnx", feeds, ["y"], into, fresh=True, options=trials.runtime.candidate.options)
        result, made = trials.runtime.workers.run(job), str(into.resolve())
        absolute = tuple({name: record.within(made) for name, record in of.items()} for of in result.tensors)
        return replace(result, tensors=absolute)


def _why(result: RunResult) -> tuple[str, list[str]]:
    """Why there is no output, and the last words."""
    if result.failure:
        return result.failure.why, list(result.failure.process.get("stderr") or ())[-SHOWN_LINES:]
    others = ", ".join(map(clean, result.others[0]))
    return f"expected the output 'y', got {others or 'no output'}", []
