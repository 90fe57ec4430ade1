"""Whoever calls a public function with other words is answered in ours."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import colabkeep
from colabkeep.core.arguments import public
from colabkeep.core.errors import UnknownArgument, UsageError


@public({"epochs": "max_epochs"})
def train(model: object, loader: object, *, optimizer: object, max_epochs: int = 1) -> int:
    """Train."""
    return max_epochs


class Shop:
    """Something that is made."""

    @public()
    def __init__(self, name: str, *, size: int = 1) -> None:
        self.told = name, size


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str, str]] = {
    "another trainer's": ((1, 2), {"optimizer": 3, "epochs": 4}, "argument 'epochs'", "Here it is called max_epochs."),
    "misspelt": ((1, 2), {"optimzer": 3}, "argument 'optimzer'", "Did you mean optimizer?"),
    "nobody's": ((1, 2), {"qqq": 3}, "'qqq'", "help(colabkeep.train)"),
    "two": ((1, 2), {"epochs": 3, "max_epoch": 4}, "arguments 'epochs', 'max_epoch'", "Did you mean max_epochs by"),
    "missing": ((1, 2), {}, "missing a required argument: 'optimizer'", "Write train(model, loader, optimizer=…, …)."),
    "unnamed": ((1, 2, "adam"), {}, "too many positional arguments", "train(model, loader, optimizer=…, …)"),
    "twice": (
        (1, 2),
        {"model": 1, "optimizer": 3},
        "multiple values for argument 'model'",
        "Write train(model, loader, optimizer=…, …).",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_cannot_be_meant_so_is_answered(call: str) -> None:
    """With what it should have been, instead of Python's own words."""
    positional, words, said, remedy = CALLS[call]
    with pytest.raises(UsageError) as caught:
        train(*positional, **words)
    assert said in caught.value.problem
    assert remedy in caught.value.remedy


def test_a_call_that_can_is_passed_on() -> None:
    """By position and by name, of a function and of a class."""
    assert train(1, loader=2, optimizer=3, max_epochs=5) == 5
    assert Shop("a", size=2).told == Shop(name="a", size=2).told == ("a", 2)


def test_a_class_is_called_by_its_name() -> None:
    """Its user never wrote __init__, nor self."""
    with pytest.raises(UnknownArgument, match=r"^Shop\(\) does not know the argument 'sise'") as caught:
        Shop("a", sise=2)
    assert caught.value.remedy == "Did you mean size?"
    with pytest.raises(UsageError, match=r"^Shop\(\) was not called: too many positional arguments"):
        Shop("a", 2)


def test_an_error_inside_is_nobodys_words() -> None:
    """A TypeError of the function's own body comes out as it is."""

    @public()
    def broken() -> None:
        raise TypeError("inside")

    with pytest.raises(TypeError, match=r"^inside$"):
        broken()


@pytest.mark.parametrize("name", sorted(set(colabkeep.__all__) - {"ColabKeepError", "__version__"}))
def test_every_public_name_answers_so(name: str) -> None:
    """No door lets a misspelt word through, and none hides its words from help() and from editors."""
    public = getattr(colabkeep, name)
    with pytest.raises(UnknownArgument, match=rf"^{name}\(\) does not know the argument 'no_such_word'"):
        public(no_such_word=1)
    kinds = [each.kind for each in inspect.signature(public).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert inspect.Parameter.VAR_POSITIONAL not in kinds
