"""Training stopped and resumed, for tests of torch's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits

Parts = dict[str, Any]


@pytest.fixture
def framework() -> TorchFramework:
    return TorchFramework()


@pytest.fixture
def resumed() -> Callable[[Callable[[], Parts], Parts], Parts]:
    """New objects, as another session would build them, with the state of others."""

    def resume(make: Callable[[], Parts], before: Parts) -> Parts:
        trees = captured(TorchFramework(), before)
        torch.manual_seed(99)
        parts = make()
        later = TorchFramework()
        assert list(later.check(parts, trees)) == []
        later.restore(parts, trees)
        return parts

    return resume


@pytest.fixture
def continues(resumed: Any) -> Callable[..., Parts]:
    """Asserts that a training stopped and resumed in new objects ends with the same bits; returns the resumed."""

    def check(make: Callable[[], Parts], step: Callable[[Parts], None], *, steps: int = 3) -> Parts:
        torch.manual_seed(1)
        parts = make()
        for _ in range(steps):
            step(parts)
        later = resumed(make, parts)
        assert same_bits(captured(TorchFramework(), later), captured(TorchFramework(), parts))
        for i in range(steps):
            for one in (parts, later):
                torch.manual_seed(i)
                step(one)
        assert same_bits(captured(TorchFramework(), later), captured(TorchFramework(), parts))
        return later

    return check
