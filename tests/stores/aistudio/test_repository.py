"""Checkpoints on AI Studio's hub, through the real aistudio-sdk: nothing is believed that the hub does not state."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.core.errors import (
    MissingDependency,
    NameTaken,
    ObjectNotFound,
    SecretError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from colabkeep.stores.base import BytesSource, StoreContext
from colabkeep.stores.hub import aistudio
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.aistudio.service import REGULAR_LIMIT, TOKEN, USER, Fault, git_digest
from tests.fakes.model import names, read

REPO = f"{USER}/run"
BLOB = "run/blobs/a.safetensors"
MANIFEST = "run/checkpoints/1.json"
NAMES = (BLOB, MANIFEST)
HANGS = (sys.executable, "-c", "import sys, time; sys.stdin.readline(); time.sleep(600)")


@pytest.mark.parametrize("sizes", ["pointer", "real"])
def test_large_and_small_files_come_back_with_their_own_sizes(hub, opened, sizes):
    """Whether the hub tells a large file's size or that of its pointer; another session sees the same."""
    hub.sizes = sizes
    large = bytes(range(256)) * 300
    opened().put(BLOB, BytesSource(large))
    opened().put(MANIFEST, BytesSource(b"{}"))
    store = opened()
    assert {entry.name: entry.size for entry in store.list("run")} == {BLOB: len(large), MANIFEST: 2}
    assert (read(store, BLOB), read(store, MANIFEST)) == (large, b"{}")
    assert len(hub.repos[REPO].large) == 1


def test_the_repository_is_made_private(hub, opened):
    """The SDK's own default is public; it is made by the first put, and nothing is made by looking."""
    store = opened()
    assert names(store) == []
    assert REPO not in hub.repos
    store.put(MANIFEST, BytesSource(b"{}"))
    assert hub.repos[REPO].private is True


def test_a_public_repository_gets_nothing(hub, opened):
    """One that answers anybody who is not signed in."""
    hub.made(REPO, private=False)
    with pytest.raises(StoreError, match="is public: anybody could read") as caught:
        opened().put(MANIFEST, BytesSource(b"{}"))
    assert "Make it private" in caught.value.remedy
    assert (list(hub.repos[REPO].files), caught.value.retryable) == (["README.md"], False)


def test_a_repository_that_was_made_public_all_the_same_gets_nothing(hub, opened):
    """Asked to be private, and not."""
    hub.makes_public = True
    with pytest.raises(StoreError, match="made it public"):
        opened().put(MANIFEST, BytesSource(b"{}"))
    assert list(hub.repos[REPO].files) == ["README.md"]


def test_a_repository_of_somebody_else_is_told(hub, opened):
    """AI Studio makes it under the token's own user, whatever owner was named."""
    with pytest.raises(StoreError, match="another user's") as caught:
        opened("aistudio://7654321/run").put(MANIFEST, BytesSource(b"{}"))
    assert "user number" in caught.value.remedy


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "objects/batch", "status", 500),
        Fault("PUT", "/storage/", "status", 500),
        Fault("PUT", "/storage/", "reset"),
        Fault("POST", "/verify/", "status", 503),
        Fault("POST", "preupload", "status", 502),
        Fault("POST", "/contents$", "status", 500),
        Fault("POST", "/contents$", "reset"),
        Fault("POST", "/contents$", "lost"),
        Fault("GET", "/contents/", "status", 503, count=2),
        Fault("GET", "/contents/", "reset"),
        Fault("POST", "models/sdk/add", "status", 502),
        Fault("POST", "models/sdk/add", "lost"),
        Fault("GET", "/git/trees/", "status", 500, count=2),
    ],
    ids=lambda fault: f"{fault.path} {fault.kind}",
)
def test_what_goes_wrong_in_passing_is_made_good(hub, opened, fault):
    """The SDK says nothing of most of it, and that all is well; the bytes are there all the same, and confirmed."""
    hub.faults = [fault]
    store = opened()
    assert {store.put(name, BytesSource(name.encode())).level for name in NAMES} == {"confirmed"}
    assert [hub.content(REPO, name) for name in NAMES] == [name.encode() for name in NAMES]
    assert names(opened()) == sorted(NAMES)


def test_a_file_that_is_skipped_for_good_is_no_success(hub, opened):
    """The SDK returns as if it had been uploaded, each time; the error says that nothing is there, and what it said."""
    hub.made(REPO)
    hub.faults = [Fault("POST", "/contents$", "status", 500, count=10**6, message="the disk is tired")]
    with pytest.raises(StoreUnavailable, match=r"aistudio-sdk skipped it .*the disk is tired"):
        opened().put(MANIFEST, BytesSource(b"{}"))
    assert names(opened()) == []


def test_a_forbidden_kind_of_file_is_told_at_once(hub, opened):
    """The hub's list of endings: trying again cannot help."""
    hub.forbidden = (".json",)
    store = opened()
    with pytest.raises(StoreError, match="forbidden") as caught:
        store.put(MANIFEST, BytesSource(b"{}"))
    assert not caught.value.retryable
    assert "choose another place" in caught.value.remedy
    assert len(hub.requests("getSuffixBlackList")) == 1


def test_a_file_that_is_too_large_for_git_is_told_with_the_line_that_helps(hub, opened):
    """Above 5 MB git takes only what .gitattributes calls large."""
    hub.large_patterns = ()
    with pytest.raises(StoreError, match="larger than 5MB") as caught:
        opened().put(BLOB, BytesSource(bytes(REGULAR_LIMIT + 1)))
    assert "*.safetensors filter=lfs" in caught.value.remedy
    assert not caught.value.retryable


@pytest.mark.parametrize("etag", ["md5", "none", "other"])
def test_bytes_that_arrived_changed_are_sent_again(hub, opened, etag):
    """The hub itself checks the size only, so the storage's MD5 is asked for, or the bytes are read back."""
    hub.etag = etag
    hub.faults = [Fault("PUT", "/storage/", "flip upload")]
    store = opened()
    with pytest.raises(StoreUnavailable, match="did not arrive"):
        store.put(BLOB, BytesSource(b"blob"))
    # The hub holds the changed bytes under the right digest by now, and asks for no others.
    hub.repos[REPO].large.clear()
    assert store.put(BLOB, BytesSource(b"blob")).level == "confirmed"
    assert hub.content(REPO, BLOB) == b"blob"
    downloads = len(hub.requests("^GET /storage"))
    assert store.confirm(store.put("run/b.bin", BytesSource(b"more"))).level == "confirmed"
    assert len(hub.requests("^GET /storage")) - downloads == (1 if etag == "md5" else 2)


def test_a_small_file_with_other_bytes_is_not_believed(hub, opened):
    """Git's own digest of what was committed is compared; what differs is taken out again, and sent again."""
    real, told = hub.commit, []

    def damaging(repo, body):
        answer = real(repo, body)
        if not told:
            told.append(repo.files.update({MANIFEST: b"[]"}))
        return answer

    hub.commit = damaging
    assert opened().put(MANIFEST, BytesSource(b"{}")).level == "confirmed"
    assert hub.content(REPO, MANIFEST) == b"{}"
    assert hub.repos[REPO].commits == 1 + 3  # the wrong bytes, their deletion, the right ones


@pytest.mark.parametrize("kind", ["short", "reset", "status"])
def test_a_download_that_breaks_off_goes_on(hub, opened, kind):
    """The missing range is asked for again."""
    store = opened()
    data = bytes(range(256)) * 5000
    store.put(BLOB, BytesSource(data))
    hub.faults = [Fault("GET", "/storage", kind)]
    assert read(store, BLOB) == data


def test_a_storage_that_knows_no_ranges_is_read_to_the_right_place(hub, opened, monkeypatch):
    """It sends all of the file, whatever part was asked for."""
    store = opened()
    data = bytes(range(256)) * 5000
    store.put(MANIFEST, BytesSource(data))
    monkeypatch.setattr("tests.fakes.hub_http.Handler.ranged", lambda self, data, headers: (200, headers, data))
    with store.get(MANIFEST) as reader:
        reader.seek(1000)
        assert reader.read(10) == data[1000:1010]
        reader.seek(-5, 2)
        assert reader.read() == data[-5:]


@pytest.mark.parametrize("token", ["", "expired"])
def test_a_missing_or_revoked_token_is_told(hub, opened, token):
    """By each method, at once, with what to type; a private repository is not taken for empty."""
    hub.made(REPO)
    store = opened(token=token)
    for call in (
        lambda: list(store.list("run")),
        lambda: store.put(MANIFEST, BytesSource(b"x")),
        lambda: store.get(MANIFEST),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert not isinstance(caught.value, ObjectNotFound)
        assert not caught.value.retryable
        assert "AISTUDIO_ACCESS_TOKEN" in caught.value.remedy


def test_a_revoked_token_is_told_where_the_repository_is_to_be_made(hub, opened):
    """There the error comes in the SDK's dict, not as an exception."""
    store = opened()
    hub.tokens = {TOKEN: USER}
    hub.create = lambda user, body: {"errorCode": 403, "errorMsg": "没有操作权限", "logId": "1"}
    with pytest.raises(StoreError, match="没有操作权限") as caught:
        store.put(MANIFEST, BytesSource(b"{}"))
    assert "访问令牌" in caught.value.remedy


def test_other_refusals_of_a_repository_are_told_in_its_words(hub, opened):
    """With the code; the name in storage= is what the user can change."""
    hub.create = lambda user, body: {"errorCode": 500, "errorMsg": "name too short", "logId": "1"}
    with pytest.raises(StoreError, match=r"name too short \(11001\)") as caught:
        opened().put(MANIFEST, BytesSource(b"{}"))
    assert "aistudio://owner/repo" in caught.value.remedy


def test_the_token_is_in_no_message(hub, opened, capfd, caplog):
    """Neither in errors, their causes, reprs, nor in what is printed; nor are signed addresses. Nothing is printed."""
    store = opened()
    hub.faults = [Fault("POST", "/contents$", "status", 500, count=10**6, message=f"{TOKEN} at http://x/?signature=s")]
    with pytest.raises(StoreUnavailable, match="500") as caught:
        store.put(BLOB, BytesSource(b"x"))
    printed = capfd.readouterr()
    said, error = [store.url, repr(store), repr(store._hub._process), repr(store._hub), caplog.text], caught.value
    while error is not None:
        said.append(f"{error!s} {error!r}")
        error = error.__cause__
    assert printed == ("", "")
    assert TOKEN not in "".join(said)
    assert "signature=" not in "".join(said)


def test_nothing_is_left_in_the_temporary_folder(hub, opened, monkeypatch, tmp_path):
    """Of an upload that went well, of one that failed, and of one that was interrupted."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = opened()
    store.put(MANIFEST, BytesSource(b"{}"))

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put(BLOB, ChunkedSource(b"x", before=interrupt))
    hub.faults = [Fault("POST", "/contents$", "status", 500, count=10**6)]
    with pytest.raises(StoreUnavailable):
        store.put(BLOB, BytesSource(b"x"))
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_falls_silent_is_given_up(hub, opened, monkeypatch):
    """The SDK would wait for an hour; its process is ended."""
    hub.made(REPO)
    store = opened()
    monkeypatch.setattr(aistudio, "_TELL", 0.1)
    store._hub._process._command = HANGS
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        store.put(MANIFEST, BytesSource(b"{}"))
    assert store._hub._process.child is None


def test_closing_ends_an_upload(hub, opened):
    """In the middle of it, and nothing is waited for."""
    hub.made(REPO)
    hub.faults = [Fault("POST", "/contents$", "silence", count=10**6)]
    store, errors = opened(), []

    def put():
        try:
            store.put(MANIFEST, BytesSource(b"{}"))
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    while not hub.requests("POST .*/contents$"):
        time.sleep(0.01)
    store.close()
    thread.join(60)
    assert isinstance(errors[0], StoreUnavailable)


def test_what_was_deleted_is_gone_for_everybody(hub, opened):
    """With the next commit; an answer that gets lost does no harm."""
    store = opened()
    for name in NAMES:
        store.put(name, BytesSource(b"x"))
    hub.faults = [Fault("POST", "/contents$", "lost")]
    store.delete(BLOB)
    assert store.flush(30.0)
    assert names(store) == names(opened()) == [MANIFEST]
    with pytest.raises(ObjectNotFound):
        store.get(BLOB)


def test_a_folder_is_no_object(hub, opened):
    """Its name is free for none and read by none."""
    store = opened()
    store.put(MANIFEST, BytesSource(b"{}"))
    with pytest.raises(ObjectNotFound):
        store.get("run/checkpoints")


def test_what_another_session_put_is_confirmed_without_its_bytes(hub, opened, monkeypatch):
    """A small file comes with its bytes; of a large one, the pointer and the number of bytes in the storage count."""
    monkeypatch.setattr(aistudio, "MOMENT", 60.0)
    first = opened()
    receipts = [replace(first.put(name, BytesSource(b"bytes")), level="sent") for name in NAMES]
    for sizes in ("pointer", "real"):
        hub.sizes = sizes
        for listed in (False, True):
            store = opened()
            if listed:
                assert names(store) == sorted(NAMES)
            assert {store.confirm(receipt).level for receipt in receipts} == {"confirmed"}


def test_what_is_not_the_same_is_not_confirmed(hub, opened, monkeypatch):
    """Other bytes, another size, what was deleted, what the storage lost, and what cannot be asked about."""
    monkeypatch.setattr(aistudio, "MOMENT", 60.0)
    first = opened()
    receipts = [replace(first.put(name, BytesSource(b"bytes")), level="sent") for name in NAMES]
    store = opened()
    for receipt in receipts:
        assert store.confirm(replace(receipt, sha256="0" * 64)).level == "sent"
        assert store.confirm(replace(receipt, size=3)).level == "sent"
        assert store.confirm(replace(receipt, name=f"{receipt.name}x")).level == "sent"
    late = opened()
    hub.faults = [Fault("GET", "/contents/", "status", 503)]
    assert [late.confirm(receipts[1]).level for _ in range(2)] == ["sent", "confirmed"]
    hub.repos[REPO].large.clear()
    assert opened().confirm(receipts[0]).level == "sent"


def test_a_long_list_comes_in_pages(hub, opened):
    """All of it, however many pages the hub makes of it."""
    hub.page = 7
    repo = hub.made(REPO)
    repo.files |= {f"run/{number}.json": b"{}" for number in range(30)}
    assert names(opened()) == sorted(f"run/{number}.json" for number in range(30))


def test_the_names_that_git_gives_are_those_of_git():
    """By git's own well-known digests, and the SDK's pointers, which lack a newline."""
    from colabkeep.stores.hub import store as hubs

    assert hubs.git_digest(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    sha256 = hashlib.sha256(b"x").hexdigest()
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize 1"
    for pointer in (text.encode(), f"{text}\n".encode()):
        assert hubs.is_pointer_to(git_digest(pointer), sha256, 1)
        assert not hubs.is_pointer_to(git_digest(pointer), sha256, 2)
        assert hubs.read_pointer(pointer) == (sha256, 1)
    assert hubs.read_pointer(f"{text}\nmore".encode()) is None


def test_the_environment_says_which_hub_and_who(hub, tmp_path):
    """As in a notebook, through `open_store`; and another process than this one prints nothing but its own words."""
    program = (
        "from colabkeep.stores import open_store\n"
        "from colabkeep.stores.base import BytesSource\n"
        f"store = open_store('aistudio://{REPO}')\n"
        "print(store.put('run/a.json', BytesSource(b'x')).level)\n"
        "store.close()\n"
    )
    environ = {
        "STUDIO_GIT_HOST": hub.url,
        "STUDIO_MODEL_API_URL_PREFIX": hub.url,
        "AISTUDIO_ACCESS_TOKEN": TOKEN,
        "HOME": str(tmp_path),
    }
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**inherited, **environ}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("confirmed\n", "")
    assert hub.content(REPO, "run/a.json") == b"x"


@pytest.mark.parametrize("where", ["variable", "secret", "file", "cache home"])
def test_the_token_is_found_where_the_sdk_has_it(hub, monkeypatch, tmp_path, where):
    """In its variable, in the platform's secrets, and in the file that its login leaves."""

    def secret(name):
        if where != "secret" or name != "AISTUDIO_ACCESS_TOKEN":
            raise SecretError(problem="There is none.", remedy="None.")
        return TOKEN

    if where == "variable":
        monkeypatch.setenv("AISTUDIO_ACCESS_TOKEN", TOKEN)
    if where in ("file", "cache home"):
        monkeypatch.setenv("HOME" if where == "file" else "AISTUDIO_CACHE_HOME", str(tmp_path))
        file = Path(tmp_path, ".cache/aistudio/.auth/token")
        file.parent.mkdir(parents=True)
        file.write_text(f"{TOKEN}\n")
    store = aistudio.open_url(f"aistudio://{REPO}", StoreContext(secret=secret), endpoint=hub.url)
    assert store.put(MANIFEST, BytesSource(b"{}")).level == "confirmed"
    store.close()


@pytest.mark.parametrize(
    "url", ["aistudio://", "aistudio://run", "aistudio://a/b//c", "aistudio://a/.b", "aistudio:/a/b"]
)
def test_what_is_no_repository_is_refused(url):
    """With how it is written."""
    with pytest.raises(UsageError) as caught:
        aistudio.open_url(url)
    assert "aistudio://owner/repo" in caught.value.remedy


def test_without_the_sdk_its_name_is_told(monkeypatch):
    """And the command that installs it."""
    monkeypatch.setattr(aistudio, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency) as caught:
        aistudio.open_url(f"aistudio://{REPO}")
    assert 'pip install "aistudio-sdk' in caught.value.remedy


def test_an_sdk_that_cannot_be_imported_is_told_with_the_command(hub, opened, monkeypatch):
    """One that is half installed, or too old."""
    hub.made(REPO)
    store = opened()
    store._hub._process._command = (
        sys.executable,
        "-c",
        "import sys; sys.modules['aistudio_sdk'] = None; from colabkeep.stores.hub.aistudio_child import main; main()",
    )
    with pytest.raises(MissingDependency) as caught:
        store.put(MANIFEST, BytesSource(b"{}"))
    assert 'pip install "aistudio-sdk' in caught.value.remedy


def test_a_name_that_is_there_already_is_not_replaced(hub, opened):
    """Whoever put it; the SDK itself would overwrite it."""
    hub.made(REPO).files[MANIFEST] = b"hers"
    with pytest.raises(NameTaken):
        opened().put(MANIFEST, BytesSource(b"his"))
    assert hub.content(REPO, MANIFEST) == b"hers"
