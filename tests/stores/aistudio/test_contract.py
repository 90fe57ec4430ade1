"""A repository on AI Studio's hub keeps every promise of a store."""

from __future__ import annotations

import pytest

from colabkeep.testing.stores import StoreContract


class TestRepository(StoreContract):
    """The root of a repository that is not there yet."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _tools(self, opened, place):
        self.opened, self.place = opened, place

    def make_store(self, folder):
        return self.opened(self.place(folder))


class TestFolderOfARepository(TestRepository):
    """A folder in one, on a server that tells large files with their own sizes."""

    @pytest.fixture(autouse=True)
    def _sizes(self, hub):
        hub.sizes, hub.etag = "real", "none"

    def make_store(self, folder):
        return self.opened(f"{self.place(folder)}/some/folder")
