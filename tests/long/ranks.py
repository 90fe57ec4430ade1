"""SIGKILL of a random process of several that train together: every run must end as the uninterrupted one.

    python -m tests.long.ranks --kills 200 [--seed 1] [--simulated-gpu chaos:7] [--json]

Run it from the repository (some ten minutes on two cores). Two or three real processes (gloo) train with dropout,
BatchNorm and a data set that draws, by `resumable_fit` and by a loop with `Run` and DistributedDataParallel; at some
moment one of them is killed, or all are. The others have to end by themselves. Each third run is begun by
`colabkeep.launch`, and there it is mostly the program that began the processes which is killed: they have to end with
it. After its share of kills a run may finish, and has to have the weights, the optimizer's state and the history of the
uninterrupted one. In every other run the number of processes changes from session to session, in float64: there the
weights have to agree to 1e-10. With --simulated-gpu there are one or two of them, each with a simulated device that
runs its work by that schedule (tests/simcuda). The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.programs import Program
from tests.trainings.ranks import Ended, launched, session

KILLS_PER_RUN = 8
GRACE = (
    30.0  # seconds until those that still wait for it are ended, as `colabkeep.launch` does: while they meet, for ever
)
NEAR = 1e-10


def killer(chance: random.Random, longest: float) -> Callable[[Sequence[Program]], None]:
    """Kills one of the processes, or all, after `longest` seconds at most."""
    delay, alone, which = chance.uniform(0, longest), chance.random() < 0.7, chance.random()

    def kill(ranks: Sequence[Program]) -> None:
        time.sleep(delay)
        for each in [ranks[int(which * len(ranks))]] if alone else ranks:
            each.send_signal(signal.SIGKILL)

    return kill


class ParentKiller:
    """Kills the program that began the processes, or one of those, after `longest` seconds at most."""

    def __init__(self) -> None:
        self.parents = 0

    def __call__(self, chance: random.Random, longest: float) -> Callable[[Program, Callable[[], Sequence[int]]], None]:
        delay, parent_dies, which = chance.uniform(0, longest), chance.random() < 0.7, chance.random()

        def kill(parent: Program, children: Callable[[], Sequence[int]]) -> None:
            time.sleep(delay)
            if parent_dies:
                self.parents += 1
                parent.send_signal(signal.SIGKILL)
            elif pids := children():
                with suppress(ProcessLookupError):
                    os.kill(pids[int(which * len(pids))], signal.SIGKILL)

        return kill


def one_run(
    folder: Path, chance: random.Random, kills: int, kill_parent: ParentKiller | None, **words: Any
) -> tuple[int, int, list[str]]:
    """A run that is killed so often; with `kill_parent`, one that `colabkeep.launch` begins. Gives the sessions that
    went on from a checkpoint, the processes that had to be ended, and what is wrong with the run."""
    changes = words.get("dtype") == "float64"
    sizes = (1, 2) if words.get("simulated") else (1, 2, 3)
    size = chance.choice(sizes[1:])
    began = time.monotonic()
    train: Callable[..., Ended] = launched if kill_parent else session
    kill: Callable[..., Any] = kill_parent or killer
    whole = train(folder / "whole", 1 if changes else size, **words)
    longest, resumed, waiting = 1.1 * (time.monotonic() - began), 0, 0
    for _ in range(kills):
        count = chance.choice(sizes) if changes else size
        done = train(folder / "run", count, kill(chance, longest), GRACE, **words)
        resumed, waiting = resumed + done.resumed, waiting + done.ended
    last = train(folder / "run", size, **words)
    return resumed + last.resumed, waiting, wrong(last, whole, changes=changes)


def wrong(last: Ended, whole: Ended, *, changes: bool) -> list[str]:
    """What differs between a run and the uninterrupted one."""
    if any(last.status) or any(whole.status):
        return [f"status {last.status}: {last.errors}"]
    if not changes:
        return [name for name in whole.end if last.end[name] != whole.end[name]]
    found = [name for name in ("step", "rates") if last.end[name] != whole.end[name]]
    apart = max(abs(a - b) for a, b in zip(last.end["weights"], whole.end["weights"], strict=True))
    return [*found, *([f"weights are {apart} apart"] if apart > NEAR else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--simulated-gpu", default="", metavar="SCHEDULE")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    chance, began = random.Random(asked.seed), time.monotonic()
    killed, number, resumed, waiting, failures = (
        0,
        0,
        0,
        0,
        list[str](),
    )  # 55 samples: BatchNorm needs two in each of three
    parents = ParentKiller()
    while killed < asked.kills:
        kills = min(KILLS_PER_RUN, asked.kills - killed)
        fit, changes = number % 2 == 0, number % 4 >= 2
        words = {"fit": fit, **({"dtype": "float64"} if changes else {"draws": True, "samples": 55})}
        if asked.simulated_gpu:
            words["simulated"] = f"{asked.simulated_gpu} abort"
        with tempfile.TemporaryDirectory() as folder:
            times, ended, faults = one_run(Path(folder), chance, kills, parents if number % 3 == 1 else None, **words)
        killed, number, resumed, waiting = killed + kills, number + 1, resumed + times, waiting + ended
        faults = [f"run {number} ({words}): {fault}" for fault in faults]
        failures += faults
        if not asked.json:
            said = f"{resumed} sessions resumed, {waiting} processes had to be ended, {len(failures)} wrong"
            print(f"{killed} kills ({parents.parents} of a parent), {number} runs, {said}", flush=True)
            print("\n".join(faults), end="\n" if faults else "", flush=True)
    result = {
        "kills": killed,
        "of a parent": parents.parents,
        "runs": number,
        "resumed": resumed,
        "had to be ended": waiting,
        "wrong": failures,
    }
    if asked.json:
        print(json.dumps({**result, "seconds": round(time.monotonic() - began)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
