"""Which frameworks a test file needs, read from the file: nobody keeps a list.

A file needs a framework that a folder above it is named after (`tests/session/paddle`, `tests/frameworks/torch`;
`together` means both), that it imports, or that something it is made of imports: the conftest.py of its folders, the
helpers in `tests` that it uses, or that its first mark names: `pytestmark = pytest.mark.torch`. A test that imports it
later, or starts a program that does, is marked: `@pytest.mark.torch`, `@pytest.mark.paddle`. All other tests are
neutral, and run in every environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["FRAMEWORKS", "TESTS", "chosen", "installed", "marked", "needs"]

FRAMEWORKS = ("torch", "paddle")
TESTS = Path(__file__).resolve().parent

_ANY = "|".join(FRAMEWORKS)
_IMPORTS = re.compile(rf"^(?:import|from)\s+(?:safetensors\.)?({_ANY})\b", re.MULTILINE)
_WHOLE = re.compile(rf"^pytestmark = (?:\[\s*)?pytest\.mark\.({_ANY})\b", re.MULTILINE)
_MARKS = re.compile(rf"\bpytest\.mark\.({_ANY})\b")
_HELPERS = re.compile(r"^\s*(?:import|from)\s+(tests(?:\.\w+)+)(?:\s+import\s+(\w+))?", re.MULTILINE)


def installed() -> frozenset[str]:
    """The frameworks that could be imported here. None is."""
    return frozenset(name for name in FRAMEWORKS if find_spec(name) is not None)


def chosen(words: str) -> frozenset[str]:
    """The frameworks of an environment, "torch" or "torch,paddle"; "installed": those that are.

    Raises:
        ValueError: one is not installed, or one is that should not be: the environment is not what it claims to be.
    """
    if words == "installed":
        return installed()
    wanted = frozenset(words.split(","))
    if wanted != installed():
        raise ValueError(f"--frameworks={words}, but installed are: {', '.join(sorted(installed())) or 'none'}")
    return wanted


@cache
def needs(file: Path) -> frozenset[str]:
    """The frameworks that a test file, or all that is below a folder, cannot do without."""
    folders = file.parts[len(TESTS.parts) :] if file.is_relative_to(TESTS) else ()
    named = set(FRAMEWORKS) if "together" in folders else set(FRAMEWORKS).intersection(folders)
    return frozenset(named.union(*(_read(part)[0] for part in _made_of(file))))


def marked(file: Path) -> frozenset[str]:
    """The frameworks that single tests of a file are marked with."""
    return frozenset(_MARKS.findall(file.read_text()))


@cache
def _read(path: Path) -> tuple[frozenset[str], tuple[Path, ...]]:
    """The frameworks that one file imports or is marked with, and where the helpers may lie that it uses."""
    text, helpers = path.read_text(), []
    for module, name in _HELPERS.findall(text):
        place = TESTS.parent.joinpath(*module.split("."))
        helpers += [place.with_suffix(".py"), place / "__init__.py", place / f"{name}.py"]
    return frozenset(_IMPORTS.findall(text) + _WHOLE.findall(text)), tuple(one for one in helpers if one.is_file())


def _made_of(file: Path) -> Iterator[Path]:
    todo = [file, *(folder / "conftest.py" for folder in [file, *file.parents] if folder.is_relative_to(TESTS))]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen or path.suffix != ".py" or not path.is_file():
            continue
        seen.add(path)
        yield path
        todo += _read(path)[1]
