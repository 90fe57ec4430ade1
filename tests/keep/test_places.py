"""A folder in every kind of storage, each with its service on loopback, which fails now and then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from colabkeep.api import keep_folder
from colabkeep.keep.session import KeptFolder
from tests.long.places import PLACES, opened


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub, of its own call of httpx
@pytest.mark.parametrize("name", sorted(PLACES))
def test_a_folder_goes_to_the_storage_and_comes_back_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Twice: what the second machine adds is on top of what the first one had, and only that is written."""
    folder, disk = tmp_path / "runs", tmp_path / "disk"
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    with closing(PLACES[name](tmp_path)) as place:
        for variable, value in place.environment().items():
            monkeypatch.setenv(variable, value)

        @contextmanager
        def machine() -> Iterator[KeptFolder]:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(disk, ignore_errors=True)
            place.loses(0)
            with (
                place.works(0),
                closing(opened(place, 0, disk)) as store,
                keep_folder(folder, "r", storage=store, flush_timeout=60) as kept,
            ):
                yield kept

        best = os.urandom(3_000_000)
        with machine() as kept:
            (folder / "weights").mkdir()
            (folder / "weights/best.pt").write_bytes(best)
            (folder / "weights/last.pt").write_bytes(b"1" * 2_000_000)
            assert kept.save()
        place.quiet()
        with machine() as kept:
            assert kept.restored is not None
            assert (folder / "weights/best.pt").read_bytes() == best
            (folder / "weights/last.pt").write_bytes(b"2" * 2_000_000)
        with machine() as kept:
            assert kept.restored is not None
            assert kept.restored.version == 2
            assert (folder / "weights/best.pt").read_bytes() == best
            assert (folder / "weights/last.pt").read_bytes() == b"2" * 2_000_000
