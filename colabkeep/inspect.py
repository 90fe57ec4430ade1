"""The front door for who looks before training, or afterwards. Apart from `api`: no training waits for its imports."""

from __future__ import annotations

from collections.abc import Sequence

from colabkeep.api import mount
from colabkeep.core.arguments import door
from colabkeep.core.errors import UsageError
from colabkeep.stores import Storage
from colabkeep.ui.browse.model import Browser
from colabkeep.ui.browse.view import show
from colabkeep.ui.check.report import Report, examine

__all__ = ["browse", "check"]


@door()
def check(*, probe: bool = False, previous: Sequence[str] = ()) -> Report:
    """Tell where this is, which accelerator came, whether to start on it, and where checkpoints will live.

    Takes five seconds at most, and raises nothing for what the machine is like. Imports no framework, leaves CUDA
    alone, contacts nothing.

    Args:
        probe: where it is in doubt whether the framework can use the GPU, try it in another process. That imports
            the framework there, and may take a minute more.
        previous: the cards that earlier sessions got, the latest last, such as ``["Tesla K80"]``: where cards are drawn
            by chance, it is said when to stop trying.

    Returns:
        Report: shown as the last line of a cell; ``print`` it elsewhere; ``to_dict()`` for programs.

    Raises:
        UsageError: an argument cannot be meant so.
    """
    if not isinstance(probe, bool):
        raise UsageError(
            problem=f"probe={probe!r} is neither True nor False.", remedy="Pass probe=True or leave it out."
        )
    if not isinstance(previous, list | tuple) or not all(isinstance(name, str) for name in previous):
        raise UsageError(
            problem=f"previous={previous!r} is no list of names.", remedy='Pass names of cards: previous=["Tesla K80"].'
        )
    return examine(probe=probe, previous=previous)


@door()
def browse(storage: Storage = "auto") -> Browser:
    """Look around in a storage: where it is and how durable, its runs and checkpoints, and what can be done with them.

    As the last line of a cell it has buttons: show a run's report, verify it, export its weights, delete what is no
    longer needed (said first, then done), and sign in and mount step by step. Elsewhere, and without ipywidgets, it is
    text with the lines to type: each button is a method. Nothing is changed by looking.

    Args:
        storage: where to look, as in `resumable_fit`; "auto" is this platform's own place.

    Returns:
        Browser: an error of the storage is shown by it, with the remedy, and not raised here.
    """
    return Browser(storage, mount=mount, show=show)
