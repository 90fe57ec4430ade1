"""Nothing that opens a Drive is ever shown: not in errors, tracebacks, logs, journals, output or a `repr`."""

from __future__ import annotations

import json
import logging
import traceback

import pytest

from colabkeep.core.errors import ColabKeepError
from colabkeep.core.layout import unseal
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.drive.transfer import Upload
from colabkeep.stores.google.account import Account, SignedIn, read_secret
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.drive import (
    expire_tokens,
    html,
    lose_answer,
    refuse,
    reset_answer,
    reset_request,
    revoke,
    running_drive,
)

from .conftest import store_on

CHUNK = 2**18
ROUGH = {
    "nothing": [],
    **{
        f"{status} {reason}": [refuse(status, reason).on(path="/drive/v3/", skip=3, count=None)]
        for status, reason in [
            (400, "badRequest"),
            (401, "authError"),
            (403, "storageQuotaExceeded"),
            (403, "dailyLimitExceeded"),
            (403, "insufficientPermissions"),
            (403, "rateLimitExceeded"),
            (404, "notFound"),
            (429, "rateLimitExceeded"),
            (500, "backendError"),
        ]
    },
    "pages": [html(502).on(path="/drive/v3/", skip=3, count=None)],
    "pages instead of uploads": [html(200).on("PUT", "/upload/", count=None)],
    "cuts": [reset_answer(5).on(path="/drive/v3/", skip=3, count=None)],
    "cut uploads": [reset_request(50_000).on("PUT", "/upload/", count=None)],
    "lost answers": [lose_answer().on("PUT", "/upload/", count=None)],
    "tokens run out": [expire_tokens().on(path="/drive/v3/", count=None)],
    "consent revoked": [revoke().on("POST", "/upload/")],
    "tokens out of order": [refuse(503).on("POST", "/token", count=None)],
    "pages instead of tokens": [html(200).on("POST", "/token", count=None)],
}


@pytest.fixture
def secret(drive):
    return read_secret(json.dumps(drive.authorized_user()))


def everything_about(error):
    """What any tool could show of an error: its texts, its chain, hidden or not."""
    seen, texts, errors = set(), [], [error]
    for error in errors:  # grows while it is walked
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            texts += [str(error), repr(error), repr(error.args), *traceback.format_exception(error)]
            errors += [error.__cause__, error.__context__]
    return "\n".join(texts)


def test_the_address_of_an_upload_is_not_shown_when_the_service_goes_away(tmp_path):
    """A refused connection is told with the address that was asked for; it is the right to write that file."""
    with running_drive(tmp_path) as drive:
        store = store_on(drive, "runs", journal=DirectoryStore(tmp_path / "journal"), chunk_bytes=CHUNK)

        def kill(number):
            if number == 2:
                drive.kill()

        with pytest.raises(ColabKeepError) as caught:
            store.put("run/a", ChunkedSource(bytes(CHUNK), bytes(CHUNK), b"end", before=kill))
        store.close()
    (record,) = (tmp_path / "journal").rglob("*.json")
    address = unseal(record.read_bytes())["address"]
    assert "upload_id=" in address
    shown = everything_about(caught.value)
    assert "/upload/drive/v3/files" in shown, "the connection that was refused"
    assert address.partition("upload_id=")[2] not in shown
    assert address not in repr(Upload(file_id="1", address=address))


@pytest.mark.parametrize("name", ROUGH)
def test_no_token_is_shown_whatever_happens(drive, secret, name, tmp_path, caplog, capfd):
    """Every method, under every kind of trouble, with all loggers at their most talkative."""
    caplog.set_level(logging.DEBUG)
    credentials = secret.credentials()
    account = Account(lambda: SignedIn(credentials=credentials))
    journal = DirectoryStore(tmp_path / "journal")
    place = read_place(f"drive://runs?service={drive.url}")
    store = DriveStore(place, account, journal=journal, clock=FakeClock(), chunk_bytes=CHUNK)
    drive.faults(*ROUGH[name])
    shown, tokens, addresses = [], {secret.refresh_token, secret.client_secret}, set()
    source = ChunkedSource(bytes(CHUNK), bytes(CHUNK), b"end")
    for call in (
        lambda: store.put("run/a", source),
        lambda: store.put("run/b", BytesSource(b"b")),
        lambda: store.get("run/a").read(),
        lambda: store.list(""),
        lambda: store.delete("run/a"),
        lambda: store.properties,
    ):
        try:
            call()
        except ColabKeepError as error:
            shown.append(everything_about(error))
            shown.append(f"{error.problem}{error.remedy}")
        tokens.add(credentials.token or secret.refresh_token)
    for path in (tmp_path / "journal").rglob("*.json"):
        text = path.read_text()
        addresses.add(text.partition("upload_id=")[2].partition('"')[0])
        assert not any(token in text for token in tokens), "in the journal"
    shown += [repr(one) for one in (store, account, SignedIn(credentials=credentials), secret, place, store.url)]
    shown += [repr(vars(store)), str(store.degraded)]
    store.close()
    assert shown
    logged = all_logged(caplog)
    said = capfd.readouterr()
    for token in tokens:
        assert not any(token in text for text in [*shown, *logged, said.out, said.err])
    for address in addresses - {""}:
        assert not any(address in text for text in [*shown, *logged, said.out, said.err])


def test_the_address_of_an_upload_that_goes_well_is_in_no_log(open_drive, watch, caplog, tmp_path):
    """urllib3, requests and google-auth tell which addresses they ask, and keep quiet about this one."""
    for name in ("", "google"):  # which is told to say nothing, unless it is asked itself
        caplog.set_level(logging.DEBUG, logger=name)
    store, asked = open_drive(chunk_bytes=CHUNK), watch()
    source = ChunkedSource(bytes(CHUNK), bytes(CHUNK), b"end")
    assert store.put("run/a", source).level == "confirmed"
    ids = {seen.query["upload_id"] for seen in asked.all("PUT")}
    assert len(ids) == 1
    logged = all_logged(caplog)
    assert any("POST /upload/drive/v3/files" in text for text in logged), "urllib3"
    assert any("httpRequest" in text for text in logged), "google-auth"
    assert not any(id in text for id in ids for text in logged)


def all_logged(caplog):
    """What any formatter could show of each record."""
    return [f"{record.getMessage()} {vars(record)!r}" for record in caplog.records]
