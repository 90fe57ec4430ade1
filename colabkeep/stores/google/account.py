"""The right to act for one Google account: one credential, one HTTP session for each thread.

google-auth's credentials are not made for several threads, and a requests session is not either. And where Google's
server for tokens is out of order, google-auth waits by `random.uniform` of the global generator, which belongs
to the training (google-auth 2.62, _exponential_backoff.py): so a passing failure is made to come out at once, and is
waited for like any other.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colabkeep.stores.google.hiding import Hidden, revealing

__all__ = ["Account", "SignedIn"]

_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_PASSING_WORDS = frozenset({"internal_failure", "server_error", "temporarily_unavailable"})  # RFC 6749, 4.1.2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """`credentials`: a google-auth object. `expires`: when this right is known to end, in seconds since 1970."""

    credentials: Any = field(repr=False)
    expires: float | None = None


class Account:
    """Signed requests. `find` is called when the first of them is made, and after that never again. `hidden`: addresses
    that no log is to show."""

    def __init__(self, find: Callable[[], SignedIn]) -> None:
        self._find = find
        self.hidden = Hidden()
        self._guard = threading.Lock()
        self._credentials: _OneAtATime | None = None
        self.expires: float | None = None
        self._own = threading.local()
        self._sessions: list[Any] = []

    def session(self) -> Any:
        """This thread's `google.auth.transport.requests.AuthorizedSession`.

        Raises:
            ColabKeepError: whatever `find` raises.
        """
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
                for scheme in ("https://", "http://"):
                    session.mount(scheme, revealing(self.hidden))
                self._sessions += [tokens, session]
            self._own.session = session
        return session

    def credentials(self) -> Any:
        """The google-auth object itself.

        Raises:
            ColabKeepError: whatever `find` raises.
        """
        return self.session().credentials.inner

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
