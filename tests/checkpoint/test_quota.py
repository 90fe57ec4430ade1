"""What fits is decided before a place is full, and when it will be is said in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.checkpoint.retention import (
    Load,
    Look,
    Room,
    fitted,
    full_at,
    load_of,
    proven,
    slack,
    strictest,
    total_bytes,
)
from colabkeep.core.manifest import BlobRef, Manifest, Progress
from colabkeep.core.policies import KeepBest, KeepLast

GB = 10**9
SAVE = Load(save_bytes=GB, shared_bytes=0)
BEST = KeepBest(n=2, monitor="loss", mode="min")


def manifest(step, sizes):
    """With blobs of these sizes by number; equal numbers are the same blob."""
    blobs = tuple(
        BlobRef(sha256=f"{number:064x}", size=size, file=f"{number:064x}.safetensors") for number, size in sizes.items()
    )
    return Manifest(
        id=f"{step:012d}-aaaaaaaa",
        run="run",
        session="aaaaaaaa",
        fence=1,
        progress=Progress(step=step),
        blobs=blobs,
        parts={},
        framework="numpy",
    )


def look(hour, free, ours=0, **more):
    return Look(at=hour * 3600.0, free_bytes=int(free * GB), ours_bytes=int(ours * GB), **more)


def room(free, ours=0, **more):
    return Room(url="drive", looks=(look(0, free, ours),), **{"proven": True, **more})


def test_the_size_of_a_save_is_what_it_does_not_share():
    """A frozen backbone is counted once; the first checkpoint counts whole."""
    first, second = manifest(1, {1: 800, 2: 200}), manifest(2, {1: 800, 3: 210})
    assert load_of([first, second]) == Load(save_bytes=210, shared_bytes=800)
    assert load_of([first]) == Load(save_bytes=1000, shared_bytes=0)
    assert load_of([]) == Load(save_bytes=0, shared_bytes=0)
    assert total_bytes([first, second]) == 1210
    assert total_bytes([first, second], without=frozenset({f"{1:064x}.safetensors"})) == 410


@pytest.mark.parametrize(
    ("asked", "given_room", "kept"),
    [
        (KeepLast(4) + BEST, room(15), 6),
        (KeepLast(4) + BEST, room(5, ours=2), 6),
        (KeepLast(4) + BEST, room(5), 4),
        (KeepLast(4) + BEST, room(1), 2),
        (KeepLast(4) + BEST, room(0), 2),
        (KeepLast(4), room(4.9), 3),
        (KeepLast(4), room(4.9, passing=2), 2),
        (KeepLast(4), Room(url="drive"), 4),
        (KeepLast(4), Room(url="drive", full=True), 1),
        (KeepLast(4), room(9.9, proven=False), 3),
        (KeepLast(None), room(0), None),
    ],
    ids=str,
)
def test_what_is_kept_is_made_to_fit(asked, given_room, kept):
    """With room for the save to come; not below one of each kind; untouched where the room is not known, or where all
    is to be kept; and half of the room is left alone until deleting has given bytes back."""
    assert fitted(asked, [given_room], SAVE).most == kept


def test_the_smallest_room_decides():
    """A large disk in front does not help a small drive behind."""
    assert fitted(KeepLast(9), [room(100), room(3)], SAVE).most == 2


def test_the_best_are_let_go_after_the_last():
    """What is made stricter first is the member that keeps the most; one of each stays to the end."""
    policy = KeepLast(3) + BEST
    counts = [policy.most]
    while (policy := policy.fewer()) is not None:
        counts.append(policy.most)
    assert counts == [5, 4, 3, 2]
    least = strictest(KeepLast(3) + BEST)
    assert least == KeepLast(1) + KeepBest(n=1, monitor="loss", mode="min")


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 30), st.integers(0, 20))
def test_a_plan_that_fits_leaves_room_for_the_next_save(last, best, free, ours):
    """Whatever is asked for: what is kept and the one being written fit, or nothing less can be kept."""
    policy = fitted(KeepLast(last) + KeepBest(n=best, monitor="loss", mode="min"), [room(free, ours)], SAVE)
    assert policy.most + 1 <= free + ours or policy.fewer() is None
    assert policy.most <= last + best


def test_a_trash_that_counts_is_seen():
    """What was deleted and did not come free is missing from the room: what counts is the least room of late, and that
    it may shrink once more as it did."""
    looks = (look(0, 10, 4), look(1, 8, 4, deleting=True), look(2, 9, 4))
    assert Room(url="drive", looks=looks, proven=True).dependable_bytes == (12 - 2) * GB
    assert Room(url="drive", looks=looks).dependable_bytes == 7 * GB
    assert Room(url="drive", looks=looks[:1], proven=True).dependable_bytes == 14 * GB


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([look(0, 10, 3), look(1, 9, 4)], False),
        ([look(0, 10, 3, deleting=True), look(1, 10, 3)], True),
        ([look(0, 10, 3, deleting=True), look(1, 9, 3)], False),
        ([look(0, 10, 3, deleting=True), look(1, 9, 3, deleting=True), look(2, 10, 3)], True),
    ],
    ids=str,
)
def test_deleting_is_believed_in_once_it_gave_bytes_back(looks, expected):
    """Nothing deleted proves nothing; a trash that counts proves nothing either, until it is emptied."""
    assert proven(looks) is expected


def declining(*amounts, writes=3.0):
    """A look each hour; `writes`: gigabytes that the run itself writes in an hour."""
    return [
        look(hour, 0, slack=int(amount * GB), wrote_bytes=int(hour * writes * GB))
        for hour, amount in enumerate(amounts)
    ]


@pytest.mark.parametrize(
    ("amounts", "hour"),
    [
        ((10, 9, 8, 7), 10),
        ((10, 9, 8, 7, 6, 5), 10),
        ((8, 8, 8, 8), None),
        ((7, 8, 9, 10), None),
        ((8.2, 8, 8.1, 7.9), None),
        ((10, 9, 8), None),
        ((4, 2, 0, -2), 3),
        ((9, 6, 9, 6, 9, 6, 8, 5, 8, 5, 8, 5), None),
        ((9, 8.4, 8.8, 8.1, 7.6, 7.9, 7, 6.7, 6.2, 6.4, 5.8), 29),
        ((100, 99, 98, 97), None),
        ((70, 69, 68, 67), 70),
    ],
    ids=str,
)
def test_the_hour_in_which_it_is_full_is_foretold(amounts, hour):
    """At the pace of late; not from two or three looks, nor from the coming and going of a checkpoint, nor
    days ahead from some hours."""
    found = full_at(declining(*amounts), SAVE)
    assert found is None if hour is None else found == pytest.approx(hour * 3600.0, rel=0.05)


@pytest.mark.parametrize(
    ("writes", "hour"),
    [(0.0, None), (0.000036, None), (1.0, 10), (0.7, 3 + 7 / 0.7), (2.0, 10)],
    ids=str,
)
def test_what_other_programs_write_is_not_foretold(writes, hour):
    """A place that loses a gigabyte an hour, by this run's own writing, by others', or by both: only as much of the
    pace counts as the run can have caused."""
    found = full_at(declining(10, 9, 8, 7, writes=writes), SAVE)
    assert found is None if hour is None else found == pytest.approx(hour * 3600.0, rel=0.01)


def test_slack_is_what_is_left_beside_the_least():
    """Two that must be kept, one on its way, out of ten: seven. Where all is kept: what is free after the next save."""
    least = KeepLast(1) + KeepBest(n=1, monitor="loss", mode="min")
    assert slack(least, look(0, 6, ours=4), SAVE, passing=1) == 7 * GB
    assert slack(KeepLast(None), look(0, 6, ours=4), SAVE, passing=1) == 5 * GB
