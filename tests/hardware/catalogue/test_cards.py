"""The catalogue: made of the table that people write, and found again by the names that machines tell."""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path

import pytest

import colabkeep.hardware.catalogue
from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.catalogue import cards, find_card

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "make_cards.py"


@pytest.fixture(scope="module")
def make_cards():
    """The script that makes the package's data."""
    spec = importlib.util.spec_from_file_location("make_cards", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table(make_cards):
    return list(csv.DictReader(io.StringIO(make_cards.TABLE.read_text(encoding="utf-8"))))


def cuda(name, mib=None, capability=None):
    memory = None if mib is None else mib << 20
    return Accelerator(kind="cuda", name=name, memory_bytes=memory, capability=capability)


def found(name, mib=None, capability=None):
    card = find_card(cuda(name, mib, capability))
    return None if card is None else card.name


def test_the_shipped_catalogue_is_what_the_script_makes_of_the_table(make_cards):
    """Nobody edits the JSON by hand: a number in the package is a number in the table with its source."""
    shipped = Path(colabkeep.hardware.catalogue.__file__).with_name("cards.json").read_text(encoding="utf-8")
    assert shipped == make_cards.cards_text(make_cards.TABLE.read_text(encoding="utf-8"))


def test_every_card_has_its_sources_and_how_sure_they_are():
    """Each number can be traced, and a doubtful one is known to be so."""
    assert len(cards()) > 40
    for card in cards():
        assert card.source, card.name
        assert card.confidence.split()[0] in ("high", "medium", "low"), card.name


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("4.37 (boost; 2.8 base)", 4.37),
        ("117-126", 117.0),
        ("about 96", 96.0),
        ("22.4 approx", 22.4),
        ("180 (bf16, whole board)", 180.0),
        ("0", 0.0),
        ("", None),
        ("n/a", None),
        ("same as fp32", None),
    ],
)
def test_a_number_is_read_out_of_what_people_wrote(make_cards, cell, number):
    """Of a range the lower end, so that nothing is promised; of a cell without a number nothing."""
    assert make_cards.number(cell) == number


def test_what_is_not_known_is_not_a_no(make_cards):
    """An unknown capability stays unknown."""
    assert [make_cards.flag(cell) for cell in ("yes (claimed)", "no (HF32 instead)", "unknown", "")] == [
        True,
        False,
        None,
        None,
    ]


def test_memory_of_a_range_and_of_a_card_that_nobody_measured(make_cards):
    """As nvidia-smi tells it, drivers differing; else as it is sold."""
    assert make_cards.total_mib({"nvidia_smi_total_MiB": "16280-16384", "memory_GiB_nominal": "16"}) == [16280, 16384]
    assert make_cards.total_mib({"nvidia_smi_total_MiB": "", "memory_GiB_nominal": "16-32"}) == [16384, 32768]


def test_every_name_in_the_table_finds_its_own_card(table):
    """Whatever string a machine tells for a card with its memory, the catalogue knows it."""
    for card in cards():
        told = Accelerator(
            kind=card.kind,
            name=card.names[0],
            memory_bytes=card.total_mib[1] << 20,
            capability=card.capability,
        )
        assert find_card(told) == card
    assert [card.name for card in cards()] == [row["name"] for row in table]


@pytest.mark.parametrize(
    ("name", "mib", "card"),
    [
        ("Tesla T4", 15360, "Tesla T4"),
        ("Tesla T4", 15109, "Tesla T4"),
        ("Tesla T4", 15079, "Tesla T4"),
        ("Tesla T4", None, "Tesla T4"),
        ("NVIDIA T4", 15360, "Tesla T4"),
        ("NVIDIA Tesla T4", 15360, "Tesla T4"),
        ("tesla t4", 15094, "Tesla T4"),
        ("Tesla P100-PCIE-16GB", 16280, "Tesla P100-PCIE-16GB"),
        ("Tesla P100-SXM2-16GB", 16280, "Tesla P100-PCIE-16GB"),
        ("Tesla V100-SXM2-16GB", 16160, "Tesla V100-SXM2-16GB"),
        ("Tesla V100-SXM2-16GB", 32480, "Tesla V100-SXM2-32GB"),
        ("Tesla V100-SXM2", 32510, "Tesla V100-SXM2-32GB"),
        ("Tesla V100-PCIE-32GB", None, "Tesla V100-SXM2-32GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB"),
        ("NVIDIA A800 80GB PCIe", 81920, "A800-80GB"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe 80GB"),
        ("NVIDIA H200", 143771, "H200 SXM 141GB"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA A10G", 23028, "A10G"),
        ("TITAN RTX", 24220, "Titan RTX"),
        ("GeForce RTX 2080 Ti", 11019, "GeForce RTX 2080 Ti"),
        ("NVIDIA GeForce GTX 1060 6GB", 6078, "GeForce GTX 1060 6GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX PRO 6000 Blackwell Server Edition"),
        ("GRID T4-16Q", 16384, "Tesla T4"),
        ("GRID T4-2B4", 2048, "Tesla T4, vGPU with 2 of 16 GB"),
        ("GRID T4-8Q", 8192, "Tesla T4, vGPU with 8 of 16 GB"),
        ("NVIDIA A100-40C", 40960, "A100-40GB"),
        ("NVIDIA A100-10C", 10240, "A100-40GB, vGPU with 10 of 40 GB"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA GeForce RTX 5070", 12227, "GeForce RTX 5070"),
        ("NVIDIA GB10", None, "GB10 (DGX Spark)"),
        ("NVIDIA GB10", 122570, "GB10 (DGX Spark)"),
        ("NVIDIA B300 SXM6 AC", 275040, "B300"),
        ("G4", None, "RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_a_card_is_found_by_its_name_and_its_memory(name, mib, card):
    """With and without the maker's name, in each shape of board, whatever the driver's total is."""
    assert found(name, mib) == card


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("NVIDIA L40", 46068),
        ("NVIDIA GeForce RTX 5070 Ti", 16303),
        ("NVIDIA GB200", 189471),
        ("NVIDIA A10", 23028),
        ("NVIDIA A100X", 81920),
        ("RTX T400", 4096),
        ("NVIDIA T400 4GB", 4096),
        ("NVIDIA T4G", 15360),
        ("NVIDIA GeForce RTX 2080 SUPER", 8192),
        ("NVIDIA GeForce RTX 3090 Ti", 24576),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
        ("NVIDIA RTX 6000 Ada Generation", 49140),
        ("NVIDIA GeForce GTX 1060 3GB", 3019),
        ("Tesla P100-PCIE-12GB", 12198),
        ("NVIDIA GH200 480GB", 97871),
        ("NVIDIA", 15360),
        ("GPU", 98304),
        ("", None),
        ("[Not Supported]", None),
        ("\x1b[31mT4\x00 |||", 15360),
    ],
)
def test_a_card_with_a_similar_name_is_not_taken_for_another(name, mib):
    """An L40 is no L4, an A10 no A10G, 12 GB no 16: better no advice than that for another card."""
    assert found(name, mib) is None


def test_a_device_whose_capability_does_not_fit_is_another():
    """A name alone is no proof."""
    assert found("Tesla T4", 15360, (7, 5)) == "Tesla T4"
    assert found("Tesla T4", 15360, (8, 6)) is None


def test_a_kunlun_card_is_not_taken_for_an_ampere_one():
    """Its placeholder name "GPU" with capability 8.6 says nothing; its memory tells which it is."""
    p800 = Accelerator(kind="xpu", name="GPU", memory_bytes=96 << 30)
    assert find_card(p800).name == "Kunlun P800"
    assert find_card(Accelerator(kind="cuda", name="GPU", memory_bytes=96 << 30, capability=(8, 6))) is None
    assert find_card(Accelerator(kind="npu", name="Ascend 910B")).name.startswith("Ascend 910B")
    assert find_card(Accelerator(kind="tpu", name="TPU v5 lite", memory_bytes=16 << 30)).name == "TPU v5e-1"


def test_a_slice_of_a_card_counts_for_its_share():
    """One seventh of an A100 is not sold to anybody as an A100."""
    whole = find_card(cuda("NVIDIA A100-SXM4-40GB", 40960))
    slice_ = find_card(cuda("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, (8, 0)))
    assert slice_.name == "A100-40GB, slice 1g.5gb"
    assert slice_.memory_gib == 5
    assert slice_.tensor_tflops == pytest.approx(whole.tensor_tflops / 7)
    assert slice_.bandwidth_gb_s == pytest.approx(whole.bandwidth_gb_s / 8)
    assert slice_.capability == whole.capability
    assert slice_.free == ()
    double = find_card(cuda("NVIDIA A100 80GB PCIe MIG 1c.2g.20gb"))
    assert double.fp32_tflops == pytest.approx(19.5 / 7)
    assert double.bandwidth_gb_s == pytest.approx(2039 / 4)
    quarter = find_card(cuda("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb"))
    assert quarter.fp32_tflops == pytest.approx(117 / 4)


def test_a_part_of_a_card_that_is_lent_to_a_virtual_machine_is_not_a_whole_one():
    """Half of the memory, and half of the time: it is neither twice as large nor as fast as what came."""
    whole, half = find_card(cuda("GRID T4-16Q", 16384)), find_card(cuda("GRID T4-8Q", 8192, (7, 5)))
    assert whole == find_card(cuda("Tesla T4", 15360))
    assert (half.memory_gib, half.usable_gib, half.free) == (8, None, ())
    assert half.tensor_tflops == pytest.approx(whole.tensor_tflops / 2)
    assert half.bandwidth_gb_s == pytest.approx(whole.bandwidth_gb_s / 2)
