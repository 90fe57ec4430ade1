"""The stores: one line each. `open_store` turns what a user wrote into a store."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

from colabkeep.stores.base import Store
from colabkeep.vocabulary.errors import MissingDependency, UsageError

__all__ = ["Storage", "open_store"]

Storage: TypeAlias = Store | str | os.PathLike[str] | tuple[Any, Any] | list[Any]
"""A store, a folder, a URL, a PyDrive2 `GoogleDrive` or `GoogleAuth` that is signed in, or a pair (fast store in front,
lasting store behind) of these; "a + b" is a pair too."""


@dataclass(frozen=True, slots=True)
class _Part:
    """`opener` is "module:function", called with the URL; `missing` is the remedy when it cannot be imported.

    The scheme "*" is any other; its opener gives None for one that it does not know either.
    """

    scheme: str
    opener: str
    missing: str


_PARTS = (
    _Part("file", "colabkeep.stores.directory:open_url", "Folders need a POSIX system: Linux, macOS or WSL."),
    _Part("mounted", "colabkeep.stores.mounted:open_url", "Folders need a POSIX system: Linux, macOS or WSL."),
    _Part("drive", "colabkeep.stores.drive:open_url", "Install colabkeep again: google-auth or requests is missing."),
    _Part("kaggle", "colabkeep.stores.kaggle:open_url", 'Install it: pip install "colabkeep[kaggle]".'),
    _Part("memory", "colabkeep.stores.memory:open_url", "Install colabkeep again: a part of it is missing."),
    _Part("hf", "colabkeep.stores.huggingface.opening:open_url", 'Run: pip install "colabkeep[hf]"'),
    _Part("*", "colabkeep.stores.anywhere.opening:open_url", 'Run: pip install "colabkeep[s3]"'),  # the last one
)

_PLUS = re.compile(r" \+ (?=/|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)  # how a pair of stores says its url
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def open_store(storage: Storage, earlier: Sequence[str] = ()) -> Store:
    """The store that `storage` names: see `Storage`. Nothing is written, and nothing is contacted yet.

    `earlier`: folders with runs of earlier sessions, which are read as if they lay in the store, and never written.

    Raises:
        UsageError: it is none of these, or a URL of an unknown kind.
        MissingDependency: a package that this kind of store needs is not installed.
    """
    if earlier:
        from colabkeep.stores.overlay import OverlayStore

        return OverlayStore(open_store(storage), [open_store(folder) for folder in earlier])
    if all(callable(getattr(storage, method, None)) for method in ("put", "get", "list")):
        return cast("Store", storage)
    if isinstance(storage, tuple | list):
        return _pair(storage)
    if not isinstance(storage, str | os.PathLike):
        return _signed_in(storage)
    path: object = os.fspath(storage)
    if not isinstance(path, str) or not path.strip():
        raise _no_place(storage)
    if isinstance(storage, str) and len(sides := _PLUS.split(path, maxsplit=1)) == 2:
        return _pair(sides)
    if isinstance(storage, str) and (url := _URL.match(path)):
        return _opened(url[1].lower(), path)
    return _opened("file", Path(path).expanduser().absolute().as_uri())


def _signed_in(storage: object) -> Store:
    """The Drive of a PyDrive2 object."""
    from colabkeep.stores.google.bridge import is_pydrive

    if not is_pydrive(storage):
        raise _no_place(storage)
    from colabkeep.stores.drive import open_pydrive

    return open_pydrive(storage)


def _no_place(storage: object) -> UsageError:
    return UsageError(
        problem=f"storage={storage!r} is not a place for checkpoints.",
        remedy=f'Give a folder such as storage="checkpoints", a URL ({_schemes()}), a store, or a pair of these.',
    )


def _opened(scheme: str, url: str) -> Store:
    for part in _PARTS:
        if part.scheme in (scheme, "*"):
            module, function = part.opener.split(":")
            try:
                opener = getattr(import_module(module), function)
            except ImportError as error:
                raise MissingDependency(
                    problem=f"The store for {url} cannot be loaded: {error}.", remedy=part.missing
                ) from error
            store: Store | None = opener(url)
            if store is not None:
                return store
    raise UsageError(
        problem=f"storage={url!r}: there is no store for {scheme}:// here.",
        remedy=f"Use one of {_schemes()}, or the path of a folder.",
    )


def _pair(storage: tuple[Any, ...] | list[Any]) -> Store:
    if len(storage) != 2 or any(isinstance(side, tuple | list) for side in storage):
        raise UsageError(
            problem=f"storage={storage!r} is not a pair of places.",
            remedy='Give two: storage=("/content/checkpoints", "/content/drive/MyDrive/checkpoints"), the fast one '
            "first, the one that outlives the machine second.",
        )
    from colabkeep.stores.tiered import TieredStore

    front, behind = (open_store(side) for side in storage)
    given_by_name = not (front is storage[0] and behind is storage[1])  # two memory stores have the same url
    if front is behind or (given_by_name and front.url == behind.url):
        raise UsageError(
            problem=f"storage={storage!r}: both places are the same.",
            remedy="Give two different places, or just the one.",
        )
    return TieredStore(front, behind)


def _schemes() -> str:
    own = (f"{part.scheme}://" for part in _PARTS if part.scheme != "*")
    return ", ".join([*own, "s3://", "gs://", "sftp://"])
