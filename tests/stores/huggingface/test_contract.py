"""A repository on the Hub keeps every promise of a store."""

from __future__ import annotations

import pytest

from colabkeep.testing.faults import FaultyStore
from colabkeep.testing.stores import StoreContract

# huggingface_hub hands a file to its HTTP library by a name that this one calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


class TestRepository(StoreContract):
    """The root of a repository that is not there yet."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _tools(self, opened, place):
        self.opened, self.place = opened, place

    def make_store(self, folder):
        return self.opened(self.place(folder))


class TestFolderOfARepository(TestRepository):
    """A folder in one."""

    def make_store(self, folder):
        return self.opened(f"{self.place(folder)}/some/folder")


class TestFaultyRepository(TestRepository):
    """Wrapped, and asked for no fault."""

    def make_store(self, folder):
        return FaultyStore(super().make_store(folder))
