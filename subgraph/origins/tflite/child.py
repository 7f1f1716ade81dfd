"""Child of `conversion`: `python -m subgraph.origins.tflite.child read|write IN OUT SIGNATURE`.

`read` converts the named signature of a .tflite to ONNX, `write` converts ONNX back. The child
prints the outcome and its reason as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# Outcomes of a conversion.
DONE = "done"
REFUSED = "refused"
UNNAMED = "unnamed"
DAMAGED = "damaged"
UNWRITTEN = "unwritten"


def main() -> None:
    """Convert one file."""
    direction, source, target, signature = sys.argv[1:]
    import onnx

    from subgraph.origins.tflite import operators

    path = Path(source)
    outcome = DONE
    reason = ""
    try:
        if direction == "read":
            onnx.save(operators.to_onnx(path.read_bytes(), path.stem, signature), target)
        else:
            Path(target).write_bytes(operators.to_tflite(onnx.load(path)))
    except Exception as e:  # noqa: BLE001
        words = {
            operators.UnknownSignatureError: UNNAMED,
            operators.UncarriedOperatorError: REFUSED,
            OSError: UNWRITTEN,
        }
        outcome = next((word for kind, word in words.items() if isinstance(e, kind)), DAMAGED)
        reason = f"{type(e).__name__}: {e}" if outcome == DAMAGED else str(e)
    sys.stdout.buffer.write(json.dumps([outcome, " ".join(reason.split())[:400]]).encode())


if __name__ == "__main__":
    main()
