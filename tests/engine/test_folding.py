"""A run of thousands of sessions leaves few files, and is told as if nothing had been folded, whatever happens."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabkeep._engine.audit import audit
from colabkeep._engine.commits import vanished
from colabkeep._engine.folding import KEPT, TOGETHER, Folding
from colabkeep._engine.history import HISTORY_FILE, history_name, pack, unfolded, unpack
from colabkeep._engine.journal import Journal
from colabkeep._engine.lease import fences, take_lease
from colabkeep._engine.repository import Repository
from colabkeep.session.catalogue import sessions
from colabkeep.session.copying import copy_run
from colabkeep.session.deleting import plan_deletion
from colabkeep.session.durability import last_word
from colabkeep.session.story import read_story
from colabkeep.stores.base import BytesSource, StoreProperties
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore
from colabkeep.vocabulary.errors import RunTakenOver, StoreError, StoreUnavailable, UsageError
from colabkeep.vocabulary.policies import KeepLast

RUN = "run"


class Killed(BaseException):
    """Nothing of the process lives on."""


def name_of(number):
    return f"{number:08x}"


def past(store, count, lines=2, first=1):
    """So many sessions that said something and ended."""
    repository = Repository(store, RUN)
    repository.open_run(created=0.0, run_id="0" * 16)
    for number in range(first, first + count):
        session = name_of(number)
        take_lease(repository, session, {"host": f"host {number}", "pid": number, "started": 1000.0 * number})
        journal = Journal(repository, session)
        for line in range(lines):
            at = 1000.0 * number + line
            journal.add({"event": "Noted", "at": at, "text": f"{number}.{line}"})
            journal.add({"event": "X", "at": at, "progress": {"step": number, "seconds": float(number)}})
            journal.write()
    return repository


def folding(store, session=None, first=False):
    """A new session, which folds."""
    repository = Repository(store, RUN)
    lease = take_lease(repository, session or secrets.token_hex(4), {"host": "now"})
    return Folding(lease, FakeClock())


def fold(store, session=None):
    work = folding(store, session)
    while work.work(lambda: False):
        pass
    return work


def told(store):
    """Every line of every session, as who reads the run finds them."""
    story = read_story(store, RUN, most=10**6)
    assert story.troubles == ()
    return {each.session: [told.text for told in each.told] for each in story.sessions if each.told}


def expected(count, lines=2):
    return {name_of(n): [f"{n}.{line}" for line in range(lines)] for n in range(1, count + 1)}


def files(store, folder=""):
    return sorted(entry.name for entry in store.list(f"{RUN}/{folder}".rstrip("/")))


def histories(store):
    return [name for name in files(store, "journal") if "/history-" in name]


def test_thousands_of_sessions_leave_few_files_and_every_line_once():
    """2,000 sessions with a lease and two parts each, which were 6,000 files; the newest sessions stay as they are."""
    store = MemoryStore()
    past(store, 2000)
    before = told(store)
    assert before == expected(2000)
    fold(store)
    assert len(files(store)) <= 1 + 3 * (KEPT + TOGETHER) + TOGETHER
    assert len(histories(store)) <= TOGETHER
    assert told(store) == before
    assert {finding.state for finding in audit(Repository(store, RUN))} == {"ok"}


def test_a_run_that_grows_session_by_session_stays_small():
    """Each session folds what has become old: files, and what a session asks of the store, do not grow."""
    store = FaultyStore(MemoryStore())
    most = Counter()
    for number in range(1, 401):
        past(store, 1, first=number)
        store.points.clear()
        fold(store, name_of(10**6 + number))
        most["requests"] = max(most["requests"], sum(point.startswith("before") for point in store.points))
        most["files"] = max(most["files"], len(files(store)))
    assert most["files"] <= 1 + 3 * 2 * (KEPT + TOGETHER) + 2 * TOGETHER
    assert most["requests"] <= 16 * (TOGETHER * 3 + TOGETHER)
    found = told(store)
    assert [found[name_of(number)] for number in range(1, 401)] == [*expected(400).values()]
    assert len(fences(Repository(store, RUN))) < 2 * (KEPT + TOGETHER)
    assert len(fences(unfolded(Repository(store, RUN)))) == 800


def test_a_fresh_run_is_not_folded():
    """As long as it has few sessions, nothing is read and nothing written."""
    store = FaultyStore(MemoryStore())
    past(store, KEPT + TOGETHER - 2)
    store.points.clear()
    fold(store)
    asked = [point for point in store.points if point.startswith("before")]
    assert not [point for point in asked if "get" in point or "delete" in point or "journal" in point]
    assert len(files(store, "journal")) == 2 * (KEPT + TOGETHER - 2)


def test_no_fence_is_used_twice():
    """The newest leases stay: the next session, of this version or an older one, follows them."""
    store, used = MemoryStore(), set()
    past(store, 100)
    for _ in range(50):
        work = fold(store)
        assert work._lease.fence not in used
        used.add(work._lease.fence)
        newest = sorted(name for name in files(store, "lease"))[-KEPT:]
        assert len(newest) == KEPT
    assert min(used) == 101
    assert max(used) == 150
    assert histories(store)


def test_a_zombie_whose_lease_was_folded_away_stops():
    """An old machine that wakes after hundreds of sessions finds a higher number, as it always did."""
    store = MemoryStore()
    repository = past(store, 5)
    zombie = take_lease(repository, "ffffffff", {"host": "old"})
    past(store, 60, first=6)
    fold(store)
    assert not [name for name in files(store, "lease") if "ffffffff" in name]
    with pytest.raises(RunTakenOver):
        zombie.check()
    past(store, 1, first=70)
    assert max(fences(Repository(store, RUN)).values()) == 68
    early = Folding(zombie, FakeClock())
    before = files(store)
    assert early.work(lambda: False) is False
    assert files(store) == before, "a zombie folds nothing"


def test_a_late_part_of_a_folded_session_is_read_once():
    """A zombie's last words, or what a machine had not sent: they come when the session is folded already."""
    store = MemoryStore()
    repository = past(store, 60)
    late = Journal(repository, name_of(3))
    late._next = 2
    fold(store)
    assert not [name for name in files(store, "journal") if name_of(3) in name]
    late.add({"event": "Noted", "at": 3002.0, "text": "3.2"})
    late.write()
    want = expected(60)
    want[name_of(3)].append("3.2")
    assert told(store) == want
    past(store, 60, first=61)
    fold(store)
    assert told(store) == {**want, **{k: v for k, v in expected(120).items() if k not in want}}
    assert {finding.state for finding in audit(Repository(store, RUN))} == {"ok"}


def test_what_comes_back_is_read_once_and_goes_again():
    """A machine that was away has the folded files on its disk still, and sends them once more."""
    store = MemoryStore()
    past(store, 40)
    back = {name: store._objects[name] for name in files(store) if "run.json" not in name}
    fold(store)
    store._objects.update(back)
    assert told(store) == expected(40)
    assert vanished(Repository(store, RUN)) == []
    fold(store)
    assert told(store) == expected(40)
    assert len(files(store)) < len(back)
    assert {finding.state for finding in audit(Repository(store, RUN))} == {"ok"}


def points_of_a_fold():
    """What one fold asks of the store, and the merging of sixteen histories."""
    store = FaultyStore(MemoryStore())
    past(store, KEPT + TOGETHER, lines=1)
    work = folding(store, "ffffffff")
    store.points.clear()
    work.work(lambda: False)
    return [point for point in store.points if any(word in point for word in ("put", "delete", "get"))]


@pytest.mark.parametrize("number", range(len(points_of_a_fold())))
def test_a_session_that_dies_while_it_folds_leaves_each_line_once(number):
    """Between any two requests; and the next session ends what it began, with the same few files."""
    disk, reached = MemoryStore(), []

    def die(at):
        if any(word in at for word in ("put", "delete", "get")):
            reached.append(at)
            if len(reached) == number + 1:
                raise Killed

    store = FaultyStore(disk)
    past(store, KEPT + TOGETHER, lines=1)
    work = folding(store, "ffffffff")
    store.at = die
    with pytest.raises(Killed):
        work.work(lambda: False)
    assert told(disk) == expected(KEPT + TOGETHER, 1)
    assert {finding.state for finding in audit(Repository(disk, RUN))} == {"ok"}
    past(disk, TOGETHER, lines=1, first=KEPT + TOGETHER + 1)
    fold(disk)
    assert told(disk) == expected(KEPT + 2 * TOGETHER, 1)
    assert len(files(disk)) < 1 + 3 * (KEPT + TOGETHER)
