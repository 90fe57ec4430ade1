"""The figure that a user lives by: never too small, and no surer than what is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.events import LEVELS, CheckpointDurability, Durability, Place, assess, lowest

DRIVE = Place(url="drive", top="confirmed", persists=True)


def standing(step: int, level: str, minutes: float | None = None) -> CheckpointDurability:
    """Of a run that takes a minute for a step."""
    seconds = 60.0 * (step if minutes is None else minutes)
    return CheckpointDurability(checkpoint=f"{step:012d}-aaaaaaaa", step=step, seconds=seconds, level=level)  # type: ignore[arg-type]


def figure(place: Place, *standings: CheckpointDurability, minutes: float = 60) -> tuple[int, float, str | None]:
    found = assess(standings, place, minutes * 60)
    return found.step, found.lost_seconds / 60, found.level


@pytest.mark.parametrize(
    ("place", "levels", "expected"),
    [
        (DRIVE, {10: "confirmed", 20: "confirmed", 30: "sent", 40: "local"}, (20, 40.0, "confirmed")),
        (DRIVE, {10: "sent", 20: "sent"}, (0, 60.0, None)),
        (DRIVE, {10: "unknown", 20: "unknown", 30: "sent"}, (20, 40.0, "unknown")),
        (DRIVE, {10: "confirmed", 20: "unknown"}, (10, 50.0, "confirmed")),
        (DRIVE, {10: "unknown", 20: "local"}, (10, 50.0, "unknown")),
        (DRIVE, {10: "local", 20: "local"}, (0, 60.0, None)),
        (DRIVE, {}, (0, 60.0, None)),
        (Place(url="nas", top="sent", persists=None), {10: "sent", 20: "local"}, (10, 50.0, "sent")),
        (Place(url="nas", top="sent", persists=None), {10: "sent", 20: "confirmed"}, (20, 40.0, "confirmed")),
        (Place(url="disk", top="local", persists=None), {10: "local", 20: "captured"}, (10, 50.0, "local")),
        (Place(url="memory", top="local", persists=False), {10: "local"}, (0, 60.0, None)),
    ],
    ids=str,
)
def test_only_what_the_place_can_vouch_for_counts(place, levels, expected):
    """Where digests are stated, what was merely sent does not count; where nothing can be stated, it does, by its
    own name; what goes with the machine never does."""
    assert figure(place, *(standing(step, level) for step, level in levels.items())) == expected


@pytest.mark.parametrize(
    ("place", "level", "sentence"),
    [
        (
            DRIVE,
            "confirmed",
            "If this machine vanished now, you would lose 3 min (back to step 10, confirmed by drive).",
        ),
        (
            DRIVE,
            "sent",
            "If this machine vanished now, you would lose all 13 min of this training: "
            "no checkpoint is known to be safe in drive yet.",
        ),
        (
            DRIVE,
            "unknown",
            "If this machine vanished now, you would lose 3 min (back to step 10, if the upload to drive arrived; it "
            "does not confirm that).",
        ),
        (
            Place(url="/work", top="local", persists=None),
            "local",
            "If this machine vanished now, you would lose 3 min (back to step 10, only if /work survives this machine; "
            "colabkeep cannot check that).",
        ),
        (
            Place(url="/work", top="local", persists=True),
            "local",
            "If this machine vanished now, you would lose 3 min (back to step 10, in /work).",
        ),
        (
            Place(url="memory://", top="local", persists=False),
            "local",
            "If this machine vanished now, you would lose all 13 min of this training: memory:// goes with it.",
        ),
    ],
    ids=str,
)
def test_the_sentence_is_no_surer_than_what_is_known(place, level, sentence):
    """How much, back to where, and who says so."""
    assert assess([standing(10, level)], place, 13 * 60.0).sentence == sentence


def test_a_checkpoint_is_as_safe_as_its_worst_object():
    """One blob that is on this machine only makes all of it local."""
    assert lowest(["confirmed", "local", "sent"]) == "local"
    assert lowest(["confirmed", "unknown", "sent"]) == "unknown"
    assert lowest(["confirmed"]) == "confirmed"


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from(LEVELS)), max_size=8, unique_by=lambda pair: pair[0]),
    st.integers(50, 200),
)
def test_the_figure_is_never_too_small(levels, minutes):
    """Whatever stands where: nothing newer than the step it names is counted on, and all since then is counted."""
    found: Durability = assess([standing(step, level) for step, level in levels], DRIVE, minutes * 60.0)
    confirmed = [step for step, level in levels if level == "confirmed"]
    unknown = [step for step, level in levels if level == "unknown"]
    assert found.step == max(confirmed or unknown, default=0)
    assert found.lost_seconds == (minutes - found.step) * 60.0
    assert [each.step for each in found.standings] == sorted((step for step, _ in levels), reverse=True)
