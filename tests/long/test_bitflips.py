"""A share of the bit flips that `python -m tests.long.bitflips` makes by the thousand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_noticed_and_never_loaded(tmp_path):
    """One bit of any file of a run: the audit names the file, and a resume loads what was saved or raises."""
    flip_bits = runpy.run_path(str(Path(__file__).with_name("bitflips.py")))["flip_bits"]
    outcome = flip_bits(tmp_path, 60, seed=20240229)
    assert outcome.wrong == []
    assert outcome.flips == 60
    assert {"blobs", "checkpoints", "journal"} <= set(outcome.files)
    assert {"skipped", "loaded the newest"} <= set(outcome.resumes)
