"""Files and folders of a Drive by their ids: listed, made, looked at, deleted; and the folder that a URL names."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from colabkeep.core.errors import StoreError, StoreUnavailable, UsageError
from colabkeep.stores.base import shown
from colabkeep.stores.drive.api import SERVICE, Api, decoded

# A listing by name may lag behind what was written, one by folder does not (kopia/kopia, issue 90 and pull request
# 1731); names need not be unique either. So whole folders are listed, and names compared here.


FOLDER = "application/vnd.google-apps.folder"
FIELDS = (
    "id,name,size,mimeType,parents,trashed,sha256Checksum,md5Checksum,createdTime,appProperties,"
    "shortcutDetails(targetId,targetMimeType)"
)
"""What is asked for of each file: without it v3 tells little more than the name."""

_ABOUT = {"fields": FIELDS, "supportsAllDrives": "true"}
_DELETE: dict[str, Any] = {"query": {"supportsAllDrives": "true"}, "accept": (200, 204, 404)}

MARK = "colabkeep"
"""The key of the app property, seen by this OAuth client only, which says that colabkeep made the file."""

_EDITORS = "application/vnd.google-apps."
_PAGE = 1000  # files; the most that v3 gives at once
_AT_ONCE = 4  # folders that are asked for at a time: a run has seven, and a training waits for them when it begins
_IDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file or folder as the service describes it. `size` in bytes, None for what has none of its own (folders,
    documents of Google's editors, links);
    `created` as the service writes it, which sorts by time; `leads_to`: the id of the folder that a shortcut points to.
    """

    id: str
    name: str
    size: int | None
    is_folder: bool
    parents: tuple[str, ...] = ()
    trashed: bool = False
    sha256: str | None = None
    md5: str | None = None
    created: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    leads_to: str | None = None


class FolderGone(Exception):
    """A folder of that id does not exist, or not for this OAuth client."""


class Files:
    """Files and folders of one account or, with its id, of one shared drive. Every method raises `StoreError` where
    the service refuses or does not answer."""

    def __init__(self, api: Api, shared_drive: str | None = None, *, page_size: int = _PAGE) -> None:
        self._api = api
        self._page_size = page_size
        self._drive = shared_drive
        self._guard = threading.Lock()
        self._ids: list[str] = []  # reserved at the service, not used yet

    @property
    def top(self) -> str:
        """The id that stands for the top folder."""
        return self._drive or "root"

    def marked_folders(self) -> list[RemoteFile]:
        """All folders that colabkeep made, anywhere."""
        query = f"mimeType = '{FOLDER}' and appProperties has {{ key='{MARK}' and value='folder' }}"
        return list(self._listing(query, "look for its folders"))

    def inside(self, folders: Sequence[str], doing: str) -> list[RemoteFile]:
        """What lies directly in these folders, each asked for alone: a listing of several was seen to answer for some
        of them only, without a word (rclone issue 9810 of August 2026; googleapis/google-api-nodejs-client issue 1957).

        Raises:
            FolderGone: one of them does not exist.
        """
        if len(folders) == 1:
            return list(self._listing(f"'{folders[0]}' in parents", doing))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="colabkeep-lister") as pool:
            found = list(pool.map(lambda folder: self.inside([folder], doing), folders))
        return [file for part in found for file in part]

    def look(self, id: str, doing: str) -> RemoteFile | None:
        """The file of that id; None where there is none for this OAuth client."""
        answer = self._api.ask("GET", f"/drive/v3/files/{id}", doing=doing, query=_ABOUT, accept=(200, 404))
        return read_file(answer) if answer else None

    def glance(self, id: str) -> RemoteFile | None:
        """The same in one attempt of less than a second; None also where it cannot be told."""
        try:
            path = f"/drive/v3/files/{id}"
            return read_file(self._api.ask_once("GET", path, doing="confirm", query=_ABOUT, timeouts=(0.4, 0.5)))
        except StoreError:
            return None

    def make_alone(self, name: str, parent: str, marks: Mapping[str, str], doing: str) -> list[RemoteFile]:
        """A new folder, and what others of its name are beside it by then, the oldest first. Drive keeps no name
        unique: of two machines that find none and make one each, whoever looks last sees both, and writes into the
        older.

        Raises:
            FolderGone: the parent does not exist.
        """
        id, making = self.new_id(), f"make the folder {name!r}"
        body = {"id": id, "name": name, "mimeType": FOLDER, "parents": [parent], "appProperties": dict(marks)}
        # 409: an earlier attempt made it, and its answer was lost.
        answer = self._api.ask("POST", "/drive/v3/files", doing=making, query=_ABOUT, body=body, accept=(200, 404, 409))
        made = read_file(answer) if answer else self.look(id, making)
        if made is None:
            raise FolderGone(parent)
        return sorted([made, *(one for one in self.named(name, [parent], doing) if one.id != made.id)], key=age)

    def named(self, name: str, folders: Sequence[str], doing: str) -> list[RemoteFile]:
        """The folders of that name that lie directly in these, the oldest first.

        Raises:
            FolderGone: one of them does not exist.
            StoreError: there is none, but a shortcut of that name to a folder elsewhere.
        """
        inside = self.inside(folders, doing) if folders else []
        found = sorted((file for file in inside if file.is_folder and file.name == name), key=age)
        if not found:
            refuse_shortcut(name, inside)
        return found

    def delete(self, id: str, doing: str) -> None:
        """Remove a file for good, past the trash, which would keep counting. Nothing happens where there is none."""
        self._api.ask("DELETE", f"/drive/v3/files/{id}", doing=doing, **_DELETE)

    def delete_once(self, id: str, doing: str) -> None:
        """The same in one quick attempt, which may fail: for what is on its way out by an interrupt."""
        with suppress(StoreError):
            self._api.ask_once("DELETE", f"/drive/v3/files/{id}", doing=doing, timeouts=(3.0, 5.0), **_DELETE)

    def new_id(self) -> str:
        """An id that no file has yet. Creating with it twice makes one file, so a lost answer costs nothing."""
        with self._guard:
            if not self._ids:
                query = {"count": str(_IDS), "space": "drive", "type": "files", "fields": "ids"}
                answer = self._api.ask("GET", "/drive/v3/files/generateIds", doing="reserve names", query=query)
                self._ids = [str(id) for id in answer.get("ids", ())]
            if not self._ids:
                raise StoreUnavailable(problem="Google Drive gave no ids for new files.", remedy="It is tried again.")
            return self._ids.pop()

    def _listing(self, query: str, doing: str) -> Iterator[RemoteFile]:
        seen: set[str] = set()  # a file that moves between two pages is told twice
        parameters = {
            "q": f"{query} and trashed = false",
            "pageSize": str(self._page_size),
            "fields": f"nextPageToken,incompleteSearch,files({FIELDS})",
            "supportsAllDrives": "true",
        }
        if self._drive is not None:
            parameters |= {"corpora": "drive", "driveId": self._drive, "includeItemsFromAllDrives": "true"}
        while True:
            page = self._api.patiently(lambda: self._page(parameters, doing))
            for one in page.get("files", ()):
                file = read_file(one)
                if file.id not in seen:
                    seen.add(file.id)
                    yield file
            if not page.get("nextPageToken"):
                return
            parameters["pageToken"] = str(page["nextPageToken"])

    def _page(self, query: Mapping[str, str], doing: str) -> Mapping[str, Any]:
        url = f"{self._api.service}/drive/v3/files"
        response = self._api.send("GET", url, doing=doing, query=query, accept=(200, 404))
        if response.status_code == 404:
            raise FolderGone
        page = decoded(response, doing)
        if page.get("incompleteSearch"):
            raise StoreUnavailable(
                problem=f"Google Drive did not look everywhere (it was to {doing}).", remedy="It is tried again."
            )
        return page


def age(file: RemoteFile) -> tuple[str, str]:
    """Sorts files from the oldest to the newest, the same on all machines."""
    return file.created, file.id


def refuse_shortcut(name: str, beside: Iterable[RemoteFile]) -> None:
    """See that no folder is made beside a shortcut of its name: what was saved lies where that points to."""
    for file in beside:
        if file.name == name and file.leads_to is not None:
            raise StoreError(
                problem=f"{name!r} in Google Drive is not a folder but a shortcut to one that lies elsewhere. A new "
                "folder of that name would begin beside what was saved there, so nothing was written.",
                remedy=f'Name the folder itself: storage="drive://id={file.leads_to}", with the folders below it, if '
                "there are any, after a slash. Or remove the shortcut, and move the folder back.",
            )


def read_file(answer: Mapping[str, Any]) -> RemoteFile:
    """A file from its description. Sizes come as text."""
    kind, shortcut = str(answer.get("mimeType", "")), answer.get("shortcutDetails") or {}
    return RemoteFile(
        id=str(answer["id"]),
        name=str(answer.get("name", "")),
        size=int(answer["size"]) if "size" in answer and not kind.startswith(_EDITORS) else None,
        is_folder=kind == FOLDER,
        parents=tuple(map(str, answer.get("parents", ()))),
        trashed=answer.get("trashed") is True,
        sha256=answer.get("sha256Checksum"),
        md5=answer.get("md5Checksum"),
        created=str(answer.get("createdTime", "")),
        marks=answer.get("appProperties") or {},
        leads_to=str(shortcut["targetId"]) if shortcut.get("targetMimeType") == FOLDER else None,
    )


_ID = re.compile(r"[A-Za-z0-9_-]{10,100}")
_DEFAULT = "colabkeep"
_WORD = re.compile(r"[a-z_]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder, by its names from the top. `top`: the id of the folder they start in; None: My Drive, or the top of
    the shared drive with the id `shared_drive`. `service`: a Drive server on this very machine, for tests."""

    folders: tuple[str, ...]
    top: str | None = None
    shared_drive: str | None = None
    service: str = SERVICE

    @property
    def url(self) -> str:
        """How a user would write it."""
        start = [] if self.top is None else [f"id={self.top}"]
        path = "/".join([*start, *(quote(folder, safe=" ") for folder in self.folders)])
        more = {"shared_drive": self.shared_drive, "service": None if self.service == SERVICE else self.service}
        query = urlencode({name: value for name, value in more.items() if value is not None}, safe=":/")
        return f"drive://{path}" + (f"?{query}" if query else "")


def read_place(url: str) -> Place:
    """The place of a URL: drive://folder/folder, or drive://id=<a folder's id>/folder, and ?shared_drive=<id> after it;
    `UsageError` for any other."""
    path, _, query = url.partition("://")[2].partition("?")
    parts = [unquote(part) for part in path.split("/") if part]
    options = dict(parse_qsl(query, keep_blank_values=True))
    top = parts.pop(0)[3:] if parts and parts[0].startswith("id=") else None
    shared, service = options.pop("shared_drive", None), options.pop("service", SERVICE)
    for id, what in ((top, "id=…, the folder's,"), (shared, "shared_drive=…")):
        if id is not None and not _ID.fullmatch(id):
            remedy = "Open it in the browser: the id is the last part of the address, after /folders/."
            raise _invalid(url, f"{what} is not an id", remedy)
    there = urlsplit(service)
    if service != SERVICE and (there.scheme != "http" or there.hostname not in {"127.0.0.1", "localhost", "::1"}):
        # The token is sent there: a storage that somebody else wrote must not lead it away.
        remedy = "Leave service=… away: it is for tests, with a server on 127.0.0.1."
        raise _invalid(url, "its service=… is not on this machine", remedy)
    if options:
        # The name of an option is shown, unless it may be a secret itself.
        names = (name if _WORD.fullmatch(name) else 'what follows the "?"' for name in options)
        remedy = 'Write "drive://<folder>", or "drive://<folder>?shared_drive=<id>".'
        raise _invalid(url, f"{', '.join(names)} means nothing here", remedy)
    folders = tuple(parts) if parts or top else (_DEFAULT,)
    return Place(folders=folders, top=top, shared_drive=shared, service=service.rstrip("/"))


def _invalid(url: str, what: str, remedy: str) -> UsageError:
    return UsageError(problem=f"storage={shown(url)}: {what}.", remedy=remedy)


def search(files: Files, place: Place, doing: str) -> dict[str, list[RemoteFile]]:
    """All folders that could be found without looking into each, by their paths below the store, the store's own at
    the path "". Nothing if that is not there.

    It is known by a mark that it got when it was made, so one question finds it together with all below; one that has
    no mark (rclone made it, or another OAuth client) is found by the names on the way.

    Raises:
        FolderGone: the folder that the URL names by its id does not exist.
    """
    marked = files.marked_folders()
    start = RemoteFile(id=place.top or files.top, name="", size=None, is_folder=True)
    own = [start]
    if place.folders or place.top is None:
        # Moved elsewhere by hand, it is still the same; renamed, it was put away.
        own = [one for one in marked if one.marks.get("root") == _root(place) and one.name == place.folders[-1]]
    if not own:
        own = [start]
        for name in place.folders:
            own = files.named(name, [one.id for one in own], doing)
    below: dict[str, list[RemoteFile]] = {}
    for folder in marked:
        for parent in folder.parents:
            below.setdefault(parent, []).append(folder)
    found: dict[str, list[RemoteFile]] = {}
    level = [("", one) for one in own]
    while level:
        for path, one in level:
            found.setdefault(path, []).append(one)
        level = [(joined(path, child.name), child) for path, one in level for child in below.pop(one.id, ())]
    return found


def make(files: Files, place: Place, doing: str) -> list[RemoteFile]:
    """Make the store's folder, and those above it that are missing. All folders of its name that are there by then,
    the oldest first: another machine may make one at the same moment.

    Raises:
        FolderGone: the folder that the URL names by its id does not exist.
    """
    folders = [RemoteFile(id=place.top or files.top, name="", size=None, is_folder=True)]
    for number, name in enumerate(place.folders, start=1):
        marks = {MARK: "folder", "root": _root(place)} if number == len(place.folders) else {MARK: "folder"}
        parent = folders[0].id
        folders = files.named(name, [parent], doing) or files.make_alone(name, parent, marks, doing)
    return folders


def _root(place: Place) -> str:
    """The mark of the store's own folder, shortened, for a property holds 124 bytes."""
    return hashlib.sha256(place.url.partition("?")[0].encode()).hexdigest()[:32]


def joined(folder: str, name: str) -> str:
    """A path one longer."""
    return f"{folder}/{name}" if folder else name
