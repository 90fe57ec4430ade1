"""What a user writes for a place on Drive is the place that was meant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from colabkeep.core.errors import UsageError
from colabkeep.stores import open_store
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import Place, read_place
from colabkeep.stores.tiered import TieredStore


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("drive://colabkeep", Place(folders=("colabkeep",))),
        ("drive://", Place(folders=("colabkeep",))),
        ("drive://my runs/2026", Place(folders=("my runs", "2026"))),
        ("drive://my%20runs/%C3%BC", Place(folders=("my runs", "ü"))),
        ("drive://a%2Fb", Place(folders=("a/b",))),
        ("drive://id=1AbCdEfGhIjK", Place(folders=(), top="1AbCdEfGhIjK")),
        ("drive://id=1AbCdEfGhIjK/runs", Place(folders=("runs",), top="1AbCdEfGhIjK")),
        ("drive://team?shared_drive=0AShared0123", Place(folders=("team",), shared_drive="0AShared0123")),
        ("drive://a?service=http://127.0.0.1:80", Place(folders=("a",), service="http://127.0.0.1:80")),
    ],
)
def test_a_url_names_a_place_and_the_place_names_it_again(url, place):
    """Reading and writing a URL lose nothing, whatever the folders are called."""
    assert read_place(url) == place
    assert read_place(place.url) == place


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("drive://id=../x", "id"),
        ("drive://id=", "id"),
        ("drive://a?shared_drive=", "shared"),
        ("drive://a?unknown=1", "unknown"),
        ("drive://a?service=https://example.org", "not on this machine"),
        ("drive://a?service=http://127.0.0.1.example.org", "not on this machine"),
        ("drive://a?service=http://127.0.0.1@example.org", "not on this machine"),
    ],
)
def test_what_cannot_be_meant_is_refused(url, word):
    """Above all a place that would send the user's token to another machine."""
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert word in caught.value.problem
    assert caught.value.remedy


def test_a_drive_url_opens_the_drive_store():
    """Alone, in any spelling of the scheme, and behind a folder; nobody is signed in and nothing is asked yet."""
    assert isinstance(open_store("drive://runs"), DriveStore)
    assert open_store("DRIVE://runs").url == "drive://runs"
    pair = open_store("/tmp/front + drive://runs")
    assert isinstance(pair, TieredStore)
    assert (pair.front.url, pair.behind.url) == ("/tmp/front", "drive://runs")


def test_opening_a_place_loads_no_heavy_package():
    """google-auth and requests are loaded by the first request, PyDrive2 never."""
    program = """
import sys
from colabkeep.stores import open_store
store = open_store("drive://runs")
store.url
print(sorted(sys.modules.keys() & {"google.auth", "requests", "urllib3", "pydrive2", "httplib2"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
