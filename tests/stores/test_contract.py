"""Every store keeps every promise of a store."""

from __future__ import annotations

from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore
from colabkeep.testing.stores import StoreContract


class TestDirectoryStore(StoreContract):
    """A folder."""

    same_folder_same_place = True

    def make_store(self, folder):
        return DirectoryStore(folder)


class TestMemoryStore(StoreContract):
    """The reference."""

    def make_store(self, folder):
        return MemoryStore()


class TestTieredStore(StoreContract):
    """A folder behind a folder."""

    same_folder_same_place = True

    def make_store(self, folder):
        return TieredStore(DirectoryStore(folder / "front"), DirectoryStore(folder / "behind"))


class TestTieredStoreOverMemory(StoreContract):
    """A store in memory behind a folder."""

    def make_store(self, folder):
        return TieredStore(DirectoryStore(folder), MemoryStore())


class TestFaultyStore(StoreContract):
    """The test kit's own wrapper changes nothing while it is asked for no fault."""

    def make_store(self, folder):
        return FaultyStore(MemoryStore())
