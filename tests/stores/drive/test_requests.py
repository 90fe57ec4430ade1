"""What a session asks of Drive and sends there is little."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import colabkeep
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.testing.clock import FakeClock
from tests.fakes.runs import filled, resumed


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 1), (60.0, 2)], ids=["at once", "in minutes"])
def test_opening_a_run_lists_no_folder_twice_unless_it_takes_long(open_drive, watch, monkeypatch, seconds, most):
    """Where reading the checkpoint takes so long that what was seen before is out of date, once more."""
    filled(open_drive(), 12)
    clock = FakeClock()
    store = open_drive(clock=clock)
    real = store.get

    def slow(name):
        if "/blobs/" in name:
            clock.advance(seconds)
        return real(name)

    monkeypatch.setattr(store, "get", slow)
    traffic = watch()
    resumed(store, KeepLast(None))
    asked = Counter(seen.query["q"] for seen in traffic.all("GET") if "q" in seen.query)
    assert 1 <= max(asked.values()) <= most
    assert len(asked) <= 1 + 7


def test_a_save_lists_each_folder_once(open_drive, watch):
    """What else there is in the run, whether another session has come, which names are taken: each folder alone, for
    a listing of several may leave some out, and none twice."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    filled(store, 12)
    save = resumed(store, KeepLast(None))
    save(100)
    clock.advance(60)
    traffic = watch()
    save(101)
    asked = [seen.query["q"] for seen in traffic.all("GET") if "q" in seen.query]
    assert len(asked) == len(set(asked)) <= 7
    assert max(query.count("in parents") for query in asked) == 1


@pytest.fixture
def trained(drive, open_drive, watch):
    """Saves a model of 8 equal layers, 6 of them frozen, after two steps, and again after one without an update; the
    traffic of each save."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 128) for _ in range(8)]
    for layer in layers[:6]:
        layer.requires_grad_(False)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    words = {"storage": open_drive(), "save_every": None, "progress": False}
    with colabkeep.Run("frozen", model=model, optimizer=optimizer, **words) as run:
        for _ in run.epochs(1):
            for number, batch in run.enumerate([torch.randn(4, 128)] * 4):
                if number < 2:
                    model(batch).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                run.step()
                if number == 3:  # the last one of an epoch is saved with its end
                    break
                traffic = watch()
                run.save(wait=True)
                seen.append((traffic.carried, [(one.name, one.size) for one in traffic.files()]))
    return seen


def test_what_is_frozen_is_sent_once(trained):
    """Of a model of which 6 of 8 layers are frozen, the second save sends at most 30 % of the first one's bytes."""
    (first, _), (second, _), _ = trained
    assert 0 < second <= 0.3 * first


def test_a_save_of_what_drive_has_sends_only_its_manifest(trained):
    """No tensor has changed since: beside the manifest there is only the journal's next part, and no blob."""
    _, _, (sent, files) = trained
    assert sorted(name.rpartition(".")[2] for name, _ in files) == ["json", "jsonl"]
    assert sent == sum(size for _, size in files)
