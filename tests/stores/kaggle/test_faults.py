"""Whatever Kaggle, the network or the machine does: what is called confirmed is there, and what is not gets there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colabkeep.core.errors import StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.kaggle.service import Pace
from colabkeep.stores.kaggle.store import Publisher
from colabkeep.stores.shared.retry import Throttled
from tests.fakes.kaggle.faults import Answer, Cut, Damaged, LostReply, Silence
from tests.fakes.kaggle.state import TOKEN
from tests.fakes.model import read

PATIENCE = 90.0  # seconds until a hanging test gives up
BIG = bytes(range(256)) * 20_000


def put(store, name, data=b"data"):
    return store.put(name, BytesSource(data))


def trouble(store, receipt):
    """What is told to be wrong, as soon as it is; until then nothing is called confirmed. The next attempt mends it."""
    end = time.monotonic() + PATIENCE
    while (told := store.degraded) is None:
        assert store.confirm(receipt).level != "confirmed"
        assert time.monotonic() < end
        time.sleep(0.01)
    return told


def versions(fake):
    return fake.state.datasets["ada/checkpoints"]


def test_a_blob_that_was_cut_off_is_not_called_safe(machine, fake):
    """kagglehub reports success for a part of a file after one broken connection and one error. It is sent again."""
    store = machine("a", retry=3.0)
    receipt = put(store, "run/a", BIG)
    fake.fault("PUT", Cut(331_776))
    fake.fault("STATUS", Answer(500))
    assert not store.flush(0.0)
    assert "331776 bytes there; 5120000 were sent" in trouble(store, receipt)
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"
    assert store.degraded is None
    assert len(versions(fake)) == 2
    assert read(machine("b"), "run/a") == BIG


def test_a_version_with_a_wrong_byte_is_not_called_safe(machine, fake):
    """Every file has its size and one has another digest than what was sent: it is sent again."""
    store = machine("a", retry=3.0)
    fake.state.spoils = 1
    receipt = put(store, "run/a", BIG)
    assert not store.flush(0.0)
    assert "another MD5" in trouble(store, receipt)
    assert store.flush(PATIENCE)
    assert read(machine("b"), "run/a") == BIG


def test_a_version_that_never_appears_is_a_full_quota(machine, fake):
    """Kaggle calls an upload beyond the quota a success. It is told as it is, and made good when there is room."""
    store = machine("a")
    put(store, "run/a")
    assert store.flush(PATIENCE)
    fake.state.quota = 10_000
    receipt = put(store, "run/b", BIG)
    assert not store.flush(3.0)
    assert "quota" in store.degraded
    assert store.confirm(receipt).level != "confirmed"
    fake.state.quota = None
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"


def test_a_version_that_cannot_be_processed_is_made_again(machine, fake):
    """The first of all fails, and so does a later one: neither ends the publishing."""
    store = machine("a")
    for number in range(2):
        fake.state.fails_processing = 1
        receipt = put(store, f"run/{number}")
        assert store.flush(PATIENCE)
        assert store.confirm(receipt).level == "confirmed"
    assert [version.status for version in versions(fake)] == ["FAILED", "READY", "FAILED", "READY"]


@pytest.mark.parametrize("earlier", [1, 2])
def test_a_version_waits_until_the_one_before_is_ready(machine, fake, earlier):
    """While the first one is processed another is refused with 403; and two at once could be taken for each other."""
    store = machine("a", look=0.0)
    for number in range(earlier):
        put(store, f"run/{number}")
        assert store.flush(PATIENCE)
    versions(fake)[-1].steps[:] = ["BLOBS_RECEIVED"] * 40
    fake.calls.clear()
    put(store, "run/new")
    assert store.flush(PATIENCE)
    assert not [refusal for refusal in fake.state.refusals if refusal.startswith("CreateDatasetVersion")]
    assert fake.calls[: fake.calls.index("StartBlobUpload")].count("GetDatasetStatus") > 40
    assert len(versions(fake)) == earlier + 1


def test_a_refusal_that_passes_is_waited_out(machine, fake):
    """A 403 that comes all the same, in the moment between, is told, and the version is made."""
    put(store := machine("a"), "run/a")
    fake.fault(
        "CreateDataset", Answer(403, {"Content-Type": "application/json"}, b'{"code":403,"message":"Forbidden"}')
    )
    assert store.flush(PATIENCE)
    assert store.degraded is None


def test_kaggle_is_left_alone_for_as_long_as_it_asks():
    """After a 429 that names an hour, nothing is sent before, also when somebody waits for it."""
    calls = []

    def publish():
        calls.append(time.monotonic())
        raise Throttled(problem="Too many requests.", remedy="Wait.", seconds=3600.0)

    publisher = Publisher(publish, Pace(retry=0.01))
    publisher.changed()
    assert not publisher.wait(0.5)
    assert len(calls) == 1
    assert publisher.trouble == "Too many requests. Wait."
    publisher.close(lambda: None)


def test_too_many_requests_are_a_pause_and_not_a_failure(machine, fake):
    """429 while uploading and while looking: the pause that Kaggle names is kept, and then it goes on."""
    put(store := machine("a"), "run/a")
    for kind in ("StartBlobUpload", "CreateDataset", "GetDatasetStatus", "ListDatasetFiles", "DownloadDataset"):
        fake.fault(kind, Answer(429, {"Retry-After": "1"}))
    assert store.flush(PATIENCE)
    assert fake.faults[0].times == fake.faults[-1].times == 0


def test_a_lost_answer_does_not_send_all_again(machine, fake):
    """The version was made, and the answer never came: it is found, proven and counted, without a second upload."""
    put(store := machine("a"), "run/a")
    assert store.flush(PATIENCE)
    receipt = put(store, "run/b", BIG)
    fake.fault("CreateDatasetVersion", LostReply())
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"
    assert len(versions(fake)) == 2


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("GetDatasetStatus", Cut(0)),
        ("GetDataset", Answer(502)),
        ("StartBlobUpload", Answer(502)),
        ("StartBlobUpload", LostReply()),
        ("PUT", Answer(502)),
        ("PUT", Cut(0)),
        ("PUT", LostReply()),
        ("CreateDataset", Answer(502)),
        ("CreateDataset", LostReply()),
    ],
)
def test_one_failure_anywhere_is_made_good(machine, fake, kind, action):
    """A proxy's error page, a broken connection or a lost answer: the objects get there, each once and whole."""
    store = machine("a")
    fake.fault(kind, action)
    try:
        receipt = put(store, "run/a", BIG)
    except StoreUnavailable:
        receipt = put(store, "run/a", BIG)
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"
    assert read(machine("b"), "run/a") == BIG


@pytest.mark.parametrize("kind", ["GetDatasetStatus", "StartBlobUpload", "PUT"])
def test_silence_ends(machine, fake, kind):
    """kagglehub waits for ever, or for ten minutes; its process is killed after our bound, and it is tried again."""
    store = machine("a", call=8.0)  # on a busy machine a new process takes seconds until it can ask
    fake.fault(kind, Silence())
    put(store, "run/a")
    assert store.flush(PATIENCE)


@pytest.mark.parametrize("action", [Cut(2_000_000), Damaged(), Answer(503)], ids=["cut", "damaged", "503"])
def test_a_download_that_goes_wrong_is_tried_again(machine, fake, action):
    """The machine that resumes gets the right bytes, whatever happens on the way."""
    put(first := machine("a"), "run/a", BIG)
    assert first.flush(PATIENCE)
    second = machine("b")
    second.list("")
    fake.fault("GET", action)
    assert read(second, "run/a") == BIG
    assert fake.faults[0].times == 0


@pytest.mark.parametrize("action", [Cut(100), Damaged(), Answer(503)], ids=["cut", "damaged", "503"])
def test_what_a_session_before_had_downloaded_is_never_read_in_part(machine, fake, action):
    """kagglehub remembers that a file was complete, and takes what there is of it later for the whole."""
    put(first := machine("a"), "run/a")
    assert first.flush(PATIENCE)
    for _ in range(2):
        session = machine("b")
        assert [entry.name for entry in session.list("")] == ["run/a"]
        session.close()
        fake.fault("GET", action)
    assert [entry.name for entry in machine("b").list("")] == ["run/a"]
    assert [fault.times for fault in fake.faults] == [0, 0]


def test_a_client_that_is_killed_is_started_again(machine, fake):
    """Out of memory, say: the next question has a new process."""
    put(store := machine("a"), "run/a")
    store._dataset._service.process.child.kill()
    assert store.flush(PATIENCE)
    assert len(versions(fake)) == 1


def test_closing_does_not_wait_for_a_transfer(machine, fake):
    """In the middle of an upload that gets no answer, `close` comes back, and the objects are published next time."""
    store = machine("a")
    fake.fault("PUT", Silence())
    put(store, "run/a")
    assert not store.flush(0.0)
    while "PUT" not in fake.calls:
        time.sleep(0.01)
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < PATIENCE  # the client alone would wait for ten minutes
    assert machine("a").flush(PATIENCE)


PROGRAM = """
import sys
from pathlib import Path
from colabkeep.stores.base import BytesSource
from colabkeep.stores.kaggle.service import Pace, Service
from colabkeep.stores.kaggle.store import KaggleStore

folder, home, address, child, token = sys.argv[1:]
environ = {"HOME": home, "PATH": "/usr/bin:/bin", "KAGGLE_API_TOKEN": token}
pace = Pace(first=3600, retry=0.05, poll=0.01)
command = (sys.executable, child, address)
service = Service("ada/checkpoints", Path(folder), pace, command=command, environ=environ)
store = KaggleStore(service, Path(folder))
store.put("run/a", BytesSource(b"first"))
assert store.flush(60.0)
store.put("run/b", BytesSource(bytes(5_000_000)))
print(service.process.child.pid, flush=True)
store.flush(60.0)
"""


@pytest.mark.parametrize("kind", ["StartBlobUpload", "PUT", "CreateDatasetVersion", "ListDatasetFiles"])
def test_a_kill_at_any_moment_of_a_version_loses_nothing(machine, fake, tmp_path, kind):
    """SIGKILL while it uploads: Kaggle's client ends too, and publishes nothing later; the next session goes on."""
    fake.fault(kind, Silence(), skip={"StartBlobUpload": 2, "PUT": 2, "ListDatasetFiles": 1}.get(kind, 0))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [tmp_path / "a", tmp_path / "home", fake.address, fake.command[1], TOKEN]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        child = int(process.stdout.readline())
        while fake.faults[0].times:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    while is_running(child):
        time.sleep(0.01)
    made = len(versions(fake))
    fake.released.set()
    assert read(machine("other"), "run/a") == b"first"
    assert machine("a").flush(PATIENCE)
    assert len(versions(fake)) <= made + 1
    assert read(machine("b"), "run/b") == bytes(5_000_000)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
