"""Training on free GPU notebooks that survives the disconnect.

Importing this package loads nothing heavy: each name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colabkeep._version import __version__
from colabkeep.core.errors import ColabKeepError

if TYPE_CHECKING:
    from colabkeep.api import Run, keep_folder, launch, mount, resumable_fit, secret
    from colabkeep.session.verify import verify_resume
    from colabkeep.session.weights import load_weights
    from colabkeep.ui.bench import bench
    from colabkeep.ui.browse import browse
    from colabkeep.ui.check.report import check
    from colabkeep.ui.compare import compare
    from colabkeep.ui.gpus import compare_gpus
    from colabkeep.ui.report import report

__all__ = [
    "ColabKeepError",
    "Run",
    "__version__",
    "bench",
    "browse",
    "check",
    "compare",
    "compare_gpus",
    "keep_folder",
    "launch",
    "load_weights",
    "mount",
    "report",
    "resumable_fit",
    "secret",
    "verify_resume",
]

_PLACES = {
    "Run": "colabkeep.api",
    "keep_folder": "colabkeep.api",
    "launch": "colabkeep.api",
    "mount": "colabkeep.api",
    "resumable_fit": "colabkeep.api",
    "secret": "colabkeep.api",
    "bench": "colabkeep.ui.bench",
    "browse": "colabkeep.ui.browse",
    "check": "colabkeep.ui.check.report",
    "compare": "colabkeep.ui.compare",
    "compare_gpus": "colabkeep.ui.gpus",
    "report": "colabkeep.ui.report",
    "load_weights": "colabkeep.session.weights",
    "verify_resume": "colabkeep.session.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'colabkeep' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext colabkeep`: shows the check and registers `%colabkeep`."""
    import_module("colabkeep.ui.magics").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext colabkeep`."""
    import_module("colabkeep.ui.magics").unload(shell)
