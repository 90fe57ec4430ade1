"""A store on a fake mount, and a clock under which Drive works while somebody waits."""

from __future__ import annotations

import pytest

from colabkeep.stores.colab_drive import MountedStore
from colabkeep.testing.clock import FakeClock
from tests.fakes.mounts import FakeMount


class Tide(FakeClock):
    """A clock that stands still, except that whoever sleeps lets DriveFS do two things, as long as it `flows`."""

    def __init__(self, mount):
        super().__init__()
        self.mount = mount
        self.flows = True

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.flows:
            self.mount.notice()
            self.mount.sync(most=2)


@pytest.fixture
def mount(tmp_path):
    """A mount that is never treated in a way that the real one does not stand."""
    mount = FakeMount(tmp_path / "drive")
    yield mount
    assert mount.misuse == []


@pytest.fixture
def tide(mount):
    return Tide(mount)


@pytest.fixture
def make(mount, tide):
    """Makes a store on the mount."""

    def make(**options):
        words = {"files": mount.files, "clock": tide, "pauses": (1.0, 2.0), **options}
        return MountedStore(mount.root / "colabkeep", **words)

    return make


@pytest.fixture
def store(make):
    return make()
