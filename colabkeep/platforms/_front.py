"""Through which front end a user looks at this process."""

from __future__ import annotations

from typing import Literal

from colabkeep.vocabulary.environment import Environment

__all__ = ["front_end"]


def front_end(environment: Environment) -> Literal["notebook", "terminal", "process"]:
    """notebook: a kernel, which a notebook talks to; terminal: IPython in a terminal; process: plain Python, also
    one that a notebook started with `!python`."""
    if not environment.shell:
        return "process"
    return "terminal" if "TerminalInteractiveShell" in environment.shell else "notebook"
