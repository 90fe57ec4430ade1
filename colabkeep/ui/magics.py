"""What `%load_ext colabkeep` does: show the check, and let `%colabkeep list` say what the command line says."""

from __future__ import annotations

import shlex
import sys
from importlib import import_module
from typing import Any

from colabkeep.core.language import said
from colabkeep.ui.check.report import examine
from colabkeep.ui.cli import main

_NAME = "colabkeep"


def load(shell: Any) -> None:
    """Register the magic in an IPython shell and show the check. Loading again does the same again."""
    shell.register_magic_function(_colabkeep, magic_kind="line", magic_name=_NAME)
    try:
        import_module("IPython.display").display(examine())
    except Exception as error:  # noqa: BLE001  # a notebook's start goes on, and sees what failed
        failed = (
            f"colabkeep: the check failed ({type(error).__name__}: {error}). You can start training anyway; "
            "%colabkeep doctor checks again.\n"
        )
        sys.stderr.write(said(failed))


def unload(shell: Any) -> None:
    """Take the magic away again."""
    shell.magics_manager.magics["line"].pop(_NAME, None)


def _colabkeep(line: str) -> None:
    """`%colabkeep doctor|list|show|verify|export|…`: the command line's own words; `%colabkeep --help` has them."""
    try:
        main(shlex.split(line))
    except ValueError as error:  # a quotation mark that is not closed
        sys.stderr.write(f"colabkeep: {error}\n")
    except SystemExit:
        return  # help, or words that cannot be read: argparse has said so
