"""colab_demo: a training that is killed and goes on, on Colab. On a laptop: test_kernel_killed.py."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest

from colabkeep.checkpoint.inspect import checkpoints, find_run
from colabkeep.stores import open_store
from tests.fakes.platforms import fake_colab

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


def test_on_colab_the_killed_training_ends_like_the_other_one_and_the_next_machine_goes_on(on_colab, colab, executed):
    """From the mount to the own loop; and all that was kept is in the Drive, which has confirmed it. When the machine
    and its disk are gone, the kernel with them, the Drive is all that is left, and it is enough."""
    world, shown = on_colab
    check_the_story(shown)
    assert "Google Colab (hosted), no GPU: turn one on" in shown.everywhere()
    assert "confirmed by mounted://" in shown.by("own-loop")
    in_drive = checkpoints(find_run(open_store(f"mounted://{world}/drive/colabkeep"), "digits"))
    assert max(info.step for info in in_drive) == EPOCHS * STEPS
    with colab(world) as machine:
        shown = executed(machine.environment.folder, machine, epochs=EPOCHS + 2)
    assert shown.went_on_from("training") >= EPOCHS * STEPS
    assert shown.is_equal()
