"""What the server answers, and how it says no.

The shape of an error (`errors[]` always, `status` for authentication only, the two texts of a 401) was measured on the
live service by github.com/brekkylab/backlot, backlot/errors/google.py, August 2026; the reasons are those of the Drive
guide "Resolve errors".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A whole answer: `length` bytes come out of `chunks`. `value` is the JSON it carries, for the log."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = ()
    length: int = 0
    value: Any = None


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer that carries JSON."""
    data = json.dumps(value, indent=1).encode() + b"\n"
    headers = {"Content-Type": "application/json; charset=UTF-8", **(headers or {})}
    return Answer(status, headers, (data,), len(data), value)


def html_answer(status: int) -> Answer:
    """What a proxy in front of the service says when it cannot reach it: not JSON."""
    data = f"<!DOCTYPE html><html><title>Error {status}</title><p>That's an error. Try again later.</html>\n".encode()
    return Answer(status, {"Content-Type": "text/html; charset=UTF-8"}, (data,), len(data))


class ApiError(Exception):
    """The request is refused; `answer` says so in the form that Drive's clients read."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        location: str | None = None,
        canonical: str | None = None,
        short: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self._error = {"domain": "global", "reason": reason, "message": short or message}
        if location is not None:
            kind = "header" if location == "Authorization" else "parameter"
            self._error |= {"locationType": kind, "location": location}
        self._canonical = canonical
        self._headers = headers

    def answer(self) -> Answer:
        """The refusal."""
        error: dict[str, Any] = {"code": self.status, "message": str(self), "errors": [self._error]}
        if self._canonical is not None:
            error["status"] = self._canonical
        return json_answer({"error": error}, self.status, self._headers)


def not_found(file_id: str) -> ApiError:
    """The same for what is not there and what this client may not see."""
    return ApiError(404, "notFound", f"File not found: {file_id}.", location="fileId")


def invalid(parameter: str, message: str = "Invalid Value") -> ApiError:
    """A parameter has a value that the service does not take."""
    return ApiError(400, "invalid", message, location=parameter)
