"""Kills a training at the points of its store, and resumes it; a program, for it forks.

Its argument is the framework, "torch" or "paddle". Prints a JSON list, one record per point: its `name`, the step of
the newest checkpoint that was `committed` before the kill, the step of the one that was `loaded` afterwards, verified
(None: there was none), the exit status with which the resumed run `ended`, and the paths of what is `unequal` to an
uninterrupted one.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_newest
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyStore, kill
from tests.processes import Life, Say
from tests.trainings import HardTraining, final_state, open_training

RUN = "points"


def cell(training: HardTraining, folder: Path, at: Callable[[str], None]) -> None:
    """A user's own loop, which waits for each of its saves: the points come in the same order each time."""
    words = training.hard_training(epochs=1)
    parts = {name: words[name] for name in ("model", "optimizer", "scheduler", "ema")}
    store = FaultyStore(DirectoryStore(folder), at=at)
    with colabkeep.Run(RUN, **parts, storage=store, save_every=None, keep_last=1, progress=False) as run:
        for _ in run.epochs(1):
            for features, target in run.batches(words["train_loader"]):
                run.step(loss=training.step_by_hand(words, features, target))
                if run.progress.step % 4 == 0:
                    run.save(wait=True)


def name_of(point: str) -> str:
    """Without what is another one each time: "before put blobs", "after delete checkpoints"."""
    when, verb, place = point.split(" ", 2)
    found = re.match(rf"{RUN}/(\w+)", place)
    return f"{when} {verb} {found[1]}" if found else f"{when} {verb}"


def to_kill_at(points: list[str]) -> list[int]:
    """The numbers of all points that come before or after a change of the disk, and of the first of each other name:
    a kill between two looks at it leaves what one before them leaves."""
    first = {name_of(point): number for number, point in reversed([*enumerate(points)])}
    changes = {number for number, point in enumerate(points) if re.match(r"\w+ (put|delete) ", point)}
    return sorted(changes | {*first.values()})


def killed_at(training: HardTraining, number: int, folder: Path) -> dict[str, object]:
    """The record of one point; its life is killed there by its own hand, in whatever thread that is."""
    reached: list[str] = []

    def work(say: Say) -> None:
        def at(point: str) -> None:
            say(point)
            reached.append(point)
            if len(reached) > number:
                kill()

        cell(training, folder, at)

    with Life(work) as life:
        told = [message[0] for message in life.messages(within=60)]
    commits = [re.match(rf"after put {RUN}/checkpoints/(\d+)", point) for point in told]
    committed = max((int(commit[1]) for commit in commits if commit), default=None)
    loaded = load_newest(Repository(DirectoryStore(folder), RUN), lambda id, why: sys.exit(f"{id}: {why}"))
    return {
        "name": name_of(told[-1]),
        "killed": life.status == -9 and len(told) == number + 1,
        "committed": committed,
        "loaded": loaded.manifest.progress.step if loaded else None,
    }


def main() -> None:
    training = open_training(sys.argv[1])
    training.one_thread()
    points: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        cell(training, whole, points.append)  # and everything is imported, for all that are forked from here on
        gc.collect()  # here, for a thread that frees a tensor of Paddle's may hold a lock when the next one is forked
        wanted = final_state(whole, RUN)
        records = []
        for number in to_kill_at(points):
            folder = Path(name) / str(number)
            record = killed_at(training, number, folder)
            with Life(lambda say, folder=folder: cell(training, folder, lambda _: None)) as life:
                list(life.messages(within=60))
                life.show()
            found = final_state(folder, RUN)
            unequal = sorted(path for path in {*found, *wanted} if found.get(path) != wanted.get(path))
            records.append({**record, "ended": life.status, "unequal": unequal})
    print(json.dumps(records))


if __name__ == "__main__":
    main()
