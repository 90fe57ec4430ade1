"""A long session leaves few parts of its diary, each line once, whatever happens on the way."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.journal import Journal, folded_since, read_journal
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import StoreError, StoreUnavailable
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore

NAME = "aaaaaaaa"


class Killed(BaseException):
    """Nothing of the process lives on."""


def diary(store):
    return Journal(Repository(store, "run"), NAME)


def note(journal, number):
    journal.add({"event": "Noted", "n": number})
    journal.write()


def files(store):
    return Repository(store, "run").files("journal")


def told(store):
    """The numbers in the diary, as who reads it in order finds them."""
    found = read_journal(Repository(store, "run"), files(store), [NAME], 10**6)
    assert found.troubles == ()
    return [line.count("n") for line in found.lines[NAME] if line.event == "Noted"]


def test_half_a_day_of_a_save_every_15_seconds_leaves_few_parts_of_the_diary():
    """2,900 parts are some forty, for each is a request on a drive; and every line is there once, in order."""
    store, most = MemoryStore(), 0
    journal = diary(store)
    for number in range(2900):
        note(journal, number)
        most = max(most, len(files(store)))
    assert most <= 3 * 15 + 1
    assert told(store) == list(range(2900))


def test_a_diary_too_large_to_be_kept_in_memory_is_still_whole():
    """What is not folded any more stays as it is."""
    store = MemoryStore()
    journal = diary(store)
    for number in range(40):
        journal.add({"event": "Large", "text": "x" * 400_000})
        note(journal, number)
    assert sum(len(one.body) for one in journal._open) <= 2**23
    assert 2 < len(files(store)) < 40
    assert told(store) == list(range(40))


def points_of_a_fold():
    """What the sixteenth part asks of the store."""
    store = FaultyStore(MemoryStore())
    journal = diary(store)
    for number in range(15):
        note(journal, number)
    before = len(store.points)
    note(journal, 15)
    return [point for point in store.points[before:] if "put" in point or "delete" in point]


@pytest.mark.parametrize("point", points_of_a_fold())
def test_a_session_that_dies_while_parts_are_folded_leaves_each_line_once(point):
    """Between any two requests: who reads the diary then finds every line that was safe, none of them twice."""
    disk = MemoryStore()

    def die(at):
        if at == point:
            raise Killed

    store = FaultyStore(disk)
    journal = diary(store)
    for number in range(15):
        note(journal, number)
    store.at = die
    with pytest.raises(Killed):
        note(journal, 15)
    assert told(disk) == list(range(15 if point.startswith("before put") and "00015" in point else 16))


@pytest.mark.parametrize("point", [point for point in points_of_a_fold() if point.startswith("before")])
def test_a_store_that_fails_while_parts_are_folded_is_asked_again_later(point):
    """A drive that was away for a moment: nothing is lost, nothing is there twice, and what is covered goes."""
    failed = []

    def away(at):
        if at == point and not failed:
            failed.append(at)
            raise StoreUnavailable(problem="Away.", remedy="Wait.")

    disk = MemoryStore()
    journal = diary(FaultyStore(disk, at=away))
    for number in range(60):
        if number == 15 and "put" in point:
            with pytest.raises(StoreUnavailable):
                note(journal, number)
        else:
            note(journal, number)
    assert failed
    assert told(disk) == list(range(60))
    assert len(files(disk)) < 20


@pytest.mark.parametrize("error", [StoreError, StoreUnavailable])
def test_where_nobody_may_delete_the_diary_is_written_all_the_same(error):
    """A place that keeps everything: no save is followed by a failure, and nothing is folded to no purpose."""

    def refuse(at):
        if at.startswith("before delete"):
            refused.append(at)
            raise error(problem="It may not be deleted.", remedy="Wait.")

    disk, refused = MemoryStore(), []
    journal = diary(FaultyStore(disk, at=refuse))
    for number in range(100):
        note(journal, number)
    assert len(refused) <= 3
    assert told(disk) == list(range(100))
    assert len(files(disk)) == 101
    assert journal._open == []


def test_an_audit_finds_nothing_amiss_in_folded_parts_and_misses_one_that_is_gone(kit, disk):
    """Parts that are held by another are not missing; one of these that is gone is."""
    session = kit.Session(disk.store)
    for step in range(1, 41):
        session.journal.add({"event": "SaveCommitted", "checkpoint": session.save(step).id})
    session.committer.finish()
    assert len(disk.names("journal/")) < 20
    assert {finding.state for finding in audit(session.repository)} == {"ok"}
    first = disk.names("journal/")[0]
    assert first.endswith("-00016.jsonl"), "it holds the parts 0 to 15"
    leftover = first.replace("00016", "00007")
    disk.files[leftover] = disk.files[disk.names("journal/")[-1]]
    assert {finding.state for finding in audit(session.repository)} == {"ok"}, "as after a crash"
    del disk.files[leftover], disk.files[first]
    (missing,) = [finding for finding in audit(session.repository) if finding.state == "missing"]
    assert missing.file == f"journal/{NAME}-00000.jsonl"
    assert "17 part(s)" in missing.text


@pytest.mark.parametrize("since", [-1, 8, True, None, "0", 1.0, [], 10**30])
def test_a_part_that_lies_about_what_it_holds_hides_no_other(since):
    """Only earlier parts can be in it."""
    assert folded_since([{"event": "SegmentsFolded", "since": since}, {"event": "Noted"}], 7) == 7
    assert folded_since([{"event": "Noted", "since": 3}], 7) == 7
    assert folded_since([], 7) == 7
