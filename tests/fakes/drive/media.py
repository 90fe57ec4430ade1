"""Bytes in and out: simple, multipart and resumable uploads, and downloads with a range.

"Upload file data", "Performing a Resumable Upload" and "Download files" (Drive API guides).
"""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.drive import resources, storing
from tests.fakes.drive.answers import Answer, ApiError
from tests.fakes.drive.call import Call, json_object
from tests.fakes.drive.content import pieces
from tests.fakes.drive.files import File
from tests.fakes.drive.ids import fresh, fresh_file_id
from tests.fakes.drive.requests import Request
from tests.fakes.drive.state import State
from tests.fakes.drive.uploads import GRAIN, Upload

CANCELLED = Answer(499)
"""The answer to a DELETE on an upload's address, and from then on to whatever is asked there ("Cancel an upload",
"Perform resumable uploads", Cloud Storage guides, whose upload service Drive has too; fsouza/fake-gcs-server pull
request 1813, getsentry/objectstore pull request 609)."""


def download(call: Call, file: File) -> Answer:
    """The content, or the part of it that Range asks for. Of an empty file no part can be had: 416
    (google-api-python-client, googleapiclient/http.py, MediaIoBaseDownload)."""
    if file.size is None or file.revision is None:
        text = "Only files with binary content can be downloaded. Use Export with Docs Editors files."
        raise ApiError(403, "fileNotDownloadable", text, location="alt")
    path = call.state.contents.path(file.revision)
    headers = {"Content-Type": file.mime}
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", call.request.headers.get("Range", ""))
    if wanted is None or wanted[0] == "bytes=-":
        return Answer(200, headers, pieces(path, 0, file.size), file.size)
    if wanted[1]:
        start, stop = int(wanted[1]), min(int(wanted[2] or file.size) + 1, file.size)
    else:
        start, stop = max(0, file.size - int(wanted[2])), file.size
    if start >= stop:
        return Answer(416, headers | {"Content-Range": f"bytes */{file.size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    return Answer(206, headers, pieces(path, start, stop), stop - start)


def upload(call: Call, file: File | None) -> Answer:
    """Bytes for a new file (`file` None) or an existing one, in the way that `uploadType` says."""
    kind = call.query.get("uploadType")
    if kind == "resumable":
        return _start(call, file)
    if kind == "multipart":
        return _whole(call, file, *_parts(call))
    if kind == "media":
        return _whole(call, file, {}, call.request.headers.get("Content-Type"), None)
    raise ApiError(400, "badRequest", f"Unknown upload type: {kind}")


def resume(state: State, request: Request) -> Answer | None:
    """A chunk or a question for an upload session, if the request has its address.

    The address alone is enough: no token is asked for, but one that is there must be good.
    """
    upload_id = request.query.get("upload_id")
    if upload_id is None or request.method not in ("PUT", "POST", "DELETE") or "/upload/" not in request.path:
        return None
    with state.guard:
        if request.bearer is not None:
            request.client = state.tokens.caller(request.bearer, state.now()).client
        session = state.uploads.get(upload_id, state.now() - state.settings.session_seconds)
        if request.method == "DELETE":
            state.uploads.cancel(upload_id)
        if session.cancelled or request.method == "DELETE":
            return CANCELLED
    found = state.discovery.find("POST", request.path) or state.discovery.find("PUT", request.path)
    found = found or state.discovery.find("PATCH", request.path)
    assert found is not None, request.path
    call = Call(state, request, found.method, found.parameters, session.caller, upload=True)
    with state.guard:
        made = storing.finished(state, session)
    if made is None:
        _receive(call, session)
        if session.total is None or session.received < session.total:
            headers = {"Range": f"bytes=0-{session.received - 1}"} if session.received else {}
            return Answer(308, headers)
    with state.guard:
        made = storing.finished(state, session) or storing.finish(state, session, state.uploads.digests(session))
        state.uploads.save(session)
        state.uploads.drop_part(session.id)
        return call.answer_file(made, session.fields)


def _start(call: Call, file: File | None) -> Answer:
    headers = call.request.headers
    session = _session(call, file, call.json(), headers.get("X-Upload-Content-Type"))
    announced = headers.get("X-Upload-Content-Length")
    session.total = int(announced) if announced is not None else None
    with call.state.guard:
        caller = call.caller
        call.state.budgets.begin_upload(caller.account, call.state.now(), call.state.settings)
        if file is None:
            storing.new_file(call.state, caller, session.changes)
        parents = session.changes.get("parents") or ["root"]
        above = file or call.state.files.parent(parents[0], caller)
        more = (session.total or 0) - (file.size or 0 if file else 0)
        storing.check_room(call.state, caller, above.drive, more)
        call.state.uploads.save(session)
    # Built from the Host header and used verbatim by all clients.
    path = call.request.base.rstrip("/") + call.request.path
    headers = {"Location": f"{path}?uploadType=resumable&upload_id={session.id}", "X-GUploader-UploadID": session.id}
    return Answer(200, headers)


def _receive(call: Call, session: Upload) -> None:
    """Take what the request brings. An empty PUT with "bytes */total" is a question."""
    state, body = call.state, call.request.body
    text = call.request.headers.get("Content-Range", "")
    asked = re.fullmatch(r"bytes \*/(\d+|\*)", text)
    if asked is not None and not body.read():
        _expect(session, asked[1])
        return
    sent = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", text)
    if sent is None and text:
        raise ApiError(400, "badRequest", f"Failed to parse Content-Range header: {text}")
    start = int(sent[1]) if sent else 0
    size = int(sent[2]) + 1 - start if sent else body.length
    _expect(session, sent[3] if sent else "*" if size is None else str(size))
    if size is None or (body.length is not None and body.length != size):
        raise ApiError(400, "badRequest", "The size of the body is not the size that Content-Range says.")
    if session.total is not None and start + size > session.total:
        raise ApiError(400, "badRequest", f"The chunk ends beyond the {session.total} bytes of the upload.")
    if start + size != session.total and size % GRAIN:
        raise ApiError(400, "badRequest", f"Chunks must be multiples of {GRAIN} bytes; this one has {size}.")
    if start > session.received:  # the text: RobinBobin/react-native-google-drive-api-wrapper issue 102 (2024)
        text = f"Invalid request.  According to the Content-Range header, the upload offset is {start} byte(s), "
        text += f"which exceeds already uploaded size of {session.received} byte(s)."
        raise ApiError(400, "badRequest", text)
    try:
        state.uploads.receive(session, start, body.pieces())
    finally:
        with state.guard:
            state.uploads.save(session)


def _expect(session: Upload, total: str) -> None:
    if total != "*" and session.total not in (None, int(total)):
        raise ApiError(400, "badRequest", f"The upload was announced with {session.total} bytes, not {total}.")
    if total != "*":
        session.total = int(total)


def _session(call: Call, file: File | None, said: dict[str, Any], kind: str | None) -> Upload:
    changes = resources.said(said)
    if kind is not None:
        changes.setdefault("mime", kind)
    if file is not None and "parents" in changes:
        raise fields_not_writable()
    if file is not None and ("addParents" in call.query or "removeParents" in call.query):
        raise ApiError(501, "notImplemented", "This server moves a file only in a request of its own.")
    if file is None:
        changes["id"] = changes.get("id") or fresh_file_id()
    caller = call.caller
    return Upload(
        id=fresh(),
        version=call.version,
        file=file.id if file else changes["id"],
        new=file is None,
        changes=changes,
        account=caller.account,
        client=caller.client,
        scopes=sorted(caller.scopes),
        all_drives=caller.all_drives,
        created=call.state.now(),
        fields=call.query.get("fields"),
    )


def _whole(call: Call, file: File | None, said: dict[str, Any], kind: str | None, data: bytes | None) -> Answer:
    """All bytes in one request: a session that begins and ends here."""
    state = call.state
    session = _session(call, file, said, kind)
    with state.guard:
        state.budgets.begin_upload(session.account, state.now(), state.settings)
    try:
        state.uploads.receive(session, 0, call.request.body.pieces() if data is None else iter((data,)))
        digests = state.uploads.digests(session)
        with state.guard:
            return call.answer_file(storing.finish(state, session, digests))
    finally:
        state.uploads.drop_part(session.id)


def _parts(call: Call) -> tuple[dict[str, Any], str | None, bytes]:
    """multipart/related: the JSON, the kind of the content, the content. Google's own Python client ends its lines with
    a line feed only, others with both signs."""
    kind = call.request.headers.get("Content-Type", "")
    boundary = re.search(r'boundary="?([^";]+)"?', kind)
    if boundary is None:
        raise ApiError(400, "badRequest", "Missing end boundary in multipart body.")
    body = call.request.body.read()
    end = b"\r\n" if body.partition(b"\n")[0].endswith(b"\r") else b"\n"
    parts = (end + body).split(end + b"--" + boundary[1].encode())
    if len(parts) != 4 or not parts[3].startswith(b"--"):
        raise ApiError(400, "badRequest", "A multipart upload has two parts, the metadata and the content.")
    _, _, said = parts[1].partition(end + end)
    head, _, data = parts[2].partition(end + end)
    found = re.search(rb"(?im)^content-type:\s*([^\r\n]+)", head)
    return json_object(said), found[1].decode() if found else None, data


def fields_not_writable() -> ApiError:
    """v3's word on `parents` in an update (prasmussen/gdrive issue 341)."""
    text = "The parents field is not directly writable in update requests. Use the addParents and removeParents "
    return ApiError(403, "fieldNotWritable", text + "parameters instead.")
