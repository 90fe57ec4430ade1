"""The results as a table in the README."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["fill", "lines"]

_BEGIN, _END = "<!-- results -->", "<!-- end of results -->"


def lines(result: dict[str, Any]) -> list[str]:
    """One line of a table for each figure."""
    return [_line(one) for one in result["figures"]]


def fill(readme: Path, results: Path, names: Iterable[str]) -> None:
    """Put the kept results between the README's two marks."""
    rows = ["| measured | median | quartiles | n | goal | |", "|---|---|---|---|---|---|"]
    about: dict[str, Any] = {}
    for name in names:
        path = results / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            about = result["about"]
            rows += [f"| **{name}** (load {about['load']}, {about['taken']} UTC) | | | | | |", *lines(result)]
    machine = ", ".join(f"{key} {value}" for key, value in about.items() if key not in ("load", "taken"))
    head, _, rest = readme.read_text().partition(_BEGIN)
    tail = rest.partition(_END)[2]
    readme.write_text("\n".join([f"{head}{_BEGIN}", f"Measured on: {machine}.", "", *rows, f"{_END}{tail}"]))


def _line(one: dict[str, Any]) -> str:
    goal = one["goal"]
    verdict = "" if goal is None else "met" if one["median"] <= goal else "**missed**"
    limit = "" if goal is None else f"≤ {goal:g}"
    spread = f"{one['low']:.3g} to {one['high']:.3g}" if one["n"] > 1 else ""
    return f"| {one['what']} | {one['median']:.3g} {one['unit']} | {spread} | {one['n']} | {limit} | {verdict} |"
