"""A Colab machine for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from colabkeep.platforms.colab.platform import ColabPlatform
from tests.fakes.platforms.colab import FakeColab, fake_colab


@pytest.fixture
def platform() -> ColabPlatform:
    """What is tested."""
    return ColabPlatform()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a Drive that hangs is given up soon."""
    monkeypatch.setattr("colabkeep.platforms.colab.drive._PATIENCE", 0.3)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., FakeColab]]:
    """`machine(kind=…, front_end=…, …)`: a new machine, with the words of `fake_colab`; the same Drive each time."""
    with ExitStack() as stack:

        def connect(**words: Any) -> FakeColab:
            return stack.enter_context(fake_colab(tmp_path, **words))

        yield connect
