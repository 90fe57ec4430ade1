"""What a user writes as `storage=` becomes the store that was meant, or an error that says what to write."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import colabkeep.stores
from colabkeep.core.errors import ColabKeepError, MissingDependency, UsageError
from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource, StoreContext
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore


def test_a_path_is_a_folder(tmp_path, monkeypatch):
    """A string, a `Path`, `~` and a relative path all name a folder; nothing is made yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for storage in (str(tmp_path / "a b"), tmp_path / "a b", "a b", "./a b"):
        store = open_store(storage)
        assert isinstance(store, DirectoryStore)
        assert store.url == str(tmp_path / "a b")
    assert open_store("~/runs").url == str(tmp_path / "home" / "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["plain", "with space", "per%20cent", "ü", "a#b?c", "a + b"])
def test_the_url_of_a_store_opens_it_again(tmp_path, name):
    """Whatever the folder is called, its url and its file URL lead back to it."""
    for storage in (tmp_path / name, (tmp_path / name).as_uri()):
        assert open_store(open_store(storage).url).url == str(tmp_path / name)


def test_a_pair_is_a_fast_store_with_a_lasting_one_behind(tmp_path):
    """Two places, as a tuple, a list or the url of such a store."""
    pair = open_store((tmp_path / "fast", f"file://{tmp_path}/slow"))
    assert isinstance(pair, TieredStore)
    for store in (pair, open_store(pair.url), open_store([str(tmp_path / "fast"), DirectoryStore(tmp_path / "slow")])):
        assert isinstance(store, TieredStore)
        assert (store.front.url, store.behind.url) == (str(tmp_path / "fast"), str(tmp_path / "slow"))


@pytest.mark.parametrize("before", [False, True], ids=["new", "made open by an earlier version"])
def test_what_lies_in_front_of_a_far_place_is_its_owners_alone(tmp_path, before):
    """On a machine with several users nobody else reads checkpoints on their way, whatever the umask is; a folder that
    an earlier version left open is closed."""
    disk = tmp_path / "cache" / "colabkeep"
    front = open_store("drive://runs", context=StoreContext(disk=disk)).front
    if before:
        DirectoryStore(front.url).put("run/old", BytesSource(b"x"))
        assert mode(front.url) == 0o755
    old = os.umask(0)
    try:
        front.put("run/blobs/a", BytesSource(b"x"))
        front.lock("run/lock", "me").release()
    finally:
        os.umask(old)
    made = [path for path in disk.rglob("*") if path.name != "old"]
    assert {mode(path) for path in made if path.is_file()} == {0o600}
    assert {mode(path) for path in (Path(front.url), Path(front.url) / "run/blobs")} == {0o700}
    assert before or {mode(path) for path in [disk, *made] if path.is_dir()} == {0o700}
    with front.get("run/blobs/a") as reader:
        assert reader.read() == b"x"


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_a_store_is_taken_as_it_is():
    """Any object with put, get and list is a store, also inside a pair."""
    one, other = MemoryStore(), MemoryStore()
    assert open_store(one) is one
    pair = open_store((one, other))
    assert (pair.front, pair.behind) == (one, other)
    assert isinstance(open_store("memory://"), MemoryStore)


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("xyz://bucket/x", ["xyz://", "file://", "memory://"]),
        ("", ["folder"]),
        ("   ", ["folder"]),
        (None, ["None", "folder"]),
        (7, ["int", "folder"]),
        (b"bytes", ["bytes", "folder"]),
        (("a",), ["two"]),
        (("a", "b", "c"), ["two"]),
        (("a", ("b", "c")), ["two"]),
        (("a", "a"), ["same"]),
        (("a", "nope://b"), ["nope://"]),
        ("file://host/path", ["file:///"]),
        ("memory://name", ["memory://"]),
        ("s3:/bucket/runs", ["two slashes", "s3://", "./s3:/"]),
        ("HF:/name/run", ["two slashes", "HF://…"]),
    ],
    ids=repr,
)
def test_what_cannot_be_meant_is_told_with_what_can(storage, words, tmp_path, monkeypatch):
    """An error that names the known kinds and shows how to write it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        open_store(storage)
    for word in words:
        assert word in str(caught.value)


def test_a_store_whose_package_is_missing_says_what_to_install(monkeypatch):
    """A new kind of store is one line; where its package is missing, the line's own sentence is shown."""
    part = colabkeep.stores._Part("xyz", "colabkeep.stores.no_such_module:open_url", "pip install colabkeep[xyz]")
    monkeypatch.setattr(colabkeep.stores, "_PARTS", (*colabkeep.stores._PARTS, part))
    with pytest.raises(MissingDependency, match=r"pip install colabkeep\[xyz\]"):
        open_store("xyz://bucket")


def test_only_the_store_that_is_used_is_loaded(tmp_path):
    """Opening a folder loads neither the other stores nor what only they need."""
    program = (
        "import sys\n"
        "from colabkeep.stores import open_store\n"
        "loaded = [name for name in sys.modules if name.startswith('colabkeep.stores.')]\n"
        "assert set(loaded) <= {'colabkeep.stores.base', 'colabkeep.stores.base', 'colabkeep.stores.base'}, loaded\n"
        "open_store(sys.argv[1])\n"
        "for name in ('tenacity', 'colabkeep.stores.tiered', 'colabkeep.stores.memory', 'asyncio', 'requests'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_two_stores_of_one_process_know_nothing_of_each_other(tmp_path):
    """There is no hidden common state: two memory stores, two folders, two pairs."""
    first = open_store((tmp_path / "1", MemoryStore()))
    second = open_store((tmp_path / "2", MemoryStore()))
    first.put("a", BytesSource(b"x"))
    assert first.flush(30.0)
    assert list(second.list("")) == list(second.behind.list("")) == []
    first.close()
    second.close()


SECRET = "s3cr3t0123456789"
SECRETS = [
    *(
        f"{scheme}://{rest.format(SECRET)}"
        for scheme in ("file", "mounted", "drive", "kaggle", "memory", "hf", "s3", "s3a", "gs", "gcs", "sftp", "ssh")
        for rest in ("{}@x", "me:{}@x/y", "me:a/{}@x/y", "x?token={}", "x?{}", "#{}")
    ),
    f"nobody-has-this://me:{SECRET}@x?key={SECRET}",
    f"drive://id=short?token={SECRET}",
    f"drive://x?service=http://me:{SECRET}@example.org",
    f"drive://x?shared_drive=!{SECRET}",
    {"type": "service_account", "private_key": SECRET},
    f'{{"type": "service_account", "private_key": "{SECRET}"}}',
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    SECRET.encode(),
    ({"private_key": SECRET}, "s3://bucket"),
    (f"hf://{SECRET}@x", "s3://bucket", "s3://bucket"),
    (f"s3://{SECRET}@x", f"s3://{SECRET}@x"),
    (f"/fast + s3://{SECRET}@x", "/slow"),
    f"s3:/key:{SECRET}@bucket/x",
    f"hf:/name/run?token={SECRET}",
]


def said_of(storage):
    """What the error says, with its cause; and what was opened where there is none."""
    try:
        return "", open_store(storage).url
    except ColabKeepError as error:
        return f"{error} {error!r} {error.__cause__!r}", ""


@pytest.mark.parametrize("storage", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_in_storage_is_in_no_error(storage):
    """Keys before an "@", behind a "?" or "#", a key file that was read: an error that is shown to others has none of
    it. What can be opened after all (a user's name for SFTP, a fragment in a path) is a place."""
    said, opened = said_of(storage)
    assert SECRET not in said
    assert said or opened.startswith(("sftp://", "ssh://", "file://", "drive://"))
