"""A run to save into and load from: the real engine on a store, with time that stands still."""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Lease, Repository, take_lease
from colabkeep.checkpoint.restore import Loaded, load_newest
from colabkeep.checkpoint.retention import KeepLast, RetentionPolicy
from colabkeep.checkpoint.writer import Committer, Identity
from colabkeep.core.events import Event
from colabkeep.core.manifest import Manifest, Progress, Proof
from colabkeep.core.state import HostTensor, Tagged
from colabkeep.stores.base import Store
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock

RUN = "run"


@dataclass
class Taken:
    """A capture that is complete: the trees that were handed in, and whether they were released."""

    parts: Mapping[str, Any]
    released: bool = False
    remark: str = ""

    def finish(self) -> Taken:
        return self

    def stored(self) -> None:
        """Nothing is let go of."""

    def release(self) -> None:
        self.released = True


def floats(*numbers: float, frozen: bool = False) -> HostTensor:
    """A tensor of float32."""
    data = memoryview(struct.pack(f"<{len(numbers)}f", *numbers))
    return HostTensor(dtype="F32", shape=(len(numbers),), data=data, frozen=frozen)


def state(step: int, *, frozen: bool = False) -> dict[str, Any]:
    """The state of a small training at a step: no two steps have the same bytes, except in what is frozen."""
    model = {"weight": floats(step, step + 0.5)}
    if frozen:
        model["backbone"] = floats(*range(100), frozen=True)
    return {"model": model, "notes": {"step": step, "text": f"step {step}"}}


class Session:
    """One session on a run: `save` goes all the way to a committed checkpoint and tidies up, on this thread."""

    def __init__(
        self,
        store: Store,
        name: str = "aaaaaaaa",
        keep: RetentionPolicy | None = None,
        resume: Loaded | None = None,
        proof: Proof | None = None,
    ) -> None:
        self.repository = Repository(store, RUN)
        self.repository.open_run(created=0.0, run_id="0" * 16)
        self.lease: Lease = take_lease(self.repository, name, {"host": "testhost", "pid": 42})
        self.journal = Journal(self.repository, name)
        self.clock = FakeClock()
        self.events: deque[Event] = deque()
        began = resume.manifest if resume else None
        identity = Identity(framework="numpy", fingerprint={"threads": "1"}, began=began)
        keep = keep or KeepLast(None)
        self.committer = Committer(self.lease, self.journal, keep, self.clock, identity, self.events.append, proof)

    def save(self, step: int, parts: Mapping[str, Any] | None = None, **metrics: float) -> Manifest:
        progress = Progress(epoch=step // 10, step=step, seconds=float(step))
        capture = Taken(state(step) if parts is None else parts)
        try:
            return self.committer.commit(capture, progress, "steps", metrics)
        finally:
            assert capture.released, "the memory of a snapshot is given back, also when the save fails"


@dataclass
class Disk:
    """The files of a store, to be looked at and damaged behind its back."""

    store: MemoryStore = field(default_factory=MemoryStore)

    @property
    def files(self) -> dict[str, bytes]:
        return self.store._objects

    def names(self, folder: str = "") -> list[str]:
        return sorted(name for name in self.files if name.startswith(f"{RUN}/{folder}"))

    def manifest(self, id: str) -> str:
        return f"{RUN}/checkpoints/{id}.json"

    def only_blob(self, manifest: Manifest) -> str:
        """The name of the one blob of a checkpoint."""
        (blob,) = manifest.blobs
        return f"{RUN}/blobs/{blob.file}"

    def damage(self, name: str, how: Callable[[bytes], bytes | None]) -> None:
        after = how(self.files[name])
        if after is None:
            del self.files[name]
        else:
            self.files[name] = after


def flip(data: bytes) -> bytes:
    """One bit in the middle."""
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "a flipped bit": flip,
    "cut short": lambda data: data[:-1],
    "empty": lambda data: b"",
    "missing": lambda data: None,
    "longer": lambda data: data + b"\0",
    "zeroed": lambda data: bytes(len(data)),
    "a pickle": lambda data: b"\x80\x04cposix\nsystem\n(S'touch /tmp/owned'\ntR.",
}


def same(one: Any, other: Any) -> bool:
    """Equal in every type, order and bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, HostTensor):
        return (one.dtype, one.shape, bytes(one.data)) == (other.dtype, other.shape, bytes(other.data))
    if isinstance(one, Tagged):
        return one.kind == other.kind and same(one.value, other.value)
    if isinstance(one, (dict, OrderedDict, defaultdict, Counter)):
        pairs, others = list(one.items()), list(other.items())
        factory = getattr(one, "default_factory", None) is getattr(other, "default_factory", None)
        return factory and same(pairs, others)
    if isinstance(one, (set, frozenset)):
        return sorted(map(bits, one)) == sorted(map(bits, other))
    if isinstance(one, (list, tuple, deque)):
        limits = getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        return limits and len(one) == len(other) and all(map(same, one, other))
    return bits(one) == bits(other)


def bits(value: Any) -> str:
    """A text that tells apart what `==` does not: NaNs by their bits, 0.0 from -0.0, 1 from True."""
    if type(value) is float:
        return struct.pack(">d", value).hex()
    if type(value) is complex:
        return struct.pack(">dd", value.real, value.imag).hex()
    if isinstance(value, (tuple, frozenset)):
        return (
            f"{type(value).__name__}{sorted(map(bits, value)) if isinstance(value, frozenset) else [*map(bits, value)]}"
        )
    return f"{type(value).__name__} {value!r}"


@dataclass(frozen=True)
class Kit:
    """What the tests of the engine share."""

    floats = staticmethod(floats)
    state = staticmethod(state)
    flip = staticmethod(flip)
    same = staticmethod(same)
    Session = Session
    Taken = Taken
    run = RUN

    @staticmethod
    def newest(store: Store) -> tuple[Loaded | None, dict[str, str]]:
        """What a resume would load, and what it skipped and why. A new repository each time, as in a new life."""
        passed: dict[str, str] = {}
        return load_newest(Repository(store, RUN), passed.__setitem__), passed


@pytest.fixture(scope="session")
def kit() -> Kit:
    """Builders and comparisons."""
    return Kit()


@pytest.fixture
def disk() -> Disk:
    """A store in memory whose bytes can be damaged."""
    return Disk()


@pytest.fixture(params=DAMAGES.values(), ids=DAMAGES.keys())
def damage(request: pytest.FixtureRequest) -> Iterator[Callable[[bytes], bytes | None]]:
    """Each way in which a file can go bad."""
    return request.param
