"""What a sample holds, in three short texts that another session can compare: its form, its labels, its arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from colabkeep.frameworks.base import Sample

__all__ = ["Seen", "Sight", "sample_of", "spread"]

_FEW = 16  # elements of an array that is a label rather than a picture
_WHOLE = 1 << 16  # bytes up to which all of an array counts (60 µs); of a larger one, pieces over all of it do
_PIECES = 16
_DEEPEST = 8
_MOST = 10_000  # values of one sample that count; of those beyond, nothing but how many
_READABLE = 160  # characters of a form


@dataclass(frozen=True, slots=True)
class Sight:
    """An array as it is seen here. `read(start, stop)` gives bytes of it, row by row; None where that would cost."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    read: Callable[[int, int], bytes] | None


Seen: TypeAlias = Callable[[Any], "Sight | None"]
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

    def _array(self, sight: Sight) -> str:
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
