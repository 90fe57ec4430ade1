"""A run outlives the version that wrote it: one with the changes that CONTRIBUTING allows goes on with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import unneeded
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import CheckpointUnsupported, NoUsableCheckpoint
from colabkeep.core.layout import seal, unseal
from colabkeep.stores.local import DirectoryStore

TRAINING = """
import json, sys
import numpy as np
import colabkeep

class Model:
    def __init__(self):
        self.weight = np.zeros(4)
    def state_dict(self):
        return {"weight": self.weight}
    def load_state_dict(self, state):
        self.weight[:] = state["weight"]

model = Model()
with colabkeep.Run("r", model=model, storage=sys.argv[1], progress=False, save_every="1 steps", keep_last=None) as run:
    began = run.progress.step
    for step in run.steps(int(sys.argv[2])):
        model.weight += np.random.rand(4)
        run.step()
print(json.dumps([began, model.weight.tobytes().hex()]))
"""


def train(storage, steps, package=None):
    """Where a training of so many steps began, in a process of its own, and the bits it ends with."""
    place = Path(colabkeep.__file__).parent.parent if package is None else package
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(storage), str(steps)],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def changed(tmp_path):
    """A copy of colabkeep in which some lines of the manifest's module are others."""

    def change(**lines):
        package = tmp_path / "another"
        shutil.copytree(Path(colabkeep.__file__).parent, package / "colabkeep", ignore=shutil.ignore_patterns("__pyc*"))
        page = package / "colabkeep/core/manifest.py"
        text = page.read_text(encoding="utf-8")
        for before, after in lines.values():
            assert text.count(before) == 1
            text = text.replace(before, after)
        page.write_text(text, encoding="utf-8")
        return package

    return change


@pytest.fixture
def storage(tmp_path):
    """A run of three steps."""
    assert train(tmp_path / "storage", 3)[0] == 0
    return tmp_path / "storage"


@pytest.fixture
def uninterrupted(tmp_path):
    """The bits of a training of six steps in one piece, which begins with the same random numbers."""
    return lambda begun: (shutil.copytree(begun, tmp_path / "alone"), train(tmp_path / "alone", 6)[1])[1]


def states(storage):
    return {finding.file: finding.state for finding in audit(Repository(DirectoryStore(storage), "r"))}


ONE_FIELD = {
    "field": ('    version: str = ""\n', '    version: str = ""\n    weather: str = "fair"\n'),
    "fits": ('    "version": _is_text,\n', '    "version": _is_text,\n    "weather": _is_text,\n'),
}
NEXT_FORMAT = {
    "number": ("FORMAT = 1\n", "FORMAT = 2\n"),
    "reader": ("] = {1: _read_first}", "] = {1: _read_first, 2: _read_first}"),
}


def test_a_new_field_damages_no_checkpoint(storage, changed, uninterrupted):
    """A field is added as CONTRIBUTING says: the next version goes on with what this one wrote, and this one with what
    the next one wrote; nothing is called damaged or marked, and the bits are those of a training in one piece."""
    alone, another = uninterrupted(storage), changed(**ONE_FIELD)
    assert train(storage, 4, another)[0] == 3
    (newest,) = (storage / "r/checkpoints").glob("000000000004-*.json")
    assert unseal(newest.read_bytes())["weather"] == "fair"
    assert train(storage, 5)[0] == 4
    assert train(storage, 6, another) == [5, alone]
    assert not (storage / "r/aside").exists()
    assert set(states(storage).values()) == {"ok"}
    manifest = Repository(DirectoryStore(storage), "r").manifest(newest.stem)
    assert manifest.unknown == {"weather": "fair"}
    assert unseal(manifest.to_bytes()) == unseal(newest.read_bytes())


def test_a_new_format_reads_the_old_one_and_is_newer_for_it(storage, changed, uninterrupted):
    """Where the format is raised, the next version goes on with what this one wrote; this one says "newer", uses the
    checkpoint before, and marks, changes and deletes nothing of the other."""
    alone, another = uninterrupted(storage), changed(**NEXT_FORMAT)
    assert train(storage, 4, another)[0] == 3
    (newer,) = (storage / "r/checkpoints").glob("000000000004-*.json")
    kept = shutil.copytree(storage, storage.parent / "kept")
    found = states(storage)
    assert found.pop(f"checkpoints/{newer.name}") == "newer"
    assert set(found.values()) <= {"ok", "orphan"}
    assert train(storage, 6) == [3, alone]
    assert not (storage / "r/aside").exists()
    assert all((storage / file.relative_to(kept)).read_bytes() == file.read_bytes() for file in kept.glob("r/[bc]*/*"))
    assert train(kept, 6, another) == [4, alone]


def reseal(disk, id, change):
    disk.damage(disk.manifest(id), lambda text: seal({**unseal(text), **change(unseal(text))}))


@pytest.mark.parametrize("what", ["format", "kind", "dtype"])
def test_what_is_newer_is_never_marked_and_nothing_of_it_is_pruned(kit, disk, what):
    """A format, a kind of value or a dtype that this version does not know is told with the update to make; the
    checkpoint before is used; and no file that the newer one may share with one that goes is deleted."""
    session = kit.Session(disk.store)
    old, good, newer = (session.save(step, kit.state(step, frozen=True)) for step in (1, 2, 3))
    if what == "dtype":
        (ours,) = {blob.file for blob in newer.blobs} - {blob.file for blob in good.blobs}
        name = f"{kit.run}/blobs/{ours}"
        text = disk.files[name].replace(b'"F32"', b'"F99"')
        digest = sha256(text).hexdigest()
        disk.files[f"{kit.run}/blobs/{digest}.safetensors"] = text
        entries = [
            {"sha256": digest, "size": len(text), "file": f"{digest}.safetensors"} if entry["file"] == ours else entry
            for entry in unseal(disk.files[disk.manifest(newer.id)])["blobs"]
        ]
        reseal(disk, newer.id, lambda record: {"blobs": entries})
    elif what == "kind":
        reseal(disk, newer.id, lambda record: {"parts": {**record["parts"], "more": {"$quaternion": [1, 0, 0, 0]}}})
    else:
        reseal(disk, newer.id, lambda record: {"format": 9})
    loaded, passed = kit.newest(disk.store)
    assert loaded.manifest == good
    assert list(passed) == [newer.id]
    assert "pip install -U colabkeep" in passed[newer.id]
    repository = Repository(disk.store, kit.run)
    assert repository.quarantined() == set()
    with pytest.raises(CheckpointUnsupported) as caught:
        repository.load(repository.manifest(newer.id))
    assert "pip install -U colabkeep" in caught.value.remedy
    found = {finding.file: finding.state for finding in audit(repository)}
    assert "newer" in found.values()
    assert "damaged" not in found.values()
    shared = {blob.file for blob in old.blobs} & {blob.file for blob in newer.blobs}
    assert shared
    assert not shared & set(unneeded(repository, [old, good]))


def test_where_all_that_is_there_is_newer_the_update_is_named(kit, disk):
    """Nobody is sent to look for a storage that is there: what helps is the newer version, and that is said; beside one
    that is damaged, both are."""
    session = kit.Session(disk.store)
    for step in (1, 2):
        reseal(disk, session.save(step).id, lambda record: {"format": 9})
    with pytest.raises(NoUsableCheckpoint) as caught:
        kit.newest(disk.store)
    assert "pip install -U colabkeep" in caught.value.remedy
    assert "storage" not in caught.value.remedy
    disk.damage(disk.manifest(session.save(3).id), lambda text: text[:-9])
    with pytest.raises(NoUsableCheckpoint) as caught:
        kit.newest(disk.store)
    assert "pip install -U colabkeep" in caught.value.remedy
    assert "storage" in caught.value.remedy
