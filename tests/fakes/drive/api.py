"""The methods of Drive v3 that this server has, and those by which v2 reads. Any other is answered 501, never guessed
at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tests.fakes.drive import listing, media, resources, storing
from tests.fakes.drive.answers import Answer, ApiError
from tests.fakes.drive.call import Call
from tests.fakes.drive.content import Digests
from tests.fakes.drive.files import FOLDER, SHORTCUT
from tests.fakes.drive.ids import fresh, fresh_file_id
from tests.fakes.drive.requests import Request
from tests.fakes.drive.state import State

MAX_UPLOAD_BYTES = 5_497_558_138_880  # "maxSize" of the upload methods in the discovery documents


def serve(state: State, request: Request) -> Answer:
    """The answer to a request for Drive. Raises ApiError."""
    resumed = media.resume(state, request)
    if resumed is not None:
        return resumed
    found = state.discovery.find(request.method, request.path)
    if found is None:
        raise ApiError(404, "notFound", f"Not found: {request.method} {request.path}")
    with state.guard:
        caller = state.tokens.caller(request.bearer, state.now())
        state.budgets.request(caller.account, state.now(), state.settings)
    request.client = caller.client
    if found.method.name not in (METHODS if found.method.version == "v3" else READING):
        raise ApiError(501, "notImplemented", f"This server does not have {found.method.version} {found.method.name}.")
    if not caller.scopes & found.method.scopes:
        text = "Request had insufficient authentication scopes."
        raise ApiError(
            403, "insufficientPermissions", text, canonical="PERMISSION_DENIED", short="Insufficient Permission"
        )
    caller = replace(caller, all_drives=request.flag("supportsAllDrives", "supportsTeamDrives"))
    call = Call(state, request, found.method, found.parameters, caller, found.upload)
    if found.upload:
        with state.guard:
            file = call.file() if "fileId" in call.path else None
        return media.upload(call, file)
    request.body.hold()  # nothing comes off the wire while the guard is held
    with state.guard:
        return METHODS[found.method.name](call)


def get(call: Call) -> Answer:
    """What is said of a file, or with alt=media its content."""
    file = call.file()
    return media.download(call, file) if call.query.get("alt") == "media" else call.answer_file(file)


def create(call: Call) -> Answer:
    """A folder, a shortcut, or an empty file."""
    state, caller = call.state, call.caller
    file = storing.new_file(state, caller, resources.said(call.json()))
    if file.mime not in (FOLDER, SHORTCUT):
        storing.check_room(state, caller, file.drive, 0)
        revision = fresh()
        state.contents.path(revision).touch()
        digests: dict[str, Any] = Digests().hexadecimal()
        file = replace(file, size=0, revision=revision, **digests)
    state.files.save(file)
    return call.answer_file(file)


def update(call: Call) -> Answer:
    """Change what is said of a file, and where it lies; the body may not name the parents."""
    state, caller, file = call.state, call.caller, call.file()
    changes = resources.said(call.json())
    add, remove = (_ids(call.query.get(name, "")) for name in ("addParents", "removeParents"))
    if "parents" in changes:
        raise media.fields_not_writable()
    if add or remove:
        file = storing.move(state, caller, file, add, remove)
    return call.answer_file(storing.change(state, caller, file, changes))


def delete(call: Call) -> Answer:
    """For good, without the trash, with all that is below."""
    storing.remove(call.state, call.file())
    return Answer(204)


def generate_ids(call: Call) -> Answer:
    """Ids for files to come."""
    count = resources.whole_number(call.query, call.method.parameters, "count")
    ids = [fresh_file_id() for _ in range(count)]
    return call.answer({"kind": "drive#generatedIds", "space": "drive", "ids": ids})


def about(call: Call) -> Answer:
    """The account and its quota. It wants to be told which fields: without, 400 (reference of about.get)."""
    state, caller = call.state, call.caller
    used, trashed = state.files.usage(caller.account)
    quota = 0 if caller.robot else state.settings.quota_bytes
    total = used + state.settings.others_bytes
    user = resources.user(caller.account, caller)
    if "fields" not in call.query:
        text = "The 'fields' parameter is required for this method."
        raise ApiError(400, "required", text, location="fields")
    room = {"usage": str(total), "usageInDrive": str(used), "usageInDriveTrash": str(trashed)}
    room |= {} if quota is None else {"limit": str(quota)}
    more = {"importFormats": {}, "exportFormats": {}, "maxUploadSize": str(MAX_UPLOAD_BYTES)}
    return call.answer({"kind": "drive#about", "user": user, "storageQuota": room, **more})


def drives(call: Call) -> Answer:
    """The shared drives."""
    found = [
        {"kind": "drive#drive", "id": drive, "name": "Shared drive"} for drive in call.state.settings.shared_drives
    ]
    return call.answer({"kind": "drive#driveList", "drives": found})


def _ids(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


READING = ("files.get", "files.list")
METHODS: Mapping[str, Callable[[Call], Answer]] = MappingProxyType(
    {
        "about.get": about,
        "drives.list": drives,
        "files.create": create,
        "files.delete": delete,
        "files.generateIds": generate_ids,
        "files.get": get,
        "files.list": listing.serve,
        "files.update": update,
    }
)
