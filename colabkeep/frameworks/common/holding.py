"""Do the optimizers hold what the models have? One that was built before the model's last change trains what is
gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from colabkeep.vocabulary.errors import UsageError

__all__ = ["untrained"]

_NAMED = 3  # of the parameters in question
_MODEL = "model"
_AVERAGE = "ema"  # is no optimizer's to train

Parameters = Mapping[str, Sequence[tuple[str, Any]]]


def untrained(models: Parameters, held: Iterable[Any], trainable: Iterable[str]) -> str:
    """A sentence about the model's trainable parameters that no optimizer holds; empty if there are none.

    `models`: part → (name, parameter); `held`: the parameters of all optimizers; `trainable`: the names of those of the
    part "model" that ask for gradients.

    Raises:
        UsageError: there are such, and the optimizers hold others that no part of the run has.
    """
    optimized = list(held)
    ids = {id(parameter) for parameter in optimized}
    known = {id(parameter) for part, named in models.items() if part != _AVERAGE for _, parameter in named}
    own, wanted = dict(models.get(_MODEL, ())), list(trainable)
    left = [name for name in wanted if id(own[name]) not in ids]
    if not optimized or not left:
        return ""
    strangers = [parameter for parameter in optimized if id(parameter) not in known]
    if strangers:
        shapes = [f"one of shape {tuple(parameter.shape)}" for parameter in strangers]
        raise UsageError(
            problem=f"The optimizer does not train the model as it is: no optimizer holds {_few(left)}, and it holds "
            f"{_few(shapes)}, which the model does not have. A layer was replaced after the optimizer was built.",
            remedy="Build the optimizer after the last change of the model: optimizer = …(model.parameters(), …). "
            "What shall stay as it is: requires_grad_(False), or stop_gradient = True in Paddle. Parameters of "
            'another module: hand that in too, state={"head": head}.',
        )
    return (
        f"No optimizer holds {len(left)} of the model's {len(wanted)} trainable parameters ({_few(left)}): they stay "
        "as they are. If they are meant to learn, hand them to the optimizer."
    )


def _few(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
