"""Reading facts, each by itself: one that cannot be read says so, and keeps no other from being read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

__all__ = ["UNREADABLE", "read_facts"]

UNREADABLE = "unreadable"
_MOST = 120  # characters of a reason


def read_facts(readers: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Name → value as text, or "unreadable: …" with the reason. What this version of the framework does not have
    (AttributeError) is left out: it is no fact here."""
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 and later warn of an older setting each time it is read
        for name, reader in readers.items():
            try:
                found[name] = str(reader())
            except AttributeError:
                continue
            except Exception as error:  # noqa: BLE001  # whatever it is, it is told, and no training ends for it
                why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
                found[name] = f"{UNREADABLE}: {why[:_MOST]}"
    return found
