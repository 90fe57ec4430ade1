"""Trainings as users write them, on one CUDA device or two, small enough to be run under every schedule.

Each is a function of a `Life`; it builds everything anew, trains to its end, and tells what it ends with.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from tests.simcuda.lives import Life

__all__ = ["PROGRAMS", "after_another"]

EPOCHS, BATCH, WIDTH = 2, 4, 24


def net(width: int = WIDTH) -> nn.Sequential:
    """Batch norm's buffers change in the forward, dropout draws from the device's stream."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(width, width),
        nn.Linear(width, 2),
    )


def loader(workers: int = 0) -> DataLoader[Any]:
    """Twelve batches in page-locked memory, shuffled."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(48, 8, generator=generator), torch.randn(48, 2, generator=generator)
    return DataLoader(
        TensorDataset(x, y),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )


def batches(run: colabkeep.Run, data: Iterable[Any]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Of all epochs, on the device: from page-locked memory, so that nobody waits."""
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches(data):
            yield x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().mean()


def plain(life: Life, make: Callable[[nn.Module], torch.optim.Optimizer], data: DataLoader[Any] | None = None) -> None:
    """One model, one optimizer."""
    model = net().cuda()
    optimizer = make(model)
    with life.run(model=model, optimizer=optimizer) as run:
        for x, y in batches(run, data or loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    life.ended(model=model, optimizer=optimizer)


def fp32(life: Life) -> None:
    plain(life, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2))


def fused(life: Life) -> None:
    plain(life, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True))


def fused_sgd(life: Life) -> None:
    plain(life, lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, fused=True))


def capturable(life: Life) -> None:
    """Counters and the learning rate live on the device, as for a CUDA graph."""
    rate = torch.tensor(1e-2, device="cuda")
    plain(life, lambda model: torch.optim.AdamW(model.parameters(), lr=rate, capturable=True))


def workers(life: Life) -> None:
    """Each epoch forks, with a save of the last step under way."""
    plain(life, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2), loader(workers=1))


class HostMomentum(torch.optim.Optimizer):
    """An optimizer that keeps its state in host memory, as those do that save the device's."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros(parameter.shape)
                state["momentum"].mul_(0.9).add_(parameter.grad.cpu())
                parameter.add_(state["momentum"].to(parameter.device), alpha=-group["lr"])


def offloaded(life: Life) -> None:
    plain(life, lambda model: HostMomentum(model.parameters()))


def scaled(life: Life) -> None:
    """Half precision; two steps overflow, so the optimizer skips them and the scale falls."""
    model = net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=4)
    skipped = 0
    with life.run(model=model, optimizer=optimizer, scaler=scaler) as run:
        for x, y in batches(run, loader()):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_of(model, x, y)
            factor = 1e30 if run.progress.step % 11 == 4 else 1.0
            optimizer.zero_grad()
            scaler.scale(loss * factor).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            skipped += scaler.get_scale() < before
            run.step(loss=loss)
    life.report.notes["skipped"] = skipped
    life.ended(model=model, optimizer=optimizer, scaler=scaler)


def clipped(life: Life) -> None:
    """Momentum, a schedule, and gradients cut to a norm."""
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=40)
    with life.run(model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for x, y in batches(run, loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            run.step(loss=loss)
    life.ended(model=model, optimizer=optimizer, scheduler=scheduler)


def averaged(life: Life) -> None:
    """A moving average of the weights beside them."""
    model = net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    with life.run(model=model, optimizer=optimizer, ema=ema) as run:
        for x, y in batches(run, loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            ema.update_parameters(model)
            run.step(loss=loss)
    life.ended(model=model, optimizer=optimizer, ema=ema)


class Student(nn.Module):
    """A frozen backbone, a teacher that follows through `.data`, and a small part that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.teacher, self.head = net(), net(), nn.Linear(2, 2)
        for parameter in [*self.backbone.parameters(), *self.teacher.parameters()]:
            parameter.requires_grad_(False)
        self.backbone.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def teacher(life: Life) -> None:
    """What is frozen is not copied again; what is edited past autograd, as this teacher is, is."""
    model = Student().cuda()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    with life.run(model=model, optimizer=optimizer) as run:
        for x, y in batches(run, loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            for parameter in model.teacher.parameters():
                parameter.data.mul_(0.99).add_(model.head.weight.data.mean(), alpha=0.01)
            run.step(loss=loss)
    life.ended(model=model, optimizer=optimizer)


class Spread(nn.Module):
    """An embedding in host memory, and layers on two devices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.here = nn.Linear(8, WIDTH)
        self.first = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)).to("cuda:0")
        self.second = nn.Sequential(nn.ReLU(), nn.Dropout(0.3), nn.Linear(WIDTH, 2)).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.here(x.cpu()).to("cuda:0")).to("cuda:1")).to("cuda:0")


def spread(life: Life) -> None:
    """Parts on the host, on one device and on another."""
    model = Spread()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with life.run(model=model, optimizer=optimizer) as run:
        for x, y in batches(run, loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    life.ended(model=model, optimizer=optimizer)


def parallel(life: Life) -> None:
    """Each batch over two devices, each with its own dropout."""
    model = nn.DataParallel(net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with life.run(model=model, optimizer=optimizer) as run:
        for x, y in batches(run, loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    life.ended(model=model, optimizer=optimizer)


def own_stream(life: Life) -> None:
    """The whole training on a stream that the user made."""
    with torch.cuda.stream(torch.cuda.Stream()):
        plain(life, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True))


def fitted(life: Life) -> None:
    """No loop at all: half precision, clipping and steps of two batches are said, not written."""
    model = net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    colabkeep.resumable_fit(
        model,
        loader(),
        optimizer=optimizer,
        loss_fn=nn.functional.mse_loss,
        max_epochs=EPOCHS + 1,
        run_name="program",
        precision="16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        on_bad_gpu="ignore",
        **life.words,
    )
    life.ended(model=model, optimizer=optimizer)


class Collecting(TensorDataset):
    """Each sample comes with all garbage collected, as a worker does from time to time."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        gc.collect()
        return super().__getitem__(index)


def after_another(life: Life) -> None:
    """A cell that failed and is run again: what the first training left behind is garbage when loaders fork."""
    gc.disable()
    for fails in (True, False):
        model = net().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = Collecting(torch.randn(8, 8), torch.randn(8, 2))
        samples = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
        try:
            with life.run(model=model, optimizer=optimizer) as run:
                circle: list[object] = [run]
                circle.append(circle)
                for x, y in batches(run, samples):
                    loss_of(model, x, y).backward()
                    optimizer.step()
                    run.step(loss=model(x).sum())
                    run.save()
                    if fails and run.progress.step == 2:
                        raise RuntimeError("on purpose")
        except RuntimeError as error:
            if not fails:
                raise AssertionError from error
        del run, circle, model, optimizer
    life.report.notes["garbage"] = gc.collect()


PROGRAMS: dict[str, Callable[[Life], None]] = {
    program.__name__: program
    for program in (
        fp32, scaled, clipped, fused, fused_sgd, capturable, averaged, teacher, parallel, spread, offloaded, own_stream,
        fitted, workers,
    )
}  # fmt: skip
