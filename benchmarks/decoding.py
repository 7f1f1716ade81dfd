"""A fault planted in one node at one step of a loop -> does `bisect --loop` name the step and the
node?

    python -m benchmarks.decoding [--seeds 200] [--first 0] [--silero silero_vad_16k_sequence.onnx]

The models are those of `fixtures.decoders` (a decoder with a cache, the same with int4 weights, a
captioner), and silero-vad as a streaming model, whose file comes from its wheel and without which
its seeds are left out. Faults: a node wrong in one step, or from one step on; a state handed on
wrong, which only the next step sees; one row of the logits; a process that dies; a state that
drifts. Every eighth candidate is right: onnxruntime with all optimizations, or weights rounded to
fp16 and said to be. The steps number 24 to 512. A fault that moves no output of its step by a
fiftieth of its scale is not a fault, and such a seed is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from benchmarks import trained
from benchmarks.report import table
from fixtures import decoders, decoders_wrong

MIN = 2e-2  # of an output's scale, what a fault must change
STEPS = (24, 48, 96, 192, 512)
MORE_WALKS = 12  # beside log₂ of the steps
SILERO = trained.FOLDER / "silero_vad/data/silero_vad_16k_sequence.onnx"
MODELS = ("decoder", "decoder-int4", "captioner", "silero")
FAULTS = ("once", "on", "state", "once", "row", "drift", "crash", "right")
PER_STEP = 1.0005  # what a drifting state is multiplied by
PATIENCE = 900
SUBCUT = Path(sys.executable).with_name("subcut")


@dataclass
class Planted:
    """A model, what it is fed, and a candidate.

    Attributes:
        inputs: words behind `-i`. loop: loop.toml. step, node: what is to be found; None where the
            candidate is right.
    """

    kind: str
    fault: str
    steps: int
    model: Path
    inputs: Sequence[str]
    loop: str
    candidate: str = "ort"
    step: int | None = None
    node: str | None = None
    more: Sequence[str] = ()


@dataclass
class Found:
    """What `bisect --loop` says."""

    code: int
    outcome: str
    step: int | None
    nodes: list[list[str]]
    walks: int
    seconds: float

    def is_right(self, planted: Planted) -> bool:
        """Is it the step and the node, in no more walks than there may be?"""
        if planted.fault == "right":
            return (self.code, self.outcome) == (0, "agree")
        if planted.fault == "drift":
            return self.outcome == "accumulates"
        return (
            (self.code, self.outcome, self.step) == (1, "step", planted.step)
            and self.nodes == [[planted.node]]
            and self.walks <= math.ceil(math.log2(planted.steps)) + MORE_WALKS
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most-steps", type=int, default=STEPS[-1])
    parser.add_argument("--silero", type=Path, default=SILERO)
    arguments = parser.parse_args()
    right = Counter[tuple[str, str]]()
    wrong = Counter[tuple[str, str]]()
    left = Counter[str]()
    seconds: dict[tuple[str, str], list[float]] = {}
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            planted = plant(seed, Path(folder), arguments.silero, arguments.most_steps)
            if isinstance(planted, str):
                left[planted] += 1
                continue
            found = run(planted, Path(folder))
        key = planted.kind, planted.fault
        (right if found.is_right(planted) else wrong)[key] += 1
        seconds.setdefault(key, []).append(found.seconds)
        if not found.is_right(planted):
            expected = f"{planted.node} in step {planted.step} of {planted.steps}"
            print(
                f"seed {seed}: {planted.kind}, {planted.fault}: {expected}, but: {found}",
                flush=True,
            )
    rows = [
        [*key, str(right[key]), str(wrong[key]), f"{np.median(seconds[key]):.1f} s"]
        for key in sorted({*right, *wrong})
    ]
    total = ["all", "", str(sum(right.values())), str(sum(wrong.values())), ""]
    print(table(["model", "fault", "right", "wrong", "median"], [*rows, total]))
    print("left out: " + (", ".join(f"{n} {why}" for why, n in left.items()) or "none"))


def run(planted: Planted, folder: Path) -> Found:
    """The command in a process of its own."""
    (folder / "loop.toml").write_text(planted.loop)
    words = [
        "bisect",
        str(planted.model),
        "--loop",
        "loop.toml",
        "-c",
        planted.candidate,
        "--json",
        *planted.more,
    ]
    words += [word for value in planted.inputs for word in ("-i", value)]
    done = subprocess.run(
        [SUBCUT, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return Found(done.returncode, done.stderr[-300:], None, [], 0, 0.0)
    findings = (document.get("bisection") or {}).get("findings", [])
    return Found(
        done.returncode,
        document.get("outcome", ""),
        document.get("first_wrong"),
        [f["nodes"] for f in findings],
        document.get("walks", 0),
        document.get("seconds", 0.0),
    )


# ------------------------------------------------------------------------------------------------
# what is planted


def plant(seed: int, folder: Path, silero: Path, most_steps: int = STEPS[-1]) -> Planted | str:
    """What a seed stands for; why it stands for nothing."""
    rng = random.Random(seed)
    kind = MODELS[seed % len(MODELS)]
    fault = FAULTS[seed // len(MODELS) % len(FAULTS)]
    steps = min(rng.choice(STEPS), most_steps)
    if kind == "silero" and not silero.exists():
        return "without silero-vad's wheel"
    loop = _loop(kind, seed, folder, steps, silero)
    if fault == "right":
        return _healthy(loop, seed)
    if fault == "drift":
        return (
            _drifting(loop)
            if loop.cache
            else "whose state cannot drift: it is forgotten in a few steps"
        )
    return _wrong(loop, rng, fault)


@dataclass
class _Loop:
    """A loop that is run here, too, to know which state is before which step."""

    kind: str
    path: Path
    steps: int
    inputs: Sequence[str]
    text: str
    pairs: Mapping[str, str]
    prompt: Any = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    sequence: Any = None
    mask: Any = None

    @property
    def cache(self) -> bool:
        return self.prompt is not None and self.prompt.shape[1] > 1

    @property
    def logits(self) -> str:
        return "speech_probs" if self.kind == "silero" else "logits"

    def trajectory(self) -> Iterator[dict[str, Any]]:
        """What each step is fed, on onnxruntime as it is."""
        session = onnxruntime.InferenceSession(str(self.path))
        names = [o.name for o in session.get_outputs()]
        batch = 1 if self.prompt is None else len(self.prompt)
        states = {
            i.name: np.zeros(
                [
                    d if isinstance(d, int) else batch if a == 0 else 0
                    for a, d in enumerate(i.shape)
                ],
                "f4",
            )
            for i in session.get_inputs()
            if i.name in self.pairs
        }
        tokens = self.prompt
        mask = self.mask
        for k in range(self.steps):
            feeds = {**states, **self.fixed}
            if self.sequence is not None:
                feeds["input"] = self.sequence[k : k + 1]
            elif self.cache:
                places = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -tokens.shape[1] :]
                feeds |= {"input_ids": tokens, "attention_mask": mask, "position_ids": places}
                mask = np.concatenate([mask, np.ones((batch, 1), np.int64)], axis=1)
            else:
                feeds["token"] = tokens[:, 0]
            yield feeds
            made = dict(zip(names, session.run(names, feeds), strict=True))
            states = {name: made[output] for name, output in self.pairs.items()}
            if self.sequence is None:
                logits = made["logits"]
                tokens = (logits[:, -1] if logits.ndim == 3 else logits).argmax(axis=-1)[:, None]


def _loop(kind: str, seed: int, folder: Path, steps: int, silero: Path) -> _Loop:
    values = np.random.default_rng(seed)
    rng = random.Random(seed + 1)
    path = folder / "model.onnx"
    if kind == "silero":
        path.write_bytes(silero.read_bytes())
        sound = np.cumsum(values.standard_normal((steps, 576)), axis=1).astype(np.float32)
        sound *= values.uniform(0.01, 0.3, (steps, 1)).astype(np.float32) / np.abs(sound).max(
            axis=1, keepdims=True
        )
        np.save(folder / "sound.npy", sound)
        text = "[slices]\ninput = { size = 1, step = 1, axis = 0 }\n"
        return _Loop(
            kind, path, steps, ["input=sound.npy"], text, {"h": "hn", "c": "cn"}, sequence=sound
        )
    text = f"steps = {steps}\n"
    batch = rng.choice([1, 1, 2, 3])
    if kind == "captioner":
        onnx.save(decoders.captioner(seed), path)
        image = values.standard_normal((batch, decoders.WIDTH)).astype(np.float32)
        prompt = values.integers(0, decoders.VOCABULARY, (batch, 1))
        np.save(folder / "image.npy", image)
        np.save(folder / "prompt.npy", prompt)
        words = ["token=prompt.npy", "image=image.npy"]
        return _Loop(
            kind, path, steps, words, text, {"h0": "hn", "c0": "cn"}, prompt, {"image": image}
        )
    layers = rng.choice([1, 2, 3])
    onnx.save(decoders.decoder(seed, layers, nbits=kind == "decoder-int4"), path)
    prompt = values.integers(0, decoders.VOCABULARY, (batch, rng.randint(2, 9)))
    np.save(folder / "prompt.npy", prompt)
    pairs = {
        f"past_key_values.{k}.{n}": f"present.{k}.{n}"
        for k in range(layers)
        for n in ("key", "value")
    }
    words = ["input_ids=prompt.npy"]
    mask = np.ones_like(prompt)
    if batch > 1:
        mask[0, 0] = 0  # a shorter prompt, filled up on the left
        np.save(folder / "mask.npy", mask)
        words.append("attention_mask=mask.npy")
    return _Loop(kind, path, steps, words, text, pairs, prompt, mask=mask)


def _wrong(loop: _Loop, rng: random.Random, fault: str) -> Planted | str:
    network = onnx.load(loop.path)
    step = rng.randrange(loop.steps)
    state = next(iter(loop.pairs))
    fed = list(loop.trajectory())
    when = {"step": state}
    if loop.cache:
        when["at"] = str(fed[step][state].shape[decoders_wrong.LENGTH_AXIS])
    else:
        before = loop.path.with_name("before.npy")
        np.save(before, fed[step][state])
        when["state"] = str(before)
        step = next(k for k, feeds in enumerate(fed) if decoders_wrong.is_step(feeds, when))
    if fault == "on" and not loop.cache:
        fault = "once"
    if fault in ("state", "row"):
        output = rng.choice(list(loop.pairs.values())) if fault == "state" else loop.logits
        more = {"output": output, "by": "1.5"}
        if fault == "row" and loop.prompt is not None:
            more["row"] = str(rng.randrange(len(loop.prompt)))
        if fault == "state" and step == loop.steps - 1:
            return "whose fault comes after all steps"
        node = next(n.name for n in network.graph.node if output in n.output)
    else:
        node = rng.choice(_nodes(network))
        more = {"node": node, "by": str(rng.choice([0.5, 1.5, 2.0]))}
        more |= {"then": fault} if fault in ("on", "crash") else {}
    options = {**more, **when}
    if fault != "crash" and not _matters(loop.path, fed[step], options):
        return "whose fault changes nothing"
    words = ",".join(f"{name}={value}" for name, value in options.items())
    return Planted(
        loop.kind,
        fault,
        loop.steps,
        loop.path,
        loop.inputs,
        loop.text,
        f"{decoders_wrong.__file__}:{words}",
        step,
        node,
    )


def _drifting(loop: _Loop) -> Planted:
    """The values that are kept grow by a little in each step."""
    node = next(f"layer{k}.value.cache" for k in reversed(range(len(loop.pairs) // 2)))
    candidate = f"{decoders_wrong.__file__}:node={node},by={PER_STEP}"
    steps = max(loop.steps, 192)
    text = f"steps = {steps}\n"
    return Planted(loop.kind, "drift", steps, loop.path, loop.inputs, text, candidate, None, node)


def _healthy(loop: _Loop, seed: int) -> Planted:
    planted = Planted(loop.kind, "right", loop.steps, loop.path, loop.inputs, loop.text)
    if seed // (len(MODELS) * len(FAULTS)) % 2:
        planted.candidate = f"{decoders_wrong.__file__}:half=1"
        planted.more = ["--precision", "fp16"]
    return planted


def _nodes(network: onnx.ModelProto) -> list[str]:
    """Those with one output of floats that depends on what is fed."""
    inferred = onnx.shape_inference.infer_shapes(network)
    floats = {
        v.name
        for v in (*inferred.graph.value_info, *inferred.graph.output)
        if v.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    moving = {value.name for value in network.graph.input}
    found = []
    for node in network.graph.node:
        if moving.intersection(node.input):
            moving.update(node.output)
            # What MatMulNBits gives has no type that onnx infers.
            if len(node.output) == 1 and (
                node.output[0] in floats or node.op_type == "MatMulNBits"
            ):
                found.append(node.name)
    return found


def _matters(path: Path, feeds: Mapping[str, Any], options: Mapping[str, str]) -> bool:
    right = decoders_wrong.load(str(path), {"node": ""})(feeds)
    wrong = decoders_wrong.load(str(path), options)(feeds)
    return any(np.abs(right[n] - wrong[n]).max() > MIN * np.abs(right[n]).max() for n in right)


if __name__ == "__main__":
    main()
