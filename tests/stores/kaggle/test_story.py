"""A night on Kaggle: a run trains with its dataset behind, the machine vanishes, and another one goes on from that."""

from __future__ import annotations

import os
import signal

import torch

from colabkeep import resumable_fit
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from tests.fakes.kaggle.state import TOKEN
from tests.programs import run
from tests.trainings import final_state
from tests.trainings.torch import hard_training

PATIENCE = 90.0  # seconds until a hanging test gives up

# One life. With "vanish" it waits, late in the run, until what it has is safe, trains on, and is killed.
PROGRAM = """
import os, signal, sys
from pathlib import Path
import torch
from colabkeep import resumable_fit
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.kaggle.service import Pace, Service
from colabkeep.stores.kaggle.store import KaggleStore
from colabkeep.stores.tiered import TieredStore
from tests.trainings.torch import hard_training
from colabkeep.core.events import Restored

machine, address, child, token, vanish = sys.argv[1:]
torch.set_num_threads(1)
disk = Path(machine)
environ = {"HOME": machine, "PATH": "/usr/bin:/bin", "KAGGLE_API_TOKEN": token}
pace = Pace(first=3600, every=3600, retry=0.05, poll=0.01)
command = (sys.executable, child, address)
service = Service("ada/checkpoints", disk / "kaggle", pace, command=command, environ=environ)
behind = KaggleStore(service, disk / "kaggle")
storage = TieredStore(DirectoryStore(disk / "front"), behind)

def heard(step, epoch, samples):
    if vanish == "vanish" and step == 40:
        assert storage.flush(90.0)
        print("safe", flush=True)
    if vanish == "vanish" and step == 52:
        os.kill(os.getpid(), signal.SIGKILL)

arguments = hard_training(heard=heard)
class Told:
    def __call__(self, event):
        if isinstance(event, Restored):
            print("restored", f"night/checkpoints/{event.checkpoint}.json", flush=True)
arguments["callbacks"] = (*arguments["callbacks"], Told())
resumable_fit(**arguments, run_name="night", storage=storage, save_every="5 steps", keep_last=2)
assert storage.flush(90.0)
storage.close()
print("finished", flush=True)
"""


def live(fake, machine, how):
    machine.mkdir()
    environ = {**os.environ, "HOME": str(machine)}
    return run(PROGRAM, machine, fake.address, fake.command[1], TOKEN, how, environ=environ)


def test_a_run_whose_machine_vanished_goes_on_from_its_dataset_alone(fake, machine, tmp_path):
    """Machine A is gone with its disk; B has the dataset only, resumes from it, and ends with the very same weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        resumable_fit(**hard_training(), run_name="night", storage=tmp_path / "uninterrupted")
    finally:
        torch.set_num_threads(threads)
    first = live(fake, tmp_path / "A", "vanish")
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "safe\n"), first.stderr
    safe = max(entry.name for entry in machine("looks").list("night/checkpoints"))
    second = live(fake, tmp_path / "B", "finish")
    assert second.returncode == 0, second.stderr
    restored, finished = second.stdout.splitlines()
    assert restored == f"restored {safe}"
    assert finished == "finished"
    assert TOKEN not in first.stderr + second.stderr
    wanted = final_state(tmp_path / "uninterrupted", "night")
    assert weights(final_state(machine("C"), "night")) == weights(wanted)
    assert weights(final_state(TieredStore(DirectoryStore(tmp_path / "D"), machine("D2")), "night")) == weights(wanted)


def weights(state):
    return {path: value for path, value in state.items() if path.startswith(("model", "ema", "optimizer"))}
