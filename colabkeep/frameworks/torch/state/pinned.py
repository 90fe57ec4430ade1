"""Page-locked host memory, as long as the machine has memory to spare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

__all__ = ["host_memory"]

_SPARE = 0.25  # of the machine's memory must stay available: page-locked memory cannot be swapped (Colab has 12 GB)


def host_memory(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    *,
    pinned: bool,
    meminfo: Path = Path("/proc/meminfo"),
) -> torch.Tensor:
    """Memory for a copy, `pinned` if that can be had. Pinned, it takes a copy from the device at full speed and while
    the host goes on; into ordinary memory the driver copies in chunks, through a small pinned buffer of its own, and
    the host waits."""
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    if pinned and 0 not in shape and _to_spare(last * dtype.itemsize, meminfo):
        try:
            return torch.empty_strided(shape, stride, dtype=dtype, pin_memory=True)
        except RuntimeError:  # the driver has a limit of its own: ulimit -l, or what other processes hold
            pass
    return torch.empty_strided(shape, stride, dtype=dtype)


def _to_spare(size: int, meminfo: Path) -> bool:
    try:
        lines = [line.split() for line in meminfo.read_text().splitlines()]
        kilobytes = {words[0]: int(words[1]) for words in lines if len(words) >= 2}
        return (kilobytes["MemAvailable:"] - size / 1024) > _SPARE * kilobytes["MemTotal:"]
    except (OSError, KeyError, ValueError):  # not Linux: the driver's own limit must do
        return True
