"""What a resume restores, and whether the steps after it give the same bits here: one sentence made of facts."""

from __future__ import annotations

from typing import TypedDict

from colabkeep.session.opening import RunSpec

__all__ = ["Promised", "precision_chosen", "promise_of"]

_MOST = 8  # parts that are named
_LOOP = (
    "Not seen: variables of your own loop that are neither in run.state nor in state={{…}}{more}, and the files that "
    "your code reads."
)
_FIT = (
    "Not seen: what your own functions keep in variables that are not in state={…}, and the files that your code reads."
)


class Promised(TypedDict):
    """Members of `RunStarted`."""

    promise: str
    exactness: str
    reasons: tuple[str, ...]
    unseen: str
    precision: str


def promise_of(spec: RunSpec) -> Promised:
    """What holds for these parts on this machine. "Exact" is said only where nothing is known that prevents it."""
    told = spec.framework.exactness(spec.parts)
    restored = f"{_named(spec)}, the random streams and the position in the data are restored"
    if told.obstacles:
        word, then = "course", "but the steps after that may round differently on this machine"
        sentence = f"Same course, not the same bits: {restored}, {then}."
    else:
        word, but = ("mostly", "Exact, but for what is named here") if told.exceptions else ("exact", "Exact")
        sentence = f"{but}: {restored}, and the steps after that give the same bits with the same {told.same}."
    return Promised(
        promise=sentence,
        exactness=word,
        reasons=(*told.obstacles, *told.exceptions, *told.notes),
        unseen=_LOOP.format(more=told.unseen and f", {told.unseen}") if spec.loader is None else _FIT,
        precision=spec.precision,
    )


def precision_chosen(asked: str, became: str) -> str:
    """What "auto" chose, where that changes what is computed; "" else."""
    if asked != "auto" or became == "32-true":
        return ""
    return f'precision="auto" became "{became}" on this device; precision="32-true" computes in float32 throughout.'


def _named(spec: RunSpec) -> str:
    names = [name.removeprefix("state.") for name in spec.parts if name != "fit"]
    more = [] if len(names) <= _MOST else [f"{len(names) - _MOST} more"]
    return ", ".join(names[:_MOST] + more)
