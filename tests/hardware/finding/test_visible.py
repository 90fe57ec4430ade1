"""CUDA_VISIBLE_DEVICES is read as the driver reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.hardware.base import Accelerator, visible

UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f111-d72c-4106-c12f-20bd9faed9f6", "MIG-aa-bb")
CARDS = tuple(Accelerator(kind="cuda", name=name, uuid=uuid) for name, uuid in zip("abc", UUIDS, strict=True))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, "abc"),
        ("0", "a"),
        ("2,0", "ca"),
        (" 1 , 2 ", "bc"),
        ("", ""),
        (" ", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("void", ""),
        ("0,-1,1", "a"),  # the list ends before what names nothing
        ("0,7,1", "a"),
        ("0,,1", "a"),
        ("+1", "b"),
        ("1x,2", "bc"),  # read like C's strtoul
        ("1,1", ""),  # a device twice: none at all
        ("0,1,0", ""),
        (UUIDS[1], "b"),
        (f"{UUIDS[2]},{UUIDS[0]}", "ca"),
        ("GPU-8932f9", "a"),  # cut short, and still only one
        ("GPU-8932f", ""),  # not any more
        ("GPU-8932f937,GPU-8932f9", ""),
        (f"{UUIDS[0]},1", "a"),
        (f"0,{UUIDS[1]}", "a"),
        ("GPU-", ""),
        ("gpu-8932f937", ""),
        ("MIG-aa", "c"),
    ],
)
def test_the_list_is_read_as_the_driver_reads_it(value, names):
    """Indexes and identifiers, in their order, up to the first that names no device; none if one comes twice."""
    assert "".join(one.name for one in visible(CARDS, value)) == names


@given(st.text(alphabet="0123456789,-+ GPUMIGabc\u0663\u00b2\x00"))
def test_no_value_is_an_error(value):
    """Whatever a variable holds, the answer is some of the cards, none twice."""
    chosen = visible(CARDS, value)
    assert set(chosen) <= set(CARDS)
    assert len(set(chosen)) == len(chosen)
