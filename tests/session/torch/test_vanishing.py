"""What a training has saved is deleted, renamed or unmounted under it: it is told, and the next save is a whole one."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.checkpoint.inspect import sessions
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import Event, Noted, Pruned, SaveCommitted, SaveFailing
from colabkeep.stores.base import Store
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore
from tests.fakes.mounts import FakeMount
from tests.trainings import final_state

EPOCHS = 6


def parts() -> dict[str, Any]:
    """A small model on a frozen one that is large enough for a file of its own."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512).requires_grad_(False), torch.nn.Linear(512, 1))
    return {"model": model, "optimizer": torch.optim.SGD(model[1].parameters(), 0.01, momentum=0.9)}


def train(
    storage: Any, events: list[Event], at: Callable[[int], None] = lambda _: None, epochs: int = EPOCHS, **words: Any
) -> None:
    """One step and one save in each epoch; `at` is called behind each save, with the number of the epoch."""
    objects = parts()
    words = {"save_every": None, "keep_last": 2, "progress": False, "callbacks": [events.append], **words}
    with colabkeep.Run("exp/a", **objects, storage=storage, **words) as run:
        for epoch in run.epochs(epochs):
            for features in run.batches([torch.full((2, 512), epoch / 8.0)]):
                objects["optimizer"].zero_grad()
                objects["model"](features).pow(2).mean().backward()
                objects["optimizer"].step()
                run.step()
            run.save(wait=True)
            if epoch:  # asked for in the epoch before, and taken at its end
                at(epoch - 1)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    train(folder, [])
    return final_state(folder, "exp/a")


def told(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Noted) and "vanished" in event.text]


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


LOSSES: dict[str, Callable[[Path], Any]] = {
    "The folder of the run 'exp/a' has": lambda root: shutil.rmtree(root / "exp" / "a"),
    "The folder of the run 'exp/a' has ": lambda root: (root / "exp").rename(root / "other"),
    "Checkpoint 00000000000": lambda root: shutil.rmtree(root / "exp" / "a" / "checkpoints"),
    "file(s) of checkpoint 00000000000": lambda root: shutil.rmtree(root / "exp" / "a" / "blobs"),
}


@pytest.mark.parametrize("words", LOSSES)
def test_what_vanishes_under_a_training_is_told_and_written_again(
    tmp_path: Path, events: list[Event], undisturbed: dict[str, str], words: str
) -> None:
    """Deleted, or moved away with the folder above it: the frozen layers are written again too, and the run is found,
    gone on from and pruned as if it had begun there."""

    def lose(epoch: int) -> None:
        if epoch == 2:
            LOSSES[words](tmp_path)

    train(tmp_path, events, lose)
    (said,) = told(events)
    assert words.strip() in said
    assert str(tmp_path) in said
    sizes = [event.written for event in events if isinstance(event, SaveCommitted)]
    frozen = 4 * 512 * 512
    whole = (0,) if words.startswith("Checkpoint") else (0, 3)  # the blobs are there still, where these alone are gone
    assert [size > frozen for size in sizes] == [number in whole for number in range(EPOCHS)]
    assert not any(isinstance(event, SaveFailing) for event in events)
    assert [event.checkpoints for event in events if isinstance(event, Pruned)] != []
    assert final_state(tmp_path, "exp/a") == undisturbed
    assert (tmp_path / "exp" / "a" / "run.json").exists()
    store = DirectoryStore(tmp_path)
    assert [record["session"] for record in sessions(colabkeep.checkpoint.inspect.find_run(store, "exp/a"))] != []
    again: list[Event] = []
    train(tmp_path, again, epochs=EPOCHS + 2)
    assert final_state(tmp_path, "exp/a") != undisturbed
    assert not told(again)


def test_what_vanishes_after_the_last_save_is_written_again_at_the_end(
    tmp_path: Path, events: list[Event], undisturbed: dict[str, str]
) -> None:
    """A session does not end with "finished" on a folder that is gone."""
    objects = parts()
    with colabkeep.Run(
        "exp/a", **objects, storage=tmp_path, save_every=None, progress=False, callbacks=[events.append]
    ) as run:
        for _ in range(3):
            run.step()
        run.save(wait=True)
        shutil.rmtree(tmp_path / "exp")
    assert len(told(events)) == 1
    assert run.checkpoint is not None
    assert f"exp/a/checkpoints/{run.checkpoint}.json" in files(tmp_path)
    with colabkeep.Run("exp/a", **parts(), storage=tmp_path, progress=False) as again:
        assert again.progress.step == 3


@pytest.mark.parametrize("back", ["made anew", "renamed back"])
def test_a_storage_folder_that_is_gone_is_told_and_not_made_anew(
    tmp_path: Path, events: list[Event], undisturbed: dict[str, str], back: str
) -> None:
    """It may belong on a disk that is not there: training goes on, and when it is back so does saving."""
    root, away = tmp_path / "root", tmp_path / "away"

    def lose(epoch: int) -> None:
        if epoch == 1:
            root.rename(away)
        if epoch == 3:
            assert not root.exists()
            root.mkdir() if back == "made anew" else away.rename(root)

    train(root, events, lose, save_every=1)
    (problem,) = {event.error for event in events if isinstance(event, SaveFailing)}
    assert problem.startswith(f"{root} was there and is gone: it was deleted or renamed, or its disk was unmounted.")
    assert len(told(events)) == (1 if back == "made anew" else 0)
    assert final_state(root, "exp/a") == undisturbed


def test_a_disk_that_was_unmounted_is_not_taken_for_an_empty_folder(
    tmp_path: Path, events: list[Event], undisturbed: dict[str, str]
) -> None:
    """Where a disk was mounted there is a folder of another disk: nothing is written there. Mounted again, perhaps as a
    device of another number, it is written on."""
    root, away, number = tmp_path / "root", tmp_path / "away", [1]
    root.mkdir()

    def fstat(descriptor: int) -> os.stat_result:
        facts = list(os.fstat(descriptor))
        if stat.S_ISDIR(facts[0]):
            facts[2] = number[0]
        return os.stat_result(facts)

    def unmount(epoch: int) -> None:
        if epoch == 1:
            root.rename(away)
            root.mkdir()
            number[0] = 2
        if epoch == 3:
            assert files(root) == []
            root.rmdir()
            away.rename(root)
            number[0] = 3

    store = DirectoryStore(root, files=dataclasses.replace(OS_FILES, fstat=fstat))
    train(store, events, unmount, save_every=1)
    (problem,) = {event.error for event in events if isinstance(event, SaveFailing)}
    assert "is on another disk than before" in problem
    assert not told(events)
    assert final_state(root, "exp/a") == undisturbed


def test_the_folder_of_a_run_deleted_in_drive_is_told_and_written_again(
    tmp_path: Path, events: list[Event], undisturbed: dict[str, str]
) -> None:
    """Also on a mount whose listings lag: what they lack is asked for by its name."""
    mount = FakeMount(tmp_path)
    store: Store = MountedStore(mount.root / "colabkeep", files=mount.files, pauses=())

    def lose(epoch: int) -> None:
        if epoch == 2:
            mount.delete_folder("colabkeep/exp")

    with mount.syncing():
        train(store, events, lose)
    (said,) = told(events)
    assert "The folder of the run 'exp/a' has vanished" in said
    assert not [event for event in events if isinstance(event, Noted) and "has not caught up" in event.text]
    assert final_state(store, "exp/a") == undisturbed


@pytest.mark.parametrize("away", [None, 0, 2], ids=["all has arrived", "nothing has arrived", "some has arrived"])
def test_a_front_folder_that_is_deleted_is_made_again(
    tmp_path: Path, events: list[Event], undisturbed: dict[str, str], away: int | None
) -> None:
    """Somebody empties the disk in front of a slower store: it is told once, no save fails, what had not arrived is
    written again, and in the end the slower store alone has all of the training. `away`: since when nothing arrives."""
    front, behind = tmp_path / "front", DirectoryStore(tmp_path / "behind")

    def answer(point: str) -> None:
        if point.startswith("before") and gone and "lease" not in point:
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")

    gone = False  # at first, for a run is not opened where its storage does not answer
    drive = FaultyStore(behind, at=answer)
    store = TieredStore(DirectoryStore(front), drive, pauses=(0.001, 0.002))

    def lose(epoch: int) -> None:
        nonlocal gone
        assert gone or store.flush(30)
        if epoch == 3:
            shutil.rmtree(front)
        gone = away is not None and away <= epoch < 4

    def begin(event: Event) -> None:
        nonlocal gone
        gone = gone or (away == 0 and not events)
        events.append(event)

    train(store, [], lose, callbacks=[begin])
    assert store.flush(30)
    assert store.degraded is None, "what nobody has any more is not waited for"
    store.close()
    notes = [event.text for event in events if isinstance(event, Noted)]
    (said,) = [text for text in notes if "has been made again" in text]
    assert str(front) in said
    assert len(told(events)) == (0 if away is None else 1)
    assert not any(isinstance(event, SaveFailing) for event in events)
    assert final_state(behind, "exp/a") == undisturbed
    assert len(list((tmp_path / "behind/exp/a/checkpoints").iterdir())) == 2, "and all others are pruned there"
