#!/usr/bin/env bash
# `loggers=[…]` with the newest wandb and MLflow: its tests, in an environment of its own, because MLflow wants other
# versions than constraints.txt has. Needs the package index; the tests themselves reach nothing. Leaves no trace.
# PYTHON=python3.12 chooses the Python, TORCH_INDEX is as for newest_trainers.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

"${PYTHON:-python3}" -m venv "$work/loggers"
. "$work/loggers/bin/activate"
index=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
pip install ${index:+--extra-index-url "$index"} "$(grep ^torch== constraints.txt)+cpu" numpy
mkdir "$work/source"
cp -r README.md LICENSE pyproject.toml colabkeep tests "$work/source" # pip builds in the folder it is given
cd "$work/source"
# Of MLflow, what writes a database: the rest is a server, and a gigabyte.
pip install ".[tensorboard,wandb]" mlflow-skinny sqlalchemy alembic hypothesis pytest pytest-timeout pytest-xdist
python -c 'from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in ("wandb", "mlflow-skinny", "SQLAlchemy", "tensorboard")), sep=" · ")'
python -m pytest tests/session/torch/test_loggers.py --frameworks=torch --no-skips -n 2 "$@"
