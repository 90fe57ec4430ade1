"""The small state of a run's parts, taken before code that ran already is run again, and put back behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from colabkeep.frameworks.common.attributes import Attributes
from colabkeep.frameworks.common.generators import stateful
from colabkeep.frameworks.common.objects import restore_object
from colabkeep.frameworks.common.trees import encode

__all__ = ["Memory", "combined", "remember_modules", "remember_objects"]

_NAMED = 3
_LARGE = 2**26  # bytes of one array or tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """What was remembered: as `Framework.remember` returns it. `put_back` returns a sentence where it is not all that
    changed."""

    put_back: Callable[[], str | None]
    release: Callable[[], object] = lambda: None

    def __call__(self) -> str | None:
        self.release()
        return self.put_back()


def combined(memories: Iterable[Memory]) -> Memory:
    """All of them, in order; what they say, in one text."""
    listed = list(memories)

    def put_back() -> str | None:
        return " ".join(filter(None, (memory.put_back() for memory in listed))) or None

    def release() -> None:
        for memory in listed:
            memory.release()

    return Memory(put_back, release)


def remember_modules(
    modules: Mapping[str, Attributes], parameters: Mapping[str, Any], version: Callable[[Any], object]
) -> Memory:
    """Attributes, modes, and which parameters are trained. Parameters are not copied: one whose `version` has moved is
    named. `parameters` by their full names."""
    values = {part: (each.values(), each.modes(), each.frozen()) for part, each in modules.items()}
    versions = {name: version(parameter) for name, parameter in parameters.items()}

    def put_back() -> str | None:
        for part, each in modules.items():
            held, modes, frozen = values[part]
            each.put_values(held)
            each.put_modes(modes)
            each.put_frozen(frozen)
        changed = [name for name, was in versions.items() if version(parameters[name]) != was]
        if not changed:
            return None
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return (
            f"your code above the loop or its first batch changed {', '.join(changed[:_NAMED])}{more}; it had run "
            "before the checkpoint was saved, and ran again now. Move it above the line that opens the run"
        )

    return Memory(put_back)


def remember_objects(objects: Mapping[str, Any], clone: Callable[[Any], Any] = lambda value: value) -> Memory:
    """Objects that tell their state. One that is as it was is left alone: taking a state may have effects of its own.
    What is large in it, such as a replay buffer, is not copied, and stays as it is.

    `clone`: a copy of a value of the framework's own that is no tensor; others it gives back as they are.
    """

    def copied(value: Any, _: str) -> Any:
        size = getattr(value, "nbytes", 0)
        if isinstance(size, int) and size > _LARGE:
            return value
        if hasattr(value, "detach") and hasattr(value, "clone"):
            return value.detach().clone()
        own = type(value).__module__.partition(".")[0] in ("numpy", "random")
        return deepcopy(value) if own else clone(value)

    def states() -> dict[str, Any]:
        return {name: encode(stateful(each).state_dict(), name, copied) for name, each in objects.items()}

    before = states()

    def put_back() -> None:
        for name, now in states().items():
            if not _alike(now, before[name]):
                restore_object(objects[name], {"state": before[name]}, lambda state: encode(state, "", copied))

    return Memory(put_back)


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if hasattr(one, "tolist"):
        return one.shape == other.shape and one.dtype == other.dtype and bool(one.tolist() == other.tolist())
    if hasattr(one, "get_state"):
        return _alike(one.get_state(), other.get_state())
    return bool(one == other)
