"""Names that other tools give to tensors: with an ending, by torch's modules, joined by fusion.

None of them proves anything: the values do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence

from subgraph.graph.graph import Graph
from subgraph.graph.properties import FOLDED
from subgraph.graph.selection import is_tensor
from subgraph.graph.walks import find_operator
from subgraph.iterables import flatten
from subgraph.origins.source import PARAMETER, parse_module_path
from subgraph.recordings.dumps import DumpEntry
from subgraph.trials.matching.name_forms import NameForm, iter_spellings, list_likely_names
from subgraph.types import Strings

MAX_FUSED = 6  # nodes that a device may have fused into the node of the name
_OUTPUT_NUMBER = re.compile(r":\d+$")  # of the node, which OpenVINO writes after any name
_CALL = re.compile(r"_\d+(?=\.|$)")


class ModelNames:
    """A model's tensors by the names that others give them.

    Attributes:
        tensors: those that are compared, in the order of the model.
    """

    def __init__(self, graph: Graph, tensors: Sequence[str], plain: Callable[[str], str]) -> None:
        self.tensors = tensors
        self._plain = plain
        self._graph = graph
        self._written: dict[str, str] = {}
        self._nodes: dict[str, str] = {}  # a node's written name -> its first tensor
        # Path of a module, as written -> the tensors that leave it, the last first.
        self._modules: dict[str, list[str]] = {}
        self._calls: dict[str, list[str]] = {}  # the same for all calls of a module
        known = set(tensors)
        for i in graph.order:
            made = [n for n in graph.makes[i] if n in known]
            if made:
                self._nodes.setdefault(plain(graph.label(i)), made[0])
        self._forms: dict[str, tuple[str, NameForm]] = {}
        for name, form, spelled in iter_spellings(graph, tensors):
            self._written.setdefault(plain(name), name)
            self._forms.setdefault(plain(spelled), (name, form))
        paths = {}
        for i in graph.order:
            # A node without a path is of the one module whose weights it reads: `conv1.weight`.
            read = [PARAMETER.fullmatch(n) for n in graph.nodes[i].input if n in graph.weights]
            modules = {each[1] for each in read if each}
            is_of_one = len(modules) == 1 and all(read)
            paths[i] = parse_module_path(graph.label(i)) or (modules.pop() if is_of_one else "")
        for i in reversed(graph.order):
            parts = paths[i].split(".") if paths[i] else []
            for k in range(1, len(parts) + 1):
                path = ".".join(parts[:k])
                leaving = []
                for name in filter(known.__contains__, graph.makes[i]):
                    readers = graph.readers.get(name, ())
                    is_inner = all(f"{paths[j]}.".startswith(f"{path}.") for j in readers)
                    if name in graph.outputs or not is_inner:
                        leaving.append(name)
                self._modules.setdefault(plain(path), []).extend(leaving)
                self._calls.setdefault(plain(_CALL.sub("", path)), []).extend(leaving)

    def find_form(self, recorded: str) -> tuple[str, NameForm] | None:
        """Find the tensor that a toolkit writes as this name, and how."""
        spellings = (recorded, _OUTPUT_NUMBER.sub("", recorded))
        names = flatten(map(list_likely_names, spellings))
        forms = (self._forms.get(self._plain(name)) for name in names)
        return next(filter(None, forms), None)

    def likely(self, recorded: str) -> Strings:
        """Return the tensors that a name which the model does not have can mean, the likeliest
        first."""
        tensors = []
        for stem in list_likely_names(recorded):
            form = self._plain(stem)
            if form != self._plain(recorded):
                tensors += [t for t in (self._written.get(form), self._nodes.get(form)) if t]
            tensors += [*self._modules.get(form, ()), *self._calls.get(form, ())]
        # A name can join the names of several nodes: it means the tensor of the last one.
        name = self._plain(recorded)
        lengths = sorted({len(n) for n in self._nodes}, reverse=True)
        ends = {0: ""}  # position -> the last node up to there
        for at in range(len(name)):
            for length in lengths if at in ends else ():
                part = name[at : at + length]
                if len(part) == length and part in self._nodes:
                    ends.setdefault(at + length, part)
        if last := ends.get(len(name)):
            tensors.append(self._nodes[last])
        return tuple(dict.fromkeys(tensors))


def find_fused_results(graph: Graph, tensor: str, tensors: Container[str]) -> Strings:
    """Find the tensors that a fused node of this name can hold: later results with one reader."""
    chain: list[str] = []
    name = tensor
    while len(chain) < MAX_FUSED and name not in graph.outputs:
        # `last` is the one node that reads the tensor, or the Mul of x · sigmoid(x).
        *inner, last = sorted(graph.readers.get(name, ()), key=graph.rank.__getitem__) or (-1,)
        between = list(flatten(graph.makes[i] for i in inner))
        leaves = any(n in graph.outputs or set(graph.readers.get(n, ())) != {last} for n in between)
        if last < 0 or len(inner) > 1 or leaves:
            break
        results = [n for n in graph.makes[last] if n in tensors]
        if len(results) != 1:
            break
        name = results[0]
        chain.append(name)
    return tuple(chain)


def find_dropped_input(graph: Graph, tensor: str) -> Strings:
    """Find what an activation reads that a tool may drop, as the rounding clips too."""
    if find_operator(graph, tensor) not in FOLDED or tensor in graph.outputs:
        return ()
    return tuple(n for n in graph.reads[graph.maker[tensor]][:1] if n in graph.maker)


def find_meant_tensor(graph: Graph, entry: DumpEntry, name: str) -> str:
    """Return the tensor that a name means: of a node, the output that the entry holds."""
    if entry.tensor and is_tensor(graph, name):
        return name
    i = graph.names.get(name)
    if i is None and name.startswith("#") and name[1:].isdigit():
        i = int(name[1:])
    number = entry.original_index if entry.originals else entry.index
    if i is None or not 0 <= number < len(graph.nodes[i].output):
        return name
    return str(graph.nodes[i].output[number])
