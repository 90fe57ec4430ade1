"""NVIDIA's cards, through the driver's library and through its program: both tell the same."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from colabkeep.hardware.base import Hidden, Trouble
from colabkeep.hardware.catalogue import cards as catalogue
from colabkeep.hardware.nvidia import NvidiaSmiFinder, NvmlFinder
from colabkeep.testing.hardware import machine
from tests.fakes.devices import FakeCard, fake_device_files, fake_nvidia_smi, fake_nvml

PATIENCE = 30.0
A100 = FakeCard(name="NVIDIA A100-SXM4-40GB", memory_mib=40960, capability=(8, 0))
SLICED = FakeCard(
    name="NVIDIA A100-SXM4-40GB", memory_mib=40960, capability=(8, 0), slices=(("1g.5gb", 4864), ("3g.20gb", 19968))
)
VIRTUAL = FakeCard(name="GRID T4-16Q", memory_mib=16384, capability=(7, 5))


@pytest.fixture
def with_smi(tmp_path):
    """What the program tells of a machine with these cards."""

    def find(cards, *, does="answers", driver="580.82.07", **environ):
        fake_nvidia_smi(tmp_path / "usr/bin", cards, does=does, driver=driver)
        return NvidiaSmiFinder().find(machine(tmp_path, **environ), timeout=PATIENCE)

    return find


@pytest.fixture
def with_nvml(tmp_path, monkeypatch):
    """What the library tells of a machine with these cards."""

    def find(cards, *, lacks=(), environ=None, **options):
        module = fake_nvml(cards, **options)
        for name in lacks:
            delattr(module, name)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        fake_device_files(tmp_path, "nvidiactl")
        return NvmlFinder().find(machine(tmp_path, **(environ or {})), timeout=PATIENCE)

    return find


def told(accelerators):
    return [(one.name, one.memory_bytes, one.used_bytes, one.capability, one.driver) for one in accelerators]


def test_a_card_is_told_in_full(with_smi, with_nvml):
    """Name, memory in bytes, memory used by whom ever, capability, identifier and driver are those of the driver."""
    card = FakeCard(name="Tesla T4", memory_mib=15360, capability=(7, 5), used_mib=1024)
    (by_smi,), (by_nvml,) = with_smi([card]), with_nvml([card])
    assert told([by_smi]) == [("Tesla T4", 15360 << 20, 1024 << 20, (7, 5), "580.82.07")]
    assert told([by_nvml]) == told([by_smi])
    assert (by_smi.kind, by_smi.uuid) == (by_nvml.kind, by_nvml.uuid) == ("cuda", by_smi.uuid)
    assert by_smi.uuid.startswith("GPU-")


@pytest.mark.parametrize("card", [card for card in catalogue() if card.kind == "cuda"], ids=lambda card: card.name)
def test_every_known_card_is_found_by_both_ways(with_smi, with_nvml, card):
    """Each card of the catalogue comes out with the name and the capability that its machine tells."""
    (by_smi,), (by_nvml,) = with_smi([card.name]), with_nvml([card.name])
    assert (by_smi.name in (card.name, *card.names), by_smi.capability) == (True, card.capability)
    assert told([by_smi]) == told([by_nvml])


def test_several_cards_keep_their_order(with_smi, with_nvml):
    """Two different cards, and two equal ones with different memory in use, come in the order of their index."""
    cards = [A100, FakeCard(name="Tesla T4"), FakeCard(name="Tesla T4", used_mib=7)]
    expected = [("NVIDIA A100-SXM4-40GB", 0), ("Tesla T4", 0), ("Tesla T4", 7 << 20)]
    for found in (with_smi(cards), with_nvml(cards)):
        assert [(one.name, one.used_bytes) for one in found] == expected
        assert len({one.uuid for one in found}) == 3


def test_a_virtual_card_keeps_its_own_name(with_smi, with_nvml):
    """The profile stays part of the name, for it says how much of the card there is."""
    assert [one.name for one in (*with_smi([VIRTUAL]), *with_nvml([VIRTUAL]))] == ["GRID T4-16Q"] * 2


def test_a_partitioned_card_is_its_slices(with_smi, with_nvml):
    """A card in MIG mode cannot be used as a whole: each slice is an accelerator, named as CUDA names it."""
    names = ["Tesla T4", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"]
    by_smi, by_nvml = with_smi([FakeCard(name="Tesla T4"), SLICED]), with_nvml([FakeCard(name="Tesla T4"), SLICED])
    assert [one.name for one in by_smi] == [one.name for one in by_nvml] == names
    assert [one.uuid for one in by_smi] == [one.uuid for one in by_nvml]
    assert by_smi[1].uuid.startswith("MIG-")
    assert [one.capability for one in by_smi] == [one.capability for one in by_nvml] == [(7, 5), (8, 0), (8, 0)]
    assert [one.memory_bytes for one in by_nvml[1:]] == [4864 << 20, 19968 << 20]
    assert [one.memory_bytes for one in by_smi[1:]] == [None, None], "the whole card's memory is not a slice's"


def test_memory_that_is_not_told_stays_open(with_smi, with_nvml):
    """Cards that share the computer's memory say "[N/A]": that is no number, and no nonsense."""
    shared = FakeCard(name="NVIDIA GB10", memory_mib=None, capability=(12, 1))
    for (one,) in (with_smi([shared]), with_nvml([shared])):
        assert (one.name, one.memory_bytes, one.used_bytes, one.capability) == ("NVIDIA GB10", None, None, (12, 1))


def test_old_drivers_are_asked_for_less(with_smi):
    """A driver that does not know `compute_cap` is asked again without it, and the capability stays open."""
    (one,) = with_smi(["Tesla K80"], does="old", driver="470.256.02")
    assert (one.name, one.capability, one.driver) == ("Tesla K80", None, "470.256.02")
    assert one.memory_bytes > 11 << 30


def test_the_users_language_does_not_matter(with_smi):
    """The program is asked in plain English; one that answers 15.360 all the same is not believed."""
    (one,) = with_smi(["Tesla T4"], does="localised", LANG="de_DE.UTF-8", LC_ALL="de_DE.UTF-8")
    assert (one.memory_bytes, one.capability) == (15360 << 20, (7, 5))
    assert isinstance(with_smi(["Tesla T4"], does="always localised"), Trouble)


def test_no_devices_is_an_answer(with_smi, with_nvml):
    """A driver without cards says so, and tools without a driver are what images for sessions without a GPU have."""
    assert with_smi([]) == with_nvml([]) == []
    for does in ("no driver", "no library"):
        assert with_smi(["Tesla T4"], does=does) == []
    for error in ("DriverNotLoaded", "LibraryNotFound"):
        assert with_nvml(["Tesla T4"], fails="nvmlInit", error=error) == []


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("mismatch", "different versions"),
        ("hangs", "gave no answer"),
        ("closes and hangs", "gave no answer"),
        ("endless", "gave no answer"),
        ("fails", "exit code 255"),
        ("garbage", "does not answer as it should"),
        ("empty", "does not answer as it should"),
        ("truncated", "does not answer as it should"),
        ("lost", "does not answer as it should"),
    ],
)
def test_a_tool_in_trouble_is_told_as_such(tmp_path, does, words):
    """It is there and does not say what it should: that is not a machine without a GPU."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does=does)
    told = NvidiaSmiFinder().find(machine(tmp_path), timeout=2.0)
    assert isinstance(told, Trouble)
    assert words in told.problem
    assert "estart" in told.remedy


def test_a_driver_that_was_updated_under_way_needs_a_new_machine(with_smi, with_nvml):
    """Both ways know the error by its number, and say that nothing but a restart helps."""
    by_smi = with_smi(["Tesla T4"], does="mismatch")
    assert by_smi == with_nvml(["Tesla T4"], fails="nvmlInit", error="LibRmVersionMismatch")
    assert "Restart the machine" in by_smi.remedy


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
def test_numbers_that_no_card_has_are_not_believed(with_smi, told):
    """Digits without end are garbage too, and neither shown nor an error."""
    assert isinstance(with_smi([FakeCard(**{"name": "Tesla T4", **told})]), Trouble)


def test_a_number_longer_than_python_reads_is_no_error(tmp_path):
    """Python refuses to read numbers of more than 4300 digits; a tool may print them."""
    path = fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    for line in (f"7.5, [N/A], GPU-1, {'9' * 5000}, 0, 580.1, Tesla T4", f"{'7' * 5000}.5, [N/A], GPU-1, 1, 0, 5, T4"):
        path.write_text(f"#!/bin/sh\necho '{line}'\n")
        assert isinstance(NvidiaSmiFinder().find(machine(tmp_path), timeout=PATIENCE), Trouble)


def test_a_name_may_have_a_comma_in_it(with_smi):
    """It makes the answer neither longer nor worthless."""
    cards = [FakeCard(name="NVIDIA Graphics Device, rev. A, 7.5"), FakeCard(name="Tesla T4")]
    for does in ("answers", "old"):
        assert [one.name for one in with_smi(cards, does=does)] == [card.name for card in cards]


def test_a_card_in_mig_mode_without_a_slice_is_named_with_the_way_out(with_smi, with_nvml):
    """It cannot be used until it is divided, which is not the same as no card."""
    bare = FakeCard(name="NVIDIA A100-SXM4-40GB", memory_mib=40960, capability=(8, 0), divisible=True)
    told = with_smi([bare])
    assert told == with_nvml([bare])
    assert (bare.name in told.problem, "nvidia-smi mig -cgi" in told.remedy, told.usable) == (True, True, False)
    for found in (with_smi([bare, FakeCard(name="Tesla T4")]), with_nvml([bare, FakeCard(name="Tesla T4")])):
        assert [one.name for one in found] == ["Tesla T4"], "the other card is there all the same"


@pytest.mark.parametrize("value", ["", "-1", "2", "0,0", "all", "nan", "GPU-dead", "NoDevFiles", "9" * 5000])
def test_cards_that_are_all_hidden_are_told_with_what_hides_them(with_smi, with_nvml, value):
    """Not a machine without cards: the variable and its value are told, whatever way it names none."""
    cards = [FakeCard(name="A"), FakeCard(name="B")]
    hidden = Hidden(variable="CUDA_VISIBLE_DEVICES", value=value, count=2)
    assert with_smi(cards, CUDA_VISIBLE_DEVICES=value) == hidden
    assert with_nvml(cards, environ={"CUDA_VISIBLE_DEVICES": value}) == hidden
    assert with_smi([], CUDA_VISIBLE_DEVICES=value) == [], "where there is no card, none is hidden"


@pytest.mark.parametrize(("value", "names"), [("1", ["B"]), ("1,0", ["B", "A"]), ("0,9", ["A"]), ("0", ["A"])])
def test_only_visible_cards_count(with_smi, with_nvml, value, names):
    """CUDA_VISIBLE_DEVICES decides what a framework will see, and in which order."""
    cards = [FakeCard(name="A"), FakeCard(name="B")]
    for found in (
        with_smi(cards, CUDA_VISIBLE_DEVICES=value),
        with_nvml(cards, environ={"CUDA_VISIBLE_DEVICES": value}),
    ):
        assert [one.name for one in found] == names


@pytest.mark.parametrize("fails", [name for name in vars(fake_nvml()) if name.startswith("nvmlDeviceGet")])
@pytest.mark.parametrize("error", ["Unknown", "GpuIsLost", "NotSupported", "FunctionNotFound"])
def test_a_library_that_fails_anywhere_tells_nothing_false(with_nvml, fails, error):
    """Whichever call fails: no card at all (the next way is asked), or the cards without what could not be told."""
    whole = with_nvml([A100])
    found = with_nvml([A100], fails=fails, error=error)
    if isinstance(found, Trouble):
        assert error in found.problem
    elif found:
        assert [one.name for one in found] == [one.name for one in whole]
        assert found[0].memory_bytes in (None, whole[0].memory_bytes)
        assert fails in ("nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo") or found == whole


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_library_that_fails_is_no_empty_machine(with_nvml, fails):
    """Failing is not the same as finding nothing."""
    assert isinstance(with_nvml(["Tesla T4"], fails=fails), Trouble)


def test_the_library_is_shut_down_again(tmp_path, monkeypatch):
    """Also after a failure: a later CUDA start of this process finds no left-over."""
    fake_device_files(tmp_path, "nvidiactl")
    for fails in ("", "nvmlDeviceGetName"):
        module = fake_nvml(["Tesla T4"], fails=fails)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        NvmlFinder().find(machine(tmp_path), timeout=PATIENCE)
        assert (module.calls[0], module.calls[-1]) == ("nvmlInit", "nvmlShutdown")


@pytest.mark.parametrize("lacks", ["nvmlMemory_v2", "nvmlDeviceGetMigMode", "NVML_DEVICE_MIG_ENABLE"])
def test_older_versions_of_the_package_do(with_nvml, lacks):
    """A package from before slices and the newer memory call still tells the cards."""
    (one,) = with_nvml([A100], lacks=[lacks])
    assert (one.name, one.memory_bytes) == (A100.name, 40960 << 20)


def test_the_package_is_left_alone_without_a_driver(tmp_path, monkeypatch):
    """On a machine without the driver's device file the package is not even imported."""
    module = fake_nvml(["Tesla T4"])
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert NvmlFinder().find(machine(tmp_path), timeout=PATIENCE) == []
    assert module.calls == []


def test_the_program_is_found_without_a_path(tmp_path):
    """A kernel started with a shortened PATH still finds it where Colab has it; relative folders are not looked at."""
    fake_nvidia_smi(tmp_path / "opt/bin", ["Tesla T4"])
    (one,) = NvidiaSmiFinder().find(machine(tmp_path, PATH="bin::."), timeout=PATIENCE)
    assert one.name == "Tesla T4"


def test_a_program_in_the_notebooks_folder_is_not_run(tmp_path, monkeypatch):
    """A PATH with "." in it, and a download called nvidia-smi, do not make colabkeep run the download."""
    path = fake_nvidia_smi(tmp_path / "notebook", ["Tesla T4"], does="hangs")
    monkeypatch.chdir(tmp_path / "notebook")
    assert NvidiaSmiFinder().find(machine(tmp_path, PATH=".::notebook"), timeout=2.0) == []
    assert not Path(f"{path}.pids").exists()


@pytest.mark.parametrize("text", ["", "not a program\n", "#!/no/such/interpreter\n"])
def test_a_file_that_is_no_program_tells_nothing(tmp_path, text):
    """A broken installation is not an error of the user's training."""
    path = fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    path.write_text(text)
    assert NvidiaSmiFinder().find(machine(tmp_path), timeout=PATIENCE) == []


@pytest.mark.parametrize("does", ["hangs", "ignores SIGTERM", "hangs with a child", "closes and hangs"])
def test_nothing_is_left_of_a_program_that_hangs(tmp_path, does):
    """It is killed, whatever it does against it, with every process it started."""
    path = fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does=does)
    assert isinstance(NvidiaSmiFinder().find(machine(tmp_path), timeout=2.0), Trouble)
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
