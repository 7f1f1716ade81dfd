"""onnx's C++ functions on a foreign model, in a child process with limits of time and memory.

In this process they could not be interrupted: Python handles Ctrl-C and SIGTERM only between its own instructions. And
a model of a few kilobytes may keep them busy for ever, take all memory, or crash them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from subgraph.errors import ModelError
from subgraph.graph import protobuf

SECONDS = 60  # of processor time, and
BYTES_PER_SECOND = 50_000  # of the model, for each second more; measured: 80,000 nodes, 9 MB, take 3 s
MEMORY_SHARE = 0.5  # of the machine's memory
CHILD = Path(__file__).with_name("onnx_child.py")


class OnnxError(Exception):
    """An error that onnx itself reports."""


class OnnxProcess:
    """A process that calls onnx. Use it as a context manager; the process starts with the first call.

    Attributes:
        path: of the model, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def infer_shapes(
        self, model: protobuf.ModelProto, *, strict: bool = False, track: bool = False
    ) -> protobuf.ModelProto:
        """The model with inferred types; `track`: values of 1-D tensors as well, which onnx calls data propagation.

        Raises:
            OnnxError: onnx reports an error. ModelError: the process exceeded a limit, or crashed.
        """
        data = self._ask("infer", model.SerializeToString(), strict_mode=strict, data_prop=track)
        return type(model).FromString(data)

    def check(self, file: Path) -> None:
        """Run onnx.checker on a file.

        Raises:
            OnnxError: it refuses the model. ModelError: the process exceeded a limit, or crashed.
        """
        self._ask("check", os.fsencode(file))

    def _ask(self, call: str, data: bytes, **options: bool) -> bytes:
        process = self._process = self._process or self._start(len(data))
        assert process.stdin and process.stdout
        head = json.dumps({"call": call, "bytes": len(data), **options}).encode() + b"\n"
        try:
            process.stdin.write(head + data)
            process.stdin.flush()
            reply = json.loads(process.stdout.readline())
            data = process.stdout.read(reply["bytes"])
        except (OSError, ValueError) as e:  # it ended
            raise self._ended(call) from e
        if reply["error"]:
            raise OnnxError(reply["error"])
        return data

    def _start(self, size: int) -> subprocess.Popen[bytes]:
        spec = importlib.util.find_spec("onnx")
        folder = Path(spec.origin).parent if spec and spec.origin else Path()
        memory = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE)
        limits = str(memory), str(SECONDS + size // BYTES_PER_SECOND)
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", CHILD, folder, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as e:
            raise ModelError(f"cannot start a process to check {self.path.name}: {e.strerror or e}") from e

    def _ended(self, call: str) -> ModelError:
        assert self._process
        code = self._process.wait()
        how = f"it ended with signal {-code}" if code < 0 else f"it ended with code {code}"
        task = "shape inference" if call == "infer" else "checker"
        what = (
            f"onnx's {task} does not cope with {self.path.name}: {how}, at its limit of time or memory, or by a crash"
        )
        return ModelError(what, "is the model damaged, or made to do harm?")

    def __enter__(self) -> OnnxProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes the pipes, and waits
                pass
