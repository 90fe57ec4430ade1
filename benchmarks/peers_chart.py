"""The comparison as pictures: bars of the medians, with a line from quartile to quartile."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from measuring import Figure

__all__ = ["draw"]

WIDTH, LEFT, ROW, HEAD = 760, 250, 22, 56


def draw(figures: Sequence[Figure], sizes: Sequence[str], names: Sequence[str], folder: Path) -> None:
    """One file for each size: `peers-100-MB.svg`."""
    for size in sizes:
        rows: dict[str, dict[str, Figure]] = {}
        for one in figures:
            head, _, rest = one.what.partition(": ")
            title, _, name = rest.rpartition(": ")
            if head == size and name in names:
                rows.setdefault(f"{title} ({one.unit})", {})[name] = one
        (folder / f"peers-{size.replace(' ', '-')}.svg").write_text(_picture(size, rows))


def _picture(size: str, charts: dict[str, dict[str, Figure]]) -> str:
    parts, top = [], 0
    for title, bars in charts.items():
        parts.append(_bars(f"{size}: {title}", bars, top))
        top += HEAD + ROW * len(bars)
    style = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.a{fill:#1a73e8}.b{fill:#9aa0a6}line{stroke:#222}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 10}" width="{WIDTH}" height="{top + 10}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _bars(title: str, bars: dict[str, Figure], top: int) -> str:
    room = WIDTH - LEFT - 90
    most = max((max(one.high, one.median) for one in bars.values()), default=0.0) or 1.0
    drawn = [f'<text class="t" x="10" y="{top + 32}">{html.escape(title)}</text>']
    for number, (name, one) in enumerate(bars.items()):
        y = top + HEAD - 12 + number * ROW
        low, middle, high = (LEFT + room * max(0.0, value) / most for value in (one.low, one.median, one.high))
        kind = "a" if name == "colabkeep" else "b"
        drawn += [
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{middle - LEFT:.1f}" height="15"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 7.5}" y2="{y + 7.5}"/>',
            f'<text x="{max(high, middle) + 6:.1f}" y="{y + 12}">{one.median:.3g}</text>',
        ]
    return "".join(drawn)
