"""The one text that a user keeps in Colab's or Kaggle's secrets, and that `colabkeep auth` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from colabkeep.vocabulary.errors import UsageError

__all__ = ["DRIVE_SCOPE", "ROBOT_SCOPE", "SECRET_NAME", "TOKEN_URI", "ServiceAccountKey", "UserSecret", "read_secret"]

SECRET_NAME = "COLABKEEP_DRIVE"  # noqa: S105 - the name of a secret
"""Under this name `colabkeep auth`'s text is looked for: in the platform's secrets, then in the environment."""

DRIVE_SCOPE = "https://www.googleapis.com/auth/drive.file"
"""The right to see and change what this very OAuth client made, and nothing else of the user's Drive. It is enough for
everything here, and needs no verification by Google ("When is verification not needed", Google Cloud help)."""

ROBOT_SCOPE = "https://www.googleapis.com/auth/drive"
"""What a service account is signed in for. It is a user of its own who sees only what was shared with it, and with less
it does not see the shared drive that it is a member of, for no client made that."""

TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSecret:
    """A person's consent, given once to an OAuth client of their own.

    `expires`: when Google said that it ends (seconds since 1970), None where it said nothing. The members of the
    text are those of Google's own "authorized_user" files, so other tools can use it too.
    """

    client_id: str
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)
    token_uri: str = TOKEN_URI
    scopes: tuple[str, ...] = (DRIVE_SCOPE,)
    expires: float | None = None

    def text(self) -> str:
        """The secret on one line, to be stored."""
        record: dict[str, Any] = {
            "type": "authorized_user",
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "refresh_token": self.refresh_token,
            "token_uri": self.token_uri,
            "scopes": list(self.scopes),
        }
        if self.expires is not None:
            record["expires"] = self.expires
        return json.dumps(record)

    def credentials(self) -> Any:
        """The google-auth object. No scopes are named: a refresh grants what the consent did.

        Built directly, for `from_authorized_user_info` takes no `token_uri` (google-auth 2.62, oauth2/credentials.py).
        """
        from google.oauth2.credentials import Credentials

        return Credentials(
            token=None,
            refresh_token=self.refresh_token,
            client_id=self.client_id,
            client_secret=self.client_secret,
            token_uri=self.token_uri,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountKey:
    """The key file of a service account, which has no storage of its own and needs a shared drive."""

    info: Mapping[str, Any] = field(repr=False)

    def credentials(self) -> Any:
        """The google-auth object.

        Raises:
            UsageError: it is no whole key file.
        """
        from google.oauth2.service_account import Credentials

        try:
            return Credentials.from_service_account_info(dict(self.info), scopes=[ROBOT_SCOPE])
        except ValueError:
            failure = _unusable("it is the key of a service account, but not a whole one")
        raise failure  # not from the cause, which may show the key


def read_secret(text: str) -> UserSecret | ServiceAccountKey:
    """What the text of the secret stands for.

    Raises:
        UsageError: it is neither. The text is never shown.
    """
    try:
        record: object = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _unusable("it is not the JSON text that `colabkeep auth` prints")
    if record.get("type") == "service_account":
        return ServiceAccountKey(info=record)
    if "installed" in record or "web" in record:
        raise _unusable("it is the OAuth client itself, to which nobody has consented yet")
    values = {name: record.get(name) for name in ("client_id", "client_secret", "refresh_token")}
    for name, value in values.items():
        if not isinstance(value, str) or not value:
            raise _unusable(f"it has no {name}")
    expires = record.get("expires")
    scopes = record.get("scopes")
    return UserSecret(
        **{name: str(value) for name, value in values.items()},
        token_uri=str(record.get("token_uri") or TOKEN_URI),
        scopes=tuple(map(str, scopes)) if isinstance(scopes, list) else (DRIVE_SCOPE,),
        expires=float(expires) if isinstance(expires, int | float) else None,
    )


def _unusable(why: str) -> UsageError:
    return UsageError(
        problem=f"The secret {SECRET_NAME} cannot be used: {why}.",
        remedy=f"Run `colabkeep auth` on any machine with a browser, and store the line it prints as {SECRET_NAME}.",
    )
