"""The places where runs are kept, each with its service in another process, where things go wrong all the time.

`python -m tests.long.places s3` is the service alone: it prints its address, lets a request fail every now and then,
and listens: at the line "quiet" nothing fails any more, at the end of its input it ends.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from colabkeep.core.system import SystemClock
from colabkeep.stores.base import Store
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.retry import Patience
from colabkeep.testing.faults import FaultyStore
from tests.fakes.mounts import FakeMount
from tests.long.running import with_modules

__all__ = ["PLACES", "Place", "opened"]

PAUSE = 0.25  # seconds at most until the next request fails
RUN_PATIENCE = Patience(first=0.01, longest=0.1)


class Place:
    """A place, for one run at a time: `opens` gives the store behind, for a machine whose disk is `disk`."""

    modules: tuple[str, ...] = ()
    """What its store imports on the way, so that forked sessions need not."""
    gathers = False
    """Does its store keep everything on the disk by itself? Else the disk is a store in front of it."""
    tears = False
    """May what a lost machine had half uploaded be seen there?"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self) -> dict[str, str]:
        """Variables of a session, in place of a notebook's secrets."""
        return {}

    def opens(self, run: int, disk: Path) -> Store:
        raise NotImplementedError

    def works(self, run: int) -> AbstractContextManager[object]:
        """Something that works for the place on the machine as long as a session lives."""
        return nullcontext()

    def loses(self, run: int) -> None:
        """The machine is gone; nothing `works` on it any more."""

    def misused(self) -> list[str]:
        """What no store should do there, as this session saw it."""
        return []

    def quiet(self) -> None:
        """Nothing goes wrong any more."""


def opened(place: Place, run: int, disk: Path, at: Callable[[str], None] = lambda _: None) -> Store:
    """The whole store of a machine; `at` is told what is done behind."""
    from colabkeep.stores.tiered import TieredStore

    behind = FaultyStore(place.opens(run, disk), at=at)
    return behind if place.gathers else TieredStore(DirectoryStore(disk / "front"), behind, pauses=(0.02, 0.2))


class Served(Place):
    """A place whose service is a process of its own, started at the first use of `address`."""

    service = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.long.places", self.service],
            env=with_modules(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            self.close()
            raise RuntimeError(f"the service {self.service!r} did not start: see above")

    def quiet(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("quiet\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == "quiet"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.communicate(timeout=30)


class S3(Served):
    service = "s3"
    modules = ("obstore", "colabkeep.stores.fsspec.objects")

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "an-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_ENDPOINT_URL": self.address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(self.folder / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "none"),
        }

    def opens(self, run: int, disk: Path) -> Store:
        from colabkeep.stores.fsspec import store as opening

        store = opening.open_url(f"s3://checkpoints/run-{run}", patience=RUN_PATIENCE)
        assert store is not None
        return store


class HuggingFace(Served):
    service = "hub"
    modules = ("huggingface_hub.hf_api", "colabkeep.stores.hub.huggingface", "httpx")

    def environment(self) -> dict[str, str]:
        return {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(self.folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def opens(self, run: int, disk: Path) -> Store:
        import time

        from huggingface_hub import constants
        from huggingface_hub.utils import _http

        from colabkeep.stores.hub import huggingface
        from tests.fakes.hub import TOKEN

        constants.HF_HUB_DISABLE_XET = True  # there is no such service here
        constants.HF_TOKEN_PATH = "/nonexistent/token"
        if detecting := find_spec("huggingface_hub.utils._detect_agent"):  # it asks huggingface.co itself, once a day
            import_module(detecting.name)._registry = {"standardEnvVars": [], "harnesses": {}}
        # Its waits between two attempts; it has no setting for them.
        _http.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(min(seconds, 0.05))})
        return huggingface.open_url(f"hf://ada/run-{run}", token=TOKEN, endpoint=self.address, patience=RUN_PATIENCE)


class Studio(Served):
    service = "aistudio"
    modules = ("colabkeep.stores.hub.aistudio", "requests")

    def opens(self, run: int, disk: Path) -> Store:
        from colabkeep.stores.hub import aistudio
        from tests.fakes.aistudio.service import TOKEN, USER

        url = f"aistudio://{USER}/run-{run}"
        return aistudio.open_url(url, token=TOKEN, endpoint=self.address, patience=RUN_PATIENCE)


class Kaggle(Served):
    service = "kaggle"
    modules = ("colabkeep.stores.kaggle.store",)
    gathers = True

    def opens(self, run: int, disk: Path) -> Store:
        from colabkeep.stores.kaggle.service import Pace, Service
        from colabkeep.stores.kaggle.store import KaggleStore
        from tests.fakes.kaggle.state import TOKEN

        disk.mkdir(parents=True, exist_ok=True)
        environ = {"HOME": str(disk), "PATH": "/usr/bin:/bin", "KAGGLE_API_TOKEN": TOKEN}
        child = Path(__file__).parents[1] / "fakes" / "kaggle" / "child.py"
        command = (sys.executable, str(child), self.address)
        pace = Pace(first=0.1, every=0.3, retry=0.05, appear=2.0, poll=0.01)
        service = Service(f"ada/checkpoints-{run}", disk / "kaggle", pace, command=command, environ=environ)
        return KaggleStore(service, disk / "kaggle")


class Brisk(SystemClock):
    """Between two attempts nobody waits for long."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.05))


class Drive(Place):
    modules = ("colabkeep.stores.drive", "google.oauth2.credentials", "requests")

    def __init__(self, folder: Path) -> None:
        from tests.fakes.drive import html, lose_answer, refuse, reset_request, running_drive

        super().__init__(folder)
        self._running = running_drive(folder / "service", quota_bytes=None)
        (folder / "service" / "drive").mkdir(parents=True)
        self._drive = self._running.__enter__()
        self._credentials = self._drive.credentials()
        troubles = [refuse(503), lose_answer(), html(502), reset_request(500)]
        chances = [one.on(path="/drive/v3/", count=None, chance=0.02, seed=n) for n, one in enumerate(troubles)]
        self._drive.faults(*chances)

    def opens(self, run: int, disk: Path) -> Store:
        from colabkeep.stores.drive import DriveStore
        from colabkeep.stores.drive.files import read_place
        from colabkeep.stores.google.account import Account, SignedIn

        account = Account(lambda: SignedIn(credentials=self._credentials))
        place = read_place(f"drive://run-{run}?service={self._drive.url}")
        return DriveStore(place, account, journal=DirectoryStore(disk / "front"), clock=Brisk())

    def quiet(self) -> None:
        self._drive.faults()

    def close(self) -> None:
        self._running.__exit__(None, None, None)


class Mount(Place):
    """DriveFS works as long as a session lives, and some time after it."""

    tears = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mount: FakeMount | None = None
        self._fails = 0.002

    def opens(self, run: int, disk: Path) -> Store:
        from colabkeep.stores.colab_drive import MountedStore

        mount = self._here(run)
        mount.fails = self._fails
        return MountedStore(mount.root / "colabkeep", files=mount.files, pauses=(0.02, 0.05, 0.1))

    def works(self, run: int) -> AbstractContextManager[object]:
        return self._here(run).syncing()

    def loses(self, run: int) -> None:
        FakeMount(self._folder(run), seed=random.randrange(1000)).reclaim()
        self._mount = None  # the next machine's

    def misused(self) -> list[str]:
        return [] if self._mount is None else self._mount.misuse

    def quiet(self) -> None:
        self._fails = 0.0

    def close(self) -> None: ...

    def _here(self, run: int) -> FakeMount:
        if self._mount is None:  # a session has one
            self._mount = FakeMount(self._folder(run))
        return self._mount

    def _folder(self, run: int) -> Path:
        folder = self.folder / f"mount-{run}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


PLACES: dict[str, Callable[[Path], Any]] = {
    "aistudio": Studio,
    "drive": Drive,
    "hub": HuggingFace,
    "kaggle": Kaggle,
    "mount": Mount,
    "s3": S3,
}


@dataclass
class Service:
    """A fake service: `spoil` lets one of the next requests fail, in a way that the chance says; `heal` ends that."""

    address: str
    spoil: Callable[[random.Random], None]
    heal: Callable[[], None]


@contextmanager
def s3() -> Iterator[Service]:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    from tests.fakes.s3 import Wrong, running_s3

    with running_s3() as door:
        client = boto3.client(
            "s3", endpoint_url=door.url, region_name="us-east-1", config=Config(signature_version=UNSIGNED)
        )
        client.create_bucket(Bucket="checkpoints")
        client.close()
        wrongs = [
            ("PUT", "", "refuse", 503, "SlowDown"),
            ("PUT", "", "lost", 500, "InternalError"),
            ("HEAD", "", "refuse", 500, "InternalError"),
            ("GET", "list-type", "refuse", 503, "ServiceUnavailable"),
            ("GET", "run", "refuse", 500, "InternalError"),
            ("GET", "run", "cut", 200, ""),
            ("DELETE", "", "lost", 500, "InternalError"),
        ]

        def spoil(chance: random.Random) -> None:
            door.wrong = [Wrong(*chance.choice(wrongs))]

        def heal() -> None:
            door.wrong = []

        yield Service(door.url, spoil, heal)


@contextmanager
def hub() -> Iterator[Service]:
    from tests.fakes.hub import TROUBLES, Fault, running_hub

    with running_hub() as fake:
        yield Service(fake.url, *_weather(fake, Fault, TROUBLES))


@contextmanager
def aistudio() -> Iterator[Service]:
    from tests.fakes.aistudio.service import TROUBLES, Fault, running_aistudio

    with running_aistudio() as fake:
        yield Service(fake.url, *_weather(fake, Fault, TROUBLES))


def _weather(
    fake: Any, fault: Any, faults: tuple[tuple[str, str, str], ...]
) -> tuple[Callable[[random.Random], None], Callable[[], None]]:
    def spoil(chance: random.Random) -> None:
        fake.faults = [fault(*chance.choice(faults))]

    def heal() -> None:
        fake.faults = []

    return spoil, heal


@contextmanager
def kaggle() -> Iterator[Service]:
    from tests.fakes.kaggle.faults import Answer, Cut, Damaged, LostReply
    from tests.fakes.kaggle.server import FakeKaggle

    faults = [
        ("StartBlobUpload", Answer(503)),
        ("PUT", Cut(1000)),
        ("PUT", LostReply()),
        ("CreateDatasetVersion", LostReply()),
        ("CreateDatasetVersion", Answer(502)),
        ("GetDatasetStatus", Answer(500)),
        ("GetDataset", Answer(502)),
        ("GET", Cut(100)),
        ("GET", Damaged()),
    ]
    with FakeKaggle() as fake:

        def spoil(chance: random.Random) -> None:
            fake.faults.clear()
            fake.fault(*chance.choice(faults))

        yield Service(fake.address, spoil, fake.faults.clear)


SERVICES = {"aistudio": aistudio, "hub": hub, "kaggle": kaggle, "s3": s3}


def main() -> None:
    over, chance = threading.Event(), random.Random(1)
    with SERVICES[sys.argv[1]]() as service:

        def weather() -> None:
            while not over.wait(chance.uniform(0, PAUSE)):
                service.spoil(chance)

        thread = threading.Thread(target=weather, daemon=True)
        thread.start()
        print(service.address, flush=True)
        for _ in sys.stdin:
            over.set()
            thread.join()
            service.heal()
            print("quiet", flush=True)
        over.set()


if __name__ == "__main__":
    main()
