"""A person consents once, on any machine, by an address; what goes wrong is told."""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import replace

import pytest
import requests

from colabkeep.core.errors import PlatformError, StoreUnavailable, UsageError
from colabkeep.stores.base import BytesSource
from colabkeep.stores.google.account import DRIVE_SCOPE, read_secret
from colabkeep.stores.google.consent import OAuthClient, ask_by_address, read_client
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import html

FULL = "https://www.googleapis.com/auth/drive"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def client(drive):
    def client():
        client_id, secret = drive.client("own")
        consent = f"{drive.url}/o/oauth2/v2/auth"
        return OAuthClient(id=client_id, secret=secret, token_uri=drive.token_uri, consent_uri=consent)

    return client


def browser(address):
    """Opens the address, says yes, and gives what the address bar shows then."""
    answer = requests.get(address, allow_redirects=False, timeout=10)
    return answer.headers["Location"]


@pytest.mark.parametrize("scope", [DRIVE_SCOPE, FULL])
def test_a_pasted_address_is_a_consent(client, clock, open_drive, scope):
    """The browser is sent to an address where nobody listens; that address, pasted, is the answer. What comes of it can
    keep checkpoints, and has the right that was asked for."""
    addresses = []

    def ask(address):
        addresses.append(address)
        return f"  {browser(address)}\n"

    secret = ask_by_address(client(), scope, ask, clock)
    assert (secret.scopes, secret.expires) == ((scope,), None)
    asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(addresses[0]).query))
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")
    assert (asked["access_type"], asked["prompt"], asked["code_challenge_method"]) == ("offline", "consent", "S256")
    assert client().secret not in addresses[0]
    assert (
        open_drive(credentials=read_secret(secret.text()).credentials()).put("run/a", BytesSource(b"1")).level
        == "confirmed"
    )


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda address: "", UsageError, "not the address"),
        (lambda address: "https://myaccount.google.com/", UsageError, "not the address"),
        (lambda address: address.replace("state=", "state=x"), UsageError, "another question"),
        (lambda address: address.split("&state=")[0], UsageError, "another question"),
        (lambda address: address.replace("code=", "code=x"), PlatformError, "too old"),
        (lambda address: "http://127.0.0.1:53217/?error=access_denied&state=x", PlatformError, "not given"),
    ],
)
def test_a_wrong_paste_is_told(client, clock, change, error, words):
    """Something else, another question's answer, half of it, or a no."""
    with pytest.raises(error, match=words) as caught:
        ask_by_address(client(), DRIVE_SCOPE, lambda address: change(browser(address)), clock)
    assert "colabkeep auth" in caught.value.remedy


def test_another_ones_client_secret_is_told(client, clock):
    """The file of a client whose secret was reset."""
    stale = replace(client(), secret="PLANTED")
    with pytest.raises(PlatformError, match="its secret is wrong") as caught:
        ask_by_address(stale, DRIVE_SCOPE, browser, clock)
    assert "PLANTED" not in f"{caught.value}{stale!r}"


def test_google_out_of_reach_is_told(drive, client, clock):
    """No network, or a gateway's page instead."""
    drive.faults(html(502).on("POST", "/token"))
    with pytest.raises(StoreUnavailable, match="HTTP 502"):
        ask_by_address(client(), DRIVE_SCOPE, browser, clock)
    nowhere = replace(client(), token_uri="http://127.0.0.1:9/token")
    with pytest.raises(StoreUnavailable, match="could not be reached"):
        ask_by_address(nowhere, DRIVE_SCOPE, browser, clock)


class Answers:
    """`requests.post` with an answer of Google's that the local server does not give."""

    def __init__(self, **answer):
        self.status_code = 200
        self.content = json.dumps(answer)

    def __call__(self, url, **options):
        return self


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"refresh_token": "t", "scope": "openid"}, "not for Google Drive"),
        ({"access_token": "t", "scope": DRIVE_SCOPE}, "no lasting token"),
    ],
)
def test_half_a_consent_is_none(client, clock, monkeypatch, answer, words):
    """The box for Drive can be left unticked; and Google may give no lasting token."""
    own = client()
    with pytest.raises(PlatformError, match=words):
        ask_by_address(own, DRIVE_SCOPE, lambda asked: _then(monkeypatch, Answers(**answer), browser(asked)), clock)


def test_a_consent_for_a_week_is_known_as_such(client, clock, monkeypatch):
    """Google says so with the token; it is kept with the secret, to be told in time."""
    answer = Answers(refresh_token="t", scope=DRIVE_SCOPE, refresh_token_expires_in=604799)
    secret = ask_by_address(client(), DRIVE_SCOPE, lambda asked: _then(monkeypatch, answer, browser(asked)), clock)
    assert secret.expires == clock.time() + 604799
    assert read_secret(secret.text()).expires == secret.expires


def _then(monkeypatch, post, value):
    monkeypatch.setattr(requests, "post", post)
    return value


@pytest.mark.parametrize(
    "text", ["", "PLANTED", "[]", "{}", '{"installed": {"client_secret": "PLANTED"}}', '{"web": 1}']
)
def test_a_file_that_is_no_clients_is_refused_without_being_shown(text):
    """With the page to download it from."""
    with pytest.raises(UsageError) as caught:
        read_client(text)
    assert "console.cloud.google.com/auth/clients" in caught.value.remedy
    assert "PLANTED" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_downloaded_client_file_is_read():
    """Of either kind; where it says nothing, Google's addresses are used."""
    for kind in ("installed", "web"):
        client = read_client(f'{{"{kind}": {{"client_id": "a", "client_secret": "b"}}}}')
        assert (client.id, client.secret) == ("a", "b")
        assert client.token_uri == "https://oauth2.googleapis.com/token"
        assert client.consent_uri.startswith("https://accounts.google.com/")
