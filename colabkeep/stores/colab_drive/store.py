"""The store. What it does and why is told on the package's page; how long it waits for a mount that does not
answer, and how it reads through one that goes away.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit

from colabkeep.core.errors import ColabKeepError, ObjectNotFound, StoreUnavailable, UsageError
from colabkeep.core.rate_limits import DRIVE
from colabkeep.core.system import Clock
from colabkeep.stores.base import (
    Entry,
    Receipt,
    Source,
    Store,
    StoreContext,
    StoreProperties,
    check_name,
    check_prefix,
    explained,
    needs_of,
    run_of,
    shown,
)
from colabkeep.stores.colab_drive.files import READ, Draft, Objects, Spot, drive_part
from colabkeep.stores.colab_drive.uploads import SILENCE, Upload, Uploads, ask
from colabkeep.stores.shared.files import OS_FILES, SECONDS, Files, Silence, watched
from colabkeep.stores.shared.streaming import ranged

# An outage begins when a call gave up, and ends when one succeeds. Within one, calls do not wait: training's saves must
# not be held up by seconds each for as long as the mount is away.

_T = TypeVar("_T")

_MEANS = "What Drive does not have yet is only on this machine and would be lost with it. Training continues."
_REMEDY = (
    "It often comes back by itself. If it does not within some minutes: stop this cell, run  import colabkeep; "
    "colabkeep.mount()  in a cell of its own, and run this cell again. Nothing is lost by that."
)


class Patience:
    """Calls work that may raise `StoreUnavailable`, again after each of `pauses` (seconds), and mounts once in between:
    `remount` is `StoreContext.remount`.

    `trouble` is the sentence for the user while an outage lasts, else None.
    """

    def __init__(self, url: str, clock: Clock, pauses: tuple[float, ...], remount: Callable[[], object] | None) -> None:
        self._url = url
        self._clock = clock
        self._pauses = pauses
        self._remount = remount
        self._tried: str | None = None  # what mounting again came to, in this outage
        self._guard = threading.Lock()
        self.trouble: str | None = None

    def __call__(self, work: Callable[[], _T], *, again: Callable[[], bool] = lambda: True, quick: bool = False) -> _T:
        """What `work` returns. `again`: may it be tried again? `quick`: do not wait."""
        pauses = iter(() if quick or self.trouble is not None else self._pauses)
        while True:
            try:
                result = work()
            except StoreUnavailable as error:
                if not again():
                    raise
                pause = next(pauses, None)
                if pause is not None:
                    self._clock.sleep(pause)
                elif not self._mounted_again():
                    said = f"{error.problem}{self._tried or ''}"
                    self.trouble = f"{self._url} cannot be reached. {_MEANS} {_REMEDY} ({said})"
                    raise StoreUnavailable(problem=error.problem, remedy=_REMEDY) from error
            else:
                self.trouble = self._tried = None
                return result

    def _mounted_again(self) -> bool:
        """Mount, if that was not tried in this outage. True when it is worth a try."""
        if self._remount is None:
            return False
        with self._guard:
            if self._tried is not None:
                return False
            self._tried = ""
        try:
            done = self._remount()
        except Exception as error:  # noqa: BLE001  # whatever a platform's own call raises is shown to the user
            said = error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"
            self._tried = f" Mounting it again failed: {said}"
            return False
        if done is False:  # it was left to another thread
            self._tried = None
            return False
        return True


_PER_FOLDER = 500
_PIECE = 4 * 2**20  # bytes read at a time
_ABANDONED = 24 * 3600.0  # seconds; no Colab session lasts longer (Colab FAQ, 2026): nobody writes that file any more
_LOOKS = (0.05, 5.0)  # seconds between two looks at the uploads: at first, at most (ChromiumOS's own script: 5)


class MountedStore(Store):
    """Objects as files below `root`, a folder on a mounted Google Drive.

    `pauses`: seconds before a call that failed is tried again. `remount`: how to mount again, tried once per
    outage. `per_folder`: files of one folder before another is begun. `files` are the system calls, for tests.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        files: Files = OS_FILES,
        clock: Clock = time,
        pauses: Sequence[float] = (0.5, 1.5, 4.0),
        remount: Callable[[], object] | None = None,
        per_folder: int = _PER_FOLDER,
    ) -> None:
        self._root = str(Path(root).expanduser().absolute())
        self._silence = Silence(clock.monotonic)
        self._files = files = watched(files, self._silence)
        self._clock = clock
        self._objects = Objects(files, self._root, per_folder)
        self._patience = Patience(self._root, clock, tuple(pauses), remount)
        self._uploads = Uploads(files, clock)

    @property
    def url(self) -> str:
        return f"mounted://{quote(self._root)}"

    @property
    def properties(self) -> StoreProperties:
        """`free_bytes` is a hint: the mount states the account's quota, and not always rightly (googlecolab/colabtools
        #6051, 2026-07). `persists` is True once DriveFS has named a file's id, for then this is a Drive."""
        free = None
        with suppress(OSError):
            answer = self._files.statvfs(self._objects.mount)
            free = answer.f_bavail * answer.f_frsize
        return StoreProperties(
            top_level="confirmed",
            persists=True if self._uploads.heard else None,
            free_bytes=free,
            lists_lag=True,
            budget=DRIVE,
        )

    @property
    def degraded(self) -> str | None:
        if self._silence.lasts:
            return f"{self._root} has not answered for more than {SECONDS:.0f} seconds. {_MEANS} {_REMEDY}"
        lost = self._uploads.lost
        if self._patience.trouble is not None or lost is None:
            return self._patience.trouble
        return (
            f"{lost!r} was written to {self._root} and has vanished from there before Drive had it, as happens when "
            "the mount dies. Checkpoints that need it are not safe in Drive. Run this cell again, and what is still on "
            "this machine's disk is copied again."
        )

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        watched = _Watched(source)
        return self._patience(lambda: self._put(name, watched), again=lambda: not watched.failed)

    def get(self, name: str) -> BinaryIO:
        doing = f"read {check_name(name)!r}"
        spot = self._ask(doing, lambda: self._objects.find(name))
        if spot is None:
            raise ObjectNotFound(
                problem=f"Could not {doing}: there is no such object in {self._root}.",
                remedy="Look at what is there with `colabkeep list`. What another machine wrote a moment ago takes "
                "some time to be seen here.",
            )
        return ranged(spot.size, lambda start, end: self._ask(doing, lambda: self._read(spot, start, end)))

    def list(self, prefix: str) -> Sequence[Entry]:
        parts = [part for part in check_prefix(prefix).split("/") if part]
        spots = self._ask(f"list {prefix!r}", lambda: self._objects.list(parts))
        return [Entry(name=spot.name, size=spot.size) for spot in spots]

    def delete(self, name: str) -> None:
        self._ask(f"delete {check_name(name)!r}", lambda: self._objects.delete(name))
        self._uploads.drop(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        """As promised. What is not there any more, or is empty or cut, is "local": on this machine, if anywhere; and
        `list` does not show it."""
        name = check_name(receipt.name)
        upload = self._ask(f"ask about {name!r}", lambda: self._uploads.of(name, self._objects.find(name)), quick=True)
        return replace(receipt, level=upload.level, id=upload.id or receipt.id)

    def sweep(self, prefix: str) -> int:
        """As promised; and files that an earlier session wrote, and that Drive does not have yet, are waited for.

        A short file is taken for abandoned once it is a day old, or if it was written on this machine: another one
        may still be uploading it.
        """
        return self._ask(f"tidy up {check_prefix(prefix)!r}", lambda: self._sweep(prefix))

    def flush(self, timeout: float) -> bool:
        began = self._clock.monotonic()
        end = began + timeout
        pause, longest = _LOOKS
        while True:
            try:
                done = self._ask("ask about uploads", self._all_arrived, quick=True)
                silent, lost = self._uploads.says_nothing, self._uploads.only_lost
            except StoreUnavailable:
                done = silent = lost = False  # told by `degraded`; it may be back before the time is over
            now = self._clock.monotonic()
            left = end - now
            if done or lost or left <= 0 or (silent and now - began >= SILENCE):
                return done
            self._clock.sleep(min(pause, left))
            pause = min(2 * pause, longest)

    def _ask(self, doing: str, work: Callable[[], _T], *, quick: bool = False) -> _T:
        """What `work` returns, which calls the mount only. `doing` completes "could not …"."""

        def attempt() -> _T:
            with explained(self._root, doing):
                return work()

        return self._patience(attempt, quick=quick)

    def _put(self, name: str, source: _Watched) -> Receipt:
        doing, size = f"write {name!r}", source.size
        with explained(self._root, doing):
            draft = Draft(self._files, self._objects.begin(name, size), name, source)
        try:
            for chunk in source.chunks():
                with explained(self._root, doing):
                    draft.write(chunk)
            draft.complete()
            with explained(self._root, doing):
                self._objects.room_for(name)  # there may be none any more: the name was taken meanwhile
                draft.finish()
            spot = Spot(name=name, path=draft.path, size=size, whole=True, ours=True, modified=self._clock.time())
            self._objects.add(spot)
            self._uploads.add(spot, source.needs.keys())
        except BaseException:
            self._uploads.drop(name, draft.path)
            draft.undo()
            raise
        try:
            upload = self._uploads.of(name, spot)
        except OSError:
            upload = Upload("local")  # it was written and read again; only this question has no answer yet
        return Receipt(name=name, size=size, sha256=source.sha256, level=upload.level, id=upload.id)

    def _read(self, spot: Spot, start: int, end: int) -> bytes:
        """The file is opened each time: the descriptor of a mount that died stays dead when the mount is back."""
        data, descriptor = bytearray(), self._files.open(spot.path, READ)
        try:
            while len(data) < end - start:
                at = start + len(data)
                piece = self._files.pread(descriptor, min(_PIECE, end - at), at)
                if not piece:
                    raise StoreUnavailable(
                        problem=f"{self._root} gave {at} of the {spot.size} bytes of {spot.name!r}.",
                        remedy="Nothing needs to be done: it is read again.",
                    )
                data += piece
        finally:
            with suppress(OSError):
                self._files.close(descriptor)
        return bytes(data)

    def _sweep(self, run: str) -> int:
        parts = run.split("/") if run else []
        abandoned = [
            spot
            for spot in self._objects.leftovers(parts)
            if run in ("", run_of(spot.name))
            and (
                self._objects.given_up(spot.path)
                or self._clock.time() - spot.modified > _ABANDONED
                or ask(self._files, spot.path).level == "local"
            )
        ]
        for spot in abandoned:
            self._objects.remove(spot)
        # In the order in which they were written, as far as that matters: a manifest comes after its blobs.
        found = sorted(self._objects.list(parts), key=lambda spot: ("/checkpoints/" in f"/{spot.name}", spot.name))
        for spot in found:
            if run in ("", run_of(spot.name)):
                self._uploads.adopt(spot)
        return len(abandoned)

    def _all_arrived(self) -> bool:
        if self._uploads.waiting():
            self._objects.folder(())  # where the whole mount is gone, none of its files was lost
        return self._uploads.all_arrived()


class _Watched:
    """A source that remembers whether it was the one that failed: then the mount is not to be waited for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.needs = needs_of(source) or {}
        self.failed = False

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def sha256(self) -> str:
        return self._source.sha256

    def chunks(self) -> Iterator[memoryview]:
        try:
            yield from self._source.chunks()
        except GeneratorExit:
            raise  # the mount failed, and no more is asked for
        except BaseException:
            self.failed = True
            raise


def open_url(url: str, context: StoreContext = StoreContext()) -> MountedStore:
    """The store of a mounted:/// URL. A folder in the user's Drive is mounted again, where the platform can do that."""
    parts = urlsplit(url)
    path = os.fsdecode(unquote_to_bytes(parts.path))  # as the folders of this machine are called, in any locale
    if parts.netloc or not path.startswith("/") or parts.fragment or parts.query:
        raise UsageError(
            problem=f"{shown(url)} does not name a folder on a mounted Google Drive.",
            remedy="Write mounted:// followed by the absolute path: mounted:///content/drive/MyDrive/colabkeep.",
        )
    return MountedStore(path, remount=context.remount if drive_part(Path(path)) is not None else None)
