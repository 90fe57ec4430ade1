"""`colabkeep copy`: runs to another place or another name, as people type it."""

from __future__ import annotations

import re

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import newest_first
from colabkeep.core.layout import seal, unseal
from colabkeep.core.manifest import FORMAT
from colabkeep.stores.local import DirectoryStore


def test_all_runs_go_to_another_place(colabkeep_cli, trained, tmp_path):
    """Said before, done, verified; done again, nothing is left to do."""
    target = tmp_path / "target"
    said = colabkeep_cli("copy", trained, target, "--dry-run")
    assert said.status == 0
    assert "would be copied" in said.out
    assert not list(target.rglob("*.json"))
    said = colabkeep_cli("copy", trained, target)
    assert said.status == 0
    assert said.out.count("Verified: each file there has the bytes that were read here.") == 2
    again = colabkeep_cli("copy", trained, target, "--json").json
    assert [(run["name"], run["files"], run["verified"]) for run in again["runs"]] == [
        ("first", 0, True),
        ("second", 0, True),
    ]
    assert colabkeep_cli("verify", "--storage", target).status == 0
    here, there = (
        re.sub(r"\d+ s ago", "now", colabkeep_cli("list", "--storage", place).out) for place in (trained, target)
    )
    assert there == here.replace(str(trained), str(target))


def test_a_run_gets_another_name(colabkeep_cli, storage):
    """In the same storage, in any script."""
    said = colabkeep_cli("copy", storage, storage, "--run", "first", "--as", "训练一")
    assert said.status == 0
    assert "as 训练一" in said.out
    assert "训练一" in colabkeep_cli("list", "--storage", storage).out
    assert colabkeep_cli("verify", "训练一", "--storage", storage).status == 0


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--run", "third"], 3, "no run 'third'"),
        (["--as", "x"], 2, "--run NAME --as NAME"),
        (["--run", "first", "--as", "../x"], 2, "cannot be the name"),
    ],
)
def test_what_cannot_be_meant_is_refused(colabkeep_cli, storage, tmp_path, words, status, says):
    """In words, with the status of every command, and nothing is written."""
    said = colabkeep_cli("copy", storage, tmp_path / "target", *words)
    assert said.status == status
    assert says in said.err
    assert not list((tmp_path / "target").rglob("*.json"))


def test_a_storage_without_runs_is_said(colabkeep_cli, tmp_path):
    """A misspelt folder is no success."""
    said = colabkeep_cli("copy", tmp_path / "empty", tmp_path / "target")
    assert (said.status, "has no runs" in said.err) == (3, True)


@pytest.mark.parametrize(("change", "status"), [("damaged", 1), ("newer", 5)])
def test_what_is_left_out_is_named_and_is_no_success(colabkeep_cli, storage, tmp_path, change, status):
    """Whoever removes the source after a copy goes by the exit status."""
    repository = Repository(DirectoryStore(storage), "first")
    newest = newest_first(repository)[0]
    path = storage / f"first/checkpoints/{newest}.json"
    text = path.read_bytes()
    path.write_bytes(text[:-1] if change == "damaged" else seal({**unseal(text), "format": FORMAT + 1}))
    said = colabkeep_cli("copy", storage, tmp_path / "target", "--run", "first")
    assert said.status == status
    assert f"LEFT OUT {newest}" in said.out
    assert "Verified" in said.out
