"""Going back to the last step boundary, and to what stood before code that is run again: streams, buffers, modes,
options, and the small state of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from operator import attrgetter
from typing import Any, Protocol

from colabkeep.frameworks.base import Remembered
from colabkeep.frameworks.shared.capture import Kit, Unchanged, Watch
from colabkeep.frameworks.shared.rng import Asked, Look, Stream, stateful
from colabkeep.frameworks.shared.settings import Attributes
from colabkeep.frameworks.shared.trees import encode, restore_object

_MODE = attrgetter("training")


def opaque_parts(parts: Mapping[str, object], *known: type[Any]) -> list[str]:
    """The names of parts that are neither of the known kinds nor say that they change between two steps only."""
    return [
        name.removeprefix("state.")
        for name, part in parts.items()
        if not isinstance(part, known) and not _changes_between_steps(part)
    ]


def _changes_between_steps(part: object) -> bool:
    return hasattr(type(part), "between_steps") and bool(getattr(part, "between_steps", False))


def updated_by_hand(
    parts: Mapping[str, object], model: type[Any], optimizer: type[Any], trains: Callable[[Any], bool]
) -> list[str]:
    """The names of models that train without an optimizer of the run's: when they change, nobody can hear. `trains`:
    does this parameter?"""
    if any(isinstance(part, optimizer) for part in parts.values()):
        return []
    return [
        name.removeprefix("state.")
        for name, part in parts.items()
        if isinstance(part, model) and any(map(trains, part.parameters()))
    ]


class StreamMarks:
    """A boundary of random streams alone."""

    gradients = None
    updates = 0
    torn = False  # plain objects do not say when their update begins

    def __init__(self, streams: Sequence[Stream], opaque: Sequence[str] = ()) -> None:
        self.opaque = opaque
        self._marks = [_Mark(stream) for stream in streams if stream.here]

    def mark(self) -> None:
        for mark in self._marks:
            if mark.look is None or mark.look.moved():
                mark.read()

    def rewind(self) -> None:
        for mark in self._marks:
            if mark.state is not None:
                mark.stream.write(mark.state)

    def close(self) -> None:
        """Nothing of the user's was touched."""


class _Mark:
    """One stream, as it was when it was read last."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.look: Look | None = None
        self.state: Any = None
        self._asked = False

    def read(self) -> None:
        self.state = self.stream.read()
        if self.look is None and not self._asked and self.state is not None:
            look = self.stream.look()
            self._asked = isinstance(look, Asked)  # it is read each time
            self.look = None if self._asked else look
        if self.look is not None:
            self.look.keep()


class Modes:
    """Which modules train and which evaluate: an error may come in the middle of a validation."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._modules = list(modules)
        self.mark()

    def mark(self) -> None:
        """Remember them: 30 ns each."""
        self._modes = list(map(_MODE, self._modules))

    def rewind(self) -> None:
        """Put them back."""
        for module, mode in zip(self._modules, self._modes, strict=True):
            if module.training != mode:
                module.training = mode


class Buffers:
    """Copies, on their own devices, of what a forward pass in training mode may change: members of the dicts `owners`,
    each with a test for which of its members. What copies a tensor is the framework's own."""

    kept: Sequence[Any]

    def __init__(self, kit: Kit, owners: Iterable[tuple[dict[str, Any], Callable[[Any], bool]]]) -> None:
        self._kit = kit
        self.owners = list(owners)
        self._plan()

    def mark(self) -> None:
        """A step boundary is here."""
        if not self._watch.unchanged() or not self._unchanged():
            self._plan()
        else:
            self.copy()

    def rewind(self) -> None:
        """As they were at the last mark."""
        kept = dict(zip(map(id, self.live), self.kept, strict=True))
        for owner, key, was in self._places:
            if id(was) in kept:
                self.put_back(was, kept[id(was)])
            owner[key] = was

    def _plan(self) -> None:
        self._watch = Watch([owner for owner, _ in self.owners])
        held = [(owner, key, value) for owner, _ in self.owners for key, value in owner.items()]
        self._unchanged = Unchanged(self._kit, [value for _, _, value in held if self.is_watched(value)])
        self._places = [
            (owner, key, value) for owner, changes in self.owners for key, value in owner.items() if changes(value)
        ]
        self.live = list({id(value): value for _, _, value in self._places if self.has_data(value)}.values())
        self.keep()

    def has_data(self, tensor: Any) -> bool:
        """Is it a tensor that can be copied?"""
        raise NotImplementedError

    def is_watched(self, tensor: Any) -> bool:
        """Is it one of which a plan goes?"""
        return self.has_data(tensor)

    def keep(self) -> None:
        """Make `kept`, a copy of each in `live`."""
        raise NotImplementedError

    def copy(self) -> None:
        """Copy `live` into `kept` once more."""
        raise NotImplementedError

    def put_back(self, tensor: Any, kept: Any) -> None:
        """Give a tensor the numbers of its copy."""
        raise NotImplementedError


class Options(Protocol):
    """The options of optimizers, at the last mark."""

    def mark(self) -> None:
        """Remember them."""
        ...

    def put_back(self) -> None:
        """As they were."""
        ...


class StepBoundary:
    """Marks streams, buffers, modes and options; hears (`begins`) when an optimizer begins to change parameters, and
    sees when a scheduler has moved on, by `counts` of steps: a loop that is left between a scheduler's step and its own
    end would step it twice.

    `first` is called once, at the mark behind the first step that was heard.
    """

    gradients: Any = None

    def __init__(
        self,
        streams: Sequence[Stream],
        modules: Iterable[Any],
        buffers: Buffers,
        options: Options,
        counts: Callable[[], list[int]],
        first: Callable[[], None],
    ) -> None:
        self._streams, self._modes = StreamMarks(streams), Modes(modules)
        self._buffers, self._options, self._counts = buffers, options, counts
        self._counted: list[int] = []
        self._torn = False
        self._first: Callable[[], None] | None = first

    def mark(self) -> None:
        self._streams.mark()
        if self._buffers.owners:
            self._buffers.mark()
        self._counted = self._counts()
        self._modes.mark()
        self._options.mark()
        self._torn = False
        if self._first is not None and self.updates:
            first, self._first = self._first, None
            first()

    @property
    def updates(self) -> int:
        raise NotImplementedError

    @property
    def torn(self) -> bool:
        return self._torn or self._counts() != self._counted

    def rewind(self) -> None:
        self._streams.rewind()
        self._buffers.rewind()
        self._modes.rewind()
        self._options.put_back()

    def begins(self) -> None:
        """An optimizer begins its step."""
        self._torn = True


_NAMED = 3
_LARGE = 2**26  # bytes of one array or tensor


def combined(memories: Iterable[Remembered]) -> Remembered:
    """All of them, in order; what they say, in one text."""
    listed = list(memories)

    def put_back() -> str | None:
        return " ".join(filter(None, (memory.put_back() for memory in listed))) or None

    def release() -> None:
        for memory in listed:
            memory.release()

    return Remembered(put_back, release)


def remember_modules(
    modules: Mapping[str, Attributes], parameters: Mapping[str, Any], version: Callable[[Any], object]
) -> Remembered:
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

    return Remembered(put_back)


def remember_objects(objects: Mapping[str, Any], clone: Callable[[Any], Any] = lambda value: value) -> Remembered:
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
            if not alike(now, before[name]):
                restore_object(objects[name], {"state": before[name]}, lambda state: encode(state, "", copied))

    return Remembered(put_back)


def alike(one: Any, other: Any) -> bool:
    """Have two values the same types, numbers and texts? Knows containers, arrays, tensors and generators."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if hasattr(one, "tolist"):
        kinds = [(each.shape, each.dtype, getattr(each, "device", None)) for each in (one, other)]
        if kinds[0] != kinds[1] or 0 in one.shape:
            return kinds[0] == kinds[1]
        same = one == other
        return bool(same.all() if hasattr(same, "all") else same)
    if hasattr(one, "get_state"):
        return alike(one.get_state(), other.get_state())
    return bool(one == other)
