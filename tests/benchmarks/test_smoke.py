"""The benchmarks run, on tiny sizes. What they measure is not judged here: a busy machine would fail good code."""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import colabkeep

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = (
    "imports",
    "detection",
    "accelerators",
    "doctor",
    "loop",
    "ranks",
    "saving",
    "memory",
    "background",
    "durable",
    "frozen",
    "resume",
    "seeding",
    "stores",
    "panel",
    "folders",
    "kills",
    "peers",
    "trainers",
    "gpu",
)
LONG = frozenset({"ranks", "memory", "resume", "stores", "folders", "kills", "peers", "trainers"})
"""With --quick, too, each takes longer than most others together."""
PADDLES = "paddles"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in NAMES if name not in LONG], marks=pytest.mark.torch),
        pytest.param(sorted(LONG), marks=[pytest.mark.torch, pytest.mark.long]),
        pytest.param([PADDLES], marks=[pytest.mark.paddle, pytest.mark.long]),
    ],
    ids=["torch", "long", PADDLES],
)
def test_a_benchmark_gives_figures_that_can_be_compared(names: list[str], tmp_path: Path) -> None:
    """Each runs by its name and keeps figures with unit, spread, machine and versions; all of a framework in one
    process, which imports it once."""
    environ = {**os.environ, "PYTHONPATH": str(Path(colabkeep.__file__).resolve().parents[1])}
    words = ["--quick", "--rounds", "1", "--results", tmp_path, "--folder", tmp_path]
    ran = subprocess.run(
        [sys.executable, BENCHMARKS, *names, *words], env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for name in names:
        result = json.loads((tmp_path / f"{name}.json").read_text())
        assert result["quick"] is True, name
        assert {"cpu", "cores", "load", "colabkeep", "numpy", "python"} <= result["about"].keys(), name
        assert result["figures"], name
        for figure in result["figures"]:
            assert figure["what"], (name, figure)
            assert figure["unit"], (name, figure)
            assert all(math.isfinite(figure[key]) for key in ("low", "median", "high")), (name, figure)
            assert figure["low"] <= figure["median"] <= figure["high"], (name, figure)
            assert figure["n"] >= 1, (name, figure)


def test_all_benchmarks_can_be_asked_for() -> None:
    """What is named in this test is what `python benchmarks` knows, and each has its page."""
    listed = subprocess.run(
        [sys.executable, BENCHMARKS, "--help"],
        env={**os.environ, "PYTHONPATH": str(Path(colabkeep.__file__).resolve().parents[1]), "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ", ".join([*NAMES, PADDLES]) in listed.stdout
    assert all((BENCHMARKS / f"{name}.py").exists() for name in [*NAMES, PADDLES])


@pytest.mark.torch
def test_by_default_nothing_takes_hours_and_a_quick_look_sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """`peers` and `kills` are measured where they are asked for; with --quick all run, also where there is no GPU."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    possible = runpy.run_path(str(BENCHMARKS / "__main__.py"))["_possible"]
    long = {"peers", "kills"}
    assert set(NAMES) - long - {"gpu"} <= set(possible(quick=False)) <= {*NAMES, PADDLES} - long
    assert set(NAMES) <= set(possible(quick=True))


def test_a_missed_goal_is_shown_as_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says for each goal whether it was met, by the median."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from table import lines

    figure = {"what": "a save", "unit": "ms", "low": 1.0, "high": 9.0, "n": 5}
    met, missed, free = lines(
        {"figures": [{**figure, "median": 2.0, "goal": 3.0}, {**figure, "median": 4.0, "goal": 3.0},
                     {**figure, "median": 4.0, "goal": None}]}
    )  # fmt: skip
    assert "met" in met
    assert "missed" in missed
    assert "met" not in free
    assert "missed" not in free


@pytest.mark.torch
def test_a_save_that_is_not_made_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A save is waited for until it is there. One that is only asked for would be a cheap one."""
    import torch

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from batches import Batches

    with colabkeep.Run("r", model=torch.nn.Linear(1, 1), storage=tmp_path, save_every=None, progress=False) as kept:
        batches = Batches(kept)
        for wait in (False, True):
            kept.step()
            batches.save(wait=wait)
            batches.committed()
            assert kept.checkpoint is not None
        monkeypatch.setattr(kept, "save", lambda **_: None)
        kept.step()
        with pytest.raises(RuntimeError, match="has not been made"):
            batches.save()
