"""Makes the user of the notebook's page known to Google's libraries on this machine, asking the page."""

from __future__ import annotations

from colabkeep.platforms.colab.deadline import TooLate, deadline
from colabkeep.platforms.colab.frontend import colab_module, why_unreachable
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import PlatformError

__all__ = ["sign_in_user"]

_SHORTEST, _LONGEST = 1.0, 3600.0  # seconds
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
        seconds = min(max(_SHORTEST, timeout), _LONGEST)
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
