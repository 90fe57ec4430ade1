"""What a user has of a Kaggle dataset as a store: nothing is called safe too early, and nothing is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

import colabkeep.stores.kaggle.store as module
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import (
    CheckpointDamaged,
    MissingDependency,
    NameTaken,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource
from colabkeep.stores.kaggle.index import INDEX
from colabkeep.stores.kaggle.store import KaggleStore, open_url
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.kaggle.faults import Answer, Door
from tests.fakes.kaggle.state import TOKEN, Version
from tests.fakes.model import names, read
from tests.fakes.runs import filled, resumed

PATIENCE = 60.0  # seconds until a hanging test gives up
BIG = bytes(range(256)) * 20_000  # five megabytes: a file of its own
BAD_GATEWAY = Answer(502)
FOR_EVER = 10**5  # questions about the state


def put(store, name, data=b"data"):
    return store.put(name, BytesSource(data))


def newest(fake, handle="ada/checkpoints"):
    return fake.state.datasets[handle][-1].files


def test_an_object_is_local_until_its_version_is_proven(machine, fake):
    """On this disk: local. Uploaded and being processed: sent. Ready, listed and its digest stated: confirmed."""
    store = machine("a")
    receipt = put(store, "run/a")
    assert (receipt.level, store.confirm(receipt).level) == ("local", "local")
    fake.state.processing = FOR_EVER
    flushing = threading.Thread(target=store.flush, args=(PATIENCE,))
    flushing.start()
    while fake.calls.count("GetDatasetStatus") < 10 or "CreateDataset" not in fake.calls:
        assert store.confirm(receipt).level != "confirmed"
        time.sleep(0.01)
    assert store.confirm(receipt).level == "sent"
    with fake.state.guard:
        fake.state.datasets["ada/checkpoints"][0].steps.clear()
    flushing.join(PATIENCE)
    assert store.confirm(receipt) == replace(receipt, level="confirmed")


def test_another_machine_goes_on_from_the_dataset_alone(machine):
    """What one machine published, another one lists and reads, small and large, and has under its name already."""
    first = machine("a")
    put(first, "run/blobs/big", BIG)
    put(first, "run/empty", b"")
    put(first, "run/checkpoints/1", b"manifest")
    assert first.flush(PATIENCE)
    first.close()
    second = machine("b")
    assert names(second) == ["run/blobs/big", "run/checkpoints/1", "run/empty"]
    assert (read(second, "run/blobs/big"), read(second, "run/checkpoints/1"), read(second, "run/empty")) == (
        BIG,
        b"manifest",
        b"",
    )
    with pytest.raises(NameTaken):
        put(second, "run/empty", b"other")


def test_each_version_carries_all_that_is_still_wanted(machine, fake):
    """A session that reads nothing of the earlier ones publishes their objects with its own, the deleted ones not."""
    first = machine("a")
    put(first, "run/blobs/big", BIG)
    put(first, "run/old")
    put(first, "run/kept")
    assert first.flush(PATIENCE)
    first.close()
    second = machine("b")
    put(second, "run/new")
    second.delete("run/old")
    assert second.flush(PATIENCE)
    assert len(fake.state.datasets["ada/checkpoints"]) == 2
    third = machine("c")
    assert names(third) == ["run/blobs/big", "run/kept", "run/new"]
    assert (read(third, "run/kept"), read(third, "run/blobs/big")) == (b"data", BIG)


def test_a_deleted_object_stays_deleted_while_a_version_is_under_way(machine, fake):
    """What is deleted during an upload is in that version, is not seen here meanwhile, and is not in the next one."""
    store = machine("a")
    put(store, "run/a")
    put(store, "run/b")
    fake.state.processing = FOR_EVER
    flushing = threading.Thread(target=store.flush, args=(PATIENCE,))
    flushing.start()
    while "CreateDataset" not in fake.calls:
        time.sleep(0.01)
    store.delete("run/a")
    with fake.state.guard:
        fake.state.datasets["ada/checkpoints"][0].steps.clear()
        fake.state.processing = 2
    flushing.join(PATIENCE)
    assert names(store) == ["run/b"]
    with pytest.raises(ObjectNotFound):
        read(store, "run/a")
    assert store.flush(PATIENCE)
    assert names(machine("b")) == ["run/b"]


def test_many_objects_stay_below_fifty_files_and_no_archive(machine, fake):
    """Two hundred small objects and several large ones become a handful of files, which kagglehub does not zip."""
    store = machine("a")
    for number in range(200):
        put(store, f"run/checkpoints/{number}", b"%d" % number)
    for number in range(3):
        put(store, f"run/blobs/{number}", BIG + bytes([number]))
    put(store, "run/blobs/again", BIG + b"\x00")
    assert store.flush(PATIENCE)
    assert len(newest(fake)) == 5  # three large ones, of which one has two names; the pack; the index
    other = machine("b")
    assert [read(other, f"run/checkpoints/{number}") for number in range(200)] == [b"%d" % n for n in range(200)]
    assert read(other, "run/blobs/again") == BIG + b"\x00"


def test_nothing_is_sent_when_nothing_is_new(machine, fake):
    """A second flush makes no version: each one is sent whole."""
    store = machine("a")
    put(store, "run/a")
    assert store.flush(PATIENCE)
    calls = len(fake.calls)
    assert store.flush(PATIENCE)
    assert len(fake.calls) == calls


def test_what_a_killed_session_left_is_published_by_the_next_one_there(machine, fake):
    """Objects that were put and not published are on that machine's disk, and go along without being put again."""
    first = machine("a")
    put(first, "run/a")
    first.close()
    assert fake.state.datasets == {}
    assert machine("a").flush(PATIENCE)
    assert names(machine("b")) == ["run/a"]


def test_the_first_version_comes_soon_and_unasked(machine, fake):
    """Nobody has to flush: the first object brings a version, which proves early that the way works."""
    store = machine("a", first=0.01)
    receipt = put(store, "run/a")
    arrived = threading.Event()
    while not arrived.wait(0.01) and store.confirm(receipt).level != "confirmed":
        pass
    put(store, "run/b")  # this one has to wait: versions are `every` apart
    assert len(fake.state.datasets["ada/checkpoints"]) == 1


def test_without_an_answer_nothing_is_taken_for_empty(machine, fake):
    """Where Kaggle cannot be asked, opening fails: training must not start from zero."""
    put(first := machine("a"), "run/a")
    assert first.flush(PATIENCE)
    fake.fault("GetDatasetStatus", BAD_GATEWAY, times=100)
    second = machine("b")
    for call in (lambda: names(second), lambda: read(second, "run/a"), lambda: put(second, "run/a")):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert "ada/checkpoints" in caught.value.problem
    fake.faults.clear()
    assert names(second) == ["run/a"]


def test_a_dataset_that_may_not_be_looked_at_is_not_taken_for_missing(machine, fake):
    """Kaggle says 403 for a dataset that is not there, and for one that is: the user's own list tells which it was."""
    assert names(machine("new")) == []
    put(first := machine("a"), "run/a")
    assert first.flush(PATIENCE)
    for kind in ("GetDatasetStatus", "GetDataset"):
        fake.fault(kind, Answer(403))
    with pytest.raises(StoreError, match="could not be looked at"):
        names(machine("b"))


def test_a_first_version_that_is_still_processed_is_not_taken_for_empty(machine, fake):
    """A machine that comes right after the first one's end waits for its version, and says so if that takes long."""
    put(first := machine("a"), "run/a")
    fake.state.processing = FOR_EVER
    assert not first.flush(0.5)
    first.close()
    with pytest.raises(StoreUnavailable, match="processed"):
        names(machine("b", look=0.05))
    with fake.state.guard:
        fake.state.datasets["ada/checkpoints"][0].steps[:] = ["BLOBS_RECEIVED"] * 5
    assert names(machine("c")) == ["run/a"]


def test_a_dataset_of_something_else_is_left_alone(machine, fake):
    """A name that the user has given to other data is refused, with a remedy, and not a byte of it is replaced."""
    put(first := machine("a"), "run/a")
    first.close()
    fake.state.datasets["ada/checkpoints"] = [Version({"birds.csv": b"robin,1\n"}, [])]
    store = machine("a")
    with pytest.raises(StoreError, match="kaggle://your-name/another-name"):
        put(store, "run/b")
    assert not store.flush(1.0)
    assert [version.files for version in fake.state.datasets["ada/checkpoints"]] == [{"birds.csv": b"robin,1\n"}]


def test_the_newest_whole_version_counts(machine, fake):
    """A version that came to be from an upload that was cut off is passed over, for the one before."""
    put(first := machine("a"), "run/a")
    assert first.flush(PATIENCE)
    put(first, "run/b", BIG)
    assert first.flush(PATIENCE)
    (big,) = [file for file in newest(fake) if file.startswith("object-")]
    newest(fake)[big] = newest(fake)[big][:100]
    assert names(machine("b")) == ["run/a"]
    newest(fake)[INDEX] = b"{}"
    assert names(machine("c")) == ["run/a"]


def test_two_machines_that_publish_at_once_lose_nothing(machine):
    """Each version is a whole set, so the later one would drop the other's objects: it takes them in instead."""
    first, second = machine("a"), machine("b")
    put(first, "run/start")
    assert first.flush(PATIENCE)
    assert names(second) == ["run/start"]
    for number in range(3):
        put(first, f"run/first/{number}")
        put(second, f"run/second/{number}")
        flushing = [threading.Thread(target=store.flush, args=(PATIENCE,)) for store in (first, second)]
        for thread in flushing:
            thread.start()
        for thread in flushing:
            thread.join(PATIENCE)
    everything = ["run/start", *[f"run/{who}/{number}" for who in ("first", "second") for number in range(3)]]
    assert names(machine("c")) == sorted(everything)


def test_a_version_that_did_not_know_of_another_hides_nothing(machine, fake):
    """B publishes while A uploads. A's version, the newest, lacks what B has: whoever looks now sees both."""
    first, second = machine("a"), machine("b")
    put(first, "run/start")
    assert first.flush(PATIENCE)
    assert names(second) == ["run/start"]
    put(first, "run/first")
    door = Door()
    fake.fault("CreateDatasetVersion", door)
    flushing = threading.Thread(target=first.flush, args=(PATIENCE,))
    flushing.start()
    assert door.reached.wait(PATIENCE)
    put(second, "run/second")
    assert second.flush(PATIENCE)
    door.opened.set()
    flushing.join(PATIENCE)
    assert len(fake.state.datasets["ada/checkpoints"]) == 3
    assert names(machine("c")) == names(first) == ["run/first", "run/second", "run/start"]


def test_the_version_of_another_is_not_taken_for_ones_own(machine, fake):
    """B's version is ready while A still waits for its own: A does not call that one its own, and takes it in."""
    first, second = machine("a"), machine("b")
    put(first, "run/start")
    assert first.flush(PATIENCE)
    assert names(second) == ["run/start"]
    put(second, "run/second")
    door = Door()
    fake.fault("CreateDatasetVersion", door)
    flushing = [threading.Thread(target=store.flush, args=(PATIENCE,)) for store in (second, first)]
    flushing[0].start()
    assert door.reached.wait(PATIENCE)
    receipt = put(first, "run/first")
    fake.state.processing = FOR_EVER
    flushing[1].start()
    while len(fake.state.datasets["ada/checkpoints"]) < 2:
        time.sleep(0.01)
    fake.state.processing = 0
    door.opened.set()
    for thread in flushing:
        thread.join(PATIENCE)
    assert len(fake.state.datasets["ada/checkpoints"]) == 4
    assert first.confirm(receipt).level == "confirmed"
    assert names(machine("c")) == ["run/first", "run/second", "run/start"]


def test_two_processes_of_one_machine_take_turns(machine):
    """They share the folder, so one waits while the other publishes, and then sends what is its own."""
    first, second = machine("a"), machine("a")
    receipts = {store: put(store, f"run/{number}") for number, store in enumerate((first, second))}
    with first._contents.alone():
        assert not second.flush(0.3)
        assert "Another process" in second.degraded
    assert second.flush(PATIENCE)
    assert first.flush(PATIENCE)
    assert {store.confirm(receipt).level for store, receipt in receipts.items()} == {"confirmed"}


def test_bytes_that_are_not_those_of_the_receipt_are_never_confirmed(machine):
    """A receipt for other bytes under the same name does not rise, whatever the dataset holds."""
    store = machine("a")
    receipt = put(store, "run/a")
    assert store.flush(PATIENCE)
    assert store.confirm(replace(receipt, sha256="0" * 64)).level == "local"
    assert store.confirm(replace(receipt, sha256="")).level == "confirmed"  # a tier that knows only the name
    store.delete("run/a")
    assert store.confirm(receipt).level == "local"


def test_the_user_is_told_how_to_sign_in(machine, fake, capfd):
    """With no token, or a wrong one, the remedy names the page and the variable; nothing shows the token."""
    for token in (None, "KGAT_wrong1234567890"):
        store = machine(f"with {token}", token=token)
        with pytest.raises(StoreError, match="KAGGLE_API_TOKEN") as caught:
            names(store)
        assert "KGAT_wrong" not in f"{caught.value!s} {caught.value!r} {store.degraded} {store!r}"
    assert "KGAT_" not in "".join(capfd.readouterr())


def test_a_secret_never_gets_out(machine, fake, capfd, tmp_path):
    """Not even where the service itself repeats the token, or a signed address, in what it says."""
    body = json.dumps({"code": 400, "message": f"bad token {TOKEN} at https://storage.example/x?signature=s1gned"})
    telling = Answer(400, {"Content-Type": "application/json"}, body.encode())
    fake.fault("CreateDataset", telling, times=100)
    store = machine("a")
    put(store, "run/a")
    assert not store.flush(2.0)
    assert "bad token …" in store.degraded
    store.close()
    fake.fault("GetDatasetStatus", telling)
    with pytest.raises(StoreError, match="bad token …") as caught:
        names(machine("b"))
    told = f"{caught.value!s} {caught.value!r} {store.degraded}" + "".join(capfd.readouterr())
    told += "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN not in told
    assert "s1gned" not in told


def test_the_dataset_of_another_user_is_refused_with_the_reason(machine):
    """`kaggle://` with somebody else's name: the first version is refused, and the remedy asks whose name it is."""
    store = machine("a", handle="eve/checkpoints")
    put(store, "run/a")
    assert not store.flush(2.0)
    assert "the account 'eve'" in store.degraded
    assert store.confirm(put(store, "run/b")).level == "local"


def test_what_is_damaged_in_the_dataset_is_said_to_be(machine, fake):
    """An object whose bytes changed there, with all sizes right, is not handed out."""
    put(first := machine("a"), "run/a", BIG)
    assert first.flush(PATIENCE)
    (big,) = [file for file in newest(fake) if file.startswith("object-")]
    newest(fake)[big] = BIG[::-1]
    second = machine("b")
    with pytest.raises(CheckpointDamaged, match="not what was put"):
        read(second, "run/a")
    put(second, "run/b")
    assert second.flush(PATIENCE), "what is damaged does not keep the rest from being published"
    assert names(machine("c")) == ["run/b"]


@pytest.mark.parametrize(
    "url",
    [
        "kaggle://",
        "kaggle://ada",
        "kaggle://ada/abc",
        "kaggle://ada/a/b/c",
        "kaggle://ada/under_score",
        "kaggle:///name12",
    ],
)
def test_a_url_that_names_no_dataset_is_told_with_an_example(url):
    """Kaggle takes names of 6 to 50 characters; better known now than after the first hour."""
    with pytest.raises(UsageError, match="kaggle://your-user-name/a-name"):
        open_store(url)


def test_opening_asks_nobody_and_writes_nothing(client, tmp_path, monkeypatch):
    """`storage="kaggle://…"` is a store with the same url, and there is no process and no file yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store("kaggle://Ada/my-checkpoints")
    assert isinstance(store, KaggleStore)
    assert store.url == "kaggle://ada/my-checkpoints"
    assert (store.properties.top_level, store.properties.persists, store.degraded) == ("confirmed", True, None)
    assert store.flush(0.0)
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_without_the_client_the_command_is_shown(monkeypatch):
    """The error says what to install."""
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install .*colabkeep\[kaggle\]"):
        open_url("kaggle://ada/my-checkpoints")


def test_a_source_that_goes_wrong_publishes_nothing(machine, fake):
    """A put that failed leaves nothing that a version could pick up."""
    store = machine("a")
    with pytest.raises(StoreError):
        store.put("run/a", ChunkedSource(b"ab", announced=5))
    assert store.flush(PATIENCE)
    assert fake.state.datasets == {}


def test_the_process_that_trains_never_loads_the_client(client, tmp_path):
    """kagglehub configures logging, prints and looks for Colab when it is imported: it is not imported here."""
    program = (
        "import sys\n"
        "from colabkeep.stores import open_store\n"
        "store = open_store('kaggle://ada/my-checkpoints')\n"
        "assert store.flush(0.0)\n"
        "store.close()\n"
        "assert not {'kagglehub', 'kagglesdk', 'requests'} & set(sys.modules)\n"
    )
    environ = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)


def test_what_is_gathered_is_readable_by_its_owner_alone(machine, tmp_path):
    """The data set is private, and so is what waits on a shared machine's disk to become a part of it."""
    put(store := machine("a"), "run/a", BIG)
    assert store.flush(PATIENCE)
    made = [path for part in ("objects", "outbox") for path in (tmp_path / "a" / part).rglob("*")]
    assert made
    assert all(path.stat().st_mode & 0o077 == 0 for path in made)


def test_the_room_of_downloads_and_packs_is_given_back(machine, tmp_path):
    """After a version, and after reading, the folder holds the objects and nothing else of size."""
    put(first := machine("a"), "run/big", BIG)
    put(first, "run/small", bytes(10_000))
    assert first.flush(PATIENCE)
    assert read(second := machine("b"), "run/big") == BIG
    assert read(second, "run/small") == bytes(10_000)
    for name in ("a", "b"):
        sizes = [path.stat().st_size for path in (tmp_path / name).rglob("*") if path.is_file()]
        assert sum(sizes) < len(BIG) + 10_000 + 1000


def test_opening_a_run_takes_one_listing(machine, fake):
    """Of the dataset's files: which object lies in which of them, is told by one that is read."""
    store = machine("a")
    filled(store, 12)
    assert store.flush(30.0)
    store.close()
    before = len(fake.calls)
    resumed(machine("b"), KeepLast(None))
    assert fake.calls[before:].count("ListDatasetFiles") == 1
