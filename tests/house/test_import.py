"""`import colabkeep` costs nothing and does nothing."""

from __future__ import annotations

import json
import subprocess
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import colabkeep

Python = Callable[[str], "subprocess.CompletedProcess[str]"]

WATCH = """
import json, os, sys, threading, warnings, logging
before, environ, folder = set(sys.modules), dict(os.environ), os.getcwd()
state = lambda: (list(warnings.filters), list(logging.root.handlers), threading.active_count(), sys.path[:])
quiet = state()
import colabkeep
print(json.dumps({
    "modules": sorted(set(sys.modules) - before),
    "standard": sorted(sys.stdlib_module_names),
    "environ": dict(os.environ) == environ,
    "folder": os.getcwd() == folder,
    "quiet": state() == quiet,
}))
"""


@pytest.fixture
def imported(python: Python, tmp_path: Path) -> dict[str, Any]:
    """What a fresh interpreter saw when it imported colabkeep."""
    done = python(WATCH)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (line,) = done.stdout.splitlines()  # its own report: the import printed nothing
    assert list((tmp_path / "home").iterdir()) == [], "the import wrote no file"
    return json.loads(line)


def test_importing_loads_the_standard_library_and_the_errors_only(imported: dict[str, Any]) -> None:
    """No framework, no store, no widget: a notebook that imports colabkeep waits for nothing."""
    ours = {name for name in imported["modules"] if name.split(".")[0] == "colabkeep"}
    assert ours <= {"colabkeep", "colabkeep._version", "colabkeep.core", "colabkeep.core.errors"}
    foreign = {name.split(".")[0] for name in imported["modules"]} - {"colabkeep"} - set(imported["standard"])
    assert foreign == set()


def test_importing_changes_nothing(imported: dict[str, Any]) -> None:
    """Environment variables, folder, warnings, logging, threads and search path are as they were."""
    assert imported["environ"]
    assert imported["folder"]
    assert imported["quiet"]


def test_every_public_name_can_be_had_from_a_fresh_interpreter(python: Python) -> None:
    """What is promised in `__all__` exists, is shown by `dir`, and a misspelt name is an AttributeError."""
    program = """
import colabkeep
for name in colabkeep.__all__:
    assert getattr(colabkeep, name) is not None and name in dir(colabkeep), name
try:
    colabkeep.resumable_fti
except AttributeError as error:
    assert "resumable_fti" in str(error)
else:
    raise SystemExit("a misspelt name was found")
"""
    done = python(program)
    assert done.returncode == 0, done.stderr


def test_the_types_of_every_public_name_can_be_read_by_programs() -> None:
    """Editors and validators that ask for type hints get classes, not an error about a name."""
    public = [getattr(colabkeep, name) for name in colabkeep.__all__]
    for door in [each.__init__ if isinstance(each, type) else each for each in public if callable(each)]:
        typing.get_type_hints(door)  # raises where a name is not known
    assert typing.get_type_hints(colabkeep.browse)["return"].__name__ == "Browser"
    assert typing.get_type_hints(colabkeep.check)["return"].__name__ == "CheckReport"
