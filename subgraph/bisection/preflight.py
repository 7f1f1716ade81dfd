"""Can a candidate run anything at all? Asked where the whole model gave no output, before a search blames its nodes."""

from __future__ import annotations

from subgraph.errors import BackendError
from subgraph.runtime.run_result import Job, RunResult
from subgraph.storage import tensors
from subgraph.storage.file_kinds import is_of_tflite
from subgraph.text import clean
from subgraph.trials.trial import Trials

OPERATORS = ("Relu", "Add", "Identity")  # one of them is enough: no runtime has none
SHAPE = (1, 3, 8, 8)
TYPES = ("float32", "float16", "float64")
SHOWN_LINES = 3  # of the last words


def require_usable(trials: Trials, whole: RunResult) -> None:
    """Where a result of the whole has no output, run models of one node, of the whole's opset and type.

    A search among nodes would tell nothing of a script that writes nothing, or a Python file that always raises. Costs
    nothing where the whole gave any output; one to three small runs else, in a fresh process.

    Raises:
        BackendError: the candidate does not run any of them; says why, with its last words.
    """
    model = trials.candidate_model.graph if trials.candidate_model else trials.graph
    if any(whole.tensors) or trials.run_by_hand or not trials.candidate.has_process or is_of_tflite(model.path):
        return
    inputs = [trials.values.records[0][name].dtype for name in trials.whole().inputs]
    dtype = next((d for d in inputs if d in TYPES), TYPES[0])
    for operator in OPERATORS:
        result = _run_one(trials, operator, dtype)
        if any(result.tensors):
            return
    why, lines = _why(result)
    what = f"candidate {clean(trials.candidate.name)} runs nothing, not even one {OPERATORS[0]} of {dtype}: {why}"
    hint = "try the candidate by hand on a model of one node; a command writes NAME.npy or NAME.bin into {outputs}"
    raise BackendError(what, f"its last words: {' | '.join(lines)}" if lines else hint)


def _run_one(trials: Trials, operator: str, dtype: str) -> RunResult:
    """The result of a model that has only this operator."""
    import numpy as np
    from onnx import defs, parser, save_model

    source, kind = trials.graph.model, tensors.PROTO_NAMES.get(dtype, dtype)
    opset = next((o.version for o in source.opset_import if o.domain in ("", "ai.onnx")), defs.onnx_opset_version())
    x = "x, x" if operator == "Add" else "x"
    model = parser.parse_model(f"""
        <ir_version: {source.ir_version}, opset_import: ["": {opset}]>
        preflight ({kind}[1,3,8,8] x) => ({kind}[1,3,8,8] y) {{ y = {operator}({x}) }}
    """)
    model.graph.node[0].name = operator
    with trials.temporary_folder() as folder:
        save_model(model, folder / "model.onnx")
        value = np.linspace(-1, 1, int(np.prod(SHAPE)), dtype=dtype).reshape(SHAPE)
        fed = tensors.save("x", value, tensors.tensor_text(dtype), folder, "x")
        into = trials.new_folder()
        feeds = [[fed.within(str(folder))]]
        job = Job(folder / "model.onnx", feeds, ["y"], into, fresh=True, options=trials.candidate.options)
        return trials.workers.run(job)


def _why(result: RunResult) -> tuple[str, list[str]]:
    """Why there is no output, and the last words."""
    if result.failure:
        return result.failure.why, list(result.failure.process.get("stderr") or ())[-SHOWN_LINES:]
    others = ", ".join(map(clean, result.others[0]))
    return f"expected the output 'y', got {others or 'no output'}", []
