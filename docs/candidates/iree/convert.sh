#!/bin/sh
# MODEL CONVERTED: ONNX → MLIR → a module for this CPU. Another target, another --iree-hal-target-device.
set -e
PATH=$PWD/.venv/bin:$PATH
command -v iree-import-onnx > /dev/null || exit 127 # no fault of the model: subcut stops

iree-import-onnx "$1" -o "$2.mlir"
iree-compile "$2.mlir" -o "$2" \
    --iree-hal-target-device=local \
    --iree-hal-local-target-device-backends=llvm-cpu \
    --iree-llvmcpu-target-cpu=host
rm "$2.mlir"
