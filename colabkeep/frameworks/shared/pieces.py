"""A batch cut into pieces along its samples: micro-batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.shared.samples import arrays_in
from colabkeep.frameworks.shared.training import moved

_SHARED = (type(None), bool, int, float, complex, str, bytes)


def largest_piece(samples: int, micro: int | None) -> int:
    """The samples in the largest piece of a batch of `samples`, of pieces of `micro` at most; None: all of it."""
    return samples if micro is None or micro >= samples else -(-samples // -(-samples // micro))


def cut(batch: Any, samples: int | None, micro: int | None) -> list[tuple[Any, int]]:
    """`batch` in pieces of `micro` samples at most, as equal as can be (33 by 16: 11, 11, 11), each with its number of
    samples. A batch that is no larger stays whole, and is not looked at.

    Raises:
        UsageError: the number of samples is not known, or the batch has something in it that cannot be cut.
    """
    if micro is None or (samples is not None and samples <= micro):
        return [(batch, samples or 1)]
    if samples is None:
        raise _cannot(f"a {type(batch).__name__} in which no array tells the number of samples")
    count = -(-samples // micro)
    ends = [samples * number // count for number in range(count + 1)]
    return [(part(batch, samples, begin, end), end - begin) for begin, end in pairwise(ends)]


def part(batch: Any, samples: int, begin: int, end: int, *, shared: bool = False) -> Any:
    """Samples `begin` to `end` of a batch, in containers of the same types. Arrays are views of the batch's own.

    An array is cut along its first dimension, which is that of the samples; so is a list with an entry
    for each sample. Numbers, text and arrays without dimensions belong to all samples. `shared`: it is cut for several
    processes, and not by micro_batch.

    Raises:
        UsageError: something is in it that is none of these.
    """

    def is_cut(member: Any) -> bool:
        shape = getattr(member, "shape", None)
        if isinstance(shape, (tuple, list)):
            if shape and shape[0] != samples:
                raise _cannot(f"an array of shape {tuple(shape)} in a batch of {samples} samples", shared=shared)
            return bool(shape)
        if isinstance(member, (tuple, list)):
            return len(member) == samples and not _holds_columns(member, samples)
        if isinstance(member, (Mapping, *_SHARED)) or dataclasses.is_dataclass(member):
            return False
        raise _cannot(f"a {type(member).__name__}", shared=shared)

    return moved(batch, is_cut, lambda member: member[begin:end])


def _holds_columns(members: Any, samples: int) -> bool:
    """Is this a list of arrays that have all samples each, and not one of samples?"""
    arrays = list(arrays_in(members))
    return bool(arrays) and all(array.shape[0] == samples for array in arrays)


def _cannot(found: str, *, shared: bool = False) -> UsageError:
    if shared:
        return UsageError(
            problem=f"Several processes share each batch along its samples, and this one is or has {found}.",
            remedy="Have the loader give tensors whose first dimension is the samples, in tuples, lists or dicts; or "
            "train in one process.",
        )
    return UsageError(
        problem=f"micro_batch cuts each batch along its samples, and this one is or has {found}.",
        remedy="Have the loader give tensors whose first dimension is the samples, in tuples, lists or dicts; or leave "
        "out micro_batch, and take a smaller batch_size with accumulate_grad_batches.",
    )
