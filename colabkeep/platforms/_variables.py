"""Secrets in environment variables: the one place that every platform has."""

from __future__ import annotations

from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import SecretError

__all__ = ["secret_from_variable"]


def secret_from_variable(environment: Environment, name: str) -> str:
    """The value of the environment variable `name`.

    Raises:
        SecretError: it is not set, or empty.
    """
    value = environment.environ.get(name, "")
    if value:
        return value
    raise SecretError(
        problem=f"There is no secret {name!r}: no environment variable of that name is set, or it is empty.",
        remedy=(
            f"Set it where this program is started (export {name}=…), or in a cell that nobody else sees: "
            f'import os, getpass; os.environ["{name}"] = getpass.getpass()'
        ),
    )
