"""The store on Google Drive. Its objects are files in folders, `run/blobs/…` as on any disk, so that they can be seen
in the browser, by the mount and by other programs.

A name that two files have is one object with two copies: Drive does not keep names unique, so a second writer or a
repeated request can make one. The oldest copy is read, the other if that one is doubted.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.rate_limits import DRIVE
from colabkeep.core.system import Clock, Environment
from colabkeep.stores.base import (
    UNCHANGED,
    DurabilityLevel,
    Entry,
    Receipt,
    Source,
    Store,
    StoreContext,
    StoreProperties,
    check_name,
    check_prefix,
    taken,
)
from colabkeep.stores.drive.api import AGAIN, TIMEOUTS, Api, Quota, service_account_refused
from colabkeep.stores.drive.files import MARK, Files, FolderGone, Place, RemoteFile, read_place
from colabkeep.stores.drive.transfer import CHUNK_BYTES, UploadJournal, Uploads, download
from colabkeep.stores.drive.tree import Copies, MovedFolder, Tree
from colabkeep.stores.google.account import Account, SignedIn, from_pydrive, is_service_account, sign_in
from colabkeep.stores.shared.files import SECONDS

_LARGEST = 5 * 2**40  # bytes; the `maximum` of the upload methods in the discovery document of v3
_TRIES = 3  # for bytes that arrive as others, or into a folder that goes away
_SOON = 7 * 24 * 3600.0  # seconds
_SILENT = (
    f"Nothing could be sent to Google Drive, or asked there, for more than {SECONDS:.0f} seconds. What it does not "
    "have yet is only on this machine and would be lost with it. Training continues, and colabkeep keeps retrying. "
    "Keep this machine running until you read here that it works again. https://www.google.com/appsstatus/dashboard/ "
    "says whether Drive is down for everybody."
)


class DriveStore(Store):
    """Objects in the folder `place` of the Drive of `account`. Nothing is asked before the first method is called.

    `journal`: a store on this machine's disk, in which uploads under way are remembered, so that the next kernel
    continues them; without it only this process does. `clock`: the real time, unless a test hands in its own.
    """

    def __init__(
        self,
        place: Place,
        account: Account,
        *,
        journal: Store | None = None,
        clock: Clock | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        timeouts: tuple[float, float] = TIMEOUTS,
    ) -> None:
        self._place = place
        self._account = account
        self._closing = threading.Event()
        self._now = time.time if clock is None else clock.time
        self._monotonic = time.monotonic if clock is None else clock.monotonic
        self._sleep = self._pause if clock is None else clock.sleep
        self._api = Api(account, service=place.service, sleep=self._sleep, monotonic=self._monotonic, timeouts=timeouts)
        self._files = Files(self._api, place.shared_drive)
        self._tree = Tree(self._files, place, self._monotonic)
        self._journal = UploadJournal(journal, place.url, self._now)
        self._uploads = Uploads(self._api, self._files, self._journal, chunk_bytes)
        self._quota = Quota(self._api, self._monotonic)
        self._doubts: dict[str, int] = {}
        self._unconfirmed: dict[str, Receipt] = {}

    @property
    def url(self) -> str:
        return self._place.url

    @property
    def properties(self) -> StoreProperties:
        # What lies in a shared drive counts against nobody's account.
        free = self._quota.free() if self._place.shared_drive is None else None
        return StoreProperties(
            top_level="confirmed",
            persists=True,
            max_object_bytes=_LARGEST,
            free_bytes=free,
            lists_lag=True,
            account=self._quota.account,
            budget=DRIVE,
        )

    def sign_in(self) -> None:
        """As `colabkeep.stores.base.sign_in` says."""
        self._account.session()

    @property
    def degraded(self) -> str | None:
        expires = self._account.expires
        if expires is not None and expires - self._now() < _SOON:
            day = time.strftime("%d %B", time.gmtime(expires))
            return (
                f"The sign-in to Google Drive ends on {day}, and then checkpoints stay on this machine. Open "
                "https://console.cloud.google.com/auth/audience, click Publish app, run `colabkeep auth` again and "
                "replace the secret COLABKEEP_DRIVE."
            )
        if self._api.silence.lasts:
            return _SILENT
        astray = self._tree.astray
        return _astray(astray, self._place) if astray else self._journal.trouble

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        doing = f"write {name!r}"
        present = self._tree.find(name, doing)
        begun = self._uploads.begun(name, source) if present else None
        if any(copy.id != begun for copy in present):
            raise taken(name, "Google Drive")
        for _ in range(_TRIES):
            file = self._sent(name, source, doing)
            if file is None:
                continue
            level = _level(file, source)
            if level is not None:
                return self._stored(name, file, source, level)
            self._files.delete(file.id, doing)
            if _digest(hashlib.sha256(), source) != source.sha256:  # it was the source itself that changed
                raise StoreError(
                    problem=f"{name!r} is not what it was when its save began; it is not kept.", remedy=UNCHANGED
                )
        raise StoreUnavailable(
            problem=f"Google Drive could not {doing}: the upload failed its checksum {_TRIES} times. It was not kept.",
            remedy=AGAIN,
        )

    def get(self, name: str) -> BinaryIO:
        doing = f"read {check_name(name)!r}"
        known = self._tree.known(name)
        if known:
            file = self._chosen(name, known)
            try:
                return download(self._api, file, name)
            except ObjectNotFound:
                self._tree.deleted(file.id)  # by hand, or by another session
        found = self._tree.find(name, doing)
        if not found:
            raise ObjectNotFound(
                problem=f"There is no object {name!r} in {self.url}.",
                remedy="Is it the right folder, and the OAuth client that wrote there? Others' files are not seen.",
            )
        return download(self._api, self._chosen(name, found), name)

    def doubt(self, name: str) -> bool:
        # After the last copy the first one is read once more: it may have been the wire.
        self._doubts[name] = self._doubts.get(name, 0) + 1
        return self._doubts[name] <= len(self._tree.known(name))

    def list(self, prefix: str) -> Sequence[Entry]:
        found = self._tree.below(check_prefix(prefix), f"list {prefix!r}")
        return [Entry(name=name, size=self._chosen(name, copies).size or 0) for name, copies in found.items()]

    def delete(self, name: str) -> None:
        doing = f"delete {check_name(name)!r}"
        copies = self._tree.find(name, doing)
        if not copies:
            return
        shown = self._chosen(name, copies)
        for copy in copies:
            # A file of other bytes that colabkeep did not make is somebody else's.
            if copy.id == shown.id or MARK in copy.marks or _same_bytes(copy, shown):
                self._files.delete(copy.id, doing)
                self._tree.deleted(copy.id)
                self._quota.changed(-(copy.size or 0))
        self._doubts.pop(name, None)
        self._unconfirmed.pop(name, None)

    def confirm(self, receipt: Receipt) -> Receipt:
        if receipt.level == "confirmed" or not receipt.sha256:
            return receipt
        for copy in self._tree.known(receipt.name):
            if copy.size == receipt.size and copy.sha256 == receipt.sha256:
                return replace(receipt, level="confirmed", id=copy.id)
        if receipt.id is None:
            return receipt
        file = self._files.glance(receipt.id)
        if file is None or (file.size, file.sha256) != (receipt.size, receipt.sha256):
            return receipt
        # It is confirmed where a machine finds it that knows nothing but the URL.
        return replace(receipt, level="confirmed") if self._tree.holds(receipt.name, file) else receipt

    def sweep(self, prefix: str) -> int:
        # An upload that was not finished is no file yet; the service drops it after a week.
        self._journal.sweep()
        return super().sweep(prefix)

    def flush(self, timeout: float) -> bool:
        end = self._monotonic() + timeout
        while self._unconfirmed:
            for name, receipt in list(self._unconfirmed.items()):
                if self.confirm(receipt).level == "confirmed":
                    self._unconfirmed.pop(name, None)
            left = end - self._monotonic()
            if self._unconfirmed:
                if left <= 0:
                    return False
                self._sleep(min(1.0, left))
        return True

    def close(self) -> None:
        """End all waiting, and close the connections."""
        self._closing.set()
        self._account.close()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _sent(self, name: str, source: Source, doing: str) -> RemoteFile | None:
        """The file; None if the folder went away meanwhile: then it is looked for, and if need be made, again."""
        try:
            file = self._uploads.send(name, self._tree.folder(name.rpartition("/")[0], doing), source)
        except FolderGone:
            self._tree.forget()
            return None
        if file.trashed:  # with its folder, by hand
            self._files.delete(file.id, doing)
            self._tree.forget()
            return None
        return file

    def _stored(self, name: str, file: RemoteFile, source: Source, level: DurabilityLevel) -> Receipt:
        if any(copy.id != file.id for copy in self._tree.known(name)):
            self._files.delete(file.id, f"write {name!r}")
            raise taken(name, "Google Drive")
        self._tree.wrote(name, file)
        self._quota.changed(source.size)
        receipt = Receipt(name=name, size=source.size, sha256=source.sha256, level=level, id=file.id)
        if level != "confirmed":
            self._unconfirmed[name] = receipt
        return receipt

    def _chosen(self, name: str, copies: Copies) -> RemoteFile:
        return copies[self._doubts.get(name, 0) % len(copies)]


def open_url(url: str, context: StoreContext = StoreContext(), *, environment: Environment | None = None) -> DriveStore:
    """The store of a drive:// URL, for whoever is signed in on this machine."""
    place = read_place(url)
    account = Account(lambda: _fitting(place, sign_in(context, environment or Environment.here())))
    return DriveStore(place, account, journal=context.notes and context.notes())


def open_pydrive(given: Any, context: StoreContext = StoreContext(), *, url: str = "drive://") -> DriveStore:
    """The store for a PyDrive2 `GoogleDrive` or `GoogleAuth` that is signed in. Its credentials are taken, and used by
    google-auth: PyDrive2's own upload waits for ever after one lost answer (1.21.3, run against a local server)."""
    place, signed = read_place(url), SignedIn(credentials=from_pydrive(given))
    return DriveStore(place, Account(lambda: _fitting(place, signed)), journal=context.notes and context.notes())


def _fitting(place: Place, signed: SignedIn) -> SignedIn:
    if place.shared_drive is None and is_service_account(signed.credentials):
        raise service_account_refused("keep checkpoints")
    return signed


def _astray(folders: Sequence[MovedFolder], place: Place) -> str:
    """The topmost of them: what lies below goes with it."""
    first = min(folders, key=lambda one: len(one.path))
    path = "/".join(filter(None, ["/".join(place.folders), first.path]))
    name = path.rpartition("/")[2]
    if first.now is None or first.now.trashed:
        what, back = "was deleted or moved to the trash", "restore it in Drive's trash"
    elif first.now.name != name:
        what, back = f"is called {first.now.name!r} now", f"rename {first.now.name!r} back to {name!r}"
    else:
        what, back = "was moved elsewhere", f"search Drive for {name!r} and move it back to where it was"
    return (
        f"The folder {path!r} in Google Drive {what}, so another machine would not find the files in it, and they no "
        f"longer count as confirmed. New checkpoints are complete, and go to a new folder {path!r}. To have the older "
        f"ones as well: {back}."
    )


def _level(file: RemoteFile, source: Source) -> DurabilityLevel | None:
    """What the service's own statement of the digest proves; None: these are other bytes."""
    if file.size != source.size:
        return None
    if file.sha256 is not None:
        return "confirmed" if file.sha256 == source.sha256 else None
    if file.md5 is not None:
        return "confirmed" if file.md5 == _digest(hashlib.md5(usedforsecurity=False), source) else None
    return "sent"


def _digest(digest: Any, source: Source) -> str:
    for chunk in source.chunks():
        digest.update(chunk)
    return str(digest.hexdigest())


def _same_bytes(one: RemoteFile, other: RemoteFile) -> bool:
    return one.size == other.size and (
        (one.sha256 is not None and one.sha256 == other.sha256) or (one.md5 is not None and one.md5 == other.md5)
    )
