"""The script that makes the notebooks, and what a notebook has shown."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_notebooks.py"


@pytest.fixture(scope="session")
def maker() -> Iterator[ModuleType]:
    """scripts/make_notebooks.py."""
    spec = importlib.util.spec_from_file_location("make_notebooks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Shown:
    """What the cells of an executed notebook have shown, as text."""

    def __init__(self, maker: ModuleType, notebook: nbformat.NotebookNode) -> None:
        self._maker, self._notebook = maker, notebook

    def by(self, tag: str) -> str:
        """The cell with that tag."""
        return "\n".join(map(_text, self._maker.tagged(self._notebook, tag).outputs))

    def everywhere(self) -> str:
        """All cells."""
        return "\n".join(_text(output) for cell in self._notebook.cells for output in cell.get("outputs", ()))

    def went_on_from(self, tag: str) -> int:
        """The step that a cell says it went on from; 0 for a fresh start."""
        (step,) = re.findall(r"[Ww]ent on from step (\d+|None)", self.by(tag))
        return 0 if step == "None" else int(step)

    def fingerprints(self) -> list[str]:
        """The digests that were compared."""
        return re.findall(r"\b[0-9a-f]{64}\b", self.by("comparison"))

    def is_equal(self) -> bool:
        """Does it say that the weights are equal, and are the digests?"""
        one, other = self.fingerprints()
        return "EQUAL, bit for bit" in self.by("comparison") and one == other


@pytest.fixture(scope="session")
def shown(maker):
    """Notebook → what it has shown."""
    return lambda notebook: Shown(maker, notebook)


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return str(output.data.get("text/plain", ""))
