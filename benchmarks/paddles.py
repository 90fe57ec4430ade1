"""The loop and the saves of a Paddle training, against a loop by hand and a bare copy of the state."""

from __future__ import annotations

from measuring import Figure, Setting
from paddle_loop import small_cnn
from paddle_saving import saves

import tests.trainings.paddle


def run(setting: Setting) -> list[Figure]:
    """With one thread."""
    tests.trainings.paddle.one_thread()
    return [*small_cnn(setting), *saves(setting)]
