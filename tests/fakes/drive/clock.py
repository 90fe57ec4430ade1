"""A clock of tests that the server follows."""

from __future__ import annotations

import time

from colabkeep.testing.clock import FakeClock
from tests.fakes.drive.running import Drive


class SharedClock(FakeClock):
    """One time for all machines and for the service: where one waits, time passes for everybody, and at once."""

    def __init__(self, drive: Drive) -> None:
        super().__init__(time=time.time())
        self._drive = drive

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._drive.set(skew_seconds=self.monotonic())
