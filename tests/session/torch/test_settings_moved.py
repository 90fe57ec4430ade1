"""What training moves beside the tensors is in the checkpoint: a killed run ends with the bits of a whole one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.events import Event, Noted, RestoredInexactly
from tests.programs import run

# A loop of one's own that moves what no state_dict holds. Arguments: the folder, the step at which it kills itself
# (0: not), what it does.
LOOP = """
import os, signal, sys
import torch
from torch import nn
import colabkeep

folder, end, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
torch.manual_seed(5)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 6))
        self.head = nn.Linear(6, 3)
        self.temperature, self.calls, self.seen, self.folder = 2.0, 0, [0, 0], os.getcwd()

    def forward(self, x):
        self.calls += self.training
        self.seen[self.calls % 2] += 1
        return self.head(self.body(x)) / self.temperature * (1 + 0.01 * self.calls + 0.001 * self.seen[0])

model = Net()
heads = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01)}
kind, _, unfreezes = what.partition("+")
if unfreezes:
    for parameter in model.body.parameters():
        parameter.requires_grad_(False)
optimizer = heads[kind](model.head.parameters() if unfreezes == "group" else model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
data = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.arange(40) % 3)
loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

with colabkeep.Run("r", **parts, storage=folder, save_every=["2 steps", 1], progress=False) as run:
    for epoch in run.epochs(4):
        model.train()
        if epoch == 1:
            model.temperature = 0.5
            model.body[1].eval()
            if unfreezes:
                for parameter in model.body.parameters():
                    parameter.requires_grad_(True)
        if epoch == 2 and unfreezes == "group":
            optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 0.02})
            scheduler.base_lrs.append(0.02)
            optimizer.param_groups[-1].setdefault("initial_lr", 0.02)
        for x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            model.body[3].p = max(0.0, model.body[3].p - 0.02)
            run.step(loss=loss)
            if run.progress.step == end:
                run.save(wait=True)
                os.kill(os.getpid(), signal.SIGKILL)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            run.log(val=float(model(data.tensors[0]).mean()))
torch.save(model.state_dict(), os.path.join(folder, "end.pt"))
print(sorted((k, v) for k, v in vars(model).items() if k in ("temperature", "calls", "seen")), model.body[3].p)
"""


def loop(folder: Path, *, end: int, what: str) -> str:
    """The loop in a process of its own; what it printed, "" where it killed itself."""
    folder.mkdir(exist_ok=True)
    done = run(LOOP, folder, end, what, strict=True)
    assert done.returncode == (-signal.SIGKILL if end else 0), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ("sgd", (3, 8, 11, 15)),
        ("sgd+grad", (4, 6, 10, 17)),
        ("sgd+group", (4, 9, 16, 18)),
        ("adamw+group", (5, 16, 19)),
        ("adamw+group", (5, 12, 15)),
    ],
)
def test_killed_and_run_again_it_ends_with_the_bits_and_attributes_of_a_whole_one(
    tmp_path: Path, what: str, ends: tuple[int, ...]
) -> None:
    """Annealed dropout, a temperature, counters, a list, a BatchNorm in evaluation, parameters that are trained later,
    with and without a group of their own: the script builds everything as in the beginning, each time."""
    whole = loop(tmp_path / "whole", end=0, what=what)
    for end in ends:
        assert loop(tmp_path / "parts", end=end, what=what) == ""
    assert loop(tmp_path / "parts", end=0, what=what) == whole
    one, other = (colabkeep.load_weights("r", storage=tmp_path / name) for name in ("whole", "parts"))
    assert all(value.equal(other[name]) for name, value in one.items())
    assert len(one) == 11


def test_an_error_in_a_validation_does_not_leave_the_model_evaluating(tmp_path: Path) -> None:
    """The loop sets the mode once, before it begins; the checkpoint is of the step before, and so is the mode."""

    def loop(folder: Path, *, fails: bool) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        with colabkeep.Run("r", model=model, optimizer=optimizer, storage=folder, progress=False) as run:
            assert (run.progress.step == 3) is (run.resumed_from is not None)
            for step in run.steps(8):
                if fails and step == 3:
                    model.eval()  # a look at the samples, which fails
                    raise ArithmeticError
                optimizer.zero_grad()
                model(torch.ones(4, 3)).square().mean().backward()
                optimizer.step()
                run.step()
        return model

    whole = loop(tmp_path / "whole", fails=False)
    with pytest.raises(ArithmeticError):
        loop(tmp_path / "parts", fails=True)
    parts = loop(tmp_path / "parts", fails=False)
    assert all(value.equal(parts.state_dict()[name]) for name, value in whole.state_dict().items())


def test_a_weight_that_is_changed_before_the_first_batch_of_a_resumed_epoch_is_told(tmp_path: Path) -> None:
    """It was done when the epoch began, and is done again: nobody is left to believe that this is exact."""
    events: list[Event] = []

    def loop(end: int) -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = {"model": model, "optimizer": optimizer, "storage": tmp_path, "progress": False}
        with colabkeep.Run("r", **own, callbacks=(events.append,)) as run:
            for _ in run.epochs(2):
                with torch.no_grad():
                    model.weight.mul_(0.5)
                for x in run.batches([torch.ones(1, 2)] * 4):
                    model(x).sum().backward()
                    optimizer.step()
                    run.step()
                    if run.progress.step == end:
                        run.stop()

    loop(6)
    assert not [event for event in events if isinstance(event, RestoredInexactly)]
    loop(0)
    (told,) = [event.reason for event in events if isinstance(event, RestoredInexactly)]
    assert "model.weight" in told
    assert "ran again now" in told


class Counting(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(2, 1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


@pytest.mark.parametrize("save_every", ["2 steps", None])
def test_an_error_in_a_forward_pass_takes_back_what_it_counted(save_every: str | None, tmp_path: Path) -> None:
    """The last finished step is saved with the count that it had. Where no save has shown yet that the model counts,
    nobody knows what the count was: nothing is saved, and that is told."""
    torch.manual_seed(1)
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: list[Event] = []
    options = {"save_every": save_every, "storage": tmp_path, "progress": False, "callbacks": [told.append]}
    run = colabkeep.Run("r", model=model, optimizer=optimizer, **options)

    def train() -> None:
        with run:
            for _ in run.steps(8):
                model(torch.ones(3, 2)).sum().backward()
                if run.progress.step == 5:
                    raise RuntimeError("out of memory")
                optimizer.step()
                optimizer.zero_grad()
                run.step()

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    notes = " ".join(event.text for event in told if isinstance(event, Noted))
    if save_every is None:
        assert "model.calls may have been changed in the middle of the step" in notes
        assert run.checkpoint is None
    else:
        assert "changed" not in notes
        assert run.checkpoint.startswith("000000000005-")
        assert model.calls == 5
