"""All the server knows, kept on disk so that a killed server comes back knowing it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.drive.budgets import Budgets
from tests.fakes.drive.content import Contents
from tests.fakes.drive.discovery import Discovery
from tests.fakes.drive.faults import FaultList
from tests.fakes.drive.files import Files
from tests.fakes.drive.settings import Settings
from tests.fakes.drive.shelf import Shelf
from tests.fakes.drive.tokens import Tokens
from tests.fakes.drive.traffic import Traffic
from tests.fakes.drive.uploads import Uploads


class State:
    """The parts, and `guard`, which is held while any of them changes and never while bytes are on the wire.

    `command` starts this server again.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.command = command
        self.guard = threading.RLock()
        self.discovery = Discovery()
        self._settings = Shelf(folder / "settings", Settings)
        self.settings = self._settings.get("settings") or Settings()
        self.files = Files(folder / "files", self.settings.shared_drives)
        self.contents = Contents(folder / "contents")
        self.uploads = Uploads(folder / "uploads")
        self.budgets = Budgets()
        self.tokens = Tokens(folder / "tokens")
        self.faults = FaultList(folder / "faults.json")
        self.traffic = Traffic(folder / "requests.jsonl")

    def now(self) -> float:
        """The server's clock, seconds since 1970."""
        return time.time() + self.settings.skew_seconds

    def save_settings(self) -> None:
        """Keep the settings as they are now."""
        self._settings.save("settings", self.settings)
