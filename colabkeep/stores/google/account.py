"""Whose Drive it is, and by what right: the one secret text that users keep, credentials found in the order users
expect, sessions that hide addresses, and PyDrive2's sign-in.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colabkeep.core.errors import PlatformError, SecretError, UsageError
from colabkeep.core.system import Environment
from colabkeep.stores.base import StoreContext

# google-auth's credentials are not made for several threads, and a requests session is not either. And where Google's
# server for tokens is out of order, google-auth waits by `random.uniform` of the global generator, which belongs to the
# training (google-auth 2.62, _exponential_backoff.py): so a passing failure is made to come out at once, and is waited
# for like any other.


_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_PASSING_WORDS = frozenset({"internal_failure", "server_error", "temporarily_unavailable"})  # RFC 6749, 4.1.2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """`credentials`: a google-auth object. `expires`: when this right is known to end, in seconds since 1970."""

    credentials: Any = field(repr=False)
    expires: float | None = None


class Account:
    """Signed requests. `find` is called when the first of them is made, and after that never again."""

    def __init__(self, find: Callable[[], SignedIn]) -> None:
        self._find = find
        self._guard = threading.Lock()
        self._credentials: _OneAtATime | None = None
        self.expires: float | None = None
        self._own = threading.local()
        self._sessions: list[Any] = []

    def session(self) -> Any:
        """This thread's `google.auth.transport.requests.AuthorizedSession`."""
        session = getattr(self._own, "session", None)
        if session is None:
            from google.auth.transport.requests import AuthorizedSession
            from requests import Session

            with self._guard:
                if self._credentials is None:
                    signed = self._find()
                    self._credentials, self.expires = _OneAtATime(signed.credentials), signed.expires
                tokens = Session()
                session = AuthorizedSession(self._credentials, auth_request=_token_request(tokens))
                self._sessions += [tokens, session]
            self._own.session = session
        return session

    def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        with self._guard:
            sessions, self._sessions, self._own = self._sessions, [], threading.local()
        for session in sessions:
            session.close()


class _OneAtATime:
    """Credentials that are renewed by one thread while the others wait for it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._turn = threading.Lock()

    def before_request(self, request: Any, method: str, url: str, headers: dict[str, str]) -> None:
        """Sign the request's headers; renew first what has run out.

        Not by the method of this name that google-auth has: for a service account that one also starts a thread which
        asks iamcredentials.googleapis.com where the account may work from (2.62, credentials.py).
        """
        with self._turn:
            if not self.inner.valid:
                self.inner.refresh(request)
            self.inner.apply(headers)

    def refresh(self, request: Any) -> None:
        """Get a new access token."""
        with self._turn:
            self.inner.refresh(request)


def _token_request(session: Any) -> Callable[..., Any]:
    """google-auth's own way to ask for tokens, without its waiting, and without its surprise at a page of HTML."""
    from google.auth.exceptions import TransportError
    from google.auth.transport.requests import Request

    request = Request(session)

    def ask(url: str, method: str = "GET", **options: Any) -> Any:
        response = request(url, method=method, **options)
        # By GET a virtual machine's metadata are read, which are no tokens, and plain text in part.
        if _passes(response.status, response.data if method == "POST" else b"{}"):
            raise TransportError(f"HTTP {response.status} from the server for tokens")
        return response

    return ask


def _passes(status: int, body: bytes) -> bool:
    """May asking again help?"""
    if status in _PASSING_STATUS:
        return True
    try:
        answer: object = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, Mapping):
        return status == 200  # a gateway's page
    words = (answer.get("error"), answer.get("error_description"))
    return any(isinstance(word, str) and word in _PASSING_WORDS for word in words)


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
        """The google-auth object."""
        from google.oauth2.service_account import Credentials

        try:
            return Credentials.from_service_account_info(dict(self.info), scopes=[ROBOT_SCOPE])
        except ValueError:
            failure = _unusable("it is the key of a service account, but not a whole one")
        raise failure  # not from the cause, which may show the key


def read_secret(text: str) -> UserSecret | ServiceAccountKey:
    """What the text of the secret stands for. No error shows it."""
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


# 1. The secret `COLABKEEP_DRIVE`: the user's own OAuth client, the same on Colab, on Kaggle and at home, or the key of
#    a service account. Only what one client made is seen by it, so a run that moves between platforms needs this.
# 2. On Colab, in a cell: the user of the page.
# 3. Default credentials of this machine: a key file named by GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth
#    application-default login`, or a virtual machine of Google's.
#
# google-auth is asked for the third only where there is something to find. Elsewhere it would knock at Google's
# metadata server for ten seconds and draw its pauses from the training's generator (google-auth 2.62, _metadata.py).


def sign_in(context: StoreContext, environment: Environment) -> SignedIn:
    """The first right that there is; where there is none, the error says what was tried."""
    tried: list[str] = []
    if (text := _secret(context, environment, tried)) is not None:
        secret = read_secret(text)
        expires = secret.expires if isinstance(secret, UserSecret) else None
        return SignedIn(credentials=secret.credentials(), expires=expires)
    page = context.user is not None and _ask_page(context.user, tried)
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


def _secret(context: StoreContext, environment: Environment, tried: list[str]) -> str | None:
    if context.secret is not None:
        try:
            return context.secret(SECRET_NAME)
        except SecretError as error:
            tried.append(error.problem)
    given = environment.environ.get(SECRET_NAME)
    if given:
        return given
    if context.secret is None:
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


# PyDrive2 rests on oauth2client, which was given up in 2018 and cannot sign with today's pyOpenSSL (iterative/PyDrive2,
# issues 89, 361 and 369). So only the values are taken from its credentials. Nothing of PyDrive2 is imported to
# recognise what belongs to it.


def is_pydrive(given: object) -> bool:
    """Is it PyDrive2's `GoogleDrive` or `GoogleAuth`, or made from one?"""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(given).__mro__}
    return bool(names & {"pydrive2.drive.GoogleDrive", "pydrive2.auth.GoogleAuth"})


def from_pydrive(given: Any) -> Any:
    """google-auth credentials with the rights of a `GoogleDrive` or `GoogleAuth`."""
    auth = getattr(given, "auth", given)
    old = getattr(auth, "credentials", None)
    if old is None:
        raise UsageError(
            problem="Nobody is signed in to the Google Drive that was given as storage.",
            remedy='Call its sign-in first: gauth.LocalWebserverAuth(). Or write storage="drive://colabkeep".',
        )
    if callable(getattr(old, "before_request", None)):
        return old  # google-auth's already
    if getattr(old, "_private_key_pkcs8_pem", None):
        return _service_account(old)
    if getattr(old, "refresh_token", None) or getattr(old, "access_token", None):
        from google.oauth2.credentials import Credentials

        return Credentials(
            token=old.access_token,
            refresh_token=old.refresh_token,
            token_uri=old.token_uri,
            client_id=old.client_id,
            client_secret=old.client_secret,
            expiry=old.token_expiry,  # both count in UTC, without saying so
        )
    raise UsageError(
        problem=f"The sign-in of the Google Drive given as storage ({type(old).__name__}) cannot be taken over.",
        remedy='Write storage="drive://colabkeep", and run `colabkeep auth` once for its sign-in.',
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
