"""Values that can be compared, and functions by what they are made of."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from colabkeep.core.settings import Item, changes
from colabkeep.frameworks.shared.describe import NOT_PLAIN, described, is_plain, plain

SCALE = 0.5  # a global, as notebooks have them


class Colour(Enum):
    RED = "red"


class Lazy:
    """Nothing of it may be asked: it would load gigabytes."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"loading {name}")


@pytest.mark.parametrize("value", [None, True, 3, math.inf, "text", [1, [2.0, "x"]], (1, None), [], "x" * 1000])
def test_numbers_texts_and_short_containers_of_them_are_plain(value: object) -> None:
    """As they are, with their types."""
    assert is_plain(value)


@pytest.mark.parametrize(
    "value",
    [{"a": 1}, {1}, object(), 1j, b"bytes", [object()], Colour.RED, list(range(257)), [[0] * 200] * 2, "x" * 1001],
)
def test_whatever_may_be_anything_or_is_long_is_not(value: object) -> None:
    """A dict may be a cache, a list of thousands is data."""
    assert not is_plain(value)


def test_more_has_a_plain_form_where_it_is_compared_only() -> None:
    """Members of enumerations, counters, sets, mappings; nothing that would have to be asked."""
    assert plain(Colour.RED) == "red"
    assert plain(Counter([4, 2, 2])) == [2, 2, 4]
    assert plain({"b", "a"}) == ["a", "b"]
    assert plain({"a": (1, 2), 3: None}) == {"a": [1, 2], "3": None}
    assert plain({"a": object()}) is NOT_PLAIN
    assert plain(Lazy()) is NOT_PLAIN
    assert plain(list(range(300))) is NOT_PLAIN


def test_an_attribute_is_no_global_of_the_same_name() -> None:
    """In another process of the training only what the function uses is there."""

    def loss(output: Any) -> Any:
        return output.SCALE

    assert "globals" not in described(loss)
    assert described(lambda output: output * SCALE)["globals"].options == {"SCALE": 0.5}


def texts(before: object, after: object) -> list[str]:
    return [change.text for change in changes({"": under_loss(before)}, {"": under_loss(after)})]


def under_loss(value: object) -> dict[str, Item]:
    return {".".join(filter(None, ("loss", name))): item for name, item in described(value).items()}


def made(factor: float) -> Callable[[float], float]:
    seen, kept = [0], {"best": 0.0}

    def loss(x: float) -> float:
        """What it does is not what it is made of."""
        seen[0] += 1
        kept["best"] = x
        return x * factor

    loss(1.0)
    return loss


def test_what_a_function_was_made_with_is_compared_and_what_it_writes_to_is_not() -> None:
    """A number in its closure is a setting; a list or a dict there is its memory."""
    one = made(0.5)
    for _ in range(3):
        one(2.0)
    assert texts(made(0.5), one) == []
    assert texts(made(0.5), made(0.7)) == ["loss.factor: 0.5 → 0.7"]


def test_a_count_that_the_function_keeps_itself_is_no_setting() -> None:
    """nonlocal and global."""

    def made() -> Callable[[], int]:
        calls = 0

        def loss() -> int:
            nonlocal calls
            calls += 1
            return calls

        return loss

    one, other = made(), made()
    other()
    assert texts(one, other) == []


def test_defaults_partials_and_methods() -> None:
    """A default, a word of a partial, the function behind a method."""

    def loss(x: float, alpha: float = 0.25, *, gamma: float = 2.0) -> float:
        return x * alpha**gamma

    other = functools.wraps(loss)(lambda x, alpha=0.25, *, gamma=2.0: x)
    assert described(loss)[""].options["gamma"] == 2.0
    assert texts(functools.partial(loss, alpha=0.5), functools.partial(loss, alpha=0.6)) == ["loss.alpha: 0.5 → 0.6"]
    assert any("alpha: 0.25 → 0.6" in text for text in texts(loss, functools.partial(loss, alpha=0.6)))
    assert texts("a".upper, "b".upper) == []
    assert texts(loss, other) != []


def test_a_comment_a_docstring_and_another_line_are_no_edit_of_the_code() -> None:
    """What counts is what it computes."""
    plain_one = compiled("def f(x):\n    return x * 2")
    told = compiled('def f(x):\n    """Says more."""\n\n    # and here\n    return x * 2')
    assert texts(plain_one, told) == []
    assert texts(plain_one, compiled("def f(x):\n    return x + 2")) == ["loss: its code was edited"]


def compiled(text: str) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "cell", "exec"), names)  # as a cell of a notebook
    return names["f"]  # type: ignore[no-any-return]


def test_globals_that_it_names_and_functions_that_it_calls_are_told_and_not_more() -> None:
    """They may be a counter of the notebook."""

    def loss(x: float) -> float:
        return x * SCALE + helper(x)

    items = described(loss)
    assert items["globals"].options == {"SCALE": 0.5}
    assert (items[""].sure, items["globals"].sure, items["helper"].sure) == (True, False, False)


def helper(x: float) -> float:
    return helper(x - 1) if x > 0 else 0.0  # names itself, which must come to an end


def test_of_a_librarys_function_the_name_counts() -> None:
    """Its code is another one in another version."""
    (item,) = described(functools.reduce).values()
    assert item.kind == "_functools.reduce"
    assert described(math.sin)[""].kind == "math.sin"
    assert not [key for key in described(functools.wraps)[""].options if "@" in key]


def test_an_object_that_is_called_is_told_by_its_attributes() -> None:
    """Of the user's own class they may be anything."""

    class Loss:
        def __init__(self, alpha: float) -> None:
            self.alpha, self.lazy = alpha, Lazy()

        def __call__(self, x: float) -> float:
            return x * self.alpha

    (item,) = described(Loss(0.5)).values()
    assert (item.kind, item.sure, item.options) == ("Loss", False, {"alpha": 0.5})
