"""What the page asks -> plain data: the drawing, a region, a node, a run. Knows no HTTP."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from subgraph import results, system
from subgraph.bodies.model import Part, find_part, parts
from subgraph.cases.case import read_manifest
from subgraph.documents import from_json, to_json
from subgraph.drawing.layout import Drawer
from subgraph.errors import InputError, NoRegion, SubcutError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import in_constants
from subgraph.graph.graph import Graph
from subgraph.graph.region import find_region
from subgraph.inspection.describe import node_descriptions
from subgraph.inspection.drawn_network import (
    inner_networks,
    network,
    replace_known_dims,
    short_size,
    weight_notes,
)
from subgraph.inspection.ranges import measure_weight
from subgraph.inspection.summary import file_summary, weight_summary
from subgraph.origins.source import find_source
from subgraph.reports.html import plan_curve
from subgraph.reports.text import first_lines
from subgraph.results.bisect import InsideDocument
from subgraph.results.plan import PlanDocument
from subgraph.storage import folders
from subgraph.storage.folders import safe_name
from subgraph.storage.value_pairs import is_saved
from subgraph.text import clean, is_text
from subgraph.trust import NamedCode
from subgraph.trust import require as require_trust
from subgraph.types import Fields, JsonObject, Strings, frozen
from subgraph.view.command_runs import Runs
from subgraph.view.values import (
    OpenedModel,
    ShownValue,
    tensor_document,
    values_of_case,
    values_of_run,
)

DROPPED = "view_inputs"  # in the output folder: files that were dropped onto the page
# in the output folder, hidden and as long as the session lives: tensors that were looked at
VALUES = "view_values"
MAX_KEPT = 16  # of such runs
MAX_ALONE = 1000  # nodes that Compare also runs alone: some 30 s
FILE_KINDS = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".bmp")
CHUNK = 1 << 20
MAX_WORD = 20_000  # characters of a name

T = TypeVar("T")


class ByteSource(Protocol):
    """Something to read bytes from."""

    def read(self, size: int, /) -> bytes: ...


@frozen
class ViewOptions:
    """What was typed behind `subcut view`.

    Attributes:
        candidates: name → words that choose it; the page knows only the names.
        inputs: files that the model is fed. recordings: folders of recordings.
        shared: words of every run: shapes, seed, trust. tested: of compare and bisect: criterion,
            timeout.
        output: the parent folder of results.
        known: what the candidates are known to compute wrongly in a graph, by node.
        beside: candidates that Compare runs together, and whose values are shown beside each other.
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
    beside: Sequence[str] = ()
    sizes: Callable[[Graph], Mapping[str, int]] = lambda _: {}
    foreign: Mapping[str, NamedCode] = field(default_factory=dict)


class ViewSession:
    """One reading of a model, its drawing, and the runs on it; safe to use from several threads."""

    def __init__(self, opened: OpenedModel, model: str, options: ViewOptions) -> None:
        """`model`: as it is typed."""
        self.opened = opened
        self.graph = opened.graph
        self.model = model
        self.options = options
        graph = opened.graph
        self.output = options.output.resolve()
        self.whole = parts(graph)
        self.parts = list(self.whole.all())
        self.sizes = options.sizes(graph)
        drawn = network(graph, sizes=self.sizes)
        self.drawer = Drawer(drawn, inner_networks(self.whole), weight_notes(graph))
        self.runs = Runs(self.find_links)
        self._lock = threading.Lock()
        self._values: dict[int, tuple[Path, int]] = {}  # run → its folder, and the node
        self._recorded: dict[
            Strings, Path
        ] = {}  # a recording and what was fed → all its values, once stored
        self._cases: list[
            tuple[Path, str]
        ] = []  # and the part of the model that each is of, by its prefix
        self._kept = contextlib.ExitStack()
        self._scratch: Path | None = None
        self._structure = graph.skeleton.structure
        self._described = {
            0: _begin(node_descriptions, graph)
        }  # a part's place → what tells of its nodes
        self._known = {
            0: _begin(options.known, graph)
        }  # a part's place → what is known of its nodes

    # ------------------------------------------------------------ the model

    def about(self) -> JsonObject:
        """The model's nodes, tensors and groups, and what can be run. Linear."""
        graph = self.graph
        around = self.drawer.openable
        keys = ["", *around]
        at = {key: k for k, key in enumerate(keys)}
        rows = [(part, i) for part in self.parts for i in range(len(part.graph.nodes))]
        return {
            "model": graph.path.name,
            "key": self.opened.key,
            "file": to_json(file_summary(graph)),
            "labels": [clean(part.graph.label(i)) for part, i in rows],
            "ops": [clean(part.graph.ops[i]) for part, i in rows],
            "makes": [[part.prefix + name for name in part.graph.makes[i]] for part, i in rows],
            "reads": [
                [part.prefix + n for n in part.graph.reads[i] if n not in part.graph.maker]
                for part, i in rows
            ],
            "bodies": {
                part.first + i: [p.word for p in row]
                for part in self.parts
                for i, row in part.inside.items()
            },
            "inputs": list(graph.inputs),
            "outputs": list(graph.outputs),
            "groups": keys,
            "parents": [0, *(at[above] for above in around.values())],
            "holders": [at[key] for key in self.drawer.holders],
            "candidates": list(self.options.candidates),
            "beside": list(self.options.beside),
            "recordings": list(self.options.recordings),
        }

    def layout(
        self, opened: Sequence[str] | None, width: float, *, tall: bool = False
    ) -> dict[str, object]:
        """The drawing with these groups open, and their keys; `tall`: with room for errors.

        Raises:
            UsageError: no such group.
        """
        with self._lock:
            keys = self.drawer.shown() if opened is None else frozenset(opened)
            if unknown := sorted(keys - self.drawer.openable.keys()):
                raise UsageError(f"no group '{unknown[0]}'", code="group.unknown")
            drawn = self.drawer.layout(keys, min(max(width, 320.0), 4000.0), tall=tall)
            return drawn.to_json() | {"open": sorted(keys)}

    def node(self, index: int) -> JsonObject:
        """All that the file says of a node: attributes, tensors with types and shapes, metadata.

        Raises:
            UnknownName: there is no such node.
        """
        place, i = self._place(index)
        graph = self.parts[place].graph
        with self._lock:
            if place not in self._described:
                self._described[place] = _begin(node_descriptions, graph)
                self._known[place] = _begin(self.options.known, graph)
        details = to_json(self._described[place].result()(i))
        for tensor in (*details["inputs"], *details["outputs"]):
            if dims := tensor["shape"]:
                tensor["shape"] = [
                    short_size(dim) if isinstance(dim, str) else dim
                    for dim in replace_known_dims(dims, self.sizes)
                ]
        for tensor in details["inputs"]:
            measured = measure_weight(graph, tensor["name"])
            if measured and measured.range:
                tensor["made_by"] = "weight"
                tensor["range"] = to_json(measured.range.summary())
                tensor["value"] = measured.value
        node = graph.nodes[i]
        metadata = {p.key: p.value for p in node.metadata_props}
        origin = find_source(graph, i)
        return {
            **details,
            "label": clean(details["label"]),
            "metadata": metadata,
            "doc": protobuf.doc_text(node.doc_string),
            "source": str(origin or ""),
            "known": list(self._known[place].result().get(i, ())),
        }

    def _place(self, number: int) -> tuple[int, int]:
        """The part that holds a node, by its place, and the node's index in there.

        Raises:
            UnknownName: there is no such node.
        """
        if not 0 <= number < self.whole.size:
            raise UnknownName(f"no node #{number}", code="node.unknown")
        place = bisect.bisect(self.parts, number, key=lambda part: part.first) - 1
        return place, number - self.parts[place].first

    def _part(self, names: Sequence[str]) -> tuple[Part, list[str]]:
        """The graph that these selectors are about, and how it calls what they select.

        Raises:
            UsageError: they are about several graphs.
        """
        found = [find_part(self.parts, name) for name in names]
        if len({part.prefix for part, _ in found}) > 1:
            one, other = (clean(part.prefix.rstrip("/")) or "the graph around" for part, _ in found)
            raise UsageError(
                f"the start is in {one}, the end in {other}: a piece lies in one graph",
                code="region.two-graphs",
            )
        return found[0][0], [name for _, name in found]

    def region(self, start: str, end: str) -> JsonObject:
        """The region between two nodes, and the command line that cuts it. One of them may be
        empty.

        Raises:
            SubcutError: As `region.find_region`; `NoRegion` with `swap` if the end is upstream of
                the start.
        """
        part, names = self._part([name for name in (start, end) if name])
        ends = iter(names)
        region = find_region(part.graph, [next(ends)] if start else [], [next(ends)] if end else [])
        inputs = (*region.inputs, *region.shapes)
        outputs = region.outputs
        drawn = self.drawer.network if part is self.whole else network(part.graph, part.prefix)
        constants = drawn.add_constants(region.nodes).difference(
            region.nodes
        )  # a cut has them as weights
        return {
            "start": region.start[0] if start else "",
            "end": region.end[0] if end else "",
            "nodes": [part.first + i for i in region.nodes],
            "inside": [
                *part.below(region.nodes),
                *(part.first + i for i in sorted(constants)),
            ],
            "inputs": [part.prefix + name for name in inputs],
            "outputs": [part.prefix + name for name in outputs],
            "parameters": sum(
                weight_summary(part.graph, n).parameters
                for n in region.weights
                if n in part.graph.weights or n in part.graph.sparse
            )
            + in_constants(part.graph, region),
            "command": system.join(["subcut", *self._cut_words(start, end)]),
        }

    def swappable(self, start: str, end: str) -> bool:
        """Return whether there is a region from end to start."""
        try:
            part, (first, last) = self._part([end, start])
            find_region(part.graph, [first], [last])
        except SubcutError:
            return False
        return True

    # ------------------------------------------------------------ runs

    def run(self, asked: Fields) -> JsonObject:
        """Start `cut`, `compare` or `bisect`; only with candidates and recordings that were typed
        or are configured.

        Raises:
            UsageError: anything else, or another run is under way. SubcutError: as `region`.
        """
        kind = asked.get("kind")
        if kind == "cut":
            start = read_word(asked, "start")
            end = read_word(asked, "end")
            if not (start or end):
                raise UsageError(
                    "where to cut? choose a start and an end", code="region.ends-missing"
                )
            self.region(start, end)
            words = [
                *self._cut_words(start, end),
                *(["--dump", "all"] if asked.get("dump") else []),
            ]
        elif kind == "values":
            return self._run_values(asked)
        elif kind in ("compare", "bisect"):
            several = kind == "compare"
            words = [kind, self.model, *self._words_of_candidate(asked, several=several)]
            words += [*(self._words_of_comparison(asked) if several else ()), *self.options.tested]
        else:
            raise UsageError(
                f"the page runs cut, compare and bisect, not {kind}",
                code="view.unknown-command",
            )
        return {"run": self.runs.start(kind, [*words, *self._words_of_inputs(asked)])}

    def _words_of_comparison(self, asked: Fields) -> list[str]:
        """Words that compare only what lies between start and end; of thousands of nodes none
        alone. A recording holds nothing of bodies: there all is compared."""
        start, end, recording = (read_word(asked, key) for key in ("start", "end", "recording"))
        part = (
            self._part([name for name in (start, end) if name])[0] if start or end else self.whole
        )
        if recording and part is not self.whole:
            return []
        nodes = self.region(start, end)["nodes"] if start or end else part.graph.nodes
        return [
            *_ends(start, end),
            *(["--in-place"] if len(nodes) > MAX_ALONE and not recording else []),
        ]

    def _run_values(self, asked: Fields) -> JsonObject:
        """Start what writes the tensors that a node makes."""
        index = asked.get("node")
        if not isinstance(index, int) or not 0 <= index < self.whole.size:
            raise UsageError("of which node? choose one", code="view.no-node")
        recording = read_word(asked, "recording")
        tested = self._words_of_candidate(asked, several=True)
        fed = self._words_of_inputs(asked)
        folder = self._recorded.get((recording, *fed)) or self._new_folder()
        place, i = self._place(index)
        at = f"--at={self.parts[place].graph.label(i)}" if place else f"--at=#{index}"
        at_node = (
            [] if recording else [at]
        )  # of a recording all at once: each further node needs no run
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

    def _new_folder(self) -> Path:
        """For the values of a run, as long as the session lives."""
        with self._lock:
            if self._scratch is None:
                self._scratch = self._kept.enter_context(folders.scratch(self.output, VALUES))
            return folders.numbered_folder(self._scratch, "run")

    def _values_in(self, folder: Path, node: int) -> list[ShownValue]:
        """Return the tensors of a node that a run stored.

        Raises:
            UsageError: it stored all of a recording, and there is nothing of this node.
        """
        values = values_of_run(folder, self._list_outputs(node))
        if not values and folder in self._recorded.values():
            raise UsageError(
                "the recording holds nothing of what this node makes",
                "choose another node",
                code="view.nothing-recorded",
            )
        return values

    def _words_of_inputs(self, asked: Fields) -> list[str]:
        inputs = () if asked.get("inputs") else [f"--input={word}" for word in self.options.inputs]
        words = []
        for file in asked.get("inputs") or []:
            name = read_word(file, "input")
            path = self.file(f"{DROPPED}/{read_word(file, 'file')}")
            if name and name not in self.graph.inputs:
                raise UsageError(f"the model has no input '{name}'", code="input.unknown")
            words.append(f"--input={name}={path}" if name else f"--input={path}")
        typed = {option: read_word(asked, option) for option in ("seed", "mean", "scale")}
        return [
            *inputs,
            *self.options.shared,
            *words,
            *(f"--{option}={text}" for option, text in typed.items() if text),
            f"--output={self.options.output}",
        ]

    def tensor(self, asked: Fields) -> JsonObject:
        """Pictures and statistics of one tensor, as `tensor_document` gives them.

        Either of those that a run of kind `values` wrote (`run`), or of those that are stored of
        what a node makes (`node`): of the chosen `recording` once its values are, else in the cases
        of this model; `pair`: which of them, `plane`: which map, None for that which differs most.

        Raises:
            UsageError: there is no such run, node, pair or plane. InputError: its files are
                damaged.
        """
        run = asked.get("run")
        node = asked.get("node")
        if isinstance(node, int) and 0 <= node < self.whole.size:
            made = self._list_outputs(node)
            recording = read_word(asked, "recording")
            kept = (
                self._recorded.get((recording, *self._words_of_inputs(asked)))
                if recording
                else None
            )
            stored = kept if kept and is_saved(kept) else None
            prefix = self.parts[self._place(node)[0]].prefix
            cases = [folder for folder, of in reversed(self._cases) if of == prefix]
            values = (
                list(
                    chain.from_iterable(
                        values_of_case(folder, made, self._relative(str(folder)) or folder.name)
                        for folder in cases
                    )
                )
                if stored is None
                else self._values_in(stored, node)
            )
        elif isinstance(run, int) and run in self._values:
            folder, node = self._values[run]
            values = self._values_in(folder, node)
        else:
            raise UsageError(
                "there are no such values", "choose a node, and Values", code="view.unknown-values"
            )
        return tensor_document(values, asked.get("pair"), asked.get("plane"))

    def _list_outputs(self, node: int) -> list[str]:
        place, i = self._place(node)
        return list(self.parts[place].graph.makes[i])

    def show_case(self, folder: Path, names: Sequence[str] = ()) -> None:
        """Take values from a case of this model as well; one of another model is left out.

        `names`: of nodes that it was cut at, where they are inside of a body.
        """
        prefix = find_part(self.parts, names[0])[0].prefix if names else ""
        with contextlib.suppress(InputError):  # a damaged manifest
            manifest = read_manifest(folder)
            of_this = bool(prefix) or folder.resolve() == self.graph.path.parent.resolve()
            if of_this or (manifest and manifest.source.structure_sha256 == self._structure):
                self._cases = [*((f, p) for f, p in self._cases if f != folder), (folder, prefix)]

    def close(self) -> None:
        """End the run that is under way, and remove what was kept for the page alone."""
        self.runs.close()
        self._kept.close()

    def _cut_words(self, start: str, end: str) -> list[str]:
        return ["cut", self.model, *_ends(start, end)]

    def _words_of_candidate(self, asked: Fields, *, several: bool) -> list[str]:
        """Words that choose the recording, or the candidate; `several`: with those that stand
        beside it."""
        candidate = read_word(asked, "candidate")
        recording = read_word(asked, "recording")
        if recording:
            if recording not in self.options.recordings:
                raise UsageError(
                    f"no recording '{recording}' was named",
                    "subcut view MODEL --recorded DIR",
                    code="view.unknown-recording",
                )
            return [f"--recorded={recording}"]
        if candidate not in self.options.candidates:
            raise UsageError(
                f"no candidate '{candidate}' was named",
                "subcut view MODEL -c SPEC",
                code="view.unknown-candidate",
            )
        if foreign := self.options.foreign.get(candidate):
            require_trust(foreign, trust=False)
        beside = self.options.beside
        names = beside if several and candidate in beside else [candidate]
        return list(chain.from_iterable(self.options.candidates[name] for name in names))

    # ------------------------------------------------------------ files

    def drop(self, name: str, data: ByteSource, size: int) -> dict[str, str]:
        """Store a file that was dropped onto the page in the output folder; returns its name there.

        Raises:
            InputError: it is of another kind, or ends too soon.
        """
        suffix = Path(name).suffix.lower()
        if suffix not in FILE_KINDS:
            raise InputError(
                f"{name}: the page takes {', '.join(FILE_KINDS)}",
                "name others with -i FILE",
                code="input.unknown-kind",
            )
        folder = self.output / DROPPED
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
            left = size
            while left and (chunk := data.read(min(CHUNK, left))):
                out.write(chunk)
                digest.update(chunk)
                left -= len(chunk)
        if left:
            Path(out.name).unlink()
            raise InputError(
                f"{name} ended {left} bytes too soon",
                "drop it again",
                code="view.upload-cut-short",
            )
        stored = f"{digest.hexdigest()[:8]}-{safe_name(Path(name).stem)[:60]}{suffix}"
        Path(out.name).replace(folder / stored)
        return {"file": stored}

    def file(self, name: str) -> Path:
        """A file or folder in the output folder.

        Raises:
            UsageError: there is none of that name, or it leads elsewhere.
        """
        path = (self.output / name).resolve() if name and "\0" not in name else self.output
        if not path.is_relative_to(self.output) or path == self.output or not path.exists():
            raise UsageError("there is no such file in the output folder", code="view.unknown-file")
        return path

    def find_links(self, document: object, words: Sequence[str]) -> JsonObject:
        """Folders and reports of a result, as `file` takes them, and its first lines; of a result
        that may belong to another model than this one only that it is `stale`. `words`: of the run.

        `prefix`: what stands before its tensors' names on the page, where it is of a body. Of
        several candidates there are the same of each, as `comparisons`.
        """
        linked = from_json(LinkedResult, document)
        if linked.comparisons:
            links = [self.find_links(one, words) for one in linked.comparisons]
            return {"comparisons": links, "stale": any("stale" in one for one in links)}
        about = linked.model
        structure = about.structure_sha256 if isinstance(about, LinkedModel) else None
        at = next(
            (w.partition("=")[2] for w in words if re.match(r"--(start|end|at)=(?!#\d+$)", w)), ""
        )
        prefix = find_part(self.parts, at)[0].prefix
        same = bool(prefix) or structure in (
            None,
            self._structure,
        )  # the model of a run in a body is that body
        if linked.error is None and (not self.opened.is_current or not same):
            return {"stale": True}
        inner = [list(_chain(f.inside)) for f in linked.findings]
        ends = [word.partition("=")[2] for word in words if word.startswith(("--start=", "--end="))]
        places: list[tuple[str | None, Sequence[str]]] = [
            (one.path, ends) for one in linked.results
        ]
        places += [(f.case, ()) for f in linked.findings]
        found_inside = itertools.chain.from_iterable(i.findings for i in itertools.chain(*inner))
        places += [(f.case, f.nodes) for f in found_inside]
        found = _known(document)
        for path, names in places:
            if path and self._relative(path):
                self.show_case(Path(path), names)
        return {
            "folders": [rel for path, _ in places if path and (rel := self._relative(path))],
            "report": self._relative(linked.report or ""),
            "kept": self._numbers(
                list(itertools.chain.from_iterable(place.nodes for place in linked.kept or ()))
            ),
            "curve": plan_curve(found) if isinstance(found, PlanDocument) else "",
            "said": first_lines(found) if found else None,
            "prefix": prefix,
            "inner_reports": [
                [rel for i in of if (rel := self._relative(i.report or ""))] for of in inner
            ],
            "inside": [
                [self._numbers(f.nodes) for f in itertools.chain(*(i.findings for i in of))]
                for of in inner
            ],
        }

    def _numbers(self, names: Sequence[str]) -> list[int]:
        """The numbers of nodes in bodies, as a result names them."""
        found = [find_part(self.parts, name) for name in names]
        return [
            part.first + part.graph.names[name] for part, name in found if name in part.graph.names
        ]

    def _relative(self, path: str) -> str:
        if not path or not is_text(path):
            return ""
        full = Path(path).resolve()
        return (
            full.relative_to(self.output).as_posix()
            if full.is_relative_to(self.output) and full.exists()
            else ""
        )


def _ends(start: str, end: str) -> list[str]:
    return [f"--{option}={name}" for option, name in (("start", start), ("end", end)) if name]


def _begin(function: Callable[[Graph], T], graph: Graph) -> Future[T]:
    """Begun beside: inferring the types of 10,000 nodes takes 0.3 s, which is not spent at the
    first click."""
    beside = ThreadPoolExecutor(1)
    future = beside.submit(function, graph)
    beside.shutdown(wait=False)
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


def _known(document: object) -> results.Document | None:
    """The document of a result that has a report; None for any other result."""
    schema = document.get("schema") if isinstance(document, dict) else None
    return results.parse(document) if schema in results.KNOWN else None


def _chain(inside: InsideDocument | None) -> Iterator[InsideDocument]:
    """Yield the documents of the bodies in a finding, outer ones first."""
    if inside:
        yield inside
        for finding in inside.findings:
            yield from _chain(finding.inside)


def error_document(session: ViewSession, error: SubcutError, asked: Fields) -> JsonObject:
    """An error as the page shows it; `swap`: start and end the other way round are a region."""
    start = asked.get("start")
    end = asked.get("end")
    pair = (
        isinstance(error, NoRegion)
        and isinstance(start, str)
        and isinstance(end, str)
        and bool(start and end)
    )
    return {"error": error.to_json(), "swap": pair and session.swappable(str(start), str(end))}


def read_word(asked: Any, key: str) -> str:
    """A text of the request; empty if it is not there.

    Raises:
        UsageError: it is not text, or an absurd one.
    """
    value = asked.get(key, "") if isinstance(asked, dict) else None
    if not isinstance(value, str) or len(value) > MAX_WORD or not is_text(value) or "\0" in value:
        raise UsageError(f"'{key}' must be a short text", code="view.bad-request")
    return value
