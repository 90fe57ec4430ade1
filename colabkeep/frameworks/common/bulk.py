"""Many tensors copied out of a file's buffers, two at a time.

Most of the time of a restore is the first touch of fresh memory, and that goes on in parallel: 336 MB of moments
took 0.10 s in one thread and 0.03 s in two on a warm machine of two cores, ten times that on a cold one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["LARGE", "copy_pairs", "large_ones"]

LARGE = 2**20
"""Bytes; below, handing a copy to another thread costs more than the copy."""

_THREADS = 2  # free notebooks have two cores

Target = TypeVar("Target")
Source = TypeVar("Source")


def copy_pairs(
    pairs: Sequence[tuple[Target, Source]], copy: Callable[[Target, Source], object], large: Callable[[Target], bool]
) -> None:
    """Call `copy` for each pair, in parallel for those whose target is `large`."""
    big = [pair for pair in pairs if large(pair[0])]
    if len(big) < 2:
        big = []
    done = {id(target) for target, _ in big}
    if big:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="colabkeep-restore") as pool:
            list(pool.map(copy, *zip(*big, strict=True)))
    for target, source in pairs:
        if id(target) not in done:
            copy(target, source)


def large_ones(tree: Tree) -> Iterator[HostTensor]:
    """The large tensors in the containers of a tree, each once; not those inside tagged values."""
    seen: set[int] = set()
    todo: list[Iterable[Tree]] = [[tree]]
    while todo:
        for node in todo.pop():
            if isinstance(node, HostTensor):
                if node.data.nbytes >= LARGE and id(node) not in seen:
                    seen.add(id(node))
                    yield node
            elif isinstance(node, dict):
                todo.append(chain(node.keys(), node.values()))
            elif isinstance(node, (list, tuple)):
                todo.append(node)
