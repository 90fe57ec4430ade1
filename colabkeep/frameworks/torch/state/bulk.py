"""Many tensors copied out of a file's buffers, two at a time.

Most of the time of a restore is the first touch of fresh memory, and that goes on in parallel: 336 MB of moments
took 0.10 s in one thread and 0.03 s in two on a warm machine of two cores, ten times that on a cold one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch

from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["copy_all", "large_ones"]

_LARGE = 2**20  # bytes; below, handing a copy to another thread costs more than the copy
_THREADS = 2  # free notebooks have two cores


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target; gradients are not tracked."""
    pairs = list(zip(targets, sources, strict=True))
    large = [pair for pair in pairs if pair[0].is_cpu and pair[0].nbytes >= _LARGE]
    if len(large) > 1:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="colabkeep-restore") as pool:
            list(pool.map(_copy, *zip(*large, strict=True)))
    else:
        large = []
    done = {id(target) for target, _ in large}
    for target, source in pairs:
        if id(target) not in done:
            _copy(target, source)


def large_ones(tree: Tree) -> Iterator[HostTensor]:
    """The large tensors in the containers of a tree, each once; not those inside tagged values."""
    seen: set[int] = set()
    todo: list[Iterable[Tree]] = [[tree]]
    while todo:
        for node in todo.pop():
            if isinstance(node, HostTensor):
                if node.data.nbytes >= _LARGE and id(node) not in seen:
                    seen.add(id(node))
                    yield node
            elif isinstance(node, dict):
                todo.append(chain(node.keys(), node.values()))
            elif isinstance(node, (list, tuple)):
                todo.append(node)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():  # of this thread
        target.copy_(source)
