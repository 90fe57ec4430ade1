"""Training on free GPU notebooks that survives the disconnect.

Importing this package loads nothing heavy: each name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colabkeep._version import __version__
from colabkeep.vocabulary.errors import ColabKeepError

if TYPE_CHECKING:
    from colabkeep.api import Run, resumable_fit
    from colabkeep.session.verify import verify_resume
    from colabkeep.session.weights import load_weights

__all__ = ["ColabKeepError", "Run", "__version__", "load_weights", "resumable_fit", "verify_resume"]

_PLACES = {
    "Run": "colabkeep.api",
    "resumable_fit": "colabkeep.api",
    "load_weights": "colabkeep.session.weights",
    "verify_resume": "colabkeep.session.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'colabkeep' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
