"""A small share of `python -m tests.long.budgets`, through the very same program."""

from __future__ import annotations

import pytest

from tests.long.running import told_by


def night(*words: str) -> dict:
    told, status = told_by("budgets", *words)
    assert told["wrong"] == []
    assert status == 0
    return told


@pytest.mark.slow
def test_the_hub_is_never_asked_for_more_than_it_gives() -> None:
    """By default settings: more than an hour of a save a minute, one commit each, and never five minutes at risk."""
    told = night("--place", "hub", "--hours", "1.4")
    assert told["saves"] > 60
    assert told["most"]["commits"] <= 66, "sixty saves, and what begins and ends a session"


@pytest.mark.long
def test_saving_at_each_step_does_not_use_up_the_hour() -> None:
    """Six saves a minute are asked for: the newest goes as often as the Hub takes one for ever, and there is no gap."""
    told = night("--place", "hub", "--hours", "1.3", "--save-every", "1 steps")
    assert 100 < told["most"]["commits"] <= 122
    assert told["risk"] <= 120


@pytest.mark.slow
def test_drive_is_never_asked_for_more_than_it_gives() -> None:
    """By default settings, its requests and bytes held against what Google states."""
    told = night("--place", "drive", "--hours", "1.2")
    assert told["saves"] > 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["mount", *(pytest.param(each, marks=pytest.mark.long) for each in ("aistudio", "s3"))]
)
def test_other_places_have_all_but_five_minutes(place: str) -> None:
    """By default settings: a save a minute, each of them there before the next."""
    told = night("--place", place, "--hours", "0.3")
    assert told["saves"] > 10


@pytest.mark.slow
def test_kaggle_has_all_but_half_an_hour() -> None:
    """It takes whole versions only; what is saved in between goes with the next one, and is never older than a save."""
    told = night("--place", "kaggle", "--hours", "1.1")
    assert 3 <= told["most"]["versions"] <= 5, "the first after a minute, one each half hour, and the end"
    assert told["risk"] > 300, "else docs/storage/kaggle.md promises too little"
