"""What the service knows of files: listed by folder, made, looked at, deleted. By ids; no name is ever asked for.

A listing by name may lag behind what was written, one by folder does not (kopia/kopia, issue 90 and pull
request 1731); names need not be unique either. So whole folders are listed, and names compared here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from colabkeep.stores.drive.api import Api, decoded
from colabkeep.vocabulary.errors import StoreError, StoreUnavailable

__all__ = ["FIELDS", "FOLDER", "MARK", "Files", "FolderGone", "RemoteFile", "age", "read_file", "refuse_shortcut"]

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
