"""A run that was entered by hand and never closed: its program ends, or the next one of its name begins."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.checkpoint.inspect import checkpoints, find_run
from colabkeep.core.errors import RunBusy, UsageError
from colabkeep.core.events import Event, Noted, RunStopped
from colabkeep.stores.local import DirectoryStore
from tests.programs import run

CELL = """
import os, sys, torch
import colabkeep

model = torch.nn.Linear(2000, 2000)  # 16 MB: the save is still being written when the program ends
run = colabkeep.Run("r", model=model, storage=sys.argv[1], save_every="2 steps", progress="text")
run.__enter__()
for epoch in run.epochs(1):
    for batch in run.batches([1, 2, 3]):
        run.step(loss=0.5)
"""


def ended(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    package = str(Path(colabkeep.__file__).parents[1])
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    return run(code, folder / "runs", strict=True, environ=environ)


@pytest.mark.parametrize("end", ["", "\nsys.exit(3)", "\nraise KeyError('of mine')"])
def test_a_save_in_flight_is_finished_when_the_program_ends(tmp_path: Path, end: str) -> None:
    """However it ends; what is not saved is said, with the line to write, and the next one goes on without waiting."""
    done = ended(tmp_path, CELL + end)
    assert done.returncode == {"": 0, "\nsys.exit(3)": 3}.get(end, 1), done.stderr
    (saved,) = checkpoints(find_run(DirectoryStore(tmp_path / "runs"), "r"))
    assert (saved.step, saved.state) == (2, "committed")
    assert "what was trained after step 2 is not saved" in done.stdout
    assert "with colabkeep.Run(…) as run:" in done.stdout
    assert "finished" not in done.stdout
    assert "Exception ignored" not in done.stderr


def test_a_run_is_not_heard_of_when_python_takes_our_modules_apart_before_it(tmp_path: Path) -> None:
    """Which of the two Python does first depends on what else was imported."""
    taken_apart = """
import atexit, sys
atexit.register(lambda: vars(sys.modules["colabkeep.session.run"]).clear())
"""
    done = ended(tmp_path, taken_apart + CELL)
    assert done.returncode == 0, done.stderr
    assert "finished at step" not in done.stdout
    assert "never closed" in done.stdout
    assert done.stderr == ""


def test_a_child_leaves_its_parents_run_alone(tmp_path: Path) -> None:
    """Whoever forks and ends has not got the run, and writes nothing of it."""
    done = ended(
        tmp_path,
        CELL
        + """
if os.fork() == 0:
    sys.exit(0)  # with all that is done at exit
os.wait()
run.save(wait=True)
run.close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished at step 3") == 1
    assert "never closed" not in done.stdout


def opened(folder: Path, **words: Any) -> colabkeep.Run:
    run = colabkeep.Run("r", model=torch.nn.Linear(2, 2), storage=folder, progress=False, **words)
    return run.__enter__()


def test_a_run_whose_name_was_given_to_the_next_one_is_ended(tmp_path: Path) -> None:
    """The cell is run again: the run that nobody can reach is ended, what it saved is kept, and training goes on."""
    told: list[Event] = []
    run = opened(tmp_path, callbacks=[told.append])
    for _ in run.epochs(1):
        for position, _ in enumerate(run.batches([1, 2, 3])):
            run.step()
            if position == 1:
                run.save()
        run.tell(Noted(text="the end"))
    before = weakref.ref(run)
    run = colabkeep.Run("r", model=torch.nn.Linear(2, 2), storage=tmp_path, progress=False)
    run.__enter__()
    assert run.resumed_from is not None
    assert run.resumed_from.progress.step == 2
    assert [event.reason for event in told if isinstance(event, RunStopped)] == ["left"]
    assert any("after step 2 is not saved" in event.text for event in told if isinstance(event, Noted))
    run.close()
    del run
    gc.collect()
    assert before() is None or before().stopped == "left"


def test_a_run_that_a_variable_holds_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second writer, and no riddle: which variable it is, how far it is, and the line that closes it."""
    first = opened(tmp_path)
    first.step()
    with pytest.raises(RunBusy, match="an object of this program holds it, at step 1"):
        opened(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "earlier", first, raising=False)
    with pytest.raises(RunBusy, match="the variable 'earlier' holds it") as caught:
        opened(tmp_path)
    assert "earlier.close()" in caught.value.remedy
    first.close()
    first.close()
    second = opened(tmp_path)
    assert second.progress.step == 1
    second.close()


def test_a_run_inside_itself_is_refused(tmp_path: Path) -> None:
    """A function that opens the run that its caller is in does not end it."""
    with colabkeep.Run("r", model=torch.nn.Linear(2, 2), storage=tmp_path, progress=False) as outer:
        with pytest.raises(RunBusy, match="this very process"):
            opened(tmp_path)
        with pytest.raises(UsageError, match="has begun already"):
            outer.__enter__()
        assert outer.stopped is None
        outer.save(wait=True)


def test_a_run_that_ended_is_held_by_nobody(tmp_path: Path) -> None:
    """Neither by what is done at exit, nor by itself: its model's memory is free for the next one."""
    run = opened(tmp_path)
    run.close()
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_a_run_that_could_not_begin_is_nobodys_worry(tmp_path: Path) -> None:
    """One that was refused, or never entered, vanishes without a word."""
    with pytest.raises(UsageError):
        colabkeep.Run("r", model=torch.nn.Linear(2, 2), storage=tmp_path, resume=True)
    colabkeep.Run("r", model=torch.nn.Linear(2, 2), storage=tmp_path, progress=False).close()
    gc.collect()
    opened(tmp_path).close()
