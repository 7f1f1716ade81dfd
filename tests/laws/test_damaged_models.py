"""Damaged files: truncated, with flipped bytes, with pieces missing or repeated. Each is cut, or
clearly refused.

No other exception, no hang, no gigabytes of memory. The damage is the same in every run;
SUBCUT_SEED=7 gives another.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer

from fixtures import graphs, resnet50
from subgraph.errors import SubcutError
from subgraph.graph import graph, protobuf
from subgraph.graph.cut import cut
from tests.helpers import run_command
from tests.helpers.budget import within
from tests.helpers.walked_files import walk_files

SEED = os.environ.get("SUBCUT_SEED", "0")
EACH = 120  # damaged copies of each model
SECONDS = 5  # for one small file
GROWTH = 200 << 20  # bytes of memory


@dataclass(frozen=True)
class Victim:
    """A model, and a cut of it that works."""

    build: Callable[[], onnx.ModelProto]
    start: str = "first"
    end: str = "last"


GRAPHS = (
    "plain if_in_if loop_body scan_body nested_functions function_with_body sparse_inside"
    " quantization_annotations metadata initializer_is_input_ir3 untyped_int64 sequence_in"
    " optional_none low_bit_fields shape_chain constants_across random_inside"
).split()
VICTIMS = {
    "resnet50": Victim(lambda: resnet50.build(width=8, size=64, classes=10), "pool1", "res2a_relu"),
    **{name: Victim(getattr(graphs, name)) for name in GRAPHS},
}


def damaged(model: onnx.ModelProto, name: str, count: int) -> Iterator[bytes]:
    """Copies of a model with one damage each, most of them in the structure rather than in values
    of weights."""
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


NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63))
OPS = (
    "Relu",
    "Concat",
    "Reshape",
    "Gather",
    "If",
    "Loop",
    "Split",
    "Shape",
    "Cast",
    "Expand",
    "Foo",
    "",
)


def bent(model: onnx.ModelProto, name: str, count: int) -> Iterator[bytes]:
    """Copies that can be parsed but are invalid: absurd numbers, names, operators and
    connections."""
    rng = random.Random(f"{SEED} bent {name}")
    for _ in range(count):
        made = onnx.ModelProto()
        made.CopyFrom(model)
        for _ in range(rng.choice((1, 1, 2, 4))):
            rng.choice(
                (_bend_node, _bend_node, _bend_attribute, _bend_weight, _bend_type, _bend_list)
            )(made, rng)
        yield made.SerializeToString()


def _names(model: onnx.ModelProto) -> list[str]:
    made = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return [*made, *(t.name for t in model.graph.initializer), "", "nobody", "x" * 5000]


def _bend_node(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    way = rng.randrange(4)
    if way == 0:
        node.op_type = rng.choice(OPS)
    elif way == 1:
        node.domain = rng.choice(("", "fx", "acme", "com.microsoft"))
    else:
        names = node.input if way == 2 and node.input else node.output
        if names:
            names[rng.randrange(len(names))] = rng.choice(_names(model))


def _bend_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    found = [a for node in model.graph.node for a in node.attribute]
    if not found:
        return
    attribute = rng.choice(found)
    way = rng.randrange(4)
    if way == 0:
        attribute.i = rng.choice(NUMBERS)
    elif way == 1:
        attribute.ints.append(rng.choice(NUMBERS))
    elif way == 2:
        attribute.type = rng.randrange(15)
    else:
        attribute.name = rng.choice(("axis", "value", "body", ""))


def _bend_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    way = rng.randrange(4)
    if way == 0:
        tensor.dims.append(rng.choice(NUMBERS))
    elif way == 1:
        tensor.data_type = rng.randrange(30)
    elif way == 2:
        tensor.raw_data = tensor.raw_data[: rng.randrange(64)]
    else:
        protobuf.point_to(
            tensor,
            rng.choice(("", "model.onnx", "../model.onnx", "\0", "/dev/zero")),
            rng.choice(NUMBERS),
            64,
        )


def _bend_type(model: onnx.ModelProto, rng: random.Random) -> None:
    found = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    kind = rng.choice(found).type.tensor_type
    if rng.random() < 0.4:
        kind.elem_type = rng.randrange(30)
    elif kind.shape.dim:
        rng.choice(kind.shape.dim).dim_value = rng.choice(NUMBERS)


def _bend_list(model: onnx.ModelProto, rng: random.Random) -> None:
    lists = (
        model.graph.node,
        model.graph.input,
        model.graph.output,
        model.graph.initializer,
        model.opset_import,
    )
    some: Any = rng.choice(lists)
    if some and rng.random() < 0.5:
        del some[rng.randrange(len(some))]
    elif some:
        some.append(rng.choice(some))


def structure(whole: bytes, model: onnx.ModelProto) -> list[int]:
    """Byte positions outside the values of weights."""
    values: set[int] = set()
    for tensor in model.graph.initializer:
        begin = whole.find(tensor.raw_data) if len(tensor.raw_data) > 8 else -1
        values.update(range(begin, begin + len(tensor.raw_data)) if begin > 0 else ())
    return [at for at in range(len(whole)) if at not in values]


def attempt(path: Path, victim: Victim) -> str:
    """Read, cut, write and read back. Returns the class name of the error, or "" without one."""
    with within(SECONDS):
        try:
            cut(graph.load(path), victim.start, victim.end).save(path.with_name("cut.onnx"))
        except SubcutError as e:
            assert e.what, "an error says what"
            return type(e).__name__
    graph.load(path.with_name("cut.onnx"))
    return ""


@pytest.fixture
def bounded() -> Iterator[None]:
    """No test here makes this process grow."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize(
    "name",
    [n if k % 4 == 0 else pytest.param(n, marks=pytest.mark.rare) for k, n in enumerate(VICTIMS)],
)
def test_damaged_model_is_refused_or_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, large: bool
) -> None:
    """Parsed as a small file, and walked as a large one, whose weights stay on disk."""
    if large:
        walk_files(monkeypatch, stub_above=64)
    victim = VICTIMS[name]
    path = tmp_path / "model.onnx"
    outcomes: dict[str, int] = {}
    model = victim.build()
    for data in chain(damaged(model, name, EACH), bent(model, name, EACH)):
        path.write_bytes(data)
        kind = attempt(path, victim)
        outcomes[kind] = outcomes.get(kind, 0) + 1
    assert outcomes["ModelError"] > EACH // 10 and outcomes[""] > EACH // 20, outcomes


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_truncated_model_is_refused_or_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Every offset of a model with bodies and functions."""
    if large:
        walk_files(monkeypatch, stub_above=64)
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
        # W1 comes first
        assert attempt(path, Victim(graphs.plain)) == ("" if size >= 256 else "DataError")
    data.write_bytes(whole)
    kinds = set()
    for hurt in damaged(onnx.load(path, load_external_data=False), "external", 2 * EACH):
        path.write_bytes(hurt)
        kinds.add(attempt(path, Victim(graphs.plain)))
    assert {"", "ModelError", "DataError"} <= kinds


def test_large_file_of_zeros_is_refused(tmp_path: Path) -> None:
    """A download that was allocated but never written: a gigabyte of zeros, a hole in the file."""
    path = tmp_path / "model.onnx"
    for head in (
        b"\x08\x08",
        b"\x08\x08\x3a\xff\xff\xff\xff\x07",
        b"\x3a\x80\x80\x80\x08\x2a\x80\x80\x80\x08",
        b"PK\x03\x04",
    ):
        path.write_bytes(head)
        os.truncate(path, 1 << 30)
        with within(SECONDS), pytest.raises(SubcutError):
            graph.load(path)


# ------------------------------------------------------------ the command


LINES = (
    lambda v: ("--start", v.start, "--end", v.end),
    lambda v: ("--start", v.start, "--end", v.end, "--no-capture", "--check"),
    lambda v: ("dump", "--all"),
    lambda v: ("inspect",),
)
CODES = {0, 2, 3, 4, 5}
MEMORY = 3 << 30  # bytes, of any process that took part


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "loop_body",
        "shape_chain",
        *(pytest.param(n, marks=pytest.mark.rare) for n in ("untyped_int64", "sequence_in")),
    ],
)
def test_the_command_ends_in_a_clear_error_or_a_result(tmp_path: Path, name: str) -> None:
    victim = VICTIMS[name]
    path = tmp_path / "model.onnx"
    model = victim.build()
    # a Loop without an end has none
    wrong = bent(model, f"command {name}", 14 if name != "loop_body" else 0)
    for k, data in enumerate(chain(damaged(model, f"command {name}", 6), wrong)):
        path.write_bytes(data)
        line = LINES[k % len(LINES)](victim)
        code, said, memory = run(path, *line)
        assert code in CODES, (k, line, code, said)
        assert "Traceback" not in said and "itself failed" not in said, (k, line, said)
        assert memory < MEMORY, (k, line, memory, said)
        if code:
            assert said.startswith("error: ") or "warning: " in said or line[0] == "inspect", (
                k,
                line,
                said,
            )


READERS = (
    lambda v: ("inspect", "model.onnx", "--no-run"),
    lambda v: ("lint", "model.onnx"),
    lambda v: ("cut", "model.onnx", "-s", v.start, "-e", v.end, "--no-capture", "--force"),
    lambda v: ("draw", "model.onnx", "-o", "drawn.svg"),
)


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.parametrize("name", VICTIMS)
def test_no_damaged_model_is_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A thousand of them in all, each inspected, linted, cut and drawn."""
    monkeypatch.chdir(tmp_path)
    victim = VICTIMS[name]
    model = victim.build()
    for data in chain(damaged(model, f"readers {name}", 28), bent(model, f"readers {name}", 28)):
        Path("model.onnx").write_bytes(data)
        for line in READERS:
            with contextlib.suppress(SubcutError, typer.TyperException, OSError):
                run_command.in_process("-q", *line(victim))


def run(path: Path, *line: str) -> tuple[int, str, int]:
    """Exit code, standard error and the largest process of one command line."""
    where = path.parent / "here"
    where.mkdir(exist_ok=True)
    words: list[str | Path] = (
        [run_command.SUBCUT, line[0], path, *line[1:]]
        if not line[0].startswith("-")
        else [run_command.SUBCUT, path, *line]
    )
    words += ["-o", f"out-{line[0]}", "--force"] if line[0] != "inspect" else []
    with (path.parent / "said").open("wb+") as said:
        process = subprocess.Popen(
            words, cwd=where, stdout=subprocess.DEVNULL, stderr=said, env=run_command.environment()
        )
        begin = time.monotonic()
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - begin > run_command.PATIENCE:
                process.kill()
                pytest.fail(f"{line} hangs")
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace"), usage.ru_maxrss * 1024
