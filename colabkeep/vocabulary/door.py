"""What users call answers in our words when it is called with others. A type checker sees the function as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from colabkeep.vocabulary.errors import UnknownArgument, UsageError

__all__ = ["door"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NONE: Mapping[str, str] = MappingProxyType({})


def door(foreign: Mapping[str, str] = _NONE) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a public function, or the `__init__` of a class: a call with arguments that it does not take, or without
    one that it needs, raises an error that says what to write. `foreign`: words of other trainers → ours, or
    a sentence."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = function.__qualname__.removesuffix(".__init__")
        own = int(name != function.__qualname__)  # self
        parameters = list(signature(function).parameters.values())[own:]

        @wraps(function)
        def checked(*positional: _P.args, **words: _P.kwargs) -> _R:
            _check(name, parameters, positional[own:], words, foreign)
            return function(*positional, **words)

        return checked

    return decorate


def _check(
    name: str,
    parameters: Sequence[Parameter],
    positional: Sequence[Any],
    words: Mapping[str, Any],
    foreign: Mapping[str, str],
) -> None:
    """Raises:
    UnknownArgument: there are words that it does not know.
    UsageError: an argument is missing, given twice, or without its name.
    """
    known = {each.name for each in parameters}
    unknown = [word for word in words if word not in known]
    if unknown:
        raise UnknownArgument(
            problem=f"{name}() does not know the argument{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}.",
            remedy=" ".join(_meant(name, unknown, known, foreign)),
        )
    first = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    call = ", ".join([*first, *(f"{each.name}=…" for each in parameters if _needed(each) and each.name not in first)])
    if len(positional) > len(first):
        raise UsageError(
            problem=f"{name}() takes {len(first)} argument(s) without a name ({', '.join(first)}), and got "
            f"{len(positional)}; the next one is a {type(positional[len(first)]).__name__}.",
            remedy=f"Write the name of each of the others: {name}({call}, …).",
        )
    given = first[: len(positional)]
    twice = [word for word in given if word in words]
    missing = [each.name for each in parameters if _needed(each) and each.name not in {*given, *words}]
    if twice or missing:
        said = f"gets {twice[0]} twice" if twice else f"needs {' and '.join(f'{word}=…' for word in missing)}"
        raise UsageError(problem=f"{name}() {said}.", remedy=f"Write {name}({call}, …).")


def _needed(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_KEYWORD


def _meant(name: str, unknown: Sequence[str], known: set[str], foreign: Mapping[str, str]) -> Iterator[str]:
    for word in unknown:
        close = get_close_matches(word, sorted(known), 1)
        here = "Here it is called" if len(unknown) == 1 else f"Here {word!r} is called"
        if word in foreign:
            yield foreign[word] if foreign[word].endswith(".") else f"{here} {foreign[word]}."
        elif close:
            yield f"Did you mean {close[0]}{'' if len(unknown) == 1 else f' by {word!r}'}?"
        else:
            yield f"help(colabkeep.{name}) lists the arguments."
