"""What can go wrong, on the n-th request of a kind."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ["Action", "Answer", "Cut", "Damaged", "Door", "Fault", "LostReply", "Silence"]


@dataclass(frozen=True)
class Answer:
    """An answer with this code instead; the request is not carried out."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"<html>502 Bad Gateway</html>"


@dataclass(frozen=True)
class Cut:
    """The connection breaks after so many bytes of the file, going either way."""

    after: int


@dataclass(frozen=True)
class LostReply:
    """The request is carried out, and its answer never arrives."""


@dataclass(frozen=True)
class Damaged:
    """A download has one wrong byte."""


@dataclass(frozen=True)
class Silence:
    """No answer ever, until the server is closed."""


@dataclass(frozen=True)
class Door:
    """The request waits until the door is opened; `reached` tells that it waits."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


Action = Answer | Cut | LostReply | Damaged | Door | Silence


@dataclass
class Fault:
    """`action` happens to the requests of kind `on` (a method's name; PUT, STATUS of an upload; GET of a file), after
    `skip` of them, `times` times."""

    on: str
    action: Action
    skip: int = 0
    times: int = 1
