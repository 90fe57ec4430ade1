"""A mount that died under the copying thread is mounted again by the training, between two steps."""

from __future__ import annotations

import threading

import pytest

from colabkeep.core.errors import MountError, StoreUnavailable
from colabkeep.core.events import Noted, StoreDegraded
from colabkeep.session.open import Remounting
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.testing.clock import FakeClock
from tests.fakes.mounts import FakeMount

TOLD = StoreDegraded(url="drive", detail="cannot be reached")
HEALED = StoreDegraded(url="drive", detail="works again", healed=True)


class Page:
    """The user at the notebook's page, who agrees unless `answer` is an error; and where they were asked."""

    def __init__(self, mount):
        self.mount = mount
        self.answer = None
        self.asked = []

    def __call__(self):
        self.asked.append(threading.current_thread())
        if self.answer is not None:
            raise self.answer
        self.mount.come_back()


@pytest.fixture
def mount(tmp_path):
    return FakeMount(tmp_path)


@pytest.fixture
def page(mount):
    return Page(mount)


@pytest.fixture
def remounting(page):
    return Remounting(page)


@pytest.fixture
def store(mount, remounting):
    options = {"files": mount.files, "clock": FakeClock(), "pauses": (1.0,), "remount": remounting.ask}
    return MountedStore(mount.root / "colabkeep", **options)


def copied(store, name):
    """Did another thread get an object there?"""
    done = []

    def work():
        try:
            done.append(store.put(name, BytesSource(b"data")))
        except StoreUnavailable:
            done.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return done[0] is not None


def test_the_copying_thread_leaves_word_and_the_training_mounts(mount, page, remounting, store):
    """Colab's page answers the main thread only; each outage is mended in its turn."""
    for outage in (1, 2):
        mount.die()
        for attempt in range(3):
            assert not copied(store, f"run/{outage}-{attempt}")
        assert len(page.asked) == outage - 1
        remounting(TOLD)
        assert copied(store, f"run/{outage}")
        assert page.asked == [threading.main_thread()] * outage
        assert store.degraded is None


def test_without_an_outage_the_page_is_not_asked(page, remounting, store):
    """Whatever is told, and however often."""
    for event in (TOLD, Noted(text="A save."), HEALED):
        remounting(event)
    assert copied(store, "run/a")
    assert page.asked == []


def test_a_user_who_is_not_there_is_asked_once_in_an_outage(mount, page, remounting, store):
    """Training must not be held up again and again; what the attempt came to is told."""
    page.answer = MountError(problem="Nobody answered at the page.", remedy="Agree.")
    mount.die()
    for attempt in range(5):
        assert not copied(store, f"run/{attempt}")
        remounting(TOLD)
    assert len(page.asked) == 1
    assert "Nobody answered at the page." in store.degraded
    mount.come_back()
    assert copied(store, "run/a")
    page.answer = None
    mount.die()
    assert not copied(store, "run/b")
    remounting(TOLD)
    assert copied(store, "run/b")
    assert len(page.asked) == 2


def test_a_mount_that_came_back_by_itself_is_not_asked_for(mount, page, remounting, store):
    """Word that was left, and an answer that nobody fetched, are of the outage that is over."""
    mount.die()
    assert not copied(store, "run/a")
    mount.come_back()
    assert copied(store, "run/a")
    remounting(HEALED)
    assert page.asked == []
    page.answer = MountError(problem="Nobody answered.", remedy="Agree.")
    mount.die()
    assert not copied(store, "run/b")
    remounting(TOLD)
    mount.come_back()
    remounting(HEALED)
    page.answer = None
    mount.die()
    assert not copied(store, "run/b")
    remounting(TOLD)
    assert copied(store, "run/b")


def test_on_the_main_thread_it_is_mounted_at_once(mount, page, store):
    """As when a run is opened."""
    store.put("run/a", BytesSource(b"data"))
    mount.die()
    assert [entry.name for entry in store.list("")] == ["run/a"]
    assert page.asked == [threading.main_thread()]
