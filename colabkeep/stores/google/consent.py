"""Asks a person, once, to let their own OAuth client use their Drive, by an address that they open in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import secrets
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from colabkeep.core.errors import PlatformError, StoreUnavailable, UsageError
from colabkeep.core.system import Clock
from colabkeep.stores.google.account import TOKEN_URI, UserSecret

# Google sends the browser of a Desktop client on to any port of 127.0.0.1 ("OAuth 2.0 for iOS & Desktop Apps",
# developers.google.com/identity; RFC 8252, 7.3).


_PAGE = """\
<!doctype html><meta charset="utf-8"><title>colabkeep</title>
<p>colabkeep has the answer. Close this page and go back to where you started it.</p>
"""


class Loopback:
    """Listens at `address` for as long as the `with` lasts."""

    def __init__(self) -> None:
        answers: queue.Queue[str] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # seconds; a connection on which nothing comes does not keep the answer out

            def do_GET(self) -> None:
                brings = {"code", "error"} & parse_qs(urlsplit(self.path).query).keys()
                data = _PAGE.encode() if brings else b""
                self.send_response(200 if brings else 404)  # browsers also ask for an icon
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(data)
                if brings:
                    answers.put(self.path)

            def log_message(self, format: str, *args: object) -> None:
                """The address holds the answer, which is nobody else's business."""

        self._answers = answers
        # Not HTTPServer: that looks up this machine's name, which takes seconds where there is no name server.
        self._server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def wait(self, seconds: float) -> str | None:
        """The whole address to which the browser was sent, None if it did not come in so many seconds."""
        try:
            return self.address.rstrip("/") + self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


# The person's browser is sent on to an address of its own machine, which carries the answer ("OAuth 2.0 for iOS &
# Desktop Apps", developers.google.com/identity). If that is this machine, we listen there (`Loopback`), and nothing has
# to be copied; if it is not, nobody listens there, and the person copies that address back here.


_CONSENT_URI = "https://accounts.google.com/o/oauth2/v2/auth"
_REDIRECT = "http://127.0.0.1:53217/"  # any port does for a Desktop client, and here nobody listens
_TIMEOUTS = (10.0, 30.0)  # seconds to connect, and for an answer
_CLIENTS = "https://console.cloud.google.com/auth/clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """The user's own client, made in their own Cloud project."""

    id: str
    secret: str = field(repr=False)
    token_uri: str = TOKEN_URI
    consent_uri: str = _CONSENT_URI


def read_client(text: str) -> OAuthClient:
    """The client of the JSON file that the Cloud console offers for download. No error shows its text."""
    try:
        record: Any = json.loads(text)
        values = record.get("installed") or record["web"]
        return OAuthClient(
            id=str(values["client_id"]),
            secret=str(values["client_secret"]),
            token_uri=str(values.get("token_uri") or TOKEN_URI),
            consent_uri=str(values.get("auth_uri") or _CONSENT_URI),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        failure = UsageError(
            problem="That is not the file of an OAuth client.",
            remedy=f"Open {_CLIENTS}, click your client (or Create client > Desktop app), and Download JSON.",
        )
    raise failure  # not from the cause, which may show the secret


def ask_by_address(
    client: OAuthClient, scope: str, ask: Callable[[str], str], clock: Clock, redirect: str = _REDIRECT
) -> UserSecret:
    """Have the person open an address and say yes; `ask` gets it and returns the one that the browser was sent on to,
    which begins with `redirect`."""
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(64)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    question = {
        "client_id": client.id,
        "redirect_uri": redirect,
        "response_type": "code",
        "scope": scope,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "access_type": "offline",  # a refresh token, and
        "prompt": "consent",  # a new one also for whoever consented before
    }
    code = _pasted_code(ask(f"{client.consent_uri}?{urlencode(question)}"), state)
    form = {
        "client_id": client.id,
        "client_secret": client.secret,
        "code": code,
        "code_verifier": verifier,
        "grant_type": "authorization_code",
        "redirect_uri": redirect,
    }
    status, answer = _post(client.token_uri, form)
    if status != 200:
        raise _refused(answer)
    return _granted(client, scope, answer, clock.time())


def _pasted_code(pasted: str, state: str) -> str:
    values = {name: texts[0] for name, texts in parse_qs(urlsplit(pasted.strip()).query).items()}
    if values.get("error"):
        raise _refused(values)
    if "code" not in values:
        raise UsageError(
            problem="What was pasted is not the address that the browser was sent to.",
            remedy="Run `colabkeep auth` again. After you click Continue, the browser shows a page that cannot be "
            "reached: copy its whole address, which begins with http://127.0.0.1.",
        )
    if not secrets.compare_digest(values.get("state", ""), state):
        raise UsageError(
            problem="The address that was pasted is the answer to another question.",
            remedy="Run `colabkeep auth` again, open the address that it shows now, and paste what comes of it.",
        )
    return values["code"]


def _granted(client: OAuthClient, scope: str, answer: Mapping[str, Any], now: float) -> UserSecret:
    token = answer.get("refresh_token")
    if scope not in str(answer.get("scope", scope)).split():
        raise PlatformError(
            problem="The consent was given, but not for Google Drive.",
            remedy="Run `colabkeep auth` again, and tick the box for Google Drive on the consent page.",
        )
    if not token:
        raise PlatformError(
            problem="Google gave no lasting token.",
            remedy="Remove the client at https://myaccount.google.com/connections, and run `colabkeep auth` again.",
        )
    # Said where a consent is for a limited time only; clients in "Testing" get a week.
    life = answer.get("refresh_token_expires_in")
    return UserSecret(
        client_id=client.id,
        client_secret=client.secret,
        refresh_token=str(token),
        token_uri=client.token_uri,
        scopes=(scope,),
        expires=now + float(life) if isinstance(life, int | float) and life > 0 else None,
    )


def _refused(answer: Mapping[str, Any]) -> PlatformError:
    error = str(answer.get("error", "no reason"))
    problem, remedy = {
        "access_denied": (
            "The consent was not given.",
            'Run `colabkeep auth` again and click Continue. If the page says "Access blocked", the client is in '
            "Testing: open https://console.cloud.google.com/auth/audience and click Publish app.",
        ),
        "invalid_client": (
            "Google does not know this OAuth client, or its secret is wrong.",
            f"Open {_CLIENTS}, click your client, and Download JSON again.",
        ),
        "invalid_grant": ("The answer was too old, or was used before.", "Run `colabkeep auth` again."),
        "redirect_uri_mismatch": (
            "This OAuth client is of a type that cannot be asked by an address.",
            f"Open {_CLIENTS}, and make one of the type Desktop app.",
        ),
    }.get(error, (f"Google refused the consent ({error}).", f"See that the client is in order: {_CLIENTS}"))
    return PlatformError(problem=problem, remedy=remedy)


def _post(url: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
    """Status and JSON object of an answer."""
    import requests

    try:
        response = requests.post(url, data=form, timeout=_TIMEOUTS, allow_redirects=False)
        answer: object = json.loads(response.content)
        if isinstance(answer, dict) and response.status_code < 500:
            return response.status_code, answer
        why = f"HTTP {response.status_code}"
    except ValueError:
        why = f"HTTP {response.status_code}, and no answer of Google's"
    except requests.exceptions.RequestException as error:
        why = type(error).__name__
    raise StoreUnavailable(
        problem=f"Google's server for sign-ins could not be reached ({why}).",
        remedy="See that this machine is online, and run `colabkeep auth` again.",
    )
