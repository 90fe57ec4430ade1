"""Programs that train on a CUDA device, each life of one in a process of its own, where it can be killed.

A process is a fork of one that has imported torch and used no device: an import takes longer than such a training.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import colabkeep
from colabkeep.core.events import Restored, RestoredInexactly, SaveCommitted, SaveFailing, SaveStarted
from tests.environments import TESTS
from tests.simcuda import device
from tests.simcuda.pieces import cut_small

__all__ = ["KILLED", "Life", "Report", "forkserver", "live"]

KILLED = -signal.SIGKILL
_PATIENCE = 120  # seconds


@dataclass
class Report:
    """What a life left behind: the bits at its end, if it came to one."""

    status: int = 0
    digest: str = ""
    restored: list[int] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)
    error: str = ""
    notes: dict[str, Any] = field(default_factory=dict)


class Life:
    """What a program is given: where its run lies, and what befalls it. `end`: "killed", "interrupted" or "lost" (the
    device), at a save that begins when an earlier one was committed; "forked" (and the child ended), at each save."""

    def __init__(self, folder: Path, end: str) -> None:
        self._end, self.folder, self.report = end, folder, Report()

    def run(self, **words: Any) -> colabkeep.Run:
        """The program's run."""
        return colabkeep.Run("program", **{**self.words, **words})

    @property
    def words(self) -> dict[str, Any]:
        """Arguments of `Run` and `resumable_fit`."""
        return {
            "storage": self.folder / "store",
            "save_every": "3 steps",
            "progress": False,
            "callbacks": (self.hear,),
        }

    def hear(self, event: object) -> None:
        """Events of the run."""
        if isinstance(event, Restored):
            self.report.restored.append(event.progress.step)
        elif isinstance(event, RestoredInexactly):
            self.report.inexact.append(event.reason)
        elif isinstance(event, SaveFailing):
            self.report.failing.append(str(event))
        elif isinstance(event, SaveCommitted):
            self.report.committed.append(event.progress.step)
        elif isinstance(event, SaveStarted):
            if self._end == "forked":
                _fork()
            elif self.report.committed:
                self._befall()

    def _befall(self) -> None:
        end, self._end = self._end, ""
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif end == "interrupted":
            signal.raise_signal(signal.SIGINT)
        elif end == "lost":
            device.running().lose()

    def ended(self, **objects: Any) -> None:
        """All the state that the program has at its end, and the devices' random streams."""
        state = {name: one if isinstance(one, dict) else one.state_dict() for name, one in objects.items()}
        streams = [torch.cuda.get_rng_state(index) for index in range(torch.cuda.device_count())]
        digest = hashlib.sha256()
        _mix(digest.update, [state, streams])
        self.report.digest = digest.hexdigest()

    def write(self) -> None:
        """The report, for the test."""
        (self.folder / "report.json").write_text(json.dumps(asdict(self.report)))


def forkserver() -> Any:
    """Makes processes that have imported what takes long."""
    if str(TESTS.parent) not in sys.path:
        sys.path.append(str(TESTS.parent))  # last: what is installed comes first
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "tests.simcuda.programs"])
    return context


def live(program: Callable[[Life], None], folder: Path, end: str = "") -> Report:
    """One life of a program."""
    folder.mkdir(exist_ok=True)
    (folder / "report.json").unlink(missing_ok=True)
    here = device.running()
    process = forkserver().Process(target=_lived, args=(program, folder, end, here.schedule if here else None))
    process.start()
    process.join(_PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"{program.__name__} hangs")
    written = folder / "report.json"
    report = Report(**json.loads(written.read_text())) if written.exists() else Report()
    report.status = process.exitcode
    process.close()
    return report


def _lived(program: Callable[[Life], None], folder: Path, end: str, schedule: str | None) -> None:
    gc.freeze()  # what was there before; each session looks through all that the collector knows
    if schedule is not None:
        device.start(schedule)
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # a real card's, which torch asks for
    torch.use_deterministic_algorithms(True)
    cut_small()
    life = Life(folder, end)
    try:
        program(life)
    except BaseException as error:
        life.report.error = f"{type(error).__name__}: {error}"
        life.write()
        raise
    life.write()


def _fork() -> None:
    child = os.fork()
    if child == 0:
        gc.collect()
        sys.exit(0)  # as a child does that knows nothing of the run: on its way out it passes the run's own block
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise AssertionError("the child failed")


def _mix(into: Callable[[bytes], object], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        into(f"{value.dtype}{tuple(value.shape)}".encode())
        into(
            value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
            if value.dim()
            else str(value.item()).encode()
        )
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            into(str(key).encode())
            _mix(into, value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            _mix(into, one)
    else:
        into(repr(value).encode())
