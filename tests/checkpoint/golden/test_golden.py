"""Runs that earlier versions wrote go on with this one, and end with the same bits: for ever.

`stores` holds a run of each, by kind of training and date, stopped at step 8 in the middle of an epoch; `training.py`
is what wrote it. A release adds one of each kind; none is ever changed or taken out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import newest_first
from colabkeep.checkpoint.verify import audit
from colabkeep.session.history import read_history
from colabkeep.stores.local import DirectoryStore

HERE = Path(__file__).parent
MARKS = {"numpy": (), "torch": pytest.mark.torch, "paddle": pytest.mark.paddle}
STORES = [
    pytest.param(store, marks=MARKS[store.parent.name], id=f"{store.parent.name}-{store.name}")
    for store in sorted(HERE.glob("stores/*/*"))
]
ENDS = {
    "numpy": "6bf34e5e81bd40ab57bbd732aca09dc2b8356b9d8222d08f03c87fe5dc33b80a",
    "torch": "771a8a26712cbd63a9b412029ff4fa9babad56a1a340ecf45f70bcfb84ea6252",
    "paddle": "d634f5ddb740a92ddf708589bda7828ed5088400586e6f18a86f947dad0e3026",
}
"""The weights after 18 steps in one piece, as the oldest version with such a training computed them."""
FOLDED = {"2026-11-23-0924"}
"""Runs of 35 sessions, most of which trained nothing: the first sixteen are folded into a history."""

Trained: TypeAlias = Callable[[str], tuple[Path, dict[str, str]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """For each kind: copies of its stores, each trained to its end, and a run in one piece, `whole`; the digests of the
    weights in the end. One process trains all of them, since it takes longer to import a framework than to train."""

    @cache
    def of(kind: str) -> tuple[Path, dict[str, str]]:
        home = tmp_path_factory.mktemp(kind)
        for store in HERE.glob(f"stores/{kind}/*"):
            shutil.copytree(store, home / store.name)
        names = [*sorted(store.name for store in home.iterdir()), "whole"]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", HERE / "training.py", kind, "18", *(home / name for name in names)],
            env={**os.environ, "PYTHONPATH": str(Path(colabkeep.__file__).parent.parent)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return home, dict(zip(names, done.stdout.splitlines()[-len(names) :], strict=True))

    return of


@pytest.mark.parametrize("store", STORES)
def test_a_run_of_an_earlier_version_ends_with_the_same_bits(trained: Trained, store: Path) -> None:
    """Taken up in the middle of an epoch by this version, it is not begun anew, nothing of it is called damaged, and
    the weights in the end are those of a training that the earlier version did in one piece."""
    before = Repository(DirectoryStore(store), "golden")
    newest = before.manifest(newest_first(before)[0])
    assert newest.progress.step in (6, 8)
    assert {finding.state for finding in audit(before)} <= {"ok", "orphan"}
    home, ends = trained(store.parent.name)
    assert ends[store.name] == ENDS[store.parent.name]
    after = Repository(DirectoryStore(home / store.name), "golden")
    assert after.manifest(newest_first(after)[0]).lineage == (*newest.lineage, (newest.session, newest.progress.step))
    assert after.quarantined() == set()


@pytest.mark.parametrize("store", STORES)
def test_the_journal_of_an_earlier_version_is_read(store: Path) -> None:
    """What it saved, and that it stopped, is told as on the day."""
    run_history = read_history(DirectoryStore(store), "golden")
    session = run_history.sessions[-1]
    assert [each.number for each in run_history.sessions] == list(range(1, 1 + (35 if store.name in FOLDED else 1)))
    assert all(each.noted and each.host for each in run_history.sessions)
    assert session.stopped in ("max_steps", "interrupt")
    assert [save.step for save in session.saves][-1] in (6, 8)
    assert all(save.written for save in session.saves)
    assert {save.level for save in session.saves} == {"local"}
    assert session.began is not None
    assert not run_history.troubles


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS[kind]) for kind in ENDS])
def test_the_trainings_end_so_without_a_break(trained: Trained, kind: str) -> None:
    """The bits are those of the training and not of the version: this one computes the same in one piece."""
    assert trained(kind)[1]["whole"] == ENDS[kind]


def test_each_kind_has_stores() -> None:
    """A folder that was lost in a checkout is noticed."""
    assert {kind: len(list(HERE.glob(f"stores/{kind}/*"))) for kind in ENDS} == {"numpy": 8, "torch": 7, "paddle": 3}
