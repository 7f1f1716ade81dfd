#!/usr/bin/env bash
# Tests of Windows under wine: the first minute of a user, and what each system gives; about 3 minutes. `all` adds the
# quick tests of what is not about POSIX, `slow` a sweep and those where the command is killed. The Python is built once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=$PWD python=${PYTHON:-$PWD/.venv/bin/python} exchange=$PWD/build/windows/exchange
[ -f build/windows/python/Lib/site-packages/.done ] || LOCK=$PWD/requirements.lock bash tests/windows/python.sh build/windows

subcut() { XDG_CONFIG_HOME=$exchange/config "$python" -c 'from subgraph.cli import main; main()' "$@"; }
wine() { PYTHONPATH="Z:${here//\//\\}" EXCHANGE="Z:${exchange//\//\\}" build/windows/wpython -m pytest -p no:cacheprovider "$@"; }

rm -rf "$exchange"
mkdir -p "$exchange"
subcut demo "$exchange/linux" >/dev/null
(
  cd "$exchange/linux"
  export PYTHONPATH=$here
  subcut bisect model.onnx -c wrong.py -q >/dev/null || [ $? = 1 ]
  subcut bundle subcut_out/bisect-wrong.py --candidate-files wrong.py -o linux.zip >/dev/null 2>&1
)
case ${1:-} in
  slow) wine -m slow tests/windows ;;
  *) wine -m "not slow" -rs tests/windows tests/system ;;
esac
if [ -f "$exchange/windows.zip" ]; then # found again on Linux: exit code 1
  found=0
  (cd "$exchange" && PYTHONPATH=$here subcut replay windows.zip -c linux/wrong.py) || found=$?
  [ $found = 1 ]
fi
if [ "${1:-}" = all ]; then
  runtime=(tests/runtime/test_{candidate,run_result,inputs,reference_values,cached_runs,capture}.py) # workers: fork, SIGSTOP
  wine -n 2 -m "not slow and not rare" tests/storage tests/search tests/graph tests/comparison tests/cases tests/drawing tests/inspection \
    "${runtime[@]}" tests/end_to_end/test_older_folders.py tests/test_{documents,text,errors,verdict,plugins,precision,trust}.py
fi
