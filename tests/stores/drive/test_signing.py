"""Who is signed in is found in the order a user expects; and what is not there is told with what to do."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager

import pytest

from colabkeep.core.errors import PlatformError, SecretError, StoreError, UsageError
from colabkeep.core.system import Environment
from colabkeep.platforms.colab.page import sign_in_user
from colabkeep.stores.base import BytesSource, StoreContext
from colabkeep.stores.drive import open_url as open_drive_url
from colabkeep.stores.google.account import (
    SECRET_NAME,
    Account,
    ServiceAccountKey,
    SignedIn,
    UserSecret,
    read_secret,
    sign_in,
)
from tests.fakes.platforms.colab import fake_colab


def environment(tmp_path, **environ):
    return Environment(environ={"HOME": "/root", **environ}, root=tmp_path, folder=tmp_path)


def secrets(**values):
    """What a platform hands in."""

    def secret(name):
        if name not in values:
            raise SecretError(problem=f"There is no secret {name!r} here.", remedy="Add it.")
        return values[name]

    return secret


def test_the_users_own_client_from_the_platforms_secrets_comes_first(drive, tmp_path):
    """The one line that `colabkeep auth` prints, stored as a secret, is all that is needed."""
    context = StoreContext(
        secret=secrets(COLABKEEP_DRIVE=json.dumps(drive.authorized_user())), user=lambda: pytest.fail("asked")
    )
    store = open_drive_url(
        f"drive://runs?service={drive.url}",
        context=context,
        environment=environment(tmp_path, COLABKEEP_DRIVE="not this"),
    )
    assert store.put("run/a", BytesSource(b"1")).level == "confirmed"
    store.close()


def test_the_same_line_may_be_an_environment_variable(drive, tmp_path):
    """Where a platform has no secrets, or not this one."""
    given = environment(tmp_path, COLABKEEP_DRIVE=json.dumps(drive.authorized_user()))
    for context in (StoreContext(), StoreContext(secret=secrets())):
        store = open_drive_url(f"drive://runs?service={drive.url}", context=context, environment=given)
        assert list(store.list("")) == []
        store.close()


def test_without_any_right_it_is_told_what_was_tried(tmp_path):
    """Every place that was looked at, and the one command that helps; nothing leaves the machine."""
    with pytest.raises(UsageError) as caught:
        sign_in(StoreContext(secret=secrets()), environment(tmp_path))
    assert "There is no secret 'COLABKEEP_DRIVE' here." in caught.value.problem
    assert "no default credentials" in caught.value.problem
    assert "colabkeep auth" in caught.value.remedy
    with pytest.raises(UsageError, match="variable COLABKEEP_DRIVE is not set"):
        sign_in(StoreContext(), environment(tmp_path))


def test_the_key_file_of_a_service_account_is_a_default_credential(tmp_path, monkeypatch):
    """GOOGLE_APPLICATION_CREDENTIALS, with a shared drive."""
    from tests.fakes.drive import Settings
    from tests.fakes.drive.checking import checked_drive

    with checked_drive(tmp_path, settings=Settings(shared_drives=["0AShared0123"])) as drive:
        key = tmp_path / "key.json"
        key.write_text(json.dumps(drive.service_account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        given = environment(tmp_path, GOOGLE_APPLICATION_CREDENTIALS=str(key))
        url = f"drive://team?shared_drive=0AShared0123&service={drive.url}"
        store = open_drive_url(url, environment=given)
        assert store.put("run/a", BytesSource(b"1")).level == "confirmed"
        store.close()
        alone = open_drive_url(f"drive://team?service={drive.url}", environment=given)
        with pytest.raises(StoreError, match="service account"):
            alone.list("")
        alone.close()


def test_a_key_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    """Without showing what is in it."""
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "private_key": "PLANTED"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    with pytest.raises(UsageError, match="default credentials") as caught:
        sign_in(StoreContext(), environment(tmp_path, GOOGLE_APPLICATION_CREDENTIALS=str(key)))
    assert "PLANTED" not in str(caught.value)


def test_the_user_of_colabs_page_is_asked_in_the_notebook(tmp_path, monkeypatch):
    """`authenticate_user`, and then google-auth's default credentials, as they are."""
    import google.auth

    found = object()
    monkeypatch.setattr(
        google.auth, "default", lambda *scopes: (found, "project") if not scopes else pytest.fail(str(scopes))
    )
    with fake_colab(tmp_path) as machine:
        context = StoreContext(secret=secrets(), user=lambda: sign_in_user(machine.environment))
        assert sign_in(context, machine.environment).credentials is found
        assert any("auth.authenticate_user" in call for call in machine.calls)


def test_a_page_that_refuses_or_keeps_silent_is_told(tmp_path):
    """In bounded time, with the next click; a process beside the notebook is told that it cannot ask."""
    for words, problem in (
        ({"front_end": "refuses"}, "failed"),
        ({"front_end": "absent"}, "did not answer within"),
        ({"kind": "process"}, "not a cell"),
    ):
        with fake_colab(tmp_path, **words) as machine:
            with pytest.raises(PlatformError, match=problem) as caught:
                sign_in_user(machine.environment, timeout=1.0)
            assert "colabkeep auth" in caught.value.remedy
            with pytest.raises(UsageError, match=problem):
                sign_in(
                    StoreContext(user=lambda m=machine: sign_in_user(m.environment, timeout=1.0)), machine.environment
                )


def test_only_the_main_thread_asks_the_page(tmp_path):
    """On another one Colab's answers would be lost, and both would hang."""
    caught = []
    with fake_colab(tmp_path) as machine:

        def ask():
            try:
                sign_in_user(machine.environment)
            except PlatformError as error:
                caught.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(30)
    assert "thread" in caught[0].problem
    assert not any("authenticate_user" in call for call in machine.calls)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not the JSON text"),
        ("PLANTED", "not the JSON text"),
        ("[1]", "not the JSON text"),
        ('{"installed": {"client_secret": "PLANTED"}}', "OAuth client itself"),
        ('{"client_id": "a", "client_secret": "PLANTED"}', "no refresh_token"),
        ('{"client_id": "a", "client_secret": 5, "refresh_token": "PLANTED"}', "no client_secret"),
    ],
)
def test_a_secret_that_is_none_is_refused_without_being_shown(text, word):
    """Also not its parts."""
    with pytest.raises(UsageError) as caught:
        read_secret(text)
    assert word in caught.value.problem
    assert SECRET_NAME in caught.value.remedy
    assert "PLANTED" not in str(caught.value)


def test_a_broken_key_of_a_service_account_is_refused_without_being_shown():
    """The library's own error might show it."""
    with pytest.raises(UsageError) as caught:
        read_secret('{"type": "service_account", "client_email": "a", "private_key": "PLANTED"}').credentials()
    assert "PLANTED" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_secret_says_the_same_after_it_was_stored():
    """What is printed is what is read; older and foreign files of the kind are read too."""
    secret = UserSecret(client_id="a", client_secret="b", refresh_token="c", expires=1.5)
    assert read_secret(secret.text()) == secret
    plain = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    assert read_secret(json.dumps(plain)) == UserSecret(client_id="a", client_secret="b", refresh_token="c")
    assert isinstance(read_secret('{"type": "service_account"}'), ServiceAccountKey)


def test_a_consent_that_ends_within_a_week_is_told_while_there_is_time(drive, open_drive, tmp_path):
    """`degraded` names the day and the way to one that lasts."""
    from colabkeep.stores.drive import DriveStore
    from colabkeep.stores.drive.files import read_place
    from colabkeep.testing.clock import FakeClock

    def degraded(expires):
        signed = SignedIn(credentials=drive.credentials(), expires=expires)
        place = read_place(f"drive://runs?service={drive.url}")
        store = DriveStore(place, Account(lambda: signed), clock=FakeClock(time=1_800_000_000.0))
        store.list("")
        store.close()
        return store.degraded

    assert degraded(None) is None
    assert degraded(1_800_000_000.0 + 30 * 86400) is None
    assert "17 January" in degraded(1_800_000_000.0 + 2 * 86400)


def test_one_thread_renews_for_all(drive):
    """A token that runs out while several threads work is renewed once, and nobody meets a half-changed credential."""

    class Watched:
        """A credential that notices when two threads are in it."""

        def __init__(self, inner):
            self._inner, self._inside, self.together = inner, threading.Lock(), 0

        @property
        def valid(self):
            with self._alone():
                return self._inner.valid

        def refresh(self, request):
            with self._alone():
                self._inner.refresh(request)
                time.sleep(0.05)

        def apply(self, headers):
            with self._alone():
                self._inner.apply(headers)

        @contextmanager
        def _alone(self):
            alone = self._inside.acquire(blocking=False)
            self.together += not alone
            yield
            if alone:
                self._inside.release()

    watched = Watched(drive.credentials())
    account = Account(lambda: SignedIn(credentials=watched))
    before = len(drive.requests("POST", "/token"))

    def use():
        for _ in range(5):
            assert account.session().get(f"{drive.url}/drive/v3/about?fields=user").status_code == 200

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    account.close()
    assert watched.together == 0
    assert len(drive.requests("POST", "/token")) == before + 1


def test_a_sign_in_is_looked_for_once(drive):
    """One credential for all threads; one connection for each."""
    asked = []

    def find():
        asked.append(threading.current_thread())
        return SignedIn(credentials=drive.credentials())

    account = Account(find)
    sessions = set()

    def use():
        session = account.session()
        sessions.add(id(session))
        assert session is account.session()
        assert session.get(f"{drive.url}/drive/v3/about?fields=user").status_code == 200

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(asked), len(sessions)) == (1, 4)
    account.close()
    account.close()
