"""The small builders of HTML, and the curve."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from html import unescape
from html.parser import HTMLParser
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.ui import drawing
from colabkeep.ui.drawing import (
    Mark,
    Markup,
    badge,
    bar,
    chip,
    curve,
    details,
    escape,
    frame,
    items,
    join,
    paragraph,
    table,
)

from .conftest import picture_of, text_of

EVIL = "</td><script>alert('1')</script> \" & \x1b[31m \u202eabc\nnext \ud800"
FORBIDDEN = ("<svg", "<style", "<script", "var(", "http")


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def all_colours() -> list[drawing.Colour]:
    return [value for value in vars(drawing).values() if isinstance(value, drawing.Colour)]


@pytest.mark.parametrize("colour", all_colours(), ids=lambda colour: colour.ink)
def test_every_text_can_be_read(colour: drawing.Colour) -> None:
    """A contrast of 7 on its own paper and on white, also for those who see little."""
    assert contrast(colour.ink, colour.paper) >= 7
    assert contrast(colour.ink, drawing.TEXT.paper) >= 7


def test_the_measure_of_contrast_is_right() -> None:
    """Black on white is 21, by definition; and a grey that is known to fail, fails."""
    assert len(all_colours()) == 8
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


class Balance(HTMLParser):
    """Finds tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def everything(text: str) -> Markup:
    """All builders at once, with the same text in every place."""
    return frame(
        join(
            chip("!", text, drawing.RED),
            badge(text),
            paragraph(text, strong=True, quiet=True, lines=2),
            bar(0.5),
            table(text, [text, text], [[text, text], ["", 3]], right=(1,)),
            items([text, text]),
            details(text, text),
            curve([(1, 2.0), (2, 1.0)], [Mark(1, "resumed", text), Mark(2, "local", text)], title=text),
            text,
        ),
        drawing.BLUE,
    )


@given(st.text(max_size=60) | st.just(EVIL))
def test_no_text_can_become_markup(text: str) -> None:
    """Whatever a name holds: the same tags as for a harmless one, and all of them closed."""
    html = everything(text)
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
    tags = re.compile(r"<\s*/?\s*[a-zA-Z!?]+")
    assert tags.findall(html) == tags.findall(everything("x"))
    html.encode()  # and it can be written: no half of a surrogate pair
    ET.fromstring(picture_of(html))


def test_a_text_is_shown_as_it_is() -> None:
    """Escaped once, not twice; on one line; what steers a terminal or turns the direction is a question mark."""
    assert unescape(escape("a <b> & \"c\" 'd'")) == "a <b> & \"c\" 'd'"
    assert escape("one\n  two\x1b[31m\u202e") == "one two?[31m?"
    assert escape(escape("<")) == "&lt;"


@pytest.mark.parametrize(("text", "limit"), list(product(["x" * 400, "<" * 400, "保" * 400], [10, 99, 100, 101])))
def test_a_long_text_is_cut_to_so_many_bytes(text: str, limit: int) -> None:
    """Whatever its characters cost as HTML, no entity is cut in two, and the cut is seen."""
    cut = escape(text, limit)
    assert len(cut.encode()) <= limit
    assert cut.endswith("…")
    assert set(unescape(cut[:-1])) == set(text)
    assert len(escape(text[:5], 400)) == len(escape(text[:5]))


def test_nothing_is_used_that_a_notebook_strips() -> None:
    """No script, no style sheet, no inline picture, no outside address, no identifier."""
    html = re.sub(r'base64,[^"]+', "", everything("x"))
    assert not [word for word in FORBIDDEN if word in html]
    assert not re.search(r"\s(id|role|aria-\w+|data-\w+|class|on\w+)=", html)


def test_a_table_can_be_heard() -> None:
    """Caption, column heads with their scope, and cells that fill an empty row."""
    html = table("Checkpoints", ["step", "size"], [[7, "1 MiB"], ["", ""]])
    assert "<caption" in html
    assert html.count('<th scope="col"') == 2
    assert text_of(html) == "Checkpoints step size 7 1 MiB"
    assert html.count("<td") == 4


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.999, "99 %"), (1.0, "100 %"), (7.0, "100 %"), (None, "?")]
)
def test_a_bar_says_its_percentage(share: float | None, text: str) -> None:
    """Never 100 before it is done; a question mark where it is not known."""
    assert text_of(bar(share)) == text


def line_of(html: str) -> list[tuple[float, float]]:
    found = re.findall(r'<polyline[^>]* points="([^"]*)"', picture_of(html))
    return [tuple(map(float, pair.split(","))) for path in found for pair in path.split()]  # type: ignore[misc]


def test_a_curve_falls_where_the_values_fall() -> None:
    """Steps go to the right, high values lie on top, and the ends of both reach the ends of the plot."""
    points = line_of(curve([(0, 3.0), (10, 2.0), (40, 1.0)]))
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points)
    x, y = points[1]
    assert (x - points[0][0]) / (points[-1][0] - points[0][0]) == pytest.approx(0.25, abs=0.01)
    assert (y - points[0][1]) / (points[-1][1] - points[0][1]) == pytest.approx(0.5, abs=0.01)


def test_a_peak_is_never_lost_among_many_points() -> None:
    """Ten thousand points, one of which is the highest and one the lowest: both are drawn, in few kilobytes."""
    values = [(step, 1.0) for step in range(10_000)]
    values[3_333], values[7_777] = (3_333, 9.0), (7_777, -5.0)
    html = curve(values)
    heights = [y for _, y in line_of(html)]
    assert (min(heights), max(heights)) == (14.0, 124.0)
    assert len(heights) <= 200
    assert len(html) < 6_000


def test_what_is_not_a_number_leaves_a_gap_and_is_named() -> None:
    """Nobody takes a broken training for a flat one."""
    html = curve([(1, 2.0), (2, 1.0), (3, math.nan), (4, math.inf), (5, 1.0), (6, 0.5)])
    assert picture_of(html).count("<polyline") == 2
    assert "not a number at step 3, 4" in text_alternative(html)


@pytest.mark.parametrize(
    "points",
    [[], [(5, math.nan)], [(5, 1.0)], [(5, 1.0), (5, 1.0)], [(1, 1e308), (2, -1e308)], [(1, 5e-324), (2, 0.0)]],
    ids=["none", "no number", "one", "twice the same", "huge", "tiny"],
)
def test_any_points_make_a_picture(points: list[tuple[int, float]]) -> None:
    """Also none, one, and those whose difference no float can hold."""
    svg = picture_of(curve(points, [Mark(5, "durable", "5")]))
    ET.fromstring(svg)
    assert "nan" not in svg
    assert "inf" not in svg


def text_alternative(html: str) -> str:
    found = re.search(r'alt="([^"]*)"', html)
    assert found
    return unescape(found[1])


def test_the_picture_is_told_to_those_who_do_not_see_it() -> None:
    """How many points, from where to where, first, last and lowest value, and the marks."""
    marks = [Mark(2, "resumed", "resumed at 2"), Mark(3, "durable", "3 durable"), Mark(4, "local", "4 not yet")]
    told = text_alternative(curve([(1, 3.0), (2, 0.25), (4, 0.5)], marks, title="loss"))
    assert told == (
        "loss, 3 points from step 1 to 4: first 3, last 0.5, lowest 0.25 at 2; resumed at 2; 3 durable; 4 not yet."
    )


def test_marks_differ_in_more_than_their_colour() -> None:
    """A resumption is a broken line with words, a durable checkpoint a filled mark, another an empty one."""
    points = [(step, 1.0 / step) for step in range(1, 1001)]
    svg = picture_of(
        curve(points, [Mark(100, "resumed", "resumed at 100"), Mark(500, "durable", "d"), Mark(900, "local", "l")])
    )
    assert "stroke-dasharray" in svg
    assert ">resumed at 100<" in svg
    fills = re.findall(r'<path d="M\d+ \d+l4 8h-8z" fill="(#\w+)"', svg)
    assert fills == [drawing.TEXT.ink, drawing.TEXT.paper]


def test_a_thousand_marks_are_as_many_as_there_is_room_for() -> None:
    """The latest one always."""
    html = curve([(0, 1.0), (1000, 0.5)], [Mark(step, "durable", str(step)) for step in range(1001)])
    places = [int(x) for x in re.findall(r"M(\d+) \d+l4", picture_of(html))]
    assert max(places) == 592
    assert min(b - a for a, b in zip(sorted(places), sorted(places)[1:], strict=False)) >= 10
    assert len(html) < 3_500


def test_the_mark_of_an_old_picture_comes_by_itself() -> None:
    """Hidden for so many seconds, without a script; and not at all in a picture that is final."""
    group = re.search(r'<g visibility="hidden"><set ([^/]*)/>.*</g>', picture_of(curve([(1, 1.0)], stale_after=2)))
    assert group
    assert 'attributeName="visibility" to="visible" begin="2s" fill="freeze"' in group[1]
    assert "No update for 2 s: not live" in group[0]
    assert "<set" not in picture_of(curve([(1, 1.0)]))
