"""State on its way from live objects to bytes and back, without any framework's types; and the seeds that follow from
where a training is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias, runtime_checkable

Tree: TypeAlias = Any
"""A value made of what the codec can store exactly: None, bool, int, float, complex, str, bytes,
list, tuple, dict (any storable keys), OrderedDict, defaultdict, Counter, deque, set, frozenset,
datetime, timedelta, Path, slice, range, `HostTensor` and `Tagged`. The same object met twice is
stored once and comes back as one object (for `HostTensor`)."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that can tell and take its state."""

    def state_dict(self) -> Any:
        """The state, as live values or copies."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state that `state_dict` returned earlier."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTensor:
    """A tensor's bytes in host memory, row-major, without gaps.

    `dtype` is a safetensors name ("F32", "BF16", "I64", "U8", …), so bfloat16 needs no NumPy
    type. `data` has format "B" and exactly the bytes of `shape`; who made the tensor keeps the
    memory alive and unchanged until the snapshot is released. `frozen` marks what training does
    not change (it is packed apart, so that it is written once). `lasting` is a promise of who made it: a later
    snapshot shows this very object only if the bytes are the same. They are not hashed or written again then; without
    the promise they always are looked at. `fresh`: the memory was made for this tensor to be restored from, once, and
    is nobody else's; who restores it may keep it.

    What is stored and lasts may be let go of by who made it: `data` tells the size then, and no bytes.

    `referred`: the BLAKE2b-256 of its bytes, in hex, of a weight that whoever resumes has already (a pretrained base):
    a checkpoint holds that in the place of the bytes, which `data` never has.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    frozen: bool = False
    lasting: bool = False
    fresh: bool = False
    referred: str = ""

    def let_go(self, recall: Callable[[], None]) -> None:
        """The bytes are stored, and their memory goes. `recall` is called where they are needed once more."""
        object.__setattr__(self, "data", Withheld(self.data.nbytes, recall))


class Withheld:
    """In the place of bytes that were let go of."""

    __slots__ = ("_recall", "nbytes")

    def __init__(self, nbytes: int, recall: Callable[[], None] = lambda: None) -> None:
        self.nbytes, self._recall = nbytes, recall

    def recall(self) -> None:
        """They are needed.

        Raises:
            Stale: always; the next capture has them.
        """
        self._recall()
        raise Stale


def referred(leaf: Tree) -> str:
    """The checksum by which a checkpoint names a weight that it does not hold; "" of all that it holds."""
    return leaf.referred if isinstance(leaf, HostTensor) else ""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A framework's own leaf: `kind` names it ("torch.dtype"), `value` is a storable tree."""

    kind: str
    value: Tree


class Snapshot(Protocol):
    """State in host memory at one step: a tree for each part ("model", "optimizer", …)."""

    @property
    def parts(self) -> Mapping[str, Tree]:
        """The trees, by part."""
        ...

    def stored(self) -> None:
        """A committed checkpoint holds all of it: the memory of what lasts may be let go of."""
        ...

    def release(self) -> None:
        """The memory may be reused: nobody reads the trees any more. Calling twice is harmless."""
        ...


class Stale(Exception):
    """A snapshot cannot be made of what was copied: something that seemed to be as it is stored was changed, or its
    bytes are needed once more and were let go of.

    Nothing is lost but this snapshot; the next capture copies what this one lacked.
    """


class Capture(Protocol):
    """A snapshot under way. What training may change is copied, or is being copied where it cannot change it."""

    @property
    def remark(self) -> str:
        """What made this copy slower than it need be, a clause for people; "" where nothing did."""
        ...

    def finish(self) -> Snapshot:
        """Wait for the rest and return the snapshot. Called once, by the writer thread. When it raises,
        the memory is free again.

        Raises:
            NotStorable: a value cannot be kept; the error names its path.
            Stale: it must be captured again.
        """
        ...


_AT_ONCE = 32  # seeds: code that comes to run in every step, between other work, takes five times as long


def derive(*position: int | str) -> int:
    """A 63-bit seed for a position. Equal positions give equal seeds, on every machine and version.

    The rule is part of the format: changing it would reorder the data of runs under way.

    >>> derive(0, "batch", 3, 17) == derive(0, "batch", 3, 17)
    True
    """
    text = "\x1f".join(map(str, position)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def derive_each(*position: int | str, start: int) -> Iterator[int]:
    """`derive(*position, start)`, `derive(*position, start + 1)`, … without end.

    >>> next(derive_each(0, "batch", 3, start=17)) == derive(0, "batch", 3, 17)
    True
    """
    before = blake2b("\x1f".join([*map(str, position), ""]).encode(), digest_size=8)
    while True:
        yield from [_seed(before, number) for number in range(start, start + _AT_ONCE)]
        start += _AT_ONCE


def _seed(before: blake2b, number: int) -> int:
    digest = before.copy()
    digest.update(b"%d" % number)
    return int.from_bytes(digest.digest(), "little") >> 1
