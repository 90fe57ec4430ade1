"""Which CUDA can a driver run? A build for a newer one sees no GPU at all, and trains on the CPU.

From CUDA 11 on a driver runs every build of its own major version and of those before (NVIDIA, "CUDA Compatibility",
minor version compatibility, 2026). CUDA's own compatibility package can lift that on data-centre cards; whether it is
there, only a trial tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["needed_driver", "runs_on"]

_LEAST: Mapping[int, str] = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The oldest driver for Linux, by CUDA's major version (release notes of CUDA 11.8, 12.9 and 13.0)."""

_VERSION = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?")


def needed_driver(cuda: str) -> str | None:
    """The oldest driver that runs builds for this CUDA ("13.0"); None where that is not known."""
    major = _VERSION.match(cuda)
    return None if major is None else _LEAST.get(int(major[1]))


def runs_on(driver: str | None, cuda: str | None) -> bool | None:
    """Does this driver ("550.54.15") run builds for this CUDA? None where that is not known."""
    least = None if cuda is None else needed_driver(cuda)
    here = None if driver is None else _VERSION.match(driver)
    return None if least is None or here is None else _numbers(here[0]) >= _numbers(least)


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)
