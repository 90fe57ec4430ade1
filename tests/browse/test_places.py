"""The browser on real places: a pair, Google Drive by its API, a mounted one, another session's output."""

from __future__ import annotations

import json
import shutil

import pytest

import colabkeep
from colabkeep.checkpoint.inspect import run_names
from colabkeep.core.system import Environment
from colabkeep.stores import open_store
from colabkeep.stores.local import DirectoryStore
from tests.fakes.drive import running_drive
from tests.fakes.platforms import fake_colab, fake_kaggle


@pytest.fixture
def at(monkeypatch):
    """`at(environment)`: this process is there."""
    return lambda environment: monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))


@pytest.fixture
def pair(storage, tmp_path):
    """A pair whose both sides have all of it."""
    store = open_store((storage, tmp_path / "behind"))
    for run in ("first", "second"):
        store.sweep(run)
    assert store.flush(60)
    store.close()
    return f"{storage} + {tmp_path / 'behind'}"


def test_a_pair_is_shown_and_emptied_on_both_sides(user, pair, storage, tmp_path):
    """Both places by name; what has arrived behind is "sent"; old checkpoints, then the run, go from both."""
    him = user(pair)
    assert pair in him.page
    assert "free on the faster side" in him.page
    assert "committed sent" in him.page
    him.click("Delete old checkpoints")
    him.field("Keep newest").value = 1
    him.field("Keep best").value = 0
    him.click("Show what would go")
    him.click("Delete for good")
    for side in (storage, tmp_path / "behind"):
        assert [path.name[:12] for path in (side / "first/checkpoints").iterdir()] == ["000000000003"]
    him.click("Delete the run")
    him.field("Run's name").value = "first"
    him.click("Delete for good")
    assert him.runs == ["second"]
    for side in (storage, tmp_path / "behind"):
        assert run_names(DirectoryStore(side)) == ["second"]


@pytest.fixture
def drive(tmp_path):
    """A Drive on this machine."""
    with running_drive(tmp_path, quota_bytes=10_000_000) as server:
        yield server


def test_a_drive_is_browsed_by_its_address(user, kit, drive, monkeypatch, tmp_path):
    """Who is signed in, the room that is left, checkpoints that Google itself vouches for; verified, and deleted from
    there. The secret is on no page and in no file of the browser."""
    secret = drive.authorized_user()
    monkeypatch.setenv("COLABKEEP_DRIVE", json.dumps(secret))
    where = f"drive://colabkeep?service={drive.url}"
    for until in (1, 2, 3):
        kit.train(where, "first", until)
    him = user(where)
    assert "signed in as student@example.com" in him.page
    assert "outlives this machine" in him.page
    assert "MiB free" in him.page
    assert "committed confirmed" in him.page
    assert "(back to step 3, confirmed by drive://colabkeep" in him.page
    him.click("Verify")
    assert "all as written" in him.status
    pair = user((tmp_path / "here", where))
    assert "signed in as student@example.com" in pair.page
    assert pair.runs == ["first"]
    him.click("Sign in and mount")
    assert "Sign in with it in this session (done)" in him.page
    for value in (secret["refresh_token"], secret["client_secret"]):
        assert value not in him.markup
        assert value not in repr(him.browser)
        assert value not in repr(him.browser.walk())
    him.click("Delete the run")
    him.field("Run's name").value = "first"
    him.click("Delete for good")
    assert him.runs == []
    assert [file.name for file in drive.files() if file.size is not None and not file.trashed] == []


def test_a_drive_that_nobody_signed_in_to_is_explained(user, drive, monkeypatch):
    """Not an empty list: what is missing, and the steps to get it."""
    monkeypatch.delenv("COLABKEEP_DRIVE", raising=False)
    him = user(f"drive://colabkeep?service={drive.url}")
    assert "Nobody is signed in to Google Drive" in him.page
    assert "colabkeep auth" in him.page
    assert "3. Your own Google Drive from everywhere" in him.page


def test_on_colab_the_browser_mounts_the_drive_itself(user, kit, tmp_path, at):
    """Before: nothing can be kept, and step 2 has a button. One click asks, mounts, and lists what is on Drive."""
    with fake_colab(tmp_path) as machine:
        at(machine.environment)
        him = user("auto")
        assert "Google Drive is not mounted" in him.page
        assert "2. A storage that outlives this machine (to do)" in him.page
        assert "colabkeep.mount()" in him.page
        him.click("Mount it now")
        assert [call for call in machine.calls if call.startswith("drive.mount")]
        assert him.status.strip().startswith("Ready: checkpoints are kept in")
        assert "MyDrive/colabkeep" in him.page
        assert "no runs here" in him.page
        kit.train("auto", "on-drive", 1)
        him.click("Look again")
        assert him.runs == ["on-drive"]
        him.click("Sign in and mount")
        assert "2. A storage that outlives this machine (done)" in him.page
        assert [button.description for button in him.of("Button")].count("Mount it now") == 0


def test_a_permission_that_is_refused_is_shown_with_the_next_click(user, tmp_path, at):
    """The user said no, or closed the window: no traceback, and the button is still there."""
    with fake_colab(tmp_path, front_end="refuses") as machine:
        at(machine.environment)
        him = user("auto")
        him.click("Mount it now")
        with pytest.raises(colabkeep.ColabKeepError) as caught:
            colabkeep.mount()
        assert caught.value.problem in him.status
        assert not him.button("Mount it now").disabled


def test_what_an_earlier_kaggle_session_left_cannot_be_deleted_and_is_said_to_stay(user, kit, tmp_path, at):
    """It lies in an input that nobody can write: the run is listed again, and the way to be rid of it is told."""
    with fake_kaggle(tmp_path, run_type="Batch") as first:
        at(first.environment)
        kit.train("auto", "r", 2)
        output = first.save_version()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"my-notebook": output}) as second:
        at(second.environment)
        him = user("auto")
        assert him.runs == ["r"]
        him.click("Delete the run")
        him.field("Run's name").value = "r"
        him.click("Delete for good")
        assert "attached to this notebook: remove it there" in him.status
        assert him.runs == ["r"]
        shutil.rmtree(output)
