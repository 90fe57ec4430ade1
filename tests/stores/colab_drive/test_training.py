"""A real training on Colab's two places: it goes on from Drive alone when the machine is gone, and without Drive."""

from __future__ import annotations

import random
import shutil

import pytest
import torch

import colabkeep
from colabkeep.checkpoint import restore
from colabkeep.core.errors import NoUsableCheckpoint
from colabkeep.core.events import CheckpointSkipped, DurabilityReached, Restored, RestoredInexactly, StoreDegraded
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from tests.fakes.mounts import FakeMount
from tests.trainings import final_state
from tests.trainings.torch import hard_training

from .conftest import Tide

EPOCHS = 3
STEPS = 11 * EPOCHS
PATIENCE = 60.0


class Disconnected(Exception):
    """The session is over."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything that an uninterrupted training ends with."""
    folder = tmp_path_factory.mktemp("whole")
    colabkeep.resumable_fit(**hard_training(epochs=EPOCHS), run_name="r", storage=folder)
    return final_state(folder, "r")


class Colab:
    """A machine with a disk and a Drive; `life` runs the user's cell on it, from its top."""

    def __init__(self, folder, seed=0):
        self.disk = folder / "disk"
        self.mount = FakeMount(folder / "drive", seed=seed)
        self.clock = Tide(self.mount)
        self.events = []

    def mounted(self):
        words = {"files": self.mount.files, "clock": self.clock, "pauses": (0.5, 1.5)}
        return MountedStore(self.mount.root / "colabkeep", **words)

    def life(self, at_step, resume="auto"):
        """Train until the end, or until `at_step(step)` says so; then what is on its way is given some time."""
        over = []
        words = hard_training(epochs=EPOCHS, heard=lambda step, *_: over.append(at_step(step)))
        loss_fn = words["loss_fn"]

        def loss_or_the_end(output, target):
            if any(over):
                raise Disconnected
            return loss_fn(output, target)

        words["callbacks"] = (*words["callbacks"], self.events.append)
        words["loss_fn"] = loss_or_the_end
        store = TieredStore(DirectoryStore(self.disk), self.mounted(), pauses=(0.001, 0.002))
        try:
            colabkeep.resumable_fit(
                **words,
                run_name="r",
                storage=store,
                save_every="3 steps",
                keep_last=2,
                resume=resume,
                flush_timeout=0.3,  # by the real clock, and Drive does nothing meanwhile: see `at_step`
            )
            self.clock.flows = True
            return store.flush(PATIENCE)
        finally:
            store.close()

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def replace(self):
        """The machine is taken away, with its disk and with what was not uploaded."""
        self.mount.reclaim()
        shutil.rmtree(self.disk)


@pytest.mark.parametrize("seed", range(3))
def test_a_training_that_loses_its_machine_again_and_again_ends_with_the_same_weights(
    tmp_path, whole, seed, monkeypatch
):
    """Each new machine has Drive and nothing else; of the last uploads some are missing, empty or cut.

    What it goes on from is never older than a checkpoint that was called confirmed. Where nothing was, and of the only
    checkpoint the manifest alone got through, the user is told so and begins anew.
    """
    colab, chance = Colab(tmp_path, seed), random.Random(seed)
    monkeypatch.setattr(restore, "LISTED_AGAIN", 0.0)  # this mount's listings do not lag
    colab.clock.flows = False  # Drive works in `at_step` only: at the end of a life, much is on its way
    lives = 0

    def at_step(step):
        colab.mount.notice()
        colab.mount.sync(most=chance.randint(0, 3))
        return lives < 6 and chance.random() < 0.3

    finished, resume = False, "auto"
    while not finished:
        confirmed = [int(event.checkpoint[:12]) for event in colab.of(DurabilityReached) if event.level == "confirmed"]
        colab.events.clear()
        try:
            colab.life(at_step, resume)
            finished = True
        except Disconnected:
            lives += 1
        except NoUsableCheckpoint:
            assert (confirmed, resume) == ([], "auto")
            resume = "never"
            continue
        resume = "auto"
        restored = [event.progress.step for event in colab.of(Restored)]
        assert max(confirmed, default=0) <= max(restored, default=0)
        if not finished:
            colab.replace()
    assert lives >= 2
    assert colab.of(RestoredInexactly) == []
    colab.replace()
    assert final_state(colab.mounted(), "r") == whole
    assert colab.mount.misuse == []


def test_training_goes_on_while_drive_is_away_for_an_hour(tmp_path, whole):
    """It is told, nothing waits for it, and when the mount is back Drive gets all that it missed."""
    colab = Colab(tmp_path)

    def at_step(step):
        if step == 7:
            colab.mount.die()
        elif 7 < step <= 27:
            colab.clock.advance(180.0)
        elif step == 28:
            colab.mount.come_back()

    assert colab.life(at_step)
    details = [event.detail for event in colab.of(StoreDegraded)]
    assert "Training continues" in details[0]
    assert details[-1] == "works again"
    assert colab.of(CheckpointSkipped) == []
    colab.replace()
    assert final_state(colab.mounted(), "r") == whole
    assert colab.mount.misuse == []


def test_without_its_disk_a_training_still_ends_the_same(tmp_path, whole):
    """The mount as the only place, calls failing now and then: slower, and just as exact."""
    mount = FakeMount(tmp_path)
    store = MountedStore(mount.root / "colabkeep", files=mount.files, clock=Tide(mount), pauses=(0.0,) * 20)
    mount.fails = 0.02
    colabkeep.resumable_fit(**hard_training(epochs=EPOCHS), run_name="r", storage=store)
    mount.fails = 0.0
    assert store.flush(1000.0)
    mount.reclaim()
    assert final_state(MountedStore(mount.root / "colabkeep", files=mount.files), "r") == whole
    assert mount.misuse == []
