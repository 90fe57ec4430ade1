"""Going back to a step boundary: what is the same for every framework, the random streams and the modes of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from colabkeep.frameworks.common.looks import Look
from colabkeep.frameworks.common.randomness import Stream

__all__ = ["Modes", "StreamMarks", "opaque_parts", "updated_by_hand"]

_MODE = attrgetter("training")


def opaque_parts(parts: Mapping[str, object], *known: type[Any]) -> list[str]:
    """The names of parts that are neither of the known kinds nor say that they change between two steps only."""
    return [
        name.removeprefix("state.")
        for name, part in parts.items()
        if not isinstance(part, known) and not getattr(type(part), "between_steps", False)
    ]


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

    def read(self) -> None:
        self.state = self.stream.read()
        self.look = self.look or self.stream.look()
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
