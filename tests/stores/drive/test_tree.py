"""What lies on Drive is found, in few questions, by ids; doubles, delays and other people's files do no harm."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError
from colabkeep.core.layout import seal
from colabkeep.stores.base import BytesSource, Entry, Receipt
from colabkeep.stores.drive.api import Api
from colabkeep.stores.drive.files import Files
from colabkeep.stores.google.account import ROBOT_SCOPE, Account, SignedIn
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import File, Settings, partial_listing, refuse, running_drive, short_page, stale_listing
from tests.fakes.drive.checking import checked_drive
from tests.fakes.drive.shelf import Shelf
from tests.fakes.model import names, read

from .conftest import store_on

FOLDER = "application/vnd.google-apps.folder"


class Foreign:
    """Another program with the user's rights: what it makes has no mark of colabkeep's."""

    def __init__(self, drive, client="colabkeep"):
        from google.auth.transport.requests import AuthorizedSession

        self.drive = drive
        self.session = AuthorizedSession(drive.credentials(client=client))

    def folder(self, name, parent="root"):
        body = {"name": name, "mimeType": FOLDER, "parents": [parent]}
        return self.session.post(f"{self.drive.url}/drive/v3/files", json=body).json()["id"]

    def file(self, name, parent, data):
        url = f"{self.drive.url}/upload/drive/v3/files?uploadType=multipart"
        said = json.dumps({"name": name, "parents": [parent]})
        parts = {"a": (None, said, "application/json"), "b": (None, data, "application/octet-stream")}
        from requests import Request

        body = Request("POST", url, files=parts).prepare()
        kind = body.headers["Content-Type"].replace("multipart/form-data", "multipart/related")
        answer = self.session.post(url, data=body.body, headers={"Content-Type": kind})
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    def shortcut(self, name, parent, target):
        kind = "application/vnd.google-apps.shortcut"
        body = {"name": name, "mimeType": kind, "parents": [parent], "shortcutDetails": {"targetId": target}}
        answer = self.session.post(f"{self.drive.url}/drive/v3/files", json=body)
        assert answer.status_code == 200, answer.text

    def change(self, id, **body):
        assert self.session.patch(f"{self.drive.url}/drive/v3/files/{id}", json=body).status_code == 200

    def delete(self, id):
        assert self.session.delete(f"{self.drive.url}/drive/v3/files/{id}").status_code == 204

    def close(self):
        self.session.close()


@pytest.fixture
def foreign(drive):
    foreign = Foreign(drive)
    yield foreign
    foreign.close()


def put(store, **objects):
    for name, data in objects.items():
        store.put(name.replace("__", "/"), BytesSource(data))


def folder_id(drive, name):
    return next(file.id for file in reversed(drive.files()) if file.name == name and file.size is None)


# -- few questions ------------------------------------------------------------------------------------


def test_opening_a_run_lists_each_of_its_folders_once_and_alone(drive, open_drive, watch):
    """What a session asks at its start (who wrote it, which checkpoints there are, what they need, may I) is answered
    from one look for the folders and one listing of each; nobody waits for a request per checkpoint."""
    first = open_drive("runs")
    for number in range(12):
        put(first, **{f"run__checkpoints__{number:012d}-0a1b2c3d.json": b"{}", f"run__blobs__{number}": b"x"})
    put(first, run__journal__a=b"1", other__blobs__a=b"2")
    Repository(first, "run").open_run(created=0.0, run_id="1")
    take_lease(Repository(first, "run"), "00000000", {})
    traffic = watch()
    store = open_drive("runs")
    repository = Repository(store, "run")
    store.sweep("run")
    repository.open_run(created=0.0, run_id="2")
    assert len(repository.ids()) == 12
    assert repository.quarantined() == set()
    assert len(repository.files("blobs")) == 12
    take_lease(repository, "00000001", {})
    asked = [seen.query["q"] for seen in traffic.all("GET") if "q" in seen.query]
    assert len(asked) == len(set(asked)) <= 1 + 7
    assert max(query.count("in parents") for query in asked) == 1


@pytest.mark.parametrize("left_out", [("checkpoints", "journal"), ("blobs",), ()], ids=["two", "one", "all but one"])
def test_a_listing_of_several_folders_is_never_relied_on(drive, open_drive, left_out):
    """Drive answers one for some of the folders only and calls it complete: all that is there is seen all the same."""
    put(open_drive(), run__checkpoints__a=b"1", run__journal__a=b"2", run__blobs__a=b"3", run__lease__a=b"4")
    drive.faults(partial_listing(*left_out).on(count=None))
    assert names(open_drive()) == ["run/blobs/a", "run/checkpoints/a", "run/journal/a", "run/lease/a"]


def test_a_thousand_checkpoints_are_no_more_questions_than_ten(tmp_path):
    """Only the answers are longer: they come in pages of a thousand files, and three thousand files in four."""
    with running_drive(tmp_path) as drive:
        credentials = drive.credentials()

        def open():
            return store_on(drive, "colabkeep", credentials=credentials)

        store = open()
        Repository(store, "run").open_run(created=0.0, run_id="1")
        put(store, run__checkpoints__first=b"{}", run__blobs__first=b"x", run__journal__first=b"1")
        store.close()
        drive.kill()
        shelf, number = Shelf(drive.state / "files", File), 1000
        for file in [file for file in drive.files() if file.name == "first"]:
            for copy in range(1000):
                number += 1
                name = f"{copy:012d}-0a1b2c3d.json"
                shelf.save(f"id{number}", replace(file, id=f"id{number}", name=name, number=number))
        drive.restart()
        before = len(drive.requests())
        store = open()
        repository = Repository(store, "run")
        repository.open_run(created=0.0, run_id="2")
        assert len(repository.ids()) == 1000
        assert repository.quarantined() == set()
        assert len(repository.files("blobs")) == 1001
        take_lease(repository, "00000001", {})
        store.close()
        asked = [
            seen for seen in drive.requests()[before:] if seen.path.endswith("/drive/v3/files") and "q" in seen.query
        ]
    assert len({seen.query["q"] for seen in asked}) <= 1 + 7
    assert len(asked) <= 1 + 7 + 3


def test_a_listing_is_used_for_a_few_seconds_and_then_made_again(open_drive, watch):
    """What another session did is seen soon; what was seen just now is not asked for again."""
    clock = FakeClock()
    mine, other = open_drive("runs", clock=clock), open_drive("runs")
    put(mine, run__a=b"1")
    put(other, run__b=b"2")
    traffic = watch()
    assert names(mine) == ["run/a"]
    asked = traffic.listings
    clock.advance(4)
    assert names(mine) == ["run/a"]
    assert traffic.listings == asked
    clock.advance(2)
    assert names(mine) == ["run/a", "run/b"]


def test_a_put_in_a_known_folder_asks_for_nothing_but_its_own(open_drive, watch):
    """A save costs the requests of its upload: begin, bytes; not a look at everything."""
    store = open_drive()
    put(store, run__a=b"1")
    traffic = watch()
    put(store, run__b=b"2")
    assert [(seen.method, seen.status) for seen in traffic.all()] == [("POST", 200), ("PUT", 200)]


@pytest.mark.parametrize("name", ["colabkeep", "run"])
def test_no_folder_is_begun_beside_a_shortcut_of_its_name(drive, open_drive, foreign, name):
    """Somebody moved the folder and left a shortcut where it was: a new one would be a run begun anew, unseen. The
    error names the folder itself, where all is."""
    put(open_drive(), run__a=b"1")
    elsewhere, target = foreign.folder("elsewhere"), folder_id(drive, name)
    (above,) = (file.parent for file in drive.files() if file.id == target)
    query = f"?addParents={elsewhere}&removeParents={above}"
    answer = foreign.session.patch(f"{drive.url}/drive/v3/files/{target}{query}", json={"name": "moved"})
    assert answer.status_code == 200, answer.text
    foreign.shortcut(name, above, target)
    before = [(file.id, file.name) for file in drive.files()]
    store = open_drive()
    with pytest.raises(StoreError, match="is not a folder but a shortcut") as caught:
        put(store, run__b=b"2")
    assert f"drive://id={target}" in caught.value.remedy
    assert names(open_drive(f"id={target}")) == ["run/a" if name == "colabkeep" else "a"]
    assert [(file.id, file.name) for file in drive.files()] == before


@pytest.mark.parametrize("at_most", [0, 2])
def test_a_page_that_is_short_or_empty_is_not_the_last(drive, open_drive, at_most):
    """All that lies there is found, however few come at once."""
    put(open_drive(), **{f"run__f{number}": b"x" for number in range(7)})
    drive.faults(short_page(at_most).on("GET", "/files$", count=None, chance=0.5))
    assert names(open_drive()) == [f"run/f{number}" for number in range(7)]


def test_many_files_come_in_pages(drive, open_drive, foreign, watch):
    """More files than one answer holds are all found, each once."""
    put(open_drive(), run__a=b"1")
    parent = folder_id(drive, "run")
    for number in range(23):
        foreign.file(f"b{number}", parent, b"x")
    account = Account(lambda: SignedIn(credentials=drive.credentials()))
    files = Files(Api(account, service=drive.url, sleep=FakeClock().sleep), page_size=10)
    traffic = watch()
    found = [file.name for file in files.inside([parent], "look")]
    account.close()
    assert len(found) == len(set(found)) == 24
    assert traffic.listings == 3


# -- doubles ------------------------------------------------------------------------------------------


def test_two_files_of_one_name_and_content_are_one_object(drive, open_drive, foreign):
    """Drive does not keep names unique; who reads sees one object."""
    store = open_drive()
    put(store, run__a=b"same")
    foreign.file("a", folder_id(drive, "run"), b"same")
    other = open_drive()
    assert list(other.list("run")) == [Entry(name="run/a", size=4)]
    assert read(other, "run/a") == b"same"
    other.delete("run/a")
    assert names(open_drive()) == []


def test_of_two_contents_the_older_counts_and_the_other_is_there_if_it_is_doubted(drive, open_drive, foreign):
    """All sessions choose the same one; a reader that finds it damaged gets the other."""
    store = open_drive()
    put(store, run__a=b"first")
    foreign.file("a", folder_id(drive, "run"), b"second one")
    other = open_drive()
    assert (read(other, "run/a"), list(other.list("run"))) == (b"first", [Entry(name="run/a", size=5)])
    assert other.doubt("run/a")
    assert (read(other, "run/a"), list(other.list("run"))) == (b"second one", [Entry(name="run/a", size=10)])


def test_a_file_of_somebody_else_is_not_deleted_with_ours(drive, open_drive, foreign):
    """Another program's file that happens to have the name of one of ours stays when ours is deleted."""
    store = open_drive()
    put(store, run__a=b"ours")
    theirs = foreign.file("a", folder_id(drive, "run"), b"theirs")
    open_drive().delete("run/a")
    left = [file.id for file in drive.files() if file.name == "a" and file.parent == folder_id(drive, "run")]
    assert left == [theirs]


def test_two_folders_of_one_name_are_one(drive, open_drive, foreign):
    """Whoever made the second one, and wherever in the tree."""
    store = open_drive("twice")
    put(store, run__blobs__a=b"1")
    again = foreign.folder("blobs", folder_id(drive, "run"))
    foreign.file("b", again, b"2")
    other = open_drive("twice")
    assert names(other) == ["run/blobs/a", "run/blobs/b"]
    put(other, run__blobs__c=b"3")
    assert names(open_drive("twice")) == ["run/blobs/a", "run/blobs/b", "run/blobs/c"]


# -- delays -------------------------------------------------------------------------------------------


def test_what_this_session_wrote_is_seen_at_once_however_late_the_listing(drive, open_drive):
    """Written is there and deleted is gone, for the one who did it."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    put(store, run__old=b"0")
    clock.advance(60)
    drive.faults(stale_listing().on("GET", r"/files$", count=None))
    put(store, run__a=b"1")
    clock.advance(60)
    assert names(store) == ["run/a", "run/old"]
    assert read(store, "run/a") == b"1"
    with pytest.raises(NameTaken):
        put(store, run__a=b"2")
    store.delete("run/a")
    clock.advance(60)
    assert names(store) == ["run/old"]


def test_a_stale_index_makes_no_second_run(drive, open_drive, traffic):
    """Folders that another session made a moment ago are found although the index does not know their names yet."""
    put(open_drive("young"), run__blobs__a=b"1")
    drive.faults(stale_listing().on("GET", r"/files$", count=None))
    other = open_drive("young")
    put(other, run__blobs__b=b"2")
    assert names(other) == ["run/blobs/a", "run/blobs/b"]
    assert sorted(one.name for one in traffic.files(folders=True)) == ["blobs", "run", "young"]


# -- folders ------------------------------------------------------------------------------------------


def test_a_folder_that_went_to_the_trash_is_made_again(drive, open_drive, foreign):
    """The user threw the folder away in the middle of training: the next save lands in a new one, not in the trash."""
    store = open_drive("thrown")
    put(store, run__a=b"1")
    foreign.change(folder_id(drive, "thrown"), trashed=True)
    put(store, run__b=b"2")
    assert names(open_drive("thrown")) == ["run/b"]
    assert not next(file for file in drive.files() if file.name == "b" and not file.trashed).trashed


def test_a_folder_that_was_deleted_is_made_again(drive, open_drive, foreign):
    """The same when it is gone for good."""
    clock = FakeClock()
    store = open_drive("gone", clock=clock)
    put(store, run__a=b"1")
    foreign.delete(folder_id(drive, "gone"))
    put(store, run__b=b"2")
    clock.advance(60)
    assert names(store) == names(open_drive("gone")) == ["run/b"]


def test_a_renamed_folder_is_put_away(drive, open_drive, foreign):
    """Who renames the folder starts afresh under the old name; the renamed one is left alone."""
    put(open_drive("named"), run__a=b"1")
    foreign.change(folder_id(drive, "named"), name="named before")
    assert names(open_drive("named")) == []
    put(open_drive("named"), run__b=b"2")
    assert names(open_drive("named before")) == ["run/a"]


def test_a_folder_that_another_program_made_is_used(drive, open_drive, foreign, traffic):
    """Made by hand, by rclone or by a mount: it is found by its name, and no second one is made."""
    top = foreign.folder("theirs")
    foreign.file("a.bin", foreign.folder("run", top), b"1")
    store = open_drive("theirs")
    assert (names(store), read(store, "run/a.bin")) == (["run/a.bin"], b"1")
    put(store, run__b=b"2")
    assert sorted(one.name for one in traffic.files(folders=True)) == ["run", "theirs"]
    store.delete("run/a.bin")
    assert names(store) == ["run/b"]


def test_foreign_names_and_kinds_are_no_objects(drive, open_drive, foreign):
    """A note with a blank in its name, a hidden file, a document: not listed, and in nobody's way."""
    store = open_drive("mixed")
    put(store, run__a=b"1")
    run = folder_id(drive, "run")
    foreign.file("my notes.txt", run, b"x")
    foreign.file(".hidden", run, b"x")
    foreign.session.post(
        f"{drive.url}/drive/v3/files",
        json={"name": "sheet", "mimeType": "application/vnd.google-apps.spreadsheet", "parents": [run]},
    )
    foreign.folder("empty folder", run)
    assert names(open_drive("mixed")) == ["run/a"]


def test_another_clients_files_are_another_world(drive, open_drive):
    """`drive.file` shows only what one OAuth client made: another client starts with nothing, and disturbs nothing."""
    put(open_drive("worlds"), run__a=b"1")
    other = open_drive("worlds", credentials=drive.credentials(client="another"))
    assert names(other) == []
    with pytest.raises(ObjectNotFound, match="run/a"):
        other.get("run/a")
    put(other, run__a=b"2")
    assert read(open_drive("worlds"), "run/a") == b"1"


def test_a_place_may_be_deep_or_named_by_its_id(drive, open_drive, foreign):
    """`drive://a/b/c` makes the folders on the way; `drive://id=…` is the folder of that id."""
    put(open_drive("deep/er/still"), run__a=b"1")
    id = folder_id(drive, "still")
    by_id = store_on(drive, f"id={id}")
    assert names(by_id) == ["run/a"]
    put(by_id, run__b=b"2")
    by_id.close()
    assert names(open_drive("deep/er/still")) == ["run/a", "run/b"]


def test_a_place_named_by_an_id_that_is_not_there_is_an_error(drive):
    """Nothing is made at a place that nobody meant, and the error says that there is no such folder."""
    store = store_on(drive, "id=1234567890abcdef")
    with pytest.raises(StoreError):
        put(store, run__a=b"1")
    store.close()


# -- shared drives, service accounts -------------------------------------------------------------------


@pytest.fixture
def robots(tmp_path):
    """Opens stores for a service account, on a server of its own with one shared drive."""
    from google.oauth2.service_account import Credentials

    with checked_drive(tmp_path, settings=Settings(shared_drives=["0AShared0123"])) as drive:
        robot = Credentials.from_service_account_info(drive.service_account, scopes=[ROBOT_SCOPE])
        opened = []

        def open(query):
            opened.append(store_on(drive, f"team{query}", credentials=robot))
            return opened[-1]

        yield open
        for store in opened:
            store.close()


def test_a_service_account_keeps_runs_in_a_shared_drive(robots):
    """With the id of a shared drive a robot can write, list, read and delete; its own free space says nothing."""
    store = robots("?shared_drive=0AShared0123")
    put(store, run__a=b"1")
    other = robots("?shared_drive=0AShared0123")
    assert (names(other), read(other, "run/a")) == (["run/a"], b"1")
    assert other.properties.free_bytes is None
    other.delete("run/a")
    assert names(other) == []


def test_a_service_account_without_a_shared_drive_is_told_why_not(robots):
    """It has no storage of its own; the error names what does help."""
    with pytest.raises(StoreError, match="service account") as caught:
        put(robots(""), run__a=b"1")
    assert "shared_drive=" in caught.value.remedy
    assert not caught.value.retryable


# -- confirm, flush, properties -----------------------------------------------------------------------


def test_a_receipt_is_confirmed_by_what_the_service_states(open_drive, watch):
    """An object that an earlier session sent is confirmed from the listing, without reading it."""
    put(open_drive("runs"), run__a=b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    store = open_drive("runs")
    sent = Receipt(name="run/a", size=3, sha256=digest, level="sent")
    assert store.confirm(sent).level == "sent", "nothing was looked at yet"
    store.list("run")
    traffic = watch()
    assert store.confirm(sent).level == "confirmed"
    wrong = Receipt(name="run/a", size=3, sha256="0" * 64, level="sent")
    assert store.confirm(wrong).level == "sent"
    assert traffic.all() == []


def test_confirming_never_blocks_for_long(drive, open_drive):
    """A receipt with an id costs one quick look, and an unreachable service leaves it as it is."""
    store = open_drive()
    receipt = store.put("run/a", BytesSource(b"abc"))
    sent = Receipt(name="run/elsewhere", size=3, sha256=receipt.sha256, level="sent", id=receipt.id)
    assert store.confirm(sent).level == "confirmed"
    drive.faults(refuse(503).on("GET", count=None))
    assert store.confirm(sent).level == "sent"


def test_an_object_whose_digest_the_service_does_not_state_is_only_sent(open_drive, monkeypatch):
    """Nothing is called confirmed without Drive's own word; `flush` says so too, within its time."""
    store = open_drive()
    real = store._files.look
    monkeypatch.setattr(
        "colabkeep.stores.drive.transfer.read_file", lambda answer: silent(real(answer["id"], "look at it"))
    )
    monkeypatch.setattr("colabkeep.stores.drive.files.Files.glance", lambda *_: silent(None))

    def silent(file):
        return None if file is None else replace(file, sha256=None, md5=None)

    assert store.put("run/a", BytesSource(b"abc")).level == "sent"
    assert not store.flush(3.0)
    monkeypatch.undo()
    assert store.flush(3.0)


def test_an_md5_is_a_digest_too(open_drive, monkeypatch):
    """Where Drive states only that one, it is compared with that of the bytes."""
    from colabkeep.stores.drive import files, transfer

    real = files.read_file
    monkeypatch.setattr(transfer, "read_file", lambda answer: replace(real(answer), sha256=None))
    assert open_drive().put("run/a", BytesSource(b"abc")).level == "confirmed"
    monkeypatch.setattr(transfer, "read_file", lambda answer: replace(real(answer), sha256=None, md5="0" * 32))
    with pytest.raises(StoreError, match="3 times"):
        open_drive().put("run/b", BytesSource(b"abc"))


def test_records_of_a_run_are_whole_files_in_the_browser(drive, open_drive):
    """Folders and names on Drive are those of a run on any disk, so other programs can read it."""
    put(open_drive("seen"), **{"vision__resnet__run.json": seal({"run": "vision/resnet"})})
    chain, file = [], next(file for file in drive.files() if file.name == "run.json")
    while file is not None:
        chain.append(file.name)
        file = next((one for one in drive.files() if one.id == file.parent), None)
    assert chain == ["run.json", "resnet", "vision", "seen"]
