"""The library behind the simulated device is bound to one torch, kept, and never silently missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.environments import TESTS
from tests.simcuda import building
from tests.simcuda.__main__ import files


def told(**environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.simcuda` with nothing to run."""
    command = [sys.executable, "-m", "tests.simcuda", "--collect-only"]
    return subprocess.run(
        command, cwd=TESTS.parent, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_the_torch_that_it_was_tried_with_is_the_one_of_ci() -> None:
    """Another pin comes with another trial, and is noticed here."""
    (pin,) = re.findall(r"^torch==(\S+)$", (TESTS.parent / "constraints.txt").read_text(), re.MULTILINE)
    assert pin == building.TRIED


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_where_it_cannot_be_built_that_is_said_and_in_ci_a_failure(ci: str, status: int, tmp_path: Path) -> None:
    """No compiler on the path: a sentence with the remedy, never a silent pass of the build that counts."""
    done = told(CI=ci, PATH=str(tmp_path), SIMCUDA_CACHE=str(tmp_path))
    assert done.returncode == status, done.stderr
    assert "NOT RUN" in done.stdout
    assert "apt-get install g++" in done.stdout or torch.version.cuda or torch.__version__ != building.TRIED


def test_a_torch_that_it_was_not_tried_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its insides may have moved: a crash, or worse, a device that keeps other rules."""
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "2.99.0+cpu" in (building.obstacle() or "")


def test_a_torch_for_real_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has kernels of its own where the simulation puts its."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "+cpu" in (building.obstacle() or "")


def test_it_is_kept_by_torch_and_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What lies there under the right name is not built again; under another torch the name is another."""
    monkeypatch.setenv("SIMCUDA_CACHE", str(tmp_path))
    names = [building._digest()]
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    names.append(building._digest())
    changed = tmp_path / "other.cpp"
    changed.write_text("int main() {}")
    monkeypatch.setattr(building, "_SOURCE", changed)
    names.append(building._digest())
    assert len(set(names)) == 3
    kept = tmp_path / f"{building.NAME}-{names[-1]}.so"
    kept.touch()
    assert building.library() == kept


def test_every_test_on_a_device_is_among_its_files() -> None:
    """Those of torch's state, of the losses, of two GPUs, and its own."""
    names = {file.name for file in files()}
    assert {"test_cuda.py", "test_losses.py", "test_two_gpus.py", "test_device.py", "test_order.py"} <= names
