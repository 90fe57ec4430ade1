"""Colab's Drive dies in the middle of a training: it comes back between two steps, and gets what it missed."""

from __future__ import annotations

import time

import numpy as np
import pytest

import colabkeep
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import StoreDegraded
from colabkeep.core.system import Environment
from colabkeep.session.open import find_store
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.tiered import TieredStore
from tests.fakes.runs import Weights

BOUND = 60.0  # seconds; several times what this may take, for a Drive that never comes back


@pytest.mark.parametrize("storage", ["auto", "named"])
def test_a_drive_that_dies_in_a_training_is_mounted_again_by_itself(machine, monkeypatch, storage):
    """Nobody has to stop the cell; the page is asked once, by a plain mount in the old place."""
    for store, pauses in ((MountedStore, (0.1,)), (TieredStore, (0.01, 0.1))):
        defaults = {**store.__init__.__kwdefaults__, "pauses": pauses}
        monkeypatch.setattr(store.__init__, "__kwdefaults__", defaults)
    colab = machine(drive="mounted")
    colab.environ["XDG_CACHE_HOME"] = "/root/.cache"
    environment = colab.environment
    monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))
    place = "auto" if storage == "auto" else f"mounted://{colab.root}/content/drive/MyDrive/colabkeep"
    weights, heard = Weights(np.zeros(10)), []
    with colabkeep.Run(
        "r", state={"weights": weights}, storage=place, save_every=None, flush_timeout=0.1, callbacks=[heard.append]
    ) as training:
        training.step()
        training.save(wait=True)
        colab.set_drive("/content/drive", "dead")
        end = time.monotonic() + BOUND
        while colab.mounts["/content/drive"] != "mounted" and time.monotonic() < end:
            weights.array = weights.array + 1.0
            training.step()
            training.save(wait=True)
            time.sleep(0.01)
        last = training.checkpoint
        while not list(colab.account.rglob(f"{last}*")) and time.monotonic() < end:
            training.step()
            time.sleep(0.01)
    (call,) = (call for call in colab.calls if call.startswith("drive.mount"))
    assert call.startswith("drive.mount(/content/drive, force_remount=False")
    assert list(colab.account.rglob(f"{last}*")), "the newest checkpoint is in Drive"
    told = [event.detail for event in heard if isinstance(event, StoreDegraded) and not event.healed]
    assert all("Training continues" in detail for detail in told)  # none, where it was mounted before anybody was told


def test_who_merely_looks_is_not_asked_to_mount(machine, monkeypatch):
    """Listing runs shows no dialog: the error says what to type."""
    colab = machine(drive="dead")
    environment = colab.environment
    monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))
    store = find_store(f"{colab.root}/front + mounted://{colab.root}/content/drive/MyDrive/colabkeep").behind
    monkeypatch.setattr(store._patience, "_pauses", ())
    with pytest.raises(StoreUnavailable, match=r"colabkeep\.mount\(\)"):
        list(store.list(""))
    assert colab.calls == []
