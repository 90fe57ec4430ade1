"""What samples and batches hold, in forms that another session can compare: a few samples looked at, arrays counted
and checked.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from colabkeep.core.state import Tagged, Tree
from colabkeep.frameworks.base import Probe, Probed, Sample
from colabkeep.frameworks.shared.streams import StreamScope, StreamSet, instance_dict, reachable
from colabkeep.frameworks.shared.trees import encode, not_storable, rebuild

_FEW = 16  # elements of an array that is a label rather than a picture
_WHOLE = 1 << 16  # bytes up to which all of an array counts (60 µs); of a larger one, pieces over all of it do
_PIECES = 16
_DEEPEST = 8
_MOST = 10_000  # values of one sample that count; of those beyond, nothing but how many
_READABLE = 160  # characters of a form


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array as it is seen here. `read(start, stop)` gives bytes of it, row by row; None where that would cost."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    read: Callable[[int, int], bytes] | None


Seen: TypeAlias = Callable[[Any], "ArrayView | None"]
"""How a framework looks at an array, None for what is none."""


def sample_of(value: Any, seen: Seen) -> Sample:
    """The three texts of a sample: the same for equal samples, in any process."""
    looked = _Look(seen)
    form = looked.at(value, 0)
    if len(form) > _READABLE:
        form = f"{form[:_READABLE]}… {blake2b(form.encode(), digest_size=4).hexdigest()}"
    return form, looked.labels.hexdigest(), looked.arrays.hexdigest()


def spread(length: int, count: int) -> list[int]:
    """Up to `count` positions in `range(length)`, evenly apart, the first and the last among them."""
    if length <= count:
        return list(range(length))
    return [number * (length - 1) // (count - 1) for number in range(count)]


class _Look:
    """One walk through a sample. What is of an unknown type counts by that type only."""

    def __init__(self, seen: Seen) -> None:
        self.labels = blake2b(digest_size=8)
        self.arrays = blake2b(digest_size=8)
        self._seen = seen
        self._left = _MOST

    def at(self, value: Any, depth: int) -> str:
        """The form of `value`; its bytes are taken into account."""
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes):
            self._label(value if kind is bytes else repr(value).encode())
            return kind.__name__
        sight = self._seen(value)
        if sight is not None:
            return self._array(sight)
        if _is_picture(value):
            return self._picture(value)
        members = _members(value) if depth < _DEEPEST else None
        if members is None:
            return kind.__qualname__
        return self._many(kind, members, depth)

    def _many(self, kind: type[Any], members: list[tuple[str, Any]], depth: int) -> str:
        forms: list[str] = []
        for name, member in members[: self._left]:
            self._left -= 1
            forms.append(name + self.at(member, depth + 1))
        self._label(f"{len(members)} {members[0][0] if members else ''}".encode())
        inside = f"{len(members)} of {forms[0]}" if len(forms) > 4 and len(set(forms)) == 1 else ", ".join(forms)
        return f"({inside})" if issubclass(kind, tuple) else f"{kind.__name__}({inside})"

    def _label(self, text: bytes) -> None:
        self.labels.update(b"%d " % len(text) + text)

    def _array(self, sight: ArrayView) -> str:
        count = 1
        for length in sight.shape:
            count *= length
        digest = self.labels if count <= _FEW else self.arrays
        if sight.read is not None and sight.size:
            for start, stop in _pieces(sight.size):
                digest.update(sight.read(start, stop))
        return f"{sight.dtype}{list(sight.shape)}" if sight.shape else sight.dtype

    def _picture(self, value: Any) -> str:
        data = value.tobytes()
        for start, stop in _pieces(len(data)):
            self.arrays.update(data[start:stop])
        return f"{value.mode} picture of {value.width} by {value.height}"


def _pieces(size: int) -> list[tuple[int, int]]:
    if size <= _WHOLE:
        return [(0, size)]
    each = _WHOLE // _PIECES
    return [(start, start + each) for start in spread(size - each + 1, _PIECES)]


def _is_picture(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")  # imported by whoever made one
    return pillow is not None and isinstance(value, pillow.Image)


def _members(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, each with its name in the form; None of anything else."""
    if isinstance(value, (tuple, list)):
        return [("", member) for member in value]
    if isinstance(value, Mapping):
        return [(f"{key!r:.40}: ", member) for key, member in value.items()]
    if is_dataclass(value) and not isinstance(value, type):
        return [
            (f"{field.name}: ", getattr(value, field.name)) for field in fields(value) if hasattr(value, field.name)
        ]
    return None


_LOOKED_AT = 4  # arrays of a batch that the check covers
_ELEMENTS = 64  # leading elements of each


@dataclass(frozen=True)
class Arrays:
    """How a framework's arrays are read and rebuilt.

    `head(array, n)` gives bytes of its first n elements, None where that would cost (a device must be
    waited for). `pack` gives a storable tree for an array, None for what is none; `unpack` undoes it. `see` looks at
    one, wherever it is; None for what is none.
    """

    head: Callable[[Any, int], bytes | None]
    pack: Callable[[Any], Tagged | None]
    unpack: Callable[[Any], Any]
    see: Callable[[Any], ArrayView | None]


def arrays_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """What has a shape with a leading dimension, in nested tuples, lists and mappings, in order."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, (tuple, list)):  # a list: a tensor of Paddle before 3.3
        if shape:
            yield value
    elif depth < _DEEPEST and isinstance(value, (tuple, list, Mapping)):
        for member in value.values() if isinstance(value, Mapping) else value:
            yield from arrays_in(member, depth + 1)


def leading(value: Any) -> int | None:
    """Samples in a batch: the leading dimension of its first array, None if it holds none."""
    # Nearly every batch is a tuple that begins with an array: no need to search.
    shape = getattr(value[0], "shape", None) if type(value) in (tuple, list) and value else None
    if isinstance(shape, (tuple, list)) and shape:
        return int(shape[0])
    array = next(arrays_in(value), None)
    return None if array is None else int(array.shape[0])


def crc(value: Any, start: int, arrays: Arrays) -> int:
    """A running check over the batches: a few elements of a few arrays of each."""
    for _, array in zip(range(_LOOKED_AT), arrays_in(value), strict=False):
        start = zlib.crc32(repr(tuple(array.shape)).encode(), start)
        head = arrays.head(array, _ELEMENTS)
        if head is not None:
            start = zlib.crc32(head, start)
    return start


def own_state(value: Any, arrays: Arrays) -> Tree:
    """An object's own state as a storable tree.

    Raises:
        NotStorable: it holds something that has no plain form; the error names its path.
    """

    def leaf(value: Any, path: str) -> Tree:
        packed = arrays.pack(value)
        if packed is None:
            raise not_storable(value, path)
        return packed

    return encode(value, "loader", leaf)


def put_own_state(tree: Tree, arrays: Arrays) -> Any:
    """The state that `own_state` was made of."""

    return rebuild(tree, lambda node, _: arrays.unpack(node))


def _head(array: Any, count: int) -> bytes | None:
    flat = getattr(array, "flat", None)
    return None if flat is None else bytes(flat[:count].tobytes())


def _pack(value: Any) -> Tagged | None:
    if type(value).__module__ != "numpy" or not hasattr(value, "tobytes") or value.dtype.hasobject:
        return None
    kind = "numpy.ndarray" if hasattr(value, "flat") and type(value).__name__ == "ndarray" else "numpy.scalar"
    return Tagged(kind, (value.dtype.str, tuple(value.shape), value.tobytes()))


def _see(value: Any) -> ArrayView | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    dtype, shape, size = value.dtype, tuple(value.shape), int(value.nbytes)
    if dtype.hasobject or not size:
        return ArrayView(dtype.name, shape, size, None)
    flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return ArrayView(dtype.name, shape, size, lambda start, stop: bytes(flat[start:stop].tobytes()))


def _unpack(node: Tagged) -> Any:
    import numpy as np

    dtype, shape, data = node.value
    array = np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    return array if node.kind == "numpy.ndarray" else array[()]


NUMPY = Arrays(_head, _pack, _unpack, _see)
"""NumPy's arrays and scalars."""


_DECODERS = (
    "PIL", "cv2", "torchvision", "albumentations", "torchaudio", "torchcodec", "imageio", "skimage", "librosa",
    "soundfile", "av", "decord", "tifffile", "pydicom", "nibabel",
)  # fmt: skip
"""Libraries of which another version may give other numbers for the same file."""

_Timer: TypeAlias = Callable[[], float]


def look_at(
    dataset: Any, probe: Probe, seen: Seen, streams: StreamSet, epoch: int = 0, timer: _Timer = time.perf_counter
) -> Probed:
    """Look at samples in this process. Random streams, and attributes of the data set's objects, are after it what
    they were: a counter does not count, a file opened on the way is forgotten. Where the data set wants to know the
    epoch, samples are those of the first one; then it is told `epoch` again."""
    began, aside = timer(), StreamScope(streams, probe.seed)
    found: dict[int, Sample | None] = {}
    curious = hasattr(dataset, "set_epoch")

    def late() -> bool:
        return timer() - began > probe.seconds

    def drawn(position: int) -> Sample | None:
        aside.restart(probe.seed)  # the same for all, so that a sample is known again at another position
        with aside:
            try:
                return sample_of(dataset[position], seen)
            except Exception:  # noqa: BLE001 - the user's own; the training will meet it where it belongs, or never
                return None

    with _unchanged(dataset):
        if curious:
            dataset.set_epoch(0)
        for position in probe.positions:
            if late():
                break
            first, known = drawn(position), probe.known.get(position)
            # A data set may count its calls or read the clock: what a sample is, it is each time.
            if first is not None and first != known:
                second = None if known is None and late() else drawn(position)
                first = second if second in (first, known) else None
            found[position] = first
    if curious and epoch:
        dataset.set_epoch(epoch)
    return Probed(samples=found, libraries=_libraries())


@contextmanager
def _unchanged(dataset: Any) -> Iterator[None]:
    """Behind it, the objects within a data set have the attributes that they had before."""
    held = [(inside, dict(inside)) for inside in map(instance_dict, reachable(dataset, code=False))]
    try:
        yield
    finally:
        for inside, before in held:
            if inside.keys() != before.keys() or any(inside[name] is not value for name, value in before.items()):
                inside.clear()
                inside.update(before)


def _libraries() -> Mapping[str, str]:
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _DECODERS)
    return {name: version for name, version in loaded if isinstance(version, str)}
