"""Loaders that went through Hugging Face Accelerate: one around another, which moves its batches to the device."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from colabkeep.frameworks.common.adapting import twin
from colabkeep.vocabulary.errors import UsageError

__all__ = ["around", "unprepared"]


def unprepared(loader: Any) -> DataLoader[Any]:
    """The loader that was prepared; any other loader is that itself.

    Raises:
        UsageError: it was prepared in a way whose batches cannot be placed again.
    """
    module = sys.modules.get("accelerate.data_loader")
    if module is None or not type(loader).__module__.startswith("accelerate."):
        return loader  # type: ignore[no-any-return] # a DataLoader
    base = loader.__dict__.get("base_dataloader")  # past its __getattr__, which would ask the loader inside
    sharded = type(loader) is module.DataLoaderShard and not loader.skip_batches
    if sharded and base is not None and not isinstance(base.dataset, IterableDataset) and _alone(loader):
        return base  # type: ignore[no-any-return]
    raise UsageError(
        problem=f"This loader was prepared by Accelerate ({type(loader).__name__}), in a way that cannot be resumed: "
        "it skips, dispatches or streams batches, or shares them with other processes.",
        remedy="Hand in the DataLoader as it was before accelerator.prepare, and move each batch yourself: "
        "batch = accelerate.utils.send_to_device(batch, accelerator.device). Model, optimizer and scheduler may be "
        "prepared as before.",
    )


def around(loader: Any, adapted: DataLoader[Any]) -> Any:
    """What reads `adapted` as `loader` would read the loader that it was made from. Batches go to the device, and
    Accelerate learns when an epoch ends: its gradient accumulation goes by that."""
    return adapted if unprepared(loader) is loader else twin(loader, type(loader), {"base_dataloader": adapted})


def _alone(loader: Any) -> bool:
    return getattr(loader.batch_sampler, "num_processes", 1) == 1  # that of a BatchSamplerShard
