"""The kernel itself is killed while the training cell runs; the notebook is run again from the top."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import nbformat
import pytest
from nbclient.exceptions import DeadKernelError

EPOCHS = 8
WRITE_PID = "import os, pathlib; pathlib.Path('kernel.pid').write_text(str(os.getpid()))"


def kill_after_a_save(folder, pid):
    """Wait for a checkpoint that is not there yet, and kill. Returns the thread that does it."""
    saved = partial(newest_step, folder)
    before = saved()

    def watch():
        end = time.monotonic() + 120
        while saved() <= before and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def newest_step(folder):
    """The step of the newest checkpoint of the run, 0 if there is none."""
    manifests = (folder / "colabkeep-runs" / "digits" / "checkpoints").glob("*.json")
    return max((int(manifest.name[:12]) for manifest in manifests), default=0)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("colab_demo", marks=[pytest.mark.torch, pytest.mark.long]),
        pytest.param("aistudio_demo", marks=[pytest.mark.paddle, pytest.mark.long]),
    ],
)
def test_a_kernel_killed_in_the_training_cell_goes_on_when_all_is_run_again(maker, shown, tmp_path, name):
    """Not from zero, but from a checkpoint as new as the newest at the kill; and the end is the same, bit for bit. All
    on a laptop, where nothing is mounted, and the place is told."""
    threads = []

    def at_a_cell(cell, cell_index):
        if "training" in cell.metadata.get("tags", ()):
            threads.append(kill_after_a_save(tmp_path, int((tmp_path / "kernel.pid").read_text())))

    notebook = maker.source(name)
    maker.set_parameters(notebook, EPOCHS=EPOCHS)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WRITE_PID))
    with pytest.raises(DeadKernelError):
        maker.execute(notebook, tmp_path, on_cell_execute=at_a_cell)
    for thread in threads:
        thread.join()
    saved = newest_step(tmp_path)
    assert maker.tagged(notebook, "comparison").outputs == []
    assert 0 < saved < EPOCHS * 23

    notebook = maker.source(name)
    maker.set_parameters(notebook, EPOCHS=EPOCHS)
    maker.execute(notebook, tmp_path)
    told = shown(notebook)
    assert told.went_on_from("training") >= saved
    assert told.is_equal()
    assert f"{tmp_path}/colabkeep-runs" in told.everywhere()
