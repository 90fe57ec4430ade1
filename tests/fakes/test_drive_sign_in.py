"""Signing in to the stand-in for Drive: every grant that a client of Google may use, and how each is refused."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from tests.fakes.asking import reason
from tests.fakes.drive.checking import checked_drive

FILE = "https://www.googleapis.com/auth/drive.file"
WHOLE = "https://www.googleapis.com/auth/drive"
REDIRECT = "http://localhost:1"


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    with checked_drive(tmp_path_factory.mktemp("drive")) as drive:
        yield drive


def post(drive, path, **form):
    answer = requests.post(drive.url + path, data=form, timeout=30)
    return answer.status_code, answer.json()


def works(drive, access):
    headers = {"Authorization": f"Bearer {access}"}
    return requests.get(f"{drive.url}/drive/v3/files", headers=headers, timeout=30).status_code == 200


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"refresh_token": "gone"}, 400, "invalid_grant"),
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "nobody"}, 401, "invalid_client"),
        ({"scope": WHOLE}, 400, "invalid_scope"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
    ],
)
def test_a_wrong_refresh_is_refused(drive, change, status, error):
    """Each part that is wrong has its own word."""
    user = drive.authorized_user()
    form = {name: user[name] for name in ("client_id", "client_secret", "refresh_token")}
    answer, said = post(drive, "/token", **({"grant_type": "refresh_token", **form} | change))
    assert (answer, said["error"]) == (status, error)


def test_a_refresh_token_belongs_to_its_client(drive):
    """Another client cannot use it."""
    user = drive.authorized_user(client="one")
    other, secret = drive.client("two")
    form = {"client_id": other, "client_secret": secret, "refresh_token": user["refresh_token"]}
    assert post(drive, "/token", grant_type="refresh_token", **form)[1]["error"] == "invalid_grant"


def test_no_token_and_a_wrong_token_are_told_apart(drive):
    """403 for nobody, 401 for somebody who may have been good once."""
    assert reason(requests.get(f"{drive.url}/drive/v3/files", timeout=30)) == (403, "forbidden")
    headers = {"Authorization": "Bearer wrong"}
    answer = requests.get(f"{drive.url}/drive/v3/files", headers=headers, timeout=30)
    assert reason(answer) == (401, "authError")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def consent(drive, **change):
    client, secret = drive.client()
    query = {
        "client_id": client,
        "redirect_uri": REDIRECT,
        "scope": FILE,
        "response_type": "code",
        "state": "s",
    } | change
    answer = requests.get(f"{drive.url}/o/oauth2/v2/auth", params=query, allow_redirects=False, timeout=30)
    return answer, {"client_id": client, "client_secret": secret, "grant_type": "authorization_code"}


@pytest.mark.parametrize("proof", [True, False])
def test_a_pasted_redirect_is_exchanged_once(drive, proof):
    """Consent in a browser, the failing address pasted back, with a code challenge or without."""
    verifier = "v" * 50
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    change = {"code_challenge": challenge, "code_challenge_method": "S256"} if proof else {}
    answer, form = consent(drive, **change)
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith(REDIRECT)
    back = dict(parse_qsl(urlsplit(answer.headers["Location"]).query))
    assert (back["state"], back["scope"]) == ("s", FILE)
    form |= {"code": back["code"], "redirect_uri": REDIRECT}
    if proof:
        assert post(drive, "/token", **form, code_verifier="w")[1]["error"] == "invalid_grant"
    assert (
        post(drive, "/token", **(form | {"redirect_uri": "http://localhost:2"}))[1]["error"] == "redirect_uri_mismatch"
    )
    status, tokens = post(drive, "/token", **form, code_verifier=verifier)
    assert status == 200
    assert works(drive, tokens["access_token"])
    assert post(drive, "/token", **form, code_verifier=verifier)[1]["error"] == "invalid_grant"


@pytest.mark.parametrize(
    ("redirect", "error"),
    [("urn:ietf:wg:oauth:2.0:oob", "invalid_request"), ("https://example.com/", "redirect_uri_mismatch")],
)
def test_a_redirect_must_lead_to_the_users_own_machine(drive, redirect, error):
    """The out-of-band flow is gone, and desktop clients redirect to loopback."""
    answer, _ = consent(drive, redirect_uri=redirect)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


@pytest.mark.parametrize("skew", [-4000, 4000])
def test_a_clock_that_is_wrong_makes_a_signature_invalid(drive, skew):
    """A machine an hour off cannot sign in, and is told why."""
    drive.set(skew_seconds=skew)
    credentials = service_account.Credentials.from_service_account_info(drive.service_account, scopes=[WHOLE])
    with AuthorizedSession(credentials) as robot, pytest.raises(RefreshError, match="reasonable timeframe"):
        robot.get(f"{drive.url}/drive/v3/files", timeout=30)
    drive.set(skew_seconds=0)


def test_an_assertion_that_is_none_is_refused(drive):
    """Not a JWT."""
    kind = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert post(drive, "/token", grant_type=kind, assertion="nonsense")[1]["error"] == "invalid_grant"
