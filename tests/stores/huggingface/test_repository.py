"""Checkpoints in a repository: few commits, nothing overwritten, nothing called confirmed that is not there."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download

from colabkeep.checkpoint.compaction import Folding
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.hub import huggingface as door
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.hub import TOKEN, Fault, File
from tests.fakes.memory import SIZE, growth
from tests.fakes.model import names, read
from tests.fakes.runs import RUN, filled, old_sessions, resumed, told

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

PATIENCE = 30.0
REPO = "ada/run"
BLOB = "run/blobs/a.safetensors"
SMALL = 2  # bytes; what the manifests of these tests have
MANIFEST = "run/checkpoints/1.json"


@pytest.fixture(params=["in memory", "streamed"])
def ways(request, monkeypatch):
    """How the bytes travel: small ones are read at once, large ones piece by piece."""
    if request.param == "streamed":
        monkeypatch.setattr(door, "_IN_MEMORY", SMALL)


def commits(hub):
    return len(hub.repos[REPO].commits) - 1  # the first one made the repository


def test_a_save_is_one_commit(hub, opened, ways):
    """The blobs wait, as bytes at the Hub, for the manifest that names them, and come in with it or not at all."""
    store = opened()
    blobs = [store.put(f"run/blobs/{n}.safetensors", BytesSource(bytes([n]) * 1000)) for n in range(3)]
    assert {receipt.level for receipt in blobs} == {"sent"}
    assert (commits(hub), len(hub.repos[REPO].large)) == (0, 3)
    manifest = store.put(MANIFEST, BytesSource(b"{}"))
    assert commits(hub) == 1
    assert {store.confirm(receipt).level for receipt in [*blobs, manifest]} == {"confirmed"}
    assert hub.content(REPO, "run/blobs/2.safetensors") == b"\2" * 1000


def test_what_waits_is_seen_in_this_process(hub, opened):
    """It is listed, its name is taken, and reading it commits it."""
    store = opened()
    store.put(BLOB, BytesSource(b"blob"))
    assert names(store) == [BLOB]
    with pytest.raises(NameTaken):
        store.put(BLOB, BytesSource(b"other"))
    assert commits(hub) == 0
    assert read(store, BLOB) == b"blob"
    assert commits(hub) == 1


def test_the_same_bytes_again_are_refused_too(hub, opened):
    """A name is written once, also by who would write the same."""
    store = opened()
    for name in (BLOB, MANIFEST):
        store.put(name, BytesSource(b"{}"))
        with pytest.raises(NameTaken):
            store.put(name, BytesSource(b"{}"))


def test_a_flush_commits_what_waits(hub, opened):
    """Additions and deletions, together; a second one does nothing."""
    store = opened()
    store.put("run.json", BytesSource(b"{}"))
    receipt = store.put(BLOB, BytesSource(b"blob"))
    store.delete("run.json")
    assert not store.flush(0.0)
    assert store.flush(30.0)
    assert store.flush(30.0)
    assert (commits(hub), names(opened()), store.confirm(receipt).level) == (2, [BLOB], "confirmed")


def test_a_session_that_dies_before_the_commit_leaves_no_half_checkpoint(hub, opened):
    """Its blobs are in no commit; putting them again sends no byte."""
    opened().put(BLOB, BytesSource(b"blob"))
    store = opened()
    assert names(store) == []
    hub.log.clear()
    store.put(BLOB, BytesSource(b"blob"))
    store.put(MANIFEST, BytesSource(b"{}"))
    assert hub.requests("^PUT ") == []
    assert read(store, BLOB) == b"blob"


def test_pruning_comes_with_the_next_commit(hub, opened):
    """However many files it deletes."""
    store = opened()
    for n in range(4):
        store.put(f"run/{n}.json", BytesSource(b"{}"))
    for n in range(3):
        store.delete(f"run/{n}.json")
    assert names(store) == ["run/3.json"]
    with pytest.raises(ObjectNotFound):
        store.get("run/0.json")
    assert commits(hub) == 4
    store.put(MANIFEST, BytesSource(b"{}"))
    assert commits(hub) == 5
    assert names(opened()) == ["run/3.json", MANIFEST]


def test_the_space_of_pruned_checkpoints_is_given_back(hub, opened):
    """A hundred saves of which one is kept need the space of two, for the history keeps nothing large."""
    store = opened()
    for n in range(20):
        store.put(f"run/blobs/{n}.safetensors", BytesSource(bytes([n]) * 1000))
        if n:
            store.delete(f"run/blobs/{n - 1}.safetensors")
        store.put(f"run/checkpoints/{n}.json", BytesSource(b"{}"))
        assert hub.repos[REPO].used <= 2000
    assert store.degraded is None
    assert read(store, "run/blobs/19.safetensors") == bytes([19]) * 1000


def test_bytes_that_something_else_needs_are_not_freed(hub, opened):
    """The same bytes under another name, in another folder of the repository, or waiting for their commit."""
    store = opened(f"hf://{REPO}/mine")
    store.put(BLOB, BytesSource(b"shared"))
    store.put(MANIFEST, BytesSource(b"{}"))
    theirs = opened(f"hf://{REPO}/theirs")
    theirs.put(BLOB, BytesSource(b"shared"))
    theirs.put(MANIFEST, BytesSource(b"{}"))
    store.delete(BLOB)
    assert store.flush(30.0)
    assert read(theirs, BLOB) == b"shared"


def test_a_tag_keeps_what_it_needs(hub, opened):
    """Where the user tagged the repository nothing is taken out of its history, and that is told."""
    store = opened()
    store.put(BLOB, BytesSource(b"blob"))
    store.put(MANIFEST, BytesSource(b"{}"))
    hub.repos[REPO].tags["best"] = hub.repos[REPO].commits[-1][0]
    store.delete(BLOB)
    assert store.flush(30.0)
    assert "tags" in store.degraded
    assert len(hub.repos[REPO].large) == 1
    hub.repos[REPO].tags.clear()
    store.put("run/next.json", BytesSource(b"{}"))
    assert (store.degraded, hub.repos[REPO].large) == (None, {})


def test_space_that_cannot_be_given_back_now_is_given_back_later(hub, opened):
    """The save itself is not disturbed."""
    store = opened()
    store.put(BLOB, BytesSource(b"blob"))
    store.put(MANIFEST, BytesSource(b"{}"))
    store.delete(BLOB)
    hub.faults = [Fault("POST", "lfs-files/batch", "status", 500, count=10**6)]
    assert store.put("run/2.json", BytesSource(b"{}")).level == "confirmed"
    assert "not given back yet" in store.degraded
    hub.faults = []
    store.put("run/3.json", BytesSource(b"{}"))
    assert (store.degraded, hub.repos[REPO].large) == (None, {})


def test_a_new_repository_is_private(hub, opened):
    """Nobody publishes a model by accident."""
    opened().put("run/a", BytesSource(b"x"))
    assert hub.repos[REPO].private
    assert len(hub.requests("repos/create")) == 1


def test_a_commit_of_somebody_else_in_between_is_no_harm(hub, opened):
    """The Hub refuses what was made on top of an older commit; it is made again on the newest."""
    store = opened()
    store.put("run/a.json", BytesSource(b"a"))
    hub.commit(REPO, {"README.md": b"# hers"})
    store.put("run/b.json", BytesSource(b"b"))
    assert names(store) == ["README.md", "run/a.json", "run/b.json"]
    assert len(hub.requests("/commit/main")) == 3


def test_two_sessions_never_overwrite_each_other(hub, opened, ways):
    """The second one finds the name taken, although it looked before the first one came."""
    first, second = opened(), opened()
    first.put("run.json", BytesSource(b"{}"))

    def overtake(number):
        if number == 1:
            second.put("run/a.bin", BytesSource(b"faster"))

    with pytest.raises(NameTaken):
        first.put("run/a.bin", ChunkedSource(b"slow", b"er", before=overtake))
    assert read(first, "run/a.bin") == b"faster"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "/commit/main", "lost"),
        Fault("POST", "/commit/main", "reset"),
        Fault("POST", "/commit/main", "status", 503),
        Fault("POST", "/commit/main", "status", 429, headers={"Retry-After": "3"}),
        Fault("POST", "paths-info", "status", 500, count=2),
        Fault("POST", "paths-info", "reset", skip=1),
        Fault("POST", "preupload", "status", 502, count=2),
        Fault("POST", "objects/batch", "reset"),
        Fault("PUT", "storage", "reset"),
        Fault("PUT", "storage", "lost"),
        Fault("PUT", "storage", "status", 500, count=2),
        Fault("POST", "verify", "status", 503),
        Fault("GET", "refs", "status", 503, count=3),
    ],
    ids=lambda fault: f"{fault.path} {fault.kind}",
)
def test_what_goes_wrong_in_passing_is_made_good(hub, opened, ways, fault):
    """One commit, the right bytes, confirmed; an answer that got lost is not taken for somebody else's file."""
    hub.made(REPO)
    hub.faults = [fault]
    store = opened()
    blob = store.put(BLOB, ChunkedSource(b"bl", b"ob"))
    assert store.put(MANIFEST, BytesSource(b"{}")).level == "confirmed"
    assert store.confirm(blob).level == "confirmed"
    assert (hub.content(REPO, BLOB), hub.content(REPO, MANIFEST), commits(hub)) == (b"blob", b"{}", 1)


def test_bytes_that_arrive_changed_are_refused(hub, opened, ways):
    """The Hub's own check fails; nothing is committed, and the next attempt sends them anew."""
    store = opened()
    hub.faults = [Fault("PUT", "storage", "flip upload")]
    with pytest.raises(StoreError):
        store.put(BLOB, BytesSource(b"blob"))
    store.put(BLOB, BytesSource(b"blob"))
    store.put(MANIFEST, BytesSource(b"{}"))
    assert hub.content(REPO, BLOB) == b"blob"


def test_a_hub_that_lists_other_bytes_is_not_believed(hub, opened):
    """After the commit the listed digest is compared; what differs is not called confirmed."""
    store = opened()
    real = hub.commit_request

    def damaging(name, repo, lines):
        answer = real(name, repo, lines)
        repo.files[MANIFEST] = File(2, b"[]")
        return answer

    hub.commit_request = damaging
    with pytest.raises(StoreError, match="did not arrive"):
        store.put(MANIFEST, BytesSource(b"{}"))


@pytest.mark.parametrize("kind", ["short", "reset", "status"])
def test_a_download_that_breaks_off_goes_on(hub, opened, kind):
    """The missing range is asked for again."""
    store = opened()
    data = bytes(range(256)) * 5000
    store.put("run/a.bin", BytesSource(data))
    hub.faults = [Fault("GET", "storage", kind)]
    assert read(store, "run/a.bin") == data


def test_a_file_is_one_request_and_a_jump_another(hub, opened):
    """Who reads all of it asks once; who looks at a header and at the end does not download what is between."""
    store = opened()
    data = bytes(range(256)) * 5000
    store.put("run/a.bin", BytesSource(data))
    hub.log.clear()
    assert read(store, "run/a.bin") == data
    assert len(hub.requests("^GET /storage")) == 1
    with store.get("run/a.bin") as reader:
        assert reader.read(10) == data[:10]
        reader.seek(-10, io.SEEK_END)
        assert reader.read() == data[-10:]
    assert len(hub.requests("^GET /storage")) == 3


def test_a_hub_that_falls_silent_is_given_up(hub, opened, ways):
    """huggingface_hub itself would wait for ever, and hold up the end of the training."""
    hub.made(REPO)
    hub.faults = [Fault("POST", "preupload", "silence", count=10**6)]
    others = set(threading.enumerate())
    with pytest.raises(StoreUnavailable, match="no answer"):
        opened(deadline=0.2).put("run/a.json", BytesSource(b"x"))
    hub.closing = True  # those who wait are answered at last, and go
    for thread in set(threading.enumerate()) - others:
        if thread.name == "colabkeep-call":
            thread.join(PATIENCE)


def test_a_slow_upload_is_not_given_up_while_it_moves(hub, opened, monkeypatch):
    """The deadline counts from the last byte that was taken."""
    monkeypatch.setattr(door, "_IN_MEMORY", SMALL)
    store = opened(deadline=1.0)
    slow = ChunkedSource(*[b"x" * 1000] * 8, before=lambda number: time.sleep(0.25))
    assert store.put(BLOB, slow).level == "sent"
    assert slow.reads == 1


def test_an_interrupt_in_the_middle_of_an_upload_comes_out_as_it_is(hub, opened, monkeypatch):
    """As does whatever the source raises; nothing of it is at the Hub."""
    monkeypatch.setattr(door, "_IN_MEMORY", SMALL)

    def interrupt(number):
        if number == 2:
            raise error

    for error in (KeyboardInterrupt(), RuntimeError("x"), OSError(5, "y")):
        with pytest.raises(type(error)) as caught:
            opened().put(BLOB, ChunkedSource(b"x" * 1000, b"y", b"z", before=interrupt))
        assert caught.value is error
    assert hub.repos[REPO].large == {}


@pytest.mark.parametrize("announced", [999, 2500, 4000])
def test_a_streamed_source_of_another_size_is_not_kept(hub, opened, monkeypatch, announced):
    """Fewer or more bytes than were announced."""
    monkeypatch.setattr(door, "_IN_MEMORY", SMALL)
    with pytest.raises(StoreError, match="changed while it was being saved"):
        opened().put(BLOB, ChunkedSource(*[b"x" * 1000] * 3, announced=announced))
    assert names(opened()) == []


def test_a_large_file_goes_in_parts(hub, opened, monkeypatch):
    """As the Hub asks for; a part that fails is sent again."""
    monkeypatch.setattr(door, "_IN_MEMORY", SMALL)
    hub.part_size = 1000
    hub.faults = [Fault("PUT", "/2$", "status", 500), Fault("PUT", "/3$", "reset")]
    data = bytes(range(256)) * 17
    store = opened()
    store.put(BLOB, ChunkedSource(data[:700], data[700:1500], data[1500:]))
    store.put(MANIFEST, BytesSource(b"{}"))
    assert hub.content(REPO, BLOB) == data
    assert len(hub.requests(r"^PUT .*/\d$")) == 7


def test_too_many_commits_are_told(hub, opened):
    """The Hub's limit: in passing, and it is left alone for as long as it wants; nothing is lost."""
    hub.commits_per_hour = 1
    store = opened()
    store.put("run/a.json", BytesSource(b"a"))
    with pytest.raises(StoreUnavailable, match=r"429|128|rate limit"):
        store.put("run/b.json", BytesSource(b"b"))
    assert hub.refused == 1, "asked again, it would only count against us"
    assert 3500 < store.rest(urgent=True) <= 3660
    hub.commits_per_hour = None
    assert store.put("run/b.json", BytesSource(b"b")).level == "confirmed"


def test_the_journal_and_what_was_pruned_ride_in_the_next_commit(hub, opened):
    """Blobs, the journal's segments of the save before and what was pruned ride in the manifest's commit; what is left
    at the end goes with `flush`."""
    store = opened()
    store.put("run/run.json", BytesSource(b"{}"))
    for number in range(4):
        store.put(f"run/blobs/{number}.safetensors", BytesSource(b"blob %d" % number))
        store.put(f"run/checkpoints/{number}.json", BytesSource(b"manifest %d" % number))
        segment = store.put(f"run/journal/aaaaaaaa-{number:05d}.jsonl", BytesSource(b"line %d" % number))
        assert segment.level == "local"
        with store.get(f"run/journal/aaaaaaaa-{number:05d}.jsonl") as reader:
            assert reader.read() == b"line %d" % number, "it is seen within this process"
        if number:
            store.delete(f"run/checkpoints/{number - 1}.json")
            store.delete(f"run/blobs/{number - 1}.safetensors")
        assert len(hub.commit_times) == 2 + number
    assert store.flush(10.0)
    assert len(hub.commit_times) == 6
    left = sorted(entry.name for entry in opened().list("run"))
    assert left == [
        "run/blobs/3.safetensors",
        "run/checkpoints/3.json",
        *(f"run/journal/aaaaaaaa-{number:05d}.jsonl" for number in range(4)),
        "run/run.json",
    ]


@pytest.mark.parametrize("token", [None, "hf_expired"])
def test_a_missing_or_revoked_token_is_told(hub, opened, token):
    """By each method, at once, with the page to make a new one on; a private repository is not taken for empty."""
    hub.made(REPO)
    store = opened(token=token)
    for call in (
        lambda: list(store.list("run")),
        lambda: store.put("run/a", BytesSource(b"x")),
        lambda: store.get("a"),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert not isinstance(caught.value, ObjectNotFound)
        assert not caught.value.retryable
        assert "settings/tokens" in caught.value.remedy


def test_a_full_account_is_told_as_such(hub, opened):
    """A hundred gigabytes of private storage are free; what is refused for want of them is not called a bad token."""
    store = opened()
    said = "Private repository storage limit reached, please upgrade your plan"
    hub.faults = [Fault("POST", "/commit/main", "status", 403, message=said)]
    with pytest.raises(StoreFull, match="storage limit reached"):
        store.put(MANIFEST, BytesSource(b"{}"))
    assert store.put(MANIFEST, BytesSource(b"{}")).level == "confirmed"


def test_somebody_else_s_namespace_is_refused(hub, opened):
    """A typing error in the owner's name is told, with what the name must be."""
    with pytest.raises(StoreError) as caught:
        opened("hf://grace/run").put("run/a", BytesSource(b"x"))
    assert "right to write" in caught.value.remedy


def test_the_token_is_in_no_message(hub, opened, capfd, caplog):
    """Neither in errors, their causes, reprs, nor in what huggingface_hub prints; nor are signed addresses."""
    store = opened()
    hub.faults = [Fault("PUT", "storage", "status", 500, count=10**6)]
    with pytest.raises(StoreUnavailable) as caught:
        store.put(BLOB, BytesSource(b"x"))
    said, error = [store.url, repr(store), repr(store._hub), *capfd.readouterr(), caplog.text], caught.value
    assert "signature=" not in str(error)
    assert "signature=" not in "".join(said)
    while error is not None:
        said.append(f"{error!s} {error!r}")
        error = error.__cause__
    assert TOKEN not in "".join(said)


def test_a_long_list_comes_in_pages(hub, opened):
    """All of it, however many pages the Hub makes of it."""
    hub.page = 7
    hub.made(REPO)
    hub.commit(REPO, {f"run/{number}.json": b"{}" for number in range(30)})
    assert names(opened()) == sorted(f"run/{number}.json" for number in range(30))


def test_others_read_what_colabkeep_wrote_and_the_other_way_round(hub, opened, tmp_path):
    """huggingface_hub by itself, as anybody would use it."""
    store = opened(f"hf://{REPO}/folder")
    store.put(BLOB, BytesSource(b"blob"))
    store.put(MANIFEST, BytesSource(b"{}"))
    path = hf_hub_download(REPO, f"folder/{BLOB}", endpoint=hub.url, token=TOKEN, cache_dir=tmp_path)
    assert Path(path).read_bytes() == b"blob"
    api = HfApi(endpoint=hub.url, token=TOKEN)
    api.upload_file(path_or_fileobj=io.BytesIO(b"hers"), path_in_repo="folder/run/hers.bin", repo_id=REPO)
    assert names(store) == sorted([BLOB, MANIFEST, "run/hers.bin"])
    assert read(store, "run/hers.bin") == b"hers"


def test_the_environment_says_which_hub_and_who(hub, tmp_path):
    """HF_ENDPOINT and HF_TOKEN, as in a notebook: nothing else is configured."""
    program = (
        "from colabkeep.stores import open_store\n"
        "from colabkeep.stores.base import BytesSource\n"
        "print(open_store('hf://ada/run').put('run/a.json', BytesSource(b'x')).level)\n"
    )
    environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**inherited, **environ}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("confirmed\n", 0), done.stderr
    assert hub.content(REPO, "run/a.json") == b"x"


def test_memory_stays_flat(hub):
    """Sending and reading 96 MiB needs a few pieces, not the object."""
    opening = (
        "from colabkeep.stores.hub.huggingface import open_url\n"
        "store = open_url('hf://ada/run', token=sys.argv[2], endpoint=sys.argv[1])"
    )
    assert growth(opening, hub.url, TOKEN) < 64
    assert hub.repos[REPO].large[hashlib.sha256(bytes(SIZE)).hexdigest()]


@pytest.fixture
def unhurried(monkeypatch):
    """A busy machine is no reason not to be answered."""
    monkeypatch.setattr(door, "MOMENT", 60.0)


def asked(receipt):
    """What a session asks with about an object that another one put."""
    return replace(receipt, level="sent", id=None)


def test_what_another_session_put_is_confirmed(hub, opened, ways, unhurried):
    """The Hub states the digest of a large file in its listing; a small one is read once, and never again."""
    first = opened()
    receipts = [first.put(BLOB, BytesSource(b"blob")), first.put(MANIFEST, BytesSource(b"{}"))]
    for listed in (False, True):
        store = opened()
        if listed:
            assert names(store) == sorted([BLOB, MANIFEST])
        hub.log.clear()
        for _ in range(3):
            assert {store.confirm(asked(receipt)).level for receipt in receipts} == {"confirmed"}
        assert (len(hub.requests("paths-info")), len(hub.requests("^GET .*resolve"))) == (0 if listed else 2, 1)


def test_what_is_not_the_same_is_not_confirmed(hub, opened, unhurried):
    """Other bytes, another size, what was deleted, what only waits, and what the Hub cannot be asked about."""
    first = opened()
    receipts = [asked(first.put(name, BytesSource(b"{}"))) for name in (BLOB, MANIFEST)]
    store = opened()
    for receipt in receipts:
        assert store.confirm(replace(receipt, sha256="0" * 64)).level == "sent"
        assert store.confirm(replace(receipt, size=3)).level == "sent"
        assert store.confirm(replace(receipt, sha256="")).level == "sent"
        assert store.confirm(replace(receipt, name=f"{receipt.name}x")).level == "sent"
        first.delete(receipt.name)
        assert first.confirm(receipt).level == "sent"
    waiting = opened("hf://ada/other").put(BLOB, BytesSource(b"blob"))
    assert store.confirm(asked(waiting)).level == "sent"
    hub.faults = [Fault("POST", "paths-info", "status", 503)]
    late = opened()
    assert [late.confirm(receipts[0]).level for _ in range(2)] == ["sent", "confirmed"]


def test_opening_a_run_takes_at_most_three_listings(hub, opened):
    """However many checkpoints it has: nobody waits for a request per checkpoint."""
    store = opened()
    filled(store, 12)
    assert store.flush(10.0)
    hub.log.clear()
    resumed(opened(), KeepLast(None))
    assert 1 <= len(hub.requests("/tree/")) <= 3


def test_folding_makes_no_commit_of_its_own(hub, opened):
    """The history with one save, what it holds goes with the next one; and nothing before the Hub has the history."""
    store = opened()
    old_sessions(store, 40, lines=1)
    assert store.flush(10.0)
    before, whole = told(opened()), len(list(store.list(RUN)))
    lease = take_lease(Repository(store, RUN), "ffffffff", {})
    work = Folding(lease)
    hub.log.clear()
    sizes = []
    for save in range(3):
        while work.work(lambda: False):
            pass
        assert len(hub.requests("/commit/")) == save
        store.put(f"{RUN}/checkpoints/save{save}", BytesSource(b"a save"))
        sizes.append(len(list(opened().list(RUN))))
    assert sizes == [whole + 3, whole + 4 - 32, whole + 5 - 32]
    for save in range(3):
        store.delete(f"{RUN}/checkpoints/save{save}")
    assert store.flush(10.0)
    assert told(opened()) == before
    assert {finding.state for finding in audit(Repository(opened(), RUN))} == {"ok"}
