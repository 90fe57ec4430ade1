"""Files and folders of a Drive by their ids: listed, made, looked at, deleted; the folder a store calls its own,
and folders that somebody moved.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from colabkeep.core.errors import StoreError, StoreUnavailable, UsageError
from colabkeep.stores.base import shown
from colabkeep.stores.drive.api import SERVICE, Api, decoded

__all__ = [
    "FIELDS",
    "FOLDER",
    "MARK",
    "Astray",
    "Files",
    "FolderGone",
    "OwnFolder",
    "Place",
    "RemoteFile",
    "Whereabouts",
    "age",
    "joined",
    "read_file",
    "read_place",
    "refuse_shortcut",
]

# A listing by name may lag behind what was written, one by folder does not (kopia/kopia, issue 90 and pull request
# 1731); names need not be unique either. So whole folders are listed, and names compared here.


FOLDER = "application/vnd.google-apps.folder"
FIELDS = (
    "id,name,size,mimeType,parents,trashed,sha256Checksum,md5Checksum,createdTime,appProperties,"
    "shortcutDetails(targetId,targetMimeType)"
)
"""What is asked for of each file: without it v3 tells little more than the name."""

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
    """Files and folders of one account or, with its id, of one shared drive."""

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
        """All folders that colabkeep made, anywhere.

        Raises:
            StoreError: it cannot be told.
        """
        query = f"mimeType = '{FOLDER}' and appProperties has {{ key='{MARK}' and value='folder' }}"
        return list(self._listing(query, "look for its folders"))

    def inside(self, folders: Sequence[str], doing: str) -> list[RemoteFile]:
        """What lies directly in these folders, each asked for alone: a listing of several was seen to answer for some
        of them only, without a word (rclone issue 9810 of August 2026; googleapis/google-api-nodejs-client issue 1957).

        Raises:
            FolderGone: one of them does not exist.
            StoreError: it cannot be told.
        """
        if len(folders) == 1:
            return self._inside(folders[0], doing)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="colabkeep-lister") as pool:
            found = list(pool.map(lambda folder: self._inside(folder, doing), folders))
        return [file for part in found for file in part]

    def look(self, id: str, doing: str) -> RemoteFile | None:
        """The file of that id; None where there is none for this OAuth client.

        Raises:
            StoreError: it cannot be told.
        """
        query = {"fields": FIELDS, "supportsAllDrives": "true"}
        answer = self._api.ask("GET", f"/drive/v3/files/{id}", doing=doing, query=query, accept=(200, 404))
        return read_file(answer) if answer else None

    def glance(self, id: str) -> RemoteFile | None:
        """The same in one attempt of less than a second; None also where it cannot be told."""
        query = {"fields": FIELDS, "supportsAllDrives": "true"}
        try:
            path = f"/drive/v3/files/{id}"
            return read_file(self._api.ask_once("GET", path, doing="confirm", query=query, timeouts=(0.4, 0.5)))
        except StoreError:
            return None

    def make_folder(self, name: str, parent: str, marks: Mapping[str, str]) -> RemoteFile:
        """A new folder.

        Raises:
            FolderGone: the parent does not exist.
            StoreError: it cannot be made.
        """
        id, doing = self.new_id(), f"make the folder {name!r}"
        body = {"id": id, "name": name, "mimeType": FOLDER, "parents": [parent], "appProperties": dict(marks)}
        query = {"fields": FIELDS, "supportsAllDrives": "true"}
        # 409: an earlier attempt made it, and its answer was lost.
        answer = self._api.ask("POST", "/drive/v3/files", doing=doing, query=query, body=body, accept=(200, 404, 409))
        made = read_file(answer) if answer else self.look(id, doing)
        if made is None:
            raise FolderGone(parent)
        return made

    def make_alone(self, name: str, parent: str, marks: Mapping[str, str], doing: str) -> list[RemoteFile]:
        """A new folder, and what others of its name are beside it by then, the oldest first. Drive keeps no name
        unique: of two machines that find none and make one each, whoever looks last sees both, and writes into the
        older.

        Raises:
            FolderGone: the parent does not exist.
            StoreError: it cannot be made, or it cannot be told what is there.
        """
        made = self.make_folder(name, parent, marks)
        beside = [one for one in self.named(name, [parent], doing) if one.id != made.id]
        return sorted([made, *beside], key=age)

    def named(self, name: str, folders: Sequence[str], doing: str) -> list[RemoteFile]:
        """The folders of that name that lie directly in these, the oldest first.

        Raises:
            FolderGone, StoreError: as `inside`.
            StoreError: there is none, but a shortcut of that name to a folder elsewhere.
        """
        inside = self.inside(folders, doing)
        found = sorted((file for file in inside if file.is_folder and file.name == name), key=age)
        if not found:
            refuse_shortcut(name, inside)
        return found

    def delete(self, id: str, doing: str) -> None:
        """Remove a file for good, past the trash, which would keep counting. Nothing happens where there is none.

        Raises:
            StoreError: it cannot be removed.
        """
        query = {"supportsAllDrives": "true"}
        self._api.ask("DELETE", f"/drive/v3/files/{id}", doing=doing, query=query, accept=(200, 204, 404))

    def delete_once(self, id: str, doing: str) -> None:
        """The same in one quick attempt, which may fail: for what is on its way out by an interrupt."""
        with suppress(StoreError):
            self._api.ask_once(
                "DELETE",
                f"/drive/v3/files/{id}",
                doing=doing,
                query={"supportsAllDrives": "true"},
                accept=(200, 204, 404),
                timeouts=(3.0, 5.0),
            )

    def new_id(self) -> str:
        """An id that no file has yet. Creating with it twice makes one file, so a lost answer costs nothing.

        Raises:
            StoreError: there is none to be had.
        """
        with self._guard:
            if self._ids:
                return self._ids.pop()
        query = {"count": str(_IDS), "space": "drive", "type": "files", "fields": "ids"}
        answer = self._api.ask("GET", "/drive/v3/files/generateIds", doing="reserve names", query=query)
        with self._guard:
            self._ids += map(str, answer.get("ids", ()))
            if not self._ids:
                raise StoreUnavailable(problem="Google Drive gave no ids for new files.", remedy="It is tried again.")
            return self._ids.pop()

    def _inside(self, folder: str, doing: str) -> list[RemoteFile]:
        return list(self._listing(f"'{folder}' in parents", doing))

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
        response = self._api.send(
            "GET", f"{self._api.service}/drive/v3/files", doing=doing, query=query, accept=(200, 404)
        )
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
    """See that no folder is made beside a shortcut of its name: what was saved lies where that points to.

    Raises:
        StoreError: one is there.
    """
    for file in beside:
        if file.name == name and file.leads_to is not None:
            raise StoreError(
                problem=f"{name!r} in Google Drive is no folder but a shortcut to one that lies elsewhere. A new "
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
    """The place of a URL: drive://folder/folder, or drive://id=<a folder's id>/folder, and ?shared_drive=<id> after it.

    Raises:
        UsageError: it cannot be meant so.
    """
    path, _, query = url.partition("://")[2].partition("?")
    parts = [unquote(part) for part in path.split("/") if part]
    options = dict(parse_qsl(query, keep_blank_values=True))
    top = None
    if parts and parts[0].startswith("id="):
        top = _checked_id(url, parts.pop(0)[3:], "id=…, the folder's,")
    shared = options.pop("shared_drive", None)
    place = Place(
        folders=tuple(parts) if parts or top else (_DEFAULT,),
        top=top,
        shared_drive=None if shared is None else _checked_id(url, shared, "shared_drive=…"),
        service=_checked_service(url, options.pop("service", SERVICE)),
    )
    if options:
        raise UsageError(
            problem=f"storage={shown(url)}: {', '.join(map(_option, options))} means nothing here.",
            remedy='Write "drive://<folder>", or "drive://<folder>?shared_drive=<id>".',
        )
    return place


def _option(name: str) -> str:
    """The name of an option in an error, unless it may be a secret itself."""
    return name if _WORD.fullmatch(name) else 'what follows the "?"'


def _checked_id(url: str, text: str, what: str) -> str:
    if not _ID.fullmatch(text):
        raise UsageError(
            problem=f"storage={shown(url)}: {what} is not an id.",
            remedy="Open it in the browser: the id is the last part of the address, after /folders/.",
        )
    return text


def _checked_service(url: str, service: str) -> str:
    parts = urlsplit(service)
    if service != SERVICE and (parts.scheme != "http" or parts.hostname not in {"127.0.0.1", "localhost", "::1"}):
        # The token is sent there: a storage that somebody else wrote must not lead it away.
        raise UsageError(
            problem=f"storage={shown(url)}: its service=… is not on this machine.",
            remedy="Leave service=… away: it is for tests, with a server on 127.0.0.1.",
        )
    return service.rstrip("/")


class OwnFolder:
    """The folder of a place. It is known by a mark that it got when it was made, so one question finds it together
    with all below; one that has no mark (rclone made it, or another OAuth client) is found by the names on the way."""

    def __init__(self, files: Files, place: Place) -> None:
        self._files = files
        self._place = place

    def search(self, doing: str) -> dict[str, tuple[RemoteFile, ...]]:
        """All folders that could be found without looking into each, by their paths below the store, the oldest of one
        path first; the store's own has the path "". Nothing if that is not there.

        Raises:
            FolderGone: the folder that the URL names by its id does not exist.
            StoreError: it cannot be told.
        """
        marked = self._files.marked_folders()
        if not self._place.folders and self._place.top is not None:
            own = [RemoteFile(id=self._place.top, name="", size=None, is_folder=True)]
        else:
            # Moved elsewhere by hand, it is still the same; renamed, it was put away.
            last = self._place.folders[-1]
            own = [one for one in marked if one.marks.get("root") == self._mark and one.name == last]
        return _paths(own or self._by_names(doing), marked)

    def make(self, doing: str) -> list[RemoteFile]:
        """Make the folder, and those above it that are missing. All folders of its name that are there by then, the
        oldest first: another machine may make one at the same moment.

        Raises:
            FolderGone: the folder that the URL names by its id does not exist.
            StoreError: it cannot be made.
        """
        folders = [RemoteFile(id=self._place.top or self._files.top, name="", size=None, is_folder=True)]
        for number, name in enumerate(self._place.folders, start=1):
            last = number == len(self._place.folders)
            marks = {MARK: "folder", "root": self._mark} if last else {MARK: "folder"}
            parent = folders[0].id
            folders = self._files.named(name, [parent], doing) or self._files.make_alone(name, parent, marks, doing)
        return folders

    def _by_names(self, doing: str) -> list[RemoteFile]:
        folders = [RemoteFile(id=self._place.top or self._files.top, name="", size=None, is_folder=True)]
        for name in self._place.folders:
            folders = self._files.named(name, [one.id for one in folders], doing) if folders else []
        return folders

    @property
    def _mark(self) -> str:
        """Shortened, for a property holds 124 bytes."""
        return hashlib.sha256(self._place.url.partition("?")[0].encode()).hexdigest()[:32]


def joined(folder: str, name: str) -> str:
    """A path one longer."""
    return f"{folder}/{name}" if folder else name


def _paths(own: Iterable[RemoteFile], marked: Iterable[RemoteFile]) -> dict[str, tuple[RemoteFile, ...]]:
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
    return {path: tuple(sorted(folders, key=age)) for path, folders in found.items()}


@dataclass(frozen=True, slots=True)
class Astray:
    """A folder that is not where it was: its path in the store, and the folder as it is now; None if it is gone."""

    path: str
    now: RemoteFile | None


class Whereabouts:
    """`look(id, doing)` asks the service for one folder by its id; that never lags. Used by one thread at a time, but
    for `astray`."""

    def __init__(self, look: Callable[[str, str], RemoteFile | None]) -> None:
        self._look = look
        self._met: dict[str, RemoteFile] = {}  # by id, as it was when it was first seen
        self._astray: dict[str, Astray] = {}  # replaced as a whole

    @property
    def astray(self) -> tuple[Astray, ...]:
        """The folders that are not where they were."""
        return tuple(self._astray.values())

    def meet(self, folders: Iterable[RemoteFile]) -> None:
        """These were seen; one that is known by its id only, from the URL, has no name."""
        for one in folders:
            if one.name:
                self._met.setdefault(one.id, one)

    def by_age(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The oldest first, the same on all machines."""
        return tuple(sorted(ids, key=lambda id: age(self._met[id]) if id in self._met else ("", id)))

    def changed(self, unseen: Iterable[tuple[str, str]], doing: str) -> bool:
        """Is one of these folders, path and id, that a search did not find, not where it was? Or one back that was
        not?

        Raises:
            StoreError: it cannot be told.
        """
        lost: dict[str, Astray] = {}
        for path, id in unseen:
            if id in self._met and self._has_left(id, now := self._look(id, doing)):
                lost[id] = Astray(path, now)
        absent = self._astray.keys() - lost.keys()
        back = {id for id in absent if not self._has_left(id, self._look(id, doing))}
        self._astray = {id: one for id, one in self._astray.items() if id not in back} | lost
        return bool(lost or back)

    def _has_left(self, id: str, now: RemoteFile | None) -> bool:
        was = self._met[id]
        return now is None or now.trashed or (now.name, set(now.parents)) != (was.name, set(was.parents))
