"""A repository on the Hub keeps every promise of a store."""

from __future__ import annotations

import pytest

from colabkeep.testing.stores import StoreContract

# huggingface_hub hands a file to its HTTP library by a name that this one calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


class TestRepository(StoreContract):
    """A folder of a repository that is not there yet."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _tools(self, opened, place):
        self.opened, self.place = opened, place

    def make_store(self, folder):
        return self.opened(f"{self.place(folder)}/some/folder")
