"""A script: `MODEL OUT LIST` converts a model to float16 by onnxconverter-common with a list of
what stays."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx


def main(source: str, output: str, listed: str) -> None:
    """Convert, and write the model."""
    from onnxconverter_common import float16  # type: ignore[import-not-found, unused-ignore]

    arguments = json.loads(Path(listed).read_text(encoding="utf-8"))
    onnx.save(
        float16.convert_float_to_float16(onnx.load(source), keep_io_types=True, **arguments), output
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
