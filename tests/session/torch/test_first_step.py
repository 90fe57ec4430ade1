"""What took how long until the first step, told afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import colabkeep
from colabkeep.session.story import read_story
from colabkeep.stores import open_store


def test_the_report_tells_what_took_how_long(tmp_path: Path, kit: SimpleNamespace) -> None:
    """For each of the last sessions, in words, also in a notebook and for programs."""
    kit.fit(tmp_path, max_steps=15)
    kit.fit(tmp_path)
    first, second = read_story(open_store(tmp_path), "r").sessions
    assert dict(first.start).keys() | {"restore"} == dict(second.start).keys()
    assert all(seconds >= 0 for _, seconds in second.start)
    report = colabkeep.report("r", storage=tmp_path)
    lines = [line for line in report.lines() if "to the first step" in line]
    assert [line.split(" · ")[0].strip() for line in lines[1:]] == ["2", "1"]
    assert re.search(r"\d s to the first step \(.*[a-z] \d+\.\d+ s", lines[1]), "in seconds, the parts that matter"
    assert "From the start to the first step" in report._repr_html_()
    assert dict(report.to_dict()["sessions"][1]["start"]).keys() == dict(second.start).keys()
