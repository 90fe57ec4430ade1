#!/usr/bin/env bash
# Paddle's adapter on Paddle 2.6.2, like the 2.6.1 with Python 3.10 that was seen on AI Studio in November 2024
# (PaddlePaddle/PaddleMIX, issue 809). Makes an environment of its own, and leaves no trace.
# Paddle 2.6 has no build for NumPy 2, and none for a Python above 3.12: PYTHON=python3.11 chooses one of 3.10 to 3.12.
#
# There the position of the CPU's random stream cannot be read: it is seeded anew at each checkpoint, in a run that
# nothing interrupts as well. Left out: reading an exported bfloat16 with safetensors' own reader, which cannot for
# Paddle 2.6 (and since safetensors 0.7 reads nothing at all there); colabkeep's own reading of it is tested.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

# What the constraints say of newer packages would contradict it; of the rest, tests come out as elsewhere.
grep -viE '^(numpy|paddlepaddle|protobuf|safetensors)==' constraints.txt >"$work/constraints.txt"

"${PYTHON:-python3.10}" -m venv "$work/old"
. "$work/old/bin/activate"
pip install -c "$work/constraints.txt" paddlepaddle==2.6.2 'numpy<2' 'safetensors<0.7' setuptools cloudpickle google-auth \
    ipywidgets PyDrive2 requests tenacity hypothesis pytest pytest-timeout pytest-xdist
export PYTHONPATH=$PWD
python -W ignore -c 'import numpy, paddle; print("Paddle", paddle.__version__, "· NumPy", numpy.__version__)'
python -m pytest --frameworks=paddle -n 2 tests/frameworks tests/session tests/integrations tests/crash/test_random_kills.py \
    -m "not cuda" -W 'ignore:Op `:DeprecationWarning' \
    --deselect "tests/session/test_weights.py::test_an_export_is_read_by_the_framework_s_own_reader[paddle-state.half]" "$@"
