"""A run of thousands of sessions leaves few files, and is told as if nothing had been folded, whatever happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabkeep.checkpoint.compaction import KEPT, TOGETHER, Folding, history_name, pack, unfolded, unpack
from colabkeep.checkpoint.durability import vanished
from colabkeep.checkpoint.inspect import last_record, sessions
from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Repository, fences, take_lease
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import RunTakenOver, StoreError, StoreUnavailable, UsageError
from colabkeep.session.copy import copy_run
from colabkeep.session.history import read_history
from colabkeep.session.prune import plan_deletion
from colabkeep.stores.base import BytesSource, StoreProperties
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore
from tests.fakes.runs import RUN, folding, named, old_sessions, told


class Killed(BaseException):
    """Nothing of the process lives on."""


def fold(store, session=None):
    """A new session folds all that can be folded."""
    work = folding(store, session)
    while work.work(lambda: False):
        pass
    return work


def expected(count, lines=2):
    return {named(n): [f"{n}.{line}" for line in range(lines)] for n in range(1, count + 1)}


def files(store, folder=""):
    return sorted(entry.name for entry in store.list(f"{RUN}/{folder}".rstrip("/")))


def histories(store):
    return [name for name in files(store, "journal") if "/history-" in name]


def test_hundreds_of_sessions_leave_few_files_and_every_line_once():
    """500 sessions with a lease and a part each, which were 1,000 files; the newest sessions stay as they are."""
    store = MemoryStore()
    old_sessions(store, 500)
    before = told(store)
    assert before == expected(500)
    fold(store)
    assert len(files(store)) <= 1 + 2 * (KEPT + TOGETHER) + 1
    assert len(histories(store)) == 1
    assert told(store) == before
    assert {finding.state for finding in audit(Repository(store, RUN))} == {"ok"}


def test_a_run_that_grows_session_by_session_stays_small():
    """Each session folds what has become old: files, and what a session asks of the store, do not grow."""
    store = FaultyStore(MemoryStore())
    most = Counter()
    for number in range(1, 201):
        old_sessions(store, 1, first=number)
        store.points.clear()
        fold(store, named(10**6 + number))
        most["requests"] = max(most["requests"], sum(point.startswith("before") for point in store.points))
        most["files"] = max(most["files"], len(files(store)))
    assert most["files"] <= 1 + 3 * 2 * (KEPT + TOGETHER) + 2 * TOGETHER
    assert most["requests"] <= 16 * (TOGETHER * 3 + TOGETHER)
    found = told(store)
    assert [found[named(number)] for number in range(1, 201)] == [*expected(200).values()]
    assert len(fences(Repository(store, RUN))) < 2 * (KEPT + TOGETHER)
    assert len(fences(unfolded(Repository(store, RUN)))) == 400


def test_a_fresh_run_is_not_folded():
    """As long as it has few sessions, nothing is read and nothing written."""
    store = FaultyStore(MemoryStore())
    old_sessions(store, KEPT + TOGETHER - 2)
    store.points.clear()
    fold(store)
    asked = [point for point in store.points if point.startswith("before")]
    assert not [point for point in asked if "get" in point or "delete" in point or "journal" in point]
    assert len(files(store, "journal")) == KEPT + TOGETHER - 2


def test_no_fence_is_used_twice():
    """The newest leases stay: the next session, of this version or an older one, follows them."""
    store, used = MemoryStore(), set()
    old_sessions(store, 100)
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
    repository = old_sessions(store, 5)
    zombie = take_lease(repository, "ffffffff", {"host": "old"})
    old_sessions(store, 60, first=6)
    fold(store)
    assert not [name for name in files(store, "lease") if "ffffffff" in name]
    with pytest.raises(RunTakenOver):
        zombie.check()
    old_sessions(store, 1, first=70)
    assert max(fences(Repository(store, RUN)).values()) == 68
    early = Folding(zombie)
    before = files(store)
    assert early.work(lambda: False) is False
    assert files(store) == before, "a zombie folds nothing"


def test_a_late_part_of_a_folded_session_is_read_once():
    """A zombie's last words, or what a machine had not sent: they come when the session is folded already."""
    store = MemoryStore()
    repository = old_sessions(store, 60)
    late = Journal(repository, named(3))
    late._next = late._since = 2
    fold(store)
    assert not [name for name in files(store, "journal") if named(3) in name]
    late.add({"event": "Noted", "at": 3002.0, "text": "3.2"})
    late.write()
    want = expected(60)
    want[named(3)].append("3.2")
    assert told(store) == want
    old_sessions(store, 60, first=61)
    fold(store)
    assert told(store) == {**want, **{k: v for k, v in expected(120).items() if k not in want}}
    assert {finding.state for finding in audit(Repository(store, RUN))} == {"ok"}


def points_of_a_fold():
    """What one fold asks of the store, and the merging of sixteen histories."""
    store = FaultyStore(MemoryStore())
    old_sessions(store, KEPT + TOGETHER, lines=1)
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
    old_sessions(store, KEPT + TOGETHER, lines=1)
    work = folding(store, "ffffffff")
    store.at = die
    with pytest.raises(Killed):
        work.work(lambda: False)
    assert told(disk) == expected(KEPT + TOGETHER, 1)
    assert {finding.state for finding in audit(Repository(disk, RUN))} == {"ok"}
    old_sessions(disk, TOGETHER, lines=1, first=KEPT + TOGETHER + 1)
    fold(disk)
    assert told(disk) == expected(KEPT + 2 * TOGETHER, 1)
    assert len(files(disk)) < 1 + 3 * (KEPT + TOGETHER)


# Two or three old sessions instead of sixteen: what matters is the order of things.


@pytest.fixture
def of_two(monkeypatch):
    """Two sessions, or histories, are folded into one, and the two newest sessions are kept."""
    monkeypatch.setattr("colabkeep.checkpoint.compaction.KEPT", 2)
    monkeypatch.setattr("colabkeep.checkpoint.compaction.TOGETHER", 2)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("session"), st.integers(0, 2)),
        st.tuples(st.just("folder"), st.booleans()),
        st.tuples(st.just("fold"), st.integers(0, 5), st.integers(1, 12)),
        st.tuples(st.just("late"), st.integers(0, 30)),
        st.tuples(st.just("back"), st.integers(0, 30)),
        st.tuples(st.just("refuse"), st.integers(1, 4)),
    ),
    min_size=4,
    max_size=40,
)


class Interleaved:
    """One run and everybody at it: sessions that come and go, several that fold, one request at a time, and stop in
    the middle; zombies that write late; machines that bring back what was folded."""

    def __init__(self):
        self.disk, self.refusals = MemoryStore(), 0
        self.store = FaultyStore(self.disk, at=self.at)
        self.want, self.journals, self.folders, self.ever = {}, [], [], {}
        self.run = Repository(self.store, RUN)
        self.run.open_run(created=0.0, run_id="0" * 16)
        self.fences = set()

    def at(self, point):
        if point.startswith(("before delete", "before get")) and self.refusals:
            self.refusals -= 1
            raise StoreUnavailable(problem="Away.", remedy="Wait.")

    def session(self, lines):
        name = named(len(self.want) + 1)
        lease = take_lease(self.run, name, {})
        assert lease.fence not in self.fences, "no number is used twice"
        self.fences.add(lease.fence)
        self.want[name] = []
        self.journals.append((name, Journal(self.run, name)))
        for _ in range(lines):
            self.late(len(self.journals) - 1)
        return lease

    def late(self, number):
        if self.journals:
            name, journal = self.journals[number % len(self.journals)]
            self.want[name].append(f"{name} {len(self.want[name])}")
            journal.add({"event": "Noted", "text": self.want[name][-1]})
            journal.write()

    def folder(self, _):
        self.folders.append(Folding(self.session(1)))

    def fold(self, number, requests):
        if self.folders:
            left = iter(range(requests))
            self.folders[number % len(self.folders)].work(lambda: next(left, None) is None)

    def back(self, number):
        gone = sorted(self.ever.keys() - self.disk._objects.keys())
        if gone:
            self.disk._objects[gone[number % len(gone)]] = self.ever[gone[number % len(gone)]]

    def refuse(self, times):
        self.refusals = times

    def check(self):
        self.ever.update(self.disk._objects)
        assert told(self.disk) == {name: lines for name, lines in self.want.items() if lines}
        assert {finding.state for finding in audit(Repository(self.disk, RUN))} == {"ok"}


@given(acts=ACTS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whoever_folds_when_and_dies_each_line_is_told_once(of_two, acts):
    """Any order of sessions, folds that end in the middle, late words, files that come back, a drive that is away."""
    world = Interleaved()
    world.session(1)
    for act, *words in [*acts, ("refuse", 0), ("folder", True), ("fold", len(acts) * 31, 10**6)]:
        getattr(world, act)(*words)
        world.check()


def test_what_two_sessions_fold_at_once_is_there_once(of_two):
    """Two machines that do not see each other yet: each deletes only what is in a history of its own."""
    for ahead in range(1, 60):
        store = MemoryStore()
        old_sessions(store, 12)
        one, other = folding(store, "eeeeeeee"), folding(store, "ffffffff")
        left = iter(range(ahead))
        one._lease = replace(one._lease, fence=other._lease.fence + 1)  # neither has seen that the other is newer
        one.work(lambda left=left: next(left, None) is None)
        other.work(lambda: False)
        one.work(lambda: False)
        assert told(store) == expected(12)
        assert {finding.state for finding in audit(Repository(store, RUN))} == {"ok"}


@pytest.mark.parametrize("error", [StoreError, StoreUnavailable])
def test_where_nobody_may_delete_nothing_grows(error):
    """A place that keeps everything: one history at most, and each later session asks a few times and lets it be."""
    disk, refused = MemoryStore(), []

    def refuse(at):
        if at.startswith("before delete"):
            refused.append(at)
            raise error(problem="It may not be deleted.", remedy="Ask its owner.")

    old_sessions(disk, 60)
    for _ in range(10):
        refused.clear()
        work = folding(FaultyStore(disk, at=refuse))
        for _ in range(9):
            assert work.work(lambda: False) is False
        assert 1 <= len(refused) <= 3
    assert len(histories(disk)) == 1
    assert len(files(disk)) == 1 + 60 * 2 + 10 + 1
    assert told(disk) == expected(60)


class Slow(FaultyStore):
    """A service that states the digest of an object some time after it was put."""

    stated = False

    @property
    def properties(self):
        return StoreProperties(top_level="confirmed", persists=True)

    def confirm(self, receipt):
        return replace(super().confirm(receipt), level="confirmed" if self.stated else "sent")


def test_nothing_goes_before_the_service_has_stated_that_the_history_is_there():
    """ "Sent" is not enough to delete what another session wrote."""
    store = Slow(MemoryStore())
    old_sessions(store, 60)
    work = folding(store)
    store.points.clear()
    for _ in range(5):
        assert work.work(lambda: False) is False
    assert len(histories(store)) == 1
    assert not [point for point in store.points if "delete" in point]
    store.stated = True
    work.work(lambda: False)
    assert len(files(store, "journal")) < 60


def test_nothing_goes_before_a_second_listing_shows_the_history():
    """A place that has it for who asks by name, and does not list it: the next machine would not find it."""

    class Hiding(MemoryStore):
        def list(self, prefix):
            return [entry for entry in super().list(prefix) if "/history-" not in entry.name]

    store = Hiding()
    old_sessions(store, 60)
    fold(store)
    assert [name for name in store._objects if "/history-" in name]
    assert len(files(store)) == 1 + 60 * 2 + 1


def test_a_session_that_is_overtaken_while_it_folds_deletes_nothing():
    """The newer one may fold the same, and is the one to delete."""
    store = MemoryStore()

    def overtake(at):
        if at.startswith("after put") and "/history-" in at:
            take_lease(Repository(store, RUN), "ffffffff", {})

    old_sessions(store, 60)
    work = folding(FaultyStore(store, at=overtake))
    assert work.work(lambda: False) is False
    assert len(files(store)) == 1 + 60 * 2 + 1 + 1 + 1
    assert work.work(lambda: False) is False
    assert told(store) == expected(60)


@pytest.mark.parametrize("how", [lambda text: text[:-1], lambda text: b"", lambda text: text[:99] + b"~" + text[100:]])
def test_a_history_that_is_not_what_was_written_costs_nothing(how):
    """The place has kept other bytes than it was given: nothing that they were to hold is deleted, and it is told."""

    class Broken(MemoryStore):
        def put(self, name, source):
            receipt = super().put(name, source)
            if "/history-" in name:
                self._objects[name] = how(self._objects[name])
            return receipt

    store = Broken()
    old_sessions(store, 60)
    for _ in range(3):
        fold(store)
    assert len(files(store)) == 1 + 60 * 2 + 3 + 1
    (bad,) = [finding for finding in audit(Repository(store, RUN)) if finding.state != "ok"]
    assert (bad.state, f"{RUN}/{bad.file}") == ("damaged", *histories(store))
    (trouble,) = read_history(store, RUN, most=10**6).troubles
    assert "history-" in trouble


def test_a_damaged_history_is_told_and_hides_nothing_else():
    """Verify names it, the report too; what others hold is read, and folding goes on around it."""
    store = MemoryStore()
    old_sessions(store, 300)
    fold(store)
    first = min(histories(store), key=lambda name: int(name.split("-")[1]))
    store._objects[first] = store._objects[first][:-9]
    run_history = read_history(store, RUN, most=10**6)
    assert [trouble.partition(":")[0] for trouble in run_history.troubles] == [first.removeprefix(f"{RUN}/")]
    told_of = [session_history for session_history in run_history.sessions if session_history.told]
    assert len(told_of) == 300 - 17 * TOGETHER
    assert [finding.file for finding in audit(Repository(store, RUN)) if finding.state == "damaged"] == [
        first.removeprefix(f"{RUN}/")
    ]
    old_sessions(store, 100, first=301)
    fold(store)
    assert first in histories(store)
    assert len(files(store)) < 150


def test_damaged_leases_and_parts_stay_where_verify_finds_them():
    """What is not as it was written is folded by nobody."""
    store = MemoryStore()
    old_sessions(store, 60)
    bad = [f"{RUN}/lease/000003-{named(3)}.json", f"{RUN}/journal/{named(7)}-00001.jsonl"]
    for name in bad:
        store._objects[name] = store._objects[name].replace(b"1", b"2")
    fold(store)
    assert set(bad) < set(files(store))
    assert histories(store)
    found = {f"{RUN}/{finding.file}" for finding in audit(Repository(store, RUN)) if finding.state == "damaged"}
    assert found == set(bad)


def test_the_lease_of_a_session_that_has_a_checkpoint_stays(kit):
    """Older versions look for it; its journal is folded, and the lease too when the checkpoint is gone."""
    store = MemoryStore()
    early = kit.Session(store, "eeeeeeee")
    kept = early.save(1)
    early.committer.finish()
    old_sessions(store, 60, first=2)
    fold(store)
    assert [name for name in files(store) if "eeeeeeee" in name and "blobs" not in name] == [
        f"{RUN}/checkpoints/{kept.id}.json",
        f"{RUN}/lease/000001-eeeeeeee.json",
    ]
    assert fences(Repository(store, RUN))["eeeeeeee"] == 1
    Repository(store, RUN).delete_manifest(kept.id)
    old_sessions(store, 60, first=70)
    fold(store)
    assert not [name for name in files(store, "lease") if "eeeeeeee" in name]


def test_a_session_folds_by_itself_once_it_has_saved(kit):
    """Not before its first checkpoint, and not while there is something better to do."""
    store = MemoryStore()
    old_sessions(store, 60)
    session = kit.Session(store)
    assert session.committer.fold() is False
    assert not histories(store)
    session.save(1)
    session.committer.fold(lambda: True)
    assert not histories(store)
    session.committer.finish()
    assert histories(store)
    session.save(2)
    assert {finding.state for finding in audit(session.repository)} == {"ok"}


def test_checkpoints_that_the_journal_knows_are_known_from_a_history_too(kit):
    """A listing that leaves checkpoints out is still seen through when the session that committed them is folded."""
    store = MemoryStore()
    early = kit.Session(store, "eeeeeeee")
    kept = early.save(1)
    early.journal.add({"event": "SaveCommitted", "checkpoint": kept.id})
    early.committer.finish()
    old_sessions(store, 60, first=2)
    fold(store)
    del store._objects[f"{RUN}/checkpoints/{kept.id}.json"]
    assert vanished(Repository(store, RUN)) == [kept.id]
    (missing,) = [finding for finding in audit(Repository(store, RUN)) if finding.state == "missing"]
    assert kept.id in missing.file


def test_a_run_that_is_folded_while_it_is_read_is_told_whole():
    """Report, verify and copy look again where a file is gone: at each of their requests somebody folds everything."""
    disk = MemoryStore()
    old_sessions(disk, 40)
    store = FaultyStore(disk)
    told(store)
    for number in range(0, len(store.points), 7):
        fresh = MemoryStore()
        old_sessions(fresh, 40)
        for reader in (told, lambda store: {finding.state for finding in audit(Repository(store, RUN))}):
            again = MemoryStore()
            again._objects.update(fresh._objects)
            seen = []

            def at(_, seen=seen, again=again, number=number):
                seen.append(1)
                if len(seen) == number + 1:
                    fold(again)

            assert reader(FaultyStore(again, at=at)) in (expected(40), {"ok"})


def test_a_folded_run_is_copied_whole_and_again():
    """With its histories; a copy from before it was folded is taken up, and both tell the same."""
    store, target, other = MemoryStore(), MemoryStore(), MemoryStore()
    old_sessions(store, 60)
    copy_run(Repository(store, RUN), Repository(target, RUN), FakeClock())
    fold(store)
    for place in (target, other):
        copied = copy_run(Repository(store, RUN), Repository(place, RUN), FakeClock())
        assert copied.arrived
        assert told(place) == expected(60)
        assert {finding.state for finding in audit(Repository(place, RUN))} == {"ok"}
    assert files(other) == files(store)
    fold(target)
    with pytest.raises(UsageError, match="trained since"):
        copy_run(Repository(store, RUN), Repository(target, RUN), FakeClock())


def test_deleting_a_run_takes_its_histories_too():
    """Nothing of it is left for another run of the name."""
    store = MemoryStore()
    old_sessions(store, 60)
    fold(store)
    plan = plan_deletion(Repository(store, RUN))
    assert {f"{RUN}/{name}" for name in plan.files} == set(files(store))
    assert plan.others == ()


def test_sessions_and_the_last_word_are_those_of_the_whole_run():
    """`show` names every session with its host; the last word is found also where the newest sessions said nothing."""
    store = MemoryStore()
    old_sessions(store, 60)
    old_sessions(store, 40, first=61, lines=0)
    before, word = list(sessions(Repository(store, RUN))), last_record(Repository(store, RUN))
    assert word.session == named(60)
    fold(store)
    after = [each for each in sessions(unfolded(Repository(store, RUN))) if each["host"] != "now"]
    assert after == before
    assert last_record(Repository(store, RUN)) == word


FILES = [f"lease/000001-{'a' * 8}.json", *(f"journal/{'a' * 8}-0000{number}.jsonl" for number in range(3))]


@given(st.dictionaries(st.sampled_from(FILES), st.binary(max_size=50)))
def test_a_history_gives_back_the_very_bytes(files):
    """Of any files, whatever they end with."""
    text = pack(files)
    assert unpack(history_name(3, text), text) == files


def test_every_flipped_bit_of_a_history_is_noticed():
    """Also in what says which file it is."""
    text = pack(dict.fromkeys(FILES, b"some words\n"))
    name = history_name(3, text)
    for bit in range(8 * len(text)):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="digest"):
            unpack(name, bytes(damaged))


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b"\n",
        b"{}\n",
        b"[]\n\n",
        b'{"file":"lease/000001-aaaaaaaa.json","bytes":-1}\n',
        b'{"file":"lease/000001-aaaaaaaa.json","bytes":1e999}\n',
        b'{"file":"lease/000001-aaaaaaaa.json","bytes":true}\nx\n',
        b'{"file":"lease/000001-aaaaaaaa.json","bytes":99999999999999999999}\n',
        b'{"file":"../../lease/000001-aaaaaaaa.json","bytes":1}\nx\n',
        b'{"file":"checkpoints/000000000001-aaaaaaaa.json","bytes":1}\nx\n',
        b'{"file":"journal/history-000001-' + b"a" * 64 + b'.jsonl","bytes":1}\nx\n',
        b'{"file":["lease"],"bytes":1}\nx\n',
        b'{"file":"lease/000001-aaaaaaaa.json","bytes":1}\nx\n' * 2,
        b"[" * 199 + b"\n",
        b" " * 10**6,
    ],
)
def test_a_history_that_somebody_made_up_is_refused(text):
    """With the right digest in its name; nothing outside leases and the journal can be in one."""
    name = history_name(1, text)
    with pytest.raises(ValueError):
        unpack(name, text)
    store = MemoryStore()
    old_sessions(store, 3)
    store.put(f"{RUN}/journal/{name}", BytesSource(text))
    assert [finding.state for finding in audit(Repository(store, RUN)) if name in finding.file] == ["damaged"]
    assert fences(unfolded(Repository(store, RUN))) == fences(Repository(store, RUN))


def test_a_file_that_is_there_is_not_hidden_by_a_history():
    """Somebody made one up that has other words under the name of a part that was never folded."""
    store, other = MemoryStore(), MemoryStore()
    old_sessions(store, 3)
    old_sessions(other, 3)
    name = f"{RUN}/journal/{named(2)}-00001.jsonl"
    text = pack({name.removeprefix(f"{RUN}/"): other._objects[f"{RUN}/journal/{named(3)}-00001.jsonl"]})
    store.put(f"{RUN}/journal/{history_name(9, text)}", BytesSource(text))
    assert told(store) == expected(3)


def test_a_history_of_too_many_files_or_too_large_is_refused(monkeypatch):
    """What would take much memory is not taken apart."""
    text = pack({f"lease/{number:06d}-aaaaaaaa.json": b"x" for number in range(30)})
    assert len(unpack(history_name(1, text), text)) == 30
    monkeypatch.setattr("colabkeep.checkpoint.compaction.MOST_FILES", 29)
    with pytest.raises(ValueError, match="too many"):
        unpack(history_name(1, text), text)
    monkeypatch.setattr("colabkeep.checkpoint.compaction._MOST_BYTES", 100)
    store = MemoryStore()
    old_sessions(store, 3)
    store.put(f"{RUN}/journal/{history_name(1, text)}", BytesSource(text))
    (trouble,) = read_history(store, RUN).troubles
    assert "memory" in trouble
