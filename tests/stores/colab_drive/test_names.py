"""A file's name on the mount says which object it is and how large, and nobody else's file is taken for one."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from colabkeep.stores.colab_drive.files import new_file_name, parse

LASTS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,30}", fullmatch=True)


@given(last=LASTS, size=st.integers(0, 2**50))
def test_a_file_name_leads_back_to_its_object(last, size):
    """Whatever the object is called: with no ending, with several, with dots at its end."""
    assert parse(new_file_name(last, size)) == (last, size)


@given(last=LASTS)
def test_a_plain_file_is_an_object_of_any_size(last):
    """What somebody copied into Drive by hand has its object's own name."""
    assert parse(last) == (last, None)


def test_a_name_is_new_each_time():
    """So nothing is ever overwritten, and a file that is still being deleted is in nobody's way."""
    assert len({new_file_name("a.json", 7) for _ in range(100)}) == 100


def test_the_ending_stays_last():
    """Other programs know a file by its ending."""
    assert new_file_name("weights.safetensors", 52_428_800).endswith(".safetensors")


@pytest.mark.parametrize(
    "file",
    [
        "a (1).json",
        "a~5.json",
        "a~5~0123456789abcde.json",
        "a~5~0123456789ABCDEF.json",
        "a~05~0123456789abcdef.json",
        "a~-5~0123456789abcdef.json",
        "a~5~0123456789abcdef~5~0123456789abcdef.json",
        "~5~0123456789abcdef.json",
        ".a~5~0123456789abcdef.json",
        "a~5~0123456789abcdefjson",
        "~1",
        "a~" + "9" * 5000 + "~0123456789abcdef",
        ".hidden",
        "",
    ],
    ids=lambda file: file[:50],
)
def test_a_foreign_file_is_no_object(file):
    """Drive's own "a (1).json", hidden files, and what only looks like one of ours."""
    assert parse(file) is None
