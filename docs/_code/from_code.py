"""Pages that say what the code says: the command line from argparse, the cards from the catalogue, the pictures that
were made. `{command-line}`, `{gpu-table}` and `{pictures}` are directives; a page writes each in a fence of its own.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from colabkeep.ui import cli
from colabkeep.ui.gpus import compare_gpus

_WIDTH = 96  # columns of the help texts, whatever the terminal is that builds the site


class CommandLine(Directive):
    """The help of `colabkeep` and of each of its commands, as `--help` prints it."""

    def run(self) -> list[nodes.Node]:
        """One literal block for each command, under its name."""
        found: list[nodes.Node] = []
        for parser in _parsers():
            parser.formatter_class = _fixed(parser.formatter_class)
            found += [nodes.rubric(text=parser.prog), _block(parser.format_help())]
        return found


class GpuTable(Directive):
    """What `colabkeep gpus` prints."""

    def run(self) -> list[nodes.Node]:
        """One literal block."""
        return [_block("\n".join(compare_gpus().lines()))]


class Pictures(Directive):
    """Every picture that lies in `pictures`, none if none was made."""

    def run(self) -> list[nodes.Node]:
        """One image for each."""
        files = sorted((Path(__file__).parents[1] / "pictures").glob("*.png"))
        return [nodes.image(uri=f"/pictures/{file.name}", alt=f"The panel: {file.stem}") for file in files]


def _parsers() -> Iterator[argparse.ArgumentParser]:
    top = cli._parser()  # the parser that users meet, and no copy of it
    yield top
    for action in top._actions:  # argparse has no other way to its commands
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _fixed(formatter: Any) -> Any:
    return lambda prog: formatter(prog, width=_WIDTH)


def _block(text: str) -> nodes.literal_block:
    block = nodes.literal_block(text, text)
    block["language"] = "text"
    return block


def _read_as_meant(_app: Any, _what: str, _name: str, _of: Any, _options: Any, lines: list[str]) -> None:
    """A word that ends in an underscore is a word, and no reference."""
    lines[:] = [re.sub(r"(\w)_(?=[\"'`,. ]|$)", r"\1\\_", line) for line in lines]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _read_as_meant)
    app.add_directive("command-line", CommandLine)
    app.add_directive("gpu-table", GpuTable)
    app.add_directive("pictures", Pictures)
    return {"parallel_read_safe": True}
