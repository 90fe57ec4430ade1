"""Hearing from optimizers before they change anything, and knowing which of them may do so unheard.

Torch wraps the `step` that a class defines when the first optimizer of that class is made (`profile_hook_step` in
torch/optim/optimizer.py, torch 2.4 to 2.13); the wrapper calls the hooks. A `step` replaced afterwards calls none, one
that is compiled calls them when it is traced, and the replay of a CUDA graph calls no Python at all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from types import CodeType
from typing import Any

import torch

__all__ = ["Steps", "is_torchs_own", "tells_versions"]

_REMEMBERED = 5  # undisturbed steps whose length says how long one is


class Steps:
    """The steps of a run's optimizers. `before` is called when one begins, before anything is changed."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = _nothing
        self.first: Callable[[], None] = _nothing  # called once, at the boundary after the first step
        self._heard: dict[int, _Heard] = {}
        self._marked_at: float | None = None
        self._lengths: deque[float] = deque(maxlen=_REMEMBERED)

    def watch(self, optimizers: Iterable[torch.optim.Optimizer], begins: Callable[[], None]) -> Callable[[], None]:
        """Hear from these optimizers; `begins` is told too. Returns what ends it."""
        handles = []
        for optimizer in optimizers:
            heard = self._heard[id(optimizer)] = _Heard(self, optimizer, begins)
            if "_optimizer_step_pre_hooks" not in vars(optimizer):
                heard.unheard = "has no hooks, as super().__init__() was not called"
                continue
            handles.append(handle := optimizer.register_step_pre_hook(heard))
            # Before the user's own: a hook that clips weights must not do so under a copy.
            hooks: Any = optimizer._optimizer_step_pre_hooks
            hooks.move_to_end(handle.id, last=False)

        def close() -> None:
            self.before()
            for handle in handles:
                handle.remove()
            for key in [key for key, heard in self._heard.items() if heard.begins is begins]:
                del self._heard[key]

        return close

    def marked(self) -> None:
        """A step boundary is here."""
        if self.first is not _nothing and any(heard.count for heard in self._heard.values()):
            first, self.first = self.first, _nothing
            first()
        self._marked_at = time.perf_counter()

    def disturbed(self) -> None:
        """What lies between this boundary and the next step is not how long a step takes."""
        self._marked_at = None

    def begin(self) -> None:
        """A step begins: let whoever reads what it will change come to an end."""
        if self._marked_at is not None:  # an accumulation window, a scaler's skipped step: all of it is the step
            self._lengths.append(time.perf_counter() - self._marked_at)
            self._marked_at = None
        self.before()

    @property
    def usual(self) -> float | None:
        """Seconds between a boundary and the next step, where nobody saved; None: not known yet."""
        return median(self._lengths) if self._lengths else None

    def count(self, optimizer: torch.optim.Optimizer) -> int:
        """How many steps of it were heard."""
        heard = self._heard.get(id(optimizer))
        return 0 if heard is None else heard.count

    def doubt(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Why its tensors may change unheard, in a clause; None if they may not."""
        name, heard = type(optimizer).__name__, self._heard.get(id(optimizer))
        if heard is None:
            return f"nobody listens to {name} yet"
        if heard.unheard is not None:
            return f"{name}.step() {heard.unheard}, so its beginning cannot be heard"
        if not _is_hooked(optimizer):
            return f"{name}.step() was replaced, so its beginning cannot be heard"
        if any(group.get("capturable") for group in optimizer.param_groups):
            return f"{name} is capturable, so a CUDA graph may replay its step unheard"
        if not heard.count:
            return f"no step of {name} has been heard yet"
        return None


class _Heard:
    """The hook of one optimizer."""

    def __init__(self, steps: Steps, optimizer: torch.optim.Optimizer, begins: Callable[[], None]) -> None:
        self.optimizer = optimizer  # kept, so that its id is not given twice
        self.begins = begins
        self.count = 0
        self.unheard: str | None = None
        self._steps = steps

    def __call__(self, *step: Any) -> None:
        if torch.compiler.is_compiling():
            # Traced: what is written here comes after the compiled update, so nothing may be waited for.
            self.unheard = "is compiled"
            self.begins()
            return
        cuda: Any = torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            self.unheard = "is captured into a CUDA graph"
        self.count += 1
        self._steps.begin()
        self.begins()


def is_torchs_own(optimizer: torch.optim.Optimizer) -> bool:
    """Is it of one of torch's own classes, whose ways are known?"""
    return type(optimizer).__module__.startswith("torch.optim.")


def tells_versions(optimizer: torch.optim.Optimizer) -> bool:
    """Do the version counters of what this optimizer changes move? Those of torch's own classes do, but for the fused
    kernels, which leave them as they are (seen in torch 2.4 and 2.13)."""
    return is_torchs_own(optimizer) and not any(group.get("fused") for group in optimizer.param_groups)


def _is_hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Does calling `optimizer.step()` call the hooks?"""
    own = optimizer.__dict__.get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):  # a scheduler's wrapper only counts calls
        return False
    made = torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    wrappers = [constant for constant in made if isinstance(constant, CodeType)]
    return getattr(type(optimizer).step, "__code__", None) in wrappers


def _nothing() -> None:
    """Nobody reads anything."""
