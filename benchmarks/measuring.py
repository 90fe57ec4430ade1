"""Figures, and what they were measured on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import colabkeep

__all__ = ["Figure", "Setting", "compiling", "facts", "figure", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured thing: the median of `n` values and the quartiles around it. `goal` is the most it may be."""

    what: str
    unit: str
    median: float
    low: float
    high: float
    n: int
    goal: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How to measure: `quick` only sees that it works; `folder` is on the disk that is written to. `megabytes` and
    `repeat` are other sizes and another number of rounds than a benchmark's own, for those that heed them. `results` is
    where pictures go."""

    quick: bool
    folder: Path
    megabytes: tuple[int, ...] = ()
    repeat: int | None = None
    results: Path = Path()

    def rounds(self, number: int) -> int:
        """How often to repeat."""
        return 2 if self.quick else number


def figure(what: str, unit: str, values: Sequence[float], goal: float | None = None) -> Figure:
    """The figure of some values."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return Figure(what=what, unit=unit, median=median(values), low=low, high=high, n=len(values), goal=goal)


def compiling() -> dict[str, str]:
    """The environment of a program whose imports are compiled once and kept, as those of an installed package are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def facts(folder: Path) -> dict[str, Any]:
    """The machine, the versions, the hour, and how busy the machine was: the load of the last minute."""
    return {
        "taken": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "file system": _file_system(folder),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        **{
            name: found
            for name in ("colabkeep", "torch", "paddlepaddle", "numpy", "safetensors")
            if (found := _version(name))
        },
    }


def kept(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Figures for a file of results."""
    return [{name: _short(value) for name, value in asdict(one).items()} for one in figures]


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _file_system(folder: Path) -> str:
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) > len(best[0]):
            best = place, kind
    return best[1]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return colabkeep.__version__ if name == "colabkeep" else None  # used from its source folder
