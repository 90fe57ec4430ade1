"""What the panel costs in a real kernel: ten thousand updates, the notebook they leave, and the training they take."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from measuring import Figure, Setting, figure
from nbclient import NotebookClient

import colabkeep

# A training of three steps a second over many sessions, with as much in its panel as there can be: 512 points of the
# curve, 48 checkpoints. The clock goes a second for each step, so that each of them is an update.
CELLS = (
    """
    import json, time
    from colabkeep.ui.panel.displays import NotebookPanel
    from colabkeep.ui.panel.state import PanelState
    from colabkeep.testing.clock import FakeClock
    from colabkeep.core.events import LengthTold, Recalled, RunStarted, RunStopped, SaveCommitted, StepDone
    from colabkeep.core.manifest import Progress
    """,
    """
    clock, times, begin = FakeClock(), [], 5120
    panel = NotebookPanel(clock, PanelState(platform="Jupyter"))
    panel(RunStarted(run="r", session="s", storage="runs", promise="Exact."))
    points = tuple((step, 3.0 + (step * 7919 % 1000) / 500) for step in range(0, begin, 10))
    panel(Recalled(points=points, resumed_at=(1000, 3000), sessions=3))
    panel(LengthTold(max_steps=begin + {updates}))
    for step in range(begin + 1, begin + {updates} + 1):
        clock.advance(1.0)
        at = Progress(step=step, seconds=float(step))
        done = StepDone(progress=at, epoch_batches=None, loss=3.0 + (step * 7919 % 1000) / 500)
        wall, cpu = time.perf_counter(), time.thread_time()
        panel(done)
        times.append((time.perf_counter() - wall, time.thread_time() - cpu))
        if step % 100 == 0:
            id = f"{{step:012d}}-s"
            panel(SaveCommitted(
                checkpoint=id, progress=at, reason="epoch", bytes=2**20, written=9, seconds=2.0, level="local"
            ))
    panel(RunStopped(reason="finished", progress=at, checkpoint=id if {updates} >= 100 else None))
    with open("times.json", "w") as file:
        json.dump(times, file)
    """,
)


def run(setting: Setting) -> list[Figure]:
    """One notebook, executed by nbclient as a batch run would."""
    updates = 20 if setting.quick else 10_000
    book = _executed(updates, setting.folder)
    (outputs,) = (cell.outputs for cell in book.cells[1:])
    file = setting.folder / "saved.ipynb"
    nbformat.write(book, file)
    wall, cpu = zip(*json.loads((setting.folder / "times.json").read_text()), strict=True)
    name = f"{updates} updates"
    return [
        figure(f"{name}: outputs of the cell", "outputs", [len(outputs)], goal=1),
        figure(f"{name}: the notebook, saved", "kB", [file.stat().st_size / 1000], goal=20),
        figure("an update, in the thread that trains", "ms", [1000 * each for each in wall]),
        figure("one update a second: share of the training", "%", [100 * each for each in wall], goal=1),
        figure("… in CPU time of the training thread", "%", [100 * each for each in cpu], goal=1),
    ]


def _executed(updates: int, folder: Path) -> Any:
    os.environ["PYTHONPATH"] = str(Path(colabkeep.__file__).resolve().parents[1])  # for the kernel
    book = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python"}})
    texts = [textwrap.dedent(CELLS[0]), textwrap.dedent(CELLS[1]).format(updates=updates)]
    book.cells = [nbformat.v4.new_code_cell(text.strip()) for text in texts]
    NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return book
