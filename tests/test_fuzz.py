"""Damaged files: truncated anywhere, with flipped bytes, pieces missing or twice. Each ends in a clear error, or is cut.

Never another exception, never a hang, never gigabytes. The damage is the same on every run; SUBCUT_SEED=7 does other.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import command
import onnx
import pytest

from fixtures import graphs, resnet50
from subgraph import graph, wire
from subgraph.cut import cut
from subgraph.errors import SubcutError

SEED = os.environ.get("SUBCUT_SEED", "0")
EACH = 250  # damaged copies of each model
SECONDS = 5  # for one small file
GROWTH = 200 << 20  # bytes of memory


@dataclass(frozen=True)
class Victim:
    """A model, and a cut of it that works."""

    build: Callable[[], onnx.ModelProto]
    start: str = "first"
    end: str = "last"


VICTIMS = {
    "resnet50": Victim(lambda: resnet50.build(width=8, size=64, classes=10), "pool1", "res2a_relu"),
    **{
        build.__name__: Victim(build)
        for build in (
            graphs.plain, graphs.if_in_if, graphs.loop_body, graphs.scan_body, graphs.nested_functions,
            graphs.function_with_body, graphs.sparse_inside, graphs.quantization_annotations, graphs.metadata,
            graphs.initializer_is_input_ir3, graphs.untyped_int64, graphs.sequence_in, graphs.optional_none,
            graphs.low_bit_fields, graphs.shape_chain, graphs.constants_across, graphs.random_inside,
        )
    },
}  # fmt: skip


def damaged(model: onnx.ModelProto, name: str, count: int) -> Iterator[bytes]:
    """Copies of a model, each hurt in one way; most of it where the structure is, not in the values of weights."""
    whole = model.SerializeToString()
    rng = random.Random(f"{SEED} {name}")
    places = structure(whole, model)
    for _ in range(count):
        data = bytearray(whole)
        at = rng.choice(places)
        size = rng.choice((1, 1, 2, 8, 64))
        way = rng.randrange(8)
        if way == 0:
            del data[at:]
        elif way == 1:
            del data[at : at + size]
        elif way == 2:
            data[at:at] = data[at : at + size]
        elif way == 3:
            data[at : at + size] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))]) * size
        else:
            for _ in range(rng.choice((1, 1, 1, 2, 5))):
                data[rng.choice(places) % len(data)] ^= 1 << rng.randrange(8)
        yield bytes(data)


def structure(whole: bytes, model: onnx.ModelProto) -> list[int]:
    """Places in a file that are not values of weights."""
    values: set[int] = set()
    for tensor in model.graph.initializer:
        begin = whole.find(tensor.raw_data) if len(tensor.raw_data) > 8 else -1
        values.update(range(begin, begin + len(tensor.raw_data)) if begin > 0 else ())
    return [at for at in range(len(whole)) if at not in values]


def attempt(path: Path, victim: Victim) -> str:
    """Read and cut; what is written can be read back. The kind of the error, or "" where it worked."""
    begin = time.process_time()
    try:
        cut(graph.load(path), victim.start, victim.end).save(path.with_name("cut.onnx"))
    except SubcutError as e:
        assert e.what, "an error says what"
        return type(e).__name__
    finally:
        assert time.process_time() - begin < SECONDS
    graph.load(path.with_name("cut.onnx"))
    return ""


@pytest.fixture
def bounded() -> Iterator[None]:
    """No test here makes this process grow."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("name", VICTIMS)
def test_a_damaged_model_is_refused_or_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, large: bool
) -> None:
    """As a small file, that is parsed, and as if it were large, with its weights left on disk."""
    if large:
        monkeypatch.setattr(wire, "WALK_ABOVE", 0)
        monkeypatch.setattr(wire, "HUSK_ABOVE", 64)
    victim = VICTIMS[name]
    path = tmp_path / "model.onnx"
    outcomes: dict[str, int] = {}
    for data in damaged(victim.build(), name, EACH):
        path.write_bytes(data)
        kind = attempt(path, victim)
        outcomes[kind] = outcomes.get(kind, 0) + 1
    assert outcomes["ModelError"] > EACH // 10 and outcomes[""] > EACH // 20, outcomes


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_model_that_ends_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """Every offset of a model with bodies and functions."""
    if large:
        monkeypatch.setattr(wire, "WALK_ABOVE", 0)
        monkeypatch.setattr(wire, "HUSK_ABOVE", 64)
    model = graphs.function_with_body()
    whole = model.SerializeToString()
    path = tmp_path / "model.onnx"
    graph_ends = whole.index(model.graph.SerializeToString()) + model.graph.ByteSize()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        kind = attempt(path, Victim(graphs.function_with_body))
        assert kind == "ModelError" or size >= graph_ends


@pytest.mark.usefixtures("bounded")
def test_external_data_that_ends_anywhere_or_is_pointed_to_wrongly(tmp_path: Path) -> None:
    path = graphs.data_with_offsets(tmp_path)
    data = next(p for p in tmp_path.iterdir() if p.suffix == ".data")
    whole = data.read_bytes()
    for size in range(0, len(whole), 5):
        data.write_bytes(whole[:size])
        assert attempt(path, Victim(graphs.plain)) == ("" if size >= 256 else "DataError")  # W1 comes first
    data.write_bytes(whole)
    kinds = set()
    for hurt in damaged(onnx.load(path, load_external_data=False), "external", 2 * EACH):
        path.write_bytes(hurt)
        kinds.add(attempt(path, Victim(graphs.plain)))
    assert {"", "ModelError", "DataError"} <= kinds


@pytest.mark.parametrize("size", [17 << 20])
def test_a_large_file_is_not_read_whole_to_find_out_that_it_is_damaged(tmp_path: Path, size: int) -> None:
    """Truly above 16 MiB: a hole in the file, so nothing of it is on the disk."""
    path = tmp_path / "model.onnx"
    for head in (
        b"\x08\x08",
        b"\x08\x08\x3a\xff\xff\xff\xff\x07",
        b"\x3a\x80\x80\x80\x08\x2a\x80\x80\x80\x08",
        b"PK\x03\x04",
    ):
        path.write_bytes(head)
        os.truncate(path, size)
        with pytest.raises(SubcutError):
            graph.load(path)


# ---------------------------------------------------------------------------------------------------- as a user meets it


LINES = (
    lambda v: ("--start", v.start, "--end", v.end),
    lambda v: ("--start", v.start, "--end", v.end, "--no-capture", "--check"),
    lambda v: ("dump", "--all"),
    lambda v: ("inspect",),
)  # fmt: skip
CODES = {0, 2, 3, 4, 5}
PATIENCE = 60  # seconds
MEMORY = 3 << 30  # bytes, of any process that took part


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet50", "loop_body", "shape_chain", "untyped_int64", "sequence_in", "low_bit_fields"]
)
def test_the_command_ends_in_a_clear_error_or_a_result(tmp_path: Path, name: str) -> None:
    victim = VICTIMS[name]
    path = tmp_path / "model.onnx"
    for k, data in enumerate(damaged(victim.build(), f"command {name}", 24)):
        path.write_bytes(data)
        line = LINES[k % len(LINES)](victim)
        code, said, memory = run(path, *line)
        assert code in CODES, (k, line, code, said)
        assert "Traceback" not in said and "itself failed" not in said, (k, line, said)
        assert memory < MEMORY, (k, line, memory, said)
        if code:
            assert said.startswith("error: ") or "warning: " in said or line[0] == "inspect", (k, line, said)


def run(path: Path, *line: str) -> tuple[int, str, int]:
    """Exit code, standard error and the largest process of one command line."""
    where = path.parent / "here"
    where.mkdir(exist_ok=True)
    words = [command.SUBCUT, line[0], path, *line[1:]] if not line[0].startswith("-") else [command.SUBCUT, path, *line]
    words += ["-o", "out", "--force"] if line[0] != "inspect" else []
    with (path.parent / "said").open("wb+") as said:
        process = subprocess.Popen(words, cwd=where, stdout=subprocess.DEVNULL, stderr=said, env=command.environment())
        begin = time.monotonic()
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - begin > PATIENCE:
                process.kill()
                pytest.fail(f"{line} hangs")
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace"), usage.ru_maxrss * 1024
