"""What fits is decided before a place is full, and when it will be is said in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.checkpoint.retention import FreeSpace, KeepBest, KeepLast, Load, fitted, load_of
from colabkeep.core.manifest import BlobRef, Manifest, Progress

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


def room(free, ours=0, **more):
    return FreeSpace(
        url="drive", free_bytes=int(free * GB), lately=[int((free + ours) * GB)], **{"proven": True, **more}
    )


def test_the_size_of_a_save_is_what_it_does_not_share():
    """A frozen backbone is counted once; the first checkpoint counts whole."""
    first, second = manifest(1, {1: 800, 2: 200}), manifest(2, {1: 800, 3: 210})
    assert load_of([first, second]) == Load(save_bytes=210, shared_bytes=800)
    assert load_of([first]) == Load(save_bytes=1000, shared_bytes=0)
    assert load_of([]) == Load(save_bytes=0, shared_bytes=0)


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
        (KeepLast(4), FreeSpace(url="drive"), 4),
        (KeepLast(4), FreeSpace(url="drive", full=True), 1),
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


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 30), st.integers(0, 20))
def test_a_plan_that_fits_leaves_room_for_the_next_save(last, best, free, ours):
    """Whatever is asked for: what is kept and the one being written fit, or nothing less can be kept."""
    policy = fitted(KeepLast(last) + KeepBest(n=best, monitor="loss", mode="min"), [room(free, ours)], SAVE)
    assert policy.most + 1 <= free + ours or policy.fewer() is None
    assert policy.most <= last + best


def test_room_that_was_lost_may_be_lost_again():
    """What was deleted and did not come free is missing: what counts is the least room of late, less the last loss."""
    kept = {
        name: fitted(KeepLast(99), [FreeSpace(url="drive", lately=[n * GB for n in rooms], proven=True)], SAVE).most
        for name, rooms in {"steady": (14, 14), "a trash": (14, 12, 13), "emptied": (12, 14)}.items()
    }
    assert kept == {"steady": 13, "a trash": 9, "emptied": 11}
