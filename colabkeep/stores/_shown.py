"""What a user wrote into storage=…, as it may stand in an error: errors are printed, journalled and asked about."""

from __future__ import annotations

import re

__all__ = ["is_key_file", "shown"]

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)
_KEY_FILE = re.compile(r"\{\s*\"|.*[\r\n]", re.DOTALL)


def is_key_file(text: str) -> bool:
    """Is it what is in a key file, rather than where one is?"""
    return _KEY_FILE.match(text.strip()) is not None


def shown(storage: object) -> str:
    """Of a URL the place alone: whatever is before an "@", or after "?" or "#", may be a secret. Of what is no string
    (credentials, a key file that was read), and of the text of a key file, its type."""
    if isinstance(storage, tuple | list):
        sides = ", ".join(map(shown, storage))
        return f"({sides})" if isinstance(storage, tuple) else f"[{sides}]"
    if not isinstance(storage, str):
        return f"<{type(storage).__name__}>"
    if is_key_file(storage):
        return f"<{type(storage).__name__} of {len(storage)} characters>"
    url = _URL.fullmatch(storage.strip())
    if url is None:
        return repr(storage)
    _, at, rest = url[2].rpartition("@")
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    return repr(f"{url[1]}://{'…@' if at else ''}{place}{'?…' if place != rest else ''}")
