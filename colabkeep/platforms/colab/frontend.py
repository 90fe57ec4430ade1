"""Whether the page in the browser can be asked from here.

Colab's calls send their question to the page and read the answer in the kernel. What is known of who answers
(googlecolab/colabtools `_message.py`, 2026-04; colab-vscode, 2026-08; google-colab-cli, 2026-07):

===========================  ==========  ============  ==========================================================
front end                    Drive       secrets       how to tell
===========================  ==========  ============  ==========================================================
the page in the browser      answers     answers       a kernel, whose shell is google.colab's
VS Code extension            answers     silence       not at all: the same kernel, no variable; Drive since 2026-01
terminal client, its `exec`  silence     silence       not at all: the same kernel, no variable
`!python …`, a terminal      an error    an error      no IPython shell in the process
===========================  ==========  ============  ==========================================================

Silence is never an error of its own, so every question needs a deadline. And only the main thread may ask: a second
thread that waits takes the other's answers away, and both hang. Secrets alone may be asked for on any thread, for
`userdata.get` has a lock.
"""

from __future__ import annotations

import multiprocessing
import threading
from importlib import import_module
from typing import Any

from colabkeep.platforms._front import front_end
from colabkeep.platforms.colab.deadline import TooLate, deadline
from colabkeep.vocabulary.environment import Environment

__all__ = ["colab_module", "why_unreachable"]


def why_unreachable(environment: Environment, *, any_thread: bool = False) -> str | None:
    """Why the page cannot be asked from here, in a clause; None if it may be asked. `any_thread`: also off the main
    one."""
    if front_end(environment) != "notebook":
        return "this is a program of its own (`!python …`, `%%bash` or a terminal), not a cell of the notebook"
    if multiprocessing.parent_process() is not None:
        return "this is a child process, and the notebook page answers its parent only"
    thread = threading.current_thread()
    if thread is not threading.main_thread() and not any_thread:
        return f"this is the thread {thread.name!r}, and Colab's answers reach the main thread only"
    return None


def colab_module(name: str, seconds: float) -> Any:
    """The module `google.colab.<name>`, imported within `seconds`. Main thread only.

    Raises:
        ImportError: whatever it was that kept it from being imported, an import that does not end and one that ends
            the program included: so nobody looks for the fault at the page, or at the user.
    """
    try:
        with deadline(seconds):
            return import_module(f"google.colab.{name}")
    except TooLate:
        raise ImportError(f"google.colab.{name}: its import did not end within {seconds:g} s") from None
    except (Exception, SystemExit) as error:
        raise ImportError(f"google.colab.{name}: {type(error).__name__}: {error}") from error
