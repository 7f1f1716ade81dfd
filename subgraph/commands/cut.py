"""`subcut cut`: names of nodes -> a case folder: the cut, its tensors and a script."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from subgraph import project
from subgraph.cases import layout
from subgraph.commands import Result, open_body, options, split_names
from subgraph.commands.options import Number, Text, option
from subgraph.commands.recorded import cut_recorded, read_recording_options
from subgraph.commands.resolve import ResolvedOptions, read_formats
from subgraph.commands.table import make_next
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.walks import find_producer_label
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.results.cut import BoundaryName, CutPlan, CutResult, PlannedRegion
from subgraph.runtime.inputs import OriginKind
from subgraph.storage.file_kinds import Family, find_family
from subgraph.system import quote
from subgraph.text import align_columns, clean, count, format_large, list_some, shorten_names
from subgraph.types import Strings

if TYPE_CHECKING:
    from subgraph.cases.case import (
        Case,
        CaseManifest,
        RegionEntry,
        ResultPlace,
        TargetOpset,
        TensorEntry,
    )
    from subgraph.cases.write_case import CaseRequest
    from subgraph.graph.region import Region

INCONCLUSIVE = 5
RECORDING = options.title_of(options.RecordedOptions)
MAX_NEWER = 6  # nodes that are listed
ASCEND = ("ascend", "ascend-converted")
AIPP = (
    "the data layer is cut away: compile this cut without AIPP (no --insert_op_conf); its inputs"
    " are the outputs of AIPP"
)


@options.add_option_groups("recorded", "precision", "timeout", "memory_limit", "output", "fresh")
def cut(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    start: options.Start = None,
    end: options.End = None,
    output: options.Output = None,
    inputs: options.InputOptions,
    form: options.FormatOptions,
    dump: Text = option(
        "--dump", "all", "`all`: also write every tensor between the two nodes.", words=["all"]
    ),
    no_capture: bool = option(
        "--no-capture", None, "Only cut; run nothing.", refused_beside="--dump --recorded"
    ),
    check: bool = option("--check", None, "Also run onnx.checker on the cut."),
    dynamic: bool = option(
        "--dynamic", None, "Keep the model's open dimensions.", refused_beside="--recorded"
    ),
    no_freeze: options.NoFreeze = False,
    dry_run: bool = option(
        "--dry-run",
        None,
        "Show what would be cut; run and write nothing.",
        refused_beside="--recorded",
    ),
    recorded: Text = option(
        "--recorded",
        "DIR",
        "Inputs and dump_data are a device's layer dumps.",
        panel=RECORDING,
    ),
    tensor_map: Text = option(
        "--map",
        "FILE",
        "Lines `OURS THEIRS` for recorded tensors.",
        panel=RECORDING,
    ),
    recording: options.RecordedOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
    as_form: Text = option(
        "--as",
        "caffe",
        "`caffe`: also write the cut of a .prototxt as prototxt and caffemodel.",
        words=["caffe"],
    ),
    target_opset: Number = option(
        "--target-opset",
        "N",
        "Say which nodes need a newer opset, and also write the cut converted to this.",
    ),
    stamp: bool = option("--stamp", None, "Name the folder dump_result_YYYY_MM_DD_HH_MM_SS."),
    given: options.GivenOptions,
) -> Result:
    """Cut the nodes between two nodes out of a model, with real tensors.

    The result is a folder with a model that runs alone, its inputs and outputs, and a script that
    checks them.

    Examples:
      subcut cut model.onnx --start stem/pad --end stem/pool
      subcut --start stem/pad --end stem/pool --dry-run
      subcut -s block1/conv1 -e block1/add --format bin --dtype float16
    """
    from subgraph.cases import write_case
    from subgraph.cases.case import ResultPlace

    resolved = ResolvedOptions(
        project.load(),
        model,
        weights,
        inputs,
        runtime=runtime,
        result=replace(result, output=output),
    )
    model_path = resolved.model_path
    if not start and not end:
        raise UsageError(
            "where to cut? name a first and a last node",
            _describe_next(load(model_path), model),
            code="region.ends-missing",
        )
    as_caffe = _find_caffe_files(resolved) if as_form else ()
    if dump:
        given.refuse_beside("--dump")
    if recorded:
        given.refuse_beside("--recorded")
    formats, tensor_format = read_formats(resolved, form, "npy,bin")
    request = write_case.CaseRequest(
        start=tuple(start or ()),
        end=tuple(end or ()),
        fed=resolved.feeding.options,
        formats=formats,
        tensor_format=tensor_format,
        dump_all=dump == "all" or bool(recorded),
        capture=not no_capture,
        checker=check,
        dynamic=dynamic,
        freeze=not (no_freeze or dynamic),
        recorded=recorded or "",
        stamp=stamp,
        as_caffe=as_caffe,
        target_opset=target_opset or 0,
    )
    if tensor_map and not recorded:
        raise UsageError(
            "--map goes with --recorded",
            "it maps names of the recording to tensors of MODEL",
            code="option.requires",
        )
    # The process that runs the reference starts before the model is read.
    is_idle = no_capture or dry_run
    with contextlib.nullcontext() if is_idle else resolved.start_reference() as reference:
        graph = load(model_path)
        if model_path.suffix.lower() == ".prototxt":
            from subgraph.origins.caffe.conversion import expand_layers

            request = replace(request, start=tuple(expand_layers(graph, request.start)))
        name = layout.stamp_name() if stamp else ""
        place = ResultPlace(resolved.output, name, result.force)
        if recorded and reference:
            recordings = read_recording_options(
                replace(recording, recorded=[recorded]), runtime, inputs, tensor_map
            )
            return _make_result(cut_recorded(graph, request, place, reference, recordings))
        ends = (*request.start, *request.end)
        with open_body(graph, ends, resolved.feeding, reference, place.parent) as (
            opened,
            feeding,
            names,
        ):
            if opened is not graph:
                begin, last = split_names(names, len(request.start))
                graph = opened
                request = replace(request, start=begin, end=last)
            if dry_run:
                return _make_plan(graph, request, place)
            return _make_result(write_case.extract(graph, request, place, reference, feeding))


def _describe_next(graph: Graph, model: str | None) -> str:
    """Describe the commands for this model: a cut from its first to its last node, and others."""
    file = f" {quote(clean(model))}" if model else ""
    if graph.nodes:
        ends = [quote(clean(graph.label(i))) for i in (0, len(graph.nodes) - 1)]
    else:
        ends = ["A", "B"]
    others = (
        f"find a fault: subcut bisect{file} -c CANDIDATE; look into it: subcut inspect{file},"
        f" subcut view{file}"
    )
    return f"subcut{file} --start {ends[0]} --end {ends[1]}; {others}"


def _find_caffe_files(resolved: ResolvedOptions) -> Strings:
    """Return the files of the Caffe model that is cut.

    Raises:
        UsageError: The model is not Caffe's.
    """
    path, _ = project.find_model(resolved.model, resolved.settings)
    if find_family(path) is not Family.CAFFE:
        raise UsageError(
            f"--as caffe: {path.name} is no .prototxt",
            "name the prototxt, not its conversion",
            code="caffe.not-prototxt",
        )
    weights = resolved.settings.get("weights", resolved.weights)
    return (str(path), weights) if weights else (str(path),)


def _make_plan(graph: Graph, request: CaseRequest, place: ResultPlace) -> Result:
    """Return the result of `--dry-run`: the region, and the folder that would be written."""
    from subgraph.graph.region import find_region

    region = find_region(graph, request.start, request.end)
    path = place.parent / (place.name or layout.place_name(region))
    nodes, pulled, random = (
        [graph.label(i) for i in indices]
        for indices in (region.nodes, region.pulled, region.random)
    )
    inputs, shapes, outputs = (
        [BoundaryName(name, find_producer_label(graph, name)) for name in names]
        for names in (region.inputs, region.shapes, region.outputs)
    )
    document = CutPlan(
        path=str(path),
        region=PlannedRegion(region.start, region.end, nodes, pulled, random),
        inputs=inputs,
        shapes=shapes,
        outputs=outputs,
    )
    lines = [_make_headline(region, inputs, outputs)]
    for word, tensors in (("in", inputs), ("shape", shapes), ("out", outputs)):
        lines += [
            f"  {word:<5}  {clean(t.name)}   from {clean(t.producer or 'the model input')}"
            for t in tensors
        ]
    lines += align_columns([("", clean(graph.label(i)), graph.ops[i]) for i in region.nodes])
    lines.append(f"nothing written (--dry-run); it would go to {clean(str(path))}/")
    return Result(document, "\n".join(lines))


def _make_headline(
    region: Region | RegionEntry, inputs: Sequence[object], outputs: Sequence[object]
) -> str:
    ends = (region.start, region.end)
    names = " → ".join(shorten_names(clean(", ".join(labels))) for labels in ends)
    return (
        f"region  {names}   {count(region.nodes, 'node')} · {count(inputs, 'input')} ·"
        f" {count(outputs, 'output')}"
    )


def _make_result(cases: list[Case]) -> Result:
    statuses = {case.manifest.check.status for case in cases}
    is_unsure = not statuses.isdisjoint(("different", "unrepeatable"))
    if "refused" in statuses:
        code = 1
    elif is_unsure:
        code = INCONCLUSIVE
    else:
        code = 0
    results = [case.document() for case in cases]
    for result in results:
        del result["schema"]
    document = CutResult(exit_code=code, results=results)
    if len(cases) > 1:
        log.info("the samples have different shapes at the boundary: %d cuts", len(cases))
    following = [make_next("run it", "replay", str(case.path)) for case in cases]
    return Result(document, "\n\n".join(map(_make_text, cases)), following)


def _make_text(case: Case) -> str:
    manifest = case.manifest
    region = manifest.region
    inputs = manifest.inputs
    head = _make_headline(region, inputs, manifest.outputs)
    word = "parameter" if region.parameters == 1 else "parameters"
    lines = [f"{head} · {format_large(region.parameters)} {word}"]
    lines += _describe_changes(region)
    if manifest.samples:
        lines.append(f"inputs  {_describe_origin(manifest)}")
    rows = [("in", t) for t in inputs] + [("out", t) for t in manifest.outputs]
    names = {t.name: shorten_names(clean(t.name)) for _, t in rows}
    width = max(map(len, names.values()), default=0)
    types = max((len(t.dtype) for _, t in rows), default=0)
    for way, t in rows:
        line = f"  {way:<3}  {names[t.name]:<{width}}   {t.dtype:<{types}}  {_format_shape(t)}"
        if way == "in" and len(inputs) > 1:
            line += f"   from {clean(t.producer or 'the model input')}"
        lines.append(line)
    lines += [f"loss    {clean(loss)}" for loss in manifest.losses or ()]
    lines.append(f"check   {clean(manifest.check.what)}")
    lines += _describe_opset(manifest.target_opset) if manifest.target_opset else []
    inner = bool(inputs) and all(t.producer for t in inputs)
    of_ascend = manifest.recording is not None and manifest.recording.format in ASCEND
    if inner and of_ascend:
        lines.append(f"hint    {AIPP}")
    lines.append(f"{clean(str(case.path))}/")
    return "\n".join(lines)


def _describe_origin(manifest: CaseManifest) -> str:
    """Describe how the inputs of a cut were computed, and what the model was fed."""
    recording = manifest.recording
    kinds = {fed.kind for fed in flatten(sample.fed for sample in manifest.samples)}
    if recording:
        above = f"recorded: {clean(recording.name)} ({recording.format})"
    elif manifest.above:
        nodes = count(manifest.above, "node")
        above = f"captured by running the {nodes} upstream on the reference"
    else:
        above = "of the body itself" if OriginKind.COMPUTED in kinds else "of the model itself"
    if recording and recording.fed:
        return above
    return f"{above} ({_describe_fed(manifest)})"


def _describe_opset(target: TargetOpset) -> list[str]:
    """Describe the nodes that need a later opset than the requested one, and the converted cut."""
    newer = [f"{clean(n.name)} ({clean(n.op)}, opset {n.since})" for n in target.newer]
    needs = f"newer: {list_some(newer, MAX_NEWER)}" if newer else "no node needs a newer one"
    lines = [f"opset   {target.version} of {target.of}: {needs}"]
    if not target.file:
        return [*lines, f"        onnx cannot convert the cut: {clean(target.why)}"]
    what = clean(target.check.what) if target.check else "not run"
    return [*lines, f"        {target.file}: converted; {what}"]


def _describe_changes(region: RegionEntry) -> list[str]:
    lines = []
    if region.pulled:
        names = list_some([clean(n.name) for n in region.pulled], 4)
        pulled = count(region.pulled, "node")
        lines.append(f"        and {pulled} that compute constants: {names}")
    if region.random:
        names = ", ".join(clean(n.name) for n in region.random)
        lines.append(f"        without {names}: random values are captured, not drawn again")
    if region.frozen:
        lines.append(
            f"frozen  {', '.join(map(clean, region.frozen))}: shapes, now constants (--no-freeze"
            " keeps them inputs)"
        )
    if region.renamed:
        names = ", ".join(map(clean, region.renamed))
        lines.append(f"renamed {count(region.renamed, 'node')} that shared a name: {names}")
    return lines


def _format_shape(tensor: TensorEntry) -> str:
    from subgraph.storage.tensors import format_shape

    if tensor.shape is None:
        return "varies" if tensor.samples else "any shape"
    text = " ".join(format_shape(tuple(s)) for s in tensor.shape) or "empty"
    if tensor.form == "tensor":
        return text
    return f"{text}  ({tensor.form})"


def _describe_fed(manifest: CaseManifest) -> str:
    """Describe the sources of the values of the model's inputs."""
    if len(manifest.samples) > 1:
        return count(manifest.samples, "sample")
    fed = manifest.samples[0].fed
    given = {f.origin: f.kind for f in fed if f.kind in (OriginKind.FILE, OriginKind.COMPUTED)}
    words = []
    if given:
        names = ", ".join(map(clean, given))
        words.append(names if OriginKind.COMPUTED in given.values() else f"model input {names}")
    if any(f.kind in (OriginKind.RANDOM, OriginKind.EMPTY) for f in fed):
        drawn = "values for the others" if given else "model input"
        words.append(f"random {drawn}, seed {manifest.seed}")
    return "; ".join(words) or "the model has no input there"
