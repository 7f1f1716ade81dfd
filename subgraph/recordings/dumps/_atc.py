"""The JSON that `atc --mode=1` makes of an .om -> which tensor of the model each output on the NPU
is, after fusion."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.files import Files
from subgraph.storage import layouts

_START = re.compile(rb'\{\s*"(attr|graph|name|custom_version|version)"')
CONSTANT = ("Const", "Constant")  # may carry the name of the node that reads them


@dataclass(frozen=True)
class Origin:
    """The tensor of the model that an output on the NPU is.

    Attributes:
        name, index: node of the model and which of its outputs; "" for a tensor inside an op that
            is several nodes.
        fused: all nodes of the model that the op is; none if the compiler inserted it.
        shape, layout: of the tensor in the model; None and "" if the JSON does not say them.
    """

    name: str
    index: int
    fused: tuple[str, ...]
    shape: tuple[int, ...] | None
    layout: str

    def of(self, entry: DumpEntry) -> DumpEntry:
        """The entry with the nodes of the model that it is."""
        originals = (self.name,) if self.name else ()
        return replace(entry, originals=originals, original_index=self.index, fused=self.fused)


def plain(name: str) -> str:
    """`/`, `.`, `\\`, `:` and blanks become `_`."""
    return re.sub(r"[/.\\: ]", "_", name)


def origins(files: Files) -> dict[tuple[str, int], Origin]:
    """(op as file names have it, output) -> origin, from all such JSONs among the files; damaged
    ones are ignored."""
    out: dict[tuple[str, int], Origin] = {}
    for file in files.ending(".json"):
        if not _START.match(files.head(file).lstrip()):
            continue
        for op in _ops(files.maybe_json(file)):
            attributes = _attributes(op)
            for k, output in enumerate(_dicts(op.get("output_desc"))):
                out[plain(str(op.get("name", ""))), k] = _origin(
                    op, attributes, k, _attributes(output)
                )
    return out


def _ops(data: Any) -> Iterator[dict[str, Any]]:
    for graph in _dicts(data.get("graph") if isinstance(data, dict) else None):
        yield from _dicts(graph.get("op"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _attributes(item: Mapping[str, Any]) -> dict[str, Any]:
    """[{key, value: {s|i|b|list}}] as a plain mapping."""
    attributes = {}
    for pair in _dicts(item.get("attr")):
        value = pair.get("value")
        if isinstance(value, dict):
            attributes[str(pair.get("key"))] = (
                value["list"] if "list" in value else next(iter(value.values()), None)
            )
    return attributes


def _origin(
    op: Mapping[str, Any], of_op: Mapping[str, Any], k: int, of_output: Mapping[str, Any]
) -> Origin:
    """`of_op`, `of_output`: the attributes of an op and of its output `k`."""
    listed = of_op.get("_datadump_original_op_names")
    # Absent: the op is a node of the model by the same name. There, but empty: inserted by the
    # compiler.
    fused = (str(op.get("name", "")),) if listed is None else tuple(map(str, _list(listed, "s")))
    name = of_output.get("_datadump_origin_name")
    if name is None:
        name = fused[0] if len(fused) == 1 and op.get("type") not in CONSTANT else ""
    index = of_output.get("_datadump_origin_output_index")
    layout = of_output.get("_datadump_origin_format") or of_output.get("origin_format") or ""
    shape = of_output.get("origin_shape")
    dims = _list(shape, "i")
    sizes = tuple(d for d in dims if isinstance(d, int) and d >= 0)
    known = (
        bool(shape)
        and len(sizes) == len(dims)
        and of_output.get("origin_shape_initialized") is True
    )
    return Origin(
        str(name),
        index if isinstance(index, int) else k,
        fused,
        sizes if known else None,
        layouts.named(str(layout)),
    )


def _list(value: Any, key: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    return items if isinstance(items, list) else []
