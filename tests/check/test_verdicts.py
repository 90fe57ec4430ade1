"""From the machine to the verdict: platform and run type, card, installed build, and what is expected of the check."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

K80, M60, P4, P100, T4 = "Tesla K80", "Tesla M60", "Tesla P4", "Tesla P100-PCIE-16GB", "Tesla T4"
V100, L4, A100, A800 = "Tesla V100-SXM2-16GB", "NVIDIA L4", "NVIDIA A100-SXM4-40GB", "NVIDIA A800-SXM4-80GB"
H100, PRO_6000 = "NVIDIA H100 80GB HBM3", "NVIDIA RTX PRO 6000 Blackwell Server Edition"
GTX_1080_TI, RTX_3090 = "NVIDIA GeForce GTX 1080 Ti", "NVIDIA GeForce RTX 3090"

TORCH_2_0 = "torch 2.0.1+cu118"  # still has K80
TORCH_2_6 = "torch 2.6.0+cu124"  # from Maxwell to Hopper
CU126 = "torch 2.10.0+cu126"  # the same, in new wheels
CU128 = "torch 2.10.0+cu128"  # from Volta to Blackwell: the notebooks' own in 2026
NEW = "torch 2.11.0+cu128"  # from Turing on
CU130 = "torch 2.12.1+cu130"  # needs a driver of 580.65 or newer
CPU = "torch 2.11.0+cpu"
PADDLE_11, PADDLE_13 = "paddle 3.3.1+cu118", "paddle 3.3.1+cu130"

# platform and run type, cards, build, verdict, code of its reason
TABLE = [
    # Colab on Google's machines: cards are drawn, others are chosen in a menu.
    ("colab", [T4], CU128, "keep", "good-card"),
    ("colab", [T4], NEW, "keep", "good-card"),
    ("colab", [L4], NEW, "keep", "good-card"),
    ("colab", [H100], NEW, "keep", "good-card"),
    ("colab", [PRO_6000], CU128, "keep", "good-card"),
    ("colab", [PRO_6000], CU126, "unusable", "no-kernels"),
    ("colab", [V100], CU128, "keep", "good-card"),
    ("colab", [V100], NEW, "switch", "no-kernels"),
    ("colab", [P100], TORCH_2_6, "keep", "good-card"),
    ("colab", [P100], CU128, "switch", "no-kernels"),
    ("colab", [K80], TORCH_2_0, "reconnect", "poor-draw"),
    ("colab", [K80], CU128, "reconnect", "poor-draw"),
    ("colab", [P4], TORCH_2_6, "reconnect", "poor-draw"),
    ("colab", [M60], TORCH_2_6, "reconnect", "poor-draw"),
    ("colab", [T4], CPU, "unusable", "cpu-build"),
    ("colab", [], CU128, "enable", "gpu-not-enabled"),
    ("colab", ["TPU"], CPU, "switch", "tpu"),
    ("colab", ["TPU"], None, "keep", "unknown-card"),
    ("colab", [T4], None, "keep", "good-card"),
    ("colab", [T4], "torch 2.11.0a0+git1234", "unusable", "cpu-build"),
    # … from `!python train.py`, where nothing can be asked of the page, but everything clicked.
    ("colab process", [K80], TORCH_2_0, "reconnect", "poor-draw"),
    ("colab process", [], CU128, "enable", "gpu-not-enabled"),
    # … Enterprise: the template says which card; nothing is drawn.
    ("colab enterprise", [T4], CU128, "keep", "good-card"),
    ("colab enterprise", [K80], TORCH_2_0, "switch", "slow-card"),
    ("colab enterprise", [P100], CU128, "switch", "no-kernels"),
    ("colab enterprise", [], CU128, "enable", "gpu-not-enabled"),
    # … and its image on a machine of one's own, whose cards are what they are.
    ("colab local", [RTX_3090], CU128, "keep", "good-card"),
    ("colab local", [K80], TORCH_2_0, "keep", "slow-card"),
    ("colab local", [GTX_1080_TI], CU128, "unusable", "no-kernels"),
    # Kaggle: the settings say which card; a restart changes nothing.
    ("kaggle", [T4, T4], CU128, "keep", "good-card"),
    ("kaggle", [P100], CU128, "switch", "no-kernels"),
    ("kaggle", [P100], CU126, "keep", "good-card"),
    ("kaggle", [P100], TORCH_2_6, "keep", "good-card"),
    ("kaggle", [PRO_6000], CU128, "keep", "good-card"),
    ("kaggle", [PRO_6000], CU126, "unusable", "no-kernels"),
    ("kaggle", [K80], TORCH_2_0, "switch", "slow-card"),
    ("kaggle", [], CU128, "enable", "gpu-not-enabled"),
    ("kaggle batch", [T4, T4], CU128, "keep", "good-card"),
    ("kaggle batch", [P100], CU128, "switch", "no-kernels"),
    ("kaggle rerun", [P100], CU128, "switch", "no-kernels"),
    ("kaggle tpu", ["TPU"], CPU, "switch", "tpu"),
    ("kaggle tpu", ["TPU"], None, "keep", "unknown-card"),
    # AI Studio: the card is chosen at the start, and Paddle is what is there.
    ("aistudio", [V100], PADDLE_11, "keep", "good-card"),
    ("aistudio", [A800], PADDLE_13, "keep", "good-card"),
    ("aistudio", [V100], PADDLE_13, "switch", "no-kernels"),
    ("aistudio", [V100], NEW, "switch", "no-kernels"),
    ("aistudio", [], PADDLE_11, "enable", "gpu-not-enabled"),
    ("aistudio", [A800], "paddle 3.3.1", "unusable", "cpu-build"),
    # Services of the table: some offer a GPU, some have none to offer.
    ("lightning", [], CU128, "enable", "gpu-not-enabled"),
    ("lightning", [P100], CU128, "switch", "no-kernels"),
    ("gradient", [P100], CU128, "unusable", "no-kernels"),
    ("codespaces", [], CPU, "keep", "no-gpu-here"),
    ("gradient", [P4], TORCH_2_6, "keep", "slow-card"),
    # One's own machine: nothing to click; the card is what there is.
    ("jupyter", [], CPU, "keep", "no-gpu-here"),
    ("jupyter", [RTX_3090], NEW, "keep", "good-card"),
    ("jupyter", [GTX_1080_TI], NEW, "unusable", "no-kernels"),
    ("script", [], CPU, "keep", "no-gpu-here"),
    ("script", [T4], CU128, "keep", "good-card"),
    ("script", [P100], CU128, "unusable", "no-kernels"),
    ("script", [P100], CU126, "keep", "good-card"),
    ("script", [K80], TORCH_2_0, "keep", "slow-card"),
    ("script", [K80], CU126, "unusable", "no-kernels"),
    ("script", [M60], CU126, "keep", "slow-card"),
    ("script", [K80, T4], CU128, "keep", "good-card"),
    ("script", [RTX_3090], CPU, "unusable", "cpu-build"),
    ("script", [("NVIDIA X1", 8192, (7, 5))], CU128, "keep", "unknown-card"),
    ("script", [("NVIDIA X1", 8192, (6, 1))], CU128, "unusable", "no-kernels"),
    ("script", [("GRID T4-8Q", 8192, (7, 5))], CU128, "keep", "good-card"),
    ("script", ["TPU"], CPU, "unusable", "tpu"),
]


def row_name(value: object) -> str | None:
    if value is None:
        return "no framework"
    if isinstance(value, list):
        return " + ".join(card if isinstance(card, str) else card[0] for card in value) or "no GPU"
    return str(value)


@pytest.mark.parametrize(("platform", "cards", "installed", "word", "code"), TABLE, ids=row_name)
def test_the_verdict_on_a_session(world, platform, cards, installed, word, code):
    """On this platform, with these cards and this build, the check says this, and says what to do about it."""
    world.install(*([] if installed is None else [installed]))
    tpus = cards.count("TPU")
    environment = world.start(platform, [card for card in cards if card != "TPU"], tpus=tpus)
    report = world.check(environment)
    told = report.to_dict()
    assert (told["platform"]["name"], told["verdict"]) == (platform.split()[0], word)
    assert told["advice"][0]["code"] == code
    assert len(told["accelerators"]) == len(cards)
    menus = report.checkup.facts.place.menus
    click = {"reconnect": menus.reconnect, "switch": menus.switch, "enable": menus.enable}.get(word, "")
    assert click is not None
    assert click.rstrip(".") in report.checkup.verdict.action
    assert not report.checkup.facts.unanswered


# cards, driver, build, verdict, code of its reason, what must be in what to do
DRIVERS = [
    (
        [T4],
        "550.54.15",
        CU130,
        "unusable",
        "driver-too-old",
        'torch==2.14.*" --index-url https://download.pytorch.org/whl/cu126',
    ),
    ([T4], "580.65.06", CU130, "keep", "good-card", ""),
    ([T4], "580.64", CU130, "unusable", "driver-too-old", "cu126"),
    ([T4], "575.57.08", NEW, "keep", "good-card", ""),
    ([T4], "535.104.05", CU128, "keep", "good-card", ""),
    ([T4], "470.256.02", CU128, "unusable", "driver-too-old", "cu118"),
    ([T4], "470.256.02", TORCH_2_0, "keep", "good-card", ""),
    ([T4], "550.54.15", "torch 2.13.0+cu129", "keep", "good-card", ""),
    ([T4], "550.54.15", CPU, "unusable", "cpu-build", "cu126"),
    ([P100], "550.54.15", CU130, "unusable", "driver-too-old", "cu126"),
    ([P100], "550.54.15", CU128, "switch", "no-kernels", ""),
    ([PRO_6000], "570.86.15", CU126, "unusable", "no-kernels", "cu129"),
    ([T4], "550.54.15", "paddle 3.3.1+cu130", "unusable", "driver-too-old", "paddlepaddle.org"),
    ([T4], "9999.1", CU130, "keep", "good-card", ""),
]


@pytest.mark.parametrize(("cards", "driver", "installed", "word", "code", "action"), DRIVERS)
def test_the_driver_is_held_against_what_is_installed(world, cards, driver, installed, word, code, action):
    """A build for a newer CUDA than the driver runs finds no GPU, and no remedy names one that it cannot run."""
    world.install(installed)
    report = world.check(world.start("kaggle", cards, driver=driver))
    assert (report.to_dict()["verdict"], report.to_dict()["advice"][0]["code"]) == (word, code)
    verdict = report.checkup.verdict
    assert action in verdict.action
    if float(driver.rpartition(".")[0] if driver.count(".") > 1 else driver) < 580.65:
        assert "whl/cu13" not in f"{verdict.reason} {verdict.action}"
    if code == "driver-too-old":
        assert driver in verdict.reason


# cards, driver, Python, build, what must be in what to do, what must not be
NOTHING_FITS = [
    (
        ["GeForce RTX 3090"],
        "418.226.00",
        "3.12.13",
        CU128,
        "needs driver 525.60",
        "they need driver 450.80 or newer",
        "pip install",
    ),
    (
        [PRO_6000],
        "470.256.02",
        "3.12.13",
        CU128,
        "needs driver 525.60",
        "they need driver 525.60 or newer",
        "pip install",
    ),
    (
        [T4],
        "470.256.02",
        "3.14.1",
        CU128,
        "needs driver 525.60",
        'in an environment with Python 3.13 run pip install --force-reinstall "torch==2.7.*"',
        "Install a build that",
    ),
    (
        [T4],
        "550.54.15",
        "3.15.0",
        CU130,
        "needs driver 580.65",
        "is 2.14 for cu126, which is made for Python 3.10 to 3.14, and this is 3.15",
        "Install a build that",
    ),
    (
        [T4],
        "550.54.15",
        "3.10.2",
        CU130,
        "needs driver 580.65",
        'torch==2.14.*" --index-url https://download.pytorch.org/whl/cu126',
        "Train on",
    ),
    (
        [T4],
        "590.44",
        "3.10.2",
        CPU,
        "stays idle",
        'torch==2.14.*" --index-url https://download.pytorch.org/whl/cu132',
        "Train on",
    ),
    (
        [T4],
        "418.226.00",
        "3.12.13",
        CPU,
        "stays idle",
        "On a machine of your own install NVIDIA's newest driver",
        "Install a build",
    ),
]


@pytest.mark.parametrize(("cards", "driver", "python", "installed", "why", "action", "never"), NOTHING_FITS)
def test_where_no_wheel_fits_none_is_named(world, cards, driver, python, installed, why, action, never):
    """A driver too old for every torch that knows the card, or a Python newer than the last it runs: no line to
    paste that would end in an error of pip's or on the CPU again, and another way out."""
    world.install(installed)
    world.python = python
    verdict = world.check(world.start("script", cards, driver=driver)).checkup.verdict
    assert verdict.word == "unusable"
    assert why in verdict.reason
    assert action in verdict.action
    assert never not in verdict.action


def test_where_no_wheel_fits_the_menu_is_the_way_out(world):
    """On a service that has another card, the click is the next step."""
    world.install(CU128)
    environment = world.start("kaggle", [T4], driver="418.226.00")
    report = world.check(environment)
    verdict = report.checkup.verdict
    assert (verdict.word, verdict.code) == ("unusable", "driver-too-old")
    assert report.checkup.facts.place.menus.switch.rstrip(".") in verdict.action
    assert "pip install" not in verdict.action


def test_the_table_has_no_row_twice():
    """Each row says something of its own."""
    rows = [(platform, str(cards), installed) for platform, cards, installed, *_ in TABLE]
    assert len(set(rows)) == len(rows)
    assert {word for *_, word, _ in TABLE} == {"keep", "reconnect", "switch", "enable", "unusable"}


def test_a_laptop_that_looks_like_a_service_is_a_laptop(world, tmp_path: Path):
    """All tokens set, and a home folder named like a platform's: nobody is sent to a menu of that platform."""
    world.install(CPU)
    tokens = ("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN", "AISTUDIO_ACCESS_TOKEN", "HF_TOKEN")
    environment = world.start("script", environ=dict.fromkeys(tokens, "secret"))
    environment.path("/home/aistudio").mkdir()
    report = world.check(environment)
    assert (report.to_dict()["platform"]["name"], report.to_dict()["verdict"]) == ("script", "keep")
    assert "secret" not in f"{report} {report.to_json()}"


@pytest.mark.parametrize(
    ("platform", "installed", "loaded", "framework"),
    [
        ("colab", [CU128, PADDLE_13], [], "torch"),
        ("colab", [CPU, PADDLE_13], [], "paddle"),
        ("colab", [CU128, PADDLE_13], ["paddle"], "paddle"),
        ("colab", [CPU, PADDLE_13], ["torch"], "torch"),
        ("aistudio", [CU128, PADDLE_13], [], "paddle"),
        ("aistudio", [CU128, "paddle 3.3.1"], [], "torch"),
    ],
)
def test_the_framework_that_will_train_is_judged(world, platform, installed, loaded, framework):
    """The one that the notebook has loaded; else one made for GPUs; else the platform's own."""
    world.install(*installed)
    environment = world.start(platform, [T4])
    environment = dataclasses.replace(environment, modules=environment.modules | set(loaded))
    facts = world.check(environment).checkup.facts
    assert facts.build is not None
    assert (facts.build.framework, len(facts.builds), facts.in_use) == (framework, 2, bool(loaded))
