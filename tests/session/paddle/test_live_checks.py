"""The page of manual checks, as far as it can be followed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.live import check_cells


@pytest.mark.long
def test_the_cells_of_the_manual_checks_run_as_they_stand(tmp_path: Path) -> None:
    """Whoever pastes them has a training, its report and both lines to send back; and they resume as the page says. No
    token of the machine is in what is sent."""
    check_cells("P", tmp_path)
