"""The page in the browser, asked from here with a deadline: whether it can be asked, its secrets, and its user."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from colabkeep.core.errors import PlatformError, SecretError
from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within
from colabkeep.platforms.base import front_end

# googlecolab/colab-vscode: README and the user guide of its wiki (2026-04). The longer ones come first.
_REMOVE = "the Colab button above the notebook > Remove Server"
_NEW = "Select Kernel (top right) > Colab > New Colab Server"
_VSCODE = (
    ("Runtime > Change runtime type > Hardware accelerator: T4 GPU > Save", f"{_NEW} > GPU > T4"),
    ("Runtime > Change runtime type > another hardware accelerator > Save", f"{_NEW} > another machine type"),
    ("Runtime > Disconnect and delete runtime > Yes, then Connect (top right)", f"{_REMOVE}, then {_NEW}"),
    ("Runtime > Disconnect and delete runtime, connect again", f"{_REMOVE}, then {_NEW}"),
    ("Runtime > Disconnect and delete runtime", _REMOVE),
    ("Runtime > Restart session", "Restart, above the notebook"),
)


def clicks(environment: Environment, text: str) -> str:
    """The same text with the clicks of VS Code, where that shows the notebook: it has no menu called Runtime."""
    for page, vscode in _VSCODE if environment.vscode else ():
        text = text.replace(page, vscode)
    return text


# Colab's own calls wait for the browser on the main thread and must stay there, so nobody can give them up from
# outside. An alarm signal can: their waiting is done in Python (googlecolab/colabtools, `_message.py` polls every 25
# ms, and pexpect waits on a queue; 2026-04), and a signal handler runs in between.

_AGAIN = 1.0  # seconds; an alarm that fell into somebody's `except:` is followed by another
_AT_ONCE = 1e-6  # seconds; 0 would switch the timer off


class TooLate(BaseException):
    """The time is up. No `Exception`, for the code that waits ignores those while it reads its messages."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `TooLate` out of the block after `seconds` of real time. Main thread only.

    A timer of the program's own (`signal.setitimer`) is held up meanwhile and goes on afterwards with what was left.
    """
    armed, began = True, time.monotonic()

    def ring(*_: object) -> None:
        if armed:
            raise TooLate

    handler = signal.signal(signal.SIGALRM, ring)
    theirs, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        try:
            armed = False
        finally:  # also when the alarm rang on the line before
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
            if theirs:
                signal.setitimer(signal.ITIMER_REAL, max(theirs - (time.monotonic() - began), _AT_ONCE), interval)


# Colab's calls send their question to the page and read the answer in the kernel. Who answers (googlecolab/colabtools
# `_message.py`, 2026-04; colab-vscode, 2026-08; google-colab-cli, 2026-07):
#
# * the page in the browser: always
# * the VS Code extension: for Drive since 2026-01, for secrets never
# * the `exec` of the terminal client: never
# * `!python …` and terminals: an error, as there is no IPython shell in the process
#
# The first three are the same kernel, and no variable tells them apart. Silence is never an error of its own, so every
# question needs a deadline. And only the main thread may ask: a second thread that waits takes the other's answers
# away, and both hang. Secrets alone may be asked for on any thread, for `userdata.get` has a lock.


def why_unreachable(environment: Environment, *, any_thread: bool = False) -> str | None:
    """Why the page cannot be asked from here, in a clause; None if it may be asked. `any_thread`: also off the main
    one."""
    if front_end(environment) != "notebook":
        return "this is a program of its own (`!python …`, `%%bash` or a terminal), not a cell of the notebook"
    import multiprocessing  # seldom asked for, and takes longer than the detection

    if multiprocessing.parent_process() is not None:
        return "this is a child process, and the notebook page answers its parent only"
    thread = threading.current_thread()
    if thread is not threading.main_thread() and not any_thread:
        return f"this is the thread {thread.name!r}, and Colab's answers reach the main thread only"
    return None


def colab_module(name: str, seconds: float) -> Any:
    """The module `google.colab.<name>`, imported within `seconds`. Main thread only. `ImportError`, whatever it was
    that kept it from being imported: so nobody looks for the fault at the page, or at the user."""
    try:
        with deadline(seconds):
            return import_module(f"google.colab.{name}")
    except TooLate:
        raise ImportError(f"google.colab.{name}: its import did not end within {seconds:g} s") from None
    except (Exception, SystemExit) as error:
        raise ImportError(f"google.colab.{name}: {type(error).__name__}: {error}") from error


def bounded(seconds: float, least: float = 1.0) -> float:
    """At least `least` and at most an hour: Colab takes 0 for "for ever"."""
    return min(max(least, seconds), 3600.0)  # in this order, nan becomes the least


_PANEL = "Click the key symbol at the left edge of the notebook"


def find_secret(environment: Environment, name: str, timeout: float) -> str:
    """The environment variable of that name, which is there at once; else the secret `name` of the page, which may
    never answer. `SecretError` says what it answered."""
    if value := environment.environ.get(name):
        return value
    if (why := why_unreachable(environment, any_thread=True)) is not None:
        raise SecretError(problem=f"The secret {name!r} cannot be asked for here: {why}.", remedy=_by_variable(name))
    try:
        answer = _ask(name, bounded(timeout))
    except (Exception, TooLate) as error:  # noqa: BLE001 - raised anew, without its text, which might show the value
        raise _refusal(environment, name, error) from None
    if not isinstance(answer, str) or not answer:
        raise SecretError(
            problem=f"The secret {name!r} exists, but it is empty.",
            remedy=f"{_PANEL}, fill in the value of {name}, and run this cell again.",
        )
    return answer


def _ask(name: str, seconds: float) -> object:
    if threading.current_thread() is threading.main_thread():
        with deadline(seconds):
            return colab_module("userdata", seconds / 2).get(name)
    # From a thread no alarm can end the call; one more thread is left waiting then, for Colab's own ten seconds.
    # `userdata.get` may be called on any: it has a lock for that (googlecolab/colabtools `userdata.py`, 2026-04).
    try:
        return within(seconds, lambda: import_module("google.colab.userdata").get(name))
    except SystemExit as error:
        raise ImportError(f"SystemExit: {error}") from None


def _refusal(environment: Environment, name: str, error: BaseException) -> SecretError:
    kind = "TimeoutException" if isinstance(error, TooLate | TimeoutError) else type(error).__name__
    problem, remedy = {
        # googlecolab/colabtools userdata.py and _message.py (2026-04)
        "SecretNotFoundError": (
            f"There is no secret {name!r} in this notebook's page.",
            f"{_PANEL} > Add new secret, name it {name}, switch Notebook access on, and run this cell again.",
        ),
        "NotebookAccessError": (
            f"The secret {name!r} exists, but this notebook may not read it.",
            f"{_PANEL}, switch Notebook access on beside {name}, and run this cell again.",
        ),
        "TimeoutException": (
            f"The notebook's page did not answer when it was asked for the secret {name!r}. In VS Code and in Colab's "
            "terminal client it never does.",
            "In the browser: grant access if the page asks for it, and run this cell again. Elsewhere: "
            + _by_variable(name),
        ),
        "MessageError": (
            f"The notebook's page answered with an error when it was asked for the secret {name!r}.",
            f"Reload the page and run this cell again, or {_by_variable(name)}",
        ),
        "ValueError": (
            f"{name!r} cannot be the name of a secret: "
            + ("Colab takes no blanks in it." if name.strip() else "it is empty."),
            f"Write the name as it stands in the page. {_PANEL} to see it.",
        ),
        "ImportError": (
            f"The secret {name!r} cannot be read, because Colab's own package does not load ({error}).",
            "Runtime > Restart session, and run the notebook from the top.",
        ),
    }.get(
        kind,
        (f"The secret {name!r} could not be read: {kind}.", f"Run this cell again, or {_by_variable(name)}"),
    )
    return SecretError(problem=problem, remedy=clicks(environment, remedy))


def _by_variable(name: str) -> str:
    return f"give it in a cell of the notebook:  import os, getpass; os.environ[{name!r}] = getpass.getpass()"


_OTHERWISE = "Or run `colabkeep auth` once on any machine, and store the line it prints as the secret COLABKEEP_DRIVE."


def sign_in_user(environment: Environment, *, timeout: float = 120.0) -> None:
    """Colab's `authenticate_user`, which shows its dialog unless this session has consented before. `PlatformError`
    where the page cannot be asked, does not answer within `timeout` seconds, or the user refused."""
    if (why := why_unreachable(environment)) is not None:
        raise PlatformError(
            problem=f"The user of the notebook's page cannot be asked for Google Drive here: {why}.",
            remedy=f"Run this in a cell of the notebook. {_OTHERWISE}",
        )
    try:
        auth = colab_module("auth", bounded(timeout))
        with deadline(bounded(timeout)):
            # By itself it waits for ever where no page answers (googlecolab/colabtools, auth.py, 2026-04).
            auth.authenticate_user()
        return
    except TooLate:
        problem = f"The notebook's page did not answer within {timeout:.0f} seconds when it was asked to sign in."
    except Exception as error:  # noqa: BLE001 - raised anew, without its text, which might show a token
        problem = f"Signing in by the notebook's page failed ({type(error).__name__})."
    raise PlatformError(problem=problem, remedy=f"Run this cell again and click Allow. {_OTHERWISE}")
