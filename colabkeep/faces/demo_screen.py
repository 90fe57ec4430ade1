"""Where the demo writes: lines that stay, and on a terminal one that moves."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TextIO

__all__ = ["Screen"]

_MOVING = 0.1  # seconds between two states of the moving line
_STAYING = 10.0  # and between two of its states where lines stay (files, logs)


class Screen:
    """Calm output to one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty()
        self._next = time.monotonic()
        self._shown = ""

    def live(self, text: str) -> None:
        """What is happening right now; not every call is shown."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_MOVING if self._moves else _STAYING)
        if not self._moves:
            self._write(f"  … {text}\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._clear()
        self._shown = f"  … {text}"[:width]
        self._write(self._shown)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self._write(text + "\n")

    def table(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Rows of cells; the first column to the left, the others to the right."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            cells = [
                first.ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)),
            ]
            self.line("  " + "   ".join(cells).rstrip())

    def _clear(self) -> None:
        if self._shown:
            self._write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
