"""Training stopped and resumed, for tests of Paddle's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest

from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import captured, same_bits

Parts = dict[str, Any]


@pytest.fixture
def framework() -> PaddleFramework:
    return PaddleFramework()


@pytest.fixture
def resumed() -> Callable[[Callable[[], Parts], Parts], Parts]:
    """New objects, as another session would build them, with the state of others.

    They are built in the same process, so that none of the names that Paddle generates is as it was.
    """

    def resume(make: Callable[[], Parts], before: Parts) -> Parts:
        trees = captured(PaddleFramework(), before)
        paddle.seed(99)
        parts = make()
        later = PaddleFramework()
        differences = list(later.check(parts, trees))
        assert differences == []
        later.restore(parts, trees)
        return parts

    return resume


@pytest.fixture
def continues(resumed: Any) -> Callable[..., Parts]:
    """Asserts that a training stopped and resumed in new objects ends with the same bits; returns the resumed."""

    def check(make: Callable[[], Parts], step: Callable[[Parts], None], *, steps: int = 3) -> Parts:
        paddle.seed(1)
        parts = make()
        for _ in range(steps):
            step(parts)
        later = resumed(make, parts)
        assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), parts))
        for i in range(steps or 3):
            for one in (parts, later):
                paddle.seed(i)
                step(one)
        assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), parts))
        return later

    return check
