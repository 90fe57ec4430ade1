"""Looking for generators stays within the user's own objects."""

from __future__ import annotations

import paddle

from colabkeep.frameworks.shared.streams import reachable


def test_looking_for_generators_does_not_walk_through_paddle() -> None:
    """A data set of Paddle's own, and its transforms, are a handful of objects, not the whole library."""
    transform = paddle.vision.transforms.Compose([paddle.vision.transforms.RandomHorizontalFlip()])
    assert len(list(reachable(transform))) < 20
