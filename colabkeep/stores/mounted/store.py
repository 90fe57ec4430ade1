"""The store. What it does and why is told on the package's page."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote_to_bytes, urlsplit

from colabkeep.stores._locks import NoLock
from colabkeep.stores._posix import OS_FILES, Files, explained
from colabkeep.stores._shown import shown
from colabkeep.stores._silence import SECONDS, Silence, watched
from colabkeep.stores.base import Entry, Receipt, Source, StoreProperties, check_name, run_of
from colabkeep.stores.doors import Doors
from colabkeep.stores.mounted.drafts import Draft
from colabkeep.stores.mounted.objects import Objects
from colabkeep.stores.mounted.patience import Patience, Remount
from colabkeep.stores.mounted.places import Place, Spot, is_in_drive
from colabkeep.stores.mounted.reading import Reader
from colabkeep.stores.mounted.uploads import SILENCE, Upload, Uploads, ask
from colabkeep.vocabulary.budget import DRIVE
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import ObjectNotFound, StoreUnavailable, UsageError

__all__ = ["MountedStore", "open_url"]

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


def open_url(url: str, doors: Doors = Doors()) -> MountedStore:
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
    again = doors.remount if is_in_drive(Path(path)) else None
    remount = None if again is None else Remount(call=again, in_background=True)
    return MountedStore(path, truncate=not parts.query, remount=remount)
