"""Which folder of whose Drive: the URL `drive://<folder>/<folder>`, and what may follow it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from colabkeep.stores._shown import shown
from colabkeep.stores.drive.api import SERVICE
from colabkeep.vocabulary.errors import UsageError

__all__ = ["Place", "read_place"]

_ID = re.compile(r"[A-Za-z0-9_-]{10,100}")
_DEFAULT = "colabkeep"
_WORD = re.compile(r"[a-z_]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder, by its names from the top. `top`: the id of the folder they start in; None: My Drive, or the top of
    the shared drive with the id `shared_drive`. `service`: a Drive server on this very machine, for tests."""

    folders: tuple[str, ...]
    top: str | None = None
    shared_drive: str | None = None
    service: str = SERVICE

    @property
    def url(self) -> str:
        """How a user would write it."""
        start = [] if self.top is None else [f"id={self.top}"]
        path = "/".join([*start, *(quote(folder, safe=" ") for folder in self.folders)])
        more = {"shared_drive": self.shared_drive, "service": None if self.service == SERVICE else self.service}
        query = urlencode({name: value for name, value in more.items() if value is not None}, safe=":/")
        return f"drive://{path}" + (f"?{query}" if query else "")


def read_place(url: str) -> Place:
    """The place of a URL: drive://folder/folder, or drive://id=<a folder's id>/folder, and ?shared_drive=<id> after it.

    Raises:
        UsageError: it cannot be meant so.
    """
    path, _, query = url.partition("://")[2].partition("?")
    parts = [unquote(part) for part in path.split("/") if part]
    options = dict(parse_qsl(query, keep_blank_values=True))
    top = None
    if parts and parts[0].startswith("id="):
        top = _checked_id(url, parts.pop(0)[3:], "id=…, the folder's,")
    shared = options.pop("shared_drive", None)
    place = Place(
        folders=tuple(parts) if parts or top else (_DEFAULT,),
        top=top,
        shared_drive=None if shared is None else _checked_id(url, shared, "shared_drive=…"),
        service=_checked_service(url, options.pop("service", SERVICE)),
    )
    if options:
        raise UsageError(
            problem=f"storage={shown(url)}: {', '.join(map(_option, options))} means nothing here.",
            remedy='Write "drive://<folder>", or "drive://<folder>?shared_drive=<id>".',
        )
    return place


def _option(name: str) -> str:
    """The name of an option in an error, unless it may be a secret itself."""
    return name if _WORD.fullmatch(name) else 'what follows the "?"'


def _checked_id(url: str, text: str, what: str) -> str:
    if not _ID.fullmatch(text):
        raise UsageError(
            problem=f"storage={shown(url)}: {what} is not an id.",
            remedy="Open it in the browser: the id is the last part of the address, after /folders/.",
        )
    return text


def _checked_service(url: str, service: str) -> str:
    parts = urlsplit(service)
    if service != SERVICE and (parts.scheme != "http" or parts.hostname not in {"127.0.0.1", "localhost", "::1"}):
        # The token is sent there: a storage that somebody else wrote must not lead it away.
        raise UsageError(
            problem=f"storage={shown(url)}: its service=… is not on this machine.",
            remedy="Leave service=… away: it is for tests, with a server on 127.0.0.1.",
        )
    return service.rstrip("/")
