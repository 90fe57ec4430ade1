"""A repository on AI Studio's hub keeps every promise of a store."""

from __future__ import annotations

import pytest

from colabkeep.testing.stores import StoreContract


class TestRepository(StoreContract):
    """A folder of a repository that is not there yet, on a server that tells large files with their own sizes."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _tools(self, hub, opened, place):
        self.opened, self.place = opened, place
        hub.sizes, hub.etag = "real", "none"

    def make_store(self, folder):
        return self.opened(f"{self.place(folder)}/some/folder")
