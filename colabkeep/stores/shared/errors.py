"""Errors that every store raises for the same reasons, in the same words."""

from __future__ import annotations

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError

NEW_NAME = "Names are written once: choose another name, or delete the old object first."
UNCHANGED = "Its data changed while it was being saved: leave arrays and files alone until their save is done."


def taken(name: str, place: str) -> NameTaken:
    """The name has an object already."""
    return NameTaken(problem=f"{name!r} already exists in {place}; its bytes are untouched.", remedy=NEW_NAME)


def missing(name: str, place: str) -> ObjectNotFound:
    """The name has no object."""
    return ObjectNotFound(
        problem=f"There is no object {name!r} in {place}.",
        remedy="Look at what is there with `colabkeep list`: it may have been pruned, or storage= names another place.",
    )


def changed(name: str, announced: int, came: object) -> StoreError:
    """The source gave other bytes than it announced. `came`: how many."""
    return StoreError(
        problem=f"{name!r} should have {announced} bytes but has {came}, so it was not saved.",
        remedy=UNCHANGED,
    )
