#!/bin/sh
# MODEL CONVERTED [TRTEXEC OPTION…]: an engine for the GPU of this machine. Without options TF32 is off: fp32 is meant.
command -v trtexec > /dev/null || exit 127 # no fault of the model: subcut stops
model=$1 engine=$2
shift 2
[ $# -gt 0 ] || set -- --noTF32
exec trtexec --onnx="$model" --saveEngine="$engine" --skipInference "$@"
