"""Settings as written then and now: what differs is told exactly, what does not is not."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from colabkeep.core.settings import GROUP, Item, Plain, Settings, changes, from_text, same, to_text

NAMES = st.text("abcdefgh_0123456789", min_size=1, max_size=6)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(ATOMS, lambda inside: st.lists(inside, max_size=4) | st.dictionaries(NAMES, inside, max_size=4))
ITEMS = st.builds(
    Item,
    kind=NAMES,
    sure=st.booleans(),
    options=st.dictionaries(NAMES, VALUES, max_size=5),
    frozen=st.lists(NAMES, unique=True, max_size=4).map(tuple),
)
SETTINGS = st.dictionaries(NAMES, st.dictionaries(NAMES | st.just(""), ITEMS, min_size=1, max_size=4), max_size=3)


def one(value: Plain, *, sure: bool = True, option: str = "lr") -> Settings:
    return {"optimizer": {"": Item(kind=GROUP, sure=sure, options={option: value})}}


def told(before: Plain, after: Plain) -> list[str]:
    return [change.text for change in changes(one(before), one(after))]


@given(SETTINGS)
def test_equal_settings_never_differ(settings: Settings) -> None:
    """What was stored and read again is what it was: floats, NaN, infinities, nested lists and texts of any script."""
    assert changes(from_text(to_text(settings)), settings) == []
    assert changes(settings, copy.deepcopy(settings)) == []


@given(SETTINGS.filter(bool), st.data())
def test_any_one_changed_value_is_listed_with_its_name_old_and_new(settings: Settings, data: st.DataObject) -> None:
    """One option becomes another: exactly that is told, whatever else is set."""
    part = data.draw(st.sampled_from(sorted(settings)))
    name = data.draw(st.sampled_from(sorted(settings[part])))
    before, after, option = data.draw(VALUES), data.draw(VALUES), data.draw(NAMES)
    assume(not same(before, after))
    found = changes(
        with_option(settings, part, name, (option, before)), with_option(settings, part, name, (option, after))
    )
    assert [change.where for change in found] == [(part, name, option)]
    assert same(found[0].before, before)
    assert same(found[0].after, after)
    assert ".".join(filter(None, (part, name, option))) in found[0].text


def with_option(settings: Settings, part: str, name: str, option: tuple[str, Plain]) -> Settings:
    item = settings[part][name]
    key, value = option
    changed = replace(item, options={**item.options, key: value})
    return {**settings, part: {**settings[part], name: changed}}


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_two_numbers_are_one_setting_exactly_if_they_are_equal(left: float, right: float) -> None:
    """No tolerance: 0.1 + 0.2 is not 0.3. Each comes back from storage as the number it is."""
    assert same(left, right) is (left == right)
    for number in (left, right, 0.1 + 0.2):
        assert from_text(to_text(one(number)))["optimizer"][""].options["lr"] == number


@given(st.integers(-(2**53), 2**53))
def test_the_type_of_a_number_is_no_setting(number: int) -> None:
    """1 and 1.0 train alike, and so do 1 and True; a text is never a number."""
    assert same(number, float(number))
    assert same(number == 1, number) is (number in (0, 1))
    assert not same(number, str(number))
    assert not same(number, None)


def test_a_number_that_is_none_is_itself() -> None:
    """NaN equals NaN, and nothing else."""
    assert told(math.nan, math.nan) == []
    assert told(math.nan, 1.0) == ["optimizer.lr: nan → 1.0"]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (0.01, 0.0001, "optimizer.lr: 0.01 → 0.0001"),
        ([0.9, 0.999], [0.8, 0.999], "optimizer.lr: (0.9, 0.999) → (0.8, 0.999)"),
        (None, False, "optimizer.lr: None → False"),
        ("cos", "linear", "optimizer.lr: 'cos' → 'linear'"),
        (list(range(40)), [*range(39), 7], "optimizer.lr[39]: 39 → 7"),
        ([{"end": 1.0, "much": "x" * 70}], [{"end": 2.0, "much": "x" * 70}], "optimizer.lr[0].end: 1.0 → 2.0"),
    ],
)
def test_a_change_reads_as_one_would_write_it(before: Plain, after: Plain, line: str) -> None:
    """Old value, arrow, new value; of a long list only the member that differs."""
    assert told(before, after) == [line]


def test_an_option_that_only_one_version_knows_is_no_change_of_the_users() -> None:
    """Another torch has an option more or less; of the user's own class it is told."""
    item = Item(kind=GROUP, sure=True, options={"lr": 0.1})
    more = replace(item, options={"lr": 0.1, "decoupled": False})
    assert changes({"optimizer": {"": item}}, {"optimizer": {"": more}}) == []
    assert changes({"optimizer": {"": more}}, {"optimizer": {"": item}}) == []
    own = {"model": {"": Item(kind="Net", sure=False, options={})}}
    new = {"model": {"": Item(kind="Net", sure=False, options={"width": 3})}}
    assert [change.text for change in changes(own, new)] == ["model.width: None → 3"]
    assert [change.text for change in changes(new, own)] == ["model.width: 3 → None"]


def test_a_layer_of_another_class_is_one_change_and_not_one_for_each_option() -> None:
    """ReLU to GELU, a dropout that came, one that went; a parameter group is compared by its parameters."""
    then = model(act=Item(kind="ReLU", sure=True, options={"inplace": False}), drop=Item(kind="Dropout", sure=True))
    now = model(act=Item(kind="GELU", sure=True, options={"approximate": "none"}), late=Item(kind="Dropout", sure=True))
    assert [change.text for change in changes(then, now)] == [
        "model.act: ReLU → GELU",
        "model.late: nothing → Dropout",
        "model.drop: Dropout → nothing",
    ]
    group = Item(kind=GROUP, sure=True, options={"lr": 1.0})
    assert changes({"optimizer": {"": group}}, {"optimizer": {"param_groups[0]": group}}) == []


def model(**items: Item) -> dict[str, Mapping[str, Item]]:
    return {"model": items}


def test_parameters_that_are_trained_no_more_are_named_and_counted() -> None:
    """A frozen backbone is one line, whatever its size."""
    then, now = Item(kind="Net", sure=False), Item(kind="Net", sure=False, frozen=("a", "b", "c", "d", "e"))
    (change,) = changes(model(**{"": then}), model(**{"": now}))
    assert change.text == "requires_grad of model.a, model.b, model.c and 2 more: True → False"
    assert change.sure
    (back,) = changes(model(**{"": now}), model(**{"": replace(now, frozen=("b", "c", "d", "e"))}))
    assert back.text == "requires_grad of model.a: False → True"


def test_a_part_that_only_one_side_has_is_left_to_others() -> None:
    """Whoever compares the parts of a run says so; here it would be a second line."""
    assert changes({}, one(1.0)) == []
    assert changes(one(1.0), {}) == []


def test_many_layers_that_are_alike_take_little_room() -> None:
    """A hundred equal layers stand once in a checkpoint, each with its name."""
    item = Item(kind="Conv2d", sure=True, options={"kernel_size": [3, 3], "padding_mode": "zeros", "groups": 1})
    few, many = ({"model": {f"{i}": item for i in range(n)}} for n in (1, 101))
    assert from_text(to_text(many)) == many
    assert len(to_text(many)) < len(to_text(few)) + 100 * len('"100",')
