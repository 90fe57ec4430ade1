"""Small builders of HTML. What is text gets escaped; what a builder made is left as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape as _html

from colabkeep.faces.drawing.colours import GREY, TEXT, Colour

__all__ = ["Markup", "badge", "bar", "chip", "details", "escape", "frame", "items", "join", "paragraph", "table"]

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
    pieces, room = [], limit
    for char in " ".join(str(text).split()):
        piece = _html(char if char.isprintable() else "?", quote=True)
        if len(piece.encode()) > room:
            break
        room -= len(piece.encode())
        pieces.append(piece)
    else:
        return Markup("".join(pieces))
    while pieces and room < 3:  # for the sign of what is left out
        room += len(pieces.pop().encode())
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


def paragraph(text: object, *, strong: bool = False, quiet: bool = False, lines: float | None = None) -> Markup:
    """A line of text: `strong` in bold, `quiet` in grey. `lines`: it takes the height of so many, whatever it says."""
    style = "margin:4px 0"
    style += ";font-weight:bold" if strong else ""
    style += f";color:{GREY.ink}" if quiet else ""
    style += f";height:{lines * 1.5:g}em;overflow:auto" if lines is not None else ""
    return Markup(f'<div style="{style}">{escape(text)}</div>')


def bar(share: float | None, *, wide: bool = False) -> Markup:
    """A progress bar; `share` from 0 to 1, None where the length is not known. Its text is the percentage. `wide`: it
    has a line of its own, else text follows it."""
    style = f"{'width:100%' if wide else 'width:220px;margin-right:8px'};height:12px;vertical-align:middle"
    if share is None:
        return Markup(f'<progress style="{style}" value="0" max="1">?</progress>')
    share = min(max(share, 0.0), 1.0)
    return Markup(f'<progress style="{style}" value="{share:.4f}" max="1">{int(share * 100)} %</progress>')


def table(
    caption: object, columns: Sequence[object], rows: Iterable[Sequence[object]], *, right: Collection[int] = ()
) -> Markup:
    """A table with a caption and a head; the columns of the numbers in `right` end together."""
    sides = ["right" if index in right else "left" for index in range(len(columns))]
    cell = "padding:1px 12px 1px 0"
    head = "".join(
        f'<th scope="col" style="{cell};text-align:{side};color:{GREY.ink}">{escape(name)}</th>'
        for side, name in zip(sides, columns, strict=True)
    )
    # The background is said for each row: notebooks stripe those of tables that say nothing.
    body = "".join(
        f'<tr style="background:{TEXT.paper}">'
        + "".join(
            f'<td style="{cell}{";text-align:right" if side == "right" else ""}">{escape(value) or "&nbsp;"}</td>'
            for side, value in zip(sides, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return Markup(
        f'<table style="border-collapse:collapse;margin:4px 0;white-space:nowrap;color:{TEXT.ink};'
        f'background:{TEXT.paper}"><caption style="text-align:left;font-weight:bold;color:{TEXT.ink}">'
        f"{escape(caption)}</caption>"
        f'<thead><tr style="background:{TEXT.paper}">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


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
