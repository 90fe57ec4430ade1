"""More than one at a time: two processes on a run, two runs in a process, a run in a thread, workers of the dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import colabkeep
from colabkeep.core.errors import RunBusy
from tests.trainings.torch import hard_training

Whole = Callable[..., dict[str, str]]


def children_of(pid: int) -> set[int]:
    """The live children of a process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if int(parent) == pid and state != "Z":
            found.add(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_second_process_is_told_who_trains_the_run_and_the_dead_block_nobody(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole
) -> None:
    """While one lives, the other is refused by name; killed, it is out of the way at once, its workers too."""
    with kit.Child(tmp_path, workers=2) as child:
        child.reach(4)
        os.kill(child.pid, signal.SIGSTOP)  # else it may be done with it before the other one asks
        before = kit.contents(tmp_path)
        with pytest.raises(RunBusy, match=str(child.pid)) as caught:
            kit.fit(tmp_path)
        assert isinstance(caught.value, BlockingIOError)
        assert "run_name" in caught.value.remedy
        assert kit.contents(tmp_path) == before
        workers = children_of(child.pid)
        assert len(workers) == 2
        os.kill(child.pid, signal.SIGKILL)
        child.process.wait()
        result = kit.fit(tmp_path)  # at once
        patience = time.monotonic() + 4  # torch's own watchdog would need 5 seconds
        while any(alive(pid) for pid in workers) and time.monotonic() < patience:
            time.sleep(0.02)
        assert not [pid for pid in workers if alive(pid)]
    assert result.stopped == "finished"
    assert kit.state(tmp_path, "r") == whole()


def test_the_same_run_cannot_be_opened_twice_in_a_process(tmp_path: Path, kit: SimpleNamespace) -> None:
    """A second `Run` of the same name is refused while the first is open, and welcome afterwards."""
    words = hard_training(epochs=1)
    with colabkeep.Run("r", model=words["model"], storage=tmp_path, progress=False):
        with pytest.raises(RunBusy):
            kit.fit(tmp_path, max_steps=1)
        kit.fit(tmp_path, run_name="another", max_steps=1)
    with colabkeep.Run("r", model=words["model"], storage=tmp_path, progress=False) as again:
        assert again.resumed_from is None


def test_two_runs_in_one_process_do_not_disturb_each_other(tmp_path: Path, kit: SimpleNamespace, whole: Whole) -> None:
    """Two trainings in one notebook, step by step in turn: each ends as if it had been alone."""
    one, other = hard_training(epochs=2), hard_training(epochs=2)

    def stepper(name: str, words: dict[str, object]) -> object:
        model, optimizer = words["model"].eval(), words["optimizer"]  # no dropout: the global stream is shared
        with colabkeep.Run(name, model=model, optimizer=optimizer, storage=tmp_path, progress=False) as run:
            for _ in run.epochs(2):
                for features, target in run.batches(words["train_loader"]):
                    optimizer.zero_grad()
                    words["loss_fn"](model(features), target).backward()
                    optimizer.step()
                    run.step()
                    yield

    steppers = [stepper("one", one), stepper("other", other)]
    while steppers:
        for active in tuple(steppers):
            if next(active, "end") == "end":
                steppers.remove(active)
    alone = hard_training(epochs=2)
    list(stepper("alone", alone))
    states = [kit.state(tmp_path, name) for name in ("one", "other", "alone")]
    models = [{path: value for path, value in state.items() if path.startswith(("model", "opt"))} for state in states]
    assert models[0] == models[1] == models[2]


def test_a_run_in_a_thread_works(tmp_path: Path, kit: SimpleNamespace, whole: Whole) -> None:
    """Where Python allows no signal handlers, everything else is as always."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    results = []
    for end in (9, 33):
        thread = threading.Thread(target=lambda end=end: results.append(kit.fit(tmp_path, max_steps=end)))
        thread.start()
        thread.join()
    kit.fit(tmp_path)
    assert [result.steps for result in results] == [9, 33]
    assert kit.state(tmp_path, "r") == whole()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
