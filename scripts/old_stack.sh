#!/usr/bin/env bash
# The panel and the browser of runs on the notebook stack of Colab: IPython 7.34, ipykernel 6.17.1, ipywidgets 7.7.1
# (googlecolab/backend-info, 2026-08-19). Makes an environment of its own, and leaves no trace.
# PYTHON=python3.11 chooses the Python: 3.10 to 3.13.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

stack=(ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 jupyter_client==7.4.9 'nbclient<0.11' 'setuptools<81')
# What the constraints say of the new stack would contradict it; of the rest, tests come out as elsewhere.
grep -viE '^(ipython|ipykernel|ipywidgets|jupyter|jupyterlab|nbclient|nbconvert|nest-asyncio|setuptools|widgetsnbextension)' \
    constraints.txt >"$work/constraints.txt"

"${PYTHON:-python3}" -m venv "$work/old"
. "$work/old/bin/activate"
pip install -c "$work/constraints.txt" "${stack[@]}" cloudpickle google-auth PyDrive2 requests safetensors tenacity \
    hypothesis matplotlib nbformat pytest pytest-timeout pytest-xdist scikit-learn torch
export PYTHONPATH=$PWD
python -c 'import IPython, ipykernel, ipywidgets
print("IPython", IPython.__version__, "· ipykernel", ipykernel.__version__, "· ipywidgets", ipywidgets.__version__)'
python -m pytest tests/panel tests/browse -n 2 "$@"
