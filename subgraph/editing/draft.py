"""`Draft`: a copy of a model that edits change, and into which they insert parts of another model.

An inserted name that the draft already has gets a number. A weight that both models have, with the
same name and content, is stored once. Large weights stay on disk until the draft is saved, which
copies them from file to file. `convert_opset` returns a draft in another version of ONNX's own
operators.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from subgraph.errors import ModelError, UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load
from subgraph.graph.nested import (
    FunctionKey,
    assign,
    find_called,
    find_function_key,
    iter_attribute_tensors,
    iter_graphs,
    iter_model_nodes,
    iter_nodes,
    iter_read_names,
    iter_tensor_names,
    list_captured,
    list_functions,
    rename,
)
from subgraph.graph.onnx_process import convert_model
from subgraph.graph.opsets import (
    MIN_OPSET,
    canonicalize_domain,
    get_opset,
    list_changed,
    list_newest_opsets,
    read_imports,
)
from subgraph.iterables import flatten, index_by_name, invert
from subgraph.storage import dtypes, folders
from subgraph.system import quote
from subgraph.text import clean, count, find_free_name
from subgraph.types import StringMap

# The first version of the file format in which a weight need not be an input as well.
MIN_UNLISTED_WEIGHTS_VERSION = 4


class Draft:
    """A copy of a graph's model that edits change.

    Attributes:
        graph: The graph of the original model.
        model: The edited model, in which large weights are stubs.
        remarks: The facts about the edits that the user needs, a sentence each.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.model = _load_copy(graph)
        self.remarks: list[str] = []
        self._files = {t.name: graph.path for t in self.model.graph.initializer}
        self._called = _find_called(self.model)

    # ------------------------------------------------------------ removing

    def drop_nodes(self, indices: Collection[int], needed: Collection[str] = ()) -> None:
        """Remove nodes, the weights that no node reads then, and declarations of removed tensors.

        `needed`: weights that are kept in any case.
        """
        graph = self.model.graph
        gone = set(self.graph.iter_outputs(indices))
        touched = set(self.graph.iter_inputs(indices))
        assign(graph.node, [node for i, node in enumerate(graph.node) if i not in indices])
        read = {*iter_read_names(graph), *needed}
        annotations = [a for a in graph.quantization_annotation if a.tensor_name not in gone]
        for annotation in annotations:
            read |= {entry.value for entry in annotation.quant_parameter_tensor_names}
        unread = {t for t in touched if t not in read and self.graph.is_weight(t)}
        for part in (graph.initializer, graph.value_info):
            assign(part, [t for t in part if t.name not in unread | gone])
        sparse = [s for s in graph.sparse_initializer if s.values.name not in unread]
        assign(graph.sparse_initializer, sparse)
        assign(graph.input, [v for v in graph.input if v.name not in unread])
        kept_annotations = [a for a in annotations if a.tensor_name not in unread]
        assign(graph.quantization_annotation, kept_annotations)

    def drop_unread(self) -> None:
        """Remove the weights of the original model that nothing reads any more."""
        graph = self.model.graph
        gone = self.graph.weights.keys() - set(iter_read_names(graph))
        for part in (graph.initializer, graph.input, graph.value_info):
            assign(part, [value for value in part if value.name not in gone])

    def drop_unused_functions(self) -> None:
        """Remove the local functions that the original model calls and the draft does not call."""
        gone = self._called - _find_called(self.model)
        functions = [f for key, f in list_functions(self.model).items() if key not in gone]
        assign(self.model.functions, functions)

    # ------------------------------------------------------------ inserting

    def insert(self, other: Graph, connected: StringMap) -> dict[str, str]:
        """Append the nodes, weights and functions of another model.

        Its inputs and outputs are not declared.

        Args:
            other: The other model.
            connected: The tensor of this draft that replaces a tensor of the other model, by the
                name of the latter.

        Returns:
            The name in this draft of each tensor of the other model.

        Raises:
            ModelError: An operator has another meaning in this draft's opset, and cannot be
                converted.
        """
        theirs = _load_copy(other)
        ours = read_imports(self.model)
        for entry in list(theirs.opset_import):
            domain = canonicalize_domain(entry.domain)
            if domain not in ours:
                self.model.opset_import.add().CopyFrom(entry)
            elif changed := list_changed(theirs, domain, entry.version, ours[domain]):
                versions = (entry.version, ours[domain])
                theirs = self._convert(theirs, other, domain, versions, changed)
        model = self.model
        nodes = {node.name for node in iter_nodes(model.graph.node)}
        outer, inner = _list_names(model.graph)
        taken = outer | inner
        their_graph = theirs.graph
        their_outer, their_inner = _list_names(their_graph)
        local = their_inner - their_outer
        weights = index_by_name(model.graph.initializer)
        same = {
            t.name
            for t in their_graph.initializer
            if t.name in weights and self._is_equal(weights[t.name], t, other.path)
        }
        names = {}

        def tensor(name: str) -> str:
            if name not in names:
                kept = name in same or (name in local and name not in outer)
                free = name if kept else find_free_name(name, taken, "_")
                names[name] = connected.get(name) or free
                taken.add(names[name])
            return names[name]

        def node(name: str) -> str:
            free = find_free_name(name, nodes, "_")
            nodes.add(free)
            return free

        for name in connected:
            tensor(name)
        self._add_functions(theirs)
        rename(their_graph, tensor, node)
        graph = model.graph
        graph.node.extend(their_graph.node)
        added = [t for t in their_graph.initializer if t.name not in weights]
        graph.initializer.extend(added)
        self._files |= {t.name: other.path for t in added}
        graph.sparse_initializer.extend(their_graph.sparse_initializer)
        declared = {v.name for v in (*graph.value_info, *graph.input, *graph.output)}
        graph.value_info.extend(v for v in their_graph.value_info if v.name not in declared)
        annotated = {a.tensor_name for a in graph.quantization_annotation}
        graph.quantization_annotation.extend(
            a for a in their_graph.quantization_annotation if a.tensor_name not in annotated
        )
        model.ir_version = max(model.ir_version, theirs.ir_version)
        if model.ir_version < MIN_UNLISTED_WEIGHTS_VERSION:
            listed = {v.name for v in graph.input}
            graph.input.extend(
                v for v in their_graph.input if v.name in {t.name for t in added} - listed
            )
        return {name: tensor(name) for name in (*other.inputs, *other.maker, *other.weights)}

    def _is_equal(self, ours: Any, theirs: Any, path: Path) -> bool:
        """Return whether two weights are the same, byte for byte."""
        if (ours.data_type, list(ours.dims)) != (theirs.data_type, list(theirs.dims)):
            return False
        # These are strings, or of an element type newer than subcut.
        if not dtypes.count_number_bits(ours.data_type):
            return bool(ours == theirs)
        places = ((ours, self._files[ours.name]), (theirs, path))
        parts = (
            protobuf.iter_pieces(tensor, file, protobuf.CHUNK_BYTES) for tensor, file in places
        )
        return all(a.tobytes() == b.tobytes() for a, b in zip(*parts, strict=True))

    def _add_functions(self, theirs: Any) -> None:
        """Take local functions over; a different one with a name of this model gets a new name."""
        ours = {key: f.SerializeToString() for key, f in list_functions(self.model).items()}
        added = {
            key: f
            for key, f in list_functions(theirs).items()
            if ours.get(key) != f.SerializeToString()
        }
        names = {name for _, name, _ in ours} | {f.name for f in theirs.functions}
        other_names = {}
        for key in (key for key in added if key in ours):
            other_names[key] = find_free_name(added[key].name, names, "_")
            names.add(other_names[key])
        for node in iter_model_nodes(theirs):
            node.op_type = other_names.get(find_function_key(node), node.op_type)
        for key, f in added.items():
            f.name = other_names.get(key, f.name)
            self.model.functions.append(f)

    def _convert(
        self,
        theirs: Any,
        other: Graph,
        domain: str,
        versions: tuple[int, int],
        changed: Sequence[str],
    ) -> Any:
        of_domain = f" of {domain}" if domain else ""
        fact = f"{other.path.name} has opset {versions[0]}{of_domain}, "
        fact += f"{self.graph.path.name} {versions[1]}; {', '.join(changed)} changed between them"
        hint = f"export both with opset {max(versions)}"
        if versions[0] > versions[1] and not domain:
            name = quote(self.graph.path.name)
            hint += f"; or raise the other: subcut convert {name} --opset {versions[0]}"
        if domain:
            raise ModelError(fact, hint, code="edit.opsets-differ")
        try:
            converted, _ = convert_model(theirs, other.path, versions[1])
        except ModelError as e:
            raise ModelError(
                f"{fact}, and it cannot be converted: {e.what}", hint, code="opset.not-convertible"
            ) from e
        self.remarks.append(
            f"{other.path.name} was converted from opset {versions[0]} to {versions[1]}"
        )
        return converted

    # ------------------------------------------------------------ order

    def sort(self) -> None:
        """Sort the nodes topologically; of several nodes that may come next, take the first.

        Raises:
            ModelError: The graph has a cycle.
        """
        nodes = list(self.model.graph.node)
        maker = invert((i, filter(None, node.output)) for i, node in enumerate(nodes))
        sorter = TopologicalSorter[int]()
        for i, node in enumerate(nodes):
            read = (*node.input, *list_captured(node))
            sorter.add(i, *(maker[name] for name in read if maker.get(name, i) != i))
        try:
            sorter.prepare()
        except CycleError as e:
            node = nodes[min(e.args[1])]
            raise ModelError(
                f"'{node.name or node.output[0]}' would depend on itself",
                "check --map",
                code="edit.cycle",
            ) from e
        ready: list[int] = []
        order = []
        while sorter.is_active():
            for i in sorter.get_ready():
                heapq.heappush(ready, i)
            first = heapq.heappop(ready)
            order.append(nodes[first])
            sorter.done(first)
        assign(self.model.graph.node, order)

    # ------------------------------------------------------------ writing

    @contextmanager
    def write(self, path: Path) -> Iterator[Path]:
        """Write the model aside; move it to its place if the block ends without an error.

        A `.data` file next to it has the weights that were external.

        Args:
            path: The place of the model.

        Yields:
            The file, until it is moved.

        Raises:
            DataError: The bytes of a weight cannot be read.
            OutputError: The disk is full or not writable.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with folders.make_scratch(path.parent) as work:
            written = protobuf.write(self.model, self._files, work / path.name)
            yield work / path.name
            *data, model = sorted(written)[::-1]
            for file in (*data, model):
                file.replace(path.with_name(file.name))

    def save(self, path: Path) -> None:
        """Write the model; as `write`."""
        with self.write(path):
            pass


def _load_copy(graph: Graph) -> Any:
    """Return a copy of a model in onnx's own class.

    Tensors in attributes of nodes have their data; other large weights are stubs.
    """
    model = protobuf.to_onnx(graph.model, graph.path)
    for holder in (model.graph, *model.functions):
        protobuf.load_all(iter_attribute_tensors(holder.node), graph.path)
    return model


def _list_names(graph: Any) -> tuple[set[str], set[str]]:
    """Return the names of a graph's tensors, and of those in bodies, with the ones they capture."""
    own, *inner = iter_graphs(graph)
    return set(iter_tensor_names(own)), set(flatten(map(iter_tensor_names, inner)))


def _find_called(model: Any) -> set[FunctionKey]:
    return find_called(model.graph.node, list_functions(model))


def describe(names: Sequence[str], noun: str) -> str:
    """Return `2 inputs: a, b`."""
    return f"{count(names, noun)}: {', '.join(map(clean, names))}"


def convert_opset(graph: Graph, version: int) -> Draft:
    """Convert a model to another version of ONNX's own operators.

    Args:
        graph: The model.
        version: The opset, older or newer than the model's.

    Returns:
        The converted model, which is not written; its remarks name the unchanged operators.

    Raises:
        UsageError: onnx does not support the version, or cannot convert to a version that old.
        ModelError: onnx cannot convert a node that another version needs.
    """
    own = get_opset(graph.model)
    newest = list_newest_opsets()[""]
    if not MIN_OPSET <= version <= newest:
        raise UsageError(
            f"--opset {version}: onnx converts to opsets from {MIN_OPSET} to {newest}",
            f"{graph.path.name} has opset {own}",
            code="opset.out-of-range",
        )
    draft = Draft(graph)
    draft.model, unchanged = convert_model(draft.model, graph.path, version)
    draft.remarks.append(f"converted from opset {own} to {version}")
    if unchanged:
        names = ", ".join(map(clean, sorted(unchanged)))
        draft.remarks.append(f"unchanged, because they fit opset {version}: {names}")
    return draft


def load_at_opset(graph: Graph, version: int, folder: Path) -> Graph:
    """Convert a model and load it from a file in a folder. Raises: as `convert_opset`."""
    path = folder / graph.path.name
    convert_opset(graph, version).save(path)
    return load(path)
