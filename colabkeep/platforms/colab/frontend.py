"""The page in the browser, asked from here with a deadline: whether it can be asked, its secrets, and its user."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from colabkeep.core.errors import PlatformError, SecretError
from colabkeep.core.system import Environment
from colabkeep.platforms.base import front_end
from colabkeep.platforms.colab.service import clicks

__all__ = [
    "TooLate",
    "colab_module",
    "deadline",
    "find_secret",
    "sign_in_user",
    "why_unreachable",
]

# Colab's own calls wait for the browser on the main thread and must stay there, so nobody can give them up from
# outside. An alarm signal can: their waiting is done in Python (googlecolab/colabtools, `_message.py` polls every 25
# ms, and pexpect waits on a queue; 2026-04), and a signal handler runs in between.


_AGAIN = 1.0  # seconds; an alarm that fell into somebody's `except:` is followed by another
_AT_ONCE = 1e-6  # seconds; 0 would switch the timer off
_ASKING = frozenset({"blocking_request", "read_reply_from_input"})
"""The functions of `google.colab._message` in which the page's answer is waited for."""


class TooLate(BaseException):
    """The time is up. No `Exception`, for the code that waits ignores those while it reads its messages. `answered`:
    the page's answer was there, and what followed took too long."""

    answered = False


@contextmanager
def deadline(seconds: float, *, afterwards: float = 0.0) -> Iterator[None]:
    """Raise `TooLate` out of the block after `seconds` of real time. Main thread only.

    `afterwards`: so many seconds more where the page's answer is not waited for any more, so that `seconds` are the
    user's alone. A timer of the program's own (`signal.setitimer`) is held up meanwhile and goes on afterwards with
    what was left.
    """
    armed, more, began = True, afterwards, time.monotonic()

    def ring(_: int, frame: FrameType | None) -> None:
        nonlocal more
        if not armed:
            return
        late = TooLate()
        late.answered = afterwards > 0.0 and not _asks(frame)
        if late.answered and more > 0.0:
            signal.setitimer(signal.ITIMER_REAL, more, _AGAIN)
            more = 0.0
            return
        raise late

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


def _asks(frame: FrameType | None) -> bool:
    """Is the page's answer being waited for, somewhere in this stack of calls?"""
    while frame is not None:
        if frame.f_code.co_name in _ASKING:
            return True
        frame = frame.f_back
    return False


# Colab's calls send their question to the page and read the answer in the kernel. What is known of who answers
# (googlecolab/colabtools `_message.py`, 2026-04; colab-vscode, 2026-08; google-colab-cli, 2026-07):
#
# ===========================  ==========  ============  ==========================================================
# front end                    Drive       secrets       how to tell ===========================  ==========
# ============  ========================================================== the page in the browser      answers
# answers       a kernel, whose shell is google.colab's VS Code extension            answers     silence       not at
# all: the same kernel, no variable; Drive since 2026-01 terminal client, its `exec`  silence     silence       not at
# all: the same kernel, no variable `!python …`, a terminal      an error    an error      no IPython shell in the
# process ===========================  ==========  ============
# ==========================================================
#
# Silence is never an error of its own, so every question needs a deadline. And only the main thread may ask: a second
# thread that waits takes the other's answers away, and both hang. Secrets alone may be asked for on any thread, for
# `userdata.get` has a lock.


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


_SHORTEST, _LONGEST = 1.0, 3600.0  # seconds
_PANEL = "Click the key symbol at the left edge of the notebook"


def find_secret(environment: Environment, name: str, timeout: float) -> str:
    """The environment variable of that name, which is there at once; else the secret `name` of the page, which may
    never answer.

    Raises:
        SecretError: neither; says what the page answered.
    """
    return environment.environ.get(name) or _ask_page(environment, name, timeout)


def _ask_page(environment: Environment, name: str, timeout: float) -> str:
    if (why := why_unreachable(environment, any_thread=True)) is not None:
        raise SecretError(problem=f"The secret {name!r} cannot be asked for here: {why}.", remedy=_by_variable(name))
    seconds = min(max(_SHORTEST, timeout), _LONGEST)  # in this order, nan becomes the shortest
    try:
        value = _on_main_thread(name, seconds) if _is_main() else _on_a_thread(name, seconds)
    except (Exception, TooLate) as error:  # noqa: BLE001 - raised anew, without its text, which might show the value
        raise _refusal(environment, name, error) from None
    if not isinstance(value, str) or not value:
        raise SecretError(
            problem=f"The secret {name!r} exists, but it is empty.",
            remedy=f"{_PANEL}, fill in the value of {name}, and run this cell again.",
        )
    return value


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _on_main_thread(name: str, seconds: float) -> object:
    with deadline(seconds):
        return colab_module("userdata", seconds / 2).get(name)


def _on_a_thread(name: str, seconds: float) -> object:
    """From a thread no alarm can end the call; one more thread is left waiting then, for Colab's own ten seconds.
    `userdata.get` may be called on any: it has a lock for that (googlecolab/colabtools `userdata.py`, 2026-04)."""
    values: list[object] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(import_module("google.colab.userdata").get(name))
        except (Exception, SystemExit) as error:  # noqa: BLE001  raised again below
            errors.append(error)

    thread = threading.Thread(target=work, name="colabkeep-secret", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0] if isinstance(errors[0], Exception) else ImportError(f"SystemExit: {errors[0]}")
    if not values:
        raise TooLate
    return values[0]


def _refusal(environment: Environment, name: str, error: BaseException) -> SecretError:
    kind = "TimeoutException" if isinstance(error, TooLate) else type(error).__name__
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


_SHORTEST_SIGN_IN, _LONGEST_SIGN_IN = 1.0, 3600.0  # seconds
_OTHERWISE = "Or run `colabkeep auth` once on any machine, and store the line it prints as the secret COLABKEEP_DRIVE."


def sign_in_user(environment: Environment, *, timeout: float = 120.0) -> None:
    """Colab's `authenticate_user`, which shows its dialog unless this session has consented before.

    Raises:
        PlatformError: the page cannot be asked, does not answer within `timeout` seconds, or the user refused.
    """
    if (why := why_unreachable(environment)) is not None:
        raise PlatformError(
            problem=f"The user of the notebook's page cannot be asked for Google Drive here: {why}.",
            remedy=f"Run this in a cell of the notebook. {_OTHERWISE}",
        )
    try:
        # By itself it waits for ever where no page answers (googlecolab/colabtools, auth.py, 2026-04).
        seconds = min(max(_SHORTEST_SIGN_IN, timeout), _LONGEST_SIGN_IN)
        auth = colab_module("auth", seconds)
        with deadline(seconds):
            auth.authenticate_user()
    except TooLate:
        failure = PlatformError(
            problem=f"The notebook's page did not answer within {timeout:.0f} seconds when it was asked to sign in.",
            remedy=f"Run this cell again and click Allow. {_OTHERWISE}",
        )
    except Exception as error:  # noqa: BLE001 - raised anew, without its text, which might show a token
        failure = PlatformError(
            problem=f"Signing in by the notebook's page failed ({type(error).__name__}).",
            remedy=f"Run this cell again and click Allow. {_OTHERWISE}",
        )
    else:
        return
    raise failure
