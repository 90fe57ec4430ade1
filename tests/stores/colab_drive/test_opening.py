"""A mounted Drive is named by a URL, alone or behind a folder, and its url leads back to it."""

from __future__ import annotations

import pytest

from colabkeep.core.errors import UsageError
from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore


@pytest.mark.parametrize("name", ["colabkeep", "My Drive/with space", "per%20cent", "ü", "a#b?c", "a + b"])
def test_the_url_of_a_store_opens_it_again(tmp_path, name):
    """Whatever the folder is called; and nothing is made by opening."""
    store = MountedStore(tmp_path / name)
    again = open_store(store.url)
    assert isinstance(again, MountedStore)
    assert again.url == store.url
    assert list(tmp_path.iterdir()) == []


def test_a_url_as_people_write_it(tmp_path):
    """With the blank of "My Drive" in it."""
    store = open_store(f"mounted://{tmp_path}/My Drive/colabkeep")
    (tmp_path / "My Drive").mkdir()
    store.put("run/a", BytesSource(b"1"))
    assert (tmp_path / "My Drive" / "colabkeep" / "run").is_dir()


def test_a_pair_is_a_disk_with_drive_behind_it(tmp_path):
    """As the platform names it on Colab, and as a user would."""
    pair = open_store(f"{tmp_path}/disk + mounted://{tmp_path}/MyDrive/colabkeep")
    assert isinstance(pair.behind, MountedStore)
    again = open_store(pair.url)
    assert (again.front.url, again.behind.url) == (f"{tmp_path}/disk", f"mounted://{tmp_path}/MyDrive/colabkeep")


@pytest.mark.parametrize(
    "url",
    [
        "mounted://",
        "mounted://content/drive/MyDrive/x",
        "mounted:///content/drive?trash=1",
        "mounted:///content/drive#part",
    ],
)
def test_what_cannot_be_meant_is_told_with_how_to_write_it(url):
    """A forgotten slash would otherwise be another folder."""
    with pytest.raises(UsageError, match="mounted:///content/drive/MyDrive/colabkeep"):
        open_store(url)
