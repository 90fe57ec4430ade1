"""The same as `detection`, with the warm-up as torchvision's train_one_epoch has it: made inside the first epoch,
known to nobody. It cannot be saved, and begins anew in an epoch that is resumed in its middle."""

from __future__ import annotations

from typing import Any

from tests.loops.ports.detection import EPOCHS, build, original, update, warm_up

__all__ = ["original"]

RESUMES = "mid-epoch"
EXACT = False
TOLD = ("was not passed to",)
TOLD_AFTER = ("was not passed to",)
FIRST_KILL = 5


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, lr_scheduler = build()
    with colabkeep.Run("boxes", model=model, optimizer=optimizer, scheduler=lr_scheduler) as run:
        for epoch in run.epochs(EPOCHS):
            model.train()
            warm = warm_up(optimizer, loader) if epoch == 0 else None
            for images, targets in run.batches(loader):
                run.step(loss=update(model, optimizer, images, targets))
                if warm is not None:
                    warm.step()
            lr_scheduler.step()
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}
