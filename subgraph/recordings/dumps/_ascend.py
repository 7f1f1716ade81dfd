"""Ascend's dump: the message DumpData, numbers of element types and formats, file names,
mapping.csv."""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import Any

from subgraph.recordings.files import Files

# OP_TYPE.OP_NAME.TASK[.STREAM].TIMESTAMP; newer names end with .TASK_TYPE.CONTEXT.THREAD.DEVICE
NAME = re.compile(
    r"(?P<op>[A-Za-z0-9_-]+)\.(?P<node>[A-Za-z0-9_-]+)\.(?P<task>\d+)(?:\.(?P<stream>\d+))?"
    r"\.(?P<time>\d{10,20})(?P<more>(?:\.\d+){0,4})"
)
MAPPING = "mapping.csv"

DTYPES = {
    0: "int8",
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    16: "complex64",
    17: "complex128",
    18: "int8",
    19: "int16",
    20: "int32",
    21: "uint8",
    22: "uint16",
    23: "int64",
    27: "bfloat16",
    34: "float8_e5m2",
    35: "float8_e4m3fn",
    36: "float8_e8m0fnu",
}
NUMBERS = {name: n for n, name in reversed(DTYPES.items()) if n}
OTHER = {
    13: "STRING",
    14: "DUAL_SUB_INT8",
    15: "DUAL_SUB_UINT8",
    24: "STRING_REF",
    25: "DUAL",
    29: "UINT1",
    32: "COMPLEX32",
    33: "HIFLOAT8",
    37: "FP6_E3M2",
    38: "FP6_E2M3",
    39: "FP4_E2M1",
    40: "FP4_E1M2",
}
FORMATS = dict(
    enumerate(
        (
            "NCHW",
            "NHWC",
            "ND",
            "NC1HWC0",
            "FRACTAL_Z",
            "NC1C0HWPAD",
            "NHWC1C0",
            "FSR_NCHW",
            "FRACTAL_DECONV",
            "C1HWNC0",
            "FRACTAL_DECONV_TRANSPOSE",
            "FRACTAL_DECONV_SP_STRIDE_TRANS",
            "NC1HWC0_C04",
            "FRACTAL_Z_C04",
            "CHWN",
            "FRACTAL_DECONV_SP_STRIDE8_TRANS",
            "HWCN",
            "NC1KHKWHWC0",
            "BN_WEIGHT",
            "FILTER_HWCK",
            "HASHTABLE_LOOKUP_LOOKUPS",
            "HASHTABLE_LOOKUP_KEYS",
            "HASHTABLE_LOOKUP_VALUE",
            "HASHTABLE_LOOKUP_OUTPUT",
            "HASHTABLE_LOOKUP_HITS",
            "C1HWNCoC0",
            "MD",
            "NDHWC",
            "FRACTAL_ZZ",
            "FRACTAL_NZ",
            "NCDHW",
            "DHWCN",
            "NDC1HWC0",
            "FRACTAL_Z_3D",
            "CN",
            "NC",
            "DHWNC",
            "FRACTAL_Z_3D_TRANSPOSE",
            "FRACTAL_ZN_LSTM",
            "FRACTAL_Z_G",
            "RESERVED",
            "ALL",
            "NULL",
            "ND_RNN_BIAS",
            "FRACTAL_ZN_RNN",
            "YUV",
            "YUV_A",
        )
    )
)

# DumpData of toolkit/dumpdata: message -> its fields as (name, number, type, repeated).
_SCHEMA: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Shape": (("dim", 1, "uint64", True),),
    "OriginalOp": (
        ("name", 1, "string", False),
        ("output_index", 2, "uint32", False),
        ("data_type", 3, "int32", False),
        ("format", 4, "int32", False),
    ),
    "OpOutput": (
        ("data_type", 1, "int32", False),
        ("format", 2, "int32", False),
        ("shape", 3, "Shape", False),
        ("original_op", 4, "OriginalOp", False),
        ("data", 5, "bytes", False),
        ("size", 6, "uint64", False),
        ("original_shape", 7, "Shape", False),
        ("sub_format", 8, "int32", False),
    ),
    "OpInput": (
        ("data_type", 1, "int32", False),
        ("format", 2, "int32", False),
        ("shape", 3, "Shape", False),
        ("data", 4, "bytes", False),
        ("size", 5, "uint64", False),
        ("original_shape", 6, "Shape", False),
        ("sub_format", 7, "int32", False),
    ),
    "Blob": (
        ("kind", 1, "int32", False),
        ("data", 2, "bytes", False),
        ("size", 3, "uint64", False),
    ),
    "DumpData": (
        ("version", 1, "string", False),
        ("dump_time", 2, "uint64", False),
        ("output", 3, "OpOutput", True),
        ("input", 4, "OpInput", True),
        ("buffer", 5, "Blob", True),
        ("op_name", 6, "string", False),
        ("space", 8, "Blob", True),
    ),
}


@cache
def message() -> Any:
    """The class of DumpData, built from the schema above."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="subcut/dumpdata.proto", package="subcut.dump", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _SCHEMA.items():
        message_type = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            field = message_type.field.add(name=field_name, number=number, label=label)
            if kind in _SCHEMA:
                field.type = kinds.TYPE_MESSAGE
                field.type_name = f".subcut.dump.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("subcut.dump.DumpData"))


def real_names(files: Files) -> dict[str, str]:
    """File -> the name that it would have, from mapping.csv, which lists the names that were too
    long (`hash,name`)."""
    names = {}
    for name in files.names:
        folder, slash, base = name.rpartition("/")
        if base != MAPPING:
            continue
        try:
            rows = list(csv.reader(files.text(name).splitlines()))
        except csv.Error:
            continue
        for row in rows:
            if len(row) == 2:
                names[f"{folder}{slash}{row[0].strip()}"] = row[1].strip()
    return names
