"""What one of torch's workers does first."""

from __future__ import annotations

import signal
from typing import Any

from torch.utils.data import get_worker_info

from colabkeep.frameworks.common.cargo import Cargo
from colabkeep.frameworks.common.lifeline import die_with_trainer

__all__ = ["WorkerInit"]


class WorkerInit:
    """What a worker does first: bind its life to the trainer's, then the user's own `worker_init_fn`."""

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo

    def __call__(self, worker: int) -> None:
        die_with_trainer()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the trainer's is not a worker's
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides what an interrupted cell still needs
        info: Any = get_worker_info()
        self._cargo.start_worker(info, worker, info.seed)
