"""The stores: one line each. `open_store` turns what a user wrote into a store."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.stores.base import Store, StoreContext, is_key_file, shown

__all__ = ["Storage", "open_store", "shown"]

Storage: TypeAlias = Store | str | os.PathLike[str] | tuple[Any, Any] | list[Any]
"""A store, a folder, a URL, a PyDrive2 `GoogleDrive` or `GoogleAuth` that is signed in, or a pair (fast store in front,
lasting store behind) of these; "a + b" is a pair too."""


@dataclass(frozen=True, slots=True)
class _Part:
    """`opener` is "module:function", called with the URL; `missing` is the remedy when it cannot be imported (of a
    service's client its own module says what to install).

    `signs_in`: it is called with the `StoreContext`, too. `far`: saves do not wait for it, this machine's disk goes in
    front. The scheme "*" is any other; its opener gives None for one that it does not know either.
    """

    scheme: str
    opener: str
    missing: str = "Folders need a POSIX system: Linux, macOS or WSL."
    signs_in: bool = False
    far: bool = False


_PARTS = (
    _Part("file", "colabkeep.stores.local:open_url"),
    _Part("mounted", "colabkeep.stores.colab_drive:open_url", signs_in=True, far=True),
    _Part("drive", "colabkeep.stores.drive:open_url", signs_in=True, far=True),
    # Not far: it gathers everything on this machine's disk by itself.
    _Part("kaggle", "colabkeep.stores.kaggle:open_url", signs_in=True),
    _Part("memory", "colabkeep.stores.memory:open_url"),
    _Part("hf", "colabkeep.stores.hub.huggingface:open_url", signs_in=True, far=True),
    _Part("aistudio", "colabkeep.stores.hub.aistudio:open_url", signs_in=True, far=True),
    _Part("*", "colabkeep.stores.fsspec.store:open_url", far=True),  # the last
)

_PLUS = re.compile(r" \+ (?=/|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)  # how a pair of stores says its url
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_OWN = tuple(part.scheme for part in _PARTS if part.scheme != "*")
_SLASH_FORGOTTEN = re.compile(rf"({'|'.join(_OWN)}|s3|gs|gcs|sftp|https?):/", re.IGNORECASE)


def open_store(storage: Storage, earlier: Sequence[str] = (), context: StoreContext = StoreContext()) -> Store:
    """The store that `storage` names: see `Storage`. Nothing is written, and nothing is contacted yet.

    `earlier`: folders with runs of earlier sessions, which are read as if they lay in the store, and never written.
    `context`: what the platform can do for a sign-in. With its disk, a far place that is named alone (a URL, not a
    store) becomes a pair with a folder on that disk in front, so that no save waits for a network.

    Raises:
        UsageError: it is none of these, or a URL of an unknown kind.
        MissingDependency: a package that this kind of store needs is not installed.
    """
    if earlier:
        from colabkeep.stores.overlay import OverlayStore

        return OverlayStore(open_store(storage, context=context), [open_store(folder) for folder in earlier])
    store, far = _open(storage, with_notes(context))
    if not far or context.disk is None:
        return store
    return _pair((_private(context.disk / "front" / _folder_name(store.url)), store), context)


def with_notes(context: StoreContext) -> StoreContext:
    """The same, with a place for notes on its disk."""
    disk = context.disk
    return context if disk is None else replace(context, notes=lambda: _private(disk).as_front())


def _private(folder: Path) -> Any:
    """A folder that only its owner reads, as a store."""
    return _load(_PARTS[0], "colabkeep.stores.local:open_private", str(folder))(folder)


def _folder_name(url: str) -> str:
    """By which the next kernel finds it again: readable, and another one for each URL."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", url).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _open(storage: Storage, context: StoreContext) -> tuple[Store, bool]:
    """The store as it was named, and whether saves to it would wait for a network."""
    if all(callable(getattr(storage, method, None)) for method in ("put", "get", "list")):
        return cast("Store", storage), False
    if isinstance(storage, tuple | list):
        return _pair(storage, context), False
    if not isinstance(storage, str | os.PathLike):
        return _signed_in(storage, context), True
    path: object = os.fspath(storage)
    if not isinstance(path, str) or not path.strip() or (isinstance(storage, str) and is_key_file(storage)):
        raise _no_place(storage)
    if isinstance(storage, str) and len(sides := _PLUS.split(path, maxsplit=1)) == 2:
        return _pair(sides, context), False
    if isinstance(storage, str) and (url := _URL.match(path)):
        return _opened(url[1].lower(), path, context)
    if isinstance(storage, str) and (almost := _SLASH_FORGOTTEN.match(path)):
        raise UsageError(
            problem=f"storage={shown(storage)} would be a folder of that name on this machine: a URL has two slashes.",
            remedy=f'Write storage="{almost[1]}://…"; a folder of that name is storage="./{almost[1]}:/…".',
        )
    on_disk = os.fsdecode(path.encode(errors="surrogateescape"))  # a locale of ASCII has no other way to write it
    return _opened("file", Path(on_disk).expanduser().absolute().as_uri(), context)


def _signed_in(storage: object, context: StoreContext) -> Store:
    """The Drive of a PyDrive2 object."""
    from colabkeep.stores.google.account import is_pydrive

    if not is_pydrive(storage):
        raise _no_place(storage)
    from colabkeep.stores.drive import open_pydrive

    return open_pydrive(storage, context)


def _no_place(storage: object) -> UsageError:
    return UsageError(
        problem=f"storage={shown(storage)} is not a place for checkpoints.",
        remedy=f'Give a folder such as storage="checkpoints", a URL ({_schemes()}), a store, or a pair of these.',
    )


def _opened(scheme: str, url: str, context: StoreContext) -> tuple[Store, bool]:
    for part in _PARTS:
        if part.scheme in (scheme, "*"):
            opener = _load(part, part.opener, url)
            store: Store | None = opener(url, context) if part.signs_in else opener(url)
            if store is not None:
                return store, part.far
    raise UsageError(
        problem=f"storage={shown(url)}: there is no store for {scheme}:// here.",
        remedy=f"Use one of {_schemes()}, or the path of a folder.",
    )


def _load(part: _Part, opener: str, url: str) -> Callable[..., Any]:
    module, function = opener.split(":")
    try:
        return cast("Callable[..., Any]", getattr(import_module(module), function))
    except ImportError as error:
        raise MissingDependency(
            problem=f"The store for {shown(url)} cannot be loaded: {error}.", remedy=part.missing
        ) from error


def _pair(storage: tuple[Any, ...] | list[Any], context: StoreContext) -> Store:
    if len(storage) != 2 or any(isinstance(side, tuple | list) for side in storage):
        raise UsageError(
            problem=f"storage={shown(storage)} is not a pair of places.",
            remedy='Give two: storage=("/content/checkpoints", "/content/drive/MyDrive/checkpoints"), the fast one '
            "first, the one that outlives the machine second.",
        )
    from colabkeep.stores.tiered import TieredStore

    front, behind = (_open(side, context)[0] for side in storage)
    given_by_name = not (front is storage[0] and behind is storage[1])  # two memory stores have the same url
    if front is behind or (given_by_name and front.url == behind.url):
        raise UsageError(
            problem=f"storage={shown(storage)}: both places are the same.",
            remedy="Give two different places, or just the one.",
        )
    return TieredStore(front, behind)


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in (*_OWN, "s3", "gs", "sftp"))
