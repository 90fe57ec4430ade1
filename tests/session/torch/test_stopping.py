"""Whoever asks to stop is heard wherever the training is: in the last save, in a loader that hangs, beside others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.events import Event, Noted, RunStopped
from colabkeep.stores.base import Receipt, Source
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from tests import programs
from tests.trainings import final_state

LONG = 60.0  # seconds; a bound for what happens at once, so that a broken test ends

Whole = Callable[..., dict[str, str]]

# Arguments: the folder, the number of workers, the form of the loop. The data set's sample 40 is never read, as long as
# there is a file "hang" in the folder.
HANGS = """
import os, random, sys, time, numpy, torch
import colabkeep

def tell(word, number):  # whole lines, as a worker says something, too: `print` may write each word by itself
    os.write(1, f"{word} {number}\\n".encode())

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 40 and os.path.exists(sys.argv[1] + "/hang"):
            tell("hangs", os.getpid())
            time.sleep(3600)
        return torch.full((4,), i / 64.0)

torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)
numpy.random.seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=int(sys.argv[2]))
def train(features):
    optimizer.zero_grad()
    model(features).pow(2).mean().backward()
    optimizer.step()
    run.step()
    tell("step", run.progress.step)

with colabkeep.Run("r", model=model, optimizer=optimizer, storage=sys.argv[1], save_every=None, progress=False) as run:
    if sys.argv[3] == "epochs":
        for _ in run.epochs(2):
            for features in run.batches(loader):
                train(features)
    else:
        for _ in run.steps(32):
            train(run.next(loader))
print("next cell", flush=True)
"""


class Gated(DirectoryStore):
    """A disk on which the manifest of step `gated` waits: `reached` is set when it does, and `gate` lets it go on."""

    def __init__(self, folder: Path, gated: int) -> None:
        super().__init__(folder)
        self.gated = f"/checkpoints/{gated:012d}-"
        self.reached, self.gate = threading.Event(), threading.Event()

    def put(self, name: str, source: Source) -> Receipt:
        if self.gated in name:
            self.reached.set()
            assert self.gate.wait(LONG)
        return super().put(name, source)


class Late(DirectoryStore):
    """Storage behind a line on which manifests wait until `gate` lets them through."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()

    def put(self, name: str, source: Source) -> Receipt:
        if "/checkpoints/" in name:
            assert self.gate.wait(LONG)
        return super().put(name, source)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def handlers() -> Iterator[Callable[[], list[Any]]]:
    """What would be called for the signals now; at the end they are as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield lambda: [signal.getsignal(number) for number in before]
    for number, handler in before.items():
        signal.signal(number, handler)


class Meddler(threading.Thread):
    """Waits for something, and then sends signals to the training, each when the one before was answered."""

    def __init__(self, moment: Callable[[], bool], events: list[Event], *numbers: signal.Signals) -> None:
        super().__init__(name="meddler")
        self.moment, self.events, self.numbers = moment, events, numbers
        self.over = threading.Event()

    def run(self) -> None:
        end = time.monotonic() + LONG
        while not self.moment() and time.monotonic() < end:
            time.sleep(0.005)
        for number in self.numbers:
            heard = len(self.events)
            os.kill(os.getpid(), number)
            while len(self.events) == heard and time.monotonic() < end:
                time.sleep(0.005)
        self.over.set()


def saving_once(folder: Any, events: list[Event], **changes: Any) -> None:
    """An own loop of 8 steps that saves at the 5th, and at its end."""
    model = torch.nn.Linear(1, 1)
    words = {"storage": folder, "save_every": None, "progress": False, "callbacks": [events.append], **changes}
    with colabkeep.Run("r", model=model, **words) as run:
        for _ in run.epochs(1):
            for _batch in run.batches([torch.ones(1, 1)] * 8):
                run.step()
                if run.progress.step == 5:
                    run.save(wait=True)


def names_of(folder: Path) -> list[str]:
    return sorted(file.stem for file in (folder / "r" / "checkpoints").glob("0*.json"))


def said(events: list[Event], words: str) -> list[str]:
    return [event.text for event in events if isinstance(event, Noted) and words in event.text]


def stopped(events: list[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, RunStopped)]


@pytest.mark.parametrize(
    ("numbers", "raised"),
    [
        ([signal.SIGINT], KeyboardInterrupt),
        ([signal.SIGTERM], SystemExit),
        ([signal.SIGTERM, signal.SIGTERM], SystemExit),
    ],
    ids=["INT", "TERM", "TERM TERM"],
)
def test_a_stop_during_the_last_save_waits_for_it_and_is_honoured_then(
    tmp_path: Path, events: list[Event], numbers: list[signal.Signals], raised: type[BaseException]
) -> None:
    """The checkpoint is whole, the user was told how long that takes, and the next cell does not start."""
    store = Gated(tmp_path, 8)
    meddler = Meddler(store.reached.is_set, events, numbers[0])
    meddler.start()

    def open_the_gate() -> None:
        meddler.join()
        for number in numbers[1:]:
            os.kill(os.getpid(), number)
        store.gate.set()

    threading.Thread(target=open_the_gate).start()
    with pytest.raises(raised) as caught:
        saving_once(store, events)
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 143
    (answer,) = said(events, "last save is still being written (about ")
    assert ("then the last 3 step(s) are repeated" in answer) == (numbers == [signal.SIGINT])
    assert stopped(events) == ["finished"]
    assert names_of(tmp_path)[-1].startswith("000000000008-")


def test_a_second_ctrl_c_during_the_last_save_does_not_wait(
    tmp_path: Path, events: list[Event], kit: SimpleNamespace, whole: Whole
) -> None:
    """It ends at once, as it was told; the next session trains what was lost again, to the same bits, even if the save
    that was given up comes through after all."""
    store, others = Gated(tmp_path, 33), set(threading.enumerate())
    meddler = Meddler(store.reached.is_set, events, signal.SIGINT, signal.SIGINT)
    meddler.start()
    words = kit.cell(tmp_path, storage=store, callbacks=[events.append], save_every=None)
    try:
        with pytest.raises(KeyboardInterrupt):
            colabkeep.resumable_fit(**words)
        meddler.join()
        (answer,) = said(events, "A second request stops at once; then the last 33 step(s) are repeated")
        assert "it is the first one of this session" in answer
        assert stopped(events) == ["interrupt"]
        assert not names_of(tmp_path)
        kit.fit(tmp_path)
    finally:
        store.gate.set()
    for thread in set(threading.enumerate()) - others:
        if thread.name == "colabkeep-writer":
            thread.join(LONG)
    assert kit.state(tmp_path, "r") == whole()


@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_while_slower_storage_catches_up_is_told_what_that_means(
    tmp_path: Path, events: list[Event], times: int
) -> None:
    """Once: it is waited for. Twice: it is not, and what is saved here is complete, the end of the journal too."""
    behind = Late(tmp_path / "behind")
    store = TieredStore(DirectoryStore(tmp_path / "here"), behind)
    meddler = Meddler(lambda: bool(stopped(events)), events, *[signal.SIGINT] * times)
    meddler.start()

    def open_the_gate() -> None:
        meddler.join()
        behind.gate.set()

    if times == 1:
        threading.Thread(target=open_the_gate).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            saving_once(store, events, flush_timeout=LONG)
        (answer,) = said(events, "everything is saved on this machine")
        assert "more at most" in answer
        assert names_of(tmp_path / "here")[-1].startswith("000000000008-")
        assert bool(names_of(tmp_path / "behind")) == (times == 1)
    finally:
        behind.gate.set()
        meddler.join()
        store.close()
    journal = b"".join(file.read_bytes() for file in (tmp_path / "here" / "r" / "journal").iterdir())
    assert b'"event":"RunStopped"' in journal


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What that training ends with when nothing hangs, by the form of its loop."""

    def state(loop: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("piece")
        with Program(HANGS, folder, 0, loop) as program:
            assert program.end() == 0
        return final_state(folder, "r")

    return {loop: state(loop) for loop in ("epochs", "steps")}


@pytest.mark.parametrize(
    ("loop", "workers", "number", "status"),
    [
        ("epochs", 0, signal.SIGTERM, 143),
        ("epochs", 2, signal.SIGTERM, 143),
        ("epochs", 2, signal.SIGINT, -signal.SIGINT),
        ("steps", 0, signal.SIGTERM, 143),
    ],
)
def test_a_stop_while_a_loader_hangs_saves_the_last_step_at_once(
    tmp_path: Path,
    undisturbed: dict[str, dict[str, str]],
    loop: str,
    workers: int,
    number: signal.Signals,
    status: int,
) -> None:
    """Nobody waits for a batch that never comes; no worker stays; and the next session ends like one in one piece."""
    (tmp_path / "hang").touch()
    with Program(HANGS, tmp_path, workers, loop) as program:
        hung = program.until("hangs")
        while "step 10" not in program.lines:
            program.read()
        program.send_signal(number)
        assert program.end() == status
        assert "next cell" not in program.lines
    assert [name[:12] for name in names_of(tmp_path)] == ["000000000010"]
    assert not alive(int(hung.split()[1]))
    (tmp_path / "hang").unlink()
    with Program(HANGS, tmp_path, workers, loop) as program:
        assert program.end() == 0
    assert final_state(tmp_path, "r") == undisturbed[loop]


def test_a_stop_while_a_validation_hangs_is_obeyed_at_once(
    tmp_path: Path, events: list[Event], kit: SimpleNamespace
) -> None:
    """As with the training data: the last step is saved, and the process ends."""
    waits, gate = threading.Event(), threading.Event()

    class Endless(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            waits.set()
            while not gate.wait(0.01):
                pass
            return torch.zeros(8), (torch.zeros(8), index)

    words = kit.cell(tmp_path, callbacks=[events.append], save_every=None)
    words["val_loader"] = torch.utils.data.DataLoader(Endless(), 4)
    meddler = Meddler(waits.is_set, events, signal.SIGTERM)
    meddler.start()
    try:
        with pytest.raises(SystemExit):
            colabkeep.resumable_fit(**words)
    finally:
        gate.set()
        meddler.join()
    assert [name[:12] for name in names_of(tmp_path)] == ["000000000011"]
    assert stopped(events) == ["sigterm"]


def test_a_loader_that_moved_on_and_gave_nothing_is_read_again(tmp_path: Path) -> None:
    """A loader with a state of its own that fails in the middle of reading has counted a batch that nobody saw."""

    class Counting:
        def __init__(self) -> None:
            self.given = 0
            self.fails_at = -1

        def __iter__(self) -> Iterator[torch.Tensor]:
            while self.given < 8:
                self.given += 1
                if self.given == self.fails_at:
                    raise OSError("the disk of the data is away")
                yield torch.full((1, 1), float(self.given))
            self.given = 0

        def state_dict(self) -> dict[str, int]:
            return {"given": self.given}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.given = state["given"]

    def session(loader: Counting) -> list[float]:
        seen = []
        model = torch.nn.Linear(1, 1)
        with colabkeep.Run("r", model=model, storage=tmp_path, save_every=None, progress=False) as run:
            for _ in run.epochs(1):
                for batch in run.batches(loader):
                    seen.append(batch.item())
                    run.step()
        return seen

    broken = Counting()
    broken.fails_at = 5
    with pytest.raises(OSError, match="the disk of the data"):
        session(broken)
    assert session(Counting()) == [5.0, 6.0, 7.0, 8.0]


def open_run(folder: Path, name: str) -> colabkeep.Run:
    return colabkeep.Run(name, model=torch.nn.Linear(1, 1), storage=folder, save_every=None, progress=False)


def test_runs_closed_out_of_order_leave_no_dead_handler(tmp_path: Path, handlers: Callable[[], list[Any]]) -> None:
    """The one that is open still hears Ctrl-C, and behind both everything is as before."""
    before = handlers()
    first, second = open_run(tmp_path, "first"), open_run(tmp_path, "second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        second.poll()
    second.__exit__(None, None, None)
    assert handlers() == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_that_was_put_on_top_of_a_run_stays_there(tmp_path: Path, handlers: Callable[[], list[Any]]) -> None:
    """The user's own handler is not thrown away by the end of a run; and putting back what it found there is harmless,
    although that run is over."""
    before, heard = handlers(), list[int]()
    first, second = open_run(tmp_path, "first"), open_run(tmp_path, "second")
    first.__enter__()
    found = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, found)
    third = open_run(tmp_path, "third")
    third.__enter__()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        third.poll()
    third.__exit__(None, None, None)
    assert handlers() == before


def test_what_is_left_of_a_run_under_another_handler_passes_on_what_it_gets(
    tmp_path: Path, handlers: Callable[[], list[Any]]
) -> None:
    """A handler that calls the one it found reaches the one from before the run."""
    run, heard = open_run(tmp_path, "r"), list[str]()
    signal.signal(signal.SIGTERM, lambda *_: heard.append("first"))
    run.__enter__()
    found: Any = signal.getsignal(signal.SIGTERM)

    def mine(number: int, frame: Any) -> None:
        heard.append("mine")
        found(number, frame)

    signal.signal(signal.SIGTERM, mine)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["mine"]
    with pytest.raises(SystemExit):
        run.poll()
    run.__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["mine", "mine", "first"]


# What a training may fork. Argument: the folder.
FORKS = """
import multiprocessing, os, signal, sys, time, torch
import colabkeep

torch.set_num_threads(1)
fork = multiprocessing.get_context("fork")
model = torch.nn.Linear(1, 1)
with colabkeep.Run("r", model=model, storage=sys.argv[1], save_every=None, progress=False) as run:
    for _ in run.epochs(1):
        for features in run.batches([torch.ones(1, 1)] * 3):
            run.step()
        begun = fork.Event()
        # In pieces: a signal that comes just before Python enters a long sleep is heard of when that is over.
        child = fork.Process(target=lambda: (begun.set(), [time.sleep(0.1) for _ in range(36000)]))
        child.start()
        begun.wait(60)  # Python forgets the signals that come while it forks
        child.terminate()
        child.join(20)
        print("terminated", child.exitcode, flush=True)
        child.kill()
        child = os.fork()
        if child == 0:
            sys.exit(7)
        print("left", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        for features in [1, 2]:
            run.step()
print("saved", run.checkpoint, flush=True)
"""


def test_what_a_training_forks_ends_as_without_us(tmp_path: Path) -> None:
    """SIGTERM ends a child, as `Pool.terminate` expects; and a child that leaves through the run's block saves nothing,
    waits for nobody and lets go of nothing."""
    with Program(FORKS, tmp_path) as program:
        assert program.until("terminated") == f"terminated {-signal.SIGTERM}"
        assert program.until("left") == "left 7"
        assert program.until("saved").startswith("saved 000000000005-")
        assert program.end() == 0
    assert [name[:12] for name in names_of(tmp_path)] == ["000000000005"]


class Program(programs.Program):
    """Of whose output `lines` were read."""

    def __init__(self, code: str, *arguments: object) -> None:
        super().__init__(code, *arguments)
        self.lines: list[str] = []

    def read(self) -> str:
        line = self.stdout.readline()
        assert line, f"it ended behind {self.lines[-3:]}"
        self.lines.append(line.rstrip())
        return self.lines[-1]

    def until(self, start: str) -> str:
        """The first line that starts so."""
        while not (line := self.read()).startswith(start):
            pass
        return line

    def end(self) -> int:
        """Read what it says until it ends; its status."""
        out, _ = self.communicate(LONG)
        self.lines += out.splitlines()
        return self.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
