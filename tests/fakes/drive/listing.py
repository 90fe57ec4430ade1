"""files.list: search, order, pages.

A page may be asked for again, and no file comes twice when others come or go in between: a page token names the last
files that were shown. It is bound to its query (a made-up token: 400, github.com/brekkylab/backlot issue 337, 2026).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from tests.fakes.drive import query, resources
from tests.fakes.drive.answers import Answer, ApiError, invalid
from tests.fakes.drive.call import Call
from tests.fakes.drive.files import File, Files
from tests.fakes.drive.requests import INDEXES

KEYS: dict[str, Callable[[File], Any]] = {
    # of the keys of `orderBy` in the discovery documents those that somebody asks for
    "name": lambda file: file.name.casefold(),
    "title": lambda file: file.name.casefold(),
}
BOUND = ("q", "orderBy", "corpora", "driveId", "spaces")


def serve(call: Call) -> Answer:
    """The page that was asked for."""
    if call.query.get("spaces", "drive") != "drive":
        raise ApiError(501, "notImplemented", "This server has the space 'drive' only.")
    size = "maxResults" if call.version == "v2" else "pageSize"
    limit = resources.whole_number(call.query, call.method.parameters, size)
    limit = limit if call.request.page_files is None else min(limit, call.request.page_files)
    found = _ordered(_found(call), call.query.get("orderBy", ""))
    start = _start(call, found)
    page = found[start : start + limit]
    state, caller, base = call.state, call.caller, call.request.base
    shown = [resources.render(call.version, file, state.files, caller, base) for file in page]
    whole: dict[str, Any] = {"kind": "drive#fileList", "incompleteSearch": False}
    whole["items" if call.version == "v2" else "files"] = shown
    if start + limit < len(found):
        whole["nextPageToken"] = _token(call, page, start + limit)
    return call.answer(whole)


def _found(call: Call) -> list[File]:
    """What matches and may be seen. My Drive itself and the tops of shared drives are in no list.

    On a good day the answer is exact; how it may lag says `effects.stale_listing`.
    """
    search = query.parse(call.query.get("q", ""), call.version)
    files, caller = call.state.files, call.caller
    index_time = call.state.now() - call.request.hide_newer_than
    all_drives = call.request.flag("includeItemsFromAllDrives", "includeTeamDriveItems")
    drive = call.query.get("driveId") if call.query.get("corpora") == "drive" else None
    left_out = _left_out(call, search)
    stale = call.request.hide_by
    lags = bool(search.by & stale) if search.by else stale >= set(INDEXES)
    return [
        file
        for file in files
        if file.parent is not None
        and file.parent not in left_out
        and files.seen_by(file, caller)
        and (file.drive is None or all_drives)
        and (drive is None or file.drive == drive)
        and not (lags and file.created > index_time and _lies_in(file, files, call.request.hide_within))
        and search.matches(file, files, caller)
    ]


def _lies_in(file: File, files: Files, names: tuple[str, ...]) -> bool:
    """In a folder of one of these names; or no matter where, if there are none."""
    above = files.lookup(file.parent or "")
    return not names or (above is not None and above.name in names)


def _left_out(call: Call, search: query.Query) -> set[str]:
    """Ids of the parents that a partial listing does not answer for; one parent alone is always answered for."""
    parents = [call.state.files.real_id(parent, call.caller) for parent in dict.fromkeys(search.parents)]
    if call.request.partial is None or len(parents) < 2:
        return set()
    if not call.request.partial:
        return set(parents[1:])
    names = call.request.partial
    return {file.id for file in call.state.files if file.id in parents and file.name in names}


def _ordered(found: list[File], key: str) -> list[File]:
    """By the key of `orderBy`; without one, the newest first."""
    if key and key not in KEYS:
        raise invalid("orderBy")
    return sorted(found, key=KEYS.get(key, lambda file: -file.number))


def _bound(call: Call) -> list[str]:
    return [call.version, call.caller.client, *(call.query.get(name, "") for name in BOUND)]


def _token(call: Call, page: list[File], count: int) -> str:
    last = [file.id for file in page[-10:]]  # more than one, for they may be deleted before the next page
    return base64.urlsafe_b64encode(json.dumps([last, count, _bound(call)]).encode()).decode()


def _start(call: Call, found: list[File]) -> int:
    token = call.query.get("pageToken")
    if not token:
        return 0
    try:
        last, count, bound = json.loads(base64.urlsafe_b64decode(token.encode()))
    except ValueError:
        raise invalid("pageToken") from None
    if bound != _bound(call):
        raise invalid("pageToken")
    places = [place for place, file in enumerate(found) if file.id in last]
    return places[-1] + 1 if places else int(count)
