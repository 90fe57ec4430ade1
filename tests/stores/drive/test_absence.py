"""Drive answers for some of the folders only, or they are gone: what was saved is not given up by that."""

from __future__ import annotations

import pytest
import torch
from google.auth.transport.requests import AuthorizedSession

import colabkeep
from colabkeep.core.errors import NoUsableCheckpoint
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import partial_listing


def train(storage, steps, **words):
    """Trains up to `steps` steps in all; the step that it began at."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"save_every": "1 steps", "keep_last": 1, "progress": False, "storage": storage, **words}
    with colabkeep.Run("run", model=model, optimizer=optimizer, **options) as run:
        began = run.progress.step
        for _ in run.epochs(1):
            for batch in run.batches([torch.randn(2, 4)] * 20):
                model(batch).square().mean().backward()
                optimizer.step()
                run.step()
                if run.progress.step == steps:
                    run.stop()
    return began


def ids_below(drive, *folders):
    """The ids of all files in folders of these names."""
    parents = {file.id for file in drive.files() if file.name in folders and file.size is None}
    return {file.id for file in drive.files() if file.parent in parents}


@pytest.fixture
def hand(drive):
    """The user's own, in the browser."""
    with AuthorizedSession(drive.credentials()) as session:

        def change(name, **body):
            for file in drive.files():
                if file.name == name and file.size is None:
                    answer = session.patch(f"{drive.url}/drive/v3/files/{file.id}", json=body)
                    assert answer.status_code == 200, answer.text

        yield change


@pytest.mark.parametrize("left_out", [("checkpoints", "journal"), ("checkpoints", "journal", "lease"), ()])
def test_a_second_machine_goes_on_under_partial_listings(drive, open_drive, left_out):
    """With `checkpoints` and `journal` left out of an answer, it once began at step 0 and deleted the blobs."""
    train(open_drive(), 3)
    drive.faults(partial_listing(*left_out).on(count=None))
    assert train(open_drive(), 5) == 3


def test_a_run_whose_folders_are_gone_is_refused_and_none_of_its_blobs_go(drive, open_drive, hand, monkeypatch):
    """Moved to the trash by hand, or not shown: nothing is trained, nothing deleted, and the way on is named."""
    train(open_drive(), 3)
    hand("checkpoints", trashed=True)
    hand("journal", trashed=True)
    kept = ids_below(drive, "blobs")
    store, clock = open_drive(), FakeClock()
    monkeypatch.setattr("colabkeep.core.system.SystemClock.sleep", lambda self, seconds: clock.sleep(seconds))
    with pytest.raises(NoUsableCheckpoint, match="shows no checkpoint any more") as caught:
        train(store, 5)
    assert "run/checkpoints" in caught.value.remedy
    assert ids_below(drive, "blobs") == kept
    hand("checkpoints", trashed=False)
    assert train(open_drive(), 4) == 3


def test_to_begin_anew_on_purpose_is_one_word(drive, open_drive, hand):
    """And what is left of the other one stays: only two looks far apart make it a left-over."""
    train(open_drive(), 3)
    hand("checkpoints", trashed=True)
    hand("journal", trashed=True)
    kept = ids_below(drive, "blobs")
    assert kept
    assert train(open_drive(), 3, resume="never") == 0
    assert kept <= ids_below(drive, "blobs")
