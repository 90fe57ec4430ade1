"""The blocks of the documentation that claim to be whole programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.test_docs import Block, all_blocks
from tests.programs import run


@pytest.mark.parametrize("block", [block for block in all_blocks() if block.shows], ids=str)
def test_code_that_is_marked_so_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that claims to be whole runs as it stands, without a warning, and prints what the page says."""
    assert block.shows is not None
    monkeypatch.chdir(tmp_path)
    kept = [line for line in block.body.splitlines() if not line.startswith("%")]  # installed it is
    done = run("\n".join(kept), strict=True, environ={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert block.shows in done.stdout
