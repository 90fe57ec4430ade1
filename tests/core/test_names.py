"""Names of runs in any script: one folder each, legal everywhere, and back."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import colabkeep
from colabkeep.core.arguments import checked_run_name, is_reserved, run_folder, run_name_of
from colabkeep.core.errors import UsageError
from colabkeep.stores.base import check_name

PLAIN = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,30}", fullmatch=True)
PARTS = st.one_of(PLAIN, st.text(min_size=1, max_size=24), st.text("ab1-_. é训:", min_size=1, max_size=12))
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


def folder_or_none(name: str) -> str | None:
    try:
        return run_folder(checked_run_name(name))
    except UsageError:
        return None


@given(NAMES)
def test_a_name_goes_to_disk_and_back(name: str) -> None:
    """Whatever is taken as a name is legal in every store, and is shown as it was written."""
    folder = folder_or_none(name)
    assume(folder is not None)
    assert check_name(folder) == folder
    assert run_name_of(folder) == unicodedata.normalize("NFC", name)
    longest = f"{folder}/blobs/{'0' * 64}-{'0' * 8}.safetensors"
    assert check_name(longest) == longest
    assert folder == name or all(len(part) <= 255 - len(".status.html") for part in folder.split("/"))


@given(NAMES, NAMES)
def test_two_names_have_two_folders(one: str, other: str) -> None:
    """No run goes on with another's checkpoints, plain names included."""
    first, second = folder_or_none(one), folder_or_none(other)
    assume(first is not None and second is not None)
    same = unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
    assert (first == second) is same


@given(st.lists(PLAIN, min_size=1, max_size=3).map("/".join))
def test_a_plain_name_keeps_its_folder(name: str) -> None:
    """Every run that an earlier version could train is found where it was."""
    assert run_folder(name) == name
    assert run_name_of(name) == name


@given(st.text("u8-_.abc0123456789efé", max_size=30).map(lambda text: f"u8--{text}"))
def test_what_looks_like_a_spelled_name_is_one_or_is_itself(folder: str) -> None:
    """Somebody else's folder is shown as it is called, unless it is exactly what we would call it."""
    name = run_name_of(folder)
    assert name == folder or run_folder(name) == folder


@pytest.mark.parametrize(
    ("name", "folder"),
    {
        "my run": "u8--my_run",
        "résumé": "u8--r-e9-sum-e9-",
        "re\u0301sume\u0301": "u8--r-e9-sum-e9-",
        "训练一": "u8---8bad.7ec3.4e00-",
        "exp/训练 2": "exp/u8---8bad.7ec3-_2",
        "2026-11-22 10:30": "u8--2026-2d-11-2d-22_10-3a-30",
        "lr=0.1": "u8--lr-3d-0.1",
        "🚀": "u8---1f680-",
    }.items(),
)
def test_what_folders_are_called_is_for_ever(name: str, folder: str) -> None:
    """The spelling is a promise to what lies on disks already: these do not change."""
    assert run_folder(checked_run_name(name)) == folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (7, "type int"),
        (None, "type NoneType"),
        ("", "empty"),
        ("a//b", "empty part"),
        ("/a", "empty part"),
        ("../a", "dot"),
        (".hidden", "dot"),
        (" a", "blank"),
        ("a /b", "blank"),
        ("a\\b", "backslash"),
        ("a\nb", "cannot be written"),
        ("a\ud800", "cannot be written"),
        ("u8--my_run", "'my run'"),
        ("训" * 60, "too long"),
        ("a" * 256, "too long"),
        ("a" * 421, "too long"),
        ("exp/" + "a" * 300, "too long"),
        ("/".join(["a" * 100] * 5), "too long"),
    ],
)
def test_what_is_no_name_is_refused_with_one_that_is(name: object, said: str) -> None:
    """A sentence that says what is wrong with it, and what to write."""
    with pytest.raises(UsageError, match=said) as caught:
        checked_run_name(name)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["blobs", "exp/checkpoints", "lease/exp", "run.json", "exp.status.html", "a.jsonl"])
def test_names_of_our_own_files_are_known(name: str) -> None:
    """A run below another one must not be taken for that one's files."""
    assert is_reserved(name) in name.split("/")


@given(NAMES)
def test_other_names_are_not_reserved(name: str) -> None:
    """No name is refused because it only contains such a word."""
    assume(not is_reserved(name))
    assert is_reserved(f"{name}s-blobs-of-mine") == ""


@pytest.mark.parametrize("ask", [colabkeep.report, colabkeep.compare, colabkeep.load_weights])
@pytest.mark.parametrize("run", [7, b"run", ["a", 7]])
def test_who_asks_for_a_run_says_its_name_as_text(ask: Any, run: Any, tmp_path: Path) -> None:
    """What is no name is refused with words, and not by what takes names apart."""
    with pytest.raises(UsageError, match="must be"):
        ask(run, storage=tmp_path)
