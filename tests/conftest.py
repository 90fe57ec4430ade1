"""All tests run away from the source folder, with the package that this interpreter found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import colabkeep
from tests.fakes.loopback import guarded_sockets, only_loopback  # noqa: F401  # no test leaves this machine


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # A child process looks for packages in its current folder first. There the source must not lie, or it would
    # be tested instead of what is installed; and a run without a named storage must not be kept in the repository.
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.MonkeyPatch.context() as patch:
        home = Path(colabkeep.__file__).resolve().parents[1]
        if (home / "pyproject.toml").exists():  # not installed: children need to be told where it is
            patch.setenv("PYTHONPATH", str(home))
        yield
    os.chdir(before)
