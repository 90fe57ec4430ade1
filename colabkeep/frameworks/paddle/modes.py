"""Paddle's two ways to compute. Only the dynamic one has steps that can be counted and resumed."""

from __future__ import annotations

import paddle

from colabkeep.vocabulary.errors import UsageError

__all__ = ["refuse_static_mode"]


def refuse_static_mode() -> None:
    """Refuse to train where batches are fed to a program.

    Raises:
        UsageError: Paddle is in static graph mode.
    """
    if not paddle.in_dynamic_mode():
        raise UsageError(
            problem="Paddle is in static graph mode, where batches are fed to a program by name: their order "
            "cannot be kept from session to session.",
            remedy="Call paddle.disable_static() before the model and the DataLoader are made.",
        )
