"""Runs that were entered by hand and never closed: ended with the program, or when the next one of that name begins.

Only what is on its way is finished then. Nothing new is saved: whatever has become of the objects since the last step,
the best weights loaded for a look, would be taken for its state.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from colabkeep.vocabulary.errors import RunBusy, StoreBusy, UsageError
from colabkeep.vocabulary.events import Noted

if TYPE_CHECKING:
    from colabkeep.session.opening import OpenSession
    from colabkeep.session.run import Run

__all__ = ["Unlosable", "end", "is_open", "open_alone", "watch"]


class Unlosable:
    """What knows when nobody can reach it any more: `abandoned`, then, and held until it is ended, at the latest with
    the program. Nothing is ended where that is noticed: anything may be under way there."""

    abandoned = False

    def __del__(self) -> None:
        if is_open(self):
            self.abandoned = True
            atexit.register(_end_if_open, self)


def watch(run: Run) -> Callable[[], None]:
    """End the run with the program, if it is still open then. Returns what takes that back."""
    at_exit = partial(_end_at_exit, weakref.ref(run), os.getpid())
    atexit.register(at_exit)
    return partial(atexit.unregister, at_exit)


def end(run: Run) -> None:
    """Let what is being saved be saved, say what is not, and let go of the run."""
    from colabkeep.session.run import let_go

    run._saver.wait()
    saved = run._saver.saved or run._session.progress
    if saved.step < run.progress.step:
        run.finished = False  # of which nothing is kept
        run.tell(
            Noted(
                text=f"The run {run.name!r} was entered by hand and never closed: what was trained after step "
                f"{saved.step} is not saved. Write  with colabkeep.Run(…) as run:  around the loop, and its last step "
                "is."
            )
        )
    let_go(run, None)


def open_alone(run: Run, opening: Callable[[], OpenSession]) -> OpenSession:
    """Open the run. One of the same name and place that nobody in this process can reach any more is ended first.

    Raises:
        UsageError: it is open already.
        RunBusy: it is open in another process; or here, and the error says what holds it.
        ColabKeepError: as `opening`.
    """
    if is_open(run):
        raise UsageError(
            problem=f"The run {run.name!r} has begun already.",
            remedy="Enter it once: by  with colabkeep.Run(…) as run:  or by hand, not both.",
        )
    try:
        return opening()
    except RunBusy as error:
        holder = error.__cause__.holder if isinstance(error.__cause__, StoreBusy) else ""
        mine = not holder or holder.startswith(f"process {os.getpid()} on ")  # as `take_lock` writes it
        other = _other(run) if mine else None
        if other is None:
            raise
        if not other.abandoned:
            raise _held(other) from error
    end(other)
    return opening()


def _end_if_open(run: Any) -> None:
    if is_open(run):
        end(run)


def _end_at_exit(reference: weakref.ref[Run], process: int) -> None:
    run = reference()
    if run is not None and is_open(run) and os.getpid() == process:  # a forked child has not got the run
        end(run)


def is_open(run: object) -> bool:
    """Has it begun, and not ended? Asked of one whose `__init__` may have failed, too."""
    told = vars(run)
    return bool(told.get("began")) and told.get("stopped") is None


def _other(run: Run) -> Run | None:
    """The open run of the same name and place in this process, if there is one."""
    from colabkeep.session.run import Run

    gc.collect()  # what hangs together in a circle is known to be unreachable only now
    found = (each for each in gc.get_objects() if issubclass(type(each), Run))
    return next((each for each in found if each is not run and is_open(each) and _same(each, run)), None)


def _same(one: Run, other: Run) -> bool:
    return (one.name, one._spec.store.url) == (other.name, other._spec.store.url)


def _held(run: Run) -> RunBusy:
    names = [name for name, value in vars(sys.modules["__main__"]).items() if value is run and name[0] != "_"]
    holder = f"the variable {names[0]!r}" if names else "an object of this program"
    return RunBusy(
        problem=f"The run {run.name!r} is open in this very process: {holder} holds it, at step {run.progress.step}.",
        remedy=f"Close it, then run this again: {names[0] if names else 'run'}.close()  Whoever writes "
        "with colabkeep.Run(…) as run:  around the loop never needs that.",
    )
