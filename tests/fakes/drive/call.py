"""A request that has been understood: which method, of which version, asked by whom."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fakes.drive import masks, resources
from tests.fakes.drive.answers import Answer, ApiError, json_answer
from tests.fakes.drive.discovery import Method
from tests.fakes.drive.files import Caller, File
from tests.fakes.drive.requests import Request
from tests.fakes.drive.state import State

DEFAULT_FIELDS = {
    # "Return specific fields" (Drive API guides): without `fields` v3 says only this, and v2 everything.
    "File": "kind,id,name,mimeType",
    "FileList": "kind,incompleteSearch,nextPageToken,files(kind,id,name,mimeType)",
}


@dataclass(frozen=True)
class Call:
    """One call of a method. `path` holds the parameters in the path, `upload` whether it came by an upload path."""

    state: State
    request: Request
    method: Method
    path: dict[str, str]
    caller: Caller
    upload: bool

    @property
    def version(self) -> str:
        """ "v2" or "v3"."""
        return self.method.version

    @property
    def query(self) -> dict[str, str]:
        """The parameters in the URL."""
        return self.request.query

    def file(self) -> File:
        """The file that the path names. Raises ApiError 404."""
        return self.state.files.get(self.path["fileId"], self.caller)

    def json(self) -> dict[str, Any]:
        """The JSON object in the body; an empty body is an empty object."""
        return json_object(self.request.body.read())

    def answer(self, value: dict[str, Any]) -> Answer:
        """The value, or what the caller's field mask leaves of it."""
        return json_answer(self.masked(value, self.query.get("fields")))

    def answer_file(self, file: File, fields: str | None = None) -> Answer:
        """The file as this version shows it."""
        whole = resources.render(self.version, file, self.state.files, self.caller, self.request.base)
        return json_answer(self.masked(whole, fields if fields is not None else self.query.get("fields")))

    def masked(self, value: dict[str, Any], fields: str | None) -> Any:
        """What the mask leaves. Raises ApiError 400 for a mask that the method's schema does not have."""
        if fields is None and self.version == "v3":
            fields = DEFAULT_FIELDS.get(self.method.response or "")
        if fields is None:
            return value
        schemas = self.state.discovery.documents[self.version]["schemas"]
        mask = masks.parse(fields)
        masks.check(mask, {"$ref": self.method.response}, schemas)
        return masks.apply(mask, value)


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; nothing is an empty object. Raises ApiError 400."""
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, "parseError", "This API does not support parsing other than a JSON object here.")
    return value
