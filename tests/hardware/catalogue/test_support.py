"""Has a build kernels for a card? The rule, and the official wheels."""

from __future__ import annotations

import csv
import io
import re
from itertools import product
from pathlib import Path

import pytest

from colabkeep.hardware.base import Accelerator, Build
from colabkeep.hardware.support import (
    _running_wheels,
    architectures,
    has_kernels,
    has_wheel,
    is_made_for,
    runs_on,
    supports,
    wheels_for,
    wheels_in_short,
)

TABLE = Path(__file__).resolve().parents[3] / "scripts" / "gpus.csv"
PYTHONS = {  # the Python 3 that each series of torch has wheels for, as pip lists them
    **dict.fromkeys([(1, 13), (2, 0), (2, 1)], (7, 11)),
    **dict.fromkeys([(2, 2), (2, 3), (2, 4)], (8, 12)),
    **dict.fromkeys([(2, 5), (2, 6), (2, 7), (2, 8)], (9, 13)),
    **dict.fromkeys([(2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14)], (10, 14)),
    (2, 15): (11, 15),
}
P100, T4, V100, L4, B200, PRO = (6, 0), (7, 5), (7, 0), (8, 9), (10, 0), (12, 0)


def build(codes, cuda="12.8", known_from="table"):
    known = None if codes is None else tuple(codes.split())
    return Build(framework="torch", version="2.x", cuda=cuda, architectures=known, known_from=known_from)


def card(capability, name="NVIDIA Something"):
    return Accelerator(kind="cuda", name=name, capability=capability)


@pytest.mark.parametrize(
    ("codes", "capability", "runs"),
    [
        ("sm_75", (7, 5), True),
        ("sm_60", (6, 1), True),
        ("sm_61", (6, 0), False),  # torch's own check lets this pass
        ("sm_86", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (8, 9), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),
        ("sm_100f", (10, 3), True),
        ("sm_100f", (12, 0), False),
        ("sm_103f", (10, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_87", (8, 9), False),  # a Jetson's code
        ("sm_86", (8, 7), False),  # and the other way round
        ("sm_87", (8, 7), True),
        ("sm_72", (7, 5), False),
        ("sm_110", (11, 0), True),
        ("compute_70", (7, 5), True),
        ("compute_70", (12, 0), True),
        ("compute_120", (10, 0), False),
        ("compute_60", (8, 7), True),
        ("compute_90a", (10, 0), False),
        ("compute_90a", (9, 0), True),
        ("compute_100f", (12, 0), False),
        ("sm_50 sm_60 sm_70 sm_75", (6, 1), True),
        ("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", (6, 0), False),
        ("", (7, 5), None),  # what torch says when it sees no device
        ("gfx90a", (7, 5), None),
        ("sm_80 sm_something", (7, 5), None),
        ("sm_75 sm_something", (7, 5), True),
    ],
)
def test_the_rule_of_who_runs_whose_code(codes, capability, runs):
    """Same major number and not older, or portable code that is not newer; special chips only their own."""
    assert has_kernels(codes.split(), capability) is runs


def test_a_build_for_the_cpu_supports_no_card():
    """That much is sure without a probe; a version that could not be read is not."""
    assert supports(build("", cuda=None), card(T4)) is False
    assert supports(build(None, cuda=None, known_from="unknown"), card(T4)) is None


def test_an_unknown_build_is_not_an_unusable_one():
    """Not knowing is said, so that a probe decides."""
    assert supports(build(None, known_from="unknown"), card(T4)) is None
    assert supports(build(""), card(T4)) is None


def test_whatever_is_in_it_a_toolkit_cannot_have_made_code_for_what_it_dropped():
    """A Paddle or home-made build for CUDA 13 cannot run on a V100, though its architectures are not known."""
    assert supports(build(None, cuda="13.0", known_from="unknown"), card(V100)) is False
    assert supports(build(None, cuda="12.6", known_from="unknown"), card(V100)) is None
    assert supports(build(None, cuda="12.6", known_from="unknown"), card((3, 7))) is False
    assert supports(build(None, cuda="13.0", known_from="unknown"), card(T4)) is None
    assert supports(build(None, cuda="odd", known_from="unknown"), card(V100)) is None


def test_a_card_known_by_name_needs_not_tell_its_capability():
    """Old drivers tell none; the catalogue has it."""
    assert supports(build("sm_75"), card(None, "Tesla T4")) is True
    assert supports(build("sm_75"), card(None, "Tesla K80")) is False
    assert supports(build("sm_75"), card(None, "NVIDIA Something")) is None


@pytest.mark.parametrize("kind", ["tpu", "xpu", "npu"])
def test_nothing_is_claimed_of_other_kinds(kind):
    """A Kunlun's placeholder capability makes no Ampere card of it."""
    assert supports(build("sm_86"), Accelerator(kind=kind, name="GPU", capability=(8, 6))) is None


@pytest.mark.parametrize(
    ("cuda", "hip", "nvidia", "amd"),
    [("12.8", None, True, False), (None, None, False, False), (None, "6.3", False, None)],
)
def test_the_cards_of_amd_need_a_build_for_rocm(cuda, hip, nvidia, amd):
    """A build for CUDA, or for the CPU, computes on none of them; of one for ROCm the kernels are not known."""
    made = Build(framework="torch", version="2.9.1", cuda=cuda, architectures=("sm_75",), known_from="table", hip=hip)
    assert supports(made, card(T4)) is nvidia
    assert supports(made, Accelerator(kind="rocm", name="AMD Instinct MI210")) is amd


def test_what_a_paddle_without_cuda_was_made_for_is_not_known():
    """Its version file tells of CUDA alone; one that could not be read tells nothing at all."""
    paddle = Build(framework="paddle", version="3.2.0", cuda=None, architectures=(), known_from="table")
    amd = Accelerator(kind="rocm", name="AMD Instinct MI210")
    assert is_made_for(paddle, amd) is None
    assert is_made_for(paddle, card(T4)) is False
    assert is_made_for(build(None, cuda=None, known_from="unknown"), amd) is None


@pytest.mark.parametrize(
    ("version", "capability", "runs"),
    [
        ("2.7.1+cu126", P100, True),
        ("2.8.0+cu128", P100, False),
        ("2.8.0+cu128", V100, True),  # its release notes say otherwise, the wheel has it
        ("2.8.0+cu126", P100, True),
        ("2.11.0+cu128", V100, False),  # Colab in mid-2026
        ("2.11.0+cu128", T4, True),
        ("2.10.0+cu128", P100, False),  # Kaggle since March 2026
        ("2.10.0+cu126", PRO, False),
        ("2.10.0+cu130", B200, True),
        ("2.6.0+cu118", (3, 7), True),
        ("2.6.0+cu124", (3, 7), False),
        ("2.6.0+cu124", PRO, False),
        ("2.14.1+cu126", V100, True),
        ("2.15.0+cu132", V100, False),
    ],
)
def test_the_wheels_that_notebooks_came_with(version, capability, runs):
    """The combinations that people met, without loading torch."""
    assert has_kernels(architectures(version, "x86_64"), capability) is runs


@pytest.mark.parametrize(
    "version", ["2.7.1", "2.9.0.dev20250801+cu128", "2.5.0a0+b465a58", "2.8.0+cu999", "9.9.0+cu128", "", "+", "2"]
)
def test_a_wheel_that_is_no_official_one_is_not_guessed(version):
    """Other people compile for what they choose."""
    assert architectures(version, "x86_64") is None


@pytest.mark.parametrize("release", ["2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0"])
def test_wheels_for_cuda_12_9_are_known(release):
    """They stand in an index of their own: whoever has one has kernels for a T4 and for an RTX 50, and is told so."""
    known = architectures(f"{release}+cu129", "x86_64")
    assert has_kernels(known, (7, 5)) is has_kernels(known, (12, 0)) is True


def test_wheels_for_arm_have_less_in_them():
    """The table of one processor is not applied to another."""
    assert architectures("2.9.1+cu126", "aarch64") == ("sm_80", "sm_90")
    assert architectures("2.4.0+cu121", "aarch64") is None
    assert architectures("2.9.1+cu126", "ppc64le") is None
    assert architectures("2.9.1+cu126", "") is None


def cuda_rows():
    rows = csv.DictReader(io.StringIO(TABLE.read_text(encoding="utf-8")))
    return [row for row in rows if re.fullmatch(r"\d+\.\d", row["compute_capability"])]


@pytest.mark.parametrize("row", cuda_rows(), ids=lambda row: row["name"])
def test_the_wheels_agree_with_what_is_written_of_each_card(row):
    """Last default wheel and last wheel of all, two tables that were made apart."""
    major, minor = map(int, row["compute_capability"].split("."))
    short = wheels_in_short((major, minor))
    if row["last_torch_default_linux_wheel"].startswith("current"):
        assert short == "all" or short.startswith("since")
        return
    default = re.match(r"\d+\.\d+", row["last_torch_default_linux_wheel"])[0]
    last, tag = re.match(r"(\d+\.\d+)\.\S+ \((cu\d+)", row["last_torch_any_official_linux_wheel"]).groups()
    assert short == f"to {default}; {tag} to {last}"


def test_a_student_is_told_which_wheel_to_install():
    """For an old card the last one that has it, for a new one the way up."""
    p100 = wheels_for(P100)
    install = "pip install --force-reinstall"
    assert f'{install} "torch==2.14.*" --index-url https://download.pytorch.org/whl/cu126' in p100
    assert f'{install} "torch==2.7.*" --index-url https://download.pytorch.org/whl/cu118' in wheels_for((3, 7))
    for capability in (T4, PRO):
        told = wheels_for(capability)
        assert f'{install} "torch==2.15.*" --index-url https://download.pytorch.org/whl/cu132' in told


@pytest.mark.parametrize("capability", [(3, 5), (3, 7), P100, T4, PRO, (10, 3)])
def test_what_is_advised_runs_on_that_driver_and_that_python(capability):
    """A wheel is named where there is one that both can run, and it is such a one; else the driver or the Python that
    it takes is."""
    for driver, minor in product([None, "418.40", "450.80", "525.60", "580.65", "605.1"], range(8, 17)):
        told = wheels_for(capability, driver, (3, minor))
        named = re.search(r'"torch==([\d.]+)\.\*" --index-url \S+/cu(\d+)', told)
        pythons = [PYTHONS[tuple(map(int, series.split(".")))] for series, _ in _running_wheels(capability, driver)]
        assert has_wheel(capability, driver) is (named is not None), told
        assert ("in an environment with" in told) is (
            named is not None and not any(a <= minor <= b for a, b in pythons)
        )
        if named is None:
            assert "No official torch wheel" in told
            continue
        assert runs_on(driver, f"{named[2][:-1]}.{named[2][-1]}") is not False, told
        first, last = PYTHONS[tuple(map(int, named[1].split(".")))]
        assert first <= minor <= last or f"in an environment with Python 3.{last}" in told


def test_portable_code_is_not_promised_to_cards_of_the_future():
    """A card newer than all machine code gets no wheel recommended."""
    assert wheels_for((13, 0)).startswith("No official torch wheel")
    assert wheels_in_short((13, 0)) == "none"
    assert wheels_in_short((3, 5)) == "none"
