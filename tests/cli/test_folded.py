"""What the command line tells of a run does not change when its old sessions are folded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from colabkeep.checkpoint.compaction import unfolded
from colabkeep.checkpoint.repository import Repository
from colabkeep.stores.local import DirectoryStore
from colabkeep.ui.cli import main

GOLDEN = Path(__file__).parent.parent / "checkpoint/golden/stores/numpy/2026-11-23-0924"


@pytest.fixture
def folded(tmp_path):
    """A run of 35 sessions, of which the first 16 are folded."""
    shutil.copytree(GOLDEN, tmp_path / "storage")
    return tmp_path / "storage"


def told(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    record.pop("as_of", None)  # the time of the report
    return record


@pytest.mark.parametrize("words", [["list"], ["show", "golden"], ["report", "golden"]], ids=lambda words: words[0])
def test_a_folded_run_is_told_as_before(folded, capsys, words):
    """What was folded is put back by hand, under the same names: list, show and report say the same, word for word."""
    after = told(capsys, *words, "--storage", folded)
    run = unfolded(Repository(DirectoryStore(folded), "golden"))
    (history,) = (folded / "golden/journal").glob("history-*")
    for entry in list(run.store.list("golden")):
        if not (folded / entry.name).exists():
            (folded / entry.name).write_bytes(run.store.get(entry.name).read())
    history.unlink()
    assert len(list((folded / "golden/lease").glob("*.json"))) == 35
    assert told(capsys, *words, "--storage", folded) == after
    assert words == ["list"] or len(after["sessions"]) == 35


def test_a_folded_run_is_verified_and_copied(folded, tmp_path, capsys):
    """Each of its files is as written, in the copy too; a damaged history is named."""
    assert main(["verify", "golden", "--storage", str(folded)]) == 0
    assert main(["copy", str(folded), str(tmp_path / "copy")]) == 0
    capsys.readouterr()
    copied = told(capsys, "report", "golden", "--storage", tmp_path / "copy")
    assert len(copied["sessions"]) == 35
    (history,) = (tmp_path / "copy/golden/journal").glob("history-*")
    history.write_bytes(history.read_bytes()[:-1])
    assert main(["verify", "golden", "--storage", str(tmp_path / "copy")]) == 1
    assert f"{history.name}: damaged" in capsys.readouterr().out
    assert main(["verify", "golden", "--storage", str(folded)]) == 0
