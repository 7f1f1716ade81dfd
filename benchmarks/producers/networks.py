# /// script
# dependencies = ["torch==2.13.0+cpu", "onnx==1.23.2", "numpy"]
# ///
"""The two networks that the producers are given, as torch modules: a residual net with a concat, a small transformer.

    python networks.py FOLDER [SEED]      healthy.onnx, faulty.onnx and x.npy of each, into a folder of its name

Weights are seeded. In the faulty one the weights of one Conv or Linear, drawn by the seed, are one channel off.
BatchNorm has the statistics of its input, so that nothing grows or dies with depth.
"""  # noqa: E501

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3×3 Convs beside an identity, or beside a 1×1 Conv where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential()
        if inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Residual(nn.Module):
    """Pictures (1, 3, 24, 24) to logits (1, 10): three residual blocks and two branches that a concat joins."""  # noqa: E501

    shape = (1, 3, 24, 24)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.layer1 = nn.Sequential(Block(8, 8), Block(8, 16, 2))
        self.left = nn.Conv2d(16, 8, 1)
        self.right = nn.Sequential(nn.Conv2d(16, 8, 3, 1, 1), nn.SiLU())
        self.layer2 = nn.Sequential(Block(16, 16))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        x = self.layer2(torch.cat([self.left(x), self.right(x)], 1))
        return self.fc(torch.flatten(self.pool(x), 1))


class Attention(nn.Module):
    """Self-attention of two heads."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            f(x).reshape(n, length, self.heads, width // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        shares = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, -1)
        return self.proj((shares @ v).transpose(1, 2).reshape(n, length, width))


class Layer(nn.Module):
    """Attention and two Linears, each behind a LayerNorm and beside an identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width)
        self.fc1, self.fc2, self.act = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.GELU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """Vectors (1, 12, 16) to logits (1, 10): two layers."""

    shape = (1, 12, 16)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.blocks = nn.Sequential(Layer(32), Layer(32))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x))).mean(1))


NETWORKS = {"residual": Residual, "transformer": Transformer}


def network(name: str, seed: int, *, faulty: bool) -> tuple[nn.Module, Tensor]:
    """A network in eval mode and its input."""
    torch.manual_seed(seed)
    net = NETWORKS[name]()
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        for m in norms:
            m.momentum = None  # the mean over all batches
            nn.init.uniform_(m.weight, 0.8, 1.2)
            nn.init.uniform_(m.bias, -0.2, 0.2)
        net(torch.randn(64, *net.shape[1:]))
        if faulty:
            layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
            wrong = layers[int(torch.randint(len(layers), ()))]
            wrong.weight.copy_(wrong.weight.roll(1, 0))
    return net.eval(), torch.randn(net.shape, generator=torch.Generator().manual_seed(seed))


def main(folder: Path, seed: int = 0) -> None:
    """Write all."""
    for name in NETWORKS:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for state in ("healthy", "faulty"):
            net, x = network(name, seed, faulty=state == "faulty")
            torch.onnx.export(
                net,
                (x,),
                place / f"{state}.onnx",
                input_names=["x"],
                output_names=["logits"],
                dynamo=False,
                opset_version=17,
            )
        np.save(place / "x.npy", x.numpy())
        (place / "seed").write_text(str(seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
