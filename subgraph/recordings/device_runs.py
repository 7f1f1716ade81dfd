"""Recording folders -> runs of a device: their samples, and the inputs of the device.

A folder can hold several runs: of several tools (golden next to simulator) or of several samples
(Result_0, Result_1). Runs whose names differ only in the last number are the samples of one run, if
the reference is fed as many; else the first ones are compared, with a warning.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import reduce
from itertools import accumulate
from pathlib import Path

from subgraph.comparison.noise.analysis import find_unrounded
from subgraph.comparison.where import OutputChoice
from subgraph.errors import InputError, UnknownName, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.value_types import read_type
from subgraph.iterables import flatten, group_values
from subgraph.log import log
from subgraph.origins.torch.record import MANIFEST, SCHEMA
from subgraph.precision import Precision
from subgraph.recordings import recording
from subgraph.recordings.dump_files import fill_open_dimension, scan, split_numbers
from subgraph.recordings.dumps import DumpEntry, WrittenNames
from subgraph.recordings.matching.align import CODES, iter_alignments
from subgraph.recordings.recording import Recording
from subgraph.runtime.candidate import PRECISIONS, RECORDED, Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.folders import make_safe_name, make_safe_names
from subgraph.storage.tensors import NOT_NUMPY, find_dtype, find_type, format_shape, save
from subgraph.text import clean, count, find_nearest
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import check_tensors
from subgraph.trials.matching.name_forms import INT8_ENDINGS, expand_map, iter_spellings
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.types import Array, StringMap, Strings, frozen

FOLDER_NAME_CHARS = 60  # characters of a recording's name in a folder's
GOLDEN = ":golden"  # the end of the name under which a toolkit keeps its own float values
AXIS_ORDERS = ("NCHW", "NHWC")  # layouts that values distinguish


@frozen
class RecordedFolder:
    """A folder of dumps, with its name in reports and its own precision."""

    path: Path
    label: str = ""
    precision: str = ""


@frozen
class RecordingOptions:
    """The user's options about recordings.

    Attributes:
        format: the format of the dumps; "" to detect it.
        layout: the layout of the dumps; "" for the model's.
        precision: of the device's arithmetic; None to derive it from the recorded types.
        seeded: whether the device was fed subcut's random inputs.
        tensor_map: the model's tensor → its name in the recording: of a tensor, a node or a file.
        choice: the compared outputs, and those that may be no evidence.
    """

    folders: tuple[RecordedFolder, ...]
    format: str = ""
    layout: str = ""
    precision: str | None = None
    seeded: bool = False
    tensor_map: StringMap = field(default_factory=dict)
    choice: OutputChoice = field(default_factory=OutputChoice)

    @property
    def paths(self) -> list[Path]:
        return [folder.path for folder in self.folders]

    @property
    def name(self) -> str:
        """The name of a result about them."""
        return "+".join(make_safe_name(path.resolve().name) for path in self.paths)[
            :FOLDER_NAME_CHARS
        ]


@frozen
class RecordedRun:
    """The recording of one device, or of one tool.

    Attributes:
        name: in reports: the folder's, and what distinguishes the runs in it.
        precision: that it is judged at; "" for that of the candidate.
        missing: why there is no recording; "" if there is one.
        siblings: other runs of the same folder, whose entries have the same names.
        layout: the user's option for files that do not store it; "" for none.
    """

    name: str
    recording: Recording | None = None
    samples: tuple[tuple[DumpEntry, ...], ...] = ()
    missing: str = ""
    siblings: tuple[RecordedRun, ...] = ()
    layout: str = ""
    precision: str = ""

    @property
    def plain(self) -> Callable[[str], str]:
        """A name as the tool writes it."""
        if self.recording:
            return self.recording.plain
        return str

    @property
    def has_guessed_shapes(self) -> bool:
        """Whether any file stores no shape."""
        return any(entry.guessed for entry in flatten(self.samples))

    @property
    def channels_last(self) -> bool:
        """Whether the user's option is that headerless files hold channels last.

        Values can contradict.
        """
        return self.layout == "NHWC"


@frozen
class RecordedRuns:
    """The runs of some folders, and what the reference is fed."""

    runs: Sequence[RecordedRun]
    feeding: Feeding
    precision: str | None = None

    @property
    def candidate(self) -> Candidate:
        """The candidate that recorded the runs; by default at the coarsest of their precisions."""
        claims = (run.precision or find_claim(run) for run in self.runs)
        claim = reduce(_choose_coarser, claims, PRECISIONS[0])
        name = "+".join(run.name for run in self.runs)
        return Candidate(name, RECORDED, precision=self.precision or claim)

    @contextmanager
    def open_judge(
        self,
        graph: Graph,
        reference: Reference,
        parent: Path,
        criterion: str = "noise",
        freeze: bool = True,
        choice: OutputChoice | None = None,
    ) -> Iterator[tuple[Judge, list[RecordedRun]]]:
        """Yield a judge of the recorded values, and the runs, each with no more samples than are
        fed."""
        chosen = choice or OutputChoice()
        setup = Setup(
            self.candidate, self.feeding, parent, criterion, freeze, stored=False, choice=chosen
        )
        with open_trials(graph, setup, reference) as trials:
            unrounded = dict(ChainMap(*(_find_unrounded(graph, run) for run in self.runs)))
            judge = replace(trials.judge, model=replace(trials.model, unrounded=unrounded))
            yield judge, limit_samples(self.runs, len(judge.model.values.samples))


def _find_unrounded(graph: Graph, run: RecordedRun) -> dict[str, str]:
    """Find casts to a narrow type that the module has not from which the model was exported."""
    if run.recording is None or not is_of_module(run.recording.folder):
        return {}
    written = WrittenNames(graph.maker, run.plain)
    entries = dict[str, DumpEntry]()
    for entry in flatten(run.samples):
        entries |= dict.fromkeys(written.find_meant(entry), entry)
    return find_unrounded(graph, entries, lambda name: entries[name].read())


def is_of_module(folder: Path) -> bool:
    """Return whether `subgraph.torch.record` wrote a folder of a module."""
    manifest = scan(folder).read_json_if_there(MANIFEST) if folder.is_dir() else None
    return isinstance(manifest, dict) and manifest.get("schema") == SCHEMA


@contextmanager
def open_runs(graph: Graph, options: RecordingOptions, feeding: Feeding) -> Iterator[RecordedRuns]:
    """Yield the runs in the folders. Recorded inputs lie in a temporary folder until the block
    ends.

    Raises:
        InputError: nothing can be read. UsageError: it is unknown what the device was fed.
        UnknownName: a name in the map is not in the model, or not in the recordings.
    """
    runs = load_runs(options, graph)
    if options.tensor_map:
        runs = _apply_map(runs, options.tensor_map, graph)
    # This also removes what a killed run left there.
    with folders.make_temporary("subcut-fed") as temporary:
        yield RecordedRuns(
            runs, _make_feeding(runs, graph, feeding, options.seeded, temporary), options.precision
        )


def load_runs(options: RecordingOptions, graph: Graph) -> list[RecordedRun]:
    """Read the runs in the folders; an unreadable one of several folders is a run that is missing.

    Raises:
        InputError: the only folder cannot be read, or none can.
        UsageError: a folder or a label is given twice.
    """
    # A run has the label of its folder, or else the folder's name; the path if names are equal.
    names = [folder.label or Path(os.path.realpath(folder.path)).name for folder in options.folders]
    if len(set(names)) < len(names):
        names = [folder.label or str(folder.path) for folder in options.folders]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        what = f"--recorded: '{twice}' is given twice"
        raise UsageError(what, "a different label for each: LABEL=DIR", code="option.repeated")
    runs = []
    for folder, name in zip(options.folders, names, strict=True):
        precision = folder.precision or options.precision or ""
        try:
            parts = _split(name, _read(folder.path, graph, options, precision))
            # A board computes in the precision of the simulator before it.
            claims = zip(parts, accumulate(map(find_claim, parts), _choose_coarser), strict=True)
            parts = [replace(r, precision=precision or c, layout=options.layout) for r, c in claims]
            runs += [replace(r, siblings=tuple(o for o in parts if o is not r)) for r in parts]
        except InputError as e:
            if len(options.folders) == 1:
                raise
            runs.append(RecordedRun(name, missing=e.what, precision=precision))
    if all(run.missing for run in runs):
        what = "; ".join(run.missing for run in runs)
        hint = "--recorded names a folder of layer dumps"
        raise InputError(what, hint, code="recording.not-found")
    return runs


def _read(folder: Path, graph: Graph, options: RecordingOptions, precision: str) -> Recording:
    """Read a recording; if the user names its layout, the shapes in it count as stored.

    But values decide whether channels come first or last: the user's option counts only if they
    do not decide.

    Args:
        folder: The recording.
        graph: The model.
        options: The user's options.
        precision: The user's option for this folder; "" for none.
    """
    layout = options.layout
    claim = Precision(precision or Precision.FP32)
    narrow = claim.dtype if claim.narrow else ""
    hints = replace(recording.find_hints(graph, layout), flat_if_misfit=True, narrow=narrow)
    recorded = recording.open(folder, options.format, hints)
    recorded = recorded.join_parts((*graph.inputs, *graph.maker, *graph.weights))
    entries = []
    for entry in recorded:
        guessed = entry.guessed or entry.shape is None
        if guessed and layout in AXIS_ORDERS:
            entry = replace(entry, layout="", original_shape=None)
        entries.append(replace(entry, guessed=guessed and (not layout or layout in AXIS_ORDERS)))
    return replace(recorded, entries=tuple(entries))


def _apply_map(
    runs: Sequence[RecordedRun], tensor_map: StringMap, graph: Graph
) -> list[RecordedRun]:
    """Return the runs with the entries that the user names marked as those tensors."""
    known = dict[str, str]()
    for run in runs:
        for name in flatten(map(_list_names, flatten(run.samples))):
            known |= {run.plain(name): name, name: name}
    ours: dict[str, Strings] = {}
    tensor_map = expand_map(tensor_map, graph, known)
    check_tensors(graph, tensor_map)
    for tensor, name in tensor_map.items():
        if name not in known:
            what = f"--map: nothing recorded is called '{name}'"
            raise UnknownName(
                what, nearest=find_nearest(name, list(known)), code="map.unknown-name"
            )
        ours[known[name]] = (*ours.get(known[name], ()), tensor)

    def mark(entry: DumpEntry) -> DumpEntry:
        meant = next((ours[name] for name in _list_names(entry) if name in ours), ())
        if meant:
            return replace(entry, originals=meant, mapped=True)
        return entry

    return [
        replace(run, samples=tuple(tuple(map(mark, sample)) for sample in run.samples))
        for run in runs
    ]


def _list_names(entry: DumpEntry) -> Strings:
    """Return the names by which a user can refer to an entry."""
    names = (entry.name, entry.tensor, entry.node, entry.file, Path(entry.file).stem)
    return tuple(filter(None, names))


def _split(name: str, recorded: Recording) -> list[RecordedRun]:
    """Return the runs in one recording."""
    entries = group_values((entry.side, entry) for entry in recorded)
    sides: dict[str, list[str]] = {}  # by their name without the number
    for side in entries:
        sides.setdefault(re.sub(r"\d+(?=\D*$)", "#", side), []).append(side)
    runs = []
    for pattern, group in sides.items():
        side = group[0] if len(group) == 1 else pattern
        run_name = f"{name}:{side}" if side and len(sides) > 1 else name
        samples = tuple(tuple(entries[side]) for side in sorted(group, key=split_numbers))
        runs.append(RecordedRun(run_name, recorded, samples))
    inputs = [r for r in runs if all(e.role == "input" for e in flatten(r.samples))]
    others = [run for run in runs if run not in inputs]
    if not inputs or not others:
        return runs
    # Runs that hold nothing but inputs are a part of every other run.
    out = []
    for run in others:
        joined = []
        for k, sample in enumerate(run.samples):
            # A run of inputs with another number of samples feeds its first one.
            fed = [r.samples[k if len(r.samples) == len(run.samples) else 0] for r in inputs]
            joined.append((*flatten(fed), *sample))
        out.append(replace(run, samples=tuple(joined)))
    if len(out) == 1:
        return [replace(out[0], name=out[0].name.partition(":")[0])]
    return out


def limit_samples(runs: Sequence[RecordedRun], number: int) -> list[RecordedRun]:
    """Return the runs with the samples that are fed; warn if some are dropped."""
    limited = []
    for run in runs:
        if len(run.samples) > number:
            held, fed = (count(n, "sample") for n in (len(run.samples), number))
            text = "%s holds %s, the input is %s: the first is compared (-i a folder of samples)"
            log.warning(text, clean(run.name), held, fed)
        limited.append(replace(run, samples=run.samples[:number]))
    return limited


def _choose_coarser(first: str, second: str) -> str:
    return max(first, second, key=PRECISIONS.index)


def find_claim(run: RecordedRun) -> str:
    """Find the precision in the recording, its names, or its types; the coarsest float's."""
    entries = list(flatten(run.samples))
    if computed := {entry.computed for entry in entries} - {""}:
        return reduce(_choose_coarser, computed)
    outputs = (e for e in entries if e.role == "output")
    if any(e.tensor.endswith(INT8_ENDINGS) or e.dtype in CODES for e in outputs):
        return Precision.INT8
    if run.recording and run.recording.is_half and not run.name.endswith(GOLDEN):
        return Precision.FP16
    dtypes = {entry.dtype for entry in entries}
    narrow = (claim for claim in (Precision.BF16, Precision.FP16) if claim.dtype in dtypes)
    return next(narrow, Precision.FP32)


# ------------------------------------------------------------ inputs


def _make_feeding(
    runs: Sequence[RecordedRun], graph: Graph, feeding: Feeding, seeded: bool, folder: Path
) -> Feeding:
    if feeding.inputs or seeded:
        return feeding
    # Each sample is read from the run that holds most of the model's inputs.
    recorded = (run for run in runs if run.samples)
    found = ([_match_inputs(run, entries, graph) for entries in run.samples] for run in recorded)
    samples = max(filter(all, found), key=lambda samples: min(map(len, samples)), default=[])
    lacking = [n for n in graph.inputs if not samples or any(n not in sample for sample in samples)]
    if lacking:
        what = f"it is unknown what the device was fed: the recording holds no input '{lacking[0]}'"
        hint = "name it with -i FILE, or --seed N if it was subcut's random input"
        raise UsageError(what, hint, code="recording.input-missing")
    stems = make_safe_names(dict.fromkeys(flatten(samples)))
    records = []
    for k, sample in enumerate(samples):
        place = folder / f"sample_{k}"
        place.mkdir()
        saved = {}
        for name, entry in sample.items():
            array = _read_as_declared(entry, graph, name, runs[0].channels_last)
            record = save(name, array, find_type(array), place, stems[name])
            saved[name] = record.rebase(str(place))
        records.append(saved)
    log.info("inputs: %s, from the recording", ", ".join(map(clean, graph.inputs)))
    fed = flatten(sample.values() for sample in records)
    names = dict.fromkeys(Path(file).name for file in flatten(record.files for record in fed))
    return replace(feeding, inputs=tuple(names), records=tuple(records))


def _match_inputs(
    run: RecordedRun, entries: Sequence[DumpEntry], graph: Graph
) -> dict[str, DumpEntry]:
    """Match the entries of inputs by name, or by number, as in ONNX's input_0.pb."""
    written = WrittenNames(graph.inputs, run.plain)
    forms = iter_spellings(graph, graph.inputs)
    spelled = {run.plain(other): name for name, form, other in forms if not form.is_read}
    numbered = list(graph.inputs)
    inputs: dict[str, DumpEntry] = {}
    for entry in entries:
        if entry.missing:
            continue
        recorded = entry.label
        name = next(iter(written.find(recorded)), spelled.get(run.plain(recorded), ""))
        is_numbered = entry.role == "input" and re.fullmatch(r"input_\d+", recorded)
        if not name and is_numbered and entry.index < len(numbered):
            name = numbered[entry.index]
        if name:
            inputs.setdefault(name, entry)
    return inputs


def _read_as_declared(entry: DumpEntry, graph: Graph, name: str, channels_last: bool) -> Array:
    """Return an input in the type and layout that the model declares."""
    array = entry.read()
    _, dtype, dims = read_type(graph.inputs[name].type)
    if dims is not None:
        sizes = array.shape if len(dims) == array.ndim else [None] * len(dims)
        known = [d if isinstance(d, int) else size for d, size in zip(dims, sizes, strict=True)]
        shape = fill_open_dimension(known, array.size)
        way = None
        if shape is not None:
            way = next(iter_alignments(array.shape, shape, entry.guessed, channels_last), None)
        if way is None:
            want = f"the input '{name}', {format_shape(tuple(dims))}"
            what = f"{entry.file} holds {format_shape(array.shape)} for {want}"
            hint = "name what the device was fed with -i"
            raise InputError(what, hint, code="recording.wrong-shape")
        array = way.apply(array)
    if array.dtype != find_dtype(dtype):
        if array.dtype.kind in "iub" and "float" in dtype and dtype not in NOT_NUMPY:
            log.info("input %s: recorded as %s, fed as %s", clean(name), array.dtype.name, dtype)
        array = array.astype(find_dtype(dtype))
    return array


def choose_device_run(runs: Sequence[RecordedRun]) -> RecordedRun:
    """Choose the run to narrow down: not a toolkit's own golden values; of several the last."""
    own = [run for run in runs if not run.missing and not run.name.endswith(GOLDEN)]
    *others, last = own or runs
    if others:
        among = count(len(others) + 1, "run")
        log.warning("%s: the last of %s is looked at", clean(last.name), among)
    return last
