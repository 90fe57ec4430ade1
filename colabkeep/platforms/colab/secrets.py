"""Secrets of the notebook's page: the key symbol at its left edge. A value never gets into a message."""

from __future__ import annotations

import threading
from importlib import import_module

from colabkeep.platforms.colab.deadline import TooLate, deadline
from colabkeep.platforms.colab.frontend import colab_module, why_unreachable
from colabkeep.platforms.colab.service import clicks
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import SecretError

__all__ = ["find_secret"]

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
