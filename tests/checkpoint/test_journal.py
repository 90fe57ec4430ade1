"""The journal is written in closed parts, each of which says whether it is whole."""

from __future__ import annotations

import json
import math

import pytest

from colabkeep.checkpoint.journal import Journal, read_journal, read_segment
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import StoreUnavailable
from colabkeep.testing.faults import FaultyStore


def journal(store):
    return Journal(Repository(store, "run"), "aaaaaaaa")


def segments(disk):
    return {name.rpartition("/")[2]: read_segment(disk.files[name]) for name in disk.names("journal/")}


def test_what_was_noted_is_read_again(disk):
    """Records come back in order; what JSON has no number for comes back as text."""
    lines = journal(disk.store)
    lines.add({"event": "one", "loss": 0.5, "nested": {"a": [1, "x"]}})
    lines.add({"event": "two", "loss": math.nan})
    lines.write()
    lines.add({"event": "three", "loss": -math.inf, "text": "line\nbreak \ud83d"})
    lines.write()
    assert segments(disk) == {
        "aaaaaaaa-00001.jsonl": [
            {"event": "SegmentsFolded", "since": 0},
            {"event": "one", "loss": 0.5, "nested": {"a": [1, "x"]}},
            {"event": "two", "loss": "nan"},
            {"event": "three", "loss": "-inf", "text": "line\nbreak \ud83d"},
        ],
    }


def test_a_value_that_is_no_json_is_noted_as_text(disk):
    """What somebody's code put into an event must not fail the save beside which it is written."""
    lines = journal(disk.store)
    lines.add({"at": 1.5, "event": "odd", "value": {1, 2}})
    lines.add({"at": 2.5, "event": "deep", "values": [math.inf]})
    lines.write()
    assert segments(disk)["aaaaaaaa-00000.jsonl"] == [
        {"at": 1.5, "event": "odd", "value": "{1, 2}"},
        {"at": 2.5, "event": "deep", "values": "[inf]"},
    ]


def test_nothing_noted_is_nothing_written(disk):
    """A save without news costs no file."""
    lines = journal(disk.store)
    lines.write()
    lines.add({"a": 1})
    lines.write()
    lines.write()
    assert len(segments(disk)) == 1


def test_what_could_not_be_written_is_written_next_time(disk):
    """A store that fails loses no line of the journal and doubles none."""

    def away(point):
        raise StoreUnavailable(problem="Away.", remedy="Wait.")

    store = FaultyStore(disk.store, at=away)
    lines = journal(store)
    lines.add({"n": 1})
    with pytest.raises(StoreUnavailable):
        lines.write()
    lines.add({"n": 2})
    store.at = lambda point: lines.add({"n": 3}) if point.startswith("before put") and "00001" in point else None
    lines.write()
    store.at = lambda point: None
    lines.write()
    assert [record["n"] for part in segments(disk).values() for record in part if "n" in record] == [1, 2, 3]


@pytest.mark.parametrize("lost", [1, 2, 3, 30])
def test_an_answer_that_was_lost_costs_no_line_and_doubles_none(disk, lost):
    """A part that arrived although the store said that it is away: the journal of the session goes on behind it."""
    puts, failures = [], 0

    def away(point):
        if point.startswith("after put"):
            puts.append(point)
            if len(puts) == lost:
                raise StoreUnavailable(problem="Timed out.", remedy="Wait.")

    lines = journal(FaultyStore(disk.store, at=away))
    for n in range(40):
        lines.add({"event": "Noted", "n": n})
        try:
            lines.write()
        except StoreUnavailable:
            failures += 1
    assert failures == 1
    repository = Repository(disk.store, "run")
    found = read_journal(repository, repository.files("journal"), ["aaaaaaaa"], 10**6)
    assert found.troubles == ()
    assert [line.count("n") for line in found.lines["aaaaaaaa"] if line.event == "Noted"] == list(range(40))
    assert len(repository.files("journal")) == 1


def test_a_name_that_somebody_else_took_is_passed_over(disk):
    """Other bytes stand where the next part would go: they stay, and the journal goes on under the next number."""
    lines = journal(disk.store)
    disk.files["run/journal/aaaaaaaa-00000.jsonl"] = b"not ours"
    for n in range(3):
        lines.add({"n": n})
        lines.write()
    assert disk.files.pop("run/journal/aaaaaaaa-00000.jsonl") == b"not ours"
    assert [record["n"] for part in segments(disk).values() for record in part if "n" in record] == [0, 1, 2]


def test_a_part_that_is_not_what_was_written_is_refused(disk, damage):
    """One flipped bit, a missing byte or a foreign text: it is not taken for the lines."""
    lines = journal(disk.store)
    lines.add({"event": "one"})
    lines.add({"event": "two"})
    lines.write()
    (name,) = disk.names("journal/")
    text = damage(disk.files[name])
    if text is not None:
        with pytest.raises(ValueError, match="not what was written"):
            read_segment(text)


def test_every_flipped_bit_of_a_part_is_noticed(disk):
    """There is no bit that nobody would miss."""
    lines = journal(disk.store)
    lines.add({"event": "one", "loss": 0.5})
    lines.write()
    text = disk.files[disk.names("journal/")[0]]
    for bit in range(len(text) * 8):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            read_segment(bytes(changed))


def test_a_part_is_lines_of_json(disk):
    """Any tool can read it: one JSON object a line, the last one the digest."""
    lines = journal(disk.store)
    lines.add({"event": "one"})
    lines.write()
    lines = [json.loads(line) for line in disk.files[disk.names("journal/")[0]].splitlines()]
    assert lines[0] == {"event": "one"}
    assert set(lines[1]) == {"sha256"}
