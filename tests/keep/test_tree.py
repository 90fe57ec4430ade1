"""What a folder holds comes back as it was; what cannot come back is named; a table from a stranger is not obeyed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from colabkeep.keep.tree import Patterns, checked_table, finish_tree, make_tree, scan


def rows(**entries: Any) -> list[dict[str, Any]]:
    return [{"path": path, "kind": "file", "mode": 0o644, "mtime": 0, **entry} for path, entry in entries.items()]


def test_names_times_permissions_and_links_come_back(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    (there / "a/empty").mkdir(parents=True)
    (there / "a/run.sh").write_bytes(b"echo")
    (there / "a/run.sh").chmod(0o750)
    (there / "a/none").write_bytes(b"")
    os.link(there / "a/run.sh", there / "twin")
    (there / "latest").symlink_to("a/run.sh")
    (there / "absolute").symlink_to(there / "a/none")
    (there / os.fsdecode(b"\xff\xfe")).write_bytes(b"x")
    (there / "训练 一").write_bytes(b"yy")
    (there / "a").chmod(0o555)
    os.utime(there / "a/none", ns=(1, 1_600_000_000_123_456_789))
    os.utime(there / "a", ns=(1, 1_500_000_000_000_000_001))
    found = scan(str(there))
    assert found.left_out == {}
    assert found.size == 4 + 1 + 2
    back.mkdir()
    make_tree(str(back), found.entries)
    finish_tree(str(back), found.entries)
    assert scan(str(back)).entries == found.entries
    assert (back / "twin").samefile(back / "a/run.sh")
    assert (back / "absolute").resolve() == (back / "a/none").resolve()


def test_what_cannot_come_back_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("../secret")
    (tmp_path / "far").symlink_to("/etc/passwd")
    (tmp_path / "in").symlink_to("nothing/yet")
    (tmp_path / "sub/sub").mkdir(parents=True)
    (tmp_path / "sub/sub/top").symlink_to("../../sub")
    (tmp_path / "sub/sub/over").symlink_to("top/../../x")  # by its text inside, and really two above
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(tmp_path)
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        found = scan(str(tmp_path))
    assert set(found.entries) == {"in", "sub", "sub/sub", "sub/sub/top"}
    out = "it is a link that leads out of the folder, or goes up again on its way"
    assert found.left_out == {
        "pipe": "it is a pipe",
        "socket": "it is a socket",
        "out": out,
        "far": out,
        "sub/sub/over": out,
    }


def test_patterns_choose_files(tmp_path: Path) -> None:
    for name in ("weights/last.pt", "weights/best.pt", "cache/x.npy", "log.txt", "weights/tmp/y.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = scan(str(tmp_path), Patterns(include=("weights/*", "*.txt"), exclude=("best.pt", "weights/tmp")))
    assert [path for path, entry in found.entries.items() if entry.kind == "file"] == ["log.txt", "weights/last.pt"]


@pytest.mark.parametrize(
    "table",
    [
        rows(**{"../x": {}}),
        rows(**{"/x": {}}),
        rows(**{"a//x": {}}),
        rows(**{"a/x": {}}),
        rows(**{"a": {}, "a/x": {}}),
        rows(**{"x\0": {}}),
        rows(x={"kind": "link", "target": "../y"}),
        rows(x={"kind": "link", "target": "/y"}),
        rows(x={"kind": "link", "target": "y/../../z"}),
        rows(x={"kind": "link", "target": "\ud800"}),
        rows(**{"\ud800": {}}),
        rows(**{"ж" * 200: {}}),
        rows(**{"x": {"kind": "link", "target": "."}, "x/y": {}}),
        rows(x={"kind": "device"}),
        rows(x={"mode": 0o4755}),
        rows(x={"size": -1}),
        rows(x={"size": True}),
        rows(x={"target": "y"}),
        rows(x={"same_as": "y"}),
        rows(x={"mtime": 2**70}),
        rows(x={}) + rows(x={}),
        {"x": 1},
        [1],
        [{"path": "x"}],
    ],
)
def test_a_table_that_leads_out_or_is_none_is_refused(table: object) -> None:
    with pytest.raises(ValueError, match=r"table|path|link|kind|time"):
        checked_table(table)


def test_a_second_look_is_the_same_as_one_without_the_first(tmp_path: Path) -> None:
    """What has not changed is not made anew; the new name of another link to the same file is seen."""
    for name in ("a/one", "b/two", "rest"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    os.link(tmp_path / "a/one", tmp_path / "b/same")
    before = scan(str(tmp_path)).entries
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b/two").write_bytes(b"xy")
    again = scan(str(tmp_path), before=before).entries
    assert again == scan(str(tmp_path)).entries
    assert again["rest"] is before["rest"]
    assert again["b/two"].size == 2
    assert (before["b/same"].same_as, again["b/same"].same_as, again["c/one"].same_as) == ("a/one", "", "b/same")
