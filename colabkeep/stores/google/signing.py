"""Finds the right to use a Drive, in the order in which a user would expect it.

1. The secret `COLABKEEP_DRIVE`: the user's own OAuth client, the same on Colab, on Kaggle and at home, or the key of
   a service account. Only what one client made is seen by it, so a run that moves between platforms needs this.
2. On Colab, in a cell: the user of the page.
3. Default credentials of this machine: a key file named by GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth
   application-default login`, or a virtual machine of Google's.

google-auth is asked for the third only where there is something to find. Elsewhere it would knock at Google's
metadata server for ten seconds and draw its pauses from the training's generator (google-auth 2.62, _metadata.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from colabkeep.stores.doors import Doors
from colabkeep.stores.google.account import SignedIn
from colabkeep.stores.google.secret import ROBOT_SCOPE, SECRET_NAME, UserSecret, read_secret
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import PlatformError, SecretError, UsageError

__all__ = ["is_service_account", "sign_in"]


def sign_in(doors: Doors, environment: Environment) -> SignedIn:
    """The first right that there is.

    Raises:
        UsageError: there is none, with what was tried; or the secret cannot be read.
    """
    tried: list[str] = []
    if (text := _secret(doors, environment, tried)) is not None:
        secret = read_secret(text)
        expires = secret.expires if isinstance(secret, UserSecret) else None
        return SignedIn(credentials=secret.credentials(), expires=expires)
    page = doors.user is not None and _ask_page(doors.user, tried)
    if page or _has_default(environment):
        found = _default(with_scope=not page, tried=tried)
        if found is not None:
            return SignedIn(credentials=found)
    else:
        tried.append("This machine has no default credentials of Google.")
    raise UsageError(
        problem="Nobody is signed in to Google Drive, so checkpoints cannot be kept there. " + " ".join(tried),
        remedy=f"Run `colabkeep auth` once on any machine with a browser, and store the line it prints as the secret "
        f"{SECRET_NAME} of this platform; then run this cell again.",
    )


def is_service_account(credentials: Any) -> bool:
    """Is this a robot with no storage of its own? One that acts for a person, by domain-wide delegation, is not; and
    what Colab's page grants looks like a virtual machine's, and is a person's."""
    from google.oauth2.service_account import Credentials

    return isinstance(credentials, Credentials) and getattr(credentials, "_subject", None) is None


def _secret(doors: Doors, environment: Environment, tried: list[str]) -> str | None:
    if doors.secret is not None:
        try:
            return doors.secret(SECRET_NAME)
        except SecretError as error:
            tried.append(error.problem)
    given = environment.environ.get(SECRET_NAME)
    if given:
        return given
    if doors.secret is None:
        tried.append(f"The environment variable {SECRET_NAME} is not set.")
    return None


def _ask_page(user: Callable[[], None], tried: list[str]) -> bool:
    try:
        user()
    except PlatformError as error:
        tried.append(error.problem)
        return False
    return True


def _has_default(environment: Environment) -> bool:
    """Is there anything for google-auth to find? The places are its own (2.62, _default.py and _metadata.py)."""
    environ = environment.environ
    if environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return True
    gcloud = environ.get("CLOUDSDK_CONFIG") or f"{environ.get('HOME', '')}/.config/gcloud"
    if environment.is_file(f"{gcloud}/application_default_credentials.json"):
        return True
    return environment.text("/sys/class/dmi/id/product_name").startswith("Google")


def _default(*, with_scope: bool, tried: list[str]) -> Any:
    import google.auth
    from google.auth.credentials import with_scopes_if_required
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials, _ = google.auth.default()
    except GoogleAuthError as error:
        tried.append(f"The default credentials of this machine cannot be used ({type(error).__name__}).")
        return None
    # What Colab's page granted must be taken as it is; a key or a virtual machine has to be told what for.
    return with_scopes_if_required(credentials, [ROBOT_SCOPE]) if with_scope else credentials
