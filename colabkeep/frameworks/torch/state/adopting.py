"""Tensors that go on living in the memory that their file was read to: no second copy, no first touch of its pages.

For state that the framework makes anew anyway, as an optimizer's: 336 MB of Adam's moments took 0.15 s to be copied on
a quiet machine of two cores, and a second on a busy one, nearly all of it for the pages of fresh memory.

Torch cannot resize a storage that it did not allocate. Its own optimizers never ask for that; others may, to keep their
state elsewhere between two steps, so theirs is copied. Whoever does so by hand with one of torch's own has to give the
tensors memory of torch's after a resume: `state[p][key] = state[p][key].clone()`.
"""

from __future__ import annotations

import torch

from colabkeep.frameworks.torch.state.dtypes import dtype_of
from colabkeep.vocabulary.state import HostTensor

__all__ = ["adopted"]

_ALIGNED = 64
"""Bytes, as torch's own allocator aligns (c10/core/alignment.h). On memory that was not, LBFGS went on with other bits:
some kernels sum up in another order there."""


def adopted(host: HostTensor) -> torch.Tensor | None:
    """The tensor in its file's own memory, for good; None if it cannot stay there and must be copied.

    It keeps the file's whole buffer alive, so this is for tensors that are most of what is in it.
    """
    kind = dtype_of(host.dtype)
    if kind is None or not host.fresh or host.data.readonly or not host.data.nbytes:
        return None
    storage = torch.frombuffer(host.data, dtype=torch.uint8).untyped_storage()
    if storage.data_ptr() % _ALIGNED:
        return None
    # A tensor with a storage of its own, and no view of another one: it is like any that the framework made.
    rows = torch.empty(host.shape, dtype=kind, device="meta").stride()
    return torch.empty(0, dtype=kind, device="cpu").set_(storage, 0, torch.Size(host.shape), rows)
