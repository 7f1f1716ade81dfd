"""Ascend's dump: the message DumpData, numbers of types and formats, names, and the JSON of `atc`.

`atc --mode=1` writes a JSON of an .om: which tensor of the model each output on the NPU is, after
fusion.
"""

from __future__ import annotations

import csv
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from subgraph.iterables import flatten
from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import DumpEntry, replace_characters
from subgraph.storage import dtypes, layouts
from subgraph.types import Fields, JsonObject, Shape, Strings, frozen

# OP_TYPE.OP_NAME.TASK[.STREAM].TIMESTAMP; newer names end with .TASK_TYPE.CONTEXT.THREAD.DEVICE
NAME = re.compile(
    r"(?P<op>[A-Za-z0-9_-]+)\.(?P<node>[A-Za-z0-9_-]+)\.(?P<task>\d+)(?:\.(?P<stream>\d+))?"
    r"\.(?P<time>\d{10,20})(?P<more>(?:\.\d+){0,4})"
)
MAPPING = "mapping.csv"

# Of the numbers of element types: names that ONNX has, names that it has not, and the number itself
# if there is no name.
TYPE_NAMES = (
    "int8 float32 float16 int8 uint8 int16 uint16 int32 int64 uint32 uint64 bool float64 STRING"
    " DUAL_SUB_INT8 DUAL_SUB_UINT8 complex64 complex128 int8 int16 int32 uint8 uint16 int64"
    " STRING_REF DUAL 26 bfloat16 28 UINT1 30 31 COMPLEX32 HIFLOAT8 float8_e5m2 float8_e4m3fn"
    " float8_e8m0fnu FP6_E3M2 FP6_E2M3 FP4_E2M1 FP4_E1M2"
).split()
DTYPES = {n: name for n, name in enumerate(TYPE_NAMES) if name in dtypes.TYPE_NUMBERS}
NUMBERS = {name: n for n, name in reversed(DTYPES.items()) if n}
FORMAT_NAMES = (
    "NCHW NHWC ND NC1HWC0 FRACTAL_Z NC1C0HWPAD NHWC1C0 FSR_NCHW FRACTAL_DECONV C1HWNC0"
    " FRACTAL_DECONV_TRANSPOSE FRACTAL_DECONV_SP_STRIDE_TRANS NC1HWC0_C04 FRACTAL_Z_C04 CHWN"
    " FRACTAL_DECONV_SP_STRIDE8_TRANS HWCN NC1KHKWHWC0 BN_WEIGHT FILTER_HWCK"
    " HASHTABLE_LOOKUP_LOOKUPS HASHTABLE_LOOKUP_KEYS HASHTABLE_LOOKUP_VALUE"
    " HASHTABLE_LOOKUP_OUTPUT HASHTABLE_LOOKUP_HITS C1HWNCoC0 MD NDHWC FRACTAL_ZZ FRACTAL_NZ NCDHW"
    " DHWCN NDC1HWC0 FRACTAL_Z_3D CN NC DHWNC FRACTAL_Z_3D_TRANSPOSE FRACTAL_ZN_LSTM FRACTAL_Z_G"
    " RESERVED ALL NULL ND_RNN_BIAS FRACTAL_ZN_RNN YUV YUV_A"
)
FORMATS = dict(enumerate(FORMAT_NAMES.split()))
# DumpData of toolkit/dumpdata: message -> its fields, `name=number:type`; `*`: repeated.
_SCHEMA = {
    "Shape": "dim=1:uint64*",
    "OriginalOp": "name=1:string output_index=2:uint32 data_type=3:int32 format=4:int32",
    "OpOutput": (
        "data_type=1:int32 format=2:int32 shape=3:Shape original_op=4:OriginalOp data=5:bytes"
        " size=6:uint64 original_shape=7:Shape sub_format=8:int32"
    ),
    "OpInput": (
        "data_type=1:int32 format=2:int32 shape=3:Shape data=4:bytes size=5:uint64"
        " original_shape=6:Shape sub_format=7:int32"
    ),
    "Blob": "kind=1:int32 data=2:bytes size=3:uint64",
    "DumpData": (
        "version=1:string dump_time=2:uint64 output=3:OpOutput* input=4:OpInput* buffer=5:Blob*"
        " op_name=6:string space=8:Blob*"
    ),
}
_FIELD = re.compile(r"(?P<name>\w+)=(?P<number>\d+):(?P<kind>\w+)(?P<repeated>\*?)")


@cache
def make_message_class() -> Any:
    """Return the class of DumpData, built from the schema above."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="subcut/dumpdata.proto", package="subcut.dump", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _SCHEMA.items():
        message_type = file.message_type.add(name=name)
        for entry in _FIELD.finditer(fields):
            kind = entry["kind"]
            label = kinds.LABEL_REPEATED if entry["repeated"] else kinds.LABEL_OPTIONAL
            number = int(entry["number"])
            field = message_type.field.add(name=entry["name"], number=number, label=label)
            if kind in _SCHEMA:
                field.type = kinds.TYPE_MESSAGE
                field.type_name = f".subcut.dump.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("subcut.dump.DumpData"))


def read_real_names(files: Files) -> dict[str, str]:
    """Read the names that were too long, by file, from mapping.csv (`hash,name`)."""
    names: dict[str, str] = {}
    for name in files.names:
        folder, slash, base = name.rpartition("/")
        if base != MAPPING:
            continue
        with suppress(csv.Error):
            rows = (row for row in csv.reader(files.text(name).splitlines()) if len(row) == 2)
            names |= {f"{folder}{slash}{short.strip()}": real.strip() for short, real in rows}
    return names


_START = re.compile(rb'\{\s*"(attr|graph|name|custom_version|version)"')
CONSTANT = ("Const", "Constant")  # may carry the name of the node that reads them


@frozen
class Origin:
    """The tensor of the model that an output on the NPU is.

    Attributes:
        name: the node of the model; "" for a tensor inside an op that is several nodes.
        index: the output of that node.
        fused: all nodes of the model that the op is; empty if the compiler inserted it.
        shape: the tensor's shape in the model; None if the JSON does not have it.
        layout: the tensor's layout in the model; "" if the JSON does not have it.
    """

    name: str
    index: int
    fused: Strings
    shape: Shape | None
    layout: str

    def apply_to(self, entry: DumpEntry) -> DumpEntry:
        """Return the entry with the nodes of the model that it is."""
        originals = (self.name,) if self.name else ()
        return replace(entry, originals=originals, original_index=self.index, fused=self.fused)


plain = replace_characters(r"[/.\\: ]")


def read_origins(files: Files) -> dict[tuple[str, int], Origin]:
    """Read the origin of each output of an op from the JSONs of `atc`; ignore damaged ones."""
    origins = {}
    for file in files.ending(".json"):
        if not _START.match(files.head(file).lstrip()):
            continue
        data = files.read_json_if_there(file)
        graphs = _filter_dicts(data.get("graph")) if isinstance(data, dict) else []
        for op in flatten(_filter_dicts(graph.get("op")) for graph in graphs):
            attributes = _parse_attributes(op)
            node = plain(str(op.get("name", "")))
            for k, output in enumerate(_filter_dicts(op.get("output_desc"))):
                origins[node, k] = _parse_origin(op, attributes, k, _parse_attributes(output))
    return origins


def _filter_dicts(value: Any) -> list[JsonObject]:
    if isinstance(value, list):
        return [v for v in value if isinstance(v, dict)]
    return []


def _parse_attributes(item: Fields) -> JsonObject:
    """Parse [{key, value: {s|i|b|list}}] into a plain mapping."""
    attributes = {}
    for pair in _filter_dicts(item.get("attr")):
        value = pair.get("value")
        if isinstance(value, dict):
            first = next(iter(value.values()), None)
            attributes[str(pair.get("key"))] = value.get("list", first)
    return attributes


def _parse_origin(op: Fields, op_attributes: Fields, k: int, output_attributes: Fields) -> Origin:
    """Parse the origin of output `k` from the attributes of its op and of the output."""
    listed = op_attributes.get("_datadump_original_op_names")
    # Absent: the op is a node of the model by the same name. There, but empty: inserted by the
    # compiler.
    fused = tuple(map(str, _get_list(listed, "s")))
    if listed is None:
        fused = (str(op.get("name", "")),)
    name = output_attributes.get("_datadump_origin_name")
    if name is None:
        name = fused[0] if len(fused) == 1 and op.get("type") not in CONSTANT else ""
    index = output_attributes.get("_datadump_origin_output_index")
    layout = (
        output_attributes.get("_datadump_origin_format")
        or output_attributes.get("origin_format")
        or ""
    )
    shape = output_attributes.get("origin_shape")
    dims = _get_list(shape, "i")
    sizes = tuple(d for d in dims if isinstance(d, int) and d >= 0)
    is_set = output_attributes.get("origin_shape_initialized") is True
    known = sizes if shape and len(sizes) == len(dims) and is_set else None
    index = index if isinstance(index, int) else k
    return Origin(str(name), index, fused, known, layouts.normalize_name(str(layout)))


def _get_list(value: Any, key: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    return items if isinstance(items, list) else []
