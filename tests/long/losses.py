"""Machines that vanish, stores that fail, saves without end: nothing that was called safe is ever missing.

    python -m tests.long.losses --saves 3000 [--seed 1] [--json]

Run it from the repository (a few minutes on two cores). One run is trained by one process after another. Each saves in
front to this machine's disk and behind to a drive that is like a mounted one: what it is given lies on this machine
until a daemon has uploaded it, which takes a while and comes out of order; only then does the drive state a digest.
Thirty in a hundred operations of the drive fail, before they did anything or after they did it all. Every process is
ended by a real SIGKILL at a random moment, many of them inside a save; then the machine is given to somebody else (its
disk is gone, and with it all that was not uploaded), or stays for the next one.

Checked after each life, by what it had said up to the moment it was killed:

* every checkpoint that was called confirmed, and that retention had not let go since, is there and whole, as the drive
  alone shows it;
* what a resume on a new machine finds is never older than the ledger's figure said;
* nobody else's file in the drive was touched;
* no life began before the newest of these: there is one run, and it never starts again from zero.

The processes are forked from this one, which has no other threads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.restore import Loaded, load_id, load_newest
from colabkeep.checkpoint.retention import KeepBest, KeepLast
from colabkeep.checkpoint.writer import Checkpointer, Committer, Identity
from colabkeep.core.errors import NameTaken, NoUsableCheckpoint, ObjectNotFound, StoreUnavailable
from colabkeep.core.events import Durability, DurabilityReached, Event, SaveCommitted
from colabkeep.core.manifest import Progress
from colabkeep.core.state import HostTensor
from colabkeep.core.system import SystemClock
from colabkeep.stores.base import BytesSource, Receipt, StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from tests.processes import Life, Message, Say

RUN = "losses"
FAILING = 0.3  # of the drive's operations
AT_THE_START = 0.03  # a start reads, in one go, all that a lost machine left half uploaded: else it may need a thousand
UPLOAD_SECONDS = 0.02  # longest time between two uploads: slower than the saves come
HICCUP = "The drive hiccups."
PATIENCE = 60.0  # seconds; a life that says nothing for this long is a bug
OTHERS = {"thesis/draft.txt": b"not ours", "losses2/blobs/x": b"another's", "photo.jpg": b"\xff\xd8\xff"}


class Drive:
    """A mounted drive: `cloud` is what the service has, `pending` what it will have once it is uploaded.

    A store on the promise of `colabkeep.stores.base`. `chance` decides which operations fail.
    """

    def __init__(self, cloud: Path, pending: Path, chance: random.Random | None = None) -> None:
        self._cloud = DirectoryStore(cloud)
        self._pending = DirectoryStore(pending)
        self._chance = chance
        self.failing = FAILING
        self._guard = threading.Lock()

    url = "drive"
    degraded = None
    properties = StoreProperties(top_level="confirmed", persists=True)

    def put(self, name: str, source: Any) -> Receipt:
        self._fail()
        with self._guard:
            for side in (self._cloud, self._pending):
                self._refuse_taken(side, name, source)
            receipt = self._pending.put(name, source)
        self._fail()
        return replace(receipt, level="sent")

    def get(self, name: str) -> Any:
        self._fail()
        with self._guard:
            try:
                return self._cloud.get(name)
            except ObjectNotFound:
                return self._pending.get(name)

    def list(self, prefix: str) -> Any:
        self._fail()
        with self._guard:
            found = {entry.name: entry for side in (self._pending, self._cloud) for entry in side.list(prefix)}
        return list(found.values())

    def delete(self, name: str) -> None:
        self._fail()
        with self._guard:
            for side in (self._pending, self._cloud):
                side.delete(name)
        self._fail()

    def confirm(self, receipt: Receipt) -> Receipt:
        self._fail()
        with self._guard:
            try:
                with self._cloud.get(receipt.name) as reader:
                    data = reader.read()
            except ObjectNotFound:
                return replace(receipt, level="sent")
        same = not receipt.sha256 or hashlib.sha256(data).hexdigest() == receipt.sha256
        return replace(receipt, level="confirmed" if same and len(data) == receipt.size else "unknown")

    def doubt(self, name: str) -> bool:
        return False

    def lock(self, name: str, holder: str) -> Any:
        return self._pending.lock(name, holder)

    def sweep(self, prefix: str) -> int:
        with self._guard:
            return self._pending.sweep(prefix) + self._cloud.sweep(prefix)

    def flush(self, timeout: float) -> bool:
        return False  # these lives never end in peace

    def close(self) -> None: ...

    def upload(self, chance: random.Random) -> None:
        """The service's daemon: sooner or later, one by one, in no order. It never ends."""
        while True:
            waiting = list(self._pending.list(""))
            if waiting:
                name = chance.choice(waiting).name
                with self._guard:
                    try:
                        with self._pending.get(name) as reader:
                            self._cloud.put(name, BytesSource(reader.read()))
                    except ObjectNotFound:
                        continue  # deleted before it was uploaded
                    except NameTaken:
                        pass  # uploaded, and killed before it could note that
                    self._pending.delete(name)
            time.sleep(chance.uniform(0, UPLOAD_SECONDS))

    def _fail(self) -> None:
        if self._chance is not None and self._chance.random() < self.failing / 2:  # twice in most operations
            raise StoreUnavailable(problem=HICCUP, remedy="Wait.")

    @staticmethod
    def _refuse_taken(side: DirectoryStore, name: str, source: Any) -> None:
        try:
            side.get(name).close()
        except ObjectNotFound:
            return
        side.put(name, source)  # raises NameTaken


class Trainer:
    """The engine's framework: its state is a function of the step."""

    def __init__(self) -> None:
        self.step = 0

    def capture(self, parts: Any) -> Any:
        return _Taken(state(self.step))


@dataclass
class _Taken:
    parts: dict[str, Any]
    remark: str = ""

    def finish(self) -> _Taken:
        return self

    def stored(self) -> None: ...

    def release(self) -> None: ...


def state(step: int) -> dict[str, Any]:
    """Two trained tensors and a frozen one that all checkpoints share."""
    frozen = struct.pack("<64f", *range(64))
    trained = hashlib.sha256(f"{step}".encode()).digest() * 16
    return {
        "model": {
            "backbone": HostTensor(dtype="U8", shape=(len(frozen),), data=memoryview(frozen), frozen=True),
            "head": HostTensor(dtype="U8", shape=(len(trained),), data=memoryview(trained)),
        },
        "notes": {"step": step},
    }


def train(folder: Path, keep_last: int, seed: int, say: Say) -> None:
    """One life: goes on where the run stands, and saves without end, as fast as the writer takes it."""
    chance = random.Random(seed)
    drive = Drive(folder / "cloud", folder / "machine/pending", random.Random(chance.random()))
    threading.Thread(target=drive.upload, args=(random.Random(chance.random()),), daemon=True).start()
    store = TieredStore(DirectoryStore(folder / "machine/disk"), drive, pauses=(0.0005, 0.004))
    drive.failing = AT_THE_START
    saver, trainer = begin(store, keep_last, say)
    drive.failing = FAILING
    while True:
        trainer.step += 1
        progress = Progress(step=trainer.step, seconds=saver.clock.monotonic() - saver.ledger.zero)
        saver.checkpointer.save({}, progress, "steps", {"loss": chance.random()})
        saver.checkpointer.wait()
        for _ in range(chance.choice((1, 1, 1, 4))):
            tell(saver, say)
            time.sleep(chance.uniform(0, 0.006))


@dataclass
class Saving:
    """What a life saves with."""

    checkpointer: Checkpointer
    events: deque[Event]
    clock: SystemClock

    @property
    def ledger(self) -> Any:
        return self.checkpointer.ledger


def begin(store: TieredStore, keep_last: int, say: Say) -> tuple[Saving, Trainer]:
    """Take the run and go on from the newest checkpoint; a drive that hiccups is asked again."""
    clock, events, trainer = SystemClock(), deque[Event](), Trainer()
    repository = Repository(store, RUN)
    session = f"{random.SystemRandom().randrange(16**8):08x}"
    patiently(lambda: take_up(repository))
    patiently(lambda: repository.open_run(clock.time(), session * 2))
    loaded = patiently(lambda: newest(repository))
    lease = patiently(lambda: take_lease(repository, session, {}))
    manifest = None if loaded is None else loaded.manifest
    identity = Identity(framework="numpy", fingerprint={}, began=manifest)
    retention = KeepLast(keep_last) + KeepBest(n=1, monitor="loss", mode="min")
    committer = Committer(lease, Journal(repository, session), retention, clock, identity, events.append)
    saver = Checkpointer(trainer.capture, committer, clock, events)
    saver._writer._pause = 0.002  # the chore's pace, made for seconds, in this hurried world
    if manifest is not None:
        committer.ledger.add(manifest, {})
        trainer.step = manifest.progress.step
    saver.begin(clock.monotonic() - (manifest.progress.seconds if manifest else 0.0))
    say("begun", session, trainer.step)
    return Saving(saver, events, clock), trainer


def newest(repository: Repository) -> Loaded | None:
    """The newest checkpoint; none where nothing of a lost machine had arrived whole and the user says resume="never".

    The campaign sees whether something was there after all.
    """
    try:
        return load_newest(repository, walked_past)
    except NoUsableCheckpoint:
        return None


def walked_past(id: str, why: str) -> None:
    """What a lost machine had not uploaded whole is rightly skipped. Where the drive only failed to answer, a user
    who reads that runs the cell again."""
    if HICCUP in why:
        raise StoreUnavailable(problem=f"skipped {id}: {why}", remedy="Run the cell again.")


def patiently(call: Any) -> Any:
    """Call it until the drive answers."""
    while True:
        try:
            return call()
        except StoreUnavailable:
            time.sleep(0.0005)


def tell(saving: Saving, say: Say) -> None:
    """What a user is told, as it is told; the figure last, so that it is the newest thing that was said."""
    while saving.events:
        event = saving.events.popleft()
        if isinstance(event, SaveCommitted):
            say("saved", event.checkpoint)
        elif isinstance(event, DurabilityReached) and event.level == "confirmed":
            say("confirmed", event.checkpoint)
    durability: Durability = saving.ledger.durability()
    say("figure", durability.step, durability.checkpoint, durability.level)


@dataclass
class Outcome:
    """What came of it; `wrong` should be empty."""

    seed: int
    saves: int = 0
    lives: int = 0
    lost_machines: int = 0
    confirmed: int = 0
    checked: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def one_life(folder: Path, chance: random.Random) -> list[Message]:
    """A life of a random length; what it said."""
    said: list[Message] = []
    keep_last, seed = chance.choice((1, 1, 2, 3)), chance.randrange(2**32)
    saves, rest = chance.randint(0, 30), chance.uniform(0, 0.02)
    with Life(lambda say: train(folder, keep_last, seed, say)) as life:
        for message in life.messages(within=PATIENCE):
            said.append(message)
            saves -= message[0] == "saved"
            if saves <= 0 and message[0] in ("saved", "figure", "begun"):
                break
        else:
            raise SystemExit(f"a life hung, or failed with status {life.status}, after {said[-3:]}")
        said += life.messages(within=rest)
        life.kill()
        said += life.messages(within=0)
    return said


def faults(folder: Path, said: list[Message], alive: set[str], outcome: Outcome) -> list[str]:
    """What is not as it was said, as the drive alone shows it. `alive` are the checkpoints that were called confirmed
    in this life or an earlier one, and that retention has not let go since."""
    repository = Repository(DirectoryStore(folder / "cloud"), RUN)
    wrong = [f"{name} was touched" for name, data in OTHERS.items() if (folder / "cloud" / name).read_bytes() != data]
    for id in sorted(alive):
        outcome.checked += 1
        wrong += [f"{id} was called confirmed: {why}" for why in unlike(lambda id=id: load_id(repository, id))]
    figures = [message for message in said if message[0] == "figure"]
    if figures and figures[-1][2] is not None:
        _, step, id, level = figures[-1]
        found = load_newest(repository, lambda id, why: None, marking=False)
        if found is None or found.manifest.progress.step < step:
            wrong.append(
                f"the figure said step {step} ({id}, {level}); a new machine finds {found and found.manifest.id}"
            )
    return wrong


def let_go(folder: Path) -> set[str]:
    """What any journal, in the cloud or on the machine, says was about to be pruned."""
    found: set[str] = set()
    for path in folder.rglob(f"{RUN}/journal/*.jsonl"):
        for line in path.read_bytes().splitlines():
            found |= set(json.loads(line).get("checkpoints", ()))
    return found


def unlike(load: Any) -> list[str]:
    """Why a checkpoint is not what was saved; empty if it is."""
    try:
        loaded: Loaded = load()
    except OSError as error:
        return [str(error)]
    wanted, found = state(loaded.manifest.progress.step), loaded.parts
    same = all(bytes(found["model"][name].data) == bytes(tensor.data) for name, tensor in wanted["model"].items())
    return [] if same and found["notes"] == wanted["notes"] else ["its bytes are others"]


def campaign(saves: int, seed: int, folder: Path) -> Outcome:
    """Live and die until so many checkpoints were saved."""
    began, chance, outcome = time.monotonic(), random.Random(seed), Outcome(seed=seed)
    for name, data in OTHERS.items():
        path = folder / "cloud" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    alive: set[str] = set()
    while outcome.saves < saves:
        said = one_life(folder, chance)
        outcome.lives += 1
        outcome.saves += sum(message[0] == "saved" for message in said)
        begun = next((message[2] for message in said if message[0] == "begun"), None)
        if alive and begun is not None and begun < max(int(id[:12]) for id in alive):
            outcome.wrong.append(
                f"life {outcome.lives} began at step {begun}, and {max(alive)} was there to go on from"
            )
        confirmed = {message[1] for message in said if message[0] == "confirmed"}
        outcome.confirmed += len(confirmed)
        alive = (alive | confirmed) - let_go(folder)  # by the machine's journal too, so before it is gone
        if chance.random() < 0.5:
            outcome.lost_machines += 1
            shutil.rmtree(folder / "machine")
        wrong = faults(folder, said, alive, outcome)
        outcome.wrong += [f"life {outcome.lives}: {what}" for what in wrong]
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=3000)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the moments; when a kill hits is chance all the same"
    )
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if words.seed is None else words.seed
    with tempfile.TemporaryDirectory(prefix="colabkeep-losses-") as folder:
        outcome = campaign(words.saves, seed, Path(folder))
    told = vars(outcome)
    if words.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:>14}: {value}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
