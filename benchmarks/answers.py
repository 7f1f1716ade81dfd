"""What a command line answers -> the same without what differs from run to run: for
`benchmarks.same_answers`.

Texts have times, memory, paths and versions masked by `MASKS`; JSON is parsed, and values under the
keys of `VARYING` are masked as well. Of a file the digest is kept, of a text file also its masked
content; a zip is its members.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

MASKS = (  # pattern -> what takes its place; in this order
    (r"(?m)^still working.*\n", ""),  # lines that come with time: in ten seconds of silence,
    (r"(?m)^ *about [\d,]+( to [\d,]+)? more runs.*\n", ""),  # and where an estimate has changed
    (r"\d{4}[-_]\d\d[-_]\d\d[T _]\d\d[:_]\d\d[:_]\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "<date>"),
    (r" *\b\d+(\.\d+)?(e-?\d+)? (ms|µs|us|s|min|h)\b", " <time>"),
    (r" *\b\d+:\d\d(:\d\d)? (h|min)\b", " <time>"),
    (r'data-value="[\d.e-]+">(?= <time>)', 'data-value="<time>">'),  # of the HTML tables
    (r"\b\d+(\.\d+)? × the time", "<factor> × the time"),
    (r"\b\d+(\.\d+)? [kKMG]i?B\b", "<size>"),
    (r"\.subcut\.\w+\.subcut-new", ".subcut.<temporary>"),
    (r"(/private)?/tmp/[\w.-]+", "<temporary>"),
    (r"\b\d+\.\d+\.\d+(\.\d+)?\b", "<version>"),
    (
        (
            r"\b(subcut|onnx|onnxruntime|numpy|[Pp]ython|ort|openvino|opencv|mnn|tract|litert)("
            r" |==|  +)\d+\.\d+\b"
        ),
        r"\1 <version>",
    ),
    (r"\b(pid|process) \d+\b", r"\1 <number>"),
    (r"\bbundle \([0-9a-f]{12}\)", "bundle (<digest>)"),
    (r"0x[0-9a-f]{6,}", "<address>"),
)
CURES = re.compile(
    r"(?m)(^.*Cure, proven.*(\n|\Z)){2,}"
)  # they come in the order of their measured times
VARYING = {  # keys of JSON whose values differ from run to run, or from machine to machine
    "seconds",
    "build_seconds",
    "run_seconds",
    "wall_seconds",
    "time",
    "times",
    "created",
    "date",
    "started",
    "ended",
    "peak_memory",
    "memory",
    "rss",
    "pid",
    "host",
    "platform",
    "python",
    "version",
    "versions",
    "slowdown",
}
OF_FILES = {
    "bytes",
    "sha256",
}  # keys of bundle.json: of the files in the bundle, which have times in them
IGNORED = ("*/.store/*", "*__pycache__*", "*/.gitignore")  # files: stored answers, bytecode
UNSTABLE = {  # files whose content differs from run to run -> why; only their names are compared
    "[0-9]*_random*/*puts/*": "what the model's random nodes draw",
}
TEXT_ENDINGS = {
    ".csv",
    ".html",
    ".json",
    ".md",
    ".prototxt",
    ".py",
    ".svg",
    ".toml",
    ".txt",
    ".xml",
    ".line",
    ".tsv",
}
LONGEST = 400_000  # characters of a text whose content is kept


def masked(text: str, places: Mapping[str, str]) -> str:
    """A text without what varies; `places`: absolute path -> the word that stands for it, the
    longest first."""
    for path, word in places.items():
        text = text.replace(path, word)
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return CURES.sub(_in_order, text)


def _in_order(lines: re.Match[str]) -> str:
    end = "\n" if lines[0].endswith("\n") else ""
    return "\n".join(sorted(lines[0].splitlines())) + end


def masked_json(value: Any, places: Mapping[str, str], varying: Collection[str] = VARYING) -> Any:
    """A parsed document without what varies."""
    if isinstance(value, dict):
        return {
            masked(k, places): "<varies>" if k in varying and v else masked_json(v, places, varying)
            for k, v in value.items()
        }
    if isinstance(value, list):
        found = [masked_json(v, places, varying) for v in value]
        cures = iter(sorted((v for v in found if _is_cure(v)), key=json.dumps))
        return [next(cures) if _is_cure(v) else v for v in found]
    return masked(value, places) if isinstance(value, str) else value


def _is_cure(value: Any) -> bool:
    return (
        "heals" in value
        if isinstance(value, dict)
        else isinstance(value, str) and "Cure, proven" in value
    )


def masked_table(text: str, places: Mapping[str, str]) -> str:
    """A CSV table without what varies: the columns of `VARYING`, and what varies in any text."""
    rows = list(csv.reader(io.StringIO(text)))
    varying = {k for k, name in enumerate(rows[0]) if name in VARYING}
    for row in rows[1:]:
        row[:] = [
            "<varies>" if k in varying and cell else masked(cell, places)
            for k, cell in enumerate(row)
        ]
    return "\n".join(",".join(row) for row in rows)


def answer_text(text: str, places: Mapping[str, str], name: str = "") -> str:
    """What a stream or a text file of this name holds, masked; JSON in one layout, its keys in
    order."""
    if text.startswith(("{", "[")):
        varying = VARYING | (OF_FILES if name.endswith("bundle.json") else set())
        with suppress(ValueError):
            document = masked_json(json.loads(text), places, varying)
            return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    if VARYING & set(text.partition("\n")[0].split(",")):
        return masked_table(text, places)
    return masked(text, places)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Path below the folder -> size and time of change, of all files that count."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not any(fnmatch(f"/{name}", pattern) for pattern in IGNORED):
            stat = path.stat()
            found[name] = (stat.st_size, stat.st_mtime_ns)
    return found


def content(name: str, data: bytes, places: Mapping[str, str]) -> tuple[str, str | None]:
    """The digest of a file's masked content, and that content if it is a text of moderate
    length."""
    if any(fnmatch(name, pattern) for pattern in UNSTABLE):
        return "unstable", None
    if name.endswith(".zip") and zipfile.is_zipfile(io.BytesIO(data)):
        text = _zip_text(data, places)
    elif Path(name).suffix in TEXT_ENDINGS:
        text = answer_text(data.decode("utf-8", "replace"), places, name)
    else:
        return (
            digest(_without_paths(_ordered(data) if name.endswith(".onnx") else data, places)),
            None,
        )
    return digest(text.encode()), text if len(text) <= LONGEST else None


def _ordered(data: bytes) -> bytes:
    """A model whose value_info is in the order of names: `subcut manual` writes it in the order of
    a set."""
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        return data
    infos = sorted(model.graph.value_info, key=lambda info: info.name)
    del model.graph.value_info[:]
    model.graph.value_info.extend(infos)
    return bytes(model.SerializeToString(deterministic=True))


def _without_paths(data: bytes, places: Mapping[str, str]) -> bytes:
    """A binary file without absolute paths, which metadata of models may hold."""
    for path, word in places.items():
        data = data.replace(path.encode(), word.encode())
    return re.sub(rb"/tmp/[\w.-]+", b"<temporary>", data)


def _zip_text(data: bytes, places: Mapping[str, str]) -> str:
    """A line per member of a zip, in order: digest and name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        lines = [
            f"{content(name, archive.read(name), places)[0]}  {name}" for name in archive.namelist()
        ]
    return "\n".join(lines)


def digest(data: bytes) -> str:
    """The first 16 digits of the SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
