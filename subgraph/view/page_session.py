"""Requests of the page -> plain data: the drawing, a region, a node, a run. Knows no HTTP."""

from __future__ import annotations

import bisect
import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from subgraph import results, system
from subgraph.bodies.model import Part, build_part_tree, find_part
from subgraph.cases.case import read_manifest
from subgraph.documents import from_json, to_json
from subgraph.drawing.layout import Drawer
from subgraph.errors import InputError, NoRegion, SubcutError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import count_constant_elements
from subgraph.graph.graph import Graph
from subgraph.graph.region import find_region
from subgraph.inspection.describe import (
    EnteringTensor,
    NodeDetails,
    TensorInfo,
    make_node_describer,
)
from subgraph.inspection.drawn_network import (
    format_weight_notes,
    make_inner_networks,
    make_network,
    replace_known_dims,
    shorten_size,
)
from subgraph.inspection.ranges import measure_weight
from subgraph.inspection.summary import summarize_file, summarize_weight
from subgraph.iterables import flatten, ungroup
from subgraph.origins.source import find_source
from subgraph.reports.html import draw_plan_curve
from subgraph.reports.text import list_first_lines
from subgraph.results.bisect import InsideDocument
from subgraph.results.plan import PlanDocument
from subgraph.storage import folders
from subgraph.storage.value_pairs import is_saved
from subgraph.text import clean, is_text
from subgraph.trust import NamedCode, require as require_trust
from subgraph.types import Fields, JsonObject, Strings, frozen
from subgraph.view.command_runs import Runs
from subgraph.view.output_files import DROPPED, OutputFiles
from subgraph.view.values import (
    OpenedModel,
    ShownValue,
    describe_tensor,
    list_run_values,
    list_shown_case_values,
)

# in the output folder, hidden and as long as the session lives: tensors that were looked at
VALUES = "view_values"
MAX_KEPT = 16  # of such runs
MAX_ALONE = 1000  # nodes that Compare also runs alone: some 30 s
MAX_WORD = 20_000  # characters of a name

T = TypeVar("T")
Tensor = TypeVar("Tensor", bound=TensorInfo)


@frozen
class ViewOptions:
    """The command line of `subcut view`.

    Attributes:
        candidates: Words that choose a candidate, by its name; the page knows only the names.
        inputs: Files that the model is fed.
        shared: Words of every run: shapes, seed, trust.
        tested: Words of compare and bisect: criterion, timeout.
        recordings: Folders of recordings.
        output: The parent folder of results.
        known: Returns the known faults of the candidates in a graph, by node.
        together: Candidates that Compare runs together and whose values are shown side by side.
        sizes: The sizes of symbols in the shapes of a graph, as far as the options give them.
        foreign: The code of candidates that only an opened run names; it must be trusted to run.
    """

    candidates: Mapping[str, Sequence[str]]
    inputs: Sequence[str]
    shared: Sequence[str]
    tested: Sequence[str]
    recordings: Sequence[str]
    output: Path
    known: Callable[[Graph], Mapping[int, Sequence[str]]] = lambda _: {}
    together: Sequence[str] = ()
    sizes: Callable[[Graph], Mapping[str, int]] = lambda _: {}
    foreign: Mapping[str, NamedCode] = field(default_factory=dict)


@frozen
class LayoutRequest:
    """A request for the drawing.

    Attributes:
        open: The groups that are open; None for as many as the drawer opens.
        width: The width in pixels.
        tall: Whether there is room for errors.
    """

    open: Sequence[str] | None = None
    width: float = 1200.0
    tall: bool = False


@frozen
class NodeRequest:
    """A request for all that is known of a node."""

    index: int


@frozen
class RegionRequest:
    """A request for the region between two nodes, one of which may be ""."""

    start: str = ""
    end: str = ""


@frozen
class DroppedInput:
    """A file that was dropped onto the page; `input`: the input that it is for, if it is named."""

    file: str
    input: str = ""


@frozen
class FedRequest:
    """The part of a request that names the candidate and the inputs.

    Attributes:
        candidate: The name of a candidate; "" for a recording.
        recording: The folder of a recording; "" for a candidate.
        inputs: The dropped files; without any, the inputs of the command line.
        seed: The seed of random values.
        mean: The mean of images.
        scale: The scale of images.
    """

    candidate: str = ""
    recording: str = ""
    inputs: Sequence[DroppedInput] = ()
    seed: str = ""
    mean: str = ""
    scale: str = ""


@frozen
class StartRequest(FedRequest):
    """A request to run something.

    Attributes:
        kind: `cut`, `compare`, `bisect` or `values`.
        node: The node of `values`.
        start: The first node of a cut or a comparison; "" for none.
        end: The last one.
        dump: Whether a cut has all tensors.
    """

    kind: str = ""
    node: int = -1
    start: str = ""
    end: str = ""
    dump: bool = False


@frozen
class TensorRequest(FedRequest):
    """A request for pictures and statistics of one tensor.

    Attributes:
        node: A node, whose values are those of `recording` if they are stored, else those in cases
            of this model.
        run: A run of kind `values`, without a node.
        pair: The number of the tensor.
        plane: The number of the map; None for the map that differs most.
    """

    node: int = -1
    run: int = 0
    pair: int = 0
    plane: int | None = None


class ViewSession:
    """One reading of a model, its drawing, and the runs on it; safe for several threads."""

    def __init__(self, opened: OpenedModel, model: str, options: ViewOptions) -> None:
        """Make the session of an opened model.

        Args:
            opened: The model.
            model: Its path in command lines.
            options: The further command line.
        """
        self.opened = opened
        self.graph = opened.graph
        self.model = model
        self.options = options
        graph = opened.graph
        self.files = OutputFiles(options.output.resolve())
        self.whole = build_part_tree(graph)
        self.parts = list(self.whole.all())
        self.sizes = options.sizes(graph)
        drawn = make_network(graph, sizes=self.sizes)
        self.drawer = Drawer(drawn, make_inner_networks(self.whole), format_weight_notes(graph))
        self.runs = Runs(partial(find_links, self))
        self._lock = threading.Lock()
        self._values: dict[int, tuple[Path, int]] = {}  # run → its folder, and the node
        # a recording and the words for its inputs → the folder of its values
        self._recorded: dict[Strings, Path] = {}
        # folders, and prefixes of parts of the model
        self._cases: list[tuple[Path, str]] = []
        self._kept = contextlib.ExitStack()
        self._scratch: Path | None = None
        self._structure = graph.skeleton.structure
        # by a part's place: descriptions of its nodes, and the known faults of candidates there
        self._described = {0: _describe(graph, options)}

    # ------------------------------------------------------------ the model

    def describe_model(self) -> JsonObject:
        """Return the model's nodes, tensors and groups, and the possible runs. Linear."""
        graph = self.graph
        around = self.drawer.openable
        keys = ["", *around]
        at = {key: k for k, key in enumerate(keys)}
        rows = list(ungroup((p, range(len(p.graph.nodes))) for p in self.parts))
        holders = ungroup((p, p.inside) for p in self.parts)
        return {
            "model": graph.path.name,
            "key": self.opened.key,
            "file": to_json(summarize_file(graph)),
            "labels": [clean(part.graph.label(i)) for part, i in rows],
            "ops": [clean(part.graph.ops[i]) for part, i in rows],
            "makes": [[part.prefix + name for name in part.graph.makes[i]] for part, i in rows],
            "reads": [
                [part.prefix + n for n in part.graph.reads[i] if n not in part.graph.maker]
                for part, i in rows
            ],
            "bodies": {part.first + i: [p.word for p in part.inside[i]] for part, i in holders},
            "inputs": list(graph.inputs),
            "outputs": list(graph.outputs),
            "groups": keys,
            "parents": [0, *(at[above] for above in around.values())],
            "holders": [at[key] for key in self.drawer.holders],
            "candidates": list(self.options.candidates),
            "beside": list(self.options.together),
            "recordings": list(self.options.recordings),
        }

    def lay_out(self, asked: LayoutRequest) -> JsonObject:
        """Return the drawing with some groups open, and their keys.

        Raises:
            UsageError: no such group.
        """
        with self._lock:
            keys = self.drawer.choose_open() if asked.open is None else frozenset(asked.open)
            if unknown := sorted(keys - self.drawer.openable.keys()):
                raise UsageError(f"no group '{unknown[0]}'", code="group.unknown")
            width = min(max(asked.width, 320.0), 4000.0)
            drawn = self.drawer.layout(keys, width, tall=asked.tall)
            return drawn.to_json() | {"open": sorted(keys)}

    def describe_node(self, index: int) -> JsonObject:
        """Return a node's entry in the file: attributes, tensors with types and shapes, metadata.

        Raises:
            UnknownName: there is no such node.
        """
        place, i = self._place(index)
        graph = self.parts[place].graph
        with self._lock:
            if place not in self._described:
                self._described[place] = _describe(graph, self.options)
        describe, known = self._described[place].result()
        details = describe(i)
        shown = replace(
            details,
            label=clean(details.label),
            inputs=[_add_weight(graph, self._shorten_sizes(t)) for t in details.inputs],
            outputs=list(map(self._shorten_sizes, details.outputs)),
        )
        node = graph.nodes[i]
        metadata = {p.key: p.value for p in node.metadata_props}
        origin = find_source(graph, i)
        return {
            **to_json(shown),
            "metadata": metadata,
            "doc": protobuf.read_doc_text(node.doc_string),
            "source": str(origin or ""),
            "known": list(known.get(i, ())),
        }

    def _shorten_sizes(self, tensor: Tensor) -> Tensor:
        """Return a tensor with known sizes, and short names of the other ones."""
        if not tensor.shape:
            return tensor
        sizes = replace_known_dims(tensor.shape, self.sizes)
        return replace(tensor, shape=[shorten_size(n) if isinstance(n, str) else n for n in sizes])

    def _place(self, number: int) -> tuple[int, int]:
        """Return the place of the part that holds a node, and the node's index in there.

        Raises:
            UnknownName: there is no such node.
        """
        if not 0 <= number < self.whole.size:
            raise UnknownName(f"no node #{number}", code="node.unknown")
        place = bisect.bisect(self.parts, number, key=lambda part: part.first) - 1
        return place, number - self.parts[place].first

    def describe_region(self, start: str, end: str) -> JsonObject:
        """Return the region between two nodes, one of which may be "", and the command to cut it.

        Raises:
            SubcutError: As `region.find_region`; `NoRegion` with `swap` if the end is upstream of
                the start.
        """
        part, names = _find_part(self, [name for name in (start, end) if name])
        ends = iter(names)
        graph = part.graph
        region = find_region(graph, [next(ends)] if start else [], [next(ends)] if end else [])
        inputs = region.entering
        outputs = region.outputs
        drawn = self.drawer.network if part is self.whole else make_network(graph, part.prefix)
        # a cut has them as weights
        constants = drawn.add_constants(region.nodes).difference(region.nodes)
        return {
            "start": region.start[0] if start else "",
            "end": region.end[0] if end else "",
            "nodes": [part.first + i for i in region.nodes],
            "inside": [
                *part.iter_inner(region.nodes),
                *(part.first + i for i in sorted(constants)),
            ],
            "inputs": [part.prefix + name for name in inputs],
            "outputs": [part.prefix + name for name in outputs],
            "parameters": sum(
                summarize_weight(graph, n).parameters
                for n in region.weights
                if n in graph.weights or n in graph.sparse
            )
            + count_constant_elements(graph, region),
            "command": system.join(["subcut", "cut", self.model, *_ends(start, end)]),
        }

    # ------------------------------------------------------------ runs

    def run(self, asked: StartRequest) -> JsonObject:
        """Start `cut`, `compare` or `bisect` with a candidate or recording of the command line.

        Raises:
            UsageError: anything else, or another run is under way. SubcutError: as `region`.
        """
        kind = asked.kind
        if kind == "cut":
            if not (asked.start or asked.end):
                raise UsageError(
                    "where to cut? choose a start and an end", code="region.ends-missing"
                )
            self.describe_region(asked.start, asked.end)
            ends = _ends(asked.start, asked.end)
            words = [kind, self.model, *ends, *["--dump", "all"] * asked.dump]
        elif kind == "values":
            return self._run_values(asked)
        elif kind in ("compare", "bisect"):
            several = kind == "compare"
            words = [kind, self.model, *_write_candidate_words(self, asked, several=several)]
            words += [
                *(_write_comparison_words(self, asked) if several else ()),
                *self.options.tested,
            ]
        else:
            raise UsageError(
                f"the page runs cut, compare and bisect, not {kind}",
                code="view.unknown-command",
            )
        return {"run": self.runs.start(kind, [*words, *_write_input_words(self, asked)])}

    def _run_values(self, asked: StartRequest) -> JsonObject:
        """Start a run that writes the output tensors of a node."""
        index = asked.node
        if not 0 <= index < self.whole.size:
            raise UsageError("of which node? choose one", code="view.no-node")
        recording = asked.recording
        tested = _write_candidate_words(self, asked, several=True)
        fed = _write_input_words(self, asked)
        folder = self._recorded.get((recording, *fed))
        if not folder:
            with self._lock:
                if self._scratch is None:  # removed with the session
                    scratch = folders.make_scratch(self.files.folder, VALUES)
                    self._scratch = self._kept.enter_context(scratch)
                folder = folders.make_numbered_folder(self._scratch, "run")
        place, i = self._place(index)
        at = f"--at={self.parts[place].graph.label(i)}" if place else f"--at=#{index}"
        at_node = [] if recording else [at]  # a recording is stored whole, for all nodes
        words = ["compare", self.model, *tested, *at_node, *self.options.tested, *fed]
        number = self.runs.start("values", [*words, f"--save={folder}"])
        if recording:
            self._recorded[recording, *fed] = folder
        self._values[number] = (folder, index)
        for old in sorted(self._values)[:-MAX_KEPT]:
            forgotten = self._values.pop(old)[0]
            if forgotten not in self._recorded.values():
                shutil.rmtree(forgotten, ignore_errors=True)
        return {"run": number}

    def tensor(self, asked: TensorRequest) -> JsonObject:
        """Return pictures and statistics of one tensor, as `describe_tensor`.

        Raises:
            UsageError: there is no such run, node, pair or plane.
            InputError: its files are damaged.
        """
        if 0 <= asked.node < self.whole.size:
            values = self._read_stored(asked)
        elif asked.run in self._values:
            values = _find_values_in(self, *self._values[asked.run])
        else:
            raise UsageError(
                "there are no such values", "choose a node, and Values", code="view.unknown-values"
            )
        return describe_tensor(values, asked.pair, asked.plane)

    def _read_stored(self, asked: TensorRequest) -> list[ShownValue]:
        """Return a node's tensors in the chosen recording, or in the cases of this model."""
        if asked.recording:
            stored = self._recorded.get((asked.recording, *_write_input_words(self, asked)))
            if stored and is_saved(stored):
                return _find_values_in(self, stored, asked.node)
        place, i = self._place(asked.node)
        part = self.parts[place]
        made = part.graph.makes[i]
        found = (
            list_shown_case_values(folder, made, self.files.find_name(str(folder)) or folder.name)
            for folder, of in reversed(self._cases)
            if of == part.prefix
        )
        return list(flatten(found))

    def show_case(self, folder: Path, names: Sequence[str] = ()) -> None:
        """Show values from a case as well, unless it is one of another model.

        Args:
            folder: The case.
            names: The nodes at the ends of the cut, if they are in a body.
        """
        prefix = find_part(self.parts, names[0])[0].prefix if names else ""
        with contextlib.suppress(InputError):  # a damaged manifest
            manifest = read_manifest(folder)
            of_this = bool(prefix) or folder.resolve() == self.graph.path.parent.resolve()
            if of_this or (manifest and manifest.source.structure_sha256 == self._structure):
                self._cases = [*((f, p) for f, p in self._cases if f != folder), (folder, prefix)]

    def close(self) -> None:
        """End the current run and remove the files that only the page needs."""
        self.runs.close()
        self._kept.close()


def find_links(session: ViewSession, document: object, words: Sequence[str]) -> JsonObject:
    """Return folders and reports of a result, as names for `files`, and its first lines.

    Of a result that may belong to another model, return only that it is `stale`; of several
    candidates, return the links of each as `comparisons`. `prefix` comes before the names of
    tensors in a body.

    Args:
        session: The reading of the model.
        document: The result.
        words: The words of the run.
    """
    linked = from_json(LinkedResult, document)
    if linked.comparisons:
        links = [find_links(session, one, words) for one in linked.comparisons]
        return {"comparisons": links, "stale": any("stale" in one for one in links)}
    about = linked.model
    structure = about.structure_sha256 if isinstance(about, LinkedModel) else None
    at = next(
        (w.partition("=")[2] for w in words if re.match(r"--(start|end|at)=(?!#\d+$)", w)), ""
    )
    prefix = find_part(session.parts, at)[0].prefix
    # the model of a run in a body is that body
    same = bool(prefix) or structure in (None, session._structure)
    if linked.error is None and (not session.opened.is_current or not same):
        return {"stale": True}
    inner = [list(_chain(f.inside)) for f in linked.findings]
    ends = [word.partition("=")[2] for word in words if word.startswith(("--start=", "--end="))]
    places: list[tuple[str | None, Sequence[str]]] = [(one.path, ends) for one in linked.results]
    places += [(f.case, ()) for f in linked.findings]
    found_inside = [list(flatten(i.findings for i in of)) for of in inner]
    places += [(f.case, f.nodes) for f in chain(*found_inside)]
    schema = document.get("schema") if isinstance(document, dict) else None
    found = results.parse(document) if schema in results.KNOWN else None
    for path, names in places:
        if path and session.files.find_name(path):
            session.show_case(Path(path), names)
    return {
        "folders": [rel for path, _ in places if (rel := session.files.find_name(path))],
        "report": session.files.find_name(linked.report),
        "kept": _number_nodes(session, flatten(place.nodes for place in linked.kept or ())),
        "curve": draw_plan_curve(found) if isinstance(found, PlanDocument) else "",
        "said": list_first_lines(found) if found else None,
        "prefix": prefix,
        "inner_reports": [
            [rel for i in of if (rel := session.files.find_name(i.report))] for of in inner
        ],
        "inside": [[_number_nodes(session, f.nodes) for f in of] for of in found_inside],
    }


def _add_weight(graph: Graph, tensor: EnteringTensor) -> EnteringTensor:
    """Return a tensor with the range and the value of the weight that it is."""
    measured = measure_weight(graph, tensor.name)
    if not measured or not measured.range:
        return tensor
    span = measured.range.summary()
    return replace(tensor, made_by="weight", range=span, value=measured.value)


def _number_nodes(session: ViewSession, names: Iterable[str]) -> list[int]:
    """Return the numbers of nodes that a result names, also in bodies."""
    found = [find_part(session.parts, name) for name in names]
    return [part.first + part.graph.names[name] for part, name in found if name in part.graph.names]


def _find_part(session: ViewSession, names: Sequence[str]) -> tuple[Part, list[str]]:
    """Return the part that selectors are about, and the selectors in its own names.

    Raises:
        UsageError: they are about several graphs.
    """
    found = [find_part(session.parts, name) for name in names]
    if len({part.prefix for part, _ in found}) > 1:
        one, other = (clean(part.prefix.rstrip("/")) or "the graph around" for part, _ in found)
        raise UsageError(
            f"the start is in {one}, the end in {other}: a piece is part of one graph",
            code="region.two-graphs",
        )
    return found[0][0], [name for _, name in found]


def _write_input_words(session: ViewSession, asked: FedRequest) -> list[str]:
    inputs = () if asked.inputs else [f"--input={word}" for word in session.options.inputs]
    words = []
    for dropped in asked.inputs:
        name = dropped.input
        path = session.files.find(f"{DROPPED}/{dropped.file}")
        if name and name not in session.graph.inputs:
            raise UsageError(f"the model has no input '{name}'", code="input.unknown")
        words.append(f"--input={name}={path}" if name else f"--input={path}")
    typed = {"seed": asked.seed, "mean": asked.mean, "scale": asked.scale}
    return [
        *inputs,
        *session.options.shared,
        *words,
        *(f"--{option}={text}" for option, text in typed.items() if text),
        f"--output={session.options.output}",
    ]


def _find_values_in(session: ViewSession, folder: Path, node: int) -> list[ShownValue]:
    """Return the tensors of a node that a run stored.

    Raises:
        UsageError: it stored all of a recording, and there is nothing of this node.
    """
    place, i = session._place(node)
    values = list_run_values(folder, session.parts[place].graph.makes[i])
    if not values and folder in session._recorded.values():
        raise UsageError(
            "the recording holds no output of this node",
            "choose another node",
            code="view.nothing-recorded",
        )
    return values


def _write_candidate_words(session: ViewSession, asked: FedRequest, *, several: bool) -> list[str]:
    """Return words that choose the recording or the candidate; with the ones of `together`."""
    candidate = asked.candidate
    if recording := asked.recording:
        if recording not in session.options.recordings:
            raise UsageError(
                f"no recording '{recording}' was named",
                "subcut view MODEL --recorded DIR",
                code="view.unknown-recording",
            )
        return [f"--recorded={recording}"]
    if candidate not in session.options.candidates:
        raise UsageError(
            f"no candidate '{candidate}' was named",
            "subcut view MODEL -c SPEC",
            code="view.unknown-candidate",
        )
    if foreign := session.options.foreign.get(candidate):
        require_trust(foreign, trust=False)
    together = session.options.together
    names = together if several and candidate in together else [candidate]
    return list(flatten(session.options.candidates[name] for name in names))


def _write_comparison_words(session: ViewSession, asked: StartRequest) -> list[str]:
    """Return words that limit a comparison to the nodes between start and end.

    Of many nodes, none runs alone. A recording has no tensors of bodies, so nothing limits it
    there.
    """
    names = [name for name in (asked.start, asked.end) if name]
    part = _find_part(session, names)[0] if names else session.whole
    if asked.recording and part is not session.whole:
        return []
    nodes = session.describe_region(asked.start, asked.end)["nodes"] if names else part.graph.nodes
    is_large = len(nodes) > MAX_ALONE and not asked.recording
    return [*_ends(asked.start, asked.end), *["--in-place"] * is_large]


def _ends(start: str, end: str) -> list[str]:
    return [f"--{option}={name}" for option, name in (("start", start), ("end", end)) if name]


def _describe(
    graph: Graph, options: ViewOptions
) -> Future[tuple[Callable[[int], NodeDetails], Mapping[int, Sequence[str]]]]:
    """Describe nodes in a thread: type inference for 10,000 nodes would delay a click by 0.3 s."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(lambda: (make_node_describer(graph), options.known(graph)))
    pool.shutdown(wait=False)
    return future


@frozen
class LinkedModel:
    """The model of a result."""

    structure_sha256: str | None = None


@frozen
class LinkedPlace:
    """A finding, a cut or a place of a plan, with its folder as `case` or `path`."""

    case: str | None = None
    path: str | None = None
    nodes: Sequence[str] = ()
    inside: InsideDocument | None = None


@frozen
class LinkedResult:
    """The parts of any command's result to which the page leads.

    Attributes:
        error: The error in place of a result; None without an error.
        model: The model; its file alone if nothing else is known.
        comparisons: Those of several candidates.
        findings: The findings of a search.
        results: The cuts.
        kept: The places that a plan keeps; None without a plan.
        report: The file of the report.
    """

    error: object = None
    model: LinkedModel | str | None = None
    comparisons: Sequence[object] = ()
    findings: Sequence[LinkedPlace] = ()
    results: Sequence[LinkedPlace] = ()
    kept: Sequence[LinkedPlace] | None = None
    report: str | None = None


def _chain(inside: InsideDocument | None) -> Iterator[InsideDocument]:
    """Yield the documents of the bodies in a finding, outer ones first."""
    if inside:
        yield inside
        for finding in inside.findings:
            yield from _chain(finding.inside)


def make_error_document(session: ViewSession, error: SubcutError, asked: Fields) -> JsonObject:
    """Return an error for the page; `swap` if start and end the other way round are a region."""
    swap = False
    if isinstance(error, NoRegion):
        with contextlib.suppress(SubcutError):
            ends = read_request(RegionRequest, asked)
            part, (first, last) = _find_part(session, [ends.end, ends.start])
            find_region(part.graph, [first], [last])
            swap = True
    return {"error": error.to_json(), "swap": swap}


def read_request(kind: type[T], document: object) -> T:
    """Return a request of the page.

    Raises:
        UsageError: A field has another type, or a text is one that no command line can hold.
    """
    try:
        request = from_json(kind, document, "the request")
    except InputError as e:
        raise UsageError(e.what, code="view.bad-request") from e
    _require_words(request)
    return request


def _require_words(request: object) -> None:
    for key, value in vars(request).items():
        if isinstance(value, str) and (
            len(value) > MAX_WORD or not is_text(value) or "\0" in value
        ):
            raise UsageError(f"'{key}' must be a short text", code="view.bad-request")
        for inner in value if key == "inputs" else ():
            _require_words(inner)
