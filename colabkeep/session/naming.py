"""What a run is called where nobody said so, and which names are not for runs."""

from __future__ import annotations

import re
from pathlib import PurePath

from colabkeep.stores.base import Store
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.names import checked_run_name, is_reserved, run_folder

__all__ = ["choose_name", "refuse_reserved"]

_ONCE = "default"  # what every run without a name was called, in versions before this one
_UNNAMED = re.compile(r"untitled[ _-]?\d*", re.IGNORECASE)  # what a notebook is called before it is named


def choose_name(given: object, store: Store, here: Environment) -> tuple[str, str]:
    """The name of the run, and a sentence about it, empty where the user has written it.

    Without one a run is called after the notebook or program, if that is known. A run that an earlier version has
    called "default" goes on under that name.

    Raises:
        UsageError: `given` is no name; or nothing says what to call it, and another notebook may keep its run here.
        StoreError: the store cannot be asked.
    """
    if given is not None:
        return checked_run_name(given), ""
    own = _own_name(here)
    if own and _is_there(store, own):
        return own, f"run_name was not given: the run is called {own!r}, after {PurePath(here.program).name}."
    if _is_there(store, _ONCE):
        return _ONCE, (
            f"run_name was not given: the run {_ONCE!r} of this storage goes on. Every notebook without a run_name "
            f'that keeps its runs here shares it: write run_name="{_ONCE}" in this one, and another name in the others.'
        )
    if own:
        return own, (
            f"run_name was not given: the run is called {own!r}, after {PurePath(here.program).name}. Under another "
            f'file name a new run would begin: write run_name="{own}" to be sure.'
        )
    if store.properties.persists is False:
        return _ONCE, ""  # nobody else ever comes here
    raise UsageError(
        problem="run_name is not given, and nothing here says what this notebook or program is called. Two of them "
        f"that keep their checkpoints in {store.url} would go on with each other's run.",
        remedy='Write a name of your own, once and for all: run_name="my-run".',
    )


def refuse_reserved(store: Store, name: str) -> None:
    """Refuse a new run that is called like colabkeep's own files; one that an earlier version began goes on.

    Raises:
        UsageError: the remedy says what to write.
        StoreError: the store cannot be asked.
    """
    part = is_reserved(name)
    if part and not _is_there(store, name):
        raise UsageError(
            problem=f"run_name={name!r} cannot be the name of a new run: {part!r} is what colabkeep's own files are "
            "called like.",
            remedy=f'Call it otherwise, such as run_name="{name.replace(part, "my-" + part.replace(".", "-"))}".',
        )


def _own_name(here: Environment) -> str:
    """After the notebook or program; empty where that is not known, or says nothing."""
    file = PurePath(here.program)
    stem = file.parent.name if file.name == "__main__.py" else file.stem
    try:
        name = checked_run_name(stem.strip())
    except UsageError:
        return ""
    return "" if _UNNAMED.fullmatch(name) or is_reserved(name) else name


def _is_there(store: Store, name: str) -> bool:
    return any(True for _ in store.list(run_folder(name)))
