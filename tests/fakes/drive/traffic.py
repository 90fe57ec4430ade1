"""The log of all requests, for tests that say what must, or must not, have been asked."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.fakes.drive.answers import Answer
from tests.fakes.drive.requests import Request

KEPT_HEADERS = ("Content-Range", "Range", "Content-Type", "X-Upload-Content-Length", "User-Agent")


@dataclass(frozen=True)
class Seen:
    """One request. `received` and `sent` count the bytes of the bodies; `status` None: nothing was answered.

    `sent` is what the answer says of itself; where `fault` is set less of it may have gone out. `answer`: the JSON,
    where the settings ask for it.
    """

    number: int
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    client: str | None
    received: int
    status: int | None
    sent: int
    fault: str | None
    answer: Any = None


class Traffic:
    """An append-only file of JSON lines. A line is there before the client has the whole answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._count = len(read(path))
        if path.exists():  # half a line, where the server was killed while it wrote one
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

    def note(self, request: Request, answer: Answer | None, fault: str | None, *, keep_answer: bool = False) -> None:
        """Log one request and what became of it."""
        seen = Seen(
            number=0,
            method=request.method,
            path=request.path,
            query=request.query,
            headers={name: request.headers[name] for name in KEPT_HEADERS if name in request.headers},
            client=request.client,
            received=request.body.received,
            status=answer.status if answer is not None else None,
            sent=answer.length if answer is not None else 0,
            fault=fault,
            answer=answer.value if answer is not None and keep_answer else None,
        )
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(asdict(replace(seen, number=self._count))) + "\n")
            self._count += 1


def read(path: Path) -> list[Seen]:
    """The requests so far, in the order of their answers."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")  # what follows is being written
    return [Seen(**json.loads(line)) for line in whole.splitlines()]
