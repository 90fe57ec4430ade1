"""Cards as a framework tells them that the user imported already, and that talks to them already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within_or
from colabkeep.hardware.base import Accelerator, Answer, Kind
from colabkeep.hardware.nvidia import silent

__all__ = ["LoadedFinder", "LoadedXpuFinder"]


class LoadedFinder:
    """The last way, where the driver's own tools are missing or do not answer. Imports and initialises nothing.

    torch is asked once it has initialised CUDA itself. Paddle initialises its devices when it is imported
    (`python/paddle/base/__init__.py`, `core.init_devices()`, Paddle 3), so asking it changes nothing any more.
    The list is as the framework counts, CUDA_VISIBLE_DEVICES honoured. How much memory is used is not asked: that
    would open a context on every card.
    """

    name = "loaded"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        for module, ask in self._asks():
            framework = sys.modules.get(module) if module in environment.modules else None
            if framework is not None:
                # A call into a driver in trouble fails, or never returns.
                found = within_or(
                    timeout, partial(_asked, framework, ask), otherwise=silent(f"{module}, as loaded here,")
                )
                if found:
                    return found
        return []

    def _asks(self) -> tuple[tuple[str, Callable[[Any], list[Accelerator]]], ...]:
        return ("torch", _ask_torch), ("paddle", _ask_paddle)


class LoadedXpuFinder(LoadedFinder):
    """Intel's cards, of a torch that talks to them already: it tells names and memory, and knows of those that are
    built into a processor or lie behind Windows. The list is as torch counts."""

    def _asks(self) -> tuple[tuple[str, Callable[[Any], list[Accelerator]]], ...]:
        return (("torch", _ask_torch_xpu),)


def _asked(framework: Any, ask: Callable[[Any], list[Accelerator]]) -> list[Accelerator]:
    try:
        return ask(framework)
    except (AttributeError, TypeError):  # half imported, or another package of that name
        return []


def _ask_torch(torch: Any) -> list[Accelerator]:
    if not torch.cuda.is_initialized():
        return []
    rocm = bool(torch.version.hip)
    cards = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return [_card("rocm" if rocm else "cuda", card) for card in cards]


def _ask_torch_xpu(torch: Any) -> list[Accelerator]:
    if not torch.xpu.is_initialized():
        return []
    cards = (torch.xpu.get_device_properties(index) for index in range(torch.xpu.device_count()))
    return [
        Accelerator(kind="xpu", name=str(one.name), memory_bytes=int(one.total_memory), found_by=LoadedXpuFinder.name)
        for one in cards
    ]


def _ask_paddle(paddle: Any) -> list[Accelerator]:
    # Asked first: a build for another accelerator answers with a placeholder, "GPU" of capability 8.6.
    if not paddle.device.is_compiled_with_cuda():
        return []
    rocm = bool(paddle.device.is_compiled_with_rocm())
    cuda = paddle.device.cuda
    return [
        _card("rocm" if rocm else "cuda", cuda.get_device_properties(index)) for index in range(cuda.device_count())
    ]


def _card(kind: Kind, properties: Any) -> Accelerator:
    return Accelerator(
        kind=kind,
        name=str(properties.name),
        memory_bytes=int(properties.total_memory),
        capability=(int(properties.major), int(properties.minor)) if kind == "cuda" else None,
        found_by=LoadedFinder.name,
    )
