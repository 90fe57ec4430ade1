"""One request as it comes in, its body still on the wire."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, TypeAlias

from tests.fakes.drive.content import PIECE

Index: TypeAlias = Literal["name", "parents", "properties"]
"""What a listing may ask by, which may lag behind what was written. One that asks by nothing needs all three."""

INDEXES: tuple[Index, ...] = ("name", "parents", "properties")


class Hangup(Exception):
    """The connection ends here, without a word, or in the middle of one."""


class Body:
    """The bytes that follow the headers; they can be had once. `received` counts them as they come off the wire."""

    def __init__(self, stream: BinaryIO, headers: Mapping[str, str]) -> None:
        self.received = 0
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        self.length = None if chunked else int(headers.get("Content-Length", 0))
        self._pieces = self._counted(_chunked(stream) if self.length is None else _sized(stream, self.length))

    def through(self, change: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
        """From here on the bytes come as `change` hands them on."""
        self._pieces = change(self._pieces)

    def pieces(self) -> Iterator[bytes]:
        """What has not been had yet. Raises Hangup where the client goes away."""
        return self._pieces

    def read(self) -> bytes:
        """All of it at once."""
        return b"".join(self._pieces)

    def hold(self) -> None:
        """Take all of it off the wire now, for `read` later."""
        self._pieces = iter((self.read(),))

    def drain(self) -> None:
        """Read what nobody wanted, so that the client reads its answer instead of a reset."""
        for _ in self._pieces:
            pass

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.received += len(piece)
            yield piece


@dataclass
class Request:
    """`query` has the last value of each parameter; `base` is the server as the client names it, with a slash.

    `hide_newer_than` seconds: what is younger is not in these indexes yet, `hide_by`; with `hide_within` only what
    lies in folders of these names (a fault sets all three). `partial`: of several parents only the first is answered
    for; or, of these names, all others (a fault sets it). `page_files`: a page has so many at most (a fault sets it).
    """

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Body
    base: str
    hide_newer_than: float = 0.0
    hide_by: frozenset[Index] = frozenset()
    hide_within: tuple[str, ...] = ()
    page_files: int | None = None
    partial: tuple[str, ...] | None = None
    client: str | None = field(default=None)

    @property
    def bearer(self) -> str | None:
        """The access token, from the header or, as the "access_token" parameter of the discovery documents, the URL."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else self.query.get("access_token")

    def flag(self, *names: str) -> bool:
        """Is one of these parameters "true"?"""
        return any(self.query.get(name) == "true" for name in names)

    def form(self) -> dict[str, str]:
        """Query and form body together."""
        return self.query | dict(urllib.parse.parse_qsl(self.body.read().decode(), keep_blank_values=True))


def incoming(method: str, target: str, headers: Mapping[str, str], stream: BinaryIO, scheme: str) -> Request:
    """The request as the rest of the server sees it."""
    path, _, query = target.partition("?")
    parameters = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    base = f"{scheme}://{headers.get('Host', 'localhost')}/"
    return Request(method, urllib.parse.unquote(path), parameters, headers, Body(stream, headers), base)


def _sized(stream: BinaryIO, left: int) -> Iterator[bytes]:
    while left:
        try:
            piece: bytes = stream.read1(min(PIECE, left))  # type: ignore[attr-defined]
        except OSError as error:
            raise Hangup("the client reset the connection") from error
        if not piece:
            raise Hangup("the client went away")
        left -= len(piece)
        yield piece


def _chunked(stream: BinaryIO) -> Iterator[bytes]:
    while True:
        head = re.match(rb"([0-9A-Fa-f]+)", stream.readline(1024))
        if head is None:
            raise Hangup("the client went away between two chunks")
        size = int(head[1], 16)
        yield from _sized(stream, size)
        while size == 0 and stream.readline(1024).strip():
            pass  # trailers
        if size == 0:
            return
        stream.readline(8)
