"""A store on a mounted Drive keeps every promise of a store, also where calls fail."""

from __future__ import annotations

import pytest

from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.stores import StoreContract
from tests.fakes.mounts import FakeMount

from .conftest import Tide


class OnAMount(StoreContract):
    """`mount` is there from the first `make_store` on; every store made with one folder is on the one mount."""

    @pytest.fixture(autouse=True)
    def _no_mount_yet(self):
        self.mounts = {}
        yield
        for mount in self.mounts.values():
            assert mount.misuse == []

    def mount(self, folder):
        if folder not in self.mounts:
            self.mounts[folder] = FakeMount(folder)
        return self.mounts[folder]

    def mounted(self, folder, **options):
        mount = self.mount(folder)
        return MountedStore(mount.root / "colabkeep", files=mount.files, clock=Tide(mount), **options)


class TestMountedStore(OnAMount):
    """On a mount that behaves, in folders of two files, so that nearly everything overflows."""

    same_folder_same_place = True

    def make_store(self, folder):
        return self.mounted(folder, per_folder=2)


class TestWhileDriveWorks(OnAMount):
    """On a mount whose files get their attributes from another thread, by the real clock."""

    same_folder_same_place = True

    @pytest.fixture
    def store(self, folder):
        store = self.make_store(folder)
        with self.mount(folder).syncing():
            yield store
        store.close()

    def make_store(self, folder):
        mount = self.mount(folder)
        return MountedStore(mount.root / "colabkeep", files=mount.files)


NOT_AMONG_FAULTS = {
    "test_many_chunks_become_one_object",  # these count how often a source is read: once more for each attempt
    "test_what_is_being_written_is_not_seen",
    "test_flush_brings_everything_to_the_top_level",  # `confirm`, which asks once and does not wait
}


class TestAmongFaults(OnAMount):
    """Every thirtieth call fails, at random."""

    same_folder_same_place = True

    @pytest.fixture
    def store(self, folder, request):
        store = self.make_store(folder)
        if request.function.__name__ in NOT_AMONG_FAULTS:
            self.mount(folder).fails = 0.0
        yield store
        store.close()

    def make_store(self, folder):
        store = self.mounted(folder, pauses=(0.0,) * 30)
        self.mount(folder).fails = 1 / 30
        return store


class TestBehindADisk(OnAMount):
    """As it is on Colab."""

    same_folder_same_place = True

    def make_store(self, folder):
        return TieredStore(DirectoryStore(folder / "disk"), self.mounted(folder / "drive"))

    def mount(self, folder):
        folder.mkdir(exist_ok=True)
        return super().mount(folder)
