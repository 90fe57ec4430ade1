"""Where the repository is, where the package under test is, and a bare Python beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import colabkeep


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def package() -> Path:
    """The package that is being tested: the installed one, where one is installed."""
    return Path(colabkeep.__file__).resolve().parent


@pytest.fixture
def python(tmp_path: Path, package: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program in a new interpreter, at home in an empty folder, with this very package."""
    home = tmp_path / "home"
    home.mkdir()
    places = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    # Nothing else is inherited: what importing set in this process must not hide that it is set again.
    needed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environ = {**needed, **places, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program], cwd=home, env=environ, capture_output=True, text=True, check=False
        )

    return run
