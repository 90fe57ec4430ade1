"""`resumable_fit` computes what the loop that a user would write by hand computes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.torch.training import DeviceMean, TorchTraining, mean_on, resolve_precision


def make_net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def make_training(**options: Any) -> tuple[TorchTraining, nn.Module]:
    model, optimizer = make_net()
    options = {"loss_fn": F.cross_entropy, "precision": "32-true", **options}
    training = TorchTraining(TrainingOptions(model=model, optimizer=optimizer, **options))
    training.train()
    return training, model


def batches(n: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(5, 6, generator=generator), torch.randint(3, (5,), generator=generator)) for _ in range(n)]


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_the_weights_are_those_of_a_hand_written_loop(window: int, clip: float | None, precision: str) -> None:
    """Whatever the window, clipping and precision, every bit is that of the loop in torch's own manual."""
    model, optimizer = make_net()
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "16-mixed")
    for i, (x, y) in enumerate(batches()):
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * (1 / window)).backward()
        if (i + 1) % window == 0:
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

    training, ours = make_training(precision=precision, gradient_clip_val=clip)
    for i, batch in enumerate(batches()):
        training.backward(batch, share=1 / window)
        if (i + 1) % window == 0:
            training.step()

    assert same_bits(model, ours)
    assert not same_bits(model, make_net()[0])


def test_float16_skips_an_update_whose_gradients_are_not_finite() -> None:
    """An overflow in float16 costs one update and halves the scale; the weights stay finite."""
    training, model = make_training(precision="16-mixed")
    before = {name: value.clone() for name, value in model.named_parameters()}
    x, y = batches()[0]
    training.backward((x * float("inf"), y), share=1.0)
    training.step()
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert isinstance(training.scaler, torch.amp.GradScaler)
    assert training.scaler.get_scale() == 2**15


def test_only_float16_has_a_scaler_to_be_saved() -> None:
    """The scaler is a part of the run's state exactly where one is in use."""
    assert make_training(precision="32-true")[0].scaler is None
    assert make_training(precision="bf16-mixed")[0].scaler is None
    assert make_training(precision="16-mixed")[0].scaler is not None


@pytest.mark.parametrize(
    ("gpu", "capability", "precision"),
    [
        ("Pascal P100", (6, 0), "32-true"),
        ("Volta V100", (7, 0), "16-mixed"),
        ("Turing T4", (7, 5), "16-mixed"),
        ("Ampere A100", (8, 0), "bf16-mixed"),
        ("Ada L4", (8, 9), "bf16-mixed"),
        ("Blackwell", (12, 0), "bf16-mixed"),
    ],
)
def test_auto_takes_the_fastest_precision_the_gpu_has_units_for(
    gpu: str, capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A T4 gets float16 although torch claims bfloat16 for it, which it only emulates."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    assert resolve_precision("auto", torch.device("cuda", 0)) == precision


def test_auto_on_a_cpu_is_float32() -> None:
    """Without a GPU "auto" keeps full precision."""
    assert make_training(precision="auto")[0].precision == "32-true"


def test_each_epoch_starts_in_training_mode_without_old_gradients() -> None:
    """`train` does what the first line of every hand-written epoch does, the user's own `train` included."""

    class FrozenNorm(nn.Sequential):
        def train(self, mode: bool = True) -> FrozenNorm:
            super().train(mode)
            self[1].eval()
            return self

    model = FrozenNorm(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = TorchTraining(TrainingOptions(model=model, optimizer=optimizer, loss_fn=F.cross_entropy))
    training.backward(batches()[0], share=1.0)
    training.train()
    assert [module.training for module in model] == [True, False, True]
    assert all(p.grad is None for p in model.parameters())


class _Waits(TorchDispatchMode):
    """Lists the operations that would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_step_never_waits_for_the_device(precision: str) -> None:
    """Forward, backward, clipping, update and the running loss read no value back, but for a loss that is in host
    memory: it is read once."""
    training, _ = make_training(gradient_clip_val=1.0, precision=precision)
    mean = training.mean()
    with _Waits() as waits:
        for batch in batches():
            mean.add(training.backward(batch, share=0.5), 5)
            training.step()
        assert len(waits.seen) == len(batches())
        assert mean.value() is not None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_a_gpu_never_synchronises() -> None:
    """CUDA's own watch finds no synchronisation in the steps, with batches that come from pinned memory."""
    model, _ = make_net()
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = TrainingOptions(
        model=model, optimizer=optimizer, loss_fn=F.cross_entropy, gradient_clip_val=1.0, precision="bf16-mixed"
    )
    training = TorchTraining(options)
    training.train()
    mean = training.mean()
    pinned = [(x.pin_memory(), y.pin_memory()) for x, y in batches()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in pinned:
            mean.add(training.backward(batch, share=1.0), 5)
            training.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    value = mean.value()
    assert value is not None
    assert value > 0


CPU = torch.device("cpu")


@pytest.mark.parametrize("mean", [mean_on, DeviceMean])
@pytest.mark.parametrize("cut", [0, 1, 20, 40])
def test_a_running_mean_goes_on_with_the_same_bits(mean: Any, cut: int) -> None:
    """Saved in the middle, wherever that is, and loaded into a new one, the mean ends on the very same number."""
    losses = [(loss, float(n)) for n, loss in enumerate(torch.rand(40, generator=torch.Generator().manual_seed(2)), 1)]
    whole, first, second = mean(CPU), mean(CPU), mean(CPU)
    for loss, weight in losses:
        whole.add(loss, weight)
    for loss, weight in losses[:cut]:
        first.add(loss, weight)
    kept = first.state_dict()
    first.add(torch.tensor(1000.0), 1.0)  # does not reach what was kept
    second.load_state_dict(kept)
    for loss, weight in losses[cut:]:
        second.add(loss, weight)
    assert second.value() == whole.value()
    exact = sum(loss.item() * weight for loss, weight in losses) / sum(weight for _, weight in losses)
    assert whole.value() == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("mean", [mean_on(CPU), DeviceMean(CPU)])
def test_a_mean_goes_on_from_what_earlier_versions_stored(mean: Any) -> None:
    """They kept numbers back, to add many in one go."""
    stored = {"sum": torch.tensor(6.0, dtype=torch.float64), "weight": 4.0}
    mean.load_state_dict({**stored, "values": torch.tensor([3.0, 5.0]), "weights": [1.0, 1.0]})
    assert mean.value() == (6 + 3 + 5) / 4
    mean.load_state_dict(stored)
    assert mean.value() == 6 / 4


@pytest.mark.parametrize("mean", [mean_on(CPU), DeviceMean(CPU)])
def test_a_mean_that_is_reset_knows_nothing_of_the_past(mean: Any) -> None:
    """Each epoch's mean is that epoch's own, and of nothing there is none."""
    assert mean.value() is None
    mean.add(torch.tensor(float("nan")), 3)
    mean.reset()
    assert mean.value() is None
    mean.add(2.0, 1)
    assert mean.value() == 2.0


def test_the_learning_rate_shown_is_the_one_in_use() -> None:
    """What the schedule has made of it, of the first group, as a plain number."""
    model, _ = make_net()
    groups = [{"params": [*model[0].parameters()], "lr": 0.5}, {"params": [*model[3].parameters()], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    training = TorchTraining(TrainingOptions(model=model, optimizer=optimizer, loss_fn=F.cross_entropy))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    assert training.learning_rate() == 0.5
    training.backward(batches()[0], share=1.0)
    training.step()
    schedule.step()
    assert training.learning_rate() == 0.25


def test_validation_uses_the_precision_of_training() -> None:
    """The numbers of validation come from the model as it is trained."""
    seen = []
    metrics = {"m": lambda output, target: seen.append(output.dtype) or 0.0}
    training, _ = make_training(metrics=metrics, precision="bf16-mixed")
    training.evaluate(iter([Batch(batch, 5) for batch in batches(1)]))
    assert seen == [torch.bfloat16]
