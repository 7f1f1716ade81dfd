"""The child's half of `onnx_process`: calls onnx's C++ functions on requests from standard input.

Runs as a file, `python -I -S onnx_child.py FOLDER`, with the folder of the package onnx, and a
limit of memory. It loads onnx's extension alone, which takes 25 ms; the package takes 400 ms. A
request is one line of JSON, followed by `bytes` of data; so is a reply. `call` is `infer`,
`convert`, `function`, `check` (a model) or `check_file`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

EXTENSION = "onnx.onnx_cpp2py_export"


def main() -> None:
    """Answer requests until standard input closes."""
    folder = Path(sys.argv[1])
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what onnx prints is not a reply
    for line in sys.stdin.buffer:
        request = json.loads(line)
        data = sys.stdin.buffer.read(request.pop("bytes"))
        try:
            error = ""
            data = _answer(folder, data, **request)
        except MemoryError:
            raise
        except Exception as e:  # noqa: BLE001
            error = str(e) if isinstance(e, RuntimeError) else f"{type(e).__name__}: {e}"
            data = b""
        replies.write(json.dumps({"error": error, "bytes": len(data)}).encode() + b"\n" + data)
        replies.flush()


def _answer(folder: Path, data: bytes, call: str, **options: Any) -> bytes:
    onnx = _import_extension(folder)
    if call == "infer":
        inferred: bytes = onnx.shape_inference.infer_shapes(data, **options)
        return inferred
    if call == "convert":
        converted: bytes = onnx.version_converter.convert_version(data, options["version"])
        return converted
    if call == "function":
        return _expand_function(onnx.defs, data, **options)
    if call == "check":
        onnx.checker.check_model(data, False, False, False)
    else:
        # As onnx.checker.check_model.
        onnx.checker.check_model_path(os.fsdecode(data), False, False, False)
    return b""


def _expand_function(
    defs: Any, data: bytes, op: str, domain: str, version: int, opset: int, sizes: list[int]
) -> bytes:
    """Return the body of a node's function; `data`: the node, then the types of its inputs, of
    `sizes` bytes each."""
    schema = defs.get_schema(op, version, domain)
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    node, *types = (data[end - size : end] for size, end in zip(sizes, ends, strict=True))
    dependent = bool(schema.has_context_dependent_function)
    if dependent:
        versions = schema.context_dependent_function_opset_versions
    else:
        versions = schema.function_opset_versions
    if not versions:
        raise ValueError(f"{op} has no function body")
    at = max((v for v in versions if v <= opset), default=min(versions))
    if dependent:
        body: bytes = schema.get_context_dependent_function_with_opset_version(at, node, types)
    else:
        body = schema.get_function_with_opset_version(at)
    return body


def _import_extension(folder: Path) -> Any:
    """Import onnx's extension without its package; with it, if it does not load alone."""
    if EXTENSION in sys.modules:
        return sys.modules[EXTENSION]
    names = (
        f"{EXTENSION.rpartition('.')[2]}{suffix}"
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
    )
    # Next to it is a folder of stubs.
    files = [folder / name for name in names if (folder / name).is_file()]
    spec = importlib.util.spec_from_file_location(EXTENSION, files[0]) if files else None
    if spec is None or spec.loader is None:
        sys.path.append(str(folder.parent))
        return importlib.import_module(EXTENSION)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[EXTENSION] = module
    return module


if __name__ == "__main__":
    main()
