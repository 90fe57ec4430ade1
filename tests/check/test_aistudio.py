"""What the check says on Baidu AI Studio: in Paddle's words, and of what the next start does to files and packages."""

from __future__ import annotations

import pytest

from colabkeep.ui.check import facts as facts_module

V100, A800 = "Tesla V100-SXM2-16GB", "NVIDIA A800-SXM4-80GB"
PADDLE_11, PADDLE_13 = "paddle 3.3.1+cu118", "paddle 3.3.1+cu130"


def lines(report):
    return {line.code: line for line in report.checkup.advice}


def advised(report):
    """The record without its facts of the machine, where every package that is installed stands."""
    return {name: told for name, told in report.to_dict().items() if name != "machine"}


@pytest.fixture
def studio(world):
    """Starts an environment of AI Studio with these packages and cards; and its report."""

    def start(installed, cards=(), **more):
        world.install(*installed)
        environment = world.start("aistudio", cards, **more)
        return environment, world.check(environment)

    return start


@pytest.mark.parametrize(
    ("card", "build", "precision", "word"),
    [(V100, PADDLE_11, "16-mixed", "precision-fp16"), (A800, PADDLE_13, "bf16-mixed", "precision-bf16")],
)
def test_a_machine_with_paddle_alone_is_advised_in_paddle_s_words(studio, card, build, precision, word):
    """The verdict, the precision, and no function of a torch that is not there."""
    _, report = studio([build], [card])
    assert report.to_dict()["verdict"] == "keep"
    assert f'precision="{precision}"' in str(report)
    assert "paddle.amp.is_bfloat16_supported()" in lines(report)[word].text
    assert "torch" not in f"{report} {advised(report)}"


def test_two_cards_are_told_apart_in_paddle_s_words(studio):
    """How another one is chosen."""
    _, report = studio([PADDLE_11], [V100, V100, A800])
    told = lines(report)
    assert 'paddle.set_device("gpu:1")' in told["second-gpu-idle"].text
    assert "cuda:1" not in str(report)


def test_where_nothing_is_installed_paddle_is_advised(studio):
    """Nobody is sent to install what AI Studio refuses."""
    _, report = studio([], [V100])
    assert "PaddlePaddle" in lines(report)["no-framework"].text
    assert "pip install torch" not in str(report)


def test_where_torch_would_train_it_is_told_what_it_is_made_for(studio):
    """With the date; nothing is forbidden, and those who got it to run are not warned each time."""
    _, report = studio(["torch 2.10.0+cu128"], [A800])
    assert "2023" in lines(report)["torch-refused"].text
    assert not lines(report)["torch-refused"].warns
    assert "torch-refused" not in lines(studio([PADDLE_13], [A800])[1])


def test_packages_that_the_next_start_deletes_are_told_with_the_cell_that_helps(studio, monkeypatch):
    """Only external-libraries stays; a colabkeep from there is not warned of, nor is one on another service."""
    monkeypatch.setattr(facts_module, "_INSTALLED_IN", "/opt/conda/lib/python3.10/site-packages")
    environment, report = studio([PADDLE_11], [V100])
    libraries = str(environment.path("/home/aistudio/external-libraries"))
    told = lines(report)["packages-lost"]
    assert told.warns
    assert f'import sys; sys.path.append("{libraries}"); %pip install -q -t {libraries} colabkeep' in told.text
    assert "/opt/conda/lib/python3.10/site-packages" in told.text


@pytest.mark.parametrize("below", ["", "/lib/python3.10/site-packages"])
def test_packages_that_stay_are_no_news(world, monkeypatch, below):
    """Installed with -t, or as by `pip install --prefix`."""
    world.install(PADDLE_11)
    environment = world.start("aistudio", [V100])
    libraries = environment.path("/home/aistudio/external-libraries")
    monkeypatch.setattr(facts_module, "_INSTALLED_IN", f"{libraries}{below}")
    assert "packages-lost" not in lines(world.check(environment))
    assert "packages-lost" not in lines(world.check(world.start("kaggle", [V100])))


def test_a_large_work_folder_is_told_before_a_start_fails(world):
    """All of it is copied at each start. What is known of a limit is told with its date, what is hearsay as such."""
    world.install(PADDLE_11)
    environment = world.start("aistudio", [V100])
    assert "storage-copied-at-start" not in lines(world.check(environment))
    place = environment.path("/home/aistudio/work/data")
    place.mkdir()
    for number in range(2):
        with (place / str(number)).open("wb") as file:
            file.truncate(6 * 2**30)  # holes: nothing is written
    told = lines(world.check(environment))["storage-copied-at-start"]
    for file in place.iterdir():
        file.unlink()  # else the stop would copy it
    assert told.warns
    assert "12.0 GiB" in told.text
    assert "half of 35 GB" in told.text
    assert "100 GB that are often named have no source" in told.text


def test_very_many_files_are_counted_in_part(world, monkeypatch):
    """A check ends; what was counted by then is told."""
    world.install(PADDLE_11)
    environment = world.start("aistudio", [V100])
    monkeypatch.setattr(facts_module, "_MANY_FOLDERS", 2)
    for number in range(8):
        folder = environment.path(f"/home/aistudio/work/{number}")
        folder.mkdir()
        (folder / "file").write_bytes(b"1234")
    assert 0 < world.check(environment).checkup.facts.copied_bytes < 8 * 4


def test_the_hours_of_the_compute_card_are_told_as_what_they_are(world):
    """What a GPU costs is in the click; the figures are old, from users, and said to be so."""
    environment = world.start("aistudio")
    world.install(PADDLE_11)
    report = world.check(environment)
    assert "hours of the compute card" in str(report)
    assert "hearsay" in report.checkup.facts.session.source


def test_what_cannot_be_reached_is_never_proposed(studio):
    """Google is out of reach from there: no line of the check names its services."""
    for installed, cards in (([PADDLE_11], [V100]), ([], []), (["torch 2.10.0+cu128"], [A800])):
        _, report = studio(installed, cards)
        assert "google" not in f"{report} {advised(report)}".lower()
        assert "drive" not in str(report).lower().replace("driver", "")
