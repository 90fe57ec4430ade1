"""What is tried with which program, and how: two machines, with nothing in common but the storage."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import CheckpointError
from colabkeep.keep.tree import Patterns, scan
from colabkeep.keep.version import table_of
from colabkeep.stores.local import DirectoryStore

__all__ = ["CASES", "Case", "Outcome", "try_case"]

_HERE = Path(__file__).parent
_PATIENCE = 240.0  # seconds for each part of a trial


@dataclass(frozen=True)
class Case:
    """One trial: the program is killed while it works on `hold` (a step, a batch or a round, from 0), and the next
    machine has to begin with `back`. `exact`: does the program itself then come to the very same bits? `needs`: its
    package. `told`: what is special about it, for the table."""

    recipe: str
    needs: str
    hold: int
    back: int
    exact: bool
    told: str
    words: tuple[str, ...] = ()
    resume: str = "{--resume}"


_LATEST = "{--resume_from_checkpoint latest}"
CASES = {
    "gan": Case("gan", "torch", 17, 15, True, "in the middle of an epoch; the script stores its random state"),
    "gan-no-rng": Case(
        "gan", "torch", 17, 15, False, "in the middle of an epoch; the script stores no random state", ("--no-rng",)
    ),
    "trainer": Case(
        "trainer", "transformers", 13, 10, True, "in the middle of an epoch, with augmentation", ("--augment",)
    ),
    "lora": Case("lora", "peft", 20, 20, True, "at the end of an epoch", resume=_LATEST),
    "lora-middle": Case("lora", "peft", 18, 15, False, "in the middle of an epoch", resume=_LATEST),
    "lora-skip": Case(
        "lora", "peft", 18, 15, False, "in the middle of an epoch; what was seen is skipped", ("--skip",), _LATEST
    ),
    "keras": Case("keras_fit", "keras", 27, 24, True, "in the middle of an epoch, `shuffle=False`"),
    "keras-shuffle": Case(
        "keras_fit", "keras", 27, 24, False, "in the middle of an epoch, `shuffle=True` (the default)", ("--shuffle",)
    ),
    "lightning": Case("lightning_fit", "lightning", 15, 15, True, "at the end of an epoch"),
    "lightning-shuffle": Case(
        "lightning_fit", "lightning", 15, 15, False, "at the end of an epoch, `shuffle=True`", ("--shuffle",)
    ),
    "lightning-middle": Case("lightning_fit", "lightning", 14, 12, False, "in the middle of an epoch"),
    "xgboost": Case("boost_xgboost", "xgboost", 14, 13, True, "between two snapshots"),
    "xgboost-subsample": Case(
        "boost_xgboost", "xgboost", 14, 13, False, "between two snapshots, `subsample=0.5`", ("--subsample",)
    ),
    "lightgbm": Case("boost_lightgbm", "lightgbm", 14, 12, True, "between two snapshots"),
    "lightgbm-bagging": Case(
        "boost_lightgbm", "lightgbm", 14, 12, False, "between two snapshots, `bagging_fraction=0.5`", ("--bagging",)
    ),
    "paddle": Case("paddle_script", "paddle", 17, 15, True, "in the middle of an epoch"),
    "paddle-dropout": Case(
        "paddle_script", "paddle", 17, 15, False, "in the middle of an epoch, with dropout", ("--dropout",)
    ),
    "ultralytics": Case("yolo", "ultralytics", 5, 4, False, "in the middle of an epoch; `data=`, `project=` given"),
}


@dataclass(frozen=True)
class Outcome:
    """`before`: the last number that the killed program worked on; `after`: the first of the one that went on, which
    has to be the one after its checkpoint; `exact`: the same bits as without a kill."""

    before: int
    after: int
    exact: bool


def try_case(case: Case, home: Path) -> Outcome:
    """Run the program without a break, and once more with one."""
    storage = home / "storage"
    whole = Machine(home / "undisturbed", case)
    kept = ["-m", "colabkeep", "keep", "runs", "--run", "r", "--storage", storage, "--every", "1 s", "--settle", "1 s"]
    first = Machine(home / "first", case)
    killed = first.start(*kept, "--", sys.executable, *case_words(case), "--hold", str(case.hold), case.resume)
    end = time.monotonic() + _PATIENCE
    while not ("held\n" in first.said and holds(storage, first.work / "runs")):
        assert time.monotonic() < end, f"no version of what the program left:\n{first.said}"
        assert killed.poll() is None, f"the program ended before it could be killed:\n{first.said}"
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = numbers(first.said)
    shutil.rmtree(first.home)
    (whole.work / "runs").mkdir()
    undisturbed = whole.start(*case_words(case))
    second = Machine(home / "second" / "elsewhere", case)
    again = second.start(*kept, "--", sys.executable, *case_words(case), case.resume)
    for machine, process in ((whole, undisturbed), (second, again)):
        assert process.wait(_PATIENCE) == 0, machine.said
    assert max(numbers(second.said)) == max(numbers(whole.said))
    return Outcome(before[-1], numbers(second.said)[0], result(second.said) == result(whole.said))


def case_words(case: Case) -> list[str]:
    return [str(_HERE / f"{case.recipe}.py"), "runs", *case.words]


class Machine:
    """A home, a cache and a folder to work in, which no other machine has."""

    def __init__(self, home: Path, case: Case) -> None:
        self.home, self.work, self._heard = home, home / "work" / case.recipe, home / "heard"
        self.work.mkdir(parents=True)

    def start(self, *words: object) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        environ |= {"HOME": str(self.home), "OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
        with self._heard.open("w") as heard:
            return subprocess.Popen(
                [sys.executable, *map(str, words)],
                cwd=self.work,
                env=environ,
                stdout=heard,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._heard.read_text()


def holds(storage: Path, folder: Path) -> bool:
    """Is the newest version what is in the folder now?"""
    repository = Repository(DirectoryStore(storage), "r")
    try:
        ids = repository.ids()
        manifest = repository.manifest(max(ids)) if ids else None
        return manifest is not None and table_of(repository, manifest).entries == scan(str(folder), Patterns()).entries
    except (CheckpointError, OSError):  # it was pruned meanwhile
        return False


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"^at (\d+)$", text, re.MULTILINE)]


def result(text: str) -> str:
    (digest,) = re.findall(r"^done (\w+)$", text, re.MULTILINE)
    return str(digest)
