"""Partial answers: `fields=nextPageToken,files(id,owners/emailAddress)`.

Syntax: Drive API guide "Return specific fields"; the text of the refusal as in
github.com/googleworkspace/java-samples issue 1547 (2025). An empty mask selects nothing: measured by
github.com/brekkylab/backlot issue 337 (2026).
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from tests.fakes.drive.answers import ApiError

Mask: TypeAlias = "dict[str, Mask | None]"
"""Selected names; None selects all that is below."""


def parse(text: str) -> Mask:
    """The mask that `text` writes. Raises ApiError 400 for what is not a mask."""
    tokens = re.findall(r"[\w*]+|[(),/]|\S", text)
    if not tokens:
        return {}
    mask = _list(tokens, text)
    if tokens:
        raise _refusal(text)
    return mask


def check(mask: Mask, schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Raises ApiError 400 for a name that the schema does not have."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    if schema.get("type") == "array":
        check(mask, schema["items"], schemas)
        return
    for name, below in mask.items():
        known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if name != "*" and known is None:
            raise _refusal(name)
        if below is not None and known is not None:
            check(below, known, schemas)


def apply(mask: Mask | None, value: Any) -> Any:
    """What the mask leaves of a JSON value."""
    if mask is None:
        return value
    if isinstance(value, list):
        return [apply(mask, one) for one in value]
    if not isinstance(value, dict):
        return value
    if "*" in mask:
        return {name: apply(mask.get(name, mask["*"]), one) for name, one in value.items()}
    return {name: apply(mask[name], one) for name, one in value.items() if name in mask}


def _list(tokens: list[str], text: str) -> Mask:
    mask: Mask = {}
    while True:
        _path(tokens, text, mask)
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def _path(tokens: list[str], text: str, mask: Mask) -> None:
    if not tokens or not re.fullmatch(r"[\w*]+", tokens[0]):
        raise _refusal(text)
    name = tokens.pop(0)
    if tokens and tokens[0] in ("/", "("):
        below: Mask = {}
        if tokens.pop(0) == "/":
            _path(tokens, text, below)
        else:
            below = _list(tokens, text)
            if not tokens or tokens.pop(0) != ")":
                raise _refusal(text)
        _add(mask, name, below)
    else:
        mask[name] = None


def _add(mask: Mask, name: str, below: Mask) -> None:
    """ "files(id),files/name" selects both."""
    if name not in mask:
        mask[name] = {}
    there = mask[name]
    if there is not None:
        for inner, deeper in below.items():
            if deeper is None:
                there[inner] = None
            else:
                _add(there, inner, deeper)


def _refusal(what: str) -> ApiError:
    return ApiError(400, "invalidParameter", f"Invalid field selection {what}", location="fields")
