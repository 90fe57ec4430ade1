"""A long session leaves few parts of its journal, each line once, whatever happens on the way."""

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


def opened_journal(store):
    return Journal(Repository(store, "run"), NAME)


def note(journal, number):
    journal.add({"event": "Noted", "n": number})
    journal.write()


def files(store):
    return Repository(store, "run").files("journal")


def told(store):
    """The numbers in the journal, as who reads it in order finds them."""
    found = read_journal(Repository(store, "run"), files(store), [NAME], 10**6)
    assert found.troubles == ()
    return [line.count("n") for line in found.lines[NAME] if line.event == "Noted"]


def test_half_a_day_of_a_save_every_15_seconds_leaves_few_parts_of_the_journal():
    """2,900 saves with a kilobyte of lines each are some thirty parts, for each is a request on a drive; and every line
    is there once, in order."""
    store, most = MemoryStore(), 0
    journal = opened_journal(store)
    for number in range(2900):
        journal.add({"event": "Large", "text": "x" * 1000})
        note(journal, number)
        most = max(most, len(files(store)))
    assert most <= 30
    assert told(store) == list(range(2900))


def test_lines_longer_than_a_part_are_written_once():
    """Each is a part by itself."""
    store = FaultyStore(MemoryStore())
    journal = opened_journal(store)
    for number in range(5):
        journal.add({"event": "Large", "text": "x" * 400_000})
        note(journal, number)
    assert len(files(store)) == 5
    assert not [point for point in store.points if "delete" in point]
    assert told(store) == list(range(5))


def points_of_a_fold():
    """What the second part asks of the store."""
    store = FaultyStore(MemoryStore())
    journal = opened_journal(store)
    note(journal, 0)
    before = len(store.points)
    note(journal, 1)
    return [point for point in store.points[before:] if "put" in point or "delete" in point]


@pytest.mark.parametrize("point", points_of_a_fold())
def test_a_session_that_dies_while_a_part_takes_another_in_leaves_each_line_once(point):
    """Between any two requests: who reads the journal then finds every line that was safe, none of them twice."""
    disk = MemoryStore()

    def die(at):
        if at == point:
            raise Killed

    store = FaultyStore(disk)
    journal = opened_journal(store)
    note(journal, 0)
    store.at = die
    with pytest.raises(Killed):
        note(journal, 1)
    assert told(disk) == list(range(1 if point.startswith("before put") else 2))


@pytest.mark.parametrize("point", points_of_a_fold())
def test_a_store_that_fails_meanwhile_is_asked_again_later(point):
    """A drive that was away for a moment, or whose answer was lost: nothing is lost, nothing is there twice, and what
    is covered goes."""
    failed = []

    def away(at):
        if at == point and not failed:
            failed.append(at)
            raise StoreUnavailable(problem="Away.", remedy="Wait.")

    disk = MemoryStore()
    journal = opened_journal(FaultyStore(disk, at=away))
    for number in range(20):
        if number == 1 and "put" in point:
            with pytest.raises(StoreUnavailable):
                note(journal, number)
        else:
            note(journal, number)
    assert failed
    assert told(disk) == list(range(20))
    assert len(files(disk)) == 1


@pytest.mark.parametrize("error", [StoreError, StoreUnavailable])
def test_where_nobody_may_delete_the_journal_is_written_all_the_same(error):
    """A place that keeps everything: no save is followed by a failure, and nothing is written again to no purpose."""

    def refuse(at):
        if at.startswith("before delete"):
            refused.append(at)
            raise error(problem="It may not be deleted.", remedy="Wait.")

    disk, refused = MemoryStore(), []
    journal = opened_journal(FaultyStore(disk, at=refuse))
    for number in range(100):
        note(journal, number)
    assert len(refused) <= 3
    assert told(disk) == list(range(100))
    assert len(files(disk)) == 100
    assert len(disk._objects["run/journal/aaaaaaaa-00099.jsonl"]) < 200


def test_an_audit_finds_nothing_amiss_in_folded_parts_and_misses_one_that_is_gone(kit, disk):
    """Parts that are held by another are not missing; one of these that is gone is."""
    session = kit.Session(disk.store)
    for step in range(1, 41):
        session.journal.add({"event": "SaveCommitted", "checkpoint": session.save(step).id})
        if step == 20:
            session.journal.add({"event": "Large", "text": "x" * 2**17})
    session.committer.finish()
    first, *_, last = disk.names("journal/")
    assert (first[-11:-6], last[-11:-6], len(disk.names("journal/"))) == ("00018", "00039", 3)
    assert {finding.state for finding in audit(session.repository)} == {"ok"}
    leftover = first.replace("00018", "00007")
    disk.files[leftover] = disk.files[last]
    assert {finding.state for finding in audit(session.repository)} == {"ok"}, "as after a crash"
    del disk.files[leftover], disk.files[first]
    (missing,) = [finding for finding in audit(session.repository) if finding.state == "missing"]
    assert missing.file == f"journal/{NAME}-00000.jsonl"
    assert "19 part(s)" in missing.text


@pytest.mark.parametrize("since", [-1, 8, True, None, "0", 1.0, [], 10**30])
def test_a_part_that_lies_about_what_it_holds_hides_no_other(since):
    """Only earlier parts can be in it."""
    assert folded_since([{"event": "SegmentsFolded", "since": since}, {"event": "Noted"}], 7) == 7
    assert folded_since([{"event": "Noted", "since": 3}], 7) == 7
    assert folded_since([], 7) == 7
