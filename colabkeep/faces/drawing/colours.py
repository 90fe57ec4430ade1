"""The colours: each pair of ink and paper has a contrast of 7 or more (WCAG 2.2, level AAA), computed by a test."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AMBER", "BLUE", "GREEN", "GREY", "LINE", "MARK", "ORANGE", "PURPLE", "RED", "TEXT", "Colour"]


@dataclass(frozen=True, slots=True)
class Colour:
    """Ink for text on the paper, and on white; both as "#rrggbb"."""

    ink: str
    paper: str


TEXT = Colour("#1f2328", "#ffffff")
GREY = Colour("#3f4750", "#f3f4f6")
BLUE = Colour("#0b3d91", "#e3edfb")
AMBER = Colour("#663c00", "#fff1d6")
GREEN = Colour("#0b4a1e", "#e0f3e4")
ORANGE = Colour("#7a2600", "#fde8dc")
PURPLE = Colour("#4a148c", "#f0e6fb")
RED = Colour("#85000b", "#fde7e7")

LINE = "#1f5fbf"  # the curve
MARK = "#4a148c"  # where a session went on
