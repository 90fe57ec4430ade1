"""Half a day with the default settings, faster than it goes by, into a service that counts: it never has to refuse.

    python -m tests.long.budgets [--place hub|drive|mount|s3|kaggle|aistudio] [--hours 12] [--save-every auto] [--json]

Run it from the repository; twelve hours take some minutes. The run, its cadence, its uploads and the client library are
the real ones; the service is the fake one with the limits of a free account (`tests.fakes.hub`), or its requests and
bytes are counted and held against what is published: by Google for Drive (`colabkeep.core.rate_limits`), by AWS for
S3. Kaggle and AI Studio publish no limit: what they are asked for is told, and what is at risk is checked. Time is a
clock that is moved by ten seconds for each step of training; what the link needs takes no time of that clock.

Checked at every step: the service has refused nothing for having been asked too often, and what it holds is no more
than five minutes behind the training; Kaggle, which takes whole versions only, no more than half an hour and a save.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import boto3
import numpy as np

from colabkeep.core.rate_limits import DRIVE, KAGGLE_VERSION_SECONDS, Limit
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.stores.base import Store, rest
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.fsspec import store as anywhere
from colabkeep.stores.fsspec.store import FsspecStore
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.stores.hub import aistudio as studio
from colabkeep.stores.hub import huggingface
from colabkeep.stores.hub.store import HubStore
from colabkeep.stores.kaggle import KaggleStore
from colabkeep.stores.kaggle.service import Pace
from colabkeep.stores.kaggle.service import Service as KaggleService
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.retry import Patience
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from tests.fakes.aistudio.service import TOKEN as STUDIO_TOKEN
from tests.fakes.aistudio.service import USER, running_aistudio
from tests.fakes.drive import running_drive
from tests.fakes.hub import TOKEN, running_hub
from tests.fakes.kaggle.server import FakeKaggle
from tests.fakes.mounts import FakeMount
from tests.fakes.s3 import running_s3

STEP = 10.0  # seconds of training
RISK = 300.0  # seconds that may be trained and not yet be there
RISKS = {"kaggle": KAGGLE_VERSION_SECONDS + 120.0}  # where it is another: a version, and a save on either side of it
S3_WRITES = 3500  # in a second, for each prefix: docs.aws.amazon.com, "Optimizing Amazon S3 performance"
STUCK = 20.0  # seconds of real time until an upload that should run is given up


Opened: TypeAlias = tuple[Store, Callable[[], dict[str, int]], Callable[[], int]]
"""A store, what its service counts, and how often that was more than it gives."""


@dataclass
class Outcome:
    """What came of it; `wrong` should be empty. `most`: of each thing that is counted, the most in one span."""

    saves: int = 0
    risk: float = 0.0
    most: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Weights:
    """A model."""

    def __init__(self) -> None:
        self.values = np.zeros(5000, np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values[:] = state["values"]


@contextmanager
def hub(clock: FakeClock) -> Iterator[Opened]:
    """A store in a repository on the Hub; what the Hub counts; how often it has refused."""
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_XET = True  # there is no such service here
    with running_hub(commits_per_hour=128, requests_per_window=1000, now=clock.monotonic) as fake:
        url, patience = "hf://ada/run", Patience(first=0.0, longest=0.0)
        door = huggingface.open_url(url, token=TOKEN, endpoint=fake.url, patience=patience)
        assert isinstance(door, HubStore)
        store = HubStore(door._hub, url, monotonic=clock.monotonic)

        def counted() -> dict[str, int]:
            return {"commits": busiest(fake.commit_times, 3600.0), "requests": max(fake.windows.values(), default=0)}

        yield store, counted, lambda: fake.refused
        store.close()


@contextmanager
def drive(clock: FakeClock) -> Iterator[Opened]:
    """A store on Drive, whose log is read and held against the limits."""
    with tempfile.TemporaryDirectory() as folder, running_drive(Path(folder)) as fake:
        credentials, seen, began = fake.credentials(), Counter[int](), clock.monotonic()
        account = Account(lambda: SignedIn(credentials=credentials))
        store = DriveStore(read_place(f"drive://runs?service={fake.url}"), account, clock=clock)
        known, sent = [0], [0]
        limits: dict[str, Limit] = {limit.what: limit for limit in DRIVE.limits}

        def counted() -> dict[str, int]:
            every = fake.requests()
            seen[int((clock.monotonic() - began) // limits["requests"].seconds)] += len(every) - known[0]
            sent[0] += sum(one.received for one in every[known[0] :])
            known[0] = len(every)
            return {"requests": max(seen.values(), default=0), "bytes": sent[0]}

        def refused() -> int:
            return sum(amount > limits[what].most for what, amount in counted().items())

        yield store, counted, refused
        store.close()


@contextmanager
def mount(clock: FakeClock) -> Iterator[Opened]:
    """A store on a mounted Drive, where DriveFS works all the time; what is written is held against a day's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeMount(Path(folder))
        limits = {limit.what: limit for limit in DRIVE.limits}

        def counted() -> dict[str, int]:
            return {"bytes": fake.uploaded_bytes}

        with fake.syncing():
            store = MountedStore(fake.root / "colabkeep", files=fake.files, clock=clock)
            yield store, counted, lambda: int(counted()["bytes"] > limits["bytes"].most)
            store.close()


@contextmanager
def s3(clock: FakeClock) -> Iterator[Opened]:
    """A store in a bucket. `requests`: the most between two steps, all of them at one prefix and in one second."""
    with running_s3() as door, tempfile.TemporaryDirectory() as folder:
        none = str(Path(folder, "none"))
        os.environ |= {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_ENDPOINT_URL": door.url}
        os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none}
        os.environ["AWS_ALLOW_HTTP"] = "true"
        with closing(boto3.client("s3")) as client:
            client.create_bucket(Bucket="checkpoints")
        found = anywhere.open_url("s3://checkpoints/night")
        assert found is not None
        store = FsspecStore(found.url, found._kind, found._reach, monotonic=clock.monotonic)
        steps = Counter[float]()

        def counted() -> dict[str, int]:
            steps[clock.monotonic()] += len(door.log)
            door.log.clear()
            return {"requests": max(steps.values())}

        yield store, counted, lambda: int(counted()["requests"] > S3_WRITES)
        store.close()


@contextmanager
def kaggle(clock: FakeClock) -> Iterator[Opened]:
    """A store in a dataset, with the times of the real one, as far as they are the run's and not Kaggle's."""
    pace = Pace(retry=0.05, poll=0.01)
    with FakeKaggle() as fake, tempfile.TemporaryDirectory() as folder:
        words = {"command": fake.command, "environ": fake.environ(Path(folder))}
        service = KaggleService("ada/checkpoints", Path(folder), pace, **words)
        store = KaggleStore(service, Path(folder), monotonic=clock.monotonic)

        def counted() -> dict[str, int]:
            versions = fake.state.datasets.get("ada/checkpoints", [])
            sent = sum(len(data) for version in versions for data in version.files.values())
            return {"versions": len(versions), "requests": len(fake.calls), "bytes": sent}

        yield store, counted, lambda: sum(refusal.startswith("Create") for refusal in fake.state.refusals)
        store.close()


@contextmanager
def aistudio(clock: FakeClock) -> Iterator[Opened]:
    """A store in a repository on AI Studio's hub."""
    with running_aistudio() as fake:
        found = studio.open_url(f"aistudio://{USER}/night", token=STUDIO_TOKEN, endpoint=fake.url)
        store = HubStore(found._hub, found.url, monotonic=clock.monotonic)

        def counted() -> dict[str, int]:
            return {"commits": sum(repo.commits for repo in fake.repos.values()), "requests": len(fake.log)}

        yield store, counted, lambda: 0
        store.close()


PLACES = {"aistudio": aistudio, "drive": drive, "hub": hub, "kaggle": kaggle, "mount": mount, "s3": s3}


def busiest(times: list[float], span: float) -> int:
    """The most of these that lie within one span of so many seconds."""
    return max((sum(start <= at < start + span for at in times) for start in times), default=0)


def settle(run: Run, store: Store) -> None:
    """Let saving, uploading and confirming go on, which take no time of the clock, until they are done, or the upload
    rests of its own accord."""
    saver, end = run._saver, time.monotonic() + STUCK
    saver._writer._pause = 0.002  # between two looks at what has arrived: a second, in which ten minutes go by here
    while saver.busy or saver.ledger.waiting:
        if not saver.busy and _rests(store):
            return
        if time.monotonic() > end:
            raise TimeoutError(f"still on its way: {store.degraded}")
        time.sleep(0.001)


def _rests(store: Store) -> bool:
    if isinstance(store, TieredStore):
        return bool(store._uploader.pending()) and rest(store.behind, urgent=False) > 0.0
    assert isinstance(store, KaggleStore)
    publisher = store._publisher
    with publisher._state:
        publisher._state.notify_all()  # it waits by the real clock, and looks at the other one when it wakes
        return publisher._urgent > publisher._done and (publisher._due or 0.0) > publisher._monotonic()


def arrived(store: Store) -> set[str]:
    """The names of what the service has."""
    if isinstance(store, TieredStore):
        return set(store._index._arrived)
    assert isinstance(store, KaggleStore)
    return {name for name, _ in store._dataset.confirmed}


def campaign(place: str, hours: float, save_every: str = "auto") -> Outcome:
    """Train for so long; what came of it."""
    clock, outcome = FakeClock(), Outcome()
    with PLACES[place](clock) as (behind, counted, refused), tempfile.TemporaryDirectory() as folder:
        store: Store = behind
        if place != "kaggle":  # that one keeps everything on this machine by itself
            store = TieredStore(DirectoryStore(folder), behind, pauses=(0.001, 0.01), monotonic=clock.monotonic)
        weights = Weights()
        spec = wire_run(
            RunArguments(run_name="night", objects={"model": weights}, storage=store, save_every=save_every)
        )
        spec = replace(spec, clock=clock)
        with Run(spec) as run:
            there, names = 0, set[str]()  # the newest step that the service has
            for step in run.steps(int(hours * 3600 / STEP)):
                weights.values += 1.0
                clock.advance(STEP)
                run.step(loss=1.0 / (step + 1))
                try:
                    settle(run, store)
                except TimeoutError as error:
                    outcome.wrong.append(str(error))
                    break
                names |= {name for name in arrived(store) if "/checkpoints/" in name}
                there = max([there, *(int(name.rpartition("/")[2][:12]) for name in names)])
                outcome.saves = len(names)
                outcome.risk = max(outcome.risk, (step + 1 - there) * STEP)
                if step % 30 == 0:
                    outcome.most = counted()
        outcome.most = counted()
        if refused():
            outcome.wrong.append(f"refused {refused()} times")
        if outcome.risk > RISKS.get(place, RISK):
            outcome.wrong.append(f"{outcome.risk:.0f} s were at risk")
        store.close()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", choices=sorted(PLACES), default="hub")
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--save-every", default="auto")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    told = vars(campaign(words.place, words.hours, words.save_every))
    print(json.dumps(told) if words.json else "\n".join(f"{name:>8}: {value}" for name, value in told.items()))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
