"""Who reads the journal of a run in training reads all of it, whatever the session does to its parts meanwhile."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from colabkeep.checkpoint.durability import vanished
from colabkeep.checkpoint.inspect import last_record
from colabkeep.checkpoint.journal import Journal, read_journal
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.verify import audit
from colabkeep.stores.memory import MemoryStore

NAME = "aaaaaaaa"


class Living:
    """A store in which a training goes on: before the `at`-th part of its journal is read, it does something."""

    def __init__(self, store, goes_on, at=1):
        self._store, self._goes_on, self._left = store, goes_on, at

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, name):
        if "/journal/" in name:
            self._left -= 1
            if self._left == 0:
                self._goes_on()
        return self._store.get(name)


@pytest.fixture
def training():
    """A store with fifteen parts of a journal, and how the session goes on by some more lines."""
    store = MemoryStore()
    journal = Journal(Repository(store, "run"), NAME)
    written = iter(range(10**6))

    def goes_on(lines=1):
        for _ in range(lines):
            n = next(written)
            journal.add({"event": "Noted", "n": n, "at": 1000.0 + n, "progress": {"seconds": float(n)}})
            journal.write()

    goes_on(15)
    return store, goes_on


def told(repository, files):
    found = read_journal(repository, files, [NAME], 10**6)
    assert found.troubles == ()
    return [line.count("n") for line in found.lines[NAME] if line.event == "Noted"]


@pytest.mark.parametrize("lines", [1, 20, 260])
@pytest.mark.parametrize("at", [1, 7, 15])
def test_a_reader_loses_no_line_when_parts_are_folded_under_it(training, at, lines):
    """Folded before the first, the middle or the last part is read, once or often: each line is there once."""
    store, goes_on = training
    files = [*Repository(store, "run").files("journal")]
    numbers = told(Repository(Living(store, lambda: goes_on(lines), at), "run"), files)
    assert numbers[:15] == list(range(15))
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("once", [False, True])
def test_the_last_word_is_heard_when_parts_are_folded_under_the_reader(training, once):
    """Also by who listed the run once for all: what is gone shows that the listing is old."""
    store, goes_on = training
    living = Living(store, goes_on)
    repository = Repository(living, "run")
    with repository.one_look() if once else nullcontext():
        word = last_record(repository)
    assert (word.seconds, word.at) == (15.0, 1015.0)


def committing(kit, store, keep=None):
    """A session whose journal says what it committed, and how to save some steps with it."""
    session = kit.Session(store, **({} if keep is None else {"keep": keep}))

    def save(*steps):
        for step in steps:
            session.journal.add({"event": "SaveCommitted", "checkpoint": session.save(step).id})
        session.committer.finish()

    return session, save


@pytest.mark.parametrize("at", [1, 2, 14])
def test_an_audit_of_a_run_in_training_finds_no_damage(kit, disk, at):
    """Parts are folded while it reads them, and checkpoints pruned: what is told elsewhere by now is not missing."""
    session, save = committing(kit, disk.store, KeepLast(1))
    save(*range(1, 14))
    living = Living(disk.store, lambda: save(*range(14, 20)), at)
    found = list(audit(Repository(living, session.repository.run)))
    assert {finding.state for finding in found} <= {"ok", "orphan"}
    assert len(found) > 3


def test_an_audit_of_a_run_in_training_still_finds_what_is_lost(kit, disk):
    """A checkpoint that somebody deleted is named, also when the journal is folded while it is read."""
    session, save = committing(kit, disk.store)
    save(*range(1, 14))
    lost = max(session.repository.ids())
    session.repository.delete_manifest(lost)
    living = Living(disk.store, lambda: save(*range(14, 20)), at=2)
    missing = [each.file for each in audit(Repository(living, session.repository.run)) if each.state == "missing"]
    assert missing == [f"checkpoints/{lost}.json"]


def test_checkpoints_pruned_while_the_journal_is_read_are_not_missing(kit, disk):
    """One was saved when the audit had seen the checkpoints, and pruned when it had read of that."""
    session, save = committing(kit, disk.store, KeepLast(1))
    save(1)
    asked = []

    class Passing(Repository):
        def files(self, folder):
            if folder == "journal" and not asked:
                asked.append(folder)
                save(2)
            return super().files(folder)

        def ids(self):
            if asked == ["journal"]:
                asked.append("ids")
                save(3)
            return super().ids()

    states = {finding.state for finding in audit(Passing(disk.store, session.repository.run))}
    assert asked == ["journal", "ids"]
    assert states <= {"ok", "orphan"}


def test_one_damaged_part_of_the_journal_is_all_that_an_audit_finds(kit, disk):
    """It may be the one that tells of the pruning: no checkpoint is said to be lost, and no other part."""
    session, save = committing(kit, disk.store, KeepLast(1))
    for steps in (range(1, 20), range(20, 40)):
        save(*steps)
        session.journal.add({"event": "Large", "text": "x" * 2**17})
    session.committer.finish()
    names = disk.names("journal/")
    assert len(names) == 4
    for name in names:
        text = disk.files[name]
        disk.files[name] = text[:-9]
        bad = {finding.file: finding.state for finding in audit(session.repository) if finding.state != "ok"}
        assert bad == {name.partition("/")[2]: "damaged"}
        disk.files[name] = text


def test_a_damaged_part_of_the_journal_may_be_the_one_that_told_of_a_pruning(kit, disk):
    """A checkpoint of which it is not known whether it was pruned is not said to be lost."""
    session, save = committing(kit, disk.store)
    save(1, 2)
    (id, _) = sorted(session.repository.ids())
    session.journal.add({"event": "Pruned", "checkpoints": [id]})
    session.journal.write()
    session.repository.delete_manifest(id)
    assert {finding.state for finding in audit(session.repository)} <= {"ok", "orphan"}
    name = disk.names("journal/")[-1]
    disk.files[name] = disk.files[name][:-9]
    states = {finding.file: finding.state for finding in audit(session.repository)}
    assert states.pop(name.partition("/")[2]) == "damaged"
    assert {*states.values()} <= {"ok", "orphan"}


def test_checkpoints_of_a_journal_that_is_folded_meanwhile_are_still_known(kit, disk):
    """A run whose checkpoints are gone is not begun anew because its journal was folded under the reader."""
    session, save = committing(kit, disk.store)
    save(*range(1, 15))
    session.journal.add({"event": "Noted"})
    session.journal.write()
    ids = session.repository.ids()

    def fold():
        session.journal.add({"event": "Noted"})
        session.journal.write()

    repository = Repository(Living(disk.store, fold), session.repository.run)
    for id in ids:
        session.repository.delete_manifest(id)
    assert vanished(repository) == sorted(ids)
