"""Who may ask: OAuth clients, what users granted them, and the short-lived tokens in between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.fakes.drive.answers import ApiError
from tests.fakes.drive.discovery import SCOPE
from tests.fakes.drive.files import Caller
from tests.fakes.drive.ids import fresh
from tests.fakes.drive.shelf import Shelf


@dataclass
class Client:
    """A registered application."""

    id: str
    secret: str


@dataclass
class Grant:
    """A refresh token: an account's yes to a client, until revoked."""

    token: str
    client: str
    account: str
    scopes: list[str]


@dataclass
class Access:
    """An access token; `expires` on the server's clock."""

    token: str
    client: str
    account: str
    scopes: list[str]
    expires: float


@dataclass
class Code:
    """What the consent page hands to the redirect, good for one exchange."""

    code: str
    client: str
    account: str
    scopes: list[str]
    redirect: str
    challenge: str | None


class Tokens:
    """All of them. Changed under `State.guard`."""

    def __init__(self, folder: Path) -> None:
        self.clients = Shelf(folder / "clients", Client)
        self.grants = Shelf(folder / "grants", Grant)
        self.access = Shelf(folder / "access", Access)
        self.codes = Shelf(folder / "codes", Code)

    def register(self, client: str) -> Client:
        """The client of that id, registered if it is new."""
        found = self.clients.get(client)
        if found is None:
            found = Client(client, fresh("GOCSPX-"))
            self.clients.save(client, found)
        return found

    def grant(self, client: str, account: str, scopes: list[str]) -> Grant:
        """A new refresh token."""
        grant = Grant(fresh("1--"), client, account, scopes)
        self.grants.save(grant.token, grant)
        return grant

    def admit(self, client: str, account: str, scopes: list[str], expires: float) -> Access:
        """A new access token."""
        access = Access(fresh("ya29."), client, account, scopes, expires)
        self.access.save(access.token, access)
        return access

    def expire(self) -> None:
        """No access token is good any more; refresh tokens are."""
        for access in self.access:
            self.access.remove(access.token)

    def revoke(self) -> None:
        """The user took back every consent: refresh tokens too are dead."""
        self.expire()
        for grant in self.grants:
            self.grants.remove(grant.token)

    def caller(self, bearer: str | None, now: float) -> Caller:
        """Whose access token this is. Raises ApiError: 403 for none at all, 401 for one that is not good (the two
        were measured on the live service: github.com/brekkylab/backlot, backlot/errors/google.py, August 2026)."""
        if bearer is None:
            text = "Method doesn't allow unregistered callers (callers without established identity)."
            raise ApiError(403, "forbidden", text, canonical="PERMISSION_DENIED")
        access = self.access.get(bearer)
        if access is None or access.expires <= now:
            raise ApiError(
                401,
                "authError",
                "Request had invalid authentication credentials. Expected OAuth 2 access token.",
                location="Authorization",
                canonical="UNAUTHENTICATED",
                short="Invalid Credentials",
                headers={"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/", error="invalid_token"'},
            )
        return Caller(access.account, access.client, frozenset(one.removeprefix(SCOPE) for one in access.scopes))
