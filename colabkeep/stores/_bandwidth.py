"""How fast a link is, from what was sent over it lately."""

from __future__ import annotations

__all__ = ["Meter"]

_WINDOW = 60.0  # seconds of sending that count in full; what was sent before fades, so a link that changes is seen


class Meter:
    """Bytes per second of sending: the time in which nothing was to be sent does not count."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    @property
    def bytes_per_second(self) -> float | None:
        """None as long as nothing was sent."""
        return self._bytes / self._seconds if self._seconds > 0 else None

    def add(self, size: int, seconds: float) -> None:
        """So many bytes took so long."""
        self._bytes += size
        self._seconds += seconds
        if self._seconds > _WINDOW:
            self._bytes *= _WINDOW / self._seconds
            self._seconds = _WINDOW
