"""Two simulated devices, a process for each: what stands in NCCL's place sums device memory in the order of streams.

The same trainings in several processes as tests/session/torch/test_several_processes.py has on the CPU."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import colabkeep
from tests.programs import run
from tests.trainings.ranks import SIMULATED, Ended, launched, session, there_and_back

pytestmark = [pytest.mark.simulated, pytest.mark.usefixtures("simulation")]

LATE, CHAOS = "worst_late abort", "chaos:3 abort"


def counted(ended: Ended) -> int:
    """Collectives over device memory, of rank 0."""
    return next(value["collectives"] for kind, value in ended.told[0] if kind == "Counts")


@pytest.mark.parametrize(
    ("fit", "killed"), [(True, 0), pytest.param(False, 1, marks=pytest.mark.long)], ids=["resumable_fit", "Run"]
)
def test_a_killed_pair_goes_on_with_the_same_bits(tmp_path: Path, fit: bool, killed: int) -> None:
    """In whatever order streams run: dropout, BatchNorm, and gradients that the pair sums on its devices."""
    words: dict[str, Any] = {"fit": fit, "draws": True, "accumulate": 2 if fit else 1}
    whole = session(tmp_path / "whole", 2, simulated=LATE, **words)
    assert whole.status == [0, 0], whole.errors
    assert counted(whole) >= whole.end["step"]
    for number, schedule in enumerate((LATE, CHAOS)):
        place = tmp_path / f"run{number}"
        broken = session(place, 2, simulated=schedule, **words, at=[killed, 8], how="SIGKILL")
        assert broken.status[killed] == -signal.SIGKILL
        assert broken.status[1 - killed] not in (0, -signal.SIGKILL), "the other one heard of it"
        resumed = session(place, 2, simulated=schedule, **words)
        assert resumed.status == [0, 0], resumed.errors
        assert resumed.resumed
        assert not resumed.reasons()
        assert resumed.end == whole.end


def test_from_two_devices_to_one_and_back_it_is_the_same_up_to_rounding(tmp_path: Path) -> None:
    """In float64 nothing but rounding is left; the same steps, and rates of learning."""
    there_and_back(tmp_path, simulated=LATE)


def test_batch_norm_of_the_whole_batch_makes_a_pair_train_as_one_device(tmp_path: Path) -> None:
    """Up to rounding; killed it goes on with the same bits. Of its own part alone each would
    train something else."""
    words: dict[str, Any] = {"fit": True, "dtype": "float64", "samples": 48, "norm": True, "simulated": LATE}
    synced = {**words, "more": {"sync_batchnorm": True}}
    whole = session(tmp_path / "whole", 2, **synced)
    assert whole.status == [0, 0], whole.errors
    one, apart = session(tmp_path / "one", 1, **words), session(tmp_path / "apart", 2, **words)
    assert whole.end["weights"] == pytest.approx(one.end["weights"], rel=0, abs=1e-10)
    assert apart.end["weights"] != pytest.approx(one.end["weights"], rel=0, abs=1e-4)
    assert session(tmp_path / "run", 2, **synced, at=[1, 8], how="SIGKILL").status[1] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **synced)
    assert resumed.resumed, resumed.errors
    assert not resumed.reasons()
    assert resumed.end == whole.end


@pytest.mark.parametrize(
    ("begins", "said"),
    [(0, "takes 2 of the 4 samples at a time"), (6, "Step 8: another process has no memory for more than 2")],
    ids=["at the start", "in the middle"],
)
def test_memory_that_runs_out_on_one_device_makes_the_pieces_of_both_smaller(
    tmp_path: Path, begins: int, said: str
) -> None:
    """The device's own error, in the second process only. The weights are those of whole batches, up to rounding."""
    words: dict[str, Any] = {"fit": True, "dtype": "float64", "samples": 48, "simulated": LATE}
    whole = session(tmp_path / "whole", 2, **words)
    pieces = session(tmp_path / "run", 2, **words, memory=[1, 2, begins], more={"micro_batch": "auto"})
    assert pieces.status == [0, 0], pieces.errors
    text = "\n".join(value for kind, value in pieces.told[0] if kind == "Noted")
    assert said in text
    assert pieces.end["step"] == whole.end["step"] == 18
    assert pieces.end["weights"] == pytest.approx(whole.end["weights"], rel=0, abs=1e-10)


def test_a_pair_that_launch_began_is_killed_with_its_parent_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Each process finds its own device, as colabkeep tells it, and NCCL by the name that colabkeep asks for."""
    words: dict[str, Any] = {"draws": True, "simulated": LATE}
    whole = launched(tmp_path / "whole", 2, **words)
    assert whole.status == [0], whole.errors
    assert counted(whole) >= whole.end["step"]

    def kill(parent: Any, children: Any) -> None:
        checkpoints = tmp_path / "run" / "r" / "checkpoints"
        end = time.monotonic() + 60
        while not list(checkpoints.glob("*.json")) and time.monotonic() < end:
            time.sleep(0.02)
        assert len(children()) >= 2
        parent.send_signal(signal.SIGKILL)

    broken = launched(tmp_path / "run", 2, kill, **words)
    assert broken.status == [-signal.SIGKILL]
    assert broken.ended == 0, "the processes ended by themselves"
    resumed = launched(tmp_path / "run", 2, **words)
    assert resumed.status == [0], resumed.errors
    assert resumed.resumed
    assert resumed.end == whole.end
    assert colabkeep.load_weights("r", storage=tmp_path / "run")


SECOND_CARD = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import colabkeep

model = torch.nn.Linear(4, 2).to("cuda:1")
before = model.weight.detach().clone()
data = DataLoader(TensorDataset(torch.ones(24, 4), torch.zeros(24, 2)), batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
colabkeep.resumable_fit(
    model, data, optimizer=optimizer, loss_fn=torch.nn.functional.mse_loss, max_epochs=2, run_name="r",
    storage=sys.argv[1], devices=2, progress=False, on_bad_gpu="ignore",
)
print(model.weight.device, bool((model.weight != before).all()))
"""


def test_a_model_on_the_second_card_of_the_notebook_is_trained_on_both(tmp_path: Path) -> None:
    """Each process sees one card, and reads what lay on another one onto it. The caller's model stays where it is."""
    environ = {**os.environ, "SIMCUDA": LATE}
    done = run(SIMULATED + SECOND_CARD, tmp_path, environ=environ)
    assert done.stdout.split() == ["cuda:1", "True"], done.stderr
