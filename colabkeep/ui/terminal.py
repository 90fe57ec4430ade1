"""One line of a terminal that is written over while work goes on."""

from __future__ import annotations

import os
from typing import TextIO

_WIDE = 80  # columns of a terminal that does not tell


class MovingLine:
    """The last line of `stream`: `show` writes over it where `moves` (the stream is a terminal), `line` leaves a line
    behind. No text ends in an error for want of letters: a locale that has none gets question marks."""

    def __init__(self, stream: TextIO, *, moving: bool = True) -> None:
        self._stream = stream
        self._width = 0
        self.moves = moving and stream.isatty()

    def show(self, text: str) -> None:
        """Have this as the line that moves; elsewhere it stays."""
        if not self.moves:
            self.line(text)
            return
        text = text[: _columns(self._stream) - 1]  # a line that is broken in two cannot be written over
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self.end()
        self._write(text + "\n")

    def end(self) -> None:
        """Remove the line that moves."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding, "replace"))
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDE
    except (OSError, ValueError):  # a terminal that does not tell, or a stream that is no file
        return _WIDE
