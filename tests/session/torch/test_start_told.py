"""What the report tells of the way to a session's first step."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest

import colabkeep
from colabkeep.session.history import read_history
from colabkeep.stores import open_store

pytestmark = pytest.mark.torch

SECONDS = re.compile(r"(\d+\.\d\d) s")


def test_the_report_tells_what_took_how_long(tmp_path: Path, kit: SimpleNamespace) -> None:
    """For each of the last sessions, from the call to the first step: in words, in a notebook and for programs."""
    kit.fit(tmp_path, max_steps=15)
    kit.fit(tmp_path)
    first, second = read_history(open_store(tmp_path), "r").sessions
    assert dict(first.start).keys() | {"restore"} == dict(second.start).keys()
    assert {"import", "check", "storage", "find", "read", "ready", "loader", "step"} < dict(second.start).keys()
    assert all(seconds >= 0 for _, seconds in second.start)
    report = colabkeep.report("r", storage=tmp_path)
    lines = [line.strip() for line in report.lines() if " s to the first step" in line]
    assert [line.split(" · ")[0] for line in lines] == ["2", "1"]
    page = unescape(report._repr_html_())
    assert "From the start to the first step" in page
    assert all(line in page for line in lines), "the notebook shows the same lines"
    assert dict(report.to_dict()["sessions"][1]["start"]).keys() == dict(second.start).keys()
    for line in lines:
        whole, *parts = map(float, SECONDS.findall(line))
        assert sum(parts) == pytest.approx(whole, abs=0.005 * (len(parts) + 2)), "the parts are the whole"
