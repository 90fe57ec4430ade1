"""The same as `schedule_free`, with the package `schedulefree` itself: AdamW with warm-up, its own bookkeeping."""

from __future__ import annotations

from typing import Any

from tests.loops.ports._parts import by_epoch, digits, in_order, seed, small_net
from tests.loops.ports.schedule_free import EPOCHS, test, update

RESUMES = "mid-epoch"
NEEDS = "schedulefree"  # in no environment of CI; what it does is written out in `schedule_free`


def build() -> tuple[Any, ...]:
    import schedulefree

    seed()
    model = small_net()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=2.5e-2, warmup_steps=4)
    return by_epoch(digits()), in_order(digits(8)), model, optimizer


def original() -> dict[str, Any]:
    train_loader, test_loader, model, optimizer = build()
    log = []
    for epoch in range(EPOCHS):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        optimizer.train()
        for data, target in train_loader:
            update(model, optimizer, data, target)
        log.append(test(model, optimizer, test_loader))
    return {"model": model.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    train_loader, test_loader, model, optimizer = build()
    with colabkeep.Run("schedule-free", model=model, optimizer=optimizer) as run:
        run.state.log = []
        for _ in run.epochs(EPOCHS):
            model.train()
            optimizer.train()
            for _, (data, target) in run.enumerate(train_loader):
                run.step(loss=update(model, optimizer, data, target))
            run.state.log.append(test(model, optimizer, test_loader))
    return {"model": model.state_dict(), "log": run.state.log}
