"""Precision and memory: what a card is advised to train in, and what fits into it."""

from __future__ import annotations

import pytest

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.catalogue import MODES, advised_precision, cards, largest_model, sixteen_bit, usable_bytes

GIB = 2**30


def word(kind="cuda", name="NVIDIA Something", **facts):
    return advised_precision(Accelerator(kind=kind, name=name, **facts)).word


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((3, 7), "32-true"),
        ((6, 0), "32-true"),
        ((6, 1), "32-true"),
        ((7, 0), "16-mixed"),
        ((7, 5), "16-mixed"),
        ((8, 0), "bf16-mixed"),
        ((8, 9), "bf16-mixed"),
        ((12, 0), "bf16-mixed"),
        (None, "32-true"),
    ],
)
def test_each_generation_trains_in_what_it_does_best(capability, expected):
    """32 bits before tensor cores, fp16 on the first two generations that have them, bf16 from Ampere on."""
    assert word(capability=capability) == expected


def test_bf16_on_a_t4_is_warned_of():
    """torch says that it is supported, and it is many times slower."""
    text = advised_precision(Accelerator(kind="cuda", name="Tesla T4", capability=(7, 5))).text
    assert "scaler" in text
    assert "is_bf16_supported" in text


def test_other_kinds_are_not_taken_for_nvidia_cards():
    """A Kunlun's placeholder capability counts for nothing; a TPU computes in bf16."""
    assert word(kind="xpu", name="GPU", capability=(8, 6), memory_bytes=96 * GIB) == "32-true"
    assert word(kind="rocm", name="AMD Instinct MI210") == "32-true"
    assert word(kind="tpu", name="TPU v5 lite") == "bf16-mixed"
    assert word(kind="npu", name="Ascend910B2") == "bf16-mixed"
    assert word(kind="npu", name="Ascend 310") == "32-true"


def test_what_sixteen_bits_are_good_for_is_said_of_every_card():
    """The four kinds there are."""
    kinds = {card.name: sixteen_bit(card) for card in cards()}
    assert kinds["Tesla P100-PCIE-16GB"] == "saves memory"
    assert kinds["Tesla T4"] == "fp16"
    assert kinds["L4"] == "bf16, fp16"
    assert kinds["TPU v5e-1"] == "bf16"


def mode(name):
    return next(mode for mode in MODES if mode.name == name)


def test_mixed_precision_does_not_shrink_weights_and_optimizer():
    """Adam in mixed precision takes more per parameter than in 32 bits, not half."""
    assert mode("Adam, 16-bit mixed").bytes_per_parameter > mode("Adam, 32 bit").bytes_per_parameter == 16


def test_what_fits_leaves_room_for_cuda_and_for_fragments():
    """A gibibyte is gone before the first weight, and a tenth is never to be had."""
    assert largest_model(11 * GIB, mode("inference, 16 bit")) == int((9.9 - 1) * GIB / 2)
    assert largest_model(GIB, mode("inference, 16 bit")) == 0
    assert largest_model(0, mode("Adam, 32 bit")) == 0


def test_bert_large_fits_a_t4_and_a_model_of_a_billion_does_not():
    """What people found out the hard way, with Adam in mixed precision."""
    t4 = next(card for card in cards() if card.name == "Tesla T4")
    fits = largest_model(usable_bytes(t4), mode("Adam, 16-bit mixed"))
    assert 335e6 < fits < 1e9


def test_no_card_has_the_memory_it_is_sold_with():
    """What a framework gets is less than the label, on every GPU."""
    for card in cards():
        if card.kind == "cuda":
            assert 0 < usable_bytes(card) < card.memory_gib * GIB, card.name
