"""colab_demo: a training that is killed and goes on, wherever the notebook is run."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest

from colabkeep.checkpoint.inspect import checkpoints, find_run
from colabkeep.stores import open_store
from tests.fakes.platforms import fake_colab, fake_kaggle

pytestmark = pytest.mark.torch  # the notebook trains with it

EPOCHS, STEPS = 4, 23  # the steps of an epoch


@pytest.fixture(scope="module")
def colab(maker):
    """Machines of Colab whose Drive uploads."""

    @contextmanager
    def machines(world):
        with fake_colab(world) as machine, maker.uploading(machine.account):
            yield machine

    return machines


@pytest.fixture(scope="module")
def executed(maker, shown):
    """Executes the notebook, for some epochs, and gives what it has shown."""

    def execute(folder, machine=None, epochs=EPOCHS):
        notebook = maker.source("colab_demo")
        maker.set_parameters(notebook, EPOCHS=epochs)
        maker.execute(notebook, folder, machine)
        return shown(notebook)

    return execute


@pytest.fixture(scope="module")
def on_colab(colab, executed, tmp_path_factory):
    """A first session on Colab, which is over: the user's world, and what was shown."""
    world = tmp_path_factory.mktemp("colab")
    with colab(world) as machine:
        return world, executed(machine.environment.folder, machine)


@pytest.fixture(scope="module")
def on_laptop(executed, tmp_path_factory):
    """Executed on a machine of one's own: its folder, and what was shown."""
    folder = tmp_path_factory.mktemp("laptop")
    return folder, executed(folder)


def check_the_story(shown):
    """Killed in the middle of an epoch, gone on after it began, equal in the end, and it has learned."""
    killed = re.search(r"epoch 4, batch (\d+) of 23: KILLED", shown.by("disconnect"))
    assert killed is not None
    assert 0 < int(killed[1]) < STEPS
    assert "SIGKILL" in shown.by("disconnect")
    assert 0 < shown.went_on_from("training") <= 3 * STEPS + int(killed[1])
    assert shown.is_equal()
    accuracy = re.search(r"accuracy on 360 held-out digits: ([\d.]+)%", shown.by("best"))
    assert accuracy is not None
    assert float(accuracy[1]) > 80


def test_on_colab_the_killed_training_ends_like_the_other_one(on_colab):
    """From the mount to the own loop; and all that was kept is in the Drive, which has confirmed it."""
    world, shown = on_colab
    check_the_story(shown)
    assert "Google Colab (hosted): enable" in shown.everywhere()
    assert "confirmed by mounted://" in shown.by("own-loop")
    in_drive = checkpoints(find_run(open_store(f"mounted://{world}/drive/colabkeep"), "digits"))
    assert max(info.step for info in in_drive) == EPOCHS * STEPS


def test_on_the_next_machine_it_goes_on_from_drive(on_colab, colab, executed):
    """The machine and its disk are gone, the kernel with them; the Drive is all that is left, and it is enough."""
    world, _ = on_colab
    with colab(world) as machine:
        shown = executed(machine.environment.folder, machine, epochs=EPOCHS + 2)
    assert shown.went_on_from("training") >= EPOCHS * STEPS
    assert shown.is_equal()


def test_it_runs_unchanged_on_a_laptop(on_laptop):
    """Nothing is mounted there, and the place is told."""
    folder, shown = on_laptop
    check_the_story(shown)
    assert f"Checkpoints live in {folder}/colabkeep-runs" in shown.everywhere()


def test_running_it_again_when_it_is_through_harms_nothing(on_laptop, executed):
    """Nothing is left to kill, nothing is trained again, and the comparison holds."""
    shown = executed(on_laptop[0])
    assert "through already" in shown.by("disconnect")
    assert shown.went_on_from("training") == EPOCHS * STEPS
    assert shown.is_equal()


def test_it_runs_unchanged_on_kaggle(executed, tmp_path):
    """In the editor, with the working folder as the place."""
    with fake_kaggle(tmp_path) as machine:
        folder = machine.environment.folder
        shown = executed(folder, machine)
    check_the_story(shown)
    assert "Kaggle (interactive): enable" in shown.everywhere()
    assert f"Checkpoints live in {folder}/colabkeep-runs" in shown.everywhere()
