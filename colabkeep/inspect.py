"""The front door for who looks before training, or afterwards. Apart from `api`: no training waits for its imports."""

from __future__ import annotations

from collections.abc import Sequence

from colabkeep.core.arguments import door
from colabkeep.core.errors import UsageError
from colabkeep.stores import Storage
from colabkeep.ui.browse import Browser
from colabkeep.ui.check.report import CheckReport, examine

__all__ = ["browse", "check"]


@door()
def check(*, probe: bool = False, previous: Sequence[str] = ()) -> CheckReport:
    """Tell where this is, which accelerator came, whether to start on it, and where checkpoints will live.

    Takes five seconds at most, and raises nothing for what the machine is like. Imports no framework, leaves CUDA
    alone, contacts nothing.

    Args:
        probe: where it is in doubt whether the framework can use the GPU, try it in another process. That imports
            the framework there, and may take a minute more.
        previous: the cards that earlier sessions got, the latest last, such as ``["Tesla K80"]``: where cards are drawn
            by chance, it is said when to stop trying.

    Returns:
        CheckReport: shown as the last line of a cell; ``print`` it elsewhere; ``to_dict()`` for programs.

    Raises:
        UsageError: an argument is invalid.
    """
    if not isinstance(probe, bool):
        raise UsageError(
            problem=f"probe={probe!r} is neither True nor False.", remedy="Pass probe=True or leave it out."
        )
    if not isinstance(previous, list | tuple) or not all(isinstance(name, str) for name in previous):
        raise UsageError(
            problem=f"previous must be a list of names, and is {previous!r}.",
            remedy='Pass names of cards: previous=["Tesla K80"].',
        )
    return examine(probe=probe, previous=previous)


@door()
def browse(storage: Storage = "auto") -> Browser:
    """Look around in a storage: where it is, how safe, its runs and their checkpoints.

    As the last line of a cell it is a page with buttons: a run's report, its verification, and its deletion, which
    shows first what would be deleted. Elsewhere, and without ipywidgets, it is text with the lines to type: each button
    is a method. Looking changes nothing.

    Args:
        storage: where to look, as in `resumable_fit`; "auto" is this platform's own place.

    Returns:
        Browser: an error of the storage is shown by it, with the remedy, and not raised here.
    """
    return Browser(storage)
