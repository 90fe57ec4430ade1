"""Programs on a CUDA device that end in a save and are started again come to the bits of one that nobody disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.simcuda.lives import KILLED, live
from tests.simcuda.programs import PROGRAMS, after_another, fp32, teacher

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: python -m tests.simcuda"),
    pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL"),  # DataParallel copies without it
]


ORDERED = ("fp32", "teacher", "spread", "own_stream")  # the others differ in what they save, not in when
PAIRED = ("parallel", "spread")


@pytest.mark.parametrize(
    "program",
    [pytest.param(one, id=name, marks=[pytest.mark.orders] * (name in ORDERED)) for name, one in PROGRAMS.items()],
)
def test_killed_in_a_save_and_resumed_it_has_the_same_bits(program, tmp_path: Path) -> None:
    """SIGKILL while the copy of a save drains; the save before it is there, and whole."""
    if program.__name__ in PAIRED and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices: python -m tests.simcuda")
    whole = live(program, tmp_path / "whole")
    assert whole.status == 0, whole.error
    killed = live(program, tmp_path / "cut", "killed")
    assert killed.status == KILLED, killed.error
    resumed = live(program, tmp_path / "cut")
    assert resumed.status == 0, resumed.error
    assert resumed.restored
    assert resumed.restored[0] > 0
    assert resumed.inexact == []
    assert resumed.digest == whole.digest
    assert whole.notes.get("skipped", 2) == 2


def test_interrupted_between_copy_and_drain_it_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Ctrl-C, as soon as training may go on behind a save."""
    whole = live(fp32, tmp_path / "whole")
    interrupted = live(fp32, tmp_path / "cut", "interrupted")
    assert interrupted.error.startswith("KeyboardInterrupt")
    resumed = live(fp32, tmp_path / "cut")
    assert resumed.restored
    assert resumed.restored[0] >= interrupted.committed[-1]
    assert (resumed.status, resumed.inexact, resumed.digest) == (0, [], whole.digest)


@pytest.mark.parametrize("program", [fp32, teacher])
def test_a_fork_at_every_save_disturbs_nothing(program, tmp_path: Path) -> None:
    """Each child ends by itself, on its way through the run's block; it stores nothing, and hangs nowhere."""
    whole = live(program, tmp_path / "whole")
    forked = live(program, tmp_path / "forked", "forked")
    assert (forked.status, forked.failing, forked.digest) == (0, [], whole.digest)
    assert live(program, tmp_path / "forked").restored == [24]


def test_workers_that_collect_what_an_earlier_training_left_live_on(tmp_path: Path) -> None:
    """Events and page-locked memory may be freed by the process alone that used the device."""
    ended = live(after_another, tmp_path)
    assert ended.status == 0, ended.error
    assert ended.notes["garbage"] > 0
