"""Region that fails -> evidence for rounding or a bug, a line each, the conclusion first.

The error in units of rounding noise, at the claimed precision and below; known approximations of
functions, such as GELU by tanh, whose values the candidate's are; transformations that would make
the tensors equal; the same backend in full precision or without optimizations, if it names such
options (`exact`), and, if that does not heal it, with each of its `switches` thrown; and onnx's own
evaluator, which shows whether the reference is right. A precision that only fits is a guess: it is
called the reason if a switch confirms it. Each further run of a candidate has separate processes;
evidence that is not available is listed with the reason. If nothing decides, the conclusion is "not
known".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from subgraph.comparison import ROUNDING_ALONE
from subgraph.comparison.criteria import OutputContext, Ruling, fail
from subgraph.comparison.criteria.noise import rule
from subgraph.comparison.float_types import FLOATS
from subgraph.comparison.noise.analysis import rounds
from subgraph.comparison.noise.noise import OutputNoise
from subgraph.comparison.noise.perturb import MAX_PERTURBED
from subgraph.comparison.pair import Pair
from subgraph.comparison.similarity.explanations import join_explanations
from subgraph.errors import SubcutError
from subgraph.graph import protobuf
from subgraph.graph.properties import APPROXIMATED
from subgraph.graph.region import Region, build_region
from subgraph.inspection.validate import explain_refusal
from subgraph.iterables import flatten, pick, ungroup
from subgraph.origins.source import find_sources
from subgraph.precision import Precision
from subgraph.results.bisect import QUANTIZER, ModelDifference
from subgraph.runtime.candidate import Candidate
from subgraph.storage.dtypes import name_of
from subgraph.text import count, list_some
from subgraph.trials import computed_by
from subgraph.trials.candidate_runtime import describe_changed_options
from subgraph.trials.diagnosis.approximations import iter_approximations
from subgraph.trials.diagnosis.conclusions import Evidence, Fact, conclude
from subgraph.trials.diagnosis.passes import Ablation, describe_sets, find_minimal_sets
from subgraph.trials.judge import Judge
from subgraph.trials.open_trials import with_candidate, with_own_model
from subgraph.trials.similar_outputs import WrongOutput
from subgraph.trials.trial import Trials
from subgraph.types import StringMap, frozen
from subgraph.verdict import NO_OUTPUT, Signature, Status, Verdict

EVALUATOR = "onnx-reference"
MAX_ABLATIONS = 30  # runs of the region without some passes of the optimizer
MAX_SECONDS = 60.0  # that one more run of the region may take
MAX_SOURCES = 3  # lines of code that a conclusion names
MAX_ALONE = 8  # nodes of a region that are run alone
MIN_ALONE = 2  # that show anything
# nodes all of whose values are those of a lower precision; outputs of few values do not show it
MIN_GRIDS = 3
MAX_EVALUATED = 64  # nodes of a region that onnx's evaluator runs: it is in Python
MAX_NOISY = 2000  # nodes of a region that is run with the noise of other precisions, eight times
MIN_NOISE_RATIO = 10.0  # times the noise: no rounding of that precision
MIN_NOISE_SHARE = 0.02  # times the noise: a precision with a noise so much larger is not the reason
MIN_DISTANCE_RATIO = 10.0  # times nearer to one side than to the other
MAX_RANGES = 6  # nodes with further ranges that are named
# A scale is the cause, though a fused kernel rounds the other inputs as well.
MIN_SCALE_DISTANCE_RATIO = 2.0
LIKENESSES = ("input", "likeness")  # evidence that nodes share only if its text is the same
NO_EXPORT = frozenset((Fact.WITHIN, Fact.APPROXIMATE))  # an error that is not a fault


def diagnose(
    trials: Trials,
    region: Region,
    verdict: Verdict,
    withheld: str = "",
    others: Sequence[Region] = (),
    differences: Sequence[ModelDifference] = (),
    parts: Sequence[Region] = (),
) -> list[Evidence]:
    """Return all evidence about a region that the candidate gets wrong alone, by this verdict.

    `withheld`: why nothing more is run on a candidate; "" if it may be. `others`: nodes that it
    gets wrong alone as well, whatever they compute: what the values of all have in common counts.
    `differences`: between the reference's model and the candidate's, in the region. `parts`: pieces
    of the region that contribute most to its error; known approximations are looked for in them.

    Raises:
        BackendError: the candidate cannot be used. OutputError: nothing can be written.
    """
    seconds = verdict.build + verdict.run
    if not withheld and seconds > MAX_SECONDS:
        withheld = f"the region takes {seconds:.0f} s"
    evidence = list(_iter_overflow(trials.judge, region))
    evidence += diagnose_model(trials, region, verdict, differences)
    worst = WrongOutput(trials, region, verdict.worst) if verdict.worst else None
    # The runtime is not the reason, so none of its options matters.
    if any(item.fact in (Fact.MODEL, Fact.COARSE) for item in evidence):
        evidence += islice(_measure_by_noise(worst), 1) if worst and worst.pair else ()
        return [conclude(evidence), *evidence]
    evidence += _diagnose_common(trials, [region, *others]) if others else _diagnose_one(worst)
    evidence += _find_approximated_part(trials, parts)
    evidence += _try_exact(trials, region, withheld)
    facts = {item.fact for item in evidence}
    if Fact.RIGHT in facts:
        evidence += _try_passes(trials, region)
    # An option may select a kernel of a lower precision.
    if Fact.RIGHT_FINER not in facts and (Fact.RIGHT not in facts or Fact.FITS in facts):
        evidence += _try_switches(trials, region, withheld)
    if Fact.FITS in facts and not others:
        evidence += _try_each_alone(trials, region, withheld)
    evidence += _compare_with_evaluator(trials, region, verdict, withheld)
    if who := computed_by.name_provider(trials, region):
        evidence.append(Evidence("provider", who))
    if trials.model.shared_tensors is not None and not NO_EXPORT.intersection(
        item.fact for item in evidence
    ):
        evidence.append(
            _diagnose_export(
                trials.judge, region, {item.fact for item in evidence if item.kind == "second"}
            )
        )
    if verdict.signature in NO_OUTPUT:
        return evidence
    conclusion = conclude(evidence)
    return [conclusion, *(e for e in evidence if e.says != conclusion.says)]


# ------------------------------------------------------------ numbers


def _iter_overflow(judge: Judge, region: Region) -> Iterator[Evidence]:
    """Yield a weight beyond the range of the claimed precision: converters clip it.

    Masks mean minus infinity.
    """
    graph = judge.model.graph
    limit = min(judge.precision.largest, MAX_PERTURBED)
    weights = pick(graph.weights, region.weights)
    constants = (graph.nodes[i] for i in region.pulled if graph.ops[i] == "Constant")
    attributes = ungroup((node.output[0], node.attribute) for node in constants)
    weights |= {name: a.t for name, a in attributes if a.name == "value"}
    for name, weight in weights.items():
        if name_of(weight.data_type) in FLOATS:
            largest = float(protobuf.to_array(weight, graph.path).max(initial=0))
            if limit < largest < MAX_PERTURBED:
                ends = f"{judge.precision.dtype} ends at {limit:.2e}"
                yield Evidence(
                    "range", f"weight '{name}' holds {largest:.1e}: {ends}", Fact.OVERFLOW
                )
                return


def _diagnose_one(output: WrongOutput | None) -> list[Evidence]:
    """Return evidence in the values alone, and known approximations that would give them."""
    if output is None:
        return []
    evidence = list(_diagnose_values(output))
    if any(item.fact is Fact.WITHIN for item in evidence):
        return evidence
    return [*evidence, *iter_approximations(output)]


def _diagnose_values(output: WrongOutput) -> Iterator[Evidence]:
    """Yield evidence in the values alone, without a run."""
    if output.pair:
        yield from _measure_by_noise(output)
    elif output.judgement.signature in (Signature.SHAPE, Signature.MISSING):
        yield Evidence(
            "noise", f"rounding does not explain it: {output.judgement.why}", Fact.BEYOND
        )
    moved = join_explanations(e for e in output.explanations if not e.narrows)
    if wrong_input := output.wrong_input:
        yield Evidence("input", wrong_input, Fact.INPUT, quoted=wrong_input)
    elif moved:
        says = f"looks like: {moved}"
        yield Evidence("likeness", says, Fact.ALIKE, quoted=says)
    for explanation in output.explanations:
        grid = explanation.grid
        if explanation.beyond_range:
            yield Evidence("likeness", explanation.text, Fact.RANGE, quoted=explanation.text)
        elif grid and grid.eps > output.trials.judge.precision.eps:
            yield Evidence("likeness", explanation.text, Fact.GRID, grid)


def _diagnose_common(trials: Trials, regions: Sequence[Region]) -> Iterator[Evidence]:
    """Yield the evidence that most nodes which deviate alone share, and that no kernel explains."""
    # The evidence of each node, by the parts that others may share.
    shown: list[dict[tuple[Fact, Precision | None, str], Evidence]] = []
    by_rounding = trials.with_criterion(ROUNDING_ALONE)
    for region in regions:
        worst = by_rounding.verdict(region).worst
        of_node = _diagnose_values(WrongOutput(trials, region, worst)) if worst else ()
        known = [(e.fact, e) for e in of_node if e.fact and e.fact not in NO_EXPORT]
        shown.append(
            {(fact, e.precision, e.quoted if e.kind in LIKENESSES else ""): e for fact, e in known}
        )
    for common, times in Counter(flatten(shown)).items():
        fact, precision, _ = common
        if fact is Fact.FITS and not (
            precision and times == len(regions) and _explains_whole(trials, precision)
        ):
            continue  # a node that was not run may be wrong in addition to the rounding of all
        if 2 * times > len(regions) or (Fact.GRID in common and times >= MIN_GRIDS):
            first = next(of_node[common] for of_node in shown if common in of_node)
            yield replace(
                first, says=f"{first.says} (likewise in {times} of {count(regions, 'node')})"
            )
            if Fact.FITS in common and times == len(regions):
                yield Evidence(
                    "alone", f"each of {count(times, 'node')} alone deviates, too", Fact.EVERYWHERE
                )


def _find_approximated_part(trials: Trials, parts: Sequence[Region]) -> list[Evidence]:
    """Return the known approximation that the first of these pieces shows; else nothing."""
    by_rounding = trials.with_criterion(ROUNDING_ALONE)
    worst = ((part, by_rounding.verdict(part).worst) for part in parts)
    outputs = (WrongOutput(trials, part, judged) for part, judged in worst if judged)
    return next((found for output in outputs if (found := list(iter_approximations(output)))), [])


def _explains_whole(trials: Trials, precision: Precision) -> bool:
    """Return whether rounding at this precision explains the deviation of the full model, too;
    False if unknown."""
    whole = trials.full_model
    outputs = trials.with_criterion(ROUNDING_ALONE).verdict(whole).outputs
    wrong_outputs = [WrongOutput(trials, whole, judged) for judged in outputs if not judged.agrees]
    if len(whole.nodes) > MAX_NOISY:
        return False
    return all(_judge_by_noise(output, precision).agrees for output in wrong_outputs)


def _measure_by_noise(output: WrongOutput) -> Iterator[Evidence]:
    """Yield the error in units of rounding noise: at the claimed precision, and at lower ones that
    may be undeclared."""
    claim = output.trials.judge.find_claim(output.region)
    ruling = _judge_by_noise(output, claim)
    if ruling.is_unresolved:
        yield Evidence("noise", ruling.why)
        return
    kernels = dict.fromkeys(
        op for i in output.region.nodes if (op := output.trials.graph.ops[i]) in APPROXIMATED
    )
    ratio = ruling.metrics.get("noise_ratio")
    fact = None
    if ruling.label == "approximate kernel" and kernels:
        fact = Fact.APPROXIMATE
    elif ruling.agrees or ruling.signature is Signature.PRECISION:
        fact = Fact.WITHIN
    elif ratio is None or ratio > MIN_NOISE_RATIO:
        fact = Fact.BEYOND
    explains = "explains it" if fact is Fact.WITHIN else "does not explain it"
    yield Evidence(
        "noise", f"rounding in {claim} {explains}: {ruling.why}", fact, quoted=", ".join(kernels)
    )
    if fact is not Fact.WITHIN and not _get_noise(output).find_quantized_values():
        yield from _lower_precision(output, claim)


def _lower_precision(output: WrongOutput, claim: Precision) -> Iterator[Evidence]:
    """Yield the finest precision below the claimed one that explains the error."""
    nodes = len(output.region.nodes)
    if nodes > MAX_NOISY:
        yield Evidence(
            "precision",
            f"lower precisions were not tried: {count(nodes, 'node')} take too long",
            Fact.OPEN,
        )
        return
    remarks = []
    on_levels = any(e.grid is Precision.INT8 for e in output.explanations)
    # float16 represents TF32. int8 explains nearly any error, so only its levels bring it up.
    omitted = (Precision.TF32,) if on_levels else (Precision.TF32, Precision.INT8)
    for precision in [p for p in Precision if p.eps > claim.eps and p not in omitted]:
        ruling = _judge_by_noise(output, precision)
        name = precision.dtype
        ratio = ruling.metrics.get("noise_ratio")
        if ruling.agrees and (ratio is None or ratio >= MIN_NOISE_SHARE):
            says = f"{name} arithmetic would explain it: {ruling.why}"
            yield Evidence("precision", says, Fact.FITS, precision)
            return
        if ruling.is_unresolved:
            remarks = [
                Evidence(
                    "precision", f"{name} arithmetic is too imprecise here to decide", Fact.OPEN
                )
            ]
        elif ratio is not None:
            says = f"{name} arithmetic does not explain it: {ruling.why}"
            remarks = [Evidence("precision", says)] if ratio > 1 else []
    yield from remarks


def _judge_by_noise(output: WrongOutput, precision: Precision) -> Ruling:
    """Return the ruling of the default criterion, with its noise, whatever criterion judged; a
    failure if the values cannot be compared."""
    if output.pair is None:
        return fail(output.judgement.why)
    context = OutputContext(output.judgement.name, precision, _get_noise(output))
    return rule("floor=0")(output.pair, context)


def _get_noise(output: WrongOutput) -> OutputNoise:
    return output.trials.model.noise(output.region, output.sample).get_output(output.judgement.name)


# ------------------------------------------------------------ other runs


@frozen
class _OtherRun:
    """A further run of a region.

    Attributes:
        verdict: The verdict on it.
        finer: Whether it computes more precisely.
        error: The reason why it has no verdict; "" if it has one.
    """

    verdict: Verdict
    finer: bool = False
    error: str = ""


def _run_with(trials: Trials, region: Region, options: StringMap, folder: str) -> _OtherRun:
    """Run the backend with other options, and no more time than evidence may take."""
    timeout = min(MAX_SECONDS, trials.runtime.candidate.timeout)
    other = replace(
        trials.runtime.candidate, options=dict(options), precision=None, timeout=timeout
    )
    try:
        with with_candidate(trials, other, folder) as changed:
            # The user may declare a finer one than the backend's own.
            claims = (
                trials.judge.precision,
                trials.runtime.about.precision,
            )
            return _OtherRun(
                changed.verdict(region),
                changed.judge.precision.eps < max(claims, key=Precision.roundoff).eps,
            )
    except SubcutError as e:
        return _OtherRun(Verdict(Status.UNRESOLVED, why=e.what), error=e.what)


def _try_exact(trials: Trials, region: Region, withheld: str) -> Iterator[Evidence]:
    """Run the backend in full precision, or without its optimizations."""
    if not (options := trials.runtime.about.exact):
        return
    words = describe_changed_options(trials.runtime.candidate, options)
    if withheld:
        yield Evidence("exact", f"not run with {words}: {withheld}")
        return
    exact_run = _run_with(trials, region, options, "exact")
    if exact_run.verdict.agrees:
        precision = trials.runtime.about.precision
        if precision.eps > trials.judge.precision.eps:
            undeclared = f"it computes in {precision} otherwise"
        else:
            undeclared = ""
        if exact_run.finer:
            blame = undeclared or "lower precision is the reason, or a bug of its kernels"
        else:
            blame = "the candidate's optimizer is to blame"
        yield Evidence(
            "exact",
            f"right with {words}: {blame}",
            Fact.RIGHT_FINER if exact_run.finer else Fact.RIGHT,
        )
    elif exact_run.verdict.fails:
        fact = Fact.WRONG_FINER if exact_run.finer else None
        yield Evidence("exact", f"wrong with {words} as well: {exact_run.verdict.why}", fact)
    elif exact_run.verdict.signature is Signature.REFUSED:
        yield Evidence("exact", f"refused with {words} as well")
    else:
        yield Evidence("exact", f"not known with {words}: {exact_run.verdict.why}")


def diagnose_model(
    trials: Trials, region: Region, verdict: Verdict, differences: Sequence[ModelDifference] = ()
) -> Iterator[Evidence]:
    """Yield whether the candidate's own model is wrong, or its runtime, if it runs another model.

    The reference runs the same region of that model on the same values.
    """
    own_model = trials.runtime.own_model
    if own_model is None:
        return
    file = own_model.graph.path.name
    coarse = [row for row in differences if row.part.startswith(QUANTIZER)]
    plain = (own_model.values or trials.values).reference
    candidate = Candidate(plain.backend, plain.backend, plain.options, timeout=MAX_SECONDS)
    try:
        with with_candidate(trials, candidate, "theirs") as theirs:
            plain_verdict = theirs.verdict(region)
            ratio = MIN_SCALE_DISTANCE_RATIO if coarse else MIN_DISTANCE_RATIO
            is_same = plain_verdict.signature in NO_OUTPUT and verdict.signature in NO_OUTPUT
            if worst := verdict.worst:
                outputs = WrongOutput(trials, region, worst), WrongOutput(theirs, region, worst)
                is_same = _is_nearer(*outputs, ratio)
    except SubcutError as e:
        yield Evidence("model", f"whether {file} itself is wrong is not known: {e.what}")
        return
    says = f"with {file} the reference returns the candidate's values"
    if plain_verdict.agrees and not coarse:
        yield Evidence("model", f"with {file} the reference is right: what runs it is to blame")
    elif is_same and coarse:
        further_nodes = list(dict.fromkeys(row.node for row in coarse[1:]))
        more = f"; others at {list_some(further_nodes, MAX_RANGES)}" if further_nodes else ""
        quoted = f"{coarse[0].part} {coarse[0].theirs}{more}"
        yield Evidence("model", says, Fact.COARSE, quoted=quoted)
    elif is_same and (plain_verdict.fails or not verdict.worst):
        quoted = differences[0].text if differences else ""
        if not verdict.worst:
            says = f"the reference refuses this piece of {file} as well"
            if not quoted and not own_model.find_problem(region):
                quoted = explain_refusal(own_model.graph, own_model.region(region).nodes)
        quoted = quoted or says
        yield Evidence("model", says, Fact.MODEL, quoted=quoted)
    else:
        yield Evidence(
            "model", f"with {file} the reference agrees with neither side: {plain_verdict.why}"
        )


def _try_each_alone(trials: Trials, region: Region, withheld: str) -> Iterator[Evidence]:
    """Ask whether each node that rounds off is alone in doing so: a candidate that computes in a
    lower precision does so in each node."""
    graph = trials.graph
    nodes = [i for i in region.nodes if rounds(graph.nodes[i])][:MAX_ALONE]
    if withheld or len(nodes) < MIN_ALONE:
        return
    for i in nodes:
        alone = build_region(graph, [i])
        result = trials.run_extra(alone)
        verdict = trials.judge.with_criterion(ROUNDING_ALONE).verdict(alone, result)
        if verdict.agrees:
            says = f"'{graph.label(i)}' alone agrees in {trials.judge.precision}"
            yield Evidence("alone", says, Fact.SOMEWHERE, quoted=says)
            return
        if verdict.is_unresolved:
            return
    yield Evidence("alone", f"each of {count(nodes, 'node')} alone deviates, too", Fact.EVERYWHERE)


def _try_passes(trials: Trials, region: Region) -> Iterator[Evidence]:
    """Yield the passes of the optimizer that it takes; tried only if the region is right without
    the optimizer."""
    try:
        sets = find_minimal_sets(Ablation(trials, region, MAX_ABLATIONS))
    except SubcutError as e:
        yield Evidence("pass", f"not known which pass: {e.what}")
        return
    if sets:
        passes = describe_sets(sets)
        yield Evidence("pass", f"right without {passes}", Fact.PASS, quoted=passes)


def _try_switches(trials: Trials, region: Region, withheld: str) -> Iterator[Evidence]:
    """Run the backend with each of its switches thrown, until the region is right."""
    remarks = []
    for k, (name, options) in enumerate(trials.runtime.about.switches.items()):
        words = f"{name} off ({describe_changed_options(trials.runtime.candidate, options)})"
        if withheld:
            remarks.append(f"not run with {words}: {withheld}")
            continue
        switched_run = _run_with(trials, region, options, f"switch{k}")
        if switched_run.verdict.agrees:
            yield Evidence("switch", f"right with {words}", Fact.SWITCH, quoted=words)
            return
        refused = "refused" if switched_run.verdict.signature is Signature.REFUSED else "not known"
        outcome = "wrong" if switched_run.verdict.fails else refused
        if switched_run.error:
            remarks.append(f"not known with {words}: {switched_run.error}")
        else:
            remarks.append(f"{outcome} with {words} as well")
    if remarks:
        yield Evidence("switch", "; ".join(remarks))


def _compare_with_evaluator(
    trials: Trials, region: Region, verdict: Verdict, withheld: str
) -> Iterator[Evidence]:
    """Yield whether onnx's own evaluator agrees with the reference or with the candidate, on the
    same inputs."""
    worst = verdict.worst
    size = len(region.nodes)
    if worst is None or EVALUATOR in (
        trials.runtime.candidate.backend,
        trials.model.reference.backend,
    ):
        return
    if why := (
        f"{count(size, 'node')} take too long in Python" if size > MAX_EVALUATED else withheld
    ):
        yield Evidence("second", f"no second opinion: {why}")
        return
    evaluator = Candidate(
        EVALUATOR, EVALUATOR, timeout=MAX_SECONDS, memory=trials.runtime.candidate.memory
    )
    try:
        with with_candidate(with_own_model(trials, None), evaluator, "second") as second:
            # The candidate deviates, so an agreement shows something on any input.
            second_verdict = second.judge.ignore_evidence().verdict(region, second.run(region))
            outputs = WrongOutput(trials, region, worst), WrongOutput(second, region, worst)
            yield _describe_side(
                second_verdict, verdict, second_verdict.fails and _is_nearer(*outputs)
            )
    except SubcutError as e:
        yield Evidence("second", f"no second opinion: {e.what}")


def _describe_side(verdict: Verdict, candidate: Verdict, nearer: bool) -> Evidence:
    """Return the evaluator's verdict as evidence.

    If both sides return the same shapes and the evaluator others, the evaluator errs: it joins the
    values that a Loop collects, which must be stacked.

    Args:
        verdict: The verdict on the evaluator.
        candidate: The verdict on the candidate.
        nearer: Whether the evaluator's output is far nearer to that of the candidate.
    """
    if verdict.agrees:
        return Evidence("second", "onnx's own evaluator agrees with the reference", Fact.REFERENCE)
    if nearer:
        return Evidence("second", "onnx's own evaluator agrees with the candidate", Fact.CANDIDATE)
    if verdict.signature is Signature.SHAPE is not candidate.signature:
        why = f"onnx's own evaluator returns other shapes than both: {verdict.why}"
        return Evidence("second", f"no second opinion: {why}")
    if verdict.fails and verdict.signature not in NO_OUTPUT:
        return Evidence("second", f"onnx's own evaluator agrees with neither: {verdict.why}")
    return Evidence("second", f"no second opinion: {verdict.why}")


def _is_nearer(output: WrongOutput, second: WrongOutput, ratio: float = MIN_DISTANCE_RATIO) -> bool:
    """Return whether the second run's output is nearer to the candidate's than to the reference's,
    by this ratio."""
    if output.values is None or second.values is None:
        return False
    expected, value = output.values
    _, other = second.values
    forms = {(v.shape, v.dtype) for v in (expected, value, other)}
    if len(forms) > 1:
        return bool((other.shape, other.dtype) == (value.shape, value.dtype))
    far = Pair(expected, other)
    near = Pair(value, other)
    if far.masked != near.masked:
        return near.masked < far.masked
    return near.error * ratio <= far.error


def _diagnose_export(judge: Judge, region: Region, facts: Collection[Fact | None]) -> Evidence:
    """Return whether the export is wrong, or its runtime, if one side is the exported module.

    `facts`: with which side onnx's own evaluator agrees.
    """
    known = filter(None, find_sources(judge.model.graph, region.nodes) or ())
    sources = dict.fromkeys(filter(None, map(str, known)))
    where = (
        " and ".join(list(sources)[:MAX_SOURCES])
        or f"'{judge.model.graph.label(region.nodes[-1])}'"
    )
    sides = Fact.REFERENCE, Fact.CANDIDATE
    module, model = sides if judge.model.roundings else reversed(sides)
    says = f"the exporter's translation of {where} is wrong, or what runs the model"
    if model in facts:
        says = (
            f"the exporter's translation of {where} is wrong: onnx's own evaluator computes the"
            " same of it"
        )
    elif module in facts:
        says = "the export is right, and what runs the model is wrong"
    return Evidence("export", says, Fact.EXPORT, quoted=says)
