"""PyDrive2's objects are taken as storage, and its sign-in is used by machinery that does not hang."""

from __future__ import annotations

import datetime
import warnings

import pytest

from colabkeep.core.errors import StoreError, UsageError
from colabkeep.stores import open_store, with_notes
from colabkeep.stores.base import BytesSource, StoreContext
from colabkeep.stores.drive import DriveStore, open_pydrive
from colabkeep.stores.google.account import from_pydrive, is_pydrive
from colabkeep.testing.stores import ChunkedSource

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # oauth2client, given up in 2018, complains of itself
    from oauth2client.client import AccessTokenCredentials, OAuth2Credentials
    from oauth2client.service_account import ServiceAccountCredentials
    from pydrive2.auth import GoogleAuth
    from pydrive2.drive import GoogleDrive

PAST = datetime.datetime(2020, 1, 1)


@pytest.fixture
def auth(drive):
    """A `GoogleAuth` as `LocalWebserverAuth` leaves it, with an access token that has run out."""
    user = drive.authorized_user(["drive"])
    auth = GoogleAuth(settings_file=None)
    auth.credentials = OAuth2Credentials(
        access_token="long-gone",
        client_id=user["client_id"],
        client_secret=user["client_secret"],
        refresh_token=user["refresh_token"],
        token_expiry=PAST,
        token_uri=user["token_uri"],
        user_agent=None,
    )
    return auth


def local(drive, name="runs"):
    return f"drive://{name}?service={drive.url}"


@pytest.mark.parametrize("wrap", [lambda auth: auth, GoogleDrive], ids=["GoogleAuth", "GoogleDrive"])
def test_a_signed_in_object_of_pydrive2_is_a_place(drive, auth, wrap):
    """Its refresh token is used by google-auth: no web server is started, no browser waited for."""
    store = open_pydrive(wrap(auth), url=local(drive))
    assert store.put("run/a", BytesSource(b"abc")).level == "confirmed"
    with store.get("run/a") as reader:
        assert reader.read() == b"abc"
    store.close()


def test_addresses_of_uploads_are_kept_where_only_their_owner_reads_them(drive, auth, tmp_path):
    """Whoever has one may write that file: the records of uploads under way are closed to other users."""
    disk, sent = tmp_path / "colabkeep", []

    def look(number):
        sent.extend((path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) for path in disk.rglob("*.json"))

    disk.mkdir(mode=0o755)
    store = open_pydrive(auth, with_notes(StoreContext(disk=disk)), url=local(drive))
    store.put("run/a", ChunkedSource(*[bytes(2**20)] * 9, before=look))
    store.close()
    assert set(sent) == {(0o600, 0o700)}
    assert disk.stat().st_mode & 0o777 == 0o700


def test_open_store_takes_it_by_its_kind(auth):
    """`storage=GoogleDrive(gauth)` means the folder "colabkeep" of that Drive; also behind another place."""

    class Own(GoogleDrive):
        """A user's own kind of it."""

    for given in (auth, GoogleDrive(auth), Own(auth)):
        store = open_store(given)
        assert isinstance(store, DriveStore)
        assert store.url == "drive://colabkeep"
    assert open_store(("/tmp/front", GoogleDrive(auth))).behind.url == "drive://colabkeep"


def test_it_is_recognised_without_loading_pydrive2():
    """By the names of its kinds; and nothing else is taken for it."""

    class GoogleDrive:
        pass

    assert not is_pydrive(GoogleDrive())
    GoogleDrive.__module__, GoogleDrive.__qualname__ = "pydrive2.drive", "GoogleDrive"
    assert is_pydrive(GoogleDrive())
    assert not is_pydrive("drive://x")
    assert not is_pydrive(None)


def test_a_service_account_of_pydrive2_signs_with_google_auth(drive):
    """oauth2client cannot sign with today's pyOpenSSL; its key is used all the same, where a shared drive is named."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        robot = ServiceAccountCredentials.from_json_keyfile_dict(
            {**drive.service_account, "client_id": "1"}, ["https://www.googleapis.com/auth/drive"], drive.token_uri
        )
    auth = GoogleAuth(settings_file=None)
    auth.credentials = robot
    credentials = from_pydrive(auth)
    assert credentials.service_account_email == drive.service_account["client_email"]
    store = open_pydrive(auth, url=local(drive))
    with pytest.raises(StoreError, match="service account") as caught:
        store.list("")
    assert "shared_drive=" in caught.value.remedy
    store.close()


def test_an_access_token_alone_works_as_long_as_it_lives(drive, auth):
    """And then says that it cannot be renewed."""
    credentials = drive.credentials()
    store = open_pydrive(auth, url=local(drive))
    store.list("")
    token = store._account.session().credentials.inner.token
    store.close()
    alone = GoogleAuth(settings_file=None)
    alone.credentials = AccessTokenCredentials(token, "agent")
    store = open_pydrive(alone, url=local(drive))
    assert list(store.list("")) == []
    drive.expire_tokens()
    with pytest.raises(StoreError, match="cannot be renewed"):
        store.put("run/a", BytesSource(b"1"))
    store.close()
    assert credentials.token is None


@pytest.mark.parametrize("credentials", [None, object()], ids=["nobody", "something else"])
def test_an_object_without_a_usable_sign_in_is_refused(credentials):
    """With the call that is missing; no browser is opened behind the user's back."""
    auth = GoogleAuth(settings_file=None)
    auth.credentials = credentials
    with pytest.raises(UsageError) as caught:
        open_store(GoogleDrive(auth))
    assert "drive://colabkeep" in caught.value.remedy
