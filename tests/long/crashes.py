"""SIGKILL at random moments, over and over: every run must end with the bits of the uninterrupted one.

    python -m tests.long.crashes --kills 200 [--framework paddle] [--seed 1] [--json]

Run it from the repository (a minute and a half on two cores with torch, two or three with Paddle). A small training
with random augmentation, loader workers, accumulation, BatchNorm, dropout, tied weights, a per-step schedule,
clipping and an EMA, is killed in one session after another, until it has had its share of kills and may finish. From
session to session the number of workers changes;
from run to run, accumulation and the number of checkpoints kept. The moments are random: anywhere in a session, its
start included, inside a save, while old checkpoints are deleted, in a validation.

Checked for every run: everything in the last checkpoint (weights, EMA, optimizer, schedule, random streams, history)
is what the uninterrupted run has, the SHA-256 of the weights too; each sample was trained on once in each epoch, in
the same order; no checkpoint was found damaged on the way. No loader worker outlives the last session, and no
shared memory of one. The exit status is 1 if anything differs or is left behind.

The processes are forked from this one, which has imported the framework and computes with one thread: a session costs
a few tenths of a second. Each kill is a real SIGKILL of a real process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import colabkeep
from colabkeep.core.events import CheckpointSkipped, Event, Restored
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyStore
from tests.processes import Life, Message, Say
from tests.trainings import SAMPLES, HardTraining, consumed, final_state, open_training, weights_sha256

EPOCHS = 6
KILLS_PER_RUN = 12
PATIENCE = 120.0  # seconds; a session that hangs this long is a bug
RUN = "crashes"
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What changes from run to run."""

    accumulate: int
    keep_last: int = 2
    every: int = 3  # steps between saves, beside the ends of epochs


SETTINGS = [
    Setting(accumulate=accumulate, keep_last=keep_last, every=every)
    for every in (3, 10)
    for keep_last in (1, 2)
    for accumulate in (1, 3)
]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """`delay` seconds after the `nth` message that begins with `sign`; after the fork, if that is empty."""

    sign: str
    nth: int
    delay: float


@dataclass(kw_only=True)
class Trial:
    """One run, over all its sessions. `steps`: step → (epoch, samples), the last telling counts."""

    training: HardTraining
    setting: Setting
    folder: Path
    steps: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    resumes: int = 0
    workers: list[int] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def hear(self, message: Message) -> None:
        if message[0] == "step":
            _, step, epoch, samples = message
            self.steps[step] = epoch, samples
        elif message[0] == "resumed":
            self.resumes += 1
        elif message[0] == "damaged":
            self.damaged.append(message[1])


class Remains:
    """What killed sessions leave behind: their loader workers, and the shared memory of Paddle's.

    Torch's workers remove theirs; a piece that one of them was just handing over when it was killed stays (torch 2.13,
    once in some hundred kills), with or without colabkeep.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:  # orphans become children of this process
            raise OSError(ctypes.get_errno(), "prctl")
        self._before = set(self._segments())

    def found(self, *, within: float) -> list[str]:
        """What is still there after so many seconds; a worker may take a few to notice that it is alone."""
        end = time.monotonic() + within
        while (left := self._workers() + self._orphaned()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def _workers(self) -> list[str]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
        return [f"process {pid}: {Path(f'/proc/{pid}/cmdline').read_text()}" for pid in sorted(children)]

    def _orphaned(self) -> list[str]:
        return [f"/dev/shm/{name}" for name in sorted(set(self._segments()) - self._before)]

    @staticmethod
    def _segments() -> Iterator[str]:
        for path in Path("/dev/shm").glob("*"):
            owner = re.match(r"paddle_(\d+)_", path.name)
            if owner and not Path(f"/proc/{owner[1]}").exists():
                yield path.name


def session(training: HardTraining, setting: Setting, folder: Path, workers: int, say: Say) -> None:
    """What a user's cell does, told step by step, and the store's calls one by one."""

    def tell(event: Event) -> None:
        if isinstance(event, Restored):
            say("resumed", event.progress.step)
        elif isinstance(event, CheckpointSkipped):
            say("damaged", event.reason)

    words = training.hard_training(
        workers=workers,
        accumulate=setting.accumulate,
        epochs=EPOCHS,
        heard=lambda step, epoch, samples: say("step", step, epoch, samples),
        measured=lambda: say("measured"),
    )
    words["callbacks"] = (*words["callbacks"], tell)
    store = FaultyStore(DirectoryStore(folder), at=say)
    save_every = [1, f"{setting.every} steps"]
    colabkeep.resumable_fit(**words, run_name=RUN, storage=store, keep_last=setting.keep_last, save_every=save_every)


def lived(life: Life, moment: Moment | None, hear: Callable[[Message], None]) -> int | None:
    """Hear a session until the moment has come, or its end, for `PATIENCE` seconds at most, and kill it. The status
    that it had ended with; None if it had not."""

    def listen(seconds: float, sign: str = "", nth: int = 0) -> None:
        for message in life.messages(within=seconds):
            hear(message)
            nth -= bool(sign) and message[0].startswith(sign)
            if sign and nth <= 0:
                return

    if moment is not None and moment.sign:
        listen(PATIENCE, moment.sign, moment.nth)
    listen(PATIENCE if moment is None else moment.delay)
    ended = life.status
    life.kill()
    listen(0)
    return ended


def one_life(trial: Trial, workers: int, moment: Moment | None) -> bool:
    """A session of the trial, killed at the moment. True if it was; False if it had finished before."""
    trial.workers.append(workers)
    told: list[Message] = []

    def hear(message: Message) -> None:
        told.append(message)
        trial.hear(message)

    with Life(lambda say: session(trial.training, trial.setting, trial.folder, workers, say)) as life:
        ended = lived(life, moment, hear)
    if ended is None and moment is None:
        raise SystemExit(f"a session of {trial.setting} did not end in {PATIENCE} seconds")
    if ended is not None and ended != 0:
        raise SystemExit(f"a session of {trial.setting} failed with status {ended}: see above")
    if ended is None:
        trial.kills.append(place(told))
    return ended is None


def place(told: list[Message]) -> str:
    """Where a session was when it was killed, by the last it said."""
    words = [message[0] for message in told]
    points = [word for word in words if " " in word]
    if not any(word == "step" for word in words):
        return "before its first step"
    saving = False
    for point in points:
        saving = (saving or point.startswith(f"before put {RUN}/blobs/")) and not point.startswith(
            f"after put {RUN}/checkpoints/"
        )
    if saving:
        return "inside a save"
    if points and points[-1].startswith("before "):
        return "while it tidied up"
    training = [word for word in words if " " not in word]
    return "in a validation" if training[-1] == "measured" else "between saves"


def some_moment(chance: random.Random, length: float) -> Moment:
    """Anywhere in a session that would last `length` seconds, or aimed at what is short and delicate."""
    kind = chance.random()
    if kind < 0.4:
        return Moment(sign="", nth=0, delay=chance.uniform(0, length))
    if kind < 0.7:
        return Moment(sign=f"before put {RUN}/blobs", nth=chance.randint(1, 6), delay=chance.uniform(0, 0.02))
    if kind < 0.85:
        return Moment(sign=f"after put {RUN}/checkpoints", nth=chance.randint(1, 6), delay=chance.uniform(0, 0.01))
    return Moment(sign="measured", nth=chance.randint(1, 4), delay=chance.uniform(0, 0.005))


def one_trial(trial: Trial, kills: int, chance: random.Random, length: float) -> None:
    """A run that is killed `kills` times at most, and then finishes."""
    while len(trial.kills) < kills and one_life(trial, chance.choice((0, 1, 2)), some_moment(chance, length)):
        pass
    if len(trial.kills) == kills:
        one_life(trial, chance.choice((0, 1, 2)), None)


def faults(trial: Trial, whole: Trial) -> list[str]:
    """What is not as in the uninterrupted run; empty if all is well."""
    found = [f"skipped a checkpoint: {reason}" for reason in trial.damaged]
    state, wanted = final_state(trial.folder, RUN), final_state(whole.folder, RUN)
    found += [f"{path} differs" for path in {**state, **wanted} if state.get(path) != wanted.get(path)]
    if weights_sha256(trial.folder, RUN) != weights_sha256(whole.folder, RUN):
        found.append("the SHA-256 of the weights differs")
    return found + misread(consumed(trial.steps), consumed(whole.steps), EPOCHS)


def misread(epochs: dict[int, list[int]], wanted: dict[int, list[int]], number: int) -> list[str]:
    """What is wrong with the samples of each epoch, of which there should be so many."""
    found = [] if epochs == wanted else ["the samples came in another order"]
    every = list(range(SAMPLES))
    found += [f"epoch {epoch} saw {sorted(seen)}" for epoch, seen in epochs.items() if sorted(seen) != every]
    return found if len(epochs) == number else [*found, f"{len(epochs)} epochs were trained, not {number}"]


def campaign(framework: str, kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill as often as asked; what came of it."""
    began, chance, remains = time.monotonic(), random.Random(seed), Remains()
    training = open_training(framework)
    training.one_thread()  # see the top of `colabkeep.testing.faults`
    # What a first session imports on the way (a second of work) is there for all that are forked from here on.
    session(training, Setting(accumulate=1), folder / "warm-up", 0, lambda *_: None)
    ready = time.monotonic()
    whole = {n: Trial(training=training, setting=Setting(accumulate=n), folder=folder / f"whole-{n}") for n in (1, 3)}
    for trial in whole.values():
        one_life(trial, 0, None)
    length = (time.monotonic() - ready) / len(whole)
    trials: list[Trial] = []
    differing: dict[str, list[str]] = {}
    while (left := kills - sum(len(trial.kills) for trial in trials)) > 0:
        number = len(trials)
        setting = SETTINGS[number % len(SETTINGS)]
        trials.append(Trial(training=training, setting=setting, folder=folder / f"run-{number}"))
        one_trial(trials[-1], min(left, KILLS_PER_RUN), chance, length)
        wrong = faults(trials[-1], whole[setting.accumulate])
        if wrong:
            differing[f"run {number} ({setting}, workers {trials[-1].workers})"] = wrong
        done = sum(len(trial.kills) for trial in trials)
        print(f"run {number}: {'DIFFERS' if wrong else 'equal'}; {done} of {kills} kills", file=sys.stderr, flush=True)
    # Shared memory of the workers killed last is swept up by the next session that has workers.
    one_life(Trial(training=training, setting=Setting(accumulate=1), folder=folder / "sweep"), 2, None)
    return {
        "framework": framework,
        "seed": seed,
        "kills": sum(len(trial.kills) for trial in trials),
        "resumes": sum(trial.resumes for trial in trials),
        "runs": len(trials),
        "sessions": sum(len(trial.workers) for trial in trials),
        "places": dict(Counter(place for trial in trials for place in trial.kills).most_common()),
        "sha256": {f"accumulation {n}": weights_sha256(trial.folder, RUN) for n, trial in whole.items()},
        "differing": differing,
        "left behind": remains.found(within=PATIENCE),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("torch", "paddle"), default="torch")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the moments; when a kill hits is chance all the same")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = campaign(words.framework, words.kills, words.seed, Path(folder))
    if words.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:>10}: {value}")
    return 1 if told["differing"] or told["left behind"] else 0


if __name__ == "__main__":
    sys.exit(main())
