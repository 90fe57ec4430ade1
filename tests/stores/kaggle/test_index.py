"""The index of a version leads to our own bytes only, and its files stay few and harmless."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colabkeep.core.layout import seal, unseal
from colabkeep.stores.kaggle.index import MOST_SINGLE, Content, Held, Index, arrange

PACK = f"pack-{'0' * 64}.bin"
INDEX = Index(
    dataset="ada/checkpoints",
    base=3,
    files={PACK: Content(size=100, sha256="0" * 64, md5="x")},
    objects={"run/a": Held(file=PACK, offset=17, size=83, sha256="1" * 64)},
)


def test_an_index_is_read_as_it_was_written():
    """All of it comes back."""
    assert Index.from_bytes(INDEX.to_bytes(), "ada/checkpoints") == INDEX


def changed(**changes):
    return seal({**unseal(INDEX.to_bytes()), **changes})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        INDEX.to_bytes()[:-3],
        INDEX.to_bytes().replace(b'"offset":17', b'"offset":16'),
        changed(format=2),
        changed(dataset="eve/checkpoints"),
        changed(base=None),
        changed(objects=[]),
        changed(files={"../../etc/passwd": {"size": 100, "sha256": "", "md5": ""}}),
        changed(files={"model.zip": {"size": 100, "sha256": "", "md5": ""}}),
        changed(objects={"../a": {"file": PACK, "offset": 0, "size": 1, "sha256": ""}}),
        changed(objects={"a": {"file": "other", "offset": 0, "size": 1, "sha256": ""}}),
        changed(objects={"a": {"file": PACK, "offset": 90, "size": 11, "sha256": ""}}),
        changed(objects={"a": {"file": PACK, "offset": -1, "size": 1, "sha256": ""}}),
        changed(objects={"a": {"file": PACK, "offset": 5, "size": -1, "sha256": ""}}),
        changed(objects={"a": {"file": PACK, "offset": "5", "size": 1, "sha256": ""}}),
    ],
)
def test_a_hostile_or_damaged_index_is_refused(text):
    """Another's, a newer one's, a changed one's; names that lead out; places beyond the file."""
    with pytest.raises(ValueError, match=r"\w"):
        Index.from_bytes(text, "ada/checkpoints")


@example([(5 * 2**20, kind) for kind in range(100)])
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 60)), max_size=200))
def test_any_set_of_objects_fits_below_fifty_files(objects):
    """However many and however large: each has one place, equal ones share it, and no name is an archive's."""
    contents = {f"run/{n}": Content(size=size, sha256=f"{kind:064d}", md5="") for n, (size, kind) in enumerate(objects)}
    singles, packed = arrange(contents)
    assert sorted([*singles, *packed]) == sorted(contents)
    assert len(set(singles.values())) <= MOST_SINGLE < 50 - 2
    assert all(file.endswith(".bin") for file in singles.values())
    if packed and singles:
        left = max(contents[name].size for name in packed)
        assert left < 4 * 2**20 or len(set(singles.values())) == MOST_SINGLE
