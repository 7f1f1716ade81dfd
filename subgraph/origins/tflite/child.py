"""The child's half of `files`: `python -m subgraph.origins.tflite.child read|write IN OUT
SIGNATURE`.

`read`: a .tflite, of several signatures the one named → ONNX; `write`: back. It says how it went as
JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DONE, REFUSED, UNNAMED, DAMAGED, UNWRITTEN = (
    "done",
    "refused",
    "unnamed",
    "damaged",
    "unwritten",
)  # how it went


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
    except operators.NoSuchSignature as e:
        how = UNNAMED
        why = str(e)
    except operators.CannotCarry as e:
        how = REFUSED
        why = str(e)
    except OSError as e:
        how = UNWRITTEN
        why = str(e)
    except Exception as e:  # noqa: BLE001
        how = DAMAGED
        why = f"{type(e).__name__}: {e}"
    sys.stdout.buffer.write(json.dumps([how, " ".join(why.split())[:400]]).encode())


if __name__ == "__main__":
    main()
