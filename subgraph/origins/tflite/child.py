"""The child's half of `files`: `python -m subgraph.origins.tflite.child read|write IN OUT
SIGNATURE`.

`read`: a .tflite, of several signatures the named one → ONNX; `write`: back. It prints the outcome
as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# how it went
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
    how = DONE
    why = ""
    try:
        if direction == "read":
            onnx.save(operators.to_onnx(path.read_bytes(), path.stem, signature), target)
        else:
            Path(target).write_bytes(operators.to_tflite(onnx.load(path)))
    except Exception as e:  # noqa: BLE001
        known = {
            operators.UnknownSignatureError: UNNAMED,
            operators.UncarriedOperatorError: REFUSED,
            OSError: UNWRITTEN,
        }
        how = next((word for kind, word in known.items() if isinstance(e, kind)), DAMAGED)
        why = f"{type(e).__name__}: {e}" if how == DAMAGED else str(e)
    sys.stdout.buffer.write(json.dumps([how, " ".join(why.split())[:400]]).encode())


if __name__ == "__main__":
    main()
