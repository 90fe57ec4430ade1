"""What an integration uses of a trainer and its makers do not promise stands in one table, which is looked at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "colabkeep" / "integrations"
# Trainer → the modules that work with it. paddle_hapi has its few names, and their check, in the module itself.
TRAINERS = {
    "keras": ("keras", "keras_data", "keras_files"),
    "lightning": ("lightning", "lightning_files"),
    "transformers": ("transformers", "pretrained"),
}
OTHERS = {"__init__", "insides", "memories", "paddle_hapi", "shared"}


def private(name: str) -> bool:
    return name.startswith("_") and name.isidentifier() and bool(name.strip("_")) and not name.startswith("__")


def uses(text: str) -> Iterator[str]:
    """The private names that a module takes of others: as attributes, as imports, and as texts."""
    tree = ast.parse(text)
    pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in {"self", "cls", "sys"}:
            yield from filter(private, [node.attr])
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("colabkeep"):
            yield from (alias.name for alias in node.names if private(alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            yield from filter(private, [node.value])


def listed(trainer: str) -> set[str]:
    tree = ast.parse((FOLDER / f"{trainer}_insides.py").read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {name for text in texts for name in re.split(r"[|:]", text)}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_private_name_of_a_trainer_is_looked_at_before_it_is_used(trainer: str) -> None:
    """A new version of a trainer is refused with words where it lacks what colabkeep works with, never guessed."""
    used = {name for module in TRAINERS[trainer] for name in uses((FOLDER / f"{module}.py").read_text())}
    assert sorted(used - listed(trainer)) == []


@pytest.mark.parametrize(
    "line",
    ["trainer._loop.run()", 'setattr(trainer, "_loop", 1)', "from keras import _loop", "self._trainer._loop = 1"],
)
def test_a_name_that_is_in_no_table_is_found(line: str) -> None:
    """In whichever way it is used."""
    assert "_loop" in set(uses(line)) - listed("keras")
    assert not set(uses('self._loop = f"a{self._loop}_loop"\nsys._getframe(2)'))


def test_every_integration_is_looked_at() -> None:
    """A new one has a table of its own."""
    known = {module for modules in TRAINERS.values() for module in modules} | {f"{name}_insides" for name in TRAINERS}
    assert {file.stem for file in FOLDER.glob("*.py")} == known | OTHERS
