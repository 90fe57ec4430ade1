"""SIGKILL at random moments into runs that are kept at Drive, S3, the Hub, Kaggle, AI Studio or on a mounted Drive.

    python -m tests.long.kills --place s3 hub --kills 20 [--seed 1] [--json]

Run it from the repository, with torch (a minute or two a place; by default all of them). The place is a fake service
in another process, where some requests fail all the time: refused, done without an answer, cut off in the middle
(`tests.long.places`). The training is that of `tests.long.crashes`, slowed down, so that what it saves is on its way
while it trains. It is killed in one session after another; between two of them the machine is lost every other time,
with its disk and all that had not arrived.

Checked for every run:

* each start goes on, none is refused (but Kaggle's may be, as long as no version was whole), and none begins before
  the newest checkpoint that was called safe at the place; where the machine stayed, none before the newest that was
  committed;
* at the end, as the place alone shows it to a machine that has nothing: everything in the last checkpoint is what the
  undisturbed run has, the SHA-256 of the weights too; each sample was trained on once in each epoch, in the same order;
* what is left in the place is what should be: `colabkeep verify` finds every file whole and none that is missing,
  orphaned or foreign, and there are as many checkpoints as retention keeps.

No process and no shared memory outlives a run. The exit status is 1 if anything is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import ColabKeepError
from colabkeep.core.events import (
    CheckpointSkipped,
    DurabilityReached,
    Event,
    Restored,
    RestoredInexactly,
    SaveCommitted,
)
from colabkeep.stores import Storage, open_store
from tests.long.crashes import PATIENCE, Moment, Remains, lived, misread
from tests.long.places import PLACES, Place, opened
from tests.processes import Life, Message, Say
from tests.trainings import HardTraining, consumed, final_state, open_training, weights_sha256

EPOCHS = 4
STEP_SECONDS = 0.02  # longer than the training itself takes: what was saved goes out meanwhile
KEEP_LAST = 2
KILLS_PER_RUN = 10
RUN = "kills"


@dataclass(kw_only=True)
class Trial:
    """One run, over all its sessions. `steps`: step → (epoch, samples), the last telling counts. `safe` and
    `committed`: the newest step of which that was told."""

    number: int
    disk: Path
    steps: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    sessions: int = 0
    losses: int = 0
    resumes: int = 0
    safe: int = 0
    committed: int = 0
    arrived: set[str] = field(default_factory=set)  # ids
    here: bool = False  # is the machine that of the session before?
    told: list[Message] = field(default_factory=list)  # by this session
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def hear(self, message: Message) -> None:
        kind, *words = message
        if kind == "step":
            step, epoch, samples = words
            self.steps[step] = epoch, samples
            if len([one for one in self.told if one[0] == "step"]) == 0 and step > 1 + self.begun():
                self.wrong.append(f"session {self.sessions} began with step {step}")
        elif kind == "resumed":
            self.resumes += 1
            self._see(words[0])
        elif kind == "safe":
            self.safe = max(self.safe, int(words[0][:12]))
            self.arrived.add(words[0])
        elif kind == "committed":
            self.committed = max(self.committed, words[0])
        elif kind == "wrong":
            self.wrong.append(f"session {self.sessions}: {words[0]}")
        elif kind == "refused":
            self.refused.append(f"session {self.sessions}: {words[0]}")
        self.told.append(message)

    def begun(self) -> int:
        """The step at which this session began."""
        return next((words[0] for kind, *words in self.told if kind == "resumed"), 0)

    def _see(self, step: int) -> None:
        least = max(self.safe, self.committed) if self.here else self.safe
        if step < least:
            where = "on the same machine" if self.here else "on a new machine"
            had = f"{self.safe} was safe, {self.committed} there"
            self.wrong.append(f"session {self.sessions} went on {where} from step {step}; {had}")
        self.committed = step


def session(training: HardTraining, place: Place, trial: Trial, say: Say) -> None:
    """What a user's cell does, told step by step, and the calls behind one by one."""
    os.environ.update(place.environment())

    def heard(step: int, epoch: int, samples: list[int]) -> None:
        say("step", step, epoch, samples)
        time.sleep(STEP_SECONDS)

    def tell(event: Event) -> None:
        if isinstance(event, Restored):
            say("resumed", event.progress.step)
        elif isinstance(event, SaveCommitted):
            say("committed", event.progress.step)
        elif isinstance(event, DurabilityReached) and event.level == store.properties.top_level:
            say("safe", event.checkpoint)
        elif isinstance(event, RestoredInexactly):
            say("wrong", f"not exact: {event.reason[:1000]}")
        elif isinstance(event, CheckpointSkipped) and not (place.tears or "had not left the disk" in event.reason):
            say("wrong", f"quarantined: {event.reason[:1000]}")

    words = training.hard_training(epochs=EPOCHS, heard=heard)
    words["callbacks"] = (*words["callbacks"], tell)
    with place.works(trial.number):
        store = opened(place, trial.number, trial.disk, say)
        try:
            colabkeep.resumable_fit(
                **words,
                run_name=RUN,
                storage=store,
                keep_last=KEEP_LAST,
                save_every=[1, "3 steps"],
                flush_timeout=PATIENCE,
            )
            if not store.flush(PATIENCE):
                say("wrong", "not all of it arrived in the end")
        except ColabKeepError as error:
            say("refused", f"{type(error).__name__}: {error}"[:3000])
        finally:
            store.close()
    for misuse in place.misused():
        say("wrong", misuse)


def one_life(training: HardTraining, place: Place, trial: Trial, moment: Moment | None) -> bool:
    """A session of the trial, killed at the moment. True if it was; False if it had ended before."""
    trial.sessions, trial.told = trial.sessions + 1, []
    with Life(lambda say: session(training, place, trial, say)) as life:
        ended = lived(life, moment, trial.hear)
    if ended is None and moment is None:
        trial.wrong.append(f"session {trial.sessions} did not end in {PATIENCE} seconds")
    if ended is not None and ended != 0:
        raise SystemExit(f"a session failed with status {ended}: see above")
    if ended is None and moment is not None:
        trial.kills.append(where(trial.told))
    return ended is None


def where(told: list[Message]) -> str:
    """Where a session was when it was killed, by the last that it said."""
    words = [message[0] for message in told]
    if not any(word == "step" for word in words):
        return "before its first step"
    calls = [word for word in words if word.startswith(("before ", "after "))]
    if calls and calls[-1].startswith("before "):
        return f"inside a {calls[-1].split()[1]} there"
    return "between two calls there"


def some_moment(chance: random.Random, length: float) -> Moment:
    """Anywhere in a session that would last `length` seconds, or aimed at what is short and delicate."""
    kind = chance.random()
    if kind < 0.5:
        return Moment(sign="", nth=0, delay=chance.uniform(0, length))
    folder, most = chance.choice((("lease", 1), ("blobs", 6), ("checkpoints", 6), ("journal", 6)))
    sign = f"before put {RUN}/{folder}"
    if chance.random() < 0.2:
        sign, most = "before delete", 3
    return Moment(sign=sign, nth=chance.randint(1, most), delay=chance.uniform(0, 0.02))


def one_trial(
    training: HardTraining, place: Place, trial: Trial, kills: int, chance: random.Random, length: float
) -> None:
    """A run that is killed `kills` times at most, and then finishes."""
    ended = False
    while len(trial.kills) < kills and not ended:
        ended = not one_life(training, place, trial, some_moment(chance, length)) and not trial_refused(trial)
        trial.here = chance.random() < 0.5
        if not trial.here and not ended:
            trial.losses, trial.committed = trial.losses + 1, 0
            shutil.rmtree(trial.disk, ignore_errors=True)
            place.loses(trial.number)
    if not ended:
        one_life(training, place, trial, None)


def trial_refused(trial: Trial) -> bool:
    """Did the last session not begin, or not end as it should?"""
    return any(message[0] == "refused" for message in trial.told)


def looked_at(work: Callable[[Callable[..., None]], None], at: Path) -> Any:
    """What `work` finds in a process of its own: opening a store starts threads, and this one forks."""

    def look(_: Say) -> None:
        work(lambda found: at.write_text(json.dumps(found)))

    with Life(look) as life:
        list(life.messages(within=PATIENCE))
        if life.status != 0:
            raise SystemExit(f"looking at what is left failed with status {life.status}: see above")
    return json.loads(at.read_text())


def left(storage: Storage) -> dict[str, Any]:
    """What a run is, as its storage shows it."""
    repository = Repository(open_store(storage), RUN)
    quarantined = repository.quarantined()
    kept = repository.ids() - quarantined
    needed = {f"blobs/{blob.file}" for manifest in repository.manifests(kept) for blob in manifest.blobs}
    found = [finding for finding in audit(repository) if finding.state != "ok"]
    return {
        "state": final_state(storage, RUN),
        "sha256": weights_sha256(storage, RUN),
        "checkpoints": len(kept),
        "torn": [finding.file for finding in found if quarantined and finding.file not in needed],
        "lags": repository.store.properties.lists_lag or repository.store.properties.versions,
        "odd": [(finding.file, finding.state) for finding in found],
    }


def faults(
    trial: Trial, whole: Trial, left: dict[str, Any], wanted: dict[str, Any], allowed: list[tuple[str, str]]
) -> list[str]:
    """What is not as in the undisturbed run, or was not as promised on the way; empty if all is well."""
    state, expected = left["state"], wanted["state"]
    found = [
        *trial.wrong,
        *(f"{file} is {state}" for file, state in map(tuple, left["odd"]) if (file, state) not in allowed),
    ]
    found += [f"{path} differs" for path in {**state, **expected} if state.get(path) != expected.get(path)]
    if left["sha256"] != wanted["sha256"]:
        found.append("the SHA-256 of the weights differs")
    # The older ones may not have got through when a machine was lost: the newest is sent first.
    if (
        not (trial.losses or left["checkpoints"] == wanted["checkpoints"])
        or left["checkpoints"] > wanted["checkpoints"]
    ):
        found.append(f"{left['checkpoints']} checkpoints are left, not {wanted['checkpoints']}")
    return found + misread(consumed(trial.steps), consumed(whole.steps), EPOCHS)


def lost(trial: Trial, left: dict[str, Any], *, tears: bool) -> list[tuple[str, str]]:
    """What is odd, and is as it should be: a checkpoint that was lost with its machine before it had arrived, while the
    journal that tells of it had; and, where there is one, blobs that it may have named, which are kept in doubt. Where
    listings lag, or a killed session's version may come late, what it left is removed by a later session.

    `tears`: a checkpoint that was half there when its machine was lost is in quarantine, with what there is of it; and
    a deletion may have got through before the journal that tells of it.
    """
    odd = [(str(file), str(state)) for file, state in left["odd"]]
    gone = [one for one in odd if one[1] == "missing" and one[0].startswith("checkpoints/")]
    gone = [
        (file, state) for file, state in gone if file[len("checkpoints/") : -len(".json")] not in trial.arrived or tears
    ]
    torn = [one for one in odd if tears and one[0] in left["torn"]]
    return [one for one in odd if one in gone or one in torn or ((gone or left["lags"]) and one[1] == "orphan")]


def undisturbed(training: HardTraining, folder: Path) -> tuple[Trial, dict[str, Any]]:
    """The run as it should be, in a folder."""
    trial, storage = Trial(number=0, disk=folder), folder / "whole"

    def work(say: Say) -> None:
        words = training.hard_training(epochs=EPOCHS, heard=lambda *what: say("step", *what))
        save_every = [1, "3 steps"]
        colabkeep.resumable_fit(**words, run_name=RUN, storage=storage, keep_last=KEEP_LAST, save_every=save_every)

    with Life(work) as life:
        for message in life.messages(within=PATIENCE):
            trial.hear(message)
    return trial, looked_at(lambda tell: tell(left(storage)), folder / "whole.json")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A training that has been imported and tried, and the run that nobody disturbed."""

    training: HardTraining
    whole: Trial
    wanted: dict[str, Any]


def prepared(folder: Path) -> Prepared:
    training = open_training("torch")
    training.one_thread()  # see the top of `colabkeep.testing.faults`
    # What a first session imports on the way (a second of work) is there for all that are forked from here on.
    colabkeep.resumable_fit(**training.hard_training(epochs=1), run_name=RUN, storage=folder / "warm-up")
    whole, wanted = undisturbed(training, folder)
    return Prepared(training=training, whole=whole, wanted=wanted)


def campaign(name: str, kills: int, seed: int, folder: Path, known: Prepared) -> dict[str, Any]:
    """Kill as often as asked; what came of it."""
    began, chance, remains = time.monotonic(), random.Random(seed), Remains()
    trials, differing, doubted = list[Trial](), dict[str, list[str]](), 0
    folder.mkdir()
    with contextlib.closing(PLACES[name](folder)) as place:
        for module in place.modules:
            import_module(module)
        length = 11 * EPOCHS * STEP_SECONDS * 2
        while (missing := kills - sum(len(trial.kills) for trial in trials)) > 0:
            number = len(trials) + 1
            trials.append(Trial(number=number, disk=folder / f"disk-{number}"))
            one_trial(known.training, place, trials[-1], min(missing, KILLS_PER_RUN), chance, length)
        place.quiet()
        for trial in trials:
            if trial_refused(trial):  # there is nothing to compare
                differing[f"run {trial.number}"] = ["its last session was refused", *trial.wrong]
                continue
            found = from_the_place(place, trial, folder)
            allowed = lost(trial, found, tears=place.tears)
            doubted += len([state for _, state in allowed if state == "orphan"])
            if wrong := faults(trial, known.whole, found, known.wanted, allowed):
                differing[f"run {trial.number}"] = wrong
    return {
        "seed": seed,
        "kills": sum(len(trial.kills) for trial in trials),
        "lost machines": sum(trial.losses for trial in trials),
        "resumes": sum(trial.resumes for trial in trials),
        "runs": len(trials),
        "sessions": sum(trial.sessions for trial in trials),
        "places": dict(Counter(place for trial in trials for place in trial.kills).most_common()),
        "refused": [f"run {trial.number}, {why}" for trial in trials for why in trial.refused],
        "kept in doubt": doubted,
        "differing": differing,
        "left behind": remains.found(within=PATIENCE),
        "seconds": round(time.monotonic() - began, 1),
    }


def from_the_place(place: Place, trial: Trial, folder: Path) -> dict[str, Any]:
    """What a machine sees that has nothing of the run."""
    place.loses(trial.number)

    def look(tell: Callable[..., None]) -> None:
        os.environ.update(place.environment())
        with place.works(trial.number):
            tell(left(place.opens(trial.number, folder / f"look-{trial.number}")))

    return looked_at(look, folder / f"left-{trial.number}.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", choices=sorted(PLACES), nargs="+", default=sorted(PLACES))
    parser.add_argument("--kills", type=int, default=20, help="in each place")
    parser.add_argument("--seed", type=int, default=1, help="of the moments; when a kill hits is chance all the same")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    every: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = prepared(Path(folder))
        for name in words.place:
            told = every[name] = campaign(name, words.kills, words.seed, Path(folder, name), known)
            if not words.json:
                print(f"{name}, which has to end with {known.wanted['sha256']}")
                print("\n".join(f"{word:>13}: {value}" for word, value in told.items()), flush=True)
    if words.json:
        print(json.dumps(every))
    return any(told["differing"] or told["refused"] or told["left behind"] for told in every.values())


if __name__ == "__main__":
    sys.exit(main())
