"""NVIDIA's cards, as the driver's program tells them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from colabkeep.hardware.base import Trouble
from colabkeep.hardware.catalogue import cards as catalogue
from colabkeep.hardware.nvidia import MISMATCH, find_nvidia
from tests.fakes.devices import FakeCard, fake_nvidia_smi, machine

PATIENCE = 30.0
A100 = FakeCard(name="NVIDIA A100-SXM4-40GB", memory_mib=40960, capability=(8, 0))
SLICED = FakeCard(name=A100.name, memory_mib=40960, capability=(8, 0), slices=("1g.5gb", "3g.20gb"))


@pytest.fixture
def find(tmp_path):
    """What the program tells of a machine with these cards."""

    def find(cards, *, does="answers", driver="580.82.07", **environ):
        fake_nvidia_smi(tmp_path / "usr/bin", cards, does=does, driver=driver)
        return find_nvidia(machine(tmp_path, **environ), PATIENCE)

    return find


def test_a_card_is_told_in_full(find):
    """Name, memory in bytes, memory used by whom ever, capability, identifier and driver are those of the driver."""
    (one,) = find([FakeCard(name="Tesla T4", memory_mib=15360, capability=(7, 5), used_mib=1024)])
    assert (one.kind, one.name, one.memory_bytes, one.used_bytes) == ("cuda", "Tesla T4", 15360 << 20, 1024 << 20)
    assert (one.capability, one.driver, one.found_by) == ((7, 5), "580.82.07", "nvidia-smi")
    assert one.uuid.startswith("GPU-")


@pytest.mark.parametrize("card", [card for card in catalogue() if card.kind == "cuda"], ids=lambda card: card.name)
def test_every_known_card_is_found(find, card):
    """Each card of the catalogue comes out with the name and the capability that its machine tells."""
    (one,) = find([card.name])
    assert (one.name in (card.name, *card.names), one.capability) == (True, card.capability)


def test_several_cards_keep_their_order(find):
    """Two different cards, and two equal ones with different memory in use, come in the order of their index."""
    found = find([A100, FakeCard(name="Tesla T4"), FakeCard(name="Tesla T4", used_mib=7)])
    assert [(one.name, one.used_bytes) for one in found] == [(A100.name, 0), ("Tesla T4", 0), ("Tesla T4", 7 << 20)]
    assert len({one.uuid for one in found}) == 3


def test_a_virtual_card_keeps_its_own_name(find):
    """The profile stays part of the name, for it says how much of the card there is."""
    (one,) = find([FakeCard(name="GRID T4-16Q", memory_mib=16384)])
    assert one.name == "GRID T4-16Q"


def test_a_partitioned_card_is_its_slices(find):
    """A card in MIG mode cannot be used as a whole: each slice is an accelerator, named as CUDA names it, and the
    whole card's memory is not the slice's."""
    found = find([FakeCard(name="Tesla T4"), SLICED])
    assert [one.name for one in found] == ["Tesla T4", f"{A100.name} MIG 1g.5gb", f"{A100.name} MIG 3g.20gb"]
    assert found[1].uuid.startswith("MIG-")
    assert [(one.capability, one.memory_bytes) for one in found[1:]] == [((8, 0), None)] * 2


def test_a_card_in_mig_mode_without_a_slice_is_named_with_the_way_out(find):
    """It cannot be used until it is divided, which is not the same as no card; another card is there all the same."""
    bare = FakeCard(name=A100.name, memory_mib=40960, capability=(8, 0), divisible=True)
    told = find([bare])
    assert (bare.name in told.problem, "nvidia-smi mig -cgi" in told.remedy, told.usable) == (True, True, False)
    assert [one.name for one in find([bare, FakeCard(name="Tesla T4")])] == ["Tesla T4"]


def test_memory_that_is_not_told_stays_open(find):
    """Cards that share the computer's memory say "[N/A]": that is no number, and no nonsense."""
    (one,) = find([FakeCard(name="NVIDIA GB10", memory_mib=None, capability=(12, 1))])
    assert (one.name, one.memory_bytes, one.used_bytes, one.capability) == ("NVIDIA GB10", None, None, (12, 1))


def test_old_drivers_are_asked_for_less(find):
    """A driver that does not know `compute_cap` is asked again without it, and the capability stays open."""
    (one,) = find(["Tesla K80"], does="old", driver="470.256.02")
    assert (one.name, one.capability, one.driver) == ("Tesla K80", None, "470.256.02")
    assert one.memory_bytes > 11 << 30


def test_the_users_language_does_not_matter(find):
    """The program is asked in plain English; one that answers 15.360 all the same is not believed."""
    (one,) = find(["Tesla T4"], does="localised", LANG="de_DE.UTF-8", LC_ALL="de_DE.UTF-8")
    assert (one.memory_bytes, one.capability) == (15360 << 20, (7, 5))


def test_no_devices_is_an_answer(find):
    """A driver without cards says so, and tools without a driver are what images for sessions without a GPU have."""
    assert find([]) == []
    for does in ("no driver", "no library"):
        assert find(["Tesla T4"], does=does) == []


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("mismatch", "different versions"),
        ("endless", "gave no answer"),
        ("fails", "exit code 255"),
        ("garbage", "does not answer as it should"),
        ("empty", "does not answer as it should"),
        ("truncated", "does not answer as it should"),
        ("always localised", "does not answer as it should"),
        ("lost", "does not answer as it should"),
    ],
)
def test_a_tool_in_trouble_is_told_as_such(tmp_path, does, words):
    """It is there and does not say what it should: that is not a machine without a GPU."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does=does)
    told = find_nvidia(machine(tmp_path), 2.0)
    assert isinstance(told, Trouble)
    assert words in told.problem
    assert "estart" in told.remedy
    assert (told == MISMATCH) is (does == "mismatch")


@pytest.mark.parametrize(
    "told",
    [
        {"memory_mib": int("9" * 23)},
        {"memory_mib": int("9" * 4000)},
        {"capability": (int("7" * 30), 5)},
        {"used_mib": 10**9},
        {"name": "T4" * 200},
    ],
    ids=["memory", "memory without end", "capability", "used", "name"],
)
def test_numbers_that_no_card_has_are_not_believed(find, told):
    """Digits without end are garbage too, and neither shown nor an error."""
    assert isinstance(find([FakeCard(**{"name": "Tesla T4", **told})]), Trouble)


def test_a_name_may_have_a_comma_in_it(find):
    """It makes the answer neither longer nor worthless."""
    cards = [FakeCard(name="NVIDIA Graphics Device, rev. A, 7.5"), FakeCard(name="Tesla T4")]
    for does in ("answers", "old"):
        assert [one.name for one in find(cards, does=does)] == [card.name for card in cards]


@pytest.mark.parametrize(("value", "names"), [("1", ["B"]), ("1,0", ["B", "A"]), ("0,9", ["A"]), ("0", ["A"])])
def test_only_visible_cards_count(find, value, names):
    """CUDA_VISIBLE_DEVICES decides what a framework will see, and in which order."""
    found = find([FakeCard(name="A"), FakeCard(name="B")], CUDA_VISIBLE_DEVICES=value)
    assert [one.name for one in found] == names


def test_the_program_is_found_without_a_path(tmp_path):
    """A kernel started with a shortened PATH still finds it where Colab has it; relative folders are not looked at."""
    fake_nvidia_smi(tmp_path / "opt/bin", ["Tesla T4"])
    (one,) = find_nvidia(machine(tmp_path, PATH="bin::."), PATIENCE)
    assert one.name == "Tesla T4"


def test_a_program_in_the_notebooks_folder_is_not_run(tmp_path, monkeypatch):
    """A PATH with "." in it, and a download called nvidia-smi, do not make colabkeep run the download."""
    path = fake_nvidia_smi(tmp_path / "notebook", ["Tesla T4"], does="hangs")
    monkeypatch.chdir(tmp_path / "notebook")
    assert find_nvidia(machine(tmp_path, PATH=".::notebook"), 2.0) == []
    assert not Path(f"{path}.pids").exists()


@pytest.mark.parametrize("text", ["", "not a program\n", "#!/no/such/interpreter\n"])
def test_a_file_that_is_no_program_tells_nothing(tmp_path, text):
    """A broken installation is not an error of the user's training."""
    path = fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    path.write_text(text)
    assert find_nvidia(machine(tmp_path), PATIENCE) == []


@pytest.mark.parametrize("does", ["hangs", "ignores SIGTERM", "hangs with a child", "closes and hangs"])
def test_nothing_is_left_of_a_program_that_hangs(tmp_path, does):
    """It is killed, whatever it does against it, with every process it started."""
    path = fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does=does)
    told = find_nvidia(machine(tmp_path), 2.0)
    assert "gave no answer" in told.problem
    processes = Path(f"{path}.pids").read_text().split()
    assert len(processes) == 1 + (does == "hangs with a child")
    end = time.monotonic() + PATIENCE
    while any(map(_runs, processes)) and time.monotonic() < end:
        time.sleep(0.01)  # what was killed is gone once the system has given it a moment to die
    assert [pid for pid in processes if _runs(pid)] == []


def _runs(pid: str) -> bool:
    """A killed child of a killed program is a zombie until the system reaps it."""
    try:
        os.kill(int(pid), 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
