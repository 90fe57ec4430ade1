"""A run folder that somebody else prepared: refused, nothing executed, nothing written or read outside of it."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource

import numpy as np
import pytest

import colabkeep
from colabkeep import ColabKeepError
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_id
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported, NotStorable, NoUsableCheckpoint
from colabkeep.core.layout import dumps, seal, unseal
from colabkeep.stores.local import DirectoryStore


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def place(kit, tmp_path):
    """A storage with one good checkpoint at step 1 and one at step 2 to be tampered with; beside it, a secret."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    session = kit.Session(DirectoryStore(tmp_path / "storage"))
    session.save(1)
    session.save(2)
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_happens_outside(place):
    """After each test: no bomb went off, and what lies outside the storage is as it was."""
    yield
    assert sorted(path.name for path in place.iterdir()) == ["outside", "storage"]
    assert [(path.name, path.read_bytes()) for path in (place / "outside").iterdir()] == [("secret", b"secret")]


def run_folder(place):
    return place / "storage/run"


def newest_manifest(place):
    return run_folder(place) / "checkpoints/000000000002-aaaaaaaa.json"


def newest_blob(place):
    (entry,) = unseal(newest_manifest(place).read_bytes())["blobs"]
    return run_folder(place) / "blobs" / entry["file"]


def reseal(place, **fields):
    """Other fields in the newest manifest, and a digest that is right: the work of somebody who knows the format."""
    manifest = newest_manifest(place)
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), **fields}))


def resumed(kit, place):
    """What a resume loads, and what it skipped."""
    return kit.newest(DirectoryStore(place / "storage"))


def assert_walked_past(kit, place):
    """It resumes from the checkpoint before. Returns why the newest one was left."""
    loaded, passed = resumed(kit, place)
    assert loaded.manifest.progress.step == 1
    assert kit.same(loaded.parts, kit.state(1))
    assert list(passed) == ["000000000002-aaaaaaaa"]
    states = {finding.file: finding.state for finding in audit(Repository(DirectoryStore(place / "storage"), "run"))}
    assert set(states.values()) - {"ok"}
    return passed["000000000002-aaaaaaaa"]


def test_a_pickle_in_place_of_any_file_is_never_unpickled(kit, place):
    """Every file of the run replaced by a pickle that would act when it is opened: an error, and no act."""
    bomb = pickle.dumps(Bomb(place / "owned"))
    for path in run_folder(place).rglob("*"):
        if path.is_file():
            path.write_bytes(bomb)
    with pytest.raises(NoUsableCheckpoint):
        resumed(kit, place)
    assert all(
        f.state == "damaged" for f in audit(Repository(DirectoryStore(place / "storage"), "run")) if f.state != "ok"
    )


def test_pickles_with_inviting_names_are_not_touched(kit, place):
    """Files as other trainers leave them lie there unread."""
    for name in ("model.pt", "optimizer.bin", "checkpoints/last.ckpt", "blobs/data.pkl", "aside/x.pickle"):
        path = run_folder(place) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(Bomb(place / "owned")))
    loaded, passed = resumed(kit, place)
    assert (loaded.manifest.progress.step, passed) == (2, {})
    found = audit(Repository(DirectoryStore(place / "storage"), "run"))
    assert sum(finding.state == "foreign" for finding in found) == 5


@pytest.mark.parametrize("what", ["blob", "manifest", "blobs", "checkpoints"])
def test_links_are_not_followed(kit, place, what):
    """A link in place of a file or folder, also one that leads to the very bytes, is no part of the run."""
    path = {
        "blob": newest_blob(place),
        "manifest": newest_manifest(place),
        "blobs": run_folder(place) / "blobs",
        "checkpoints": run_folder(place) / "checkpoints",
    }[what]
    moved = run_folder(place) / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)
    if what in ("blobs", "checkpoints"):
        with pytest.raises(NoUsableCheckpoint):
            resumed(kit, place)
    else:
        loaded, _ = resumed(kit, place)
        assert loaded.manifest.progress.step == 1


def test_a_link_does_not_lead_a_write_out_of_the_folder(kit, place):
    """Folders of the run that lead elsewhere make saving fail; nothing is written where they lead."""
    blobs = run_folder(place) / "blobs"
    blobs.rename(run_folder(place) / "old")
    blobs.symlink_to(place / "outside")
    with pytest.raises(ColabKeepError):
        kit.Session(DirectoryStore(place / "storage"), "bbbbbbbb").save(3)


@pytest.mark.parametrize(
    "file",
    [
        "../../../outside/secret",
        "/etc/passwd",
        "..",
        "a/../../run.json",
        f"{'0' * 64}.safetensors/../../../../outside/secret",
        f"../{'0' * 64}.safetensors",
        f"{'0' * 64}.pkl",
        "",
        5,
        None,
    ],
    ids=str,
)
def test_a_manifest_cannot_name_a_file_elsewhere(kit, place, file):
    """Path tricks in a manifest whose digest is right: it is no manifest."""
    (entry,) = unseal(newest_manifest(place).read_bytes())["blobs"]
    reseal(place, blobs=[{**entry, "file": file}])
    assert_walked_past(kit, place)


@pytest.mark.parametrize("id", ["../../x", "000000000009-aaaaaaaa", "", 5])
def test_a_manifest_cannot_be_of_another_name(kit, place, id):
    """What a manifest says of itself is what its file is called."""
    reseal(place, id=id)
    assert_walked_past(kit, place)


@pytest.mark.parametrize("run", ["../outside", "other", "", 5])
def test_a_manifest_of_another_run_is_not_ours(kit, place, run):
    """A run's name inside a manifest leads nowhere."""
    reseal(place, run=run)
    assert_walked_past(kit, place)


@pytest.mark.parametrize("size", [-1, 2**62, 2**70, 1.5, "12", True, None], ids=str)
def test_a_size_that_was_made_up_costs_no_memory(kit, place, size):
    """A blob of an exabyte, of less than nothing, or of no number at all is refused before it is read."""
    (entry,) = unseal(newest_manifest(place).read_bytes())["blobs"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reseal(place, blobs=[{**entry, "size": size}])
    assert_walked_past(kit, place)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


def test_a_sparse_file_as_large_as_a_manifest_says_is_not_read_into_memory(kit, place):
    """A file of holes that takes no room on the disk cannot take any in memory."""
    size = 8 * 2**40
    (entry,) = unseal(newest_manifest(place).read_bytes())["blobs"]
    with newest_blob(place).open("r+b") as file:
        file.truncate(size)
    reseal(place, blobs=[{**entry, "size": size}])
    loaded, passed = resumed(kit, place)
    assert loaded.manifest.progress.step == 1
    assert "bytes of memory" in passed["000000000002-aaaaaaaa"]
    with pytest.raises(CheckpointUnsupported, match="memory"):
        load_id(Repository(DirectoryStore(place / "storage"), "run"), "000000000002-aaaaaaaa")


def test_a_blob_of_the_right_digest_that_is_no_file_of_tensors_is_refused(kit, place):
    """A zip bomb or a header of ten gigabytes with a manifest that vouches for it."""
    for data in (
        b"PK\x03\x04" + bytes(1000),
        (10 * 10**9).to_bytes(8, "little") + b"{}",
        b"",
        pickle.dumps(Bomb(place / "owned")),
    ):
        digest = hashlib.sha256(data).hexdigest()
        (run_folder(place) / f"blobs/{digest}.safetensors").write_bytes(data)
        reseal(place, blobs=[{"sha256": digest, "size": len(data), "file": f"{digest}.safetensors"}])
        repository = Repository(DirectoryStore(place / "storage"), "run")
        with pytest.raises(CheckpointDamaged, match="not a file of tensors"):
            load_id(repository, "000000000002-aaaaaaaa")
        states = {finding.file: finding.state for finding in audit(repository)}
        assert states[f"blobs/{digest}.safetensors"] == "damaged"


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"$import": "os"}},
        {"model": {"$reduce": ["os.system", "true"]}},
        {"model": {"$tag": ["os.system", {"$tuple": ["true"]}]}},
        {"model": {"$path": 5}},
        {"model": {"$tensor": [-1, "model.weight"]}},
        {"model": {"$tensor": ["0", "model.weight"]}},
        {"model": {"$defaultdict": ["exec", []]}},
        5,
        [],
    ],
    ids=str,
)
def test_a_state_that_was_made_up_calls_nothing(kit, place, parts):
    """No name inside a state is looked up, imported or called."""
    reseal(place, parts=parts)
    if parts == {"model": {"$tag": ["os.system", {"$tuple": ["true"]}]}}:
        loaded, _ = resumed(kit, place)  # a tag is only a name: the framework that reads it refuses those it lacks
        assert loaded.parts["model"].kind == "os.system"
    else:
        assert_walked_past(kit, place)


@pytest.mark.parametrize("folder", ["lease", "aside", "journal", "checkpoints", "blobs"])
def test_garbage_in_any_folder_changes_nothing(kit, place, folder):
    """Names and contents of all sorts: the newest good checkpoint loads, the next save works."""
    where = run_folder(place) / folder
    where.mkdir(exist_ok=True)
    for name in (
        "x",
        "x.json",
        "000001.json",
        "-.json",
        "..json",
        "a b",
        "\u00e4",
        "000000000099-zzzzzzzz.json",
        "deep/er.json",
    ):
        path = where / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\xff\x00garbage")
    loaded, passed = resumed(kit, place)
    assert (loaded.manifest.progress.step, passed) == (2, {})
    session = kit.Session(DirectoryStore(place / "storage"), "bbbbbbbb", keep=KeepLast(1), resume=loaded)
    session.save(3)
    assert resumed(kit, place)[0].manifest.progress.step == 3
    assert session.repository.ids() == {"000000000003-bbbbbbbb"}


def vouched_for(place, parts):
    """The newest manifest with this JSON text as its parts, under a digest that is right."""
    body = dumps({**unseal(newest_manifest(place).read_bytes()), "parts": {"model": "PARTS"}})
    body = body.replace(b'"PARTS"', parts)
    digest = hashlib.sha256(body).hexdigest().encode()
    newest_manifest(place).write_bytes(body[:-1] + b',"sha256":"' + digest + b'"}')


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" + b"0" * 400, b"-" + b"9" * 30, b"9223372036854775808"])
def test_a_number_out_of_range_is_damage(kit, place, number):
    """A number that no float or counter holds is told as damage on resume, and the checkpoint before is used."""
    vouched_for(place, b'{"lr":%s}' % number)
    assert_walked_past(kit, place)


@pytest.mark.parametrize("member", [b'{"$tuple":[]}', b"1.5"], ids=bytes.decode)
def test_a_manifest_that_would_cost_gigabytes_of_memory_is_not_parsed(kit, place, member):
    """An empty list is two bytes of text and sixty of memory: forty megabytes of them are refused."""
    vouched_for(place, b"[" + b",".join([member] * (40 * 10**6 // (len(member) + 1))) + b"]")
    assert "more values" in assert_walked_past(kit, place)


def test_a_long_text_is_no_cost(kit, place):
    """Commas and brackets within a text are text: a state that holds a large table as CSV is stored and read."""
    session = kit.Session(DirectoryStore(place / "storage"), "bbbbbbbb")
    text = '[{"a, \\",' * 10**6
    session.save(3, {**kit.state(3), "table": {"text": text}})
    assert resumed(kit, place)[0].parts["table"] == {"text": text}


def test_a_state_that_could_not_be_read_again_is_not_stored(kit, place):
    """Too many plain values are refused where they would be written, in words that say what to do."""
    session = kit.Session(DirectoryStore(place / "storage"), "bbbbbbbb")
    with pytest.raises(NotStorable, match="plain values"):
        session.save(3, {"notes": {"all": [[]] * 3 * 10**6}})
    assert resumed(kit, place)[0].manifest.progress.step == 2


def test_a_part_of_the_journal_with_numbers_out_of_range_is_damaged(place):
    """The story of a run is told without it, and nothing ends in a traceback."""
    body = b'{"event":"RunStopped","at":1e999}\n'
    path = run_folder(place) / "journal/aaaaaaaa-00000.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body + dumps({"sha256": hashlib.sha256(body).hexdigest()}) + b"\n")
    states = {finding.file: finding.state for finding in audit(Repository(DirectoryStore(place / "storage"), "run"))}
    assert states["journal/aaaaaaaa-00000.jsonl"] == "damaged"


def test_a_mark_cannot_make_anything_be_deleted(kit, place):
    """What a mark claims to protect is only ever kept; names that lead outside lead nowhere."""
    marks = run_folder(place) / "aside"
    marks.mkdir()
    (marks / "000000000009-aaaaaaaa.json").write_bytes(
        seal({"id": "000000000009-aaaaaaaa", "protects": ["../../outside/secret", 5, None, ["x"], {"a": 1}]})
    )
    loaded, _ = resumed(kit, place)
    session = kit.Session(DirectoryStore(place / "storage"), "bbbbbbbb", keep=KeepLast(1), resume=loaded)
    session.save(3)
    assert session.repository.ids() == {"000000000003-bbbbbbbb"}


class Model:
    def __init__(self):
        self.weight = np.zeros(2)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight[:] = state["weight"]


def test_a_run_that_no_training_wrote_is_refused_before_anything_is_touched(place):
    """A prepared folder under the name of one's own run: an error in words, and the model is as it was."""
    model = Model()
    run = colabkeep.Run("run", model=model, storage=place / "storage", progress=False)
    with pytest.raises(ColabKeepError):
        run.__enter__()
    assert model.weight.tolist() == [0, 0]
