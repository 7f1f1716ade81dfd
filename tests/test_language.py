"""Language and shape of code and pages: no pattern becomes more frequent, clean files stay clean.

`python tests/test_language.py` prints the counts; with a PATTERN or FILE, it prints the places.
Lower a number in `CEILINGS` when you remove places. Never raise one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MARGIN = 10  # places by which a total may exceed its ceiling, because several people work at once

TEXT_PATTERNS = {
    "what-clause": r"(?<!# )\bWhat\b(?! does\b)"
    r"|\b(of|than|by|as|to|on|about|from|with|is|are) what\b",
    "code-that-speaks": r"(?<![`./])\b(told|tells?(?! nothing)|telling|asked|asks?|asking|said"
    r"|says?|saying|believed?)\b(?!:| =|[/`])",
    "double-genitive": r"\bof (its|their|our|your) own\b|\bof (ours|yours)\b"
    r"|\bof (a |the )?\w+'s(?=[.,;:)]|$| (and|or|which|that|is|are)\b)",
    "headless-noun": r"\bthe whole\b"
    r"(?= (agrees|fails|gives|is|does|runs|failed|without|has|and)\b|[,.;:])"
    r"|\b(is|are|be|was|were|far) off\b|\bgo(es)? wrong\b",
    "makes-gives": r"\b(makers? of(?! another)|made by|is made|that makes?|gives|gave|given no)\b",
    "is-none": r"\b(is|are|was) none\b|\bis no (part|setting|text|JSON|number)\b",
    "spatial": r"\b(behind|beside(?!:)|stands?(?! out)|stood|lies|in the place of)\b",
    "dated-word": r"\banew\b|\bonce more\b|(?<!years )\bof (no )?use\b|\bspoil\w*\b|\bin vain\b"
    r"|\bso (many|few|far)\b",
}
# Patterns of docstrings: of each line, of the first line.
LINE_PATTERNS = {
    "question": r"^(Is|Are|Does|Do|Did|Has|Have|Was|Were|May|Can|Must|Could|Should)\b[^.]*\?",
    "two-fields": r"^\s+[a-z_]+: .*\. [a-z_]+(, [a-z_]+)*: |^\s+[a-z_]+(, [a-z_]+)+: ",
}
SUMMARY_PATTERNS = {
    "elliptic-start": r"^(As|Of|By|In|With|Without|For|At|From|To|Where|The same)\b"
}
PARTICIPLES = frozenset(
    "chosen drawn found told held made given kept seen shown written fed left lent sent taken "
    "known".split()
)
PREPOSITIONS = frozenset(
    "of by above below beside beyond around between within behind before after".split()
)
PUBLIC_NAMES = {"of_pair", "computed_by", "cleaned", "listed", "beside"}  # of plug-ins
COMMENT = re.compile(r"(?:^|  )\s*# (.*)")
WORD = re.compile(r"\b[a-z]{2,}\b")
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
REGEX = {
    name: re.compile(regex, re.MULTILINE)
    for name, regex in (TEXT_PATTERNS | LINE_PATTERNS | SUMMARY_PATTERNS).items()
}

# Counts in `subgraph/`, and of `TEXT_PATTERNS` in the pages of `docs/` that people write.
CEILINGS: dict[str, int] = {
    "code-that-speaks": 0,
    "what-clause": 0,
    "spatial": 0,
    "headless-noun": 0,
    "makes-gives": 0,
    "is-none": 0,
    "double-genitive": 0,
    "elliptic-start": 0,
    "two-fields": 0,
    "long-line": 0,
    "dated-word": 0,
    "question": 0,
    "double-for": 0,
    "function-name": 0,
    "unrelated-pair": 0,
    "conditional-in-fstring": 0,
    "nested-condition": 0,
}
PAGE_CEILINGS: dict[str, int] = {
    "makes-gives": 0,
    "what-clause": 0,
    "code-that-speaks": 0,
    "dated-word": 0,
    "spatial": 0,
    "double-genitive": 0,
}
# Files that are rewritten completely. No pattern occurs in them.
CLEAN = (
    "docs/architecture.md",
    "docs/bisect.md",
    "docs/blame.md",
    "docs/bundle.md",
    "docs/candidates.md",
    "docs/candidates/README.md",
    "docs/candidates/adb.md",
    "docs/candidates/iree.md",
    "docs/candidates/litert.md",
    "docs/candidates/rknn.md",
    "docs/candidates/ssh.md",
    "docs/candidates/tensorrt.md",
    "docs/candidates/torch.md",
    "docs/candidates/tvm.md",
    "docs/candidates/xnnpack.md",
    "docs/compare.md",
    "docs/cut.md",
    "docs/devices.md",
    "docs/dumps.md",
    "docs/edit.md",
    "docs/index.md",
    "docs/large.md",
    "docs/look.md",
    "docs/loop.md",
    "docs/machines.md",
    "docs/manual.md",
    "docs/measured.md",
    "docs/security.md",
    "docs/start.md",
    "docs/troubleshooting.md",
    "docs/view.md",
    "docs/why.md",
    "docs/words.md",
    "subgraph/bisection/__init__.py",
    "subgraph/bisection/bisection.py",
    "subgraph/bisection/body_search.py",
    "subgraph/bisection/describe.py",
    "subgraph/bisection/error_shares.py",
    "subgraph/bisection/items.py",
    "subgraph/bisection/manual/__init__.py",
    "subgraph/bisection/manual/advance.py",
    "subgraph/bisection/manual/manual_search.py",
    "subgraph/bisection/manual/manual_session.py",
    "subgraph/bisection/manual/outputs.py",
    "subgraph/bisection/manual/tasks.py",
    "subgraph/bisection/options.py",
    "subgraph/bisection/oracle.py",
    "subgraph/bisection/result_folder.py",
    "subgraph/bisection/rewriting.py",
    "subgraph/bisection/stages.py",
    "subgraph/bisection/stretches.py",
    "subgraph/blame/__init__.py",
    "subgraph/blame/answer.py",
    "subgraph/blame/attributes.py",
    "subgraph/blame/blame.py",
    "subgraph/blame/cures.py",
    "subgraph/blame/maker.py",
    "subgraph/blame/maker_backend.py",
    "subgraph/blame/makers/__init__.py",
    "subgraph/blame/makers/_quantizer.py",
    "subgraph/blame/makers/cmd.py",
    "subgraph/blame/makers/onnxoptimizer.py",
    "subgraph/blame/makers/onnxscript.py",
    "subgraph/blame/makers/onnxsim.py",
    "subgraph/blame/makers/onnxslim.py",
    "subgraph/blame/makers/ort.py",
    "subgraph/blame/makers/quantize_dynamic.py",
    "subgraph/blame/makers/quantize_static.py",
    "subgraph/blame/rewritten.py",
    "subgraph/blame/versions.py",
    "subgraph/bodies/__init__.py",
    "subgraph/bodies/descend.py",
    "subgraph/bodies/iterations.py",
    "subgraph/bodies/model.py",
    "subgraph/bodies/truncated.py",
    "subgraph/cases/__init__.py",
    "subgraph/cases/layout.py",
    "subgraph/cases/write_case.py",
    "subgraph/commands/__init__.py",
    "subgraph/commands/help.py",
    "subgraph/commands/live.py",
    "subgraph/commands/table.py",
    "subgraph/comparison/__init__.py",
    "subgraph/comparison/contract.py",
    "subgraph/comparison/criteria/__init__.py",
    "subgraph/comparison/criteria/_decisions.py",
    "subgraph/comparison/criteria/_float_rule.py",
    "subgraph/comparison/criteria/_floats.py",
    "subgraph/comparison/criteria/_slices.py",
    "subgraph/comparison/criteria/digits.py",
    "subgraph/comparison/criteria/mnn.py",
    "subgraph/comparison/criteria/msaccucmp.py",
    "subgraph/comparison/criteria/noise.py",
    "subgraph/comparison/criteria/numpy.py",
    "subgraph/comparison/criteria/threshold.py",
    "subgraph/comparison/criteria/tnn.py",
    "subgraph/comparison/evidence.py",
    "subgraph/comparison/float_types.py",
    "subgraph/comparison/judge.py",
    "subgraph/comparison/metrics/__init__.py",
    "subgraph/comparison/metrics/cosine.py",
    "subgraph/comparison/metrics/kl.py",
    "subgraph/comparison/metrics/max_abs.py",
    "subgraph/comparison/metrics/max_rel.py",
    "subgraph/comparison/metrics/mean_abs.py",
    "subgraph/comparison/metrics/mean_rel.py",
    "subgraph/comparison/metrics/mismatch.py",
    "subgraph/comparison/metrics/rel_l2.py",
    "subgraph/comparison/metrics/rmse.py",
    "subgraph/comparison/metrics/sqnr.py",
    "subgraph/comparison/metrics/ulp.py",
    "subgraph/comparison/noise/__init__.py",
    "subgraph/comparison/noise/analysis.py",
    "subgraph/comparison/noise/instrument.py",
    "subgraph/comparison/noise/noise.py",
    "subgraph/comparison/noise/perturb.py",
    "subgraph/comparison/noise/rounding_nodes.py",
    "subgraph/comparison/noise/sampler.py",
    "subgraph/comparison/pair.py",
    "subgraph/comparison/scores/__init__.py",
    "subgraph/comparison/scores/_text.py",
    "subgraph/comparison/scores/_top.py",
    "subgraph/comparison/scores/cer.py",
    "subgraph/comparison/scores/iou.py",
    "subgraph/comparison/scores/miou.py",
    "subgraph/comparison/scores/sqnr.py",
    "subgraph/comparison/scores/top1.py",
    "subgraph/comparison/scores/top5.py",
    "subgraph/comparison/scores/wer.py",
    "subgraph/comparison/similarity/__init__.py",
    "subgraph/comparison/similarity/explanations.py",
    "subgraph/comparison/similarity/rearranged.py",
    "subgraph/comparison/where.py",
    "subgraph/decoding/__init__.py",
    "subgraph/decoding/decoder.py",
    "subgraph/decoding/inputs.py",
    "subgraph/decoding/result_folder.py",
    "subgraph/decoding/run_steps.py",
    "subgraph/decoding/step_search.py",
    "subgraph/diagnosis/__init__.py",
    "subgraph/diagnosis/approximations.py",
    "subgraph/diagnosis/conclusions.py",
    "subgraph/diagnosis/diagnosis.py",
    "subgraph/diagnosis/passes.py",
    "subgraph/diagnosis/two_models.py",
    "subgraph/drawing/__init__.py",
    "subgraph/drawing/chart.py",
    "subgraph/drawing/groups.py",
    "subgraph/drawing/layered.py",
    "subgraph/drawing/layout.py",
    "subgraph/drawing/level.py",
    "subgraph/drawing/network.py",
    "subgraph/drawing/svg.py",
    "subgraph/drawing/tensor.py",
    "subgraph/editing/__init__.py",
    "subgraph/editing/body_edit.py",
    "subgraph/editing/draft.py",
    "subgraph/editing/effect.py",
    "subgraph/editing/merge.py",
    "subgraph/editing/replace.py",
    "subgraph/environments/__init__.py",
    "subgraph/environments/emulated.py",
    "subgraph/environments/installation.py",
    "subgraph/environments/releases.py",
    "subgraph/graph/__init__.py",
    "subgraph/graph/cut.py",
    "subgraph/graph/graph.py",
    "subgraph/graph/merged_cuts.py",
    "subgraph/graph/model_file.py",
    "subgraph/graph/nested.py",
    "subgraph/graph/onnx_child.py",
    "subgraph/graph/onnx_process.py",
    "subgraph/graph/opsets.py",
    "subgraph/graph/properties.py",
    "subgraph/graph/protobuf.py",
    "subgraph/graph/quantization.py",
    "subgraph/graph/region.py",
    "subgraph/graph/shape_inference.py",
    "subgraph/graph/value_types.py",
    "subgraph/inspection/__init__.py",
    "subgraph/inspection/describe.py",
    "subgraph/inspection/drawn_network.py",
    "subgraph/inspection/lint/__init__.py",
    "subgraph/inspection/lint/_places.py",
    "subgraph/inspection/lint/_windows.py",
    "subgraph/inspection/lint/asymmetric_pads.py",
    "subgraph/inspection/lint/average_pool.py",
    "subgraph/inspection/lint/baked_shape.py",
    "subgraph/inspection/lint/ceil_mode.py",
    "subgraph/inspection/lint/coarse_step.py",
    "subgraph/inspection/lint/custom_domain.py",
    "subgraph/inspection/lint/data_dependent.py",
    "subgraph/inspection/lint/denormals.py",
    "subgraph/inspection/lint/double_normalization.py",
    "subgraph/inspection/lint/duplicate_names.py",
    "subgraph/inspection/lint/integer_clip.py",
    "subgraph/inspection/lint/invalid.py",
    "subgraph/inspection/lint/known.py",
    "subgraph/inspection/lint/nameless.py",
    "subgraph/inspection/lint/nan_weights.py",
    "subgraph/inspection/lint/opset.py",
    "subgraph/inspection/lint/overflow.py",
    "subgraph/inspection/lint/resize.py",
    "subgraph/inspection/lint/training.py",
    "subgraph/inspection/lint/types.py",
    "subgraph/inspection/lint/underflow.py",
    "subgraph/inspection/lint/upsample.py",
    "subgraph/inspection/overflow.py",
    "subgraph/inspection/ranges.py",
    "subgraph/inspection/summary.py",
    "subgraph/inspection/validate.py",
    "subgraph/origins/__init__.py",
    "subgraph/origins/caffe/__init__.py",
    "subgraph/origins/caffe/builder.py",
    "subgraph/origins/caffe/caffemodel.py",
    "subgraph/origins/caffe/conversion.py",
    "subgraph/origins/caffe/layers.py",
    "subgraph/origins/caffe/messages.py",
    "subgraph/origins/caffe/onnx_model.py",
    "subgraph/origins/caffe/shapes.py",
    "subgraph/origins/caffe/windows.py",
    "subgraph/origins/converted.py",
    "subgraph/origins/converters/__init__.py",
    "subgraph/origins/converters/conversion.py",
    "subgraph/origins/converters/paddle_script.py",
    "subgraph/origins/converters/script_main.py",
    "subgraph/origins/converters/tensorflow_script.py",
    "subgraph/origins/load.py",
    "subgraph/origins/source.py",
    "subgraph/origins/tflite/__init__.py",
    "subgraph/origins/tflite/child.py",
    "subgraph/origins/tflite/conversion.py",
    "subgraph/origins/tflite/operators.py",
    "subgraph/origins/torch/__init__.py",
    "subgraph/origins/torch/piece.py",
    "subgraph/origins/torch/program.py",
    "subgraph/origins/torch/record.py",
    "subgraph/planning/__init__.py",
    "subgraph/planning/find_plan.py",
    "subgraph/planning/float16_main.py",
    "subgraph/planning/lists/__init__.py",
    "subgraph/planning/lists/amct.py",
    "subgraph/planning/lists/horizon.py",
    "subgraph/planning/lists/modelopt.py",
    "subgraph/planning/lists/names.py",
    "subgraph/planning/lists/nncf.py",
    "subgraph/planning/lists/onnxconverter_common.py",
    "subgraph/planning/lists/onnxruntime.py",
    "subgraph/planning/lists/qnn.py",
    "subgraph/planning/lists/rknn.py",
    "subgraph/planning/lists/tensorrt.py",
    "subgraph/planning/lower.py",
    "subgraph/planning/make_plan.py",
    "subgraph/planning/places.py",
    "subgraph/planning/quantize_main.py",
    "subgraph/planning/result_folder.py",
    "subgraph/planning/scales.py",
    "subgraph/planning/smallest_set.py",
    "subgraph/recordings/__init__.py",
    "subgraph/recordings/compare_recording.py",
    "subgraph/recordings/device_runs.py",
    "subgraph/recordings/dump_files.py",
    "subgraph/recordings/dumps/__init__.py",
    "subgraph/recordings/dumps/_ascend.py",
    "subgraph/recordings/dumps/_npy.py",
    "subgraph/recordings/dumps/_raw.py",
    "subgraph/recordings/dumps/_text.py",
    "subgraph/recordings/dumps/_torch.py",
    "subgraph/recordings/dumps/aimet.py",
    "subgraph/recordings/dumps/ascend.py",
    "subgraph/recordings/dumps/ascend_converted.py",
    "subgraph/recordings/dumps/horizon.py",
    "subgraph/recordings/dumps/mnn.py",
    "subgraph/recordings/dumps/msprobe.py",
    "subgraph/recordings/dumps/ncnn.py",
    "subgraph/recordings/dumps/npy.py",
    "subgraph/recordings/dumps/onnx_pb.py",
    "subgraph/recordings/dumps/openvino.py",
    "subgraph/recordings/dumps/polygraphy.py",
    "subgraph/recordings/dumps/qnn.py",
    "subgraph/recordings/dumps/raw.py",
    "subgraph/recordings/dumps/rknn.py",
    "subgraph/recordings/dumps/safetensors.py",
    "subgraph/recordings/dumps/text.py",
    "subgraph/recordings/dumps/tidl.py",
    "subgraph/recordings/dumps/tnn.py",
    "subgraph/recordings/dumps/torch.py",
    "subgraph/recordings/dumps/trtexec.py",
    "subgraph/recordings/export.py",
    "subgraph/recordings/interval.py",
    "subgraph/recordings/matching/__init__.py",
    "subgraph/recordings/matching/align.py",
    "subgraph/recordings/matching/match.py",
    "subgraph/recordings/matching/matched.py",
    "subgraph/recordings/matching/names.py",
    "subgraph/recordings/matching/unnamed.py",
    "subgraph/recordings/msaccucmp.py",
    "subgraph/recordings/recording.py",
    "subgraph/recordings/result_folder.py",
    "subgraph/recordings/run_comparison.py",
    "subgraph/reports/_compared.py",
    "subgraph/reports/_network.py",
    "subgraph/reports/csv.py",
    "subgraph/reports/junit.py",
    "subgraph/reports/md.py",
    "subgraph/reports/text.py",
    "subgraph/rewrites/__init__.py",
    "subgraph/rewrites/_full_model.py",
    "subgraph/rewrites/_region_model.py",
    "subgraph/rewrites/apart.py",
    "subgraph/rewrites/arithmetic.py",
    "subgraph/rewrites/fourier.py",
    "subgraph/rewrites/functions.py",
    "subgraph/rewrites/integers.py",
    "subgraph/rewrites/layers.py",
    "subgraph/rewrites/opset.py",
    "subgraph/rewrites/order.py",
    "subgraph/rewrites/padding.py",
    "subgraph/rewrites/precision.py",
    "subgraph/rewrites/quantized.py",
    "subgraph/rewrites/ranking.py",
    "subgraph/rewrites/recurrent.py",
    "subgraph/rewrites/resize.py",
    "subgraph/rewrites/spelling.py",
    "subgraph/runtime/backends/litert.py",
    "subgraph/runtime/backends/opencv.py",
    "subgraph/runtime/command_line.py",
    "subgraph/runtime/datasets.py",
    "subgraph/runtime/deadline.py",
    "subgraph/runtime/python_objects.py",
    "subgraph/runtime/reference_values.py",
    "subgraph/runtime/remote/task.py",
    "subgraph/runtime/worker_pool.py",
    "subgraph/search/__init__.py",
    "subgraph/search/culprits.py",
    "subgraph/search/driver.py",
    "subgraph/search/lookahead.py",
    "subgraph/search/oracle.py",
    "subgraph/search/passes/__init__.py",
    "subgraph/search/passes/accumulated.py",
    "subgraph/search/passes/alike.py",
    "subgraph/search/passes/confirm.py",
    "subgraph/search/passes/halve.py",
    "subgraph/search/passes/profile.py",
    "subgraph/search/passes/shrink.py",
    "subgraph/search/state.py",
    "subgraph/search/strategy.py",
    "subgraph/storage/__init__.py",
    "subgraph/storage/convert.py",
    "subgraph/storage/digest.py",
    "subgraph/storage/dtypes.py",
    "subgraph/storage/file_kinds.py",
    "subgraph/storage/folders.py",
    "subgraph/storage/layouts.py",
    "subgraph/storage/store.py",
    "subgraph/storage/store_entry.py",
    "subgraph/storage/tensors.py",
    "subgraph/storage/value_pairs.py",
    "subgraph/sweep/__init__.py",
    "subgraph/sweep/expected.py",
    "subgraph/sweep/operator_tests.py",
    "subgraph/sweep/result_folder.py",
    "subgraph/sweep/sweep.py",
    "subgraph/system/__init__.py",
    "subgraph/system/hardware.py",
    "subgraph/system/posix.py",
    "subgraph/system/shared.py",
    "subgraph/trials/__init__.py",
    "subgraph/trials/attribution.py",
    "subgraph/trials/candidate_model.py",
    "subgraph/trials/candidate_runtime.py",
    "subgraph/trials/compare_tensors.py",
    "subgraph/trials/computed_by.py",
    "subgraph/trials/doubt.py",
    "subgraph/trials/float_forms.py",
    "subgraph/trials/judge.py",
    "subgraph/trials/matching/__init__.py",
    "subgraph/trials/matching/as_quantized.py",
    "subgraph/trials/matching/match_tensors.py",
    "subgraph/trials/matching/matched_tensor.py",
    "subgraph/trials/matching/name_forms.py",
    "subgraph/trials/matching/pair_models.py",
    "subgraph/trials/open_trials.py",
    "subgraph/trials/other_attributes.py",
    "subgraph/trials/pooled_runs.py",
    "subgraph/trials/power.py",
    "subgraph/trials/preflight.py",
    "subgraph/trials/propagation.py",
    "subgraph/trials/questions.py",
    "subgraph/trials/reference_model.py",
    "subgraph/trials/region_runs.py",
    "subgraph/trials/score.py",
    "subgraph/trials/score_backend.py",
    "subgraph/trials/similar_outputs.py",
    "subgraph/trials/small_input.py",
    "subgraph/trials/trial.py",
    "subgraph/view/__init__.py",
    "subgraph/view/command_runs.py",
)


class Place(NamedTuple):
    """An occurrence of a pattern."""

    pattern: str
    file: str
    line: int
    text: str


def _get_docstring(node: Any) -> ast.Constant | None:
    """Return the constant that is the docstring of a module, class or function."""
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    return first.value if isinstance(first.value.value, str) else None


def _is_message(constant: ast.Constant) -> bool:
    return isinstance(constant.value, str) and len(WORD.findall(constant.value)) >= 3


def _is_unrelated_pair(node: ast.Assign) -> bool:
    """Return whether `a, b = x, y` assigns values that do not swap or shift the targets."""
    if not isinstance(node.targets[0], ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    stored = {ast.unparse(target) for target in node.targets[0].elts}
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    return not stored & read


def _is_nested_condition(node: ast.IfExp) -> bool:
    return any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse, node.test))


def _is_conditional_in_fstring(node: ast.FormattedValue) -> bool:
    return isinstance(node.value, ast.IfExp)


def _has_two_for(node: ast.ListComp) -> bool:
    return len(node.generators) > 1


def _is_badly_named(node: ast.FunctionDef) -> bool:
    if node.name.startswith("__") or node.name in PUBLIC_NAMES:
        return False
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    if "property" in decorators or "add_option_groups" in decorators:  # a command is its word
        return False
    first = node.name.strip("_").split("_")[0]
    is_participle = first.endswith("ed") and first not in {"need", "feed", "seed", "embed"}
    return is_participle or first in PARTICIPLES or first in PREPOSITIONS


CODE_PATTERNS: dict[type[ast.AST], tuple[str, Callable[..., bool]]] = {
    ast.Assign: ("unrelated-pair", _is_unrelated_pair),
    ast.IfExp: ("nested-condition", _is_nested_condition),
    ast.FormattedValue: ("conditional-in-fstring", _is_conditional_in_fstring),
    ast.FunctionDef: ("function-name", _is_badly_named),
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), ("double-for", _has_two_for)
    ),
}


def _match(file: str, line: int, text: str, names: dict[str, str]) -> Iterator[Place]:
    for name in names:
        for found in REGEX[name].finditer(text):
            at = text.count("\n", 0, found.start())
            yield Place(name, file, line + at, text.split("\n")[at].strip())


def _find_in_docstring(file: str, constant: ast.Constant) -> Iterator[Place]:
    text = str(constant.value)
    yield from _match(file, constant.lineno, text, TEXT_PATTERNS)
    yield from _match(file, constant.lineno, text, LINE_PATTERNS)
    yield from _match(file, constant.lineno, text.strip().split("\n")[0], SUMMARY_PATTERNS)


def _find_in_tree(file: str, tree: ast.Module) -> Iterator[Place]:
    docstrings: set[ast.Constant] = set()
    for node in ast.walk(tree):  # breadth first: the owner of a docstring comes before it
        if isinstance(node, OWNERS) and (constant := _get_docstring(node)):
            docstrings.add(constant)
            yield from _find_in_docstring(file, constant)
        elif isinstance(node, ast.Constant) and node not in docstrings and _is_message(node):
            yield from _match(file, node.lineno, str(node.value), TEXT_PATTERNS)
        pattern, matches = CODE_PATTERNS.get(type(node), ("", bool))
        if pattern and matches(node):
            yield Place(pattern, file, getattr(node, "lineno", 0), ast.unparse(node).split("\n")[0])


def _find_in_code(path: Path) -> Iterator[Place]:
    source = path.read_text(encoding="utf-8")
    file = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(source.split("\n"), 1):
        if len(line) > 100:
            yield Place("long-line", file, number, line.strip())
        if "# " in line and (comment := COMMENT.search(line)):
            yield from _match(file, number, comment[1], TEXT_PATTERNS)
    yield from _find_in_tree(file, ast.parse(source))


def _find_in_page(path: Path) -> Iterator[Place]:
    """Yield the places of a page outside its blocks of code."""
    text = path.read_text(encoding="utf-8")
    prose = re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    yield from _match(path.relative_to(ROOT).as_posix(), 1, prose, TEXT_PATTERNS)


@cache
def find_code_places() -> list[Place]:
    files = sorted(ROOT.joinpath("subgraph").rglob("*.py"))
    return [place for path in files for place in _find_in_code(path)]


@cache
def find_page_places() -> list[Place]:
    made = {ROOT / "docs" / "errors.md", ROOT / "docs" / "notebook.md"}
    folders = {ROOT / "docs" / "commands", ROOT / "docs" / "known"}
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted(ROOT.joinpath("docs").rglob("*.md"))]
    written = [page for page in pages if page not in made and page.parent not in folders]
    return [place for page in written for place in _find_in_page(page)]


def _list_exceeded(places: list[Place], ceilings: dict[str, int]) -> dict[str, str]:
    counts = Counter(place.pattern for place in places)
    return {
        name: f"{counts[name]} > {limit} + {MARGIN}"
        for name, limit in ceilings.items()
        if counts[name] > limit + MARGIN
    }


def test_no_pattern_of_the_code_exceeds_its_ceiling() -> None:
    assert not _list_exceeded(find_code_places(), CEILINGS), "python tests/test_language.py PATTERN"


def test_no_pattern_of_the_pages_exceeds_its_ceiling() -> None:
    assert not _list_exceeded(find_page_places(), PAGE_CEILINGS), "tests/test_language.py PATTERN"


def test_clean_files_stay_clean() -> None:
    places = [*find_code_places(), *find_page_places()]
    dirty = [f"{p.file}:{p.line}: {p.pattern}: {p.text[:80]}" for p in places if p.file in CLEAN]
    assert not dirty, "\n".join(dirty)


def _print_counts(title: str, places: list[Place]) -> None:
    print(title)
    for name, count in Counter(place.pattern for place in places).most_common():
        print(f'    "{name}": {count},')


if __name__ == "__main__":
    if wanted := sys.argv[1:]:
        for place in [*find_code_places(), *find_page_places()]:
            if place.pattern in wanted or place.file in wanted:
                print(f"{place.file}:{place.line}: {place.pattern}: {place.text[:120]}")
    else:
        _print_counts("CEILINGS", find_code_places())
        _print_counts("PAGE_CEILINGS", find_page_places())
