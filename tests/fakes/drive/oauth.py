"""Signing in: the token endpoint with all its grants, the consent page, revocation.

Answers and errors: "Using OAuth 2.0 to Access Google APIs",
"OAuth 2.0 for iOS & Desktop Apps", "Using OAuth 2.0 for Server to Server Applications" (Google identity guides).
A service account's signature is not looked at: this server has no key to compare with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.parse
from collections.abc import Callable
from typing import Any

from tests.fakes.drive.answers import Answer, json_answer
from tests.fakes.drive.ids import fresh
from tests.fakes.drive.settings import USER
from tests.fakes.drive.state import State
from tests.fakes.drive.tokens import Client, Code

Form = dict[str, str]
LOOPBACK = ("http://localhost", "http://127.0.0.1", "http://[::1]")


class Refused(Exception):
    """An OAuth error; `args` are status, error and description."""

    def answer(self) -> Answer:
        """It, as JSON."""
        status, error, description = self.args
        return json_answer({"error": error, "error_description": description}, status)


def serve(state: State, http: str, path: str, form: Form) -> Answer | None:
    """The answer, if `path` belongs to signing in. `form` is the query and the body together: OpenDAL 0.47 sends its
    parameters in the query."""
    route = ROUTES.get((http, path))
    if route is None:
        return None
    with state.guard:
        try:
            return route(state, form)
        except Refused as refused:
            return refused.answer()


def token(state: State, form: Form) -> Answer:
    """The token endpoint."""
    grants: dict[str, Callable[[State, Form], Answer]] = {
        "refresh_token": _refresh,
        "authorization_code": _exchange,
        "urn:ietf:params:oauth:grant-type:jwt-bearer": _assertion,
    }
    kind = form.get("grant_type", "")
    if kind not in grants:
        raise Refused(400, "unsupported_grant_type", f"Invalid grant_type: {kind}")
    return grants[kind](state, form)


def consent(state: State, form: Form) -> Answer:
    """The page on which a person says yes; here it is said at once, and the browser is sent on."""
    client = _client(state, form, secret=False)
    redirect = form.get("redirect_uri", "")
    if redirect.startswith("urn:ietf:wg:oauth:2.0:oob"):
        raise Refused(
            400, "invalid_request", "The out-of-band (OOB) flow has been blocked in order to keep users secure."
        )
    if not redirect.startswith(LOOPBACK):
        raise Refused(400, "redirect_uri_mismatch", f"The redirect URI does not match the client: {redirect}")
    if form.get("code_challenge_method", "S256") != "S256":
        raise Refused(400, "invalid_request", "This server knows the code challenge method S256 only.")
    scopes = form.get("scope", "").split()
    code = Code(fresh("4-"), client.id, USER, scopes, redirect, form.get("code_challenge"))
    state.tokens.codes.save(code.code, code)
    said = {"code": code.code, "scope": " ".join(scopes)} | ({"state": form["state"]} if "state" in form else {})
    return Answer(302, {"Location": f"{redirect}?{urllib.parse.urlencode(said)}"})


ROUTES: dict[tuple[str, str], Callable[[State, Form], Answer]] = {
    ("POST", "/token"): token,
    ("POST", "/oauth2/v4/token"): token,
    ("POST", "/o/oauth2/token"): token,
    ("GET", "/o/oauth2/auth"): consent,
    ("GET", "/o/oauth2/v2/auth"): consent,
}


def _client(state: State, form: Form, *, secret: bool = True) -> Client:
    client = state.tokens.clients.get(form.get("client_id", ""))
    if client is None:
        raise Refused(401, "invalid_client", "The OAuth client was not found.")
    if secret and form.get("client_secret") != client.secret:
        raise Refused(401, "invalid_client", "The provided client secret is invalid.")
    return client


def _admit(state: State, client: str, account: str, scopes: list[str], **more: str) -> Answer:
    seconds = state.settings.token_seconds
    access = state.tokens.admit(client, account, scopes, state.now() + seconds)
    said = {"access_token": access.token, "expires_in": seconds, "scope": " ".join(scopes), "token_type": "Bearer"}
    return json_answer(said | more)


def _refresh(state: State, form: Form) -> Answer:
    client = _client(state, form)
    grant = state.tokens.grants.get(form.get("refresh_token", ""))
    if grant is None or grant.client != client.id:
        raise Refused(400, "invalid_grant", "Token has been expired or revoked.")
    scopes = form.get("scope", "").split() or grant.scopes
    if not set(scopes) <= set(grant.scopes):
        raise Refused(400, "invalid_scope", "Some requested scopes were not granted.")
    return _admit(state, client.id, grant.account, scopes)


def _exchange(state: State, form: Form) -> Answer:
    client = _client(state, form)
    code = state.tokens.codes.get(form.get("code", ""))
    if code is None or code.client != client.id:
        raise Refused(400, "invalid_grant", "Malformed auth code.")
    if code.redirect != form.get("redirect_uri"):
        raise Refused(400, "redirect_uri_mismatch", "Bad Request")
    if code.challenge is not None:
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != code.challenge:
            raise Refused(400, "invalid_grant", "Invalid code verifier.")
    state.tokens.codes.remove(code.code)
    grant = state.tokens.grant(client.id, code.account, code.scopes)
    return _admit(state, client.id, grant.account, grant.scopes, refresh_token=grant.token)


def _assertion(state: State, form: Form) -> Answer:
    try:
        payload = form["assertion"].split(".")[1]
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        issuer, scope, issued, expires = claims["iss"], claims["scope"], claims["iat"], claims["exp"]
    except (KeyError, IndexError, ValueError):
        raise Refused(400, "invalid_grant", "Invalid JWT: Failed to decode.") from None
    now = state.now()
    if not (issued - 300 <= now < expires <= issued + 3600 + 300):
        text = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
        raise Refused(400, "invalid_grant", text)
    return _admit(state, issuer, claims.get("sub", issuer), scope.split())
