"""What moves a run's parts and was not handed in: a scheduler, or one more optimizer, of which no checkpoint knows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.walk import reachable
from colabkeep.frameworks.torch.state.places import Places

__all__ = ["TorchUnseen"]

_SCHEDULER = (
    "A scheduler ({kind}) of this run's optimizer was not handed in. No checkpoint holds how far it is, so "
    'in a resumed session it begins anew. Write: scheduler=…; or, for one more, state={{"warm_up": …}}.'
)
_OPTIMIZER = (
    "{trained} is trained by an optimizer ({kind}) that was not handed in. No checkpoint holds its state, so in a "
    'resumed session it begins anew. Write: optimizer=…; or, for one more, state={{"optimizer_d": …}}.'
)


class TorchUnseen:
    """Listens from now on which optimizers step. Called when the first step of a session is done, it stops, looks for
    schedulers, and gives a sentence for each. The collector is asked who refers to the optimizers, which looks at all
    objects once, and once more where something was found: 35 ms each with torch, matplotlib and scikit-learn imported.
    """

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = dict(parts)
        self._stepped: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._handle = register_optimizer_step_pre_hook(self._step)

    def __call__(self) -> Sequence[str]:
        self.close()
        known = self._optimizers()
        # One that is gone already was made for a step, as in meta-learning.
        stepped = [each for each in (held() for held in self._stepped.values()) if each is not None]
        strangers = [each for each in stepped if id(each) not in known]
        optimizers = [*known.values(), *strangers]
        return [*map(self._optimizer, strangers), *map(_scheduler, self._schedulers(optimizers))]

    def close(self) -> None:
        """Listen no more. Calling twice is harmless."""
        self._handle.remove()

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepped[id(optimizer)] = weakref.ref(optimizer)

    def _optimizers(self) -> dict[int, torch.optim.Optimizer]:
        """Those that were handed in, and those that they hold, by id."""
        handed_in = [part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)]
        inside = [each for part in handed_in for each in vars(part).values() if isinstance(each, torch.optim.Optimizer)]
        others = (part for part in self._others() if isinstance(part, torch.optim.Optimizer))
        return {id(each): each for each in (*handed_in, *inside, *others)}

    def _others(self) -> Iterator[object]:
        """What the other parts reach: a trainer with its optimizers, a scheduler with those that it runs."""
        kinds = (torch.nn.Module, torch.optim.Optimizer)
        return reachable(*(part for part in self._parts.values() if not isinstance(part, kinds)))

    def _schedulers(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[LRScheduler]:
        known = [each for each in self._others() if isinstance(each, LRScheduler)]
        return _referring(optimizers, known) if optimizers else []

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> str:
        modules = ((name, part) for name, part in self._parts.items() if isinstance(part, torch.nn.Module))
        names = ParameterNames((name.removeprefix("state."), Places(part).parameters()) for name, part in modules)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = names.get(parameters[0]) if parameters else None
        more = f" (and {len(parameters) - 1} more)" if len(parameters) > 1 else ""
        return _OPTIMIZER.format(
            kind=type(optimizer).__name__, trained=f"{trained}{more}" if trained else "What is no part of this run"
        )


def _scheduler(scheduler: LRScheduler) -> str:
    return _SCHEDULER.format(kind=type(scheduler).__name__)


def _referring(optimizers: Sequence[torch.optim.Optimizer], known: Sequence[LRScheduler]) -> list[LRScheduler]:
    """The schedulers of these optimizers that are not known yet, wherever they are kept."""
    passed = {*map(id, known), *(id(vars(each)) for each in known)}
    found = [each for each in gc.get_referrers(*optimizers) if id(each) not in passed]
    # The collector names an object or the dict of its attributes.
    dicts = [each for each in found if type(each) is dict and "optimizer" in each and "last_epoch" in each]
    owners = [*found, *(gc.get_referrers(*dicts) if dicts else [])]
    return [each for each in owners if LRScheduler in type(each).__mro__ and id(each) not in passed]
