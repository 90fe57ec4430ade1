"""The comparison of cards: as a table, as HTML, as JSON."""

from __future__ import annotations

import html.parser
import subprocess
import sys

import pytest

import colabkeep


def row_of(text, card):
    return next(line for line in text.splitlines() if line.strip().startswith(card))


def test_the_table_says_what_people_choose_by(colabkeep_cli):
    """Memory, bandwidth, tensor cores, speed, 16 bits, where it is free and which torch still runs on it."""
    said = colabkeep_cli("gpus")
    assert (said.status, said.err) == (0, "")
    t4, p100 = row_of(said.out, "Tesla T4"), row_of(said.out, "Tesla P100")
    assert t4.split()[2:8] == ["16", "320", "65", "1", "1", "1"]
    assert "Colab, Kaggle (two)" in t4
    assert t4.endswith("all")
    assert "saves memory" in p100
    assert p100.endswith("to 2.7; cu126 to 2.14")
    assert "give or take 30 %" in said.out


def test_the_fastest_card_comes_first_and_what_cannot_be_compared_last(colabkeep_cli):
    """Reading from the top is reading from the best."""
    cards = colabkeep_cli("gpus", "--json").json["cards"]
    speeds = [card["speed"]["transformer"] for card in cards if card["speed"] is not None]
    assert len(speeds) > 30
    assert speeds == sorted(speeds, reverse=True)
    assert all(card["speed"] is None for card in cards[len(speeds) :])


def test_machines_get_the_same_facts(colabkeep_cli):
    """One JSON object, with the uncertainty and the assumptions beside the numbers."""
    record = colabkeep_cli("gpus", "--json").json
    assert set(record) == {"cards", "uncertainty", "bytes_per_parameter"}
    assert record["uncertainty"] == 0.3
    t4 = next(card for card in record["cards"] if card["name"] == "Tesla T4")
    assert t4["speed"] == {"cnn": 1.0, "transformer": 1.0, "rnn": 1.0}
    assert t4["free"] == ["Colab", "Kaggle (two)"]
    assert t4["fits"]["Adam, 16-bit mixed"] < t4["fits"]["Adam, 32 bit"]
    assert "Adam, all bf16" not in t4["fits"], "a T4 only emulates bf16"
    assert t4["source"]


def test_a_speed_is_shown_with_no_more_digits_than_are_known():
    """Two digits would promise what nobody can keep."""
    for line in repr(colabkeep.compare_gpus()).splitlines():
        if "Tesla V100" in line and " B " not in line:
            assert line.split()[5:8] == ["2", "2", "2"] or line.split()[4:7] == ["2", "2", "2"]
            break
    else:
        pytest.fail("no V100 in the table")


class Tables(html.parser.HTMLParser):
    """The cells of each table, and the items of lists, checking that every tag that opens also closes."""

    def __init__(self):
        super().__init__()
        self.open, self.tables, self.items = [], [], []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "style", "link", "img")
        if tag == "br":
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "li":
            self.items.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif self.open and self.open[-1] == "li":
            self.items[-1] += data


def test_a_notebook_shows_tables():
    """As the last line of a cell: whole HTML without scripts, the free cards first, then one line for each card."""
    comparison = colabkeep.compare_gpus()
    parser = Tables()
    parser.feed(comparison._repr_html_())
    parser.close()
    assert parser.open == []
    (_, *free), (head, *body), *fits = parser.tables
    assert [row[0] for row in free] == [row["name"] for row in comparison.rows if row["free"]]
    assert [row[0] for row in body] == [row["name"] for row in comparison.rows]
    assert {len(row) for row in body} == {len(head)}
    assert len(fits) == 2
    ways = [item.partition(": ") for item in parser.items]
    assert {name: way for names, _, way in ways for name in names.split(", ")} == {
        row["name"]: row["torch_text"] for row in comparison.rows if row["torch_text"]
    }
    assert len({way for _, _, way in ways}) == len(ways), "each is told once"


def test_comparing_loads_no_framework():
    """The table comes at once, on a machine without any GPU or torch."""
    program = (
        "import sys, colabkeep; colabkeep.compare_gpus().to_json();"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'numpy', 'matplotlib', 'paddle'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
