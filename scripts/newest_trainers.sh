#!/usr/bin/env bash
# Do the integrations work with the newest releases of the trainers? Their tests, in an environment of its own with what
# the package index has today; torch alone is the one of constraints.txt. Leaves no trace. Prints the versions and the
# result as a row for the table in CONTRIBUTING.md. Meant for a timer, once a week. PYTHON=python3.12 chooses the
# Python, TORCH_INDEX another index for the build of torch without CUDA, and none if it is empty.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 KERAS_BACKEND=torch
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

"${PYTHON:-python3}" -m venv "$work/newest"
. "$work/newest/bin/activate"
# First, without CUDA, and kept: what is installed after it takes it as it is.
torch="$(grep ^torch== constraints.txt)+cpu"
echo "$torch" >"$work/constraints.txt"
index=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
pip install ${index:+--extra-index-url "$index"} "$torch" numpy
mkdir "$work/source"
cp -r README.md LICENSE pyproject.toml colabkeep tests "$work/source" # pip builds in the folder it is given
cd "$work/source"
pip install -c "$work/constraints.txt" . transformers lightning pytorch-lightning keras accelerate trl peft torchmetrics \
    bitsandbytes torchao h5py hypothesis pytest pytest-timeout pytest-xdist scikit-learn tensorboard
pip install --no-deps galore-torch apollo-torch # which would bring bitsandbytes and transformers as they want them

status=0
python -m pytest tests/integrations --frameworks=torch "-n${PROCESSES:-2}" "$@" | tee "$work/said" || status=$?
python - "$(tail -n 1 "$work/said" | tr -d '=' | xargs)" <<'END'
import datetime, importlib.metadata, platform, sys
names = ("transformers", "lightning", "keras", "accelerate", "trl", "peft", "bitsandbytes", "torch")
versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
print(f"| {datetime.date.today()} | {platform.python_version()} | {versions} | {sys.argv[1]} |")
END
exit "$status"
