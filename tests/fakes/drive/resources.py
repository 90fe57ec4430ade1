"""How a file looks to a client of v2 or v3, and what a client of v3 may say of a file.

Field for field after the schemas of the discovery documents; the tests check every answer against them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from tests.fakes.drive.answers import ApiError, invalid
from tests.fakes.drive.files import Caller, File, Files


def render(version: str, file: File, files: Files, caller: Caller, base: str) -> dict[str, Any]:
    """The File resource; what is None is left out, as the service leaves it out."""
    whole = (_v2 if version == "v2" else _v3)(file, files, caller, base)
    binary = {
        "md5Checksum": file.md5,
        "sha1Checksum": file.sha1,
        "sha256Checksum": file.sha256,
        "headRevisionId": file.revision,
        "originalFilename": file.original_name or file.name,
        "fileExtension": file.name.rpartition(".")[2] if "." in file.name else "",
        "fullFileExtension": file.name.partition(".")[2],
    }
    whole |= {
        "kind": "drive#file",
        "id": file.id,
        "mimeType": file.mime,
        "description": file.description,
        "version": str(file.version),
        "quotaBytesUsed": str(file.size or 0),
        "spaces": ["drive"],
        "explicitlyTrashed": file.trashed,
        "driveId": file.drive,
        # in a shared drive nobody owns a file, and all is shared ("Shared drive and My Drive API differences")
        "ownedByMe": file.owner == caller.account if file.drive is None else None,
        "shared": file.drive is not None,
    }
    if file.size is not None:
        whole |= binary
    if file.target is not None:
        whole["shortcutDetails"] = {"targetId": file.target, "targetMimeType": file.target_mime}
    return {name: value for name, value in whole.items() if value is not None}


def user(account: str, caller: Caller) -> dict[str, Any]:
    """The User resource."""
    name = account.partition("@")[0]
    return {"kind": "drive#user", "displayName": name, "emailAddress": account, "me": account == caller.account}


def _v3(file: File, files: Files, caller: Caller, base: str) -> dict[str, Any]:
    return {
        "name": file.name,
        "trashed": files.in_trash(file),
        "parents": [file.parent] if file.parent else None,
        "properties": file.properties or None,
        "appProperties": file.app_properties.get(caller.client) or None,
        "createdTime": written(file.created),
        "modifiedTime": written(file.modified),
        "size": None if file.size is None else str(file.size),
        "owners": [user(file.owner, caller)] if file.drive is None else None,
        "lastModifyingUser": user(file.owner, caller),
        "webViewLink": f"{base}file/d/{file.id}/view",
        "webContentLink": f"{base}uc?id={file.id}&export=download" if file.size is not None else None,
    }


def _v2(file: File, files: Files, caller: Caller, base: str) -> dict[str, Any]:
    """What PyDrive2 asks for when it looks around."""
    return {
        "title": file.name,
        "labels": {"trashed": files.in_trash(file)},
        "parents": [{"kind": "drive#parentReference", "id": file.parent}] if file.parent else [],
        "fileSize": None if file.size is None else str(file.size),
    }


def written(seconds: float) -> str:
    """The time as text, in milliseconds, as the discovery documents' examples and rclone have it."""
    moment = datetime.fromtimestamp(round(seconds * 1000) / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def read_time(text: str) -> float:
    """The seconds that `text` means; without a zone it is UTC ("Search query terms and operators")."""
    moment = datetime.fromisoformat(_cut(text.replace("Z", "+00:00")))
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()


def _cut(text: str) -> str:
    """Python 3.10 reads fractions of three or six digits only; rclone writes up to nine."""
    head, point, tail = text.partition(".")
    if not point:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6]:0<6}{tail[digits:]}"


def said(body: dict[str, Any]) -> dict[str, Any]:
    """What a request body says of a file, in the words of `File`, plus `id` and `parents`.

    What the service calculates (sizes, digests, links) may stand in the body and is ignored. Raises ApiError 400 for a
    value of the wrong kind.
    """
    changes: dict[str, Any] = {}
    for word, value in body.items():
        if word in _WORDS:
            name, take = _WORDS[word]
            try:
                taken = take(value)
            except (TypeError, ValueError, KeyError, AttributeError):
                raise ApiError(400, "invalid", f"Invalid value for: {word}") from None
            changes[name] = taken
    return changes


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _pairs(value: Any) -> dict[str, str | None]:
    return {key: _text(one) for key, one in value.items()}


_WORDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "id": ("id", _text),
    "mimeType": ("mime", _text),
    "description": ("description", _text),
    "originalFilename": ("original_name", _text),
    "shortcutDetails": ("target", lambda value: str(value["targetId"])),
    "name": ("name", _text),
    "trashed": ("trashed", _flag),
    "createdTime": ("created", read_time),
    "modifiedTime": ("modified", read_time),
    "parents": ("parents", lambda value: [str(one) for one in value]),
    "properties": ("properties", _pairs),
    "appProperties": ("app_properties", _pairs),
}


def whole_number(query: dict[str, str], parameters: dict[str, Any], name: str) -> int:
    """An integer parameter, or its default. Raises ApiError 400 for what is not a number or too small; what is too
    large is taken as the largest ("values above 1000 will be coerced to 1000", discovery document of v3)."""
    known = parameters[name]
    text = query.get(name, known["default"])
    if not text.lstrip("-").isdigit() or int(text) < int(known.get("minimum", 0)):
        raise invalid(name)
    return min(int(text), int(known.get("maximum", 1000)))
