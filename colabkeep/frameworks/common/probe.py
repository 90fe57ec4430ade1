"""A few samples of a data set, looked at: to know in a later session whether it is the same data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from colabkeep.frameworks.base import Probe, Probed, Sample
from colabkeep.frameworks.common.contents import Seen, sample_of
from colabkeep.frameworks.common.streams import Aside, Streams
from colabkeep.frameworks.common.walk import instances

__all__ = ["Kept", "look_at"]

_DECODERS = (
    "PIL", "cv2", "torchvision", "albumentations", "torchaudio", "torchcodec", "imageio", "skimage", "librosa",
    "soundfile", "av", "decord", "tifffile", "pydicom", "nibabel",
)  # fmt: skip
"""Libraries of which another version may give other numbers for the same file."""

_Timer: TypeAlias = Callable[[], float]


def look_at(
    dataset: Any, probe: Probe, seen: Seen, streams: Streams, epoch: int = 0, timer: _Timer = time.perf_counter
) -> Probed:
    """Look at samples in this process. Random streams, and attributes of the data set's objects, are after it what
    they were: a counter does not count, a file opened on the way is forgotten. Where the data set wants to know the
    epoch, samples are those of the first one; then it is told `epoch` again."""
    began = timer()
    found: dict[int, Sample | None] = {}
    curious = hasattr(dataset, "set_epoch")
    with Kept(dataset):
        if curious:
            dataset.set_epoch(0)
        for position in probe.positions:
            if timer() - began > probe.seconds:
                break
            drawn = _Drawn(dataset, position, seen, Aside(streams, probe.seed))
            found[position] = _believed(drawn, probe.known.get(position), lambda: timer() - began > probe.seconds)
    if curious and epoch:
        dataset.set_epoch(epoch)
    return Probed(samples=found, libraries=_libraries())


def _believed(drawn: _Drawn, known: Sample | None, late: Callable[[], bool]) -> Sample | None:
    """What this sample is, if it is so each time: a data set may count its calls or read the clock."""
    first = drawn.again()
    if first is None or first == known or (known is None and late()):
        return first if first == known else None
    second = drawn.again()
    return second if second in (first, known) else None


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One sample, to be drawn as often as asked, each time with the same random numbers; those of all samples are the
    same, so that one is known again at another position."""

    dataset: Any
    position: int
    seen: Seen
    aside: Aside

    def again(self) -> Sample | None:
        self.aside.own = None
        with self.aside:
            try:
                return sample_of(self.dataset[self.position], self.seen)
            except Exception:  # noqa: BLE001 - the user's own; the training will meet it where it belongs, or never
                return None


class Kept:
    """A context after which the objects within a data set have the attributes that they had before it."""

    def __init__(self, dataset: Any) -> None:
        self._before = [(inside, dict(inside)) for _, inside in instances(dataset)]

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for inside, before in self._before:
            if inside.keys() != before.keys() or any(inside[name] is not value for name, value in before.items()):
                inside.clear()
                inside.update(before)


def _libraries() -> Mapping[str, str]:
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _DECODERS)
    return {name: version for name, version in loaded if isinstance(version, str)}
