"""What a fault does to a request. The functions at the top are for tests; the classes do it inside the server.

An effect may step in at four places: before the request is acted on, on the bytes that come in, around the act, and on
the bytes that go out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from tests.fakes.drive.answers import Answer, ApiError, html_answer
from tests.fakes.drive.faults import Fault
from tests.fakes.drive.ids import fresh, fresh_file_id
from tests.fakes.drive.requests import INDEXES, Hangup, Index, Request
from tests.fakes.drive.settings import USER

if TYPE_CHECKING:
    from tests.fakes.drive.state import State


def refuse(status: int, reason: str = "backendError", *, message: str = "", retry_after: int | None = None) -> Fault:
    """Answer with this status and reason; nothing is done. `retry_after` seconds go into that header."""
    return Fault("Refuse", {"status": status, "reason": reason, "message": message, "retry_after": retry_after})


def html(status: int = 502) -> Fault:
    """A page instead of JSON, as a proxy in between writes it."""
    return Fault("Html", {"status": status})


def reset_request(after: int) -> Fault:
    """The connection is reset when `after` bytes of the request's body have come."""
    return Fault("ResetRequest", {"after": after})


def reset_answer(after: int) -> Fault:
    """It is done, and the connection is reset when `after` bytes of the answer's body have gone."""
    return Fault("ResetAnswer", {"after": after})


def lose_answer(seconds: float = 0.0) -> Fault:
    """It is done, and after so many seconds of silence the connection is reset: the client does not learn of it."""
    return Fault("LoseAnswer", {"seconds": seconds})


def silence(seconds: float) -> Fault:
    """Nothing is read, done or said; after so many seconds the connection is reset."""
    return Fault("Silence", {"seconds": seconds})


def slow(bytes_per_second: int) -> Fault:
    """A slow link, both ways."""
    return Fault("Slow", {"bytes_per_second": bytes_per_second})


def wrong_byte(at: int = 0, *, of: Literal["request", "answer"] = "answer") -> Fault:
    """One bit of the body's byte number `at` is turned over on the way."""
    return Fault("WrongByte", {"at": at, "of": of})


def expire_tokens() -> Fault:
    """All access tokens are dead from here on; a refresh gives new ones."""
    return Fault("ExpireTokens")


def revoke() -> Fault:
    """The user takes back the consent: refresh tokens are dead as well."""
    return Fault("Revoke")


def fill_quota() -> Fault:
    """Mail and photos take all that was free, before this request is acted on."""
    return Fault("FillQuota")


def drop_session() -> Fault:
    """The upload session that the request speaks of is forgotten."""
    return Fault("DropSession")


def cancel_upload() -> Fault:
    """The upload session that the request speaks of was cancelled before."""
    return Fault("CancelUpload")


def stale_listing(
    seconds: float = 1e9, *, by: Sequence[Index] = ("name",), within: Sequence[str] = (), everywhere: bool = False
) -> Fault:
    """This listing does not show what is younger than so many seconds, if it asks by one of these; by its id a file is
    always found. `everywhere`: whatever it asks by. `within`: only what lies in folders of these names is hidden.

    Sources: by name, kopia/kopia issue 90; by parent, minutes after the upload, bellingcat/auto-archiver issue 191. No
    source says how long it lasts, nor that it is exact by properties.
    """
    return Fault(
        "StaleListing", {"seconds": seconds, "by": list(INDEXES if everywhere else by), "within": list(within)}
    )


def partial_listing(*folders: str) -> Fault:
    """A listing of several parents has the children of only some of them, and says that it is complete: none of those
    in folders of these names; where none is named, those of the first parent only.

    Source: rclone/rclone issue 9810 (August 2026), googleapis/google-api-nodejs-client issue 1957.
    """
    return Fault("PartialListing", {"folders": list(folders)})


def short_page(files: int = 0) -> Fault:
    """This page of a listing has so many files at most, whatever was asked for, and says whether there are more; none
    at all is no end either ("nextPageToken" in the discovery documents; googleapis/google-api-nodejs-client issue 722:
    of 200 that were asked for, between none and 100 came; google-api-dotnet-client issue 808: of 1000 with their
    parents, 460)."""
    return Fault("ShortPage", {"files": files})


def act_twice() -> Fault:
    """What is created is created twice, as when a front end inside the service tries again."""
    return Fault("ActTwice")


def restart(*, after: int | None = None, acted: bool = False, seconds: float = 0.0) -> Fault:
    """The server dies as if killed and is back after so many seconds.

    It dies when `after` bytes of the request have come; else before it acts, or with `acted` when it has, unsaid.
    """
    return Fault("Restart", {"after": after, "acted": acted, "seconds": seconds})


class Effect:
    """Nothing goes wrong. Each kind of fault changes one or two of these."""

    def before(self, state: State, request: Request) -> Answer | None:
        """Change the world or the request first; an answer ends it here."""
        return None

    def act(self, state: State, request: Request, perform: Callable[[], Answer]) -> Answer:
        """Do what was asked, once, twice or not at all."""
        return perform()

    def outgoing(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The answer's bytes."""
        return pieces


@dataclass
class Refuse(Effect):
    """See `refuse`."""

    status: int
    reason: str
    message: str
    retry_after: int | None

    def before(self, state: State, request: Request) -> Answer | None:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        text = self.message or f"A fault of the test: {self.reason}."
        return ApiError(self.status, self.reason, text, headers=headers).answer()


@dataclass
class Html(Effect):
    """See `html`."""

    status: int

    def before(self, state: State, request: Request) -> Answer | None:
        return html_answer(self.status)


@dataclass
class ResetRequest(Effect):
    """See `reset_request`."""

    after: int

    def before(self, state: State, request: Request) -> Answer | None:
        request.body.through(lambda pieces: _until(pieces, self.after, _hang_up))
        return None


@dataclass
class ResetAnswer(Effect):
    """See `reset_answer`."""

    after: int

    def outgoing(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return _until(pieces, self.after, _hang_up)


@dataclass
class LoseAnswer(Effect):
    """See `lose_answer`."""

    seconds: float

    def act(self, state: State, request: Request, perform: Callable[[], Answer]) -> Answer:
        perform()
        time.sleep(self.seconds)
        raise Hangup("the answer is lost")


@dataclass
class Silence(Effect):
    """See `silence`."""

    seconds: float

    def before(self, state: State, request: Request) -> Answer | None:
        time.sleep(self.seconds)
        raise Hangup("nothing is said")


@dataclass
class Slow(Effect):
    """See `slow`."""

    bytes_per_second: int

    def before(self, state: State, request: Request) -> Answer | None:
        request.body.through(self.outgoing)
        return None

    def outgoing(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        step = max(1, self.bytes_per_second // 20)
        for piece in pieces:
            for start in range(0, len(piece), step):
                part = piece[start : start + step]
                time.sleep(len(part) / self.bytes_per_second)
                yield part


@dataclass
class WrongByte(Effect):
    """See `wrong_byte`."""

    at: int
    of: str

    def before(self, state: State, request: Request) -> Answer | None:
        if self.of == "request":
            request.body.through(self._turned)
        return None

    def outgoing(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return self._turned(pieces) if self.of == "answer" else pieces

    def _turned(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        gone = 0
        for piece in pieces:
            place = self.at - gone
            gone += len(piece)
            if 0 <= place < len(piece):
                yield piece[:place] + bytes([piece[place] ^ 1]) + piece[place + 1 :]
            else:
                yield piece


class ExpireTokens(Effect):
    """See `expire_tokens`."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.tokens.expire()
        return None


class Revoke(Effect):
    """See `revoke`."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.tokens.revoke()
        return None


class FillQuota(Effect):
    """See `fill_quota`."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            used, _ = state.files.usage(USER)
            assert state.settings.quota_bytes is not None, "an unlimited Drive cannot be filled"
            state.settings.others_bytes = max(state.settings.others_bytes, state.settings.quota_bytes - used)
            state.save_settings()
        return None


class DropSession(Effect):
    """See `drop_session`."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.uploads.forget(request.query.get("upload_id", ""))
        return None


class CancelUpload(Effect):
    """See `cancel_upload`."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.uploads.cancel(request.query.get("upload_id", ""))
        return None


@dataclass
class StaleListing(Effect):
    """See `stale_listing`."""

    seconds: float
    by: list[Index]
    within: list[str]

    def before(self, state: State, request: Request) -> Answer | None:
        request.hide_newer_than, request.hide_by = self.seconds, frozenset(self.by)
        request.hide_within = tuple(self.within)
        return None


@dataclass
class PartialListing(Effect):
    """See `partial_listing`."""

    folders: list[str]

    def before(self, state: State, request: Request) -> Answer | None:
        request.partial = tuple(self.folders)
        return None


@dataclass
class ShortPage(Effect):
    """See `short_page`."""

    files: int

    def before(self, state: State, request: Request) -> Answer | None:
        request.page_files = self.files
        return None


class ActTwice(Effect):
    """See `act_twice`."""

    def act(self, state: State, request: Request, perform: Callable[[], Answer]) -> Answer:
        with state.guard:
            first = state.files.next_number()
        answer = perform()
        with state.guard:
            for file in [file for file in state.files if file.number >= first]:
                revision = None if file.revision is None else fresh()
                if file.revision is not None and revision is not None:
                    state.contents.copy(file.revision, revision)
                twin = replace(file, id=fresh_file_id(), revision=revision, number=state.files.next_number())
                state.files.save(twin)
        return answer


@dataclass
class Restart(Effect):
    """See `restart`."""

    after: int | None
    acted: bool
    seconds: float

    def before(self, state: State, request: Request) -> Answer | None:
        if self.after is not None:
            size = self.after
            request.body.through(lambda pieces: _until(pieces, size, lambda: self._die(state, request)))
        elif not self.acted:
            self._die(state, request)
        return None

    def act(self, state: State, request: Request, perform: Callable[[], Answer]) -> Answer:
        perform()
        self._die(state, request)

    def _die(self, state: State, request: Request) -> NoReturn:
        state.traffic.note(request, None, "Restart")
        # The new program in this process has neither the memory, the threads nor the connections of the old one.
        os.execv(sys.executable, [*state.command, f"--pause={self.seconds}"])


def effect_of(fault: Fault | None) -> Effect:
    """The effect that a fault names."""
    if fault is None:
        return Effect()
    kind = {one.__name__: one for one in Effect.__subclasses__()}[fault.do]
    return kind(**fault.options)


def _until(pieces: Iterator[bytes], size: int, then: Callable[[], None]) -> Iterator[bytes]:
    """The first `size` bytes, and what then happens; at the end at the latest, so that a fault is never left out."""
    for piece in pieces:
        if len(piece) >= size:
            if size:
                yield piece[:size]
            break
        size -= len(piece)
        yield piece
    then()


def _hang_up() -> None:
    raise Hangup("reset")
