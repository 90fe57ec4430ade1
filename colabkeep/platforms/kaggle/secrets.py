"""The secrets of a Kaggle notebook, by `kaggle_secrets`, with its failures told apart.

The client's own handler for network errors stands before the one for answers with an error code, so a refusal (401,
403, 500) comes out as a ConnectionError too; only its cause tells whether the network is off
(Kaggle/docker-python, patches/kaggle_web_client.py, read in August 2026).
"""

from __future__ import annotations

import threading
from importlib import import_module
from json import JSONDecodeError
from typing import Any
from urllib.error import HTTPError

from colabkeep.core.errors import SecretError

__all__ = ["ask"]

_ATTACH = "Add-ons → Secrets: add it there if it is missing, and tick its box, which attaches it to this notebook"


def ask(name: str, timeout: float) -> str:
    """The value of a secret that is attached to this notebook, in `timeout` seconds (the client alone may take 40).

    Raises:
        SecretError: there is none, access is refused, or the service does not answer. The client's own error is not
            chained: its text quotes the service's answer.
    """
    if not name.strip():
        raise SecretError(problem="A secret has a name, and this one is empty.", remedy="Give the label of a secret.")
    answers: list[str] = []
    errors: list[SecretError] = []

    def work() -> None:
        try:
            answers.append(_ask(name))
        except SecretError as error:
            errors.append(error)
        except Exception as error:  # noqa: BLE001  # whatever the client raises is told apart in `_explained`
            errors.append(_explained(error, name))

    thread = threading.Thread(target=work, name="colabkeep-secret", daemon=True)
    thread.start()
    thread.join(timeout)
    if answers:
        return answers[0]
    if errors:
        raise errors[0]
    raise SecretError(
        problem=f"Kaggle's service for secrets did not answer within {timeout:g} s when asked for {name!r}.",
        remedy="Run the cell again. If it stays so: Settings → Internet on, which secrets need.",
    )


def _ask(name: str) -> str:
    value: Any = import_module("kaggle_secrets").UserSecretsClient().get_secret(name)
    if not isinstance(value, str) or not value:
        raise SecretError(
            problem=f"The secret {name!r} is attached to this notebook, and it is empty.",
            remedy="Add-ons → Secrets: give it its value, then run the cell again.",
        )
    return value


def _explained(error: Exception, name: str) -> SecretError:
    """The client's error in our words. Its classes have moved between two modules, so they are known by name."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    code = error.__cause__.code if isinstance(error.__cause__, HTTPError) else None
    if "CredentialError" in kinds or code in (401, 403):
        told = "this session has no token for secrets" if code is None else f"it answered with code {code}"
        return SecretError(
            problem=f"Kaggle does not let this notebook read the secret {name!r}: {told}.",
            remedy=f"{_ATTACH}. Then restart the session and run again.",
        )
    if code is not None:
        return SecretError(
            problem=f"Kaggle's service for secrets failed when asked for {name!r}: it answered with code {code}.",
            remedy="That is on Kaggle's side: run the cell again in a minute.",
        )
    if (garbled := _garbled(error, kinds)) is not None:
        return SecretError(
            problem=f"Kaggle's service for secrets was asked for {name!r}, and answered with {garbled}.",
            remedy="That is on Kaggle's side, or of a proxy on the way: run the cell again in a minute. Whether the "
            "secret is attached is not known.",
        )
    if "BackendError" in kinds:
        return SecretError(problem=f"No secret {name!r} is attached to this notebook.", remedy=f"{_ATTACH}.")
    if isinstance(error, ConnectionError):
        return SecretError(
            problem=f"Kaggle's service for secrets could not be reached ({_reason(error)}).",
            remedy="Settings → Internet on (it needs a verified phone number), then run the cell again.",
        )
    if isinstance(error, ImportError):
        return SecretError(
            problem=f"The secret {name!r} cannot be asked for: without kaggle_secrets this is no Kaggle machine.",
            remedy=f"Set the environment variable {name}; or unset COLABKEEP_PLATFORM.",
        )
    return SecretError(
        problem=f"Kaggle's client for secrets failed when asked for {name!r} ({type(error).__name__}).",
        remedy=f"{_ATTACH}; then run the cell again.",
    )


def _garbled(error: Exception, kinds: set[str]) -> str | None:
    """What came that is no answer; None if it is one. Of its text nothing is shown: the value may be in it."""
    if isinstance(error, JSONDecodeError):
        told = error.doc.strip()
        return "a web page" if told.startswith("<") else "a part of an answer, cut short" if told else "nothing at all"
    if "HTTPException" in kinds or isinstance(error, UnicodeDecodeError):
        return "a part of an answer, cut short"
    refused = "'wasSuccessful': False" in str(error) or "exist with label" in str(error)
    return "something in a form that its client does not know" if "BackendError" in kinds and not refused else None


def _reason(error: ConnectionError) -> str:
    """What the network said, which is the cause's reason; the client's own text only guesses."""
    cause = error.__cause__ or error
    reason = getattr(cause, "reason", None) or cause
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
