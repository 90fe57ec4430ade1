"""The digests that services state about an object, held against what was sent, by this process or by another one.

Services state an MD5; a checkpoint names the SHA-256 of its objects. So a writer leaves both beside the object, as
notes that the place gives back with its description: whoever comes later sees that the place states the MD5 of these
very bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from colabkeep.stores._blocks import Tally
from colabkeep.stores.base import Source

__all__ = ["notes", "notes_of", "restated", "stated"]

_SHA256_NOTE, _MD5_NOTE = "colabkeep-sha256", "colabkeep-md5"

_MD5 = re.compile(r"[0-9a-f]{32}")
_MD5_OF_MD5S = re.compile(r"[0-9a-f]{32}-[0-9]+")


def stated(info: Mapping[str, Any], digest: Literal["etag", "md5", "none"], tally: Tally) -> bool | None:
    """Does the description say that these are the bytes? None: it says nothing that could be compared.

    An ETag is the MD5 of what came in one piece, and the MD5 of the parts' MD5s, with their number, of what came in
    parts (docs.aws.amazon.com, "Checking object integrity"), except for objects encrypted with certain keys. So
    False means one of two things: these are not the bytes, or this is not their digest.
    """
    if digest == "md5":
        md5 = info.get("md5Hash")  # cloud.google.com/storage/docs/json_api/v1/objects; absent for composed objects
        return None if md5 is None else base64.b64decode(md5) == tally.md5
    etag = str(info.get("ETag") or "").strip('"') if digest == "etag" else ""
    if _MD5.fullmatch(etag):
        return etag == tally.md5.hex()
    return etag == tally.md5_of_md5s if _MD5_OF_MD5S.fullmatch(etag) else None


def notes(sha256: str, md5: str | None = None) -> dict[str, str]:
    """What to leave beside an object: the digests of its bytes in hex, their MD5 as far as it is known."""
    return {_SHA256_NOTE: sha256} if md5 is None else {_SHA256_NOTE: sha256, _MD5_NOTE: md5}


def notes_of(source: Source, data: bytes) -> dict[str, str]:
    """The same for a source whose bytes are at hand."""
    return notes(source.sha256, hashlib.md5(data, usedforsecurity=False).hexdigest())


def restated(info: Mapping[str, Any], digest: Literal["etag", "md5", "none"], sha256: str) -> bool:
    """Does the description say that these are the bytes with this SHA-256, whoever sent them?

    S3 keeps no digest of the whole of what came in parts. It has then compared each part with its own digest as it
    arrived, and made the object only of parts that were right; so the writer's note stands for the whole.
    """
    left: Mapping[str, str] = info.get("notes") or {}
    if left.get(_SHA256_NOTE) != sha256:
        return False
    if digest == "md5":
        return info.get("md5Hash") is not None and base64.b64decode(info["md5Hash"]).hex() == left.get(_MD5_NOTE)
    etag = str(info.get("ETag") or "").strip('"') if digest == "etag" else ""
    if _MD5_OF_MD5S.fullmatch(etag):
        return _MD5_NOTE not in left
    return _MD5.fullmatch(etag) is not None and etag == left.get(_MD5_NOTE)
