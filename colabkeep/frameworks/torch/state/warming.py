"""The first touch of staging memory, in the background at the start of a session: 0.1 to 0.4 s for 100 MB on free
notebooks, which the first save would else wait for."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterable

from colabkeep.frameworks.torch.state.host_memory import ORDINARY
from colabkeep.frameworks.torch.state.staging import Slot
from colabkeep.vocabulary.priority import FAR, give_way

__all__ = ["Warming"]

_PIECE = 2**20  # bytes: a fraction of a millisecond, the longest that `stop` waits


class Warming:
    """Writes to memory that nobody uses yet. Its thread ends by itself, or when told to `stop`."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, slots: Iterable[Slot]) -> None:
        """Touch the memory of those slots that nothing was copied to yet."""
        self.stop()
        cold = [slot for slot in slots if not slot.touched and slot.kind == ORDINARY]  # other memory is there already
        if cold:
            self._stopped.clear()
            thread = threading.Thread(target=self._run, args=(cold,), name="colabkeep-warm")
            # Where no thread is to be had, the first save takes longer.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Return when no memory is written to any more: somebody is about to use it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, slots: list[Slot]) -> None:
        give_way(FAR)
        for slot in slots:
            address, size = slot.memory.data_ptr(), slot.memory.nbytes
            for start in range(0, size, _PIECE):
                if self._stopped.is_set():
                    return
                ctypes.memset(address + start, 0, min(_PIECE, size - start))
            slot.touched = True
