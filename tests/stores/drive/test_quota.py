"""How much room there is on Drive, told truly and cheaply."""

from __future__ import annotations

import pytest

from colabkeep.core.errors import UsageError
from colabkeep.core.system import Environment
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive import open_url as open_drive_url
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import refuse, silence


@pytest.fixture
def limited(drive):
    drive.set(quota_bytes=10_000_000, others_bytes=1_000_000)
    yield drive
    drive.set(quota_bytes=None, others_bytes=0)


def test_the_free_space_is_without_the_trash_and_what_others_take(limited, open_drive):
    """Mail, photos and the trash take room; a deleted object gives its own back at once, for it skips the trash."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    assert store.properties.free_bytes == 9_000_000
    store.put("run/a", BytesSource(bytes(2_000_000)))
    assert store.properties.free_bytes == 7_000_000
    clock.advance(120)
    assert store.properties.free_bytes == 7_000_000
    store.delete("run/a")
    assert store.properties.free_bytes == 9_000_000
    clock.advance(120)
    assert store.properties.free_bytes == 9_000_000


def test_what_was_moved_to_the_trash_by_hand_still_counts(limited, open_drive):
    """As it does for Google."""
    from google.auth.transport.requests import AuthorizedSession

    clock = FakeClock()
    store = open_drive(clock=clock)
    receipt = store.put("run/a", BytesSource(bytes(2_000_000)))
    with AuthorizedSession(limited.credentials()) as session:
        session.patch(f"{limited.url}/drive/v3/files/{receipt.id}", json={"trashed": True})
    clock.advance(120)
    assert store.properties.free_bytes == 7_000_000


def test_an_unlimited_account_has_no_figure(open_drive):
    """None means: no limit that is known."""
    assert open_drive().properties.free_bytes is None


def test_the_service_is_asked_once_a_minute(limited, open_drive, traffic):
    """Properties are asked for every second while a checkpoint is on its way."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    for _ in range(100):
        assert store.properties.free_bytes == 9_000_000
        clock.advance(1)
    assert len(traffic.all("GET", "/about")) == 2


def test_a_service_that_does_not_say_leaves_the_figure_open(limited, open_drive):
    """No error and no long wait: `free_bytes` is None until it can be told again."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    limited.faults(refuse(503).on("GET", "/about"))
    assert store.properties.free_bytes is None
    assert clock.slept == []
    clock.advance(120)
    assert store.properties.free_bytes == 9_000_000


def test_what_the_store_can_do_is_said_without_asking(limited, open_drive):
    """Everything but the free space is known beforehand."""
    limited.faults(silence(1.0).on("GET", "/about"))
    properties = open_drive().properties
    assert (properties.top_level, properties.persists, properties.locks) == ("confirmed", True, False)
    assert properties.max_object_bytes == 5 * 2**40
    assert properties.lists_lag


def test_properties_are_had_without_a_sign_in(tmp_path):
    """Asking what a store can do is no reason to fail, or to ask anybody; the first real use says what is missing."""
    environment = Environment(environ={}, root=tmp_path, folder=tmp_path)
    store = open_drive_url("drive://runs", environment=environment)
    assert store.properties.free_bytes is None
    with pytest.raises(UsageError, match="Nobody is signed in"):
        store.list("run")
