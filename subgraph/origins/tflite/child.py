"""The child's half of `files`: `python -m subgraph.origins.tflite.child read|write IN OUT SIGNATURE`.

`read`: a .tflite, of several signatures the one named → ONNX; `write`: back. It says how it went as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DONE, REFUSED, UNNAMED, DAMAGED, UNWRITTEN = "done", "refused", "unnamed", "damaged", "unwritten"  # how it went


def main() -> None:
    """Convert one file."""
    direction, source, target, signature = sys.argv[1:]
    import onnx

    from subgraph.origins.tflite import operators

    path, how, why = Path(source), DONE, ""
    try:
        if direction == "read":
            onnx.save(operators.to_onnx(path.read_bytes(), path.stem, signature), target)
        else:
            Path(target).write_bytes(operators.to_tflite(onnx.load(path)))
    except operators.NoSuchSignature as e:
        how, why = UNNAMED, str(e)
    except operators.CannotCarry as e:
        how, why = REFUSED, str(e)
    except OSError as e:
        how, why = UNWRITTEN, str(e)
    except Exception as e:  # noqa: BLE001 - whatever a damaged flatbuffer makes of its generated reader
        how, why = DAMAGED, f"{type(e).__name__}: {e}"
    sys.stdout.buffer.write(json.dumps([how, " ".join(why.split())[:400]]).encode())


if __name__ == "__main__":
    main()
