"""What a user wrote into storage=…, as it may stand in an error: errors are printed, journalled and asked about."""

from __future__ import annotations

import re

__all__ = ["is_key_file", "shown"]

_URL = re.compile(r"([a-z][a-z0-9+.-]+:/{1,2})(.*)", re.IGNORECASE | re.DOTALL)  # with a slash forgotten, too
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
    return repr(" + ".join(map(_place, storage.split(" + "))))


def _place(side: str) -> str:
    """One side of a pair, or the only one."""
    url = _URL.fullmatch(side.strip())
    if url is None:
        return side
    _, at, rest = url[2].rpartition("@")
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    return f"{url[1]}{'…@' if at else ''}{place}{'?…' if place != rest else ''}"
