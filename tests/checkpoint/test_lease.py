"""Who writes a run: the last session that came, and nobody else for long."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.repository import Repository, fences, take_lease
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import CheckpointDamaged, RunTakenOver, StoreUnavailable
from colabkeep.core.layout import seal
from colabkeep.testing.faults import FaultyStore


def test_each_session_takes_the_next_number(kit, disk):
    """A killed session stops nobody: the next one simply outranks it."""
    numbers = [kit.Session(disk.store, name).lease.fence for name in ("cccccccc", "bbbbbbbb", "aaaaaaaa")]
    assert numbers == [1, 2, 3]
    assert fences(Repository(disk.store, kit.run)) == {"cccccccc": 1, "bbbbbbbb": 2, "aaaaaaaa": 3}


def test_a_zombie_cannot_commit_and_is_told_who_took_over(kit, disk):
    """The old notebook that still runs stops at its next save, and says where the run went on."""
    zombie = kit.Session(disk.store, "ffffffff")
    zombie.save(1)
    kit.Session(disk.store, "00000000").save(2)
    with pytest.raises(RunTakenOver) as caught:
        zombie.save(3)
    assert "00000000" in caught.value.problem
    assert "testhost" in caught.value.problem
    assert "process 42" in caught.value.problem
    assert kit.newest(disk.store)[0].manifest.progress.step == 2
    assert "000000000003-ffffffff" not in zombie.repository.ids()


def test_a_zombie_prunes_nothing(kit, disk):
    """What the new session may have gone on from is not deleted by the old one."""
    store = FaultyStore(disk.store)
    zombie = kit.Session(store, "ffffffff", keep=KeepLast(1))
    zombie.save(1)

    def take_over(point):  # in the moment between the commit and the pruning
        if point.startswith(f"after put {kit.run}/checkpoints/"):
            kit.Session(disk.store, "00000000")

    store.at = take_over
    with pytest.raises(RunTakenOver):
        zombie.save(2)
    assert len(zombie.repository.ids()) == 2


def test_of_two_that_take_the_same_number_one_goes_on(kit, disk):
    """Two machines that start in the same moment do not both believe that the run is theirs."""
    first = kit.Session(disk.store, "bbbbbbbb")
    record = seal({"session": "cccccccc", "fence": 1})
    disk.files[f"{kit.run}/lease/000001-cccccccc.json"] = record
    with pytest.raises(RunTakenOver):
        first.lease.check()
    disk.files[f"{kit.run}/lease/000001-aaaaaaaa.json"] = record
    del disk.files[f"{kit.run}/lease/000001-cccccccc.json"]
    first.lease.check()


@pytest.mark.parametrize(
    "text", [b"", b"garbage", seal({"host": 3}), b"\x80\x04."], ids=["empty", "text", "odd", "pickle"]
)
def test_the_number_counts_also_when_the_record_is_garbage(kit, disk, text):
    """A damaged lease still outranks: its number is in its name."""
    session = kit.Session(disk.store)
    disk.files[f"{kit.run}/lease/000009-bbbbbbbb.json"] = text
    with pytest.raises(RunTakenOver, match="bbbbbbbb"):
        session.lease.check()


def test_a_session_knows_whether_the_one_before_it_was_of_its_process(kit, disk):
    """Not by the number of the process alone, which a container gives again; of earlier versions it is not known."""
    here = {"pid": 1, "process": "0a1b2c3d"}
    records = [
        {"pid": 1},
        {"pid": 1},
        here,
        here,
        {"pid": 2, "process": "0a1b2c3d"},
        {"pid": 1, "process": "ffffffff"},
        here,
    ]

    def fails(point: str) -> None:
        raise StoreUnavailable(problem=f"The network is gone {point}.", remedy="Wait.")

    store = FaultyStore(disk.store)
    runs = Repository(store, kit.run)
    leases = [take_lease(runs, f"{n:08x}", record) for n, record in enumerate(records)]
    assert [lease.is_of_same_process() for lease in leases] == [False, False, False, True, False, False, False]
    calm, store.at = store.at, fails
    assert not leases[3].is_of_same_process()
    store.at = calm
    disk.files[f"{kit.run}/lease/000003-00000002.json"] = b"garbage"
    assert not leases[3].is_of_same_process()


def test_strange_files_in_the_lease_folder_are_not_leases(kit, disk):
    """What is not named like a lease counts for nothing."""
    session = kit.Session(disk.store)
    for name in (
        "desktop.ini",
        "000009-bbbbbbbb.json.tmp",
        "9-bbbbbbbb.json",
        "000009-BBBBBBBB.json",
        "x/000009-bbbbbbbb.json",
    ):
        disk.files[f"{kit.run}/lease/{name}"] = b""
    session.lease.check()


def test_a_number_that_no_session_can_have_is_not_outbid(kit, disk):
    """A planted record with the highest number is reported; the run does not go on in an order that cannot be kept."""
    disk.files[f"{kit.run}/lease/999999999999-bbbbbbbb.json"] = b""
    with pytest.raises(CheckpointDamaged, match="999999999999") as caught:
        take_lease(Repository(disk.store, kit.run), "aaaaaaaa", {})
    assert "lease/" in caught.value.remedy
