"""Moving a batch of any shape to the model's device, without waiting for it."""

from __future__ import annotations

from typing import Any

import paddle

from colabkeep.frameworks.common.transfer import moved

__all__ = ["to_place"]


def to_place(value: Any, place: Any) -> Any:
    """`value` with every tensor in host memory copied to `place`; containers keep their type.

    Paddle's own loader gives batches on the device already: these are left alone. For a CPU model
    nothing is looked at: batches are made there.
    """
    return value if place.is_cpu_place() else moved(value, _is_on_host, lambda tensor: tensor._copy_to(place, False))


def _is_on_host(member: Any) -> bool:
    if not isinstance(member, paddle.Tensor):
        return False
    return bool(member.place.is_cpu_place() or member.place.is_cuda_pinned_place())
