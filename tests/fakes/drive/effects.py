"""What a fault does to a request. The functions at the end are for tests; the classes do it inside the server.

An effect may step in at four places: before the request is acted on, on the bytes that come in, around the act, and on
the bytes that go out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tests.fakes.drive.answers import Answer, ApiError, html_answer
from tests.fakes.drive.faults import Fault
from tests.fakes.drive.ids import fresh, fresh_file_id
from tests.fakes.drive.requests import INDEXES, Hangup, Index, Request
from tests.fakes.drive.settings import USER

if TYPE_CHECKING:
    from tests.fakes.drive.state import State


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
    """Answer with this status and reason; nothing is done. `retry_after` seconds go into that header."""

    status: int
    reason: str = "backendError"
    message: str = ""
    retry_after: int | None = None

    def before(self, state: State, request: Request) -> Answer | None:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        text = self.message or f"A fault of the test: {self.reason}."
        return ApiError(self.status, self.reason, text, headers=headers).answer()


@dataclass
class Html(Effect):
    """A page instead of JSON, as a proxy in between writes it."""

    status: int = 502

    def before(self, state: State, request: Request) -> Answer | None:
        return html_answer(self.status)


@dataclass
class ResetRequest(Effect):
    """The connection is reset when `after` bytes of the request's body have come."""

    after: int

    def before(self, state: State, request: Request) -> Answer | None:
        request.body.through(lambda pieces: _until(pieces, self.after, _hang_up))
        return None


@dataclass
class ResetAnswer(Effect):
    """It is done, and the connection is reset when `after` bytes of the answer's body have gone."""

    after: int

    def outgoing(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return _until(pieces, self.after, _hang_up)


@dataclass
class LoseAnswer(Effect):
    """It is done, and after so many seconds of silence the connection is reset: the client does not learn of it."""

    seconds: float = 0.0

    def act(self, state: State, request: Request, perform: Callable[[], Answer]) -> Answer:
        perform()
        time.sleep(self.seconds)
        raise Hangup("the answer is lost")


@dataclass
class Silence(Effect):
    """Nothing is read, done or said; after so many seconds the connection is reset."""

    seconds: float

    def before(self, state: State, request: Request) -> Answer | None:
        time.sleep(self.seconds)
        raise Hangup("nothing is said")


@dataclass
class Slow(Effect):
    """A slow link, both ways."""

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
    """One bit of the body's byte number `at` is turned over on the way."""

    at: int = 0
    of: Literal["request", "answer"] = "answer"

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
    """All access tokens are dead from here on; a refresh gives new ones."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.tokens.expire()
        return None


class Revoke(Effect):
    """The user takes back the consent: refresh tokens are dead as well."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.tokens.revoke()
        return None


class FillQuota(Effect):
    """Mail and photos take all that was free, before this request is acted on."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            used, _ = state.files.usage(USER)
            assert state.settings.quota_bytes is not None, "an unlimited Drive cannot be filled"
            state.settings.others_bytes = max(state.settings.others_bytes, state.settings.quota_bytes - used)
            state.save_settings()
        return None


class DropSession(Effect):
    """The upload session that the request speaks of is forgotten."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.uploads.forget(request.query.get("upload_id", ""))
        return None


class CancelUpload(Effect):
    """The upload session that the request speaks of was cancelled before."""

    def before(self, state: State, request: Request) -> Answer | None:
        with state.guard:
            state.uploads.cancel(request.query.get("upload_id", ""))
        return None


@dataclass
class StaleListing(Effect):
    """This listing does not show what is younger than so many seconds, if it asks by one of these; by its id a file is
    always found. `everywhere`: whatever it asks by. `within`: only what lies in folders of these names is hidden.

    Sources: by name, kopia/kopia issue 90; by parent, minutes after the upload, bellingcat/auto-archiver issue 191. No
    source says how long it lasts, nor that it is exact by properties.
    """

    seconds: float = 1e9
    by: Sequence[Index] = ("name",)
    within: Sequence[str] = ()
    everywhere: bool = False

    def before(self, state: State, request: Request) -> Answer | None:
        request.hide_newer_than, request.hide_by = self.seconds, frozenset(INDEXES if self.everywhere else self.by)
        request.hide_within = tuple(self.within)
        return None


@dataclass
class PartialListing(Effect):
    """A listing of several parents has the children of only some of them, and says that it is complete: none of those
    in folders of these names; where none is named, those of the first parent only.

    Source: rclone/rclone issue 9810 (August 2026), googleapis/google-api-nodejs-client issue 1957.
    """

    folders: Sequence[str] = ()

    def before(self, state: State, request: Request) -> Answer | None:
        request.partial = tuple(self.folders)
        return None


@dataclass
class ShortPage(Effect):
    """This page of a listing has so many files at most, whatever was asked for, and says whether there are more; none
    at all is no end either ("nextPageToken" in the discovery documents; googleapis/google-api-nodejs-client issue 722:
    of 200 that were asked for, between none and 100 came; google-api-dotnet-client issue 808: of 1000 with their
    parents, 460)."""

    files: int = 0

    def before(self, state: State, request: Request) -> Answer | None:
        request.page_files = self.files
        return None


class ActTwice(Effect):
    """What is created is created twice, as when a front end inside the service tries again."""

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
    """The server dies as if killed and is back after so many seconds.

    It dies when `after` bytes of the request have come; else before it acts, or with `acted` when it has, unsaid.
    """

    after: int | None = None
    acted: bool = False
    seconds: float = 0.0

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


def _fault(kind: type[Any]) -> Callable[..., Fault]:
    """What a test calls, with the fields of the effect, to ask for it."""
    return lambda *values, **options: Fault(kind.__name__, dict(vars(kind(*values, **options))))


refuse, html, reset_request, reset_answer = map(_fault, (Refuse, Html, ResetRequest, ResetAnswer))
lose_answer, silence, slow, wrong_byte = map(_fault, (LoseAnswer, Silence, Slow, WrongByte))
expire_tokens, revoke, fill_quota = map(_fault, (ExpireTokens, Revoke, FillQuota))
drop_session, cancel_upload, act_twice, restart = map(_fault, (DropSession, CancelUpload, ActTwice, Restart))
stale_listing, short_page = map(_fault, (StaleListing, ShortPage))


def partial_listing(*folders: str) -> Fault:
    """See `PartialListing`."""
    return Fault("PartialListing", {"folders": list(folders)})


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
