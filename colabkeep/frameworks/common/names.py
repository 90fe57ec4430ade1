"""Parameters by the names their user gave them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ParameterNames"]


class ParameterNames:
    """The names of parameters, found by identity. "model.layer.weight": the part, then the name in it."""

    def __init__(self, parts: Iterable[tuple[str, Iterable[tuple[str, object]]]]) -> None:
        self._names: dict[int, str] = {}
        self._parameters: dict[str, object] = {}  # held, so that no id is given twice
        for part, parameters in parts:
            for name, parameter in parameters:
                self._names.setdefault(id(parameter), f"{part}.{name}")
                self._parameters[f"{part}.{name}"] = parameter

    def get(self, parameter: object) -> str | None:
        """The name; None if no module of the run holds it."""
        return self._names.get(id(parameter))

    def parameter(self, name: str) -> object | None:
        """The parameter of that name; None if no module of the run has one."""
        return self._parameters.get(name)
