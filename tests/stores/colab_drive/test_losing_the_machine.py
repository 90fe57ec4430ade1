"""The machine is taken away, the process is killed, the mount dies, at random: what was called confirmed is there."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from colabkeep.core.errors import NameTaken, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.testing.faults import FaultyFiles
from tests.fakes.mounts import FakeMount

from .conftest import Tide

SAVES = 60


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


def kill():
    raise Killed


class Training:
    """Saves checkpoints of two blobs and a manifest, one blob shared with the one before, and keeps the last three.

    `put` is all that was ever written, `confirmed` what the store called so and nobody deleted.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.mount = FakeMount(folder, seed=seed)
        self.root = self.mount.root / "colabkeep"
        self.put: dict[str, bytes] = {}
        self.needs: dict[str, list[str]] = {}
        self.receipts = {}
        self.confirmed: set[str] = set()
        self.saved: list[str] = []
        self.counts = dict.fromkeys(("confirmed", "failed"), 0)
        self.store = self.open()

    def open(self, files=None):
        tide = Tide(self.mount)
        tide.flows = False
        return MountedStore(self.root, files=files or self.mount.files, clock=tide, pauses=(1.0,), per_folder=4)

    def bytes_of(self, name):
        return self.put.setdefault(name, f"{name} ".encode() * self.random.randint(0, 5000))

    def save(self, step):
        blobs = [f"run/blobs/{step // 2}", f"run/blobs/x{step}"]
        manifest = f"run/checkpoints/{step}.json"
        self.needs[manifest] = blobs
        for name in (*blobs, manifest):
            try:
                self.receipts[name] = self.store.put(name, BytesSource(self.bytes_of(name)))
            except NameTaken:
                continue
        self.saved.append(manifest)
        while len(self.saved) > 3:
            self.prune(self.saved.pop(0))

    def prune(self, manifest):
        kept = {blob for other in self.saved for blob in self.needs[other]}
        for name in (manifest, *(blob for blob in self.needs[manifest] if blob not in kept)):
            self.confirmed.discard(name)
            self.receipts.pop(name, None)
            self.store.delete(name)

    def ask(self):
        for name, receipt in list(self.receipts.items()):
            if self.store.confirm(receipt).level == "confirmed":
                self.counts["confirmed"] += name not in self.confirmed
                self.confirmed.add(name)

    def check(self):
        """Every object is what was put; every confirmed one is there, and so is all that a confirmed manifest needs."""
        found = {}
        for entry in self.store.list(""):
            with self.store.get(entry.name) as reader:
                found[entry.name] = reader.read()
            assert found[entry.name] == self.put[entry.name]
        assert self.confirmed <= found.keys()
        for manifest in self.confirmed & self.needs.keys():
            assert set(self.needs[manifest]) <= found.keys()

    def strike(self, blow):
        """Something happens to the session; a new one goes on with what it finds."""
        if blow == "reclaimed":
            self.mount.reclaim()
        elif blow == "died":
            self.mount.die()
            self.mount.come_back(losing=True)
        self.receipts = {name: receipt for name, receipt in self.receipts.items() if name in self.confirmed}
        self.mount.notice()
        self.store = self.open()
        self.store.sweep("run")
        self.saved = [manifest for manifest in self.saved if manifest in {e.name for e in self.store.list("run")}]
        self.check()

    def step(self, number):
        self.mount.fails = self.random.choice((0.0, 0.0, 0.05, 0.3))
        try:
            self.save(number)
            self.mount.notice()
            self.mount.sync(most=self.random.randint(0, 6))
            self.ask()
        except (StoreUnavailable, StoreFull):
            self.counts["failed"] += 1
        self.mount.fails = 0.0


@pytest.mark.parametrize("seed", range(20))
def test_what_was_called_confirmed_is_there_and_whole_whatever_happens(tmp_path, seed):
    """Calls fail, uploads overtake each other, machines are lost with files missing, empty or cut in Drive."""
    training = Training(tmp_path / "drive", seed)
    lives, fate = random.Random(seed).sample(range(SAVES), 9), random.Random(seed)
    for number in range(SAVES):
        training.step(number)
        if number in lives:
            training.strike(fate.choice(("reclaimed", "killed", "died")))
    training.strike("reclaimed")
    assert training.mount.misuse == []
    assert training.counts["confirmed"] > 10
    assert training.counts["failed"] > 0


def test_a_machine_lost_at_any_call_of_a_save_leaves_what_was_confirmed(tmp_path):
    """The n-th system call is the last one: a new machine finds all that was confirmed, and no part of anything."""
    n = lost = 0
    finished = False
    while not finished:
        training = Training(tmp_path / str(n), seed=n)
        for number in range(3):
            training.save(number)
        training.mount.notice()
        training.mount.sync()
        training.ask()
        assert len(training.confirmed) == 8
        files = FaultyFiles(at=n, fault=kill, lasting=True, inner=training.mount.files)
        training.store = training.open(files.files)
        try:
            training.save(3)
            finished = True
        except Killed:
            lost += 1
        training.mount.notice()
        training.mount.sync(most=n % 3)
        training.mount.reclaim()
        training.store = training.open()
        training.check()
        n += 1
    assert lost > 50


def test_an_unplugged_drive_is_not_an_empty_one(tmp_path):
    """A new machine without Drive must not be told that there is nothing to resume from."""
    training = Training(tmp_path, seed=1)
    training.save(0)
    training.mount.away = errno.ENOENT
    with pytest.raises(StoreUnavailable):
        training.open().list("run")
