"""Making, changing and removing files: the rules that hold whatever way the bytes came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fakes.drive.answers import ApiError, invalid, not_found
from tests.fakes.drive.files import Caller, File
from tests.fakes.drive.ids import fresh_file_id, issued
from tests.fakes.drive.state import State
from tests.fakes.drive.uploads import Upload

# Quoted in github.com/nithinmurali/pygsheets pull request 607 and github.com/n8n-io/n8n issue 26050.
ROBOT = "Service Accounts do not have storage quota. Leverage shared drives, or use OAuth delegation instead."


def check_room(state: State, caller: Caller, drive: str | None, more: int) -> None:
    """Raises ApiError 403 where `more` bytes do not fit; what lies in the trash counts ("Resolve errors"). A service
    account has no room of its own since April 2025, only in a shared drive."""
    if drive is not None:
        return
    if caller.robot:
        raise ApiError(403, "storageQuotaExceeded", ROBOT)
    quota = state.settings.quota_bytes
    used, _ = state.files.usage(caller.account)
    if quota is not None and more > 0 and used + state.settings.others_bytes + more > quota:
        raise ApiError(403, "storageQuotaExceeded", "The user's Drive storage quota has been exceeded.")


def check_new(state: State, caller: Caller, changes: dict[str, Any]) -> None:
    """Raises ApiError where a new file may not be made so: 409 for an id that is taken (files.generateIds exists so
    that a repeated create answers this), 404 for a parent that is not seen, 403 for more than one."""
    file_id = changes.get("id")
    if file_id is not None:
        if state.files.lookup(file_id) is not None:
            raise ApiError(409, "fileIdInUse", "A file already exists with the provided ID.")
        if not issued(file_id):
            raise ApiError(400, "invalid", "The provided file ID is not usable.", location="id")
    _parent(state, caller, changes)


def new_file(state: State, caller: Caller, changes: dict[str, Any]) -> File:
    """A file as `changes` want it, not kept yet."""
    check_new(state, caller, changes)
    parent = _parent(state, caller, changes)
    now = state.now()
    file = File(
        id=changes.get("id") or fresh_file_id(),
        name="Untitled",
        mime="application/octet-stream",
        parent=parent.id,
        owner=caller.account,
        client=caller.client,
        created=now,
        modified=now,
        number=state.files.next_number(),
        drive=parent.drive,
        target_mime=state.files.get(changes["target"], caller).mime if "target" in changes else None,
    )
    return changed(file, caller, changes)


def _check_properties(file: File) -> None:
    """Raises ApiError 400 for more or longer properties than a file may have ("Add custom file properties", Drive API
    guides: 30 public ones, 30 private ones of one application, 100 in all; 124 bytes of UTF-8 each, key and value
    together). No source gives the words of that refusal."""
    private = list(file.app_properties.values())
    if (
        any(len(pairs) > 30 for pairs in (file.properties, *private))
        or len(file.properties) + sum(map(len, private)) > 100
    ):
        raise invalid("properties", "A file has too many properties.")
    for pairs in (file.properties, *private):
        for key, value in pairs.items():
            if len((key + value).encode()) > 124:
                raise invalid("properties", f"The property {key} is longer than 124 bytes.")


def changed(file: File, caller: Caller, changes: dict[str, Any]) -> File:
    """The file with these changes; the parent is not touched. A property that is set to null goes."""
    words = {
        name: value for name, value in changes.items() if name not in ("id", "parents", "properties", "app_properties")
    }
    private = {**file.app_properties.get(caller.client, {}), **changes.get("app_properties", {})}
    public = {**file.properties, **changes.get("properties", {})}
    after = replace(
        file,
        **{name: value for name, value in words.items() if value is not None},
        properties=_set(public),
        app_properties={**file.app_properties, caller.client: _set(private)},
    )
    _check_properties(after)
    return after


def check_writable(state: State, file: File) -> None:
    """Raises ApiError 403 for a file that may be read only (prasmussen/gdrive issue 397)."""
    if not state.files.writable(file):
        text = "The user does not have sufficient permissions for this file."
        raise ApiError(403, "insufficientFilePermissions", text)


def change(state: State, caller: Caller, file: File, changes: dict[str, Any]) -> File:
    """Change what is said of a file, and keep it."""
    check_writable(state, file)
    renamed = {"name", "description", "mime"} & changes.keys()
    after = changed(file, caller, {"modified": state.now(), **changes} if renamed else changes)
    after = replace(after, version=file.version + 1)
    state.files.save(after)
    return after


def move(state: State, caller: Caller, file: File, add: list[str], remove: list[str]) -> File:
    """Another parent. One parent only: adding without removing is refused (RobinBobin/react-native-google-drive-api-
    wrapper issue 35; "Single-parenting behavior changes", Drive API guides)."""
    check_writable(state, file)
    parents = [_open_to_new(state, state.files.parent(each, caller)).id for each in add]
    left = (
        [file.parent] if file.parent and file.parent not in [state.files.real_id(one, caller) for one in remove] else []
    )
    parents = left + [one for one in parents if one not in left]
    if len(parents) > 1:
        raise ApiError(403, "cannotAddParent", "Increasing the number of parents is not allowed")
    if not parents:
        return file
    above = state.files.lookup(parents[0])
    assert above is not None
    after = replace(file, parent=above.id, drive=above.drive, version=file.version + 1)
    state.files.save(after)
    return after


def finished(state: State, upload: Upload) -> File | None:
    """The file that this upload has made already, also when the server died before it could say so."""
    there = state.files.lookup(upload.file)
    if there is not None and (upload.done or there.revision == upload.id):
        return there
    if upload.done:
        raise not_found(upload.file)
    return None


def finish(state: State, upload: Upload, digests: dict[str, Any]) -> File:
    """The upload becomes a file, or a file's new content.

    The quota is looked at again: it may have filled up since the session began.
    """
    caller = upload.caller
    if upload.new:
        file = new_file(state, caller, upload.changes)
        check_room(state, caller, file.drive, upload.received)
        old = None
    else:
        file = state.files.get(upload.file, caller)
        check_writable(state, file)
        check_room(state, caller, file.drive, upload.received - (file.size or 0))
        old = file.revision
        file = changed(file, caller, {"modified": state.now(), **upload.changes})
    state.contents.adopt(state.uploads.part(upload.id), upload.id)
    file = replace(file, **digests, size=upload.received, revision=upload.id, version=file.version + (not upload.new))
    state.files.save(file)
    state.contents.remove(old)
    state.budgets.uploaded(upload.account, state.now(), upload.received)
    upload.done = True
    return file


def remove(state: State, file: File) -> None:
    """Delete for good, past the trash."""
    check_writable(state, file)
    for gone in state.files.delete(file):
        state.contents.remove(gone.revision)


def _parent(state: State, caller: Caller, changes: dict[str, Any]) -> File:
    parents = changes.get("parents") or ["root"]
    if len(parents) > 1:
        raise ApiError(403, "cannotAddParent", "Increasing the number of parents is not allowed")
    return _open_to_new(state, state.files.parent(parents[0], caller))


def _open_to_new(state: State, folder: File) -> File:
    """The folder. Raises ApiError 403 where it may only be read (anasty17/mirror-leech-telegram-bot issue 427)."""
    if not state.files.writable(folder):
        raise ApiError(403, "insufficientParentPermissions", "Insufficient permissions for the specified parent.")
    return folder


def _set(pairs: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in pairs.items() if value is not None}
