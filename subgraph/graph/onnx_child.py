"""The child's half of `onnx_process`: calls onnx's C++ functions on requests from standard input.

Runs as a file, `python -I -S onnx_child.py FOLDER BYTES SECONDS`, with the folder of the package onnx and the limits of
memory and of processor time. It loads onnx's extension alone, which takes 25 ms; the package takes 400 ms. A request is
one line of JSON, with `bytes` of data behind it; so is a reply. `call` is `infer` or `check`.

The kernel ends the process at the limit of time, so that it cannot outlive a parent that was killed by much.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

EXTENSION = "onnx.onnx_cpp2py_export"


def main() -> None:
    """Answer requests until standard input closes."""
    folder = Path(sys.argv[1])
    _limit(int(sys.argv[2]), int(sys.argv[3]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and ends this process
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what onnx prints is no reply
    for line in sys.stdin.buffer:
        request = json.loads(line)
        data = sys.stdin.buffer.read(request.pop("bytes"))
        try:
            error, data = "", _answer(folder, data, **request)
        except MemoryError:
            raise
        except Exception as e:  # noqa: BLE001 - the parent tells
            error, data = f"{'' if isinstance(e, RuntimeError) else type(e).__name__ + ': '}{e}", b""
        replies.write(json.dumps({"error": error, "bytes": len(data)}).encode() + b"\n" + data)
        replies.flush()


def _limit(memory: int, seconds: int) -> None:
    import resource

    for kind, value in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _answer(folder: Path, data: bytes, call: str, **options: bool) -> bytes:
    if call == "infer":
        inferred: bytes = _extension(folder).shape_inference.infer_shapes(data, False, **options)
        return inferred
    sys.path.append(str(folder.parent))
    importlib.import_module("onnx.checker").check_model(os.fsdecode(data))
    return b""


def _extension(folder: Path) -> Any:
    """onnx's extension without its package; with it, where it does not load alone."""
    if EXTENSION in sys.modules:
        return sys.modules[EXTENSION]
    files = sorted(folder.glob("onnx_cpp2py_export*"))
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
