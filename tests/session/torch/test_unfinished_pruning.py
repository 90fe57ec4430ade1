"""A run that was killed between its last commit and the pruning behind it is pruned when it is next opened."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.checkpoint.repository import KEEPS
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import Event, Noted, Pruned
from colabkeep.core.layout import seal, unseal
from colabkeep.stores.base import StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyStore
from tests.programs import run

# Arguments: the folder; how many objects of checkpoints are deleted before the end.
KILLED = """
import os, signal, sys, torch
import colabkeep
from colabkeep.stores.local import DirectoryStore

class Dying(DirectoryStore):
    left = int(sys.argv[2])

    def delete(self, name):
        if "/journal/" not in name:
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        super().delete(name)

model = torch.nn.Linear(100, 1)
with colabkeep.Run("r", model=model, storage=Dying(sys.argv[1]), save_every=None, keep_last=2, progress=False) as run:
    for step in run.steps(3):
        torch.nn.init.constant_(model.weight, float(step))
        run.save(wait=True)
"""


def killed(folder: Path, *, deleted: int = 0) -> None:
    assert run(KILLED, folder, deleted).returncode == -signal.SIGKILL


def look(storage: Any, **words: Any) -> list[Event]:
    """Open the run, train nothing, and leave it."""
    events: list[Event] = []
    words = {"keep_last": 2, "save_every": None, "progress": False, "callbacks": [events.append], **words}
    with colabkeep.Run("r", model=torch.nn.Linear(100, 1), storage=storage, **words) as run:
        assert run.progress.step == 3 or "resume" in words
    return events


def steps(folder: Path) -> list[int]:
    return sorted(int(file.name[:12]) for file in (folder / "r" / "checkpoints").iterdir())


def blobs(folder: Path) -> int:
    return len(list((folder / "r" / "blobs").iterdir()))


@pytest.mark.parametrize("deleted", [0, 1])
def test_what_a_kill_left_to_prune_is_pruned_by_a_session_that_trains_nothing(tmp_path: Path, deleted: int) -> None:
    """Else one more than `keep_last` would stay for ever; the others, and the run, are as they were."""
    killed(tmp_path, deleted=deleted)
    assert (steps(tmp_path), blobs(tmp_path)) == ([1, 2, 3][deleted:], 3)
    events = look(tmp_path)
    assert len([event for event in events if isinstance(event, Pruned)]) == 1 - deleted
    assert steps(tmp_path) == [2, 3]
    assert blobs(tmp_path) == (3 if deleted else 2)  # what was half pruned goes with the next pruning
    assert not [event for event in look(tmp_path) if isinstance(event, Pruned)]


def forget_the_rule(folder: Path) -> None:
    """As sessions of the first versions wrote their leases."""
    (lease,) = (file for file in (folder / "r" / "lease").iterdir() if not file.name.startswith("."))
    record = unseal(lease.read_bytes())
    del record[KEEPS]
    lease.write_bytes(seal(record))


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ({"keep_last": 1}, lambda _: None),
        ({"resume": "never"}, lambda _: None),
        ({"resume": "id"}, lambda _: None),
        ({}, forget_the_rule),
    ],
    ids=["another rule", "begun anew", "one that was named", "an older version"],
)
def test_nothing_else_is_deleted_by_who_only_looks(
    tmp_path: Path, words: dict[str, Any], before: Callable[[Path], None]
) -> None:
    """A rule that is not that of the killed session counts from the next save on; who names a checkpoint
    may be looking for something."""
    killed(tmp_path)
    before(tmp_path)
    if words.get("resume") == "id":
        words = {"resume": next(file.stem for file in (tmp_path / "r/checkpoints").glob("000000000003-*"))}
    look(tmp_path, **words)
    assert (steps(tmp_path), blobs(tmp_path)) == ([1, 2, 3], 3)


class Lagging(DirectoryStore):
    """Its listings may miss what is new."""

    @property
    def properties(self) -> StoreProperties:
        return replace(super().properties, lists_lag=True)


def test_where_listings_lag_no_blob_goes_that_may_be_of_a_checkpoint_they_do_not_show(tmp_path: Path) -> None:
    """Before this session has saved anything, only what the pruned checkpoint named is deleted."""
    killed(tmp_path)
    (tmp_path / "r" / "blobs" / f"{'0' * 64}.safetensors").write_bytes(b"of a checkpoint that no listing shows yet")
    look(Lagging(tmp_path))
    assert (steps(tmp_path), blobs(tmp_path)) == ([2, 3], 3)
    killed(tmp_path / "other")
    (tmp_path / "other" / "r" / "blobs" / f"{'0' * 64}.safetensors").write_bytes(b"left by a save that was killed")
    look(tmp_path / "other")
    assert (steps(tmp_path / "other"), blobs(tmp_path / "other")) == ([2, 3], 2)


def test_a_storage_that_fails_while_that_is_pruned_hinders_nobody(tmp_path: Path) -> None:
    """It is told, and is done by the next session."""
    killed(tmp_path)

    def away(point: str) -> None:
        if point.startswith("before delete"):
            raise StoreUnavailable(problem="The disk is away.", remedy="Wait.")

    events = look(FaultyStore(DirectoryStore(tmp_path), at=away))
    assert [event.text for event in events if isinstance(event, Noted) and "The disk is away." in event.text]
    assert len(steps(tmp_path)) == 3
    look(tmp_path)
    assert steps(tmp_path) == [2, 3]
