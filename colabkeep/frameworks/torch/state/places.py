"""Where torch's modules keep their tensors, and state beside them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from colabkeep.frameworks.common import places
from colabkeep.frameworks.common.places import Anatomy, Place

__all__ = ["Place", "Places"]


class Places(places.Places):
    """The places of a torch module and its children."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(_TORCH, module)

    def extras(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Modules with state beside tensors (`get_extra_state`), by name."""
        own = torch.nn.Module.get_extra_state
        return ((prefix, each) for prefix, each in self.modules if type(each).get_extra_state is not own)


def _tells_plainly(module: torch.nn.Module) -> bool:
    kind, base = type(module), torch.nn.Module
    return kind.state_dict is base.state_dict and kind._save_to_state_dict is base._save_to_state_dict


_TORCH = Anatomy(
    children="_modules",
    transient="_non_persistent_buffers_set",
    wrappers=(
        ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
        ("torch.nn.parallel", "DataParallel", "module"),
        ("torch.nn.parallel", "DistributedDataParallel", "module"),
        (
            "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
            "CheckpointWrapper",
            "_checkpoint_wrapped_module",
        ),
    ),
    plain=_tells_plainly,
    told=lambda module: module.state_dict(keep_vars=True),
    elsewhere="Its state_dict() holds more than parameters and buffers. Register them as buffers, or return "
    "them from get_extra_state() and take them back in set_extra_state().",
)
