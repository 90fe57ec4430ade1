"""A few of the kills of `python -m tests.keep.crashes`."""

from __future__ import annotations

import pytest

from tests.keep.crashes import VICTIMS, run


@pytest.mark.slow
def test_what_comes_back_after_a_kill_existed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the program, of the one who keeps its folder, or of both: and it is never older than what was said."""
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    told = run(len(VICTIMS), seed=1, pause=1.0, in_turn=True)
    assert told["wrong"] == []
    assert set(told["judged"]) == set(VICTIMS)
