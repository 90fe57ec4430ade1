"""An audit reads every file of a run, says what is wrong with which, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.layout import seal, unseal
from colabkeep.core.manifest import FORMAT
from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore


class Model:
    def __init__(self):
        self.weight = np.zeros(100)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight[:] = state["weight"]


def train(storage, epochs, **options):
    model = Model()
    with colabkeep.Run("run", model=model, storage=storage, save_every=None, progress=False, **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches([1.0, 2.0]):
                model.weight += batch
                run.step()
            run.save(wait=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two sessions that kept all five of its checkpoints, and its folder; each has several parts of a
    journal, as if they were large."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("colabkeep.checkpoint.journal._FULL", 0)
        for epochs in (3, 5):
            train(folder, epochs, keep_last=None)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """The same, to be damaged."""
    return shutil.copytree(trained, tmp_path / "storage")


def findings(folder):
    store = folder if isinstance(folder, (FaultyStore, MemoryStore, TieredStore)) else DirectoryStore(folder)
    return list(audit(Repository(store, "run")))


def bad(folder):
    return {finding.file: finding.state for finding in findings(folder) if finding.state != "ok"}


def only(folder, place):
    """The files of one folder of the run, sorted."""
    return sorted(file for file in (folder / "run" / place).iterdir() if not file.name.startswith("."))


def test_a_run_as_it_was_written_is_all_well(trained):
    """Every file is named, once, with its size, and nothing is found."""
    found = findings(trained)
    files = [path for path in (trained / "run").rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert {finding.file: finding.size for finding in found} == {
        str(path.relative_to(trained / "run")): path.stat().st_size for path in files
    }
    assert {(finding.state, finding.text) for finding in found} == {("ok", "")}


def test_a_run_below_it_is_none_of_its_files(folder):
    """`exp/lr1` lies in the folder of `exp`: to call its files foreign there would invite to delete them."""
    before = findings(folder)
    shutil.copytree(folder / "run", folder / "run" / "lr1")
    assert findings(folder) == before
    (folder / "run" / "mine").mkdir()
    (folder / "run" / "mine" / "notes.txt").write_text("x")
    assert bad(folder) == {"mine/notes.txt": "foreign"}


def test_a_run_that_pruned_as_it_should_is_all_well(tmp_path):
    """What retention deleted is not missed, in this session and the next."""
    for epochs in (3, 6):
        train(tmp_path, epochs, keep_last=1)
    assert len(only(tmp_path, "checkpoints")) == 1
    assert bad(tmp_path) == {}


def test_pruning_that_was_cut_short_by_a_kill_is_not_missed(kit, disk):
    """A session that died right after deleting had said before what it would delete."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    for step in (1, 2, 3):
        id = session.save(step).id
        session.journal.add({"event": "SaveCommitted", "checkpoint": id})
    assert bad(disk.store) == {}


@pytest.mark.parametrize("place", ["blobs", "checkpoints", "journal", "lease"])
def test_any_damaged_file_is_named(folder, damage, place):
    """Whatever happened to a file, it is found, by its name, with a sentence; and the others are well."""
    file = only(folder, place)[0]
    after = damage(file.read_bytes())
    file.unlink() if after is None else file.write_bytes(after)
    name = f"{place}/{file.name}"
    found = {finding.file: finding for finding in findings(folder) if finding.state != "ok"}
    assert found[name].state == ("missing" if after is None else "damaged")
    assert found.pop(name).text.endswith(".")
    # The blobs of a manifest that cannot be read belong to nobody that is known.
    assert {finding.state for finding in found.values()} <= ({"orphan"} if place == "checkpoints" else set())


def test_a_damaged_run_record_is_named(folder, damage):
    """run.json too, damaged or gone."""
    file = folder / "run/run.json"
    after = damage(file.read_bytes())
    file.unlink() if after is None else file.write_bytes(after)
    assert bad(folder) == {"run.json": "missing" if after is None else "damaged"}


def test_a_damaged_blob_says_which_checkpoints_need_it(folder):
    """The user learns what is lost with the file."""
    file = only(folder, "blobs")[0]
    file.write_bytes(file.read_bytes()[:-1])
    repository = Repository(DirectoryStore(folder), "run")
    needing = [m.id for m in repository.manifests(repository.ids()) if file.name in {blob.file for blob in m.blobs}]
    (finding,) = [finding for finding in findings(folder) if finding.state == "damaged"]
    assert needing
    assert all(id in finding.text for id in needing)


def test_swapped_blobs_and_manifests_are_named(folder):
    """Files that changed places are damaged, all of them."""
    for place in ("blobs", "checkpoints"):
        one, other = only(folder, place)[:2]
        texts = one.read_bytes(), other.read_bytes()
        one.write_bytes(texts[1])
        other.write_bytes(texts[0])
        state = {file: state for file, state in bad(folder).items() if file.startswith(place)}
        assert state == {f"{place}/{one.name}": "damaged", f"{place}/{other.name}": "damaged"}
        one.write_bytes(texts[0])
        other.write_bytes(texts[1])


def test_a_gap_in_the_journal_is_named_however_wide(folder):
    """A part that is gone from the middle is missed; a number beyond all reason costs no memory."""
    first, *_, last = only(folder, "journal")
    session = first.name[:8]
    (folder / "run/journal" / f"{session}-999999999.jsonl").write_bytes(first.read_bytes())
    (gap,) = [finding for finding in findings(folder) if finding.state == "missing"]
    assert gap.file.startswith(f"journal/{session}-0000")
    assert last.exists()


def test_a_mark_that_was_damaged_is_named(folder):
    """What set a checkpoint aside is checked as well."""
    id = only(folder, "checkpoints")[0].stem
    repository = Repository(DirectoryStore(folder), "run")
    repository.quarantine(id, "for a test")
    assert bad(folder) == {}
    mark = folder / f"run/aside/{id}.json"
    mark.write_bytes(mark.read_bytes().replace(b"for a test", b"for a pest"))
    assert bad(folder) == {f"aside/{id}.json": "damaged"}


def test_records_that_belong_elsewhere_are_named(folder):
    """A sealed record under another one's name, or of another run, is not what was written there."""
    lease, mark = only(folder, "lease")[-1], "aside/000000000001-aaaaaaaa.json"
    lease.write_bytes(seal({"session": "00000000", "fence": 1}))
    (folder / "run/aside").mkdir()
    (folder / "run" / mark).write_bytes(seal({"id": "000000000002-aaaaaaaa", "protects": []}))
    (folder / "run/run.json").write_bytes(seal({"format": 1, "run": "another"}))
    assert bad(folder) == {f"lease/{lease.name}": "damaged", mark: "damaged", "run.json": "damaged"}


def test_a_newer_format_is_not_called_damage(folder):
    """What a newer colabkeep wrote cannot be judged, and is said to be so."""
    manifest, record = only(folder, "checkpoints")[0], folder / "run/run.json"
    for file in (manifest, record):
        file.write_bytes(seal({**unseal(file.read_bytes()), "format": FORMAT + 1}))
    states = bad(folder)
    assert (states[f"checkpoints/{manifest.name}"], states["run.json"]) == ("newer", "newer")
    assert set(states.values()) == {"newer", "orphan"}


def test_left_over_blobs_and_foreign_files_are_no_damage(folder):
    """A blob of a killed save and a file of somebody else are named for what they are."""
    blob = only(folder, "blobs")[0]
    repository = Repository(DirectoryStore(folder), "run")
    for manifest in repository.manifests(repository.ids()):
        if blob.name in {ref.file for ref in manifest.blobs}:
            repository.store.delete(f"run/checkpoints/{manifest.id}.json")
    (folder / "run/model.pkl").write_bytes(b"\x80\x04.")
    (folder / "run/blobs/notes.txt").write_bytes(b"mine")
    states = bad(folder)
    assert states[f"blobs/{blob.name}"] == "orphan"
    assert (states["model.pkl"], states["blobs/notes.txt"]) == ("foreign", "foreign")


def test_a_file_that_the_store_cannot_read_is_named_and_the_rest_is_read(folder):
    """One bad sector does not end the audit."""
    file = only(folder, "blobs")[0].name

    def at(point):
        if point == f"before get run/blobs/{file}":
            raise StoreUnavailable(problem="The disk has a bad sector.", remedy="Copy what you can.")

    store = FaultyStore(DirectoryStore(folder), at=at)
    found = {finding.file: finding for finding in findings(store)}
    assert found[f"blobs/{file}"].state == "unreadable"
    assert found[f"blobs/{file}"].text == "The disk has a bad sector."
    assert sum(finding.state == "ok" for finding in found.values()) == len(found) - 1


def test_a_training_that_prunes_meanwhile_is_not_accused(kit, disk):
    """Checkpoints that go while the audit runs are not missing: the journal says where they went."""
    session = kit.Session(disk.store, keep=KeepLast(1))

    def save(step):
        id = session.save(step).id
        session.journal.add({"event": "SaveCommitted", "checkpoint": id})

    save(1)
    save(2)
    found = []
    for number, finding in enumerate(audit(Repository(disk.store, kit.run))):
        found.append(finding)
        if number < 3:
            save(10 + number)
    assert {finding.state for finding in found} <= {"ok", "orphan"}
    assert len(found) > 3


def test_an_audit_changes_nothing_and_holds_no_file_whole(folder):
    """It lists and reads, in pieces."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sizes = []

    class Memory(MemoryStore):
        def get(self, name):
            reader = super().get(name)

            class Reader(type(reader)):
                def readinto(self, buffer):
                    sizes.append(len(buffer))
                    return super().readinto(buffer)

                def read(self, size=-1):
                    sizes.append(size)
                    return super().read(size)

            return Reader(reader.read())

    store = Memory()
    for path, data in before.items():
        if not path.name.startswith("."):
            store.put(str(path.relative_to(folder)), BytesSource(data))
    watched = FaultyStore(store)
    assert bad(watched) == {}
    assert {point.split()[1] for point in watched.points} == {"list", "get"}
    assert max(sizes) <= 2**20


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"{}\n", b"[" * 10**5, b'{"checkpoints": 5}\n', b"\x80\x04."],
    ids=["empty", "newline", "object", "deep", "odd", "pickle"],
)
def test_garbage_anywhere_is_only_damage(folder, text):
    """No content of a file breaks the audit."""
    id = "000000000009-aaaaaaaa"
    names = ("run.json", f"checkpoints/{id}.json", "lease/000007-aaaaaaaa.json", "journal/aaaaaaaa-00000.jsonl")
    for name in (*names, f"aside/{id}.json", f"blobs/{'0' * 64}.safetensors"):
        (folder / "run" / name).parent.mkdir(exist_ok=True)
        (folder / "run" / name).write_bytes(text)
    states = bad(folder)
    assert [states.pop(name) for name in names] == ["damaged"] * len(names)


def test_a_sealed_journal_with_odd_records_is_only_read(folder):
    """Records of strange types are taken for what they are: nothing."""
    for number, records in enumerate([[1, "x"], [{"event": "Pruned", "checkpoints": 5}, {"event": ["SaveCommitted"]}]]):
        body = "".join(json.dumps(record) + "\n" for record in records).encode()
        digest = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}, separators=(",", ":")).encode()
        (folder / f"run/journal/aaaaaaaa-{number:05d}.jsonl").write_bytes(body + digest + b"\n")
    states = bad(folder)
    assert states.pop("journal/aaaaaaaa-00000.jsonl") == "damaged"
    assert states == {"lease/?-aaaaaaaa.json": "missing"}


@pytest.fixture
def pair(folder, tmp_path):
    """The run on this machine's disk, and in the place that lasts."""
    behind = shutil.copytree(folder, tmp_path / "behind")
    store = TieredStore(DirectoryStore(folder), DirectoryStore(behind))
    yield store, behind
    store.close()


def test_the_place_that_lasts_is_read_too(pair):
    """What is whole on this machine and damaged or gone in the other place is named, with that place."""
    store, behind = pair
    assert {finding.state for finding in findings(store)} == {"ok"}
    first, second = only(behind, "blobs")[:2]
    first.write_bytes(first.read_bytes()[:-1] + b"!")
    second.unlink()
    found = {finding.file: finding for finding in findings(store) if finding.state != "ok"}
    assert {file: finding.state for file, finding in found.items()} == {
        f"blobs/{first.name}": "damaged",
        f"blobs/{second.name}": "missing",
    }
    assert {finding.place for finding in found.values()} == {str(behind)}


def test_a_checkpoint_that_was_not_sent_yet_is_no_damage(pair):
    """It is told, for a lost machine would take it along."""
    store, behind = pair
    newest = only(behind, "checkpoints")[-1]
    newest.unlink()
    (found,) = [finding for finding in findings(store) if finding.state != "ok"]
    assert (found.file, found.state, found.place) == (f"checkpoints/{newest.name}", "unsent", str(behind))
