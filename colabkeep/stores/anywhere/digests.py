"""The digests that services state about an object, held against what was sent."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Literal

from colabkeep.stores._blocks import Tally

__all__ = ["stated"]

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
