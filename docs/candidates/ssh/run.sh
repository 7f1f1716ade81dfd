#!/bin/sh
# SSH_CONFIG SCRIPT MODEL INPUTS OUTPUTS: everything goes to the board and the answers come back, over one connection.
# ssh ends with the exit code of what ran there, or with 255 where the connection is lost: subcut tries that again.
set -e
config=$1 script=$2 model=$3 inputs=$4 outputs=$5

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir "$stage/send"
ln -s "$PWD/$script" "$stage/send/board.py"
ln -s "$inputs" "$stage/send/inputs"
ln -s "$model"* "$stage/send/" # and its weights, where they lie in a file beside it

# On the board: a folder that goes whatever happens; what the script prints to standard output is no part of the answer.
there='set -e; cd "$(mktemp -d)"; trap "rm -rf \"$PWD\"" EXIT; trap "exit 143" HUP PIPE TERM
tar -xf -; mkdir outputs
"${PYTHON:-python3}" board.py *.onnx inputs outputs 1>&2
tar -cf - -C outputs .'

# ssh stands last in the pipe: its exit code is the one that counts.
tar -chf - -C "$stage/send" . | ssh -F "$config" -o BatchMode=yes board "$there" > "$stage/answer.tar"
tar -xf "$stage/answer.tar" -C "$outputs"
