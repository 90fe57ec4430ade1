"""What is remembered of a listing is never older than some seconds, and never hides what this process did."""

from __future__ import annotations

import pytest

from colabkeep.core.errors import StoreUnavailable
from colabkeep.stores.base import Entry, Receipt
from colabkeep.stores.shared.listings import FRESH_SECONDS, Listings, RemoteStore
from tests.fakes.model import names


class Place:
    """A place whose listing shows what it is told to, and its clock."""

    def __init__(self):
        self.now, self.asked, self.shows = 0.0, [], {}
        self.during = lambda: None

    def find(self, prefix):
        self.asked.append(prefix)
        found = {name: size for name, size in self.shows.items() if not prefix or name.startswith(f"{prefix}/")}
        self.during()
        return found

    def clock(self):
        return self.now

    def later(self, seconds=FRESH_SECONDS + 1):
        self.now += seconds


@pytest.fixture
def place():
    """An empty one."""
    return Place()


@pytest.fixture
def listings(place):
    """What is remembered of it: nothing yet."""
    return Listings(place.find, place.clock)


def test_one_listing_answers_for_all_folders_of_a_run(place, listings):
    """And only for that run, and only for some seconds."""
    place.shows = {"run/blobs/a": 1, "run/b": 2, "running/c": 3}
    assert [listings.below(p) for p in ("run/blobs", "run", "run/b")] == [
        {"run/blobs/a": 1},
        {"run/blobs/a": 1, "run/b": 2},
        {},
    ]
    assert place.asked == ["run"]
    assert listings.below("running") == {"running/c": 3}
    place.later()
    listings.below("run")
    assert place.asked == ["run", "running", "run"]


def test_a_listing_of_everything_answers_for_each_run(place, listings):
    """But not the other way round."""
    place.shows = {"run/a": 1, "other/b": 2}
    listings.below("run")
    assert listings.below("") == place.shows
    assert listings.below("other") == {"other/b": 2}
    assert place.asked == ["run", ""]


def test_where_each_folder_costs_a_request_only_the_wanted_ones_are_listed(place):
    """A run with folders is walked through: the whole of it for one would be dear."""
    listings = Listings(place.find, place.clock, whole_runs=False)
    listings.below("run/blobs")
    listings.below("run/checkpoints")
    assert place.asked == ["run/blobs", "run/checkpoints"]


def test_what_this_process_did_is_seen_at_once_also_where_listings_lag(place, listings):
    """A listing that does not show it yet, or that was under way meanwhile, takes nothing back."""
    place.shows = {"run/old": 1}
    listings.below("run")
    listings.wrote("run/new", 2)
    listings.deleted("run/old")
    assert listings.below("run") == {"run/new": 2}
    place.later()
    listings.wrote("run/newer", 3)
    place.during = lambda: listings.wrote("run/newest", 4)
    assert listings.below("run") == {"run/old": 1, "run/newer": 3, "run/newest": 4}


def test_what_others_did_is_seen_in_the_end(place, listings):
    """Also to names that this process wrote."""
    listings.wrote("run/a", 1)
    place.later()
    assert listings.below("run") == {}
    assert listings.known("run/a") is None


def test_a_name_of_which_nothing_is_known_is_not_called_free(place, listings):
    """Only a fresh listing says that a name is free."""
    assert not listings.lacks("run/a")
    listings.below("run")
    assert listings.lacks("run/a")
    listings.wrote("run/a", 1)
    assert not listings.lacks("run/a")
    place.later()
    assert not listings.lacks("run/b")


def test_after_a_failure_everything_is_asked_for_again(place, listings):
    """Of the one name nothing is believed any more, whatever this process did to it before."""
    listings.below("run")
    listings.deleted("run/a")
    place.shows = {"run/a": 1}
    listings.forget("run/a")
    assert listings.below("run") == {"run/a": 1}


def test_a_listing_that_fails_is_not_remembered(place, listings):
    """The next one asks again."""

    def fail():
        raise StoreUnavailable(problem="away", remedy="wait")

    place.during = fail
    with pytest.raises(StoreUnavailable):
        listings.below("run")
    place.during = lambda: None
    assert listings.below("run") == {}
    assert place.asked == ["run", "run"]


def test_what_another_session_deleted_is_not_confirmed_any_more(place):
    """In every store that asks by requests: as soon as a listing does not show it, some seconds later at most."""

    class Remote(RemoteStore):
        def _find(self, prefix):
            return [Entry(name=name, size=size) for name, size in place.find(prefix).items()]

        def _states(self, receipt):
            return receipt.name in place.shows

    store = Remote("remote://", place.clock)
    sent = Receipt(name="run/a", size=1, sha256="00", level="sent")
    place.shows = {"run/a": 1}
    assert (names(store), store.confirm(sent).level) == (["run/a"], "confirmed")
    place.shows = {}
    assert (names(store), store.confirm(sent).level) == (["run/a"], "confirmed")
    place.later()
    assert (names(store), store.confirm(sent).level) == ([], "sent")
