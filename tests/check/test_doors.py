"""`colabkeep.mount()` and `colabkeep.secret()`: thin doors to what the platform has."""

from __future__ import annotations

import pytest
import torch

import colabkeep
from colabkeep.core.errors import MountError, NotPersistent, SecretError, UsageError
from colabkeep.core.system import Environment


@pytest.fixture
def at(monkeypatch):
    """Puts this process onto a machine."""

    def go(environment):
        monkeypatch.setattr(Environment, "here", classmethod(lambda _: environment))
        return environment

    return go


def train(storage):
    words = {"storage": storage, "progress": False, "flush_timeout": "3 s"}  # this mount never says what is uploaded
    with colabkeep.Run("r", model=torch.nn.Linear(1, 1), **words) as run:
        run.step()


def test_what_mount_gives_is_a_place_for_checkpoints(world, at):
    """Drive is mounted, and `storage=` takes what comes back: the checkpoint is on the machine and in Drive."""
    environment = at(world.start("colab"))
    store = colabkeep.mount(timeout="1 min")
    train(store)
    store.flush(3.0)  # copied by then; whether Drive has uploaded it, this mount does not say
    store.close()
    assert list((environment.root / "content/colabkeep-local/r/checkpoints").iterdir())
    assert list((world.folder / "drive/colabkeep/r/checkpoints").iterdir())


def test_what_mount_gives_holds_what_earlier_sessions_left(world, at, tmp_path):
    """On Kaggle the output of the last version, attached as an input, is part of the storage."""
    train(tmp_path / "output" / "colabkeep-runs")
    at(world.start("kaggle", inputs={"notebooks/me/first": tmp_path / "output"}))
    store = colabkeep.mount()
    assert [entry.name for entry in store.list("r/checkpoints")]
    store.close()


def test_a_mount_that_is_refused_says_the_next_click(world, at):
    """The platform's own error comes through."""
    at(world.start("colab", front_end="refuses"))
    with pytest.raises(MountError) as caught:
        colabkeep.mount()
    assert caught.value.remedy


def test_a_platform_without_lasting_storage_says_so(world, at):
    """Nothing that vanishes is handed out as storage."""
    environment = at(world.start("kaggle"))
    (environment.root / "kaggle/working").rmdir()
    with pytest.raises(NotPersistent) as caught:
        colabkeep.mount()
    assert caught.value.remedy


def test_a_secret_is_read_where_the_platform_keeps_it(world, at):
    """One function for all of them: the page's on Colab, the service's on Kaggle, a variable elsewhere."""
    at(world.start("colab", secrets={"TOKEN": "of colab"}))
    assert colabkeep.secret("TOKEN") == "of colab"
    at(world.start("kaggle", secrets={"TOKEN": "of kaggle"}))
    assert colabkeep.secret("TOKEN") == "of kaggle"
    at(world.start("script", environ={"TOKEN": "of mine"}))
    assert colabkeep.secret("TOKEN", timeout="5 s") == "of mine"


def test_a_secret_that_is_not_there_is_an_error_of_its_own(world, at):
    """With the name, and without any value."""
    at(world.start("script", environ={"OTHER": "hidden"}))
    with pytest.raises(SecretError) as caught:
        colabkeep.secret("TOKEN")
    assert "TOKEN" in caught.value.problem
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, None, "soon", float("nan")])
def test_a_time_limit_that_is_none_is_refused(timeout):
    """Zero would mean for ever to Colab."""
    with pytest.raises(UsageError):
        colabkeep.mount(timeout=timeout)
    with pytest.raises(UsageError):
        colabkeep.secret("TOKEN", timeout=timeout)


@pytest.mark.parametrize("platform", ["colab", "kaggle", "script"])
@pytest.mark.parametrize("name", [123, None, b"TOKEN", ["TOKEN"]], ids=repr)
def test_a_name_of_a_secret_is_a_text(world, at, platform, name):
    """Anything else is refused in the same words on every platform, and never shown: it may be the value."""
    at(world.start(platform))
    with pytest.raises(UsageError) as caught:
        colabkeep.secret(name)
    assert type(name).__name__ in caught.value.problem
    assert "123" not in str(caught.value)
