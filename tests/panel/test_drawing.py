"""The small builders of HTML, and the curve."""

from __future__ import annotations

import math
import random
import re
import xml.etree.ElementTree as ET
from html import unescape
from html.parser import HTMLParser
from itertools import product
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.ui import curve, drawing
from colabkeep.ui.curve import Measured, loss_curve, small_multiples, smoothed
from colabkeep.ui.drawing import (
    Markup,
    badge,
    bar,
    chip,
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


def test_every_line_of_a_picture_can_be_told_from_its_paper() -> None:
    """A contrast of 3, which WCAG 2.2 asks of graphics (1.4.11)."""
    for ink in (curve._LINE, *curve.COLOURS, *(colour.ink for colour in curve._MEASURED)):
        assert contrast(ink, drawing.TEXT.paper) >= 3


def test_a_link_leads_to_a_file_with_any_name() -> None:
    """Neither its text nor its address is anything else."""
    evil = 'runs/"><script>/x y.status.html'
    html = drawing.link(evil, evil)
    assert 'href="runs/%22%3E%3Cscript%3E/x%20y.status.html"' in html
    assert "<script" not in html


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
            paragraph(text, strong=True, quiet=True),
            bar(0.5),
            table(text, [text, text], [[text, text], ["", 3]], right=(1,)),
            items([text, text]),
            details(text, text),
            loss_curve([(1, 2.0), (2, 1.0)], [1], 2, [(2, False)]),
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
    points = line_of(loss_curve([(0, 3.0), (10, 2.0), (40, 1.0)]))
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points)
    x, y = points[1]
    assert (x - points[0][0]) / (points[-1][0] - points[0][0]) == pytest.approx(0.25, abs=0.01)
    assert (y - points[0][1]) / (points[-1][1] - points[0][1]) == pytest.approx(0.5, abs=0.01)


def test_a_peak_is_never_lost_among_many_points() -> None:
    """Ten thousand points, one of which is the highest and one the lowest: both are drawn, in few kilobytes."""
    values = [(step, 1.0) for step in range(10_000)]
    values[3_333], values[7_777] = (3_333, 9.0), (7_777, -5.0)
    html = loss_curve(values)
    heights = [y for _, y in line_of(html)]
    assert (min(heights), max(heights)) == (14.0, 136.0)
    assert len(heights) <= 300
    assert len(html) < 6_000


def test_what_is_not_a_number_leaves_a_gap_and_is_named() -> None:
    """Nobody takes a broken training for a flat one."""
    html = loss_curve([(1, 2.0), (2, 1.0), (3, math.nan), (4, math.inf), (5, 1.0), (6, 0.5)])
    assert picture_of(html).count("<polyline") == 2
    assert "not a number at step 3, 4" in text_alternative(html)


@pytest.mark.parametrize(
    "points",
    [[], [(5, math.nan)], [(5, 1.0)], [(5, 1.0), (5, 1.0)], [(1, 1e308), (2, -1e308)], [(1, 5e-324), (2, 0.0)]],
    ids=["none", "no number", "one", "twice the same", "huge", "tiny"],
)
def test_any_points_make_a_picture(points: list[tuple[int, float]]) -> None:
    """Also none, one, and those whose difference no float can hold."""
    svg = picture_of(loss_curve(points, saves=[(5, True)]))
    ET.fromstring(svg)
    assert "nan" not in svg
    assert "inf" not in svg


def text_alternative(html: str) -> str:
    found = re.search(r'alt="([^"]*)"', html)
    assert found
    return unescape(found[1])


def test_the_picture_is_told_to_those_who_do_not_see_it() -> None:
    """How many points, from where to where, first, last and lowest value, and the marks."""
    told = text_alternative(loss_curve([(1, 3.0), (2, 0.25), (4, 0.5)], [2], None, [(3, True), (4, False)]))
    assert told == (
        "loss, 3 points from step 1 to 4: first 3, last 0.5, lowest 0.25 at 2; resumed at 2; 3 safe; 4 not yet safe."
    )


def test_marks_differ_in_more_than_their_colour() -> None:
    """A resumption is a broken line with words, a durable checkpoint a filled mark, another an empty one."""
    points = [(step, 1.0 / step) for step in range(1, 1001)]
    svg = picture_of(loss_curve(points, [100], None, [(500, True), (900, False)]))
    assert "stroke-dasharray" in svg
    assert ">resumed at 100<" in svg
    fills = re.findall(r'<path d="M\d+ \d+l4 8h-8z" fill="(#\w+)"', svg)
    assert fills == [drawing.TEXT.ink, drawing.TEXT.paper]


def test_a_thousand_marks_are_as_many_as_there_is_room_for() -> None:
    """The latest one always."""
    html = loss_curve([(0, 1.0), (1000, 0.5)], saves=[(step, True) for step in range(1001)])
    places = [int(x) for x in re.findall(r"M(\d+) \d+l4", picture_of(html))]
    assert max(places) == 472
    assert min(b - a for a, b in zip(sorted(places), sorted(places)[1:], strict=False)) >= 10
    assert len(html) < 3_500


def test_the_mark_of_an_old_picture_comes_by_itself() -> None:
    """Hidden for so many seconds, without a script, and for a sixth of them the bare fact; and not at all in a picture
    that is final."""
    drawn = picture_of(loss_curve([(1, 1.0)], stale_after=12))
    early, late = re.findall(r'<g visibility="hidden"><set ([^/]*)/>(.*?)</g>', drawn)
    for (animation, _), begin in ((early, "2s"), (late, "12s")):
        assert animation == f'attributeName="visibility" to="visible" begin="{begin}" fill="freeze"'
    assert ">No update for 2 s<" in early[1]
    assert ">No update for 12 s: not live<" in late[1]
    assert "<set" not in picture_of(loss_curve([(1, 1.0)]))


def raw_and_smooth(html: str) -> list[list[float]]:
    paths = re.findall(r'<polyline[^>]* points="([^"]*)"', picture_of(html))
    return [[float(pair.split(",")[1]) for pair in path.split()] for path in paths]


def test_a_noisy_loss_has_a_smooth_curve_over_it() -> None:
    """Both are drawn; the smooth one moves far less from point to point, and begins with the first value."""
    chance = random.Random(0)
    points = [(step, 1.0 + chance.random()) for step in range(200)]
    raw, smooth = raw_and_smooth(loss_curve(points))
    assert max(raw) - min(raw) == pytest.approx(122.0)
    assert stdev(smooth[9:]) < stdev(raw) / 2
    assert smoothed(points)[0] == pytest.approx(points[0])
    assert len(raw_and_smooth(loss_curve(points[:10]))) == 1


def test_a_spike_neither_flattens_the_rest_nor_moves_the_smooth_curve() -> None:
    """It is cut off at the edge, marked there, and its height is written."""
    points = [(step, 1.0 + step % 7 / 10) for step in range(300)]
    points[150] = (150, 900.0)
    svg = picture_of(loss_curve(points))
    assert ">900<" in svg
    raw, _ = raw_and_smooth(loss_curve(points))
    assert max(raw) - sorted(raw)[1] > 80, "the others take most of the height"
    assert sorted(raw)[0] == 14.0
    calm = smoothed([(step, 1.0 + step % 7 / 10) for step in range(300)])
    assert max(abs(one - two) for (_, one), (_, two) in zip(smoothed(points), calm, strict=True)) < 0.2


def test_the_axis_is_logarithmic_where_that_helps_and_its_ticks_are_round() -> None:
    """Over several powers of ten; never where a value is not above zero."""
    falls = [(step, 10.0 ** (-step / 50)) for step in range(200)]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture_of(loss_curve(falls)))
    assert "logarithmic" in texts
    assert {"1", "0.1", "0.01", "0.001"} <= set(texts)
    for points in ([(step, 1.0 + step / 200) for step in range(200)], [(step, -value) for step, value in falls]):
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture_of(loss_curve(points)))
        assert "logarithmic" not in texts
        assert {"0", "50", "100", "150"} <= set(texts)
    assert {"1", "1.25", "1.5", "1.75"} <= set(
        re.findall(
            r"<text[^>]*>([^<]*)</text>", picture_of(loss_curve([(step, 1.0 + step / 200) for step in range(200)]))
        )
    )


def test_what_was_measured_beside_it_is_on_the_same_plot_with_the_best_marked() -> None:
    """A line of its own colour with its name below, dots where there are few, and a ring around the best."""
    points = [(step, 2.0 - step / 400) for step in range(400)]
    series = [(100, 1.9), (200, 1.4), (300, 1.6)]
    html = loss_curve(points, measured=Measured({"val_loss": series}, best=200))
    svg = picture_of(html)
    assert ">val_loss<" in svg
    assert ">best<" in svg
    ring = re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="6"', svg)
    line = re.findall(r'points="([^"]*)"', svg)[-1].split()
    assert ring
    assert line[1].split(",")[1] == ring[2]
    assert "val_loss: last 1.6, lowest 1.4 at 200" in text_alternative(html)


def test_other_metrics_are_small_pictures_train_beside_validation() -> None:
    """Six at most in one image; nothing where there are none, and any values make one."""
    series = {f"metric {n}": {"train": [(1, 0.5), (2, math.nan)], "val": [(1, 0.25), (2, 0.75)]} for n in range(9)}
    svg = picture_of(small_multiples(series))
    ET.fromstring(svg)
    assert len(re.findall(r">metric \d<", svg)) == 6
    assert "nan" not in svg
    assert small_multiples({}) == ""
    assert "val: last 0.75" in text_alternative(small_multiples(series))


def test_the_smooth_curve_goes_by_steps_and_not_by_points() -> None:
    """Where few points are known of many steps, it follows them."""
    dense = [(step, 2.0) for step in range(200)]
    sparse = [(step, 1.0) for step in range(200, 2001, 100)]
    assert smoothed([*dense, *sparse])[-1][1] == pytest.approx(1.0, abs=0.01)
    assert smoothed([]) == []
