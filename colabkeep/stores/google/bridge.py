"""PyDrive2 and google-auth: what a user signed in with one, the other can use.

PyDrive2 rests on oauth2client, which was given up in 2018 and cannot sign with today's pyOpenSSL
(iterative/PyDrive2, issues 89, 361 and 369). So only the values are taken from its credentials, and only an object of
ours is given to it. Nothing of PyDrive2 is imported to recognise what belongs to it.
"""

from __future__ import annotations

from typing import Any

from colabkeep.stores.google.secret import ROBOT_SCOPE
from colabkeep.vocabulary.errors import MissingDependency, UsageError

__all__ = ["from_pydrive", "is_pydrive", "to_pydrive"]


def is_pydrive(given: object) -> bool:
    """Is it PyDrive2's `GoogleDrive` or `GoogleAuth`, or made from one?"""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(given).__mro__}
    return bool(names & {"pydrive2.drive.GoogleDrive", "pydrive2.auth.GoogleAuth"})


def from_pydrive(given: Any) -> Any:
    """google-auth credentials with the rights of a `GoogleDrive` or `GoogleAuth`.

    Raises:
        UsageError: nobody is signed in there, or in a way that cannot be taken over.
    """
    auth = getattr(given, "auth", given)
    old = getattr(auth, "credentials", None)
    if old is None:
        raise UsageError(
            problem="Nobody is signed in to the Google Drive that was given as storage.",
            remedy='Call its sign-in first: gauth.LocalWebserverAuth(). Or write storage="drive://colabkeep".',
        )
    if isinstance(old, _ForPyDrive):
        return old.inner
    if callable(getattr(old, "before_request", None)):
        return old  # google-auth's already
    if getattr(old, "_private_key_pkcs8_pem", None):
        return _service_account(old)
    if getattr(old, "refresh_token", None) or getattr(old, "access_token", None):
        return _user(old)
    raise UsageError(
        problem=f"The sign-in of the Google Drive given as storage ({type(old).__name__}) cannot be taken over.",
        remedy='Write storage="drive://colabkeep", and run `colabkeep auth` once for its sign-in.',
    )


def to_pydrive(credentials: Any) -> Any:
    """PyDrive2's `GoogleDrive` with google-auth credentials. Do not send large files with it: it waits for ever after
    one lost answer.

    Raises:
        MissingDependency: PyDrive2 is not installed.
    """
    try:
        from googleapiclient.discovery import build
        from pydrive2.auth import GoogleAuth
        from pydrive2.drive import GoogleDrive
    except ImportError as error:
        raise MissingDependency(
            problem=f"PyDrive2 cannot be loaded: {error}.", remedy="Install it: pip install 'PyDrive2>=1.20'."
        ) from error
    auth = GoogleAuth(settings_file=None, http_timeout=60)
    auth.credentials = _ForPyDrive(credentials)
    # With a service there already, PyDrive2's own sign-in, which would open a browser, never runs.
    auth.service = build("drive", "v2", http=auth.Get_Http_Object(), cache_discovery=False, static_discovery=True)
    return GoogleDrive(auth)


class _ForPyDrive:
    """As much of oauth2client's credentials as PyDrive2 asks for. google-auth renews them by itself."""

    access_token_expired = False

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def authorize(self, http: Any) -> Any:
        """The same connection, signed."""
        from google_auth_httplib2 import AuthorizedHttp

        return AuthorizedHttp(self.inner, http=http)

    def refresh(self, http: Any) -> None:
        """Get a new access token."""
        from google_auth_httplib2 import Request

        self.inner.refresh(Request(http))

    def set_store(self, store: Any) -> None:
        """Nothing is stored."""


def _user(old: Any) -> Any:
    from google.oauth2.credentials import Credentials

    return Credentials(
        token=old.access_token,
        refresh_token=old.refresh_token,
        token_uri=old.token_uri,
        client_id=old.client_id,
        client_secret=old.client_secret,
        expiry=old.token_expiry,  # both count in UTC, without saying so
    )


def _service_account(old: Any) -> Any:
    from google.oauth2.service_account import Credentials

    key = old._private_key_pkcs8_pem
    return Credentials.from_service_account_info(
        {
            "private_key": key.decode() if isinstance(key, bytes) else key,
            "private_key_id": old._private_key_id,
            "client_email": old.service_account_email,
            "token_uri": old.token_uri,
        },
        scopes=[ROBOT_SCOPE],
        subject=getattr(old, "_kwargs", {}).get("sub"),
    )
