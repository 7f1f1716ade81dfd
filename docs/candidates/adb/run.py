"""SERIAL RUNNER MODEL INPUTS OUTPUTS: a piece goes to the phone and is run there; SERIAL `-` is the only phone."""  # noqa: E501

import json
import subprocess
import sys
from pathlib import Path

serial, runner, model, inputs, outputs = sys.argv[1], *map(Path, sys.argv[2:])
ADB = ["adb", *([] if serial == "-" else ["-s", serial])]
THERE = "/data/local/tmp/subcut"  # the runner and its library lie there
PIECE = f"{THERE}/{outputs.parent.name}-{outputs.name}"
TYPES = (
    "- float32 uint8 int8 uint16 int16 int32 int64 - bool float16 float64 uint32 uint64 - -"
    " bfloat16".split()
)
manifest = json.loads((inputs / "manifest.json").read_text())
lines = [
    ["in", i["bin"], TYPES.index(i["dtype"]), len(i["shape"]), *i["shape"], i["name"]]
    for i in manifest["inputs"]
]
lines += [["out", o["bin"], o["name"]] for o in manifest["outputs"]]
(inputs / "list.txt").write_text("\n".join(" ".join(map(str, line)) for line in lines))


def adb(*words: object) -> None:
    code = subprocess.run([*ADB, *map(str, words)], stdout=sys.stderr).returncode
    if code:  # a pulled cable is no verdict: 255 is tried again
        state = subprocess.run([*ADB, "get-state"], capture_output=True).stdout
        sys.exit(code if state.strip() == b"device" else 255)


adb("shell", f"rm -rf {PIECE} && mkdir -p {PIECE}/outputs")
adb("push", *model.parent.glob(f"{model.name}*"), *inputs.glob("*.bin"), inputs / "list.txt", PIECE)
adb("shell", f"cd {PIECE} && LD_LIBRARY_PATH={THERE} {THERE}/{runner.name} {model.name} list.txt")
adb("pull", f"{PIECE}/outputs/.", outputs)
adb("shell", f"rm -rf {PIECE}")
