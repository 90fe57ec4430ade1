"""Imports only go down: the storeys of the house, checked by a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import colabkeep


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    # The folder's own source is what is looked at, also where the package is installed.
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--config", "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_contracts_are_kept(root: Path) -> None:
    """Layers, strangers and heavy packages: every contract of pyproject.toml."""
    done = lint_imports(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* kept, 0 broken", done.stdout)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/manifest.py", "import colabkeep.stores.base"),
        ("stores/memory.py", "import colabkeep.frameworks.base"),
        ("checkpoint/codec.py", "import colabkeep.stores.local"),
        ("core/state.py", "import numpy"),
        ("session/run.py", "import torch"),
        ("stores/local.py", "import colabkeep.testing"),
        ("frameworks/paddle/facts.py", "import torch"),
        ("frameworks/torch/facts.py", "import paddle"),
    ],
)
def test_a_forbidden_import_is_seen(file: str, line: str, root: Path, tmp_path: Path) -> None:
    """Each contract stops the import that it is there for, so none of them has gone blind."""
    shutil.copy(root / "pyproject.toml", tmp_path)
    shutil.copytree(root / "colabkeep", tmp_path / "colabkeep", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "colabkeep" / file
    target.write_text(target.read_text() + f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* broken", done.stdout)


@pytest.mark.parametrize("name", [name for name in colabkeep.__all__ if not name.startswith("__")])
def test_every_public_name_says_what_it_is(name: str) -> None:
    """`help(colabkeep.…)` has something to show for each name, beginning with a sentence of its own."""
    public = getattr(colabkeep, name)
    text = vars(public).get("__doc__") if isinstance(public, type) else public.__doc__  # not an inherited one
    assert text
    assert text.strip().split("\n\n")[0].rstrip().endswith(".")
