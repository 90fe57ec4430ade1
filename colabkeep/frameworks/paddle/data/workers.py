"""What Paddle's workers, or the training thread, load: whole batches, each seeded by its tag."""

from __future__ import annotations

import gc
import signal
from typing import Any

from paddle.io import get_worker_info

from colabkeep.frameworks.common.cargo import Cargo, is_probing, tagged
from colabkeep.frameworks.common.lifeline import die_with_trainer

__all__ = ["Batches", "WorkerInit", "only"]

_SEED = 2**63 - 1  # the largest


class Batches:
    """The user's data set and collate function as one data set of batches, random streams seeded before each.

    With `bare`, of single items. Its index is all that Paddle sees of a batch, so that `only` is left to collate.
    """

    def __init__(self, cargo: Cargo, *, bare: bool) -> None:
        self._cargo = cargo
        self._bare = bare

    def __getitem__(self, index: Any) -> Any:
        cargo = self._cargo
        if tagged(index):
            return cargo.load(index, self._read)
        return cargo.look(*index[1:]) if is_probing(index) else self._read(index)

    def _read(self, index: Any) -> Any:
        cargo, dataset = self._cargo, self._cargo.dataset
        return cargo.collate_fn(dataset[index] if self._bare else [dataset[one] for one in index])


def only(batch: list[Any]) -> Any:
    """The one member of a list."""
    (member,) = batch
    return member


class WorkerInit:
    """What a worker does first: bind its life to the trainer's, then the user's own `worker_init_fn`."""

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo
        self._collects = gc.isenabled()

    def __call__(self, worker: int) -> None:
        # Paddle's worker asks whether its parent lives only when it waited for work in vain, which it never does.
        die_with_trainer()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides what an interrupted cell still needs
        gc.freeze()  # what the trainer left in the garbage is the trainer's to collect: see `Reader`
        if self._collects:
            gc.enable()
        info: Any = get_worker_info()
        try:
            self._cargo.start_worker(info, worker, (info.seed + worker) & _SEED)
        except Exception as error:  # noqa: BLE001 - it is raised where the training is
            self._cargo.failure = error
