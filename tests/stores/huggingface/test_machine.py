"""Whatever is done to it, in whatever order, a repository on the Hub shows what the store in memory shows."""

from __future__ import annotations

import random
from functools import partial

import pytest

from colabkeep.stores.hub import huggingface as door
from tests.fakes.hub import TROUBLES, Fault
from tests.fakes.model import run_beside_memory

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.mark.parametrize("at_most_in_memory", [12 * 2**20, 20], ids=["read at once", "streamed"])
def test_a_repository_looks_as_memory_does(hub, opened, monkeypatch, at_most_in_memory):
    """Random calls, with requests that fail, or whose answer is lost, in between."""
    monkeypatch.setattr(door, "_IN_MEMORY", at_most_in_memory)

    def trouble(seed):
        chosen = random.Random(seed)
        picked = chosen.sample(TROUBLES, 2)
        hub.faults = [Fault(*one, skip=chosen.randrange(3)) for one in picked]

    def quiet():
        hub.faults = []

    run_beside_memory(
        lambda number: partial(opened, f"hf://ada/machine-{number}"), examples=10, trouble=trouble, quiet=quiet
    )
