"""What goes wrong, when asked to: which requests (`Fault`), and which of them is next (`FaultList`).

A test writes `effects.refuse(503)` and says with `on` which requests it means::

    drive.faults(refuse(503).on("PUT", "/upload/", skip=2, count=1))     # the third chunk, once
    drive.faults(lose_answer().on(chance=0.3, seed=7, count=None))       # three of ten requests, for ever

The first fault of the list that meets a request takes it. Counting goes on over a restart.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fakes.drive.requests import Request


@dataclass(frozen=True)
class Fault:
    """`do` names the effect and `options` are its arguments; the rest says which requests it meets.

    `method` None: any. `path` and `content_range` are searched for as regular expressions (`content_range` "bytes
    \\d": only PUTs that carry a chunk, no status queries). Of the requests that fit, the first `skip` pass, then
    `count` are met (None: all), each with the probability `chance`, drawn from `seed`. `seen` counts those that fit.
    """

    do: str
    options: dict[str, Any] = field(default_factory=dict)
    method: str | None = None
    path: str = ""
    content_range: str = ""
    skip: int = 0
    count: int | None = 1
    chance: float = 1.0
    seed: int = 0
    seen: int = 0
    met: int = 0

    def on(
        self,
        method: str | None = None,
        path: str = "",
        *,
        content_range: str = "",
        skip: int = 0,
        count: int | None = 1,
        chance: float = 1.0,
        seed: int = 0,
    ) -> Fault:
        """The same fault for these requests."""
        return replace(
            self,
            method=method,
            path=path,
            content_range=content_range,
            skip=skip,
            count=count,
            chance=chance,
            seed=seed,
        )

    def fits(self, request: Request) -> bool:
        """Is the request one of those meant, apart from counting?"""
        return (
            self.method in (None, request.method)
            and re.search(self.path, request.path) is not None
            and re.search(self.content_range, request.headers.get("Content-Range", "")) is not None
        )

    def counted(self) -> tuple[Fault, bool]:
        """The fault after one more fitting request, and whether that one is met."""
        met = self.seen >= self.skip and (self.count is None or self.met < self.count)
        met = met and random.Random(f"{self.seed}/{self.seen}").random() < self.chance
        return replace(self, seen=self.seen + 1, met=self.met + met), met


class FaultList:
    """The faults of a running server, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._faults = load(path) if path.exists() else []

    def set(self, faults: Iterable[Fault]) -> None:
        """These instead of those before; counting starts anew."""
        with self._lock:
            self._faults = list(faults)
            self._save()

    def next(self, request: Request) -> Fault | None:
        """The fault that meets this request."""
        with self._lock:
            for place, fault in enumerate(self._faults):
                if fault.fits(request):
                    self._faults[place], met = fault.counted()
                    self._save()
                    if met:
                        return fault
        return None

    def _save(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(dump(self._faults))
        temporary.replace(self._path)


def dump(faults: Iterable[Fault]) -> str:
    """The faults as a --faults file."""
    return json.dumps([asdict(fault) for fault in faults], indent=1)


def load(path: Path) -> list[Fault]:
    """The faults of a --faults file."""
    return [Fault(**one) for one in json.loads(path.read_text())]
