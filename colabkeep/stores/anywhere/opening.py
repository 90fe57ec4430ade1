"""From a URL to a store: which file system, with which options, and what a URL must not hold."""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from typing import Any

from colabkeep.stores._asking import Asking
from colabkeep.stores._patience import Patience
from colabkeep.stores._shown import shown
from colabkeep.stores.anywhere.hands import Hands
from colabkeep.stores.anywhere.kinds import OTHER, Kind, kind_of
from colabkeep.stores.anywhere.store import AnywhereStore
from colabkeep.vocabulary.errors import MissingDependency, UsageError

__all__ = ["open_url"]

_FORCED = "fsspec+"
"""Before the scheme: fsspec's own file system, although colabkeep has a store for that scheme (fsspec+memory://)."""

_SECRET = re.compile(r"[^/@]*:[^/@]*@")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def open_url(url: str, *, reread: bool = False, patience: Patience | None = None) -> AnywhereStore | None:
    """The store at a URL such as "s3://bucket/folder"; None if fsspec knows no such scheme. Nothing is contacted yet.

    Credentials come from where the service's own tools look for them. `reread` as in `AnywhereStore`.

    Raises:
        UsageError: the URL holds a password or options, or names no bucket.
        MissingDependency: the package for this scheme is not installed.
    """
    address = url.strip().rstrip("/")
    protocol, _, rest = address.partition(":")
    protocol, rest = protocol.lower().removeprefix(_FORCED), rest.removeprefix("//")
    kind = kind_of(protocol)
    try:
        import fsspec
    except ImportError as error:
        if kind is OTHER:
            return None
        raise _missing(protocol, error, kind) from error
    if protocol not in fsspec.available_protocols():
        return None
    _check(url, rest)
    if kind.flat and _BUCKET.fullmatch(rest.partition("/")[0]) is None:
        problem = f"storage={shown(url)} names no bucket: its name comes right after the two slashes."
        raise UsageError(problem=problem, remedy=f"Write it as {protocol}://bucket/folder.")
    patience = patience or Patience()
    asking = Asking(address, kind.words, patience, one_at_a_time=not kind.flat)
    if protocol in {"s3", "s3a"} and find_spec("s3fs") is None and find_spec("obstore") is not None:
        reach = partial(_obstore, rest, asking, patience)
    else:
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise _missing(protocol, error, kind) from error
        reach = partial(_file_system, f"{protocol}://{rest}", kind, asking)
    return AnywhereStore(address, kind, reach, reread=reread)


def _missing(protocol: str, error: ImportError, kind: Kind) -> MissingDependency:
    return MissingDependency(problem=f"The store for {protocol}:// cannot be loaded: {error}.", remedy=kind.install)


def _check(url: str, rest: str) -> None:
    if _SECRET.match(rest):
        raise UsageError(
            problem="The URL in storage=… holds a password, which would then stand in logs and journals.",
            remedy="Leave it out, and let the service's own environment variables or key files say it.",
        )
    if "?" in rest or "#" in rest or "::" in url:
        raise UsageError(
            problem="The URL in storage=… holds more than a place: options after '?' or '#', or a chain with '::'.",
            remedy='Write the place alone, such as "s3://bucket/folder"; options are set by environment variables.',
        )


def _file_system(address: str, kind: Kind, ask: Asking) -> Hands:
    from fsspec import get_filesystem_class
    from fsspec.core import url_to_fs

    from colabkeep.stores.anywhere.filesystem import FlatHands, FolderHands
    from colabkeep.stores.anywhere.gcs import GoogleHands
    from colabkeep.stores.anywhere.s3 import S3Hands

    protocol = address.partition("://")[0]
    options: dict[str, Any] = {**kind.options, "skip_instance_cache": True}
    fs, root = ask("be reached", lambda: url_to_fs(address, **options))
    if not kind.flat:
        return FolderHands(fs, root, ask)
    library = get_filesystem_class(protocol).__module__.partition(".")[0]
    return {"s3fs": S3Hands, "gcsfs": GoogleHands}.get(library, FlatHands)(fs, root, ask)


def _obstore(rest: str, ask: Asking, patience: Patience) -> Hands:
    from obstore.store import from_url

    from colabkeep.stores.anywhere.objects import ObstoreHands

    bucket, _, root = rest.partition("/")
    again = patience.attempts - 1  # for the parts of an upload, which only obstore itself can send again
    # A signed request's body has to have the digest that was signed: S3 compares each part as it arrives.
    options: dict[str, Any] = {"retry_config": {"max_retries": again}, "unsigned_payload": False}
    place = ask("be reached", lambda: from_url(f"s3://{bucket}", **options))
    return ObstoreHands(place, root, ask)
