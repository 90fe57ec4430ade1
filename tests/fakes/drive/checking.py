"""Is what the server says what Google says it would say? Every answer against the schema of its method."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fakes.drive.discovery import Discovery
from tests.fakes.drive.running import Drive, running_drive
from tests.fakes.drive.settings import Settings

FORMATS = {
    "int64": r"-?\d+",
    "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z",
}
TYPES: dict[str, type] = {"string": str, "boolean": bool, "integer": int, "object": dict, "array": list}
SIGN_IN = ("/token", "/oauth2/", "/o/oauth2/", "/revoke")


@contextmanager
def checked_drive(folder: Path, *, tls: Path | None = None, settings: Settings | None = None) -> Iterator[Drive]:
    """`running_drive`, and at its end every answer that it gave is checked."""
    settings = replace(settings or Settings(), keep_answers=True)
    with running_drive(folder, quota_bytes=settings.quota_bytes, tls=tls, settings=settings) as drive:
        yield drive
    assert mistakes(drive) == []


def mistakes(drive: Drive) -> list[str]:
    """What in the answers so far Drive's clients would not understand; one line each."""
    discovery = Discovery()
    found = []
    for seen in drive.requests():
        if seen.answer is None or seen.path.startswith(SIGN_IN) or seen.path.endswith("/rest"):
            continue
        where = f"{seen.method} {seen.path} {seen.status}"
        if seen.status is not None and seen.status >= 400:
            found += [f"{where}: {mistake}" for mistake in error_mistakes(seen.status, seen.answer)]
            continue
        # an upload session's last answer is that of the method that began it
        ways = (discovery.find(http, seen.path) for http in (seen.method, "POST", "PUT", "PATCH"))
        match = next(way for way in ways if way is not None)
        schemas = discovery.documents[match.method.version]["schemas"]
        schema = {"$ref": match.method.response}
        found += [f"{where}: {mistake}" for mistake in value_mistakes(seen.answer, schema, schemas)]
    return found


def error_mistakes(status: int, answer: Any) -> Iterator[str]:
    """The shape that `googleapiclient.errors.HttpError` and PyDrive2's `ApiRequestError` read."""
    error = answer["error"]
    if error["code"] != status or not error["message"]:
        yield f"code or message: {error}"
    if not error["errors"] or not all({"domain", "reason", "message"} <= one.keys() for one in error["errors"]):
        yield f"errors: {error}"


def value_mistakes(value: Any, schema: dict[str, Any], schemas: dict[str, Any], at: str = "") -> Iterator[str]:
    """Wrong types, texts that are not what their format says, and fields that nobody has described."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    kind = schema["type"]
    if kind not in ("any",) and type(value) is not TYPES[kind]:
        yield f"{at} is {value!r}, not {kind}"
    elif kind == "string" and not re.fullmatch(FORMATS.get(schema.get("format", ""), "(?s).*"), value):
        yield f"{at} is {value!r}, not {schema['format']}"
    elif kind == "array":
        for number, one in enumerate(value):
            yield from value_mistakes(one, schema["items"], schemas, f"{at}[{number}]")
    elif kind == "object":
        for name, one in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if below is None:
                yield f"{at}.{name} is not known"
            else:
                yield from value_mistakes(one, below, schemas, f"{at}.{name}")
