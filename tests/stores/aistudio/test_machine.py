"""Whatever is done to it, in whatever order, a repository on AI Studio's hub shows what the store in memory shows."""

from __future__ import annotations

import random
from functools import partial

from tests.fakes.aistudio.service import TROUBLES, USER, Fault
from tests.fakes.model import run_beside_memory


def test_a_repository_looks_as_memory_does(hub, opened):
    """Random calls, with requests that fail, or whose answer is lost, in between."""

    def trouble(seed):
        chosen = random.Random(seed)
        hub.faults = [Fault(*one, skip=chosen.randrange(3)) for one in chosen.sample(TROUBLES, 2)]

    def quiet():
        hub.faults = []

    run_beside_memory(
        lambda number: partial(opened, f"aistudio://{USER}/machine-{number}"), examples=5, trouble=trouble, quiet=quiet
    )
