"""Lengths of time, written by people and said to them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.arguments import duration_text, interval_text, parse_duration, span_text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("11 h", 39600.0),
        ("1 h 30 min", 5400.0),
        ("1h30m", None),
        ("45 s", 45.0),
        ("1.5 hours", 5400.0),
        ("2 days", 172800.0),
        ("1 d 1 s", 86401.0),
        (90, 90.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
        ("", None),
        ("h", None),
        ("12", None),
        ("1 h and a bit", None),
        (0, None),
        (-5, None),
        (True, None),
        (float("inf"), None),
        (float("nan"), None),
        (None, None),
        (timedelta(0), None),
    ],
)
def test_lengths_of_time_are_read_as_people_write_them(value: Any, seconds: float | None) -> None:
    """Texts with units, plain seconds and timedeltas; what is none of these is not guessed at."""
    assert parse_duration(value) == seconds


@given(hours=st.integers(0, 99), minutes=st.integers(0, 59), seconds=st.integers(0, 59))
def test_a_length_of_time_is_the_sum_of_its_pieces(hours: int, minutes: int, seconds: int) -> None:
    """However many pieces, they add up."""
    total = hours * 3600 + minutes * 60 + seconds
    assert parse_duration(f"{hours} h {minutes} min {seconds} s") == (total or None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(15, "15 s"), (59.6, "1 min"), (100, "1 min 40 s"), (600, "10 min"), (1470, "24 min")]
)
def test_intervals_are_said_as_people_say_them(seconds: float, text: str) -> None:
    """In minutes and seconds, as long as the seconds matter."""
    assert interval_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (1470, "24 min"), (3600, "1 h"), (9000, "2.5 h"), (14 * 3600 + 600, "14 h")]
)
def test_spans_are_said_roughly(seconds: float, text: str) -> None:
    """What is an estimate has no minutes beside its hours."""
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (120, "2 min"), (5940, "99 min"), (11100, "3 h 05 min")]
)
def test_durations_are_said_in_the_largest_units_that_matter(seconds: float, text: str) -> None:
    """Seconds while there are few of them, minutes up to a hundred."""
    assert duration_text(seconds) == text
