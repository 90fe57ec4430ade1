"""The store. What it does and why is told on the package's page; how long it waits for a mount that does not
answer, and how it reads through one that goes away.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit

from colabkeep.core.errors import ColabKeepError, ObjectNotFound, StoreUnavailable, UsageError
from colabkeep.core.rate_limits import DRIVE
from colabkeep.core.system import Clock
from colabkeep.stores.base import Entry, Receipt, Source, StoreContext, StoreProperties, check_name, run_of, shown
from colabkeep.stores.colab_drive.files import READ, Draft, Objects, Place, Spot, is_in_drive
from colabkeep.stores.colab_drive.uploads import SILENCE, Upload, Uploads, ask
from colabkeep.stores.shared.files import OS_FILES, SECONDS, Files, Silence, explained, watched
from colabkeep.stores.shared.locks import NoLock

__all__ = [
    "MountedStore",
    "Patience",
    "Reader",
    "Remount",
    "open_url",
]

# An outage begins when a call gave up, and ends when one succeeds. Within one, calls do not wait: training's saves must
# not be held up by seconds each for as long as the mount is away.


_T = TypeVar("_T")

_MEANS = "What Drive does not have yet is on this machine only, and would be lost with it; training goes on."
_REMEDY = (
    "It often comes back by itself. If it does not within some minutes: stop this cell, run  import colabkeep; "
    "colabkeep.mount()  in a cell of its own, and run this cell again. Nothing is lost by that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remount:
    """A call that mounts again. Colab's own asks the browser through the kernel, which only works, and only without
    taking another's answer, on the main thread (googlecolab/colabtools `_message.py`, 2026-04): so `in_background`
    is False unless said otherwise. A call that returns False has left it to another thread: it is made again."""

    call: Callable[[], object]
    in_background: bool = False


class Patience:
    """Calls work that may raise `StoreUnavailable`, again after each of `pauses` (seconds), and mounts once in between.

    `trouble` is the sentence for the user while an outage lasts, else None.
    """

    def __init__(self, url: str, clock: Clock, pauses: tuple[float, ...], remount: Remount | None) -> None:
        self._url = url
        self._clock = clock
        self._pauses = pauses
        self._remount = remount
        self._tried: str | None = None  # what mounting again came to, in this outage
        self._guard = threading.Lock()
        self.trouble: str | None = None

    def __call__(self, work: Callable[[], _T], *, again: Callable[[], bool] = lambda: True, quick: bool = False) -> _T:
        """What `work` returns. `again`: may it be tried again? `quick`: do not wait.

        Raises:
            StoreUnavailable: the mount does not answer.
        """
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
                    self.trouble = self._sentence(error.problem)
                    raise StoreUnavailable(problem=error.problem, remedy=_REMEDY) from error
            else:
                self.trouble = self._tried = None
                return result

    def _mounted_again(self) -> bool:
        """Mount, if that was not tried in this outage and may be tried on this thread. True when it is worth a try."""
        if self._remount is None:
            return False
        if not (self._remount.in_background or threading.current_thread() is threading.main_thread()):
            return False
        with self._guard:
            if self._tried is not None:
                return False
            self._tried = ""
        try:
            done = self._remount.call()
        except Exception as error:  # noqa: BLE001  # whatever a platform's own call raises is shown to the user
            said = error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"
            self._tried = f" Mounting it again failed: {said}"
            return False
        if done is False:
            self._tried = None
            return False
        return True

    def silent(self, seconds: float) -> str:
        """For the user, of a call that has not come back for so long."""
        return f"{self._url} has not answered for more than {seconds:.0f} seconds. {_MEANS} {_REMEDY}"

    def _sentence(self, problem: str) -> str:
        return f"{self._url} cannot be reached. {_MEANS} {_REMEDY} ({problem}{self._tried or ''})"


_MOST = 4 * 2**20  # bytes at a time


class Reader(io.RawIOBase):
    """A file, opened at once (`OSError` if that fails), and again where it broke off."""

    def __init__(self, files: Files, spot: Spot, root: str, patience: Patience) -> None:
        self._files = files
        self._spot = spot
        self._root = root
        self._patience = patience
        self._descriptor = -1
        self._offset = 0
        self._open()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), _MOST, self._spot.size - self._offset)
        data = self._patience(lambda: self._piece(wanted)) if wanted else b""
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def close(self) -> None:
        self._let_go()
        super().close()

    def _open(self) -> None:
        self._descriptor = self._files.open(self._spot.path, READ)

    def _piece(self, wanted: int) -> bytes:
        try:
            with explained(self._root, f"read {self._spot.name!r}"):
                if self._descriptor < 0:
                    self._open()
                data = self._files.pread(self._descriptor, wanted, self._offset)
            if not data:
                raise StoreUnavailable(
                    problem=f"{self._root} gave {self._offset} of the {self._spot.size} bytes of {self._spot.name!r}.",
                    remedy="Nothing needs to be done: it is read again.",
                )
        except BaseException:
            self._let_go()  # the descriptor of a mount that died stays dead when the mount is back
            raise
        return data

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                self._files.close(descriptor)


_PER_FOLDER = 500
_ABANDONED = 24 * 3600.0  # seconds; no Colab session lasts longer (Colab FAQ, 2026): nobody writes that file any more
_LOOKS = (0.05, 5.0)  # seconds between two looks at the uploads: at first, at most (ChromiumOS's own script: 5)


class MountedStore:
    """Objects as files below `root`, a folder on a mounted Google Drive.

    `pauses`: seconds before a call that failed is tried again. `remount`: how to mount again, tried once per
    outage. `truncate=False` leaves a deleted file's bytes to Drive's trash, for folders that are shared with others.
    `per_folder`: files of one folder before another is begun. `files` are the system calls, for tests.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        files: Files = OS_FILES,
        clock: Clock = time,
        pauses: Sequence[float] = (0.5, 1.5, 4.0),
        remount: Remount | None = None,
        truncate: bool = True,
        per_folder: int = _PER_FOLDER,
    ) -> None:
        self._root = str(Path(root).expanduser().absolute())
        self._silence = Silence(clock.monotonic)
        self._files = files = watched(files, self._silence)
        self._clock = clock
        self._truncate = truncate
        self._place = Place(self._root, files, per_folder)
        self._objects = Objects(files, self._place, truncate=truncate)
        self._patience = Patience(self._root, clock, tuple(pauses), remount)
        self._uploads = Uploads(files, clock)

    @property
    def url(self) -> str:
        return f"mounted://{quote(self._root)}{'' if self._truncate else '?truncate=no'}"

    @property
    def properties(self) -> StoreProperties:
        """`free_bytes` is a hint: the mount states the account's quota, and not always rightly (googlecolab/colabtools
        #6051, 2026-07). `persists` is True once DriveFS has named a file's id, for then this is a Drive."""
        return StoreProperties(
            top_rung="confirmed",
            persists=True if self._uploads.heard else None,
            free_bytes=self._free_bytes(),
            lists_lag=True,
            budget=DRIVE,
        )

    @property
    def degraded(self) -> str | None:
        if self._silence.lasts:
            return self._patience.silent(SECONDS)
        lost = self._uploads.lost
        if self._patience.trouble is not None or lost is None:
            return self._patience.trouble
        return (
            f"{lost!r} was written to {self._root} and has vanished from there before Drive had it, as happens when "
            "the mount dies. Checkpoints that need it are not safe in Drive. Run this cell again, and what is still on "
            "this machine's disk is copied again."
        )

    def waiting(self) -> Sequence[Entry]:
        """What was put and is not known to be in Drive, as of the last `confirm` or `flush`."""
        return self._uploads.waiting()

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        watched = _Watched(source)
        return self._patience(lambda: self._put(name, watched), again=lambda: not watched.failed)

    def get(self, name: str) -> BinaryIO:
        check_name(name)
        return io.BufferedReader(self._patience(lambda: self._open(name)), buffer_size=2**18)

    def doubt(self, name: str) -> bool:
        return False  # there is one copy only

    def list(self, prefix: str) -> Sequence[Entry]:
        parts = check_name(prefix).split("/") if prefix else []
        spots = self._patience(lambda: self._list(parts))
        return [Entry(name=spot.name, size=spot.size) for spot in spots]

    def delete(self, name: str) -> None:
        check_name(name)
        self._patience(lambda: self._delete(name))

    def confirm(self, receipt: Receipt) -> Receipt:
        """As promised. What is not there any more, or is empty or cut, is "local": on this machine, if anywhere; and
        `list` does not show it."""
        check_name(receipt.name)
        upload = self._patience(lambda: self._upload_of(receipt.name), quick=True)
        return replace(receipt, rung=upload.rung, id=upload.id or receipt.id)

    def lock(self, name: str, holder: str) -> NoLock:
        check_name(name)
        return NoLock()

    def sweep(self, prefix: str) -> int:
        """As promised; and files that an earlier session wrote, and that Drive does not have yet, are waited for.

        A short file is taken for abandoned once it is a day old, or if it was written on this machine: another one
        may still be uploading it.
        """
        parts = check_name(prefix).split("/") if prefix else []
        return self._patience(lambda: self._sweep(parts))

    def flush(self, timeout: float) -> bool:
        began = self._clock.monotonic()
        end = began + timeout
        pause, longest = _LOOKS
        while True:
            try:
                done = self._patience(self._all_arrived, quick=True)
                silent, lost = self._uploads.says_nothing, self._uploads.only_lost
            except StoreUnavailable:
                done = silent = lost = False  # told by `degraded`; it may be back before the time is over
            now = self._clock.monotonic()
            left = end - now
            if done or lost or left <= 0 or (silent and now - began >= SILENCE):
                return done
            self._clock.sleep(min(pause, left))
            pause = min(2 * pause, longest)

    def close(self) -> None:
        """Nothing is held between two calls."""

    def _put(self, name: str, source: _Watched) -> Receipt:
        doing, size = f"write {name!r}", source.size
        with explained(self._root, doing):
            draft = Draft(self._files, self._objects.begin(name, size), size)
        try:
            with explained(self._root, doing):
                draft.begin()
            for chunk in source.chunks():
                with explained(self._root, doing):
                    draft.write(chunk)
            draft.complete(source.sha256)
            with explained(self._root, doing):
                self._objects.room_for(name)  # there may be none any more: the name was taken meanwhile
                draft.finish()
            spot = Spot(name=name, path=draft.path, size=size, whole=True, ours=True, modified=self._clock.time())
            self._objects.add(spot)
            self._uploads.add(spot)
        except BaseException:
            self._uploads.drop(name, draft.path)
            draft.undo()
            raise
        try:
            upload = self._uploads.of(name, spot)
        except OSError:
            upload = Upload("local")  # it was written and read again; only this question has no answer yet
        return Receipt(name=name, size=size, sha256=draft.sha256, rung=upload.rung, id=upload.id)

    def _open(self, name: str) -> Reader:
        doing = f"read {name!r}"
        with explained(self._root, doing):
            spot = self._objects.find(name)
            if spot is not None:
                return Reader(self._files, spot, self._root, self._patience)
        raise ObjectNotFound(
            problem=f"Could not {doing}: there is no such object in {self._root}.",
            remedy="Look at what is there with `colabkeep list`. What another machine wrote a moment ago takes some "
            "time to be seen here.",
        )

    def _list(self, parts: Sequence[str]) -> Sequence[Spot]:
        with explained(self._root, f"list {'/'.join(parts)!r}"):
            return self._objects.list(parts)

    def _delete(self, name: str) -> None:
        with explained(self._root, f"delete {name!r}"):
            self._objects.delete(name)
        self._uploads.drop(name)

    def _sweep(self, parts: Sequence[str]) -> int:
        run = "/".join(parts)

        def own(spot: Spot) -> bool:
            return run in ("", run_of(spot.name))

        with explained(self._root, f"tidy up {'/'.join(parts)!r}"):
            abandoned = [spot for spot in self._objects.leftovers(parts) if own(spot) and self._is_abandoned(spot)]
            for spot in abandoned:
                self._objects.remove(spot)
            # In the order in which they were written, as far as that matters: a manifest comes after its blobs.
            found = sorted(
                filter(own, self._objects.list(parts)), key=lambda spot: ("/checkpoints/" in f"/{spot.name}", spot.name)
            )
            for spot in found:
                self._uploads.adopt(spot)
        return len(abandoned)

    def _is_abandoned(self, spot: Spot) -> bool:
        if self._objects.given_up(spot.path) or self._clock.time() - spot.modified > _ABANDONED:
            return True
        return ask(self._files, spot.path).rung == "local"

    def _upload_of(self, name: str) -> Upload:
        with explained(self._root, f"ask about {name!r}"):
            spot = self._objects.find(name)
            return self._uploads.of(name, spot)

    def _all_arrived(self) -> bool:
        with explained(self._root, "ask about uploads"):
            if self._uploads.waiting():
                self._place.folder(())  # where the whole mount is gone, none of its files was lost
            return self._uploads.all_arrived()

    def _free_bytes(self) -> int | None:
        try:
            answer = self._files.statvfs(self._place.mount)
        except OSError:
            return None
        return answer.f_bavail * answer.f_frsize


class _Watched:
    """A source that remembers whether it was the one that failed: then the mount is not to be waited for."""

    def __init__(self, source: Source) -> None:
        self._source = source
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
    """The store of a mounted:/// URL. `?truncate=no` leaves what is deleted to the trash as it is. A folder in the
    user's Drive is mounted again, where the platform can do that.

    Raises:
        UsageError: the URL names a host, no absolute path, or another option.
    """
    parts = urlsplit(url)
    path = os.fsdecode(unquote_to_bytes(parts.path))  # as the folders of this machine are called, in any locale
    if parts.netloc or not path.startswith("/") or parts.fragment or parts.query not in {"", "truncate=no"}:
        raise UsageError(
            problem=f"{shown(url)} does not name a folder on a mounted Google Drive.",
            remedy="Write mounted:// followed by the absolute path: mounted:///content/drive/MyDrive/colabkeep.",
        )
    again = context.remount if is_in_drive(Path(path)) else None
    remount = None if again is None else Remount(call=again, in_background=True)
    return MountedStore(path, truncate=not parts.query, remount=remount)
