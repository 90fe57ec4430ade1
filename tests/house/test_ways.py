"""How many files somebody reads who follows one save, or one resume: those whose functions run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST = {"save": 27, "resume": 59}
"""It may fall and not rise. What is asked for is 8."""

_PROGRAM = """
import json, sys, threading
from pathlib import Path

import torch

import colabkeep

root, storage = f"{Path(colabkeep.__file__).parent}/", sys.argv[1]
executed, watching, found = set(), False, {}


def watch(frame, event, _):
    name = frame.f_code.co_filename
    if watching and event == "call" and name.startswith(root) and frame.f_code.co_name != "<module>":
        if threading.current_thread().name != "colabkeep-call":
            executed.add(name.removeprefix(root))


def session():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    words = {"storage": storage, "progress": False, "save_every": "1000 steps"}
    return model, optimizer, colabkeep.Run("way", model=model, optimizer=optimizer, **words)


threading.setprofile(watch)
sys.setprofile(watch)
model, optimizer, opened = session()
with opened as run:
    for number in run.steps(4):
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        optimizer.step()
        watching = number == 3
        run.step(loss)
        if watching:
            run.save(wait=True)
            found["save"], watching, executed = sorted(executed), False, set()
watching = True
with session()[2] as run:
    watching, found["resume"] = False, sorted(executed)
    assert run.progress.step == 4
sys.setprofile(None)
print(json.dumps(found))
"""


@pytest.mark.torch
def test_a_save_and_a_resume_are_read_in_few_files(tmp_path: Path) -> None:
    """Through a plain folder, with torch and no display: from `Run.step` to the bytes on disk, and from `Run(…)` to the
    state in its place. What is asked of the machine meanwhile, on a thread beside the way, is not counted."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for way, most in MOST.items():
        assert "session/run.py" in found[way]
        assert len(found[way]) <= most, f"one {way} runs code of {len(found[way])} files: {', '.join(found[way])}"
