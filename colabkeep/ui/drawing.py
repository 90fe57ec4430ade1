"""Drawing for notebooks: HTML with inline styles only, and its colours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape as _html
from urllib.parse import quote

from colabkeep.core.language import said

# A notebook that is opened on another machine, or on GitHub, keeps inline styles, tables, `<details>`, `<progress>` and
# pictures with a data address; style sheets, scripts, inline `<svg>`, ids and roles are stripped from it.


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


_LONGEST = 1000  # bytes of one piece of text as HTML
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;font-size:13px;line-height:1.5"
_ROUND = "display:inline-block;padding:1px 9px;margin:0 6px 2px 0;border-radius:10px"


class Markup(str):
    """HTML that is whole and safe: only builders make it, from escaped text."""

    __slots__ = ()


def escape(text: object, limit: int = _LONGEST) -> Markup:
    """Any text as HTML: on one line, cut so that it takes `limit` bytes at most, without what steers a terminal or the
    direction of writing. `Markup` is left as it is."""
    if isinstance(text, Markup):
        return text
    line = " ".join(said(str(text)).split())[: limit + 1]
    line = line if line.isprintable() else "".join(char if char.isprintable() else "?" for char in line)
    whole = _html(line, quote=True)
    if len(whole.encode()) <= limit:
        return Markup(whole)
    pieces, room = [], limit - 3  # for the sign of what is left out
    for char in line:
        piece = _html(char, quote=True)
        room -= len(piece.encode())
        if room < 0:
            break
        pieces.append(piece)
    return Markup("".join(pieces) + "…")


def join(*parts: object) -> Markup:
    """The parts after each other, each escaped unless it is `Markup`."""
    return Markup("".join(map(escape, parts)))


def chip(symbol: str, word: str, colour: Colour) -> Markup:
    """A state: symbol and word, in its colour. The word alone says it."""
    return _span(f"{_ROUND};font-weight:bold;color:{colour.ink};background:{colour.paper}", f"{symbol} {word}")


def badge(text: object) -> Markup:
    """A fact beside a chip, in grey."""
    return _span(f"{_ROUND};color:{GREY.ink};background:{GREY.paper}", text)


def paragraph(text: object, *, strong: bool = False, quiet: bool = False) -> Markup:
    """A line of text: `strong` in bold, `quiet` in grey."""
    style = "margin:4px 0"
    style += ";font-weight:bold" if strong else ""
    style += f";color:{GREY.ink}" if quiet else ""
    return Markup(f'<div style="{style}">{escape(text)}</div>')


def bar(share: float | None, *, wide: bool = False) -> Markup:
    """A progress bar; `share` from 0 to 1, None where the length is not known. Its text is the percentage. `wide`: it
    has a line of its own, else text follows it."""
    style = f"{'width:100%' if wide else 'width:220px;margin-right:8px'};height:12px;vertical-align:middle"
    if share is None:
        return Markup(f'<progress style="{style}" value="0" max="1">?</progress>')
    share = min(max(share, 0.0), 1.0)
    return Markup(f'<progress style="{style}" value="{share:.4f}" max="1">{int(share * 100)} %</progress>')


def link(text: object, path: str) -> Markup:
    """A link to a file, by its relative path; front ends that know no such links show the text."""
    return Markup(f'<a href="{quote(path)}" style="color:{BLUE.ink}">{escape(text, 300)}</a>')


def table(
    caption: object, columns: Sequence[object], rows: Iterable[Sequence[object]], *, right: Collection[int] = ()
) -> Markup:
    """A table with a caption and a head; the columns of the numbers in `right` end together. One that is wider than the
    page scrolls by itself."""
    sides = ["right" if index in right else "left" for index in range(len(columns))]
    cell = "padding:1px 6px"
    head = "".join(
        f'<th scope="col" style="{cell};text-align:{side};color:{GREY.ink}">{escape(name)}</th>'
        for side, name in zip(sides, columns, strict=True)
    )
    # What notebooks have rules of their own for is said here: they stripe rows, and JupyterLab puts cells to the right.
    body = "".join(
        f'<tr style="background:{TEXT.paper}">'
        + "".join(
            f'<td style="{cell};text-align:{side}">{escape(value) or "&nbsp;"}</td>'
            for side, value in zip(sides, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return wide(
        f'<table style="border-collapse:collapse;font-size:13px;margin:4px 0;white-space:nowrap;color:{TEXT.ink};'
        f'background:{TEXT.paper}"><caption style="padding:1px 6px;text-align:left;font-weight:bold;color:{TEXT.ink};'
        f'background:{TEXT.paper}">{escape(caption)}</caption>'
        f'<thead><tr style="background:{TEXT.paper}">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def wide(content: str) -> Markup:
    """HTML that may be wider than the page scrolls by itself."""
    return Markup(f'<div style="overflow-x:auto">{content}</div>')


def items(texts: Iterable[object]) -> Markup:
    """A list."""
    return Markup(
        '<ul style="margin:2px 0;padding-left:20px">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
    )


def details(summary: object, content: object, *, opened: bool = False) -> Markup:
    """Content behind a line that opens it, without a script."""
    return Markup(
        f'<details style="margin:4px 0"{" open" if opened else ""}>'
        f'<summary style="cursor:pointer">{escape(summary)}</summary>{escape(content)}</details>'
    )


def frame(content: object, colour: Colour) -> Markup:
    """The whole thing: light paper and dark ink of its own, so that it can be read on a dark theme too."""
    return Markup(
        f'<div style="{_FONT};max-width:640px;padding:8px 12px;color:{TEXT.ink};background:{TEXT.paper};'
        f'border:1px solid {GREY.paper};border-left:5px solid {colour.ink}">{escape(content)}</div>'
    )


def _span(style: str, text: object) -> Markup:
    return Markup(f'<span style="{style}">{escape(text)}</span>')
